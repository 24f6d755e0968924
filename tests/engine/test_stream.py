"""Children of one request: they share its prompt and differ in what makes their answers differ."""

from __future__ import annotations

from forno.engine.stream import children
from forno.request import Request, SamplingParams
from tests.helpers.any_token import AnyToken


def test_children_have_ids_seeds_and_constraints_of_their_own_and_one_group() -> None:
    made = children(Request("a", (1, 2), SamplingParams(seed=7)), 3, AnyToken)
    assert [c.id for c in made] == ["a-0", "a-1", "a-2"]
    assert [c.sampling.seed for c in made] == [7, 8, 9]
    assert {c.group for c in made} == {"a"}
    assert {c.prompt for c in made} == {(1, 2)}
    assert len({id(c.constraint) for c in made}) == 3


def test_without_a_seed_each_child_draws_its_own() -> None:
    assert [c.sampling.seed for c in children(Request("a", (1,)), 2)] == [None, None]


def test_an_only_child_is_the_request_itself() -> None:
    request = Request("a", (1,), SamplingParams(seed=7))
    assert children(request, 1) == [request]
