"""Progress: one line that says where a run is."""

from __future__ import annotations

import asyncio
from io import StringIO

import pytest

from forno.bench import progress as module
from forno.bench.load import Extent, Gathered
from forno.bench.progress import Progress, line
from forno.bench.records import LoadSample, RequestRecord
from tests.bench.test_table import run_of


def ended(index: int, **more: object) -> RequestRecord:
    return RequestRecord(
        index=index, scheduled=0, sent=0, first=0.1, last=0.3, ended=float(index), gaps=[0.1, 0.1], output_tokens=3, **more
    )  # type: ignore[arg-type]


def test_the_line_of_a_run() -> None:
    records = [ended(i) for i in range(5)]
    sample = LoadSample(time=1.0, in_flight=8, running=6, waiting=2)
    got = Gathered(records=records, ended_requests=records, samples=[sample], opened=0.0)
    start, end = "closed · 7 s · 5/48 counted · 8 in flight (6 running, 2 waiting)", "3 tok/s"
    assert (
        line("closed", got, Extent(requests=48), 7.2) == f"{start} · TTFT p50 100 p99 100 ms · ITL p50 100 p99 100 ms · {end}"
    )


def test_the_line_before_anything_has_happened() -> None:
    assert line("closed", Gathered(), Extent(), 0.4) == "closed · 0 s · warm-up"


def test_what_a_server_does_not_tell_is_not_said() -> None:
    got = Gathered(samples=[LoadSample(time=1.0, in_flight=8, waiting=2)])
    assert "8 in flight (2 waiting)" in line("closed", got, Extent(), 1.0)
    got.samples[0].waiting = None
    assert line("closed", got, Extent(), 1.0).endswith("8 in flight")


def test_failures_are_loud_and_open_ends_have_no_total() -> None:
    got = Gathered(ended_requests=[ended(1), ended(2, error="x", error_kind="status")], opened=0.0)
    text = line("open", got, Extent(seconds=9), 3)
    assert "2 counted" in text
    assert text.endswith("1 FAILED")


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("out", [StringIO(), Terminal()])
async def test_what_is_written(out: StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIVE_SECONDS", 0.001)
    monkeypatch.setattr(module, "PLAIN_SECONDS", 0.001)
    shown = Progress(out, width=30)
    shown.begin("closed, 8 clients", Extent(), Gathered())
    while " · w" not in out.getvalue():
        await asyncio.sleep(0)
    shown.report(run_of("closed, 8 clients", 8, 0.1, slo={"ttft": 200.0}))
    shown.end()
    *lines, last = out.getvalue().rstrip("\n").split("\n")
    assert last.endswith(
        "closed, 8 clients: 11 tok/s · TTFT p50 100 p99 100 ms · ITL p50 500 p99 500 ms · 100 % within the SLO · 4 counted"
    )
    if out.isatty():
        assert not lines  # one line, written over itself
        assert all(len(part.removeprefix("\x1b[2K")) < 30 for part in last.split("\r")[:-1])
    else:
        assert set(lines) == {"closed, 8 clients · 0 s · warm-up"}
        assert "\r" not in out.getvalue()
