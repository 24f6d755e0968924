"""Sums over causal spans, against counting key by key."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forno.program.shape import Axis, Cost, Span, StepShape, Value


def seen_keys(span: Span, window: int) -> list[range]:
    """The positions that each token of the span sees."""
    tokens = range(span.start, span.context)
    return [range(max(0, p + 1 - window) if window else 0, p + 1) for p in tokens]


@given(st.integers(0, 40), st.integers(1, 40), st.integers(0, 50))
def test_attended_counts_every_visible_key(start: int, count: int, window: int) -> None:
    span = Span(start, count)
    keys = seen_keys(span, window)
    assert span.attended_within(window) == sum(len(k) for k in keys)
    assert span.read_within(window) == len({p for k in keys for p in k})


def test_attended_follows_the_causal_formula() -> None:
    # (p + s)^2 - p^2 counts each pair twice, less the diagonal.
    for p, s in ((0, 1), (0, 512), (100, 7)):
        assert 2 * Span(p, s).attended == (p + s) ** 2 - p**2 + s


def test_step_shapes() -> None:
    decode, prefill = StepShape.decode(3, 10), StepShape.prefill(7, start=2)
    assert (decode.rows, decode.outputs, decode.spans[0].context) == (3, 3, 11)
    assert (prefill.rows, prefill.outputs, prefill.spans[0].context) == (7, 1, 9)
    assert (prefill.size(Axis.ROWS), prefill.size(Axis.OUTPUTS)) == (7, 1)


def test_value_bytes_include_scales_and_sums() -> None:
    assert Value("x", Axis.ROWS, 64, "s8").bytes_per_row == 64 + 2 * 4 + 2 * 4
    assert Value("x", Axis.ROWS, 64, "s8_row").bytes_per_row == 64 + 4 + 4
    assert Value("x", Axis.ROWS, 64, "bf16").bytes_per_row == 128


def test_costs_add_by_field() -> None:
    total = Cost(int8=1, weight_bytes=2) + Cost(int8=3, fp32=4, kv_bytes=5)
    assert total == Cost(int8=4, fp32=4, weight_bytes=2, kv_bytes=5)
    assert (total.flops, total.bytes) == (8, 7)
