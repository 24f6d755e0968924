"""Whole steps: a row's bits do not depend on its batch, its chunks or its blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forno.errors import CheckpointError
from forno.kernels.reference.executor import ReferenceExecutor
from forno.kernels.reference.numerics import S8
from forno.models import build_program
from forno.program.passes import apply
from forno.program.program import Program
from tests.helpers.models import BLOCK_SIZE, CONFIGS, batch_of, logits_of, tiny_weights, tokens_for


def tiny(name: str, form: str = "f32", kv: str = "bf16") -> Program:
    program = build_program(CONFIGS[name])
    return apply(program.with_formats(dict.fromkeys(program.weights, form)).with_kv_dtype(kv))


def chunked(
    program: Program, sequences: Sequence[list[int]], cuts: Sequence[Sequence[int]], order: list[int]
) -> list[np.ndarray]:
    """Logits of each sequence, computed in chunks that end at its ``cuts``, several sequences to a step."""
    executor = ReferenceExecutor(program, tiny_weights(program), len(order), BLOCK_SIZE)
    tables = [order[i :: len(sequences)] for i in range(len(sequences))]
    logits: list[list[np.ndarray]] = [[] for _ in sequences]
    edges = [[0, *sorted(c), len(s)] for s, c in zip(sequences, cuts, strict=True)]
    for step in range(max(len(e) for e in edges) - 1):
        active = [i for i, e in enumerate(edges) if step + 1 < len(e) and e[step + 1] > e[step]]
        parts = [(sequences[i][edges[i][step] : edges[i][step + 1]], edges[i][step], tables[i]) for i in active]
        if not parts:
            continue
        rows = executor.run(batch_of(parts))["logits"]
        for i, part in zip(active, np.split(rows, np.cumsum([len(p[0]) for p in parts])[:-1]), strict=True):
            logits[i].append(part)
    return [np.concatenate(parts) for parts in logits]


@settings(max_examples=25)
@given(
    st.sampled_from(["llama", "mistral-window", "qwen3"]),
    st.sampled_from([("f32", "float32"), ("q8_0", "bf16"), ("bf16", "int8")]),
    st.lists(st.lists(st.integers(1, 20), max_size=4, unique=True), min_size=3, max_size=3),
    st.permutations(range(9)),
)
def test_chunks_batches_and_blocks_change_no_bit(
    name: str, types: tuple[str, str], cuts: list[list[int]], order: list[int]
) -> None:
    program = tiny(name, *types)
    sequences = [tokens_for(seed, 21) for seed in range(3)]
    for tokens, got in zip(sequences, chunked(program, sequences, cuts, list(order)), strict=True):
        np.testing.assert_array_equal(got, logits_of(program, tiny_weights(program), tokens))


@pytest.mark.parametrize(("form", "kv"), [("q8_0", "float32"), ("bf16", "bf16"), ("f32", "int8")])
def test_narrow_types_stay_close_to_fp32(form: str, kv: str) -> None:
    exact, program = tiny("llama", "f32", "float32"), tiny("llama", form, kv)
    tokens, weights = tokens_for(5, 30), tiny_weights(exact)
    expected = logits_of(exact, weights, tokens)
    error = (logits_of(program, weights, tokens) - expected).std() / expected.std()
    assert 1e-4 < error < 0.05


def test_all_rows_at_once_differ_by_rounding_only() -> None:
    program, tokens = tiny("llama"), tokens_for(5, 30)
    weights = tiny_weights(program)
    executor = ReferenceExecutor(program, weights, 4, BLOCK_SIZE, row_by_row=False)
    together = executor.run(batch_of([(tokens, 0, [0, 1, 2, 3])]))["logits"]
    np.testing.assert_allclose(together, logits_of(program, weights, tokens), rtol=0, atol=2e-2)  # bf16 may round the other way


def test_a_windowed_layer_forgets() -> None:
    program = tiny("mistral-window", "f32", "float32")  # two layers with windows of 7 see 13 tokens back
    weights, tokens = tiny_weights(program), tokens_for(1, 30)
    other = [(t + 1) % 96 for t in tokens[:10]] + tokens[10:]
    a, b = logits_of(program, weights, tokens), logits_of(program, weights, other)
    np.testing.assert_array_equal(a[22:], b[22:])
    assert (a[21] != b[21]).any()


def test_captured_values_come_as_they_are_held() -> None:
    program = tiny("llama", "q8_0")
    executor = ReferenceExecutor(program, tiny_weights(program), 1, BLOCK_SIZE)
    values = executor.run(batch_of([([1, 2, 3], 0, [0])]), capture=["0.input_layernorm.s8", "0.qkv"])
    assert isinstance(values["0.input_layernorm.s8"], S8)
    assert values["0.qkv"].shape == (3, 10 * 16)
    assert values["sampled"].tolist() == values["logits"].argmax(-1).tolist()


def test_copied_blocks_continue_a_sequence_apart() -> None:
    program = tiny("llama")
    weights, tokens = tiny_weights(program), tokens_for(2, 6)
    executor = ReferenceExecutor(program, weights, 2, BLOCK_SIZE)
    executor.run(batch_of([(tokens[:5], 0, [0])]))
    executor.copy_blocks([(0, 1)])
    executor.run(batch_of([([9], 5, [0])]))
    forked = executor.run(batch_of([(tokens[5:], 5, [1])]))["logits"]
    np.testing.assert_array_equal(forked[0], logits_of(program, weights, tokens)[5])


@pytest.mark.parametrize("form", ["f32", "q8_0"])
def test_a_step_without_outputs_fills_the_cache(form: str) -> None:
    program, tokens = tiny("llama", form), tokens_for(2, 6)
    weights = tiny_weights(program)
    executor = ReferenceExecutor(program, weights, 1, BLOCK_SIZE)
    batch = batch_of([(tokens[:5], 0, [0])])
    quiet = executor.run(replace(batch, outputs=batch.outputs[:0]))
    assert (quiet["logits"].shape, quiet["sampled"].shape) == ((0, 96), (0,))
    rest = executor.run(batch_of([(tokens[5:], 5, [0])]))["logits"]
    np.testing.assert_array_equal(rest[0], logits_of(program, weights, tokens)[5])


def test_missing_and_misshapen_weights_are_named() -> None:
    program = tiny("llama")
    weights = tiny_weights(program)
    with pytest.raises(CheckpointError, match=r"has no weight model\.norm\.weight"):
        ReferenceExecutor(program, {n: w for n, w in weights.items() if n != "model.norm.weight"}, 1, BLOCK_SIZE)
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight has shape \(3,\)"):
        ReferenceExecutor(program, {**weights, "model.norm.weight": np.ones(3, np.float32)}, 1, BLOCK_SIZE)
