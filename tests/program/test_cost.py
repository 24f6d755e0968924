"""Costs against numbers worked out by hand, and what fusion may and may not do to them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forno.models import build_program
from forno.program import ops
from forno.program.passes import apply, default_passes
from forno.program.program import Program
from forno.program.shape import Span, StepShape
from tests.helpers.models import CONFIGS

LLAMA2_7B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}
LINEAR_PARAMETERS = 32 * (4 * 4096 * 4096 + 3 * 4096 * 11008) + 32000 * 4096  # layers and head; not embedding, not norms


@pytest.fixture(scope="module")
def llama() -> Program:
    return build_program(LLAMA2_7B)


def test_llama_2_7b_sizes(llama: Program) -> None:
    assert llama.kv_bytes_per_token == 524_288
    assert sum(w.elements for w in llama.weights.values()) == 6_738_415_616
    assert llama.with_kv_dtype("int8").kv_bytes_per_token == 32 * 32 * (2 * 128 + 2 * 4 * 2)


def test_a_linear_costs_two_flops_per_parameter_and_token(llama: Program) -> None:
    shape = StepShape.decode(3, 100)
    linears = sum(op.cost(llama, shape).flops for op in llama.ops if isinstance(op, ops.Linear))
    assert linears == 2 * LINEAR_PARAMETERS * 3


def test_weights_are_read_once_a_step_whatever_the_batch(llama: Program) -> None:
    norms, embedding_row = 65 * 4096 * 4, 4096 * 2
    for batch in (1, 8):
        assert llama.cost(StepShape.decode(batch, 10)).weight_bytes == LINEAR_PARAMETERS * 2 + norms + batch * embedding_row


def test_formats_set_the_unit_and_the_bytes(llama: Program) -> None:
    q4 = llama.with_formats(dict.fromkeys(llama.weights, "q4_1"))
    linear = next(op for op in q4.ops if isinstance(op, ops.Linear))
    cost = linear.cost(q4, StepShape.decode(1, 0))
    assert (cost.int8, cost.bf16, cost.weight_bytes) == (2 * 4096**2, 0, 4096**2 * 5 / 8)


def test_attention_flops_and_kv_traffic(llama: Program) -> None:
    attention = next(op for op in llama.ops if isinstance(op, ops.Attention))
    past, new = 100, 28
    cost = attention.cost(llama, StepShape((Span(past, new),), 1))
    diagonal = 2 * 4096 * new  # the formula counts half of each token's own key
    assert cost.flops == 2 * 4096 * ((past + new) ** 2 - past**2) + diagonal
    assert cost.kv_bytes == (past + new) * 524_288 / 32


def test_materialized_attention_moves_its_scores_four_times(llama: Program) -> None:
    shape = StepShape((Span(100, 28), Span(9, 1)), 2)
    tiled, whole = llama.cost(shape), llama.with_materialized_attention().cost(shape)
    assert whole.activation_bytes - tiled.activation_bytes == 32 * 32 * (28 * 128 + 10) * 4 * 4
    assert (whole.flops, whole.kv_bytes, whole.weight_bytes) == (tiled.flops, tiled.kv_bytes, tiled.weight_bytes)


def test_decode_writes_one_token_and_reads_the_context(llama: Program) -> None:
    cost = llama.cost(StepShape.decode(4, 1000))
    assert cost.kv_bytes == 4 * (1001 + 1) * 524_288


def test_a_window_bounds_work_and_traffic() -> None:
    program = build_program({**LLAMA2_7B, "model_type": "mistral", "num_key_value_heads": 8, "sliding_window": 64})
    attention = next(op for op in program.ops if isinstance(op, ops.Attention))
    cost = attention.cost(program, StepShape.decode(1, 1000))
    assert (cost.flops, cost.kv_bytes) == (4 * 4096 * 64, 64 * 8 * 128 * 2 * 2)


def test_logits_are_computed_for_outputs_only(llama: Program) -> None:
    whole, part = StepShape.prefill(512), StepShape((Span(0, 512),), 0)
    head = 2 * 4096 * 32000 + 4 * 4096 + 32000  # linear, norm and one pass over the logits
    assert llama.cost(whole).flops - llama.cost(part).flops == head


@settings(max_examples=60)
@given(
    st.sampled_from(sorted(CONFIGS)),
    st.sampled_from(["f32", "bf16", "q4_1", "q8_0"]),
    st.sets(st.sampled_from(default_passes())),
    st.lists(st.tuples(st.integers(0, 100), st.integers(1, 50)), min_size=1, max_size=4),
)
def test_fusion_keeps_the_work_and_never_adds_traffic(
    name: str, form: str, disable: set[str], spans: list[tuple[int, int]]
) -> None:
    program = build_program(CONFIGS[name])
    program = program.with_formats(dict.fromkeys(program.weights, form))
    shape = StepShape(tuple(Span(*s) for s in spans), len(spans))
    before, after = (apply(program, off).cost(shape) for off in (default_passes(), disable))
    for unit in ("int8", "bf16", "fp32"):
        one, other = getattr(before, unit), getattr(after, unit)
        assert other == pytest.approx(one, rel=1e-12) or ("early_gather" not in disable and other < one)
    kinds = ["weight_bytes", "kv_bytes", "activation_bytes"]
    if "early_gather" not in disable and shape.outputs == shape.rows:
        kinds.remove("activation_bytes")  # no row ends early, and two values are copied rather than one
    for kind in kinds:
        assert getattr(after, kind) <= getattr(before, kind)
