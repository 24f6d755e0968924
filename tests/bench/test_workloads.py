"""Workloads: the same seed gives the same bytes, lengths are those asked for, and what is shared is shared."""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import pytest

from forno.bench.ruler import Ruler
from forno.bench.workload import Call, Conversation, Workload
from forno.bench.workloads import (
    WORKLOADS,
    ChatWorkload,
    LongWorkload,
    RagWorkload,
    RandomWorkload,
    TurnsWorkload,
    workload_class,
)
from forno.errors import ConfigError
from forno.options import add_options, from_args

MADE = [ChatWorkload, RagWorkload, TurnsWorkload, LongWorkload, RandomWorkload]
RULER = Ruler(1.0, 0.0)
"""A word is a token."""


def take(workload: Workload, count: int, seed: int = 1) -> list[Conversation]:
    return list(itertools.islice(workload.conversations(RULER, seed), count))


def talk(conversation: Conversation, answers: Iterable[str] = itertools.repeat("Yes.")) -> list[Call]:
    """All calls of a conversation whose answers are these."""
    calls = [conversation.first()]
    for answer in answers:
        call = conversation.next(answer)
        if call is None:
            break
        calls.append(call)
    return calls


def as_bytes(workload: Workload, seed: int, count: int = 12) -> bytes:
    calls = [call for conversation in take(workload, count, seed) for call in talk(conversation)]
    return json.dumps([[call.messages, call.prompt, call.max_tokens, call.at] for call in calls]).encode()


def words(call: Call) -> int:
    return sum(len(message["content"].split()) for message in call.messages)


@pytest.mark.parametrize("kind", MADE)
def test_a_seed_is_a_workload(kind: type[Workload]) -> None:
    assert as_bytes(kind(), 1) == as_bytes(kind(), 1)
    assert as_bytes(kind(), 1) != as_bytes(kind(), 2)


def test_a_seed_is_the_same_workload_in_another_process() -> None:
    """Not a hash of a string, which each process salts."""
    code = "from tests.bench.test_workloads import *; sys.stdout.buffer.write(as_bytes(RandomWorkload(), 3, 2))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == as_bytes(
        RandomWorkload(), 3, 2
    )


@pytest.mark.parametrize("kind", MADE)
def test_a_conversation_does_not_depend_on_the_others(kind: type[Workload]) -> None:
    third = take(kind(), 3)[2]
    early = [talk(conversation) for conversation in take(kind(), 3)][2]
    assert talk(third) == early
    assert third.session == 2


@pytest.mark.parametrize(("kind", "wanted"), [(ChatWorkload, 512), (LongWorkload, 3000), (RandomWorkload, 512)])
def test_prompts_have_the_wanted_length(kind: type[Any], wanted: int) -> None:
    counts = [words(conversation.first()) for conversation in take(kind(input_tokens=str(wanted)), 10)]
    assert counts == [wanted] * 10


def test_lengths_follow_their_distributions() -> None:
    workload = RandomWorkload(input_tokens="uniform:100:300", max_tokens="lognormal:50:0.3")
    calls = [conversation.first() for conversation in take(workload, 500)]
    assert statistics.fmean(map(words, calls)) == pytest.approx(200, rel=0.05)
    assert statistics.fmean(call.max_tokens for call in calls) == pytest.approx(50, rel=0.05)


def test_a_chats_system_prompt_is_shared_and_the_rest_is_not() -> None:
    calls = [conversation.first() for conversation in take(ChatWorkload(system_tokens=50), 20)]
    assert len({call.messages[0]["content"] for call in calls}) == 1
    assert len(calls[0].messages[0]["content"].split()) == 50
    assert len({call.messages[1]["content"] for call in calls}) == 20
    assert len(ChatWorkload().conversations(RULER, 1).__next__().first().messages) == 1


def documents(call: Call) -> list[str]:
    return [text for text in call.messages[0]["content"].split("\n\n") if text.startswith("Document ")]


def test_rag_shares_documents_in_one_order() -> None:
    calls = [conversation.first() for conversation in take(RagWorkload(documents=5, documents_per_prompt=3), 200)]
    assert len({text for call in calls for text in documents(call)}) == 5
    assert all(documents(call) == sorted(documents(call)) and len(documents(call)) == 3 for call in calls)
    assert len({call.messages[1]["content"] for call in calls}) == 200


def test_shuffle_is_the_share_of_prompts_whose_order_is_random() -> None:
    def ordered(shuffle: float) -> float:
        workload = RagWorkload(documents=6, documents_per_prompt=4, shuffle=shuffle, document_tokens="5")
        calls = [conversation.first() for conversation in take(workload, 600)]
        return sum(documents(call) == sorted(documents(call)) for call in calls) / len(calls)

    assert ordered(0) == 1
    assert ordered(1) == pytest.approx(1 / 24, abs=0.03)
    assert ordered(0.5) == pytest.approx(0.5 + 0.5 / 24, abs=0.06)


def test_turns_grow_by_the_models_own_answers() -> None:
    conversation = take(TurnsWorkload(turns=3), 1)[0]
    first, second, third = talk(conversation, ["One.", "Two.", "Three."])
    assert second.messages[: len(first.messages)] == first.messages
    assert third.messages[: len(second.messages)] == second.messages
    roles = [message["role"] for message in third.messages]
    assert roles == ["system", "user", "assistant", "user", "assistant", "user"]
    assert [message["content"] for message in third.messages if message["role"] == "assistant"] == ["One.", "Two."]
    shared = {conversation.first().messages[0]["content"] for conversation in take(TurnsWorkload(), 4)}
    assert len(shared) == 1


def test_thinking_takes_its_time_before_every_turn_but_the_first() -> None:
    conversation = take(TurnsWorkload(turns=3, think_seconds="uniform:1:2"), 1)[0]
    conversation.first()
    assert conversation.think_seconds == 0
    times = []
    while conversation.next("Yes."):
        times.append(conversation.think_seconds)
    assert len(set(times)) == 2
    assert all(1 <= time <= 2 for time in times)


@pytest.mark.parametrize("kind", MADE)
def test_parameters_are_options_and_say_how_to_make_it_again(kind: type[Workload]) -> None:
    parser = argparse.ArgumentParser()
    add_options(parser, kind)
    workload = from_args(kind, parser.parse_args([]))
    assert workload == kind()
    params = workload.params()
    assert params.pop("name") == kind.name
    assert kind(**params) == workload
    assert "default" in parser.format_help()


def test_names() -> None:
    assert list(WORKLOADS) == ["chat", "rag", "turns", "long", "random", "file", "trace"]
    assert workload_class("rag") is RagWorkload
    with pytest.raises(ConfigError, match="did you mean turns"):
        workload_class("turn")


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        (ChatWorkload, {"input_tokens": "x"}, "--input-tokens"),
        (ChatWorkload, {"system_tokens": -1}, "--system-tokens"),
        (RagWorkload, {"documents": 0}, "--documents"),
        (RagWorkload, {"documents": 2, "documents_per_prompt": 3}, "3 of 2"),
        (RagWorkload, {"shuffle": 1.5}, "--shuffle"),
        (TurnsWorkload, {"turns": 0}, "--turns"),
        (TurnsWorkload, {"think_seconds": "-1"}, "--think-seconds"),
        (LongWorkload, {"max_tokens": "many"}, "--max-tokens"),
    ],
)
def test_parameters_that_cannot_be_honoured_are_refused(kind: type[Any], options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        kind(**options)
