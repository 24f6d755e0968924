"""The native runner against the reference, its refusals, and what it reports."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from forno import _native
from forno.errors import ConstraintError, EngineError, NumericsError, PromptTooLongError, RequestError
from forno.program.formats import FORMATS
from forno.program.passes import default_passes
from forno.request import Row, StepPlan
from forno.runner.batch import build_batch
from forno.runner.cpu import CpuRunner
from tests.helpers.models import CONFIGS, tokens_for
from tests.helpers.runners import MAX_ROWS, NUM_BLOCKS, Model, generate, request, score_prompt

ISAS = _native.available_isas()
PROMPT = tokens_for(1, 45)
TOLERANCE = {name: {"f32": 1e-4}.get(f.activation, 0.15) for name, f in FORMATS.items()}
"""Largest difference of a logit by format. Logits here have a spread of about 1.5; where activations are rounded, a
value on the edge of a rounding step may go either way."""


def reference_logits(model: Model, prompt: list[int]) -> np.ndarray:
    reference = model.reference()
    slot = reference.admit(request(prompt, prompt_logprobs=0))
    plan = StepPlan((Row(slot, 0, len(prompt), (5, 1, 3), True),))
    logits: np.ndarray = reference.executor.run(build_batch(plan, reference.residents))["logits"]
    return logits


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_of_every_architecture(name: str, isa: str) -> None:
    model = Model.tiny(name)
    assert np.abs(score_prompt(model.runner(2, isa), PROMPT) - reference_logits(model, PROMPT)).max() < TOLERANCE["f32"]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("format", [f for f in TOLERANCE if f != "f32"])
def test_logits_of_every_arithmetic(format: str, isa: str) -> None:
    model = Model.tiny("llama-llama3-biases", format)
    assert np.abs(score_prompt(model.runner(1, isa), PROMPT) - reference_logits(model, PROMPT)).max() < TOLERANCE[format]


@pytest.mark.parametrize("kv", ["bf16", "int8"])
@pytest.mark.parametrize("isa", ISAS)
def test_logits_of_every_cache_type(kv: str, isa: str) -> None:
    model = Model.tiny("qwen3", kv=kv)
    assert np.abs(score_prompt(model.runner(2, isa), PROMPT) - reference_logits(model, PROMPT)).max() < 0.1


@pytest.mark.parametrize("kv", ["float32", "bf16", "int8"])
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["qwen3", "mistral"])
def test_logits_with_materialized_attention(name: str, isa: str, kv: str) -> None:
    model = Model.tiny(name, kv=kv, materialized=True)
    limit = TOLERANCE["f32"] if kv == "float32" else 0.1
    assert np.abs(score_prompt(model.runner(2, isa), PROMPT) - reference_logits(model, PROMPT)).max() < limit


@pytest.mark.parametrize("disable", [*((name,) for name in default_passes()), default_passes()], ids=lambda d: "+".join(d))
@pytest.mark.parametrize("format", ["f32", "q8_0"])
def test_every_pass_can_be_off(disable: tuple[str, ...], format: str) -> None:
    model = Model.tiny("llama-llama3-biases", format, disable=disable)
    assert np.abs(score_prompt(model.runner(), PROMPT) - reference_logits(model, PROMPT)).max() < TOLERANCE[format]


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.tiny()


@pytest.fixture
def runner(model: Model) -> CpuRunner:
    return model.runner()


SAMPLINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 7},
    {"temperature": 0.8, "top_p": 0.9, "top_k": 20, "seed": 8},
    {"temperature": 1.5, "min_p": 0.05, "seed": 9, "presence_penalty": 1.0, "frequency_penalty": 0.5},
    {"repetition_penalty": 1.4, "logit_bias": {3: 5.0, 9: -100.0}},
    {"temperature": 2.0, "seed": 10, "min_tokens": 30, "stop_token_ids": (1, 2, 3, 4, 5, 6, 7, 8)},
]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_tokens_are_the_references(model: Model, runner: CpuRunner, sampling: dict[str, Any]) -> None:
    wanted = request(PROMPT, **sampling)
    assert generate(runner, wanted, 20, chunk=17) == generate(model.reference(), wanted, 20)


def test_logprobs_are_the_references(model: Model, runner: CpuRunner) -> None:
    results = []
    for each in (runner, model.reference()):
        slot = each.admit(request(PROMPT, logprobs=3, prompt_logprobs=2))
        plans = [StepPlan((Row(slot, start, 15, (0, 1), start == 30),)) for start in (0, 15, 30)]
        results.append([each.run(plan) for plan in plans])
    for ours, theirs in zip(*results, strict=True):
        assert ours.tokens == theirs.tokens
        assert len(ours.prompt_logprobs[0]) == len(theirs.prompt_logprobs[0])
        pairs = [*zip(ours.prompt_logprobs[0], theirs.prompt_logprobs[0], strict=True)]
        pairs += [(a, b) for x, y in zip(ours.logprobs, theirs.logprobs, strict=True) for a, b in zip(x, y, strict=True)]
        for a, b in pairs:
            assert (a.token, a.rank, [t for t, _ in a.top]) == (b.token, b.rank, [t for t, _ in b.top])
            assert [a.logprob, *(p for _, p in a.top)] == pytest.approx([b.logprob, *(p for _, p in b.top)], abs=1e-4)
    assert sum(len(step.prompt_logprobs[0]) for step in results[0]) == len(PROMPT) - 1


def test_prompt_logprobs_longer_than_a_slice_of_the_head() -> None:
    """The fused head computes logits 64 rows at a time; the unfused one all at once."""
    prompt = tokens_for(2, 90)
    assert len(prompt) > _native.HEAD_SLICE
    fused, plain = (Model.tiny(disable=off).runner(2) for off in ((), ("sample_head",)))
    assert (score_prompt(fused, prompt) == score_prompt(plain, prompt)).all()


def test_rows_without_samples_yield_nothing_and_slots_are_reused(runner: CpuRunner) -> None:
    first, second = runner.admit(request([1, 2, 3])), runner.admit(request([4]))
    result = runner.run(StepPlan((Row(first, 0, 2, (0,), False), Row(second, 0, 1, (1,), True))))
    assert [len(t) for t in result.tokens] == [0, 1]
    assert (result.logprobs, result.errors) == ((), {})
    runner.release(first)
    assert runner.admit(request([5])) == first
    assert runner.executor.num_requests == 2


def test_an_empty_plan_is_a_step(runner: CpuRunner) -> None:
    assert runner.run(StepPlan(())).tokens == ()


def test_copied_blocks_hold_the_same_tokens(runner: CpuRunner) -> None:
    alone = generate(runner, request(PROMPT), 2, blocks=(0, 1))
    slot = runner.admit(request(PROMPT))
    runner.run(StepPlan((Row(slot, 0, 45, (0, 1), True),)))
    copied = StepPlan((Row(slot, 45, 1, (8, 9), True),), copies=((0, 8), (1, 9)))
    assert runner.run(copied).tokens == ((alone[1],),)


@pytest.mark.parametrize(
    "row",
    [
        Row(1, 0, 1, (0,), True),
        Row(-1, 0, 1, (0,), True),
        Row(0, -1, 1, (0,), True),
        Row(0, 0, 0, (0,), True),
        Row(0, 0, 4, (0,), True),
        Row(0, 2**31 - 1, 1, (0,), True),
        Row(0, 2**40, 1, (0,), True),
        Row(0, 0, 2, (0,), True),
        Row(0, 0, 3, (), True),
        Row(0, 0, 3, (NUM_BLOCKS,), True),
        Row(0, 0, 3, (-1,), True),
    ],
)
def test_plans_that_do_not_fit_are_refused_and_change_nothing(runner: CpuRunner, row: Row) -> None:
    slot = runner.admit(request([1, 2, 3]))
    with pytest.raises(EngineError, match="plan"):
        runner.run(StepPlan((row,)))
    assert runner.run(StepPlan((Row(slot, 0, 3, (0,), True),))).errors == {}


def test_more_plans_that_do_not_fit(runner: CpuRunner) -> None:
    slot = runner.admit(request(PROMPT))
    good = Row(slot, 0, 3, (0,), False)
    for plan in (
        StepPlan((good, good)),
        StepPlan((good,), copies=((0, NUM_BLOCKS),)),
        StepPlan((good,), copies=((-1, 0),)),
        StepPlan((good,) * (MAX_ROWS + 1)),
        StepPlan((Row(slot, 0, 45, (0,), True),)),
    ):
        with pytest.raises(EngineError):
            runner.run(plan)
    others = [runner.admit(request(PROMPT)) for _ in range(2)]
    too_many = StepPlan(tuple(Row(s, 0, 45, (0, 1), False) for s in (slot, *others)))
    with pytest.raises(EngineError, match="135 tokens"):
        runner.run(too_many)
    runner.release(slot)
    with pytest.raises(EngineError, match="not resident"):
        runner.run(StepPlan((good,)))
    with pytest.raises(ValueError, match="not resident"):
        runner.release(slot)


def test_requests_that_cannot_be_held_are_refused(runner: CpuRunner) -> None:
    with pytest.raises(RequestError, match="vocabulary"):
        runner.admit(request([96]))
    for token in (96, -1, 2**40):
        with pytest.raises(RequestError, match="vocabulary") as raised:
            runner.admit(request([1], logit_bias={token: 1.0}))
        assert raised.value.param == "logit_bias"
    with pytest.raises(RequestError):
        runner.admit(request([2**40]))
    with pytest.raises(RequestError, match="at least one"):
        runner.admit(request([]))
    with pytest.raises(PromptTooLongError):
        runner.admit(request([1] * (runner.max_model_len + 1)))
    assert runner.executor.num_requests == 0


def test_a_request_cannot_outgrow_what_it_was_admitted_for(runner: CpuRunner) -> None:
    slot = runner.admit(request([1, 2, 3], max_tokens=1))
    results = [runner.run(StepPlan((Row(slot, start, count, (0,), True),))) for start, count in ((0, 3), (3, 1), (4, 1))]
    assert isinstance(results[2].errors[0], EngineError)
    assert results[2].tokens == ((),)


def test_absurd_but_valid_numbers_are_held(runner: CpuRunner) -> None:
    huge = request([1], max_tokens=2**60, min_tokens=2**50, top_k=2**40, seed=-(2**70), stop_token_ids=(2**40, -5))
    assert len(generate(runner, huge, 3)) == 3


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("format", ["f32", "bf16", "q8_0"])
def test_nan_fails_its_own_row_only(format: str, isa: str) -> None:
    model, name, token = Model.tiny(format=format), "model.embed_tokens.weight", 7
    tensor = model.tensors[name]
    table = tensor.data.copy().reshape(tensor.shape[0], -1)
    table[token] = 0xFF  # NaN as a float, and as a scale
    damaged = {**model.tensors, name: replace(tensor, data=table.reshape(-1))}
    runner = Model(model.program, damaged).runner(2, isa)
    prompt = [t for t in PROMPT[:20] if t != token]
    bad, good = runner.admit(request([token, 1])), runner.admit(request(prompt))
    result = runner.run(StepPlan((Row(bad, 0, 2, (0,), True), Row(good, 0, len(prompt), (1,), True))))
    assert isinstance(result.errors[0], NumericsError)
    assert result.tokens == ((), tuple(generate(model.runner(1, isa), request(prompt), 1)))


class _Only:
    """A constraint that allows some tokens, then fails in the way it is told to."""

    def __init__(self, allowed: tuple[int, ...], fail: str = "") -> None:
        self.allowed, self.fail, self.accepted = allowed, fail, [-1]

    def fill_mask(self, mask: Any) -> None:
        if self.fail == "fill":
            raise RuntimeError("the grammar broke")
        for token in self.allowed:
            mask[token // 32] |= np.uint32(1 << token % 32)

    def accept(self, token: int) -> None:
        if self.fail == "accept":
            raise ConstraintError("not allowed")
        self.accepted.append(token)

    def is_done(self) -> bool:
        return False


def test_constraints_choose_and_fail_alone(runner: CpuRunner) -> None:
    constraints = [_Only((33, 95)), _Only((), ""), _Only((1,), "fill"), _Only((1,), "accept")]
    slots = [runner.admit(request([1, 2], constraint=c)) for c in constraints] + [runner.admit(request([1, 2]))]
    result = runner.run(StepPlan(tuple(Row(s, 0, 2, (i,), True) for i, s in enumerate(slots))))
    assert result.tokens[0][0] in (33, 95)
    assert constraints[0].accepted[1:] == [result.tokens[0][0]]
    assert {i: type(e) for i, e in result.errors.items()} == dict.fromkeys((1, 2, 3), ConstraintError)
    assert [len(t) for t in result.tokens] == [1, 0, 0, 0, 1]


def test_op_times_name_each_op_and_are_off_by_default(runner: CpuRunner) -> None:
    slot = runner.admit(request(PROMPT))
    runner.run(StepPlan((Row(slot, 0, 10, (0, 1), False),)))
    assert all(seconds == 0 for _, seconds in runner.op_times())
    with runner.timed_ops():
        runner.run(StepPlan((Row(slot, 10, 35, (0, 1), True),)))
    times = runner.op_times()
    assert all(seconds > 0 for _, seconds in times)
    assert {type(op).__name__ for op, _ in times} >= {"Embed", "Linear", "Attention", "SampleHead"}


@pytest.mark.skipif(not _native.CAN_STEP, reason="instructions can be stepped through on x86-64 Linux only")
@pytest.mark.parametrize("isa", _native.available_isas())
def test_a_step_allocates_nothing(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one call for memory while the ops run: every instruction is looked at, and calls are seen where there are some."""
    assert [_native.step_through_allocations(times)[1] for times in (0, 1, 3)] == [0, 1, 3]
    sizes = (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
    )
    small = dict(zip(sizes, (32, 32, 32, 1, 1, 1), strict=True))  # an instruction takes up to 20 microseconds
    monkeypatch.setitem(CONFIGS, "small", {**CONFIGS["llama"], **small})
    runner = Model.tiny("small", format="q8_0", kv="bf16").runner(isa=isa)
    slot = runner.admit(request([1], temperature=0.7, top_k=5))
    with runner.counted_ops():
        runner.run(StepPlan((Row(slot, 0, 1, (3,), True),)))
    assert all(instructions > 0 for _, instructions in runner.op_counts())
    assert runner.executor.allocations == 0


def test_denormals_and_float_mode_are_the_callers_own(runner: CpuRunner) -> None:
    generate(runner, request(PROMPT), 1)
    assert np.float32(1e-40) * np.float32(1.0) > 0


def test_a_result_says_how_long_the_threads_had_cores() -> None:
    runner = Model.tiny().runner(threads=2)
    slot = runner.admit(request((1, 2, 3)))
    result = runner.run(StepPlan((Row(slot, 0, 3, (0,), True),)))
    assert 0 < result.cpu_seconds <= 2 * result.seconds
    assert runner.executor.missing_seconds == pytest.approx(2 * result.seconds - result.cpu_seconds)


@pytest.mark.parametrize("materialized", [False, True])
def test_a_result_says_which_keys_were_read_once_for_several_rows(materialized: bool) -> None:
    """128 of them, the least that are shared, and only where attention shares anything."""
    model = Model.tiny()
    if materialized:
        model = replace(model, program=model.program.with_materialized_attention())
    runner, prompt = model.runner(threads=2, max_rows=200), tuple(tokens_for(1, 129))
    slots = [runner.admit(request(prompt)) for _ in range(3)]
    first = runner.run(StepPlan((Row(slots[0], 0, 129, (0, 1, 2, 3, 4), True),)))
    rows = tuple(Row(slot, 128, 1, (0, 1, 2, 3, 5 + i), True) for i, slot in enumerate(slots[1:]))
    assert first.shared_keys == 0
    assert runner.run(StepPlan(rows)).shared_keys == (0 if materialized else 128)
