"""Counters of a server before and after."""

from __future__ import annotations

from forno.bench.ablate.counters import Work, parse, work_between

PAGE = """# HELP forno:step_bytes_total Least bytes.
# TYPE forno:step_bytes_total counter
forno:step_bytes_total{engine="0",kind="weights",model_name="a \\"b\\""} 1.5e+09
forno:step_bytes_total{engine="0",kind="kv",model_name="x"} 3
forno:iteration_tokens_total_bucket{engine="0",le="1.0",model_name="x"} 7.0
forno:iteration_tokens_total_bucket{engine="0",le="16.0",model_name="x"} 9.0
forno:other_bucket{engine="0",le="16.0",model_name="x"} 9.0
forno:iteration_tokens_total_count{engine="0",model_name="x"} 10.0
forno:iteration_tokens_total_sum{engine="0",model_name="x"} 55.0
forno:odd{engine="0"} word
other:thing 1
"""


def test_samples_by_name_and_label() -> None:
    assert parse(PAGE) == {
        "step_bytes_total[weights]": 1.5e9,
        "step_bytes_total[kv]": 3.0,
        "iteration_tokens_total_bucket[1.0]": 7.0,
        "iteration_tokens_total_bucket[16.0]": 9.0,
        "iteration_tokens_total_count": 10.0,
        "iteration_tokens_total_sum": 55.0,
    }


def test_what_grew_is_work_and_what_is_not_told_is_none() -> None:
    before, after = parse(PAGE), {name: 2 * value for name, value in parse(PAGE).items()}
    work = work_between(before, after)
    assert (work.steps, work.rows, work.rows_per_step) == (10, 55, 5.5)
    assert (work.weight_bytes, work.kv_bytes, work.activation_bytes, work.flops) == (1.5e9, 3.0, None, None)
    assert work.waste_share is None
    assert work.decode_steps is None
    assert [work_between(before, after, clients).decode_steps for clients in (1, 4, 17)] == [7, 9, None]
    assert work.per_output(1.0) is None


def test_waste_is_of_the_slots_held_over_time() -> None:
    a = Work(reserved_slots=100, used_slots=90)
    b = Work(reserved_slots=300, used_slots=30)
    assert (a + b).waste_share == 1 - 120 / 400
    assert (a + Work()).waste_share is None
