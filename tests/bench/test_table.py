"""The table that people read."""

from __future__ import annotations

from dataclasses import asdict
from io import StringIO
from typing import Any

import pytest
from msgspec import structs
from rich.console import Console

from forno.bench.capacity import Capacity, Probe
from forno.bench.measures import DEFINITIONS
from forno.bench.metrics import summarize
from forno.bench.records import RequestRecord, Result, Run, Stage
from forno.bench.table import columns_of, label_of, print_result, problems_of, rows_of


def run_of(load: str, value: float, ttft: float, repeat: int = 0, slo: dict[str, float] | None = None, **more: Any) -> Run:
    records = [
        RequestRecord(
            index=i,
            scheduled=0.0,
            sent=0.0,
            first=ttft,
            last=ttft + 1,
            ended=ttft + 1,
            gaps=[0.5, 0.5],
            output_tokens=3,
            prompt_tokens=9,
        )
        for i in range(4)
    ]
    records += [RequestRecord(index=4, scheduled=0.0, error="500", error_kind="status")] * more.pop("failed", 0)
    summary = summarize(records, (0.0, ttft + 1), slo or {})
    return Run(load=load, value=value, repeat=repeat, seed=0, summary=summary, requests=records, **more)


def result_of(runs: list[Run], **more: Any) -> Result:
    given: dict[str, Any] = {"workload": {"name": "chat", "seed": 0, "max_tokens": 64}, "definitions": DEFINITIONS, **more}
    return Result(tool="t", started="now", url="http://x", model="tiny", runs=runs, **given)


def printed(result: Result, width: int = 160) -> str:
    out = StringIO()
    print_result(result, Console(file=out, width=width))
    return out.getvalue()


ONE, EIGHT = "closed, 1 client", "closed, 8 clients"


def test_a_column_per_load_and_a_mean_of_its_repeats() -> None:
    runs = [run_of(ONE, 1, 0.1), run_of(EIGHT, 8, 0.4), run_of(ONE, 1, 0.2, repeat=1)]
    columns = columns_of(result_of(runs))
    assert [(name, len(summaries)) for name, summaries in columns] == [(ONE, 2), (EIGHT, 1)]
    rows = {(metric, statistic): cells for metric, statistic, cells in rows_of(columns, {})}
    assert rows["requests", "counted"] == ["8", "4"]
    assert rows["TTFT, ms", "mean"] == ["150 ± 635", "400"]  # Student's t of two values: 12.7 standard errors of 50
    assert rows["TPOT, ms", "mean"] == ["500 ± 0", "500"]


def test_what_nobody_told_has_no_row() -> None:
    labels = [metric for metric, _, _ in rows_of(columns_of(result_of([run_of(ONE, 1, 0.1)])), {})]
    assert not {"queue, ms", "cached prompt", "goodput/s", "within SLO"} & set(labels)


def test_all_that_a_reader_needs_is_printed() -> None:
    slo = {"ttft": 200.0}
    text = printed(result_of([run_of(ONE, 1, 0.1, slo=slo, failed=1), run_of(EIGHT, 8, 0.4, slo=slo)], slo=slo))
    for part in ("tiny at http://x", "chat: max_tokens 64", ONE, "goodput/s", "ttft at most 200 ms", "failed", "within SLO"):
        assert part in text
    assert "! 1 request failed (status), such as: 500 [closed, 1 client]" in text
    for name in DEFINITIONS:
        assert label_of(name) in text
    assert "goodput" not in printed(result_of([run_of(ONE, 1, 0.1)]))


@pytest.mark.parametrize("width", [80, 100, 160])
def test_nothing_is_cut_in_a_narrow_terminal(width: int) -> None:
    runs = [run_of(f"poisson, {rate} requests/s", rate, 0.1 * rate) for rate in range(1, 8)]
    text = printed(result_of(runs), width)
    assert "…" not in text
    for rate in range(1, 8):
        assert f"{100 * rate:,}" in text
    assert max(map(len, text.splitlines())) <= width


def test_steps_are_columns() -> None:
    run = run_of("poisson", 4, 0.1)
    run.stages = [Stage(stage=i, load=f"step {i + 1}", value=i, start=0, end=1, summary=run.summary) for i in range(2)]
    assert [name for name, _ in columns_of(result_of([run]))] == ["poisson", "step 1", "step 2"]


def test_a_search_is_sorted_by_load_and_says_what_it_found() -> None:
    found = asdict(Capacity(value=4.0, said="up to 4 requests/s", probes=[Probe(8.0), Probe(4.0)]))
    result = result_of([run_of("8/s", 8, 0.4), run_of("4/s", 4, 0.1)], capacity=found)
    assert [name for name, _ in columns_of(result)] == ["4/s", "8/s"]
    assert "Capacity: up to 4 requests/s" in printed(result)


def test_problems_of_all_loads_name_none() -> None:
    runs = [run_of(ONE, 1, 0.1), run_of(EIGHT, 8, 0.1)]
    runs[0].summary.problems = ["no usage", "late"]
    runs[1].summary.problems = ["no usage"]
    assert problems_of(result_of(runs)) == {"no usage": [], "late": [ONE]}


def test_a_server_cannot_write_our_markup() -> None:
    run = run_of("[bold]load[/bold]", 1, 0.1)
    run.summary = structs.replace(run.summary, problems=["[red]oops[/red]"])
    text = printed(result_of([run], workload={"name": "[x]", "path": "[/y]"}))
    assert "[red]oops[/red]" in text
    assert "[/y]" in text
