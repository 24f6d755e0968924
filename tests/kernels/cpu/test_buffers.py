"""The buffer plan: what is alive at the same time never shares bytes, except where an op may overwrite its input."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import pytest

from forno.kernels.cpu.buffers import Buffers, legalize, logits_of, plan_buffers, row_stride
from forno.models import build_program
from forno.program import ops, passes
from forno.program.program import Program
from tests.helpers.models import CONFIGS

ROWS, SLICE = 10, 4


def formatted(name: str, format: str) -> Program:
    program = build_program(CONFIGS[name])
    return program.with_formats({n: format for n, w in program.weights.items() if len(w.shape) == 2})


def lives(program: Program) -> dict[str, tuple[int, int]]:
    """First and last op at which each value matters; a split value matters as long as its columns do."""
    spans: dict[str, tuple[int, int]] = {}
    source: dict[str, str] = {}
    for i, op in enumerate(program.ops):
        for name in op.outputs:
            spans[name] = (i, i)
        if isinstance(op, ops.Split):
            source.update(dict.fromkeys(op.outs, op.x))
        for name in op.inputs:
            while name in spans:
                spans[name] = (spans[name][0], i)
                name = source.get(name, "")
    return spans


def extent(buffers: Buffers, name: str) -> range:
    """Bytes of a whole value; for one that is a column range, the bytes between its first and last element."""
    offset, stride, width, dtype = buffers.views[name]
    row = {0: 4 * width, 1: 2 * width, 2: width + width // 32 * 8, 3: 4 * width}[dtype]
    return range(offset, offset + stride * (ROWS - 1) + row)


def overlapping(program: Program, buffers: Buffers) -> Iterator[tuple[str, str]]:
    """Pairs of values, neither of them a view of columns, that live at the same time in common bytes."""
    spans = lives(program)
    views = {name for op in program.ops if isinstance(op, ops.Split) for name in op.outs}
    names = [n for n in spans if n in buffers.views and n not in views]
    for a, b in combinations(names, 2):
        together = spans[a][0] <= spans[b][1] and spans[b][0] <= spans[a][1]
        x, y = extent(buffers, a), extent(buffers, b)
        if together and x.start < y.stop and y.start < x.stop:
            yield a, b


@pytest.mark.parametrize("format", ["f32", "q8_0"])
@pytest.mark.parametrize("disable", [(), ("residual",), ("qkv", "gate_up"), passes.default_passes()], ids=str)
def test_only_residuals_are_overwritten(format: str, disable: tuple[str, ...]) -> None:
    program = legalize(passes.apply(formatted("llama-llama3-biases", format), disable))
    buffers = plan_buffers(program, ROWS, SLICE)
    shared = set(overlapping(program, buffers))
    allowed = set()
    for op in program.ops:
        if isinstance(op, ops.Add):
            allowed |= {(op.a, op.out), (op.b, op.out)}
        if isinstance(op, ops.Linear) and op.residual is not None:
            allowed.add((op.residual, op.out))
            assert (op.x, op.out) not in allowed
    assert shared <= allowed
    assert shared


def test_a_linear_never_overwrites_what_it_reads_whole_rows_of() -> None:
    program = build_program(CONFIGS["llama"])
    width = program.values["embedding"].width
    square = next(n for n, w in program.weights.items() if w.shape == (width, width))
    values = {"embedding": program.values["embedding"]}
    out = ops.Linear("out", "embedding", (square,), (None,), residual="embedding")
    values["out"] = type(values["embedding"])("out", values["embedding"].axis, width)
    tiny = Program("tiny", (program.ops[0], out), values, program.weights, {})
    assert set(overlapping(tiny, plan_buffers(tiny, ROWS, SLICE))) == set()


def test_reuse_keeps_the_arena_far_below_the_sum_of_values() -> None:
    program = passes.apply(formatted("llama", "q8_0"))
    buffers = plan_buffers(program, ROWS, SLICE)
    assert all(extent(buffers, name).stop <= buffers.bytes for name in buffers.views if not name.endswith(".logits"))
    assert buffers.bytes < sum(len(extent(buffers, name)) for name in buffers.views) / 2


def test_columns_of_a_split_lie_side_by_side_in_their_source() -> None:
    program = passes.apply(formatted("llama", "f32"), ("qkv_prepare",))
    buffers = plan_buffers(program, ROWS, SLICE)
    split = next(op for op in program.ops if isinstance(op, ops.Split))
    offset, stride, _, _ = buffers.views[split.x]
    for name in split.outs:
        width = program.values[name].width
        assert buffers.views[name] == (offset, stride, width, 0)
        offset += 4 * width


def test_logits_of_a_fused_head_take_one_slice() -> None:
    vocab = 10_000
    program = passes.apply(build_program({**CONFIGS["llama"], "vocab_size": vocab}))
    head = program.ops[-1]
    assert isinstance(head, ops.SampleHead)
    small, large = (plan_buffers(program, 1000, rows) for rows in (64, 1000))
    assert small.views[logits_of(head)][2] == vocab
    assert small.bytes < 1000 * 4 * vocab < large.bytes


@pytest.mark.parametrize(
    ("width", "dtype", "stride"), [(576, "f32", 2304), (1024, "f32", 4160), (64, "s8", 128), (5, "bf16", 64)]
)
def test_strides_are_whole_lines_and_avoid_powers_of_two(width: int, dtype: str, stride: int) -> None:
    assert row_stride(width, dtype) == stride


def test_attention_quantizes_its_output_only_where_groups_lie_within_heads() -> None:
    for name, plain in (("llama", True), ("llama-llama3-biases", False)):  # heads of 16 and of 32
        program = passes.apply(formatted(name, "q8_0"))
        legal = legalize(program)
        attention = next(op for op in legal.ops if isinstance(op, ops.Attention))
        assert (legal.values[attention.out].dtype == "f32") is plain
        assert len(legal.ops) == len(program.ops) + (len(program.caches) if plain else 0)
        legal.check_integrity()
