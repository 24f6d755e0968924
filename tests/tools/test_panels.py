"""The view: everything at any size, within it, and honest about what is unknown."""

from __future__ import annotations

from collections import deque
from io import StringIO
from typing import Any

import msgspec
import pytest
from rich.cells import cell_len
from rich.console import Console

from forno.tools.panels import spark, view
from forno.tools.watch import Sample, State, Watch, read_histograms
from tests.tools import fake_state


def drawn(state: dict[str, Any], width: int = 80, height: int = 24, problem: str = "", metrics: str | None = None) -> list[str]:
    """The view's lines, without color."""
    watch = Watch("http://127.0.0.1:8000")
    histograms = read_histograms(fake_state.metrics() if metrics is None else metrics)
    watch.samples = deque([Sample(0.0, msgspec.convert(state, State), state, histograms)])
    console = Console(file=StringIO(), width=width, height=height)
    console.print(view(watch, width, height, color=False, problem=problem))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


@pytest.mark.parametrize("size", [(80, 24), (100, 30), (149, 40), (150, 24), (200, 60)])
@pytest.mark.parametrize("requests", [(0, 0), (8, 2), (64, 0), (3, 90)])
def test_it_fits(size: tuple[int, int], requests: tuple[int, int]) -> None:
    lines = drawn(fake_state.state(running=requests[0], waiting=requests[1]), *size)
    assert len(lines) <= size[1]
    assert all(cell_len(line) <= size[0] for line in lines)
    text = "\n".join(lines)
    for part in (
        "smollm2-135m",
        "up 1h02m",
        "weights 52%",
        "idle 10%",
        "ceilings  DRAM 21 GB/s",
        "41% used",
        "2.1% wasted",
        "p99",
    ):
        assert part in text, part
    assert f"{requests[0]} running, {requests[1]} waiting" in text
    if requests[1]:
        assert "a seat" in text


def test_the_bar_is_as_wide_as_the_rest_of_its_line() -> None:
    bar = next(line for line in drawn(fake_state.state()) if line.startswith("waits for"))
    assert len(bar) == 80
    assert {glyph: bar.count(glyph) for glyph in "▓▒"} == {"▓": 8, "▒": 14}


def test_nothing_is_known_yet() -> None:
    empty = {key: None for key, value in fake_state.state().items() if not isinstance(value, list)}
    text = "\n".join(drawn({**empty, "steps": [], "requests": []}, metrics=""))
    assert "nan" not in text.lower()
    assert "None" not in text
    assert "not measured" in text
    assert "no request is here" in text


def test_a_problem_is_said_and_the_old_view_stays() -> None:
    lines = drawn(fake_state.state(), problem="trying again for 3 s: no answer")
    assert lines[2] == "old: trying again for 3 s: no answer"
    assert any("weights 52%" in line for line in lines)
    assert len(lines) <= 24


def test_before_the_first_answer() -> None:
    watch = Watch("http://127.0.0.1:8000")
    for problem, said in (("", "asking http://127.0.0.1:8000 ..."), ("no answer", "no answer")):
        console = Console(file=StringIO(), width=80)
        console.print(view(watch, 80, 24, problem=problem))
        assert console.file.getvalue().strip() == said  # type: ignore[attr-defined]


def test_sparks() -> None:
    assert spark([0.0, 0.5, 1.0, 9.0, -1.0], 1.0) == "▁▅██▁"
