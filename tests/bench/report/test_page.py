"""A page needs nothing else, runs nothing, shows what is wrong first, and says what is seen, whatever the files hold."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from unittest import mock

import pytest

from forno.bench.records import LoadSample, RequestRecord, Result, Run
from forno.bench.report import plotting, write_html
from forno.bench.report.page import as_html, page_of
from forno.errors import ResultError
from tests.bench.simulate import Machine, closed, opened, result

SLO = {"ttft": 200.0, "tpot": 15.0}
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>{{7*7}}$\\frac{1}{$_^\x00\u202e]]>--></svg>"
VOID = {"meta", "br", "img", "link", "input", "hr"}


class Reader(HTMLParser):
    """Elements, their attributes and text; fails where elements do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture(scope="module")
def sweep() -> Result:
    return result([closed(c, r, SLO) for c in (1, 48) for r in range(2)], SLO)


@pytest.fixture(scope="module")
def page(sweep: Result) -> str:
    return as_html([sweep])


@pytest.fixture
def undrawn() -> Iterator[None]:
    """Figures are empty: for what a page says beside them."""
    with mock.patch.object(plotting, "draw", return_value="<svg></svg>"):
        yield


def check(text: str) -> Reader:
    """What holds for every page."""
    found = Reader(text)
    assert not {"script", "img", "iframe", "object", "embed", "link", "a", "form"} & set(found.tags)
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    for name, value in found.attributes:
        assert name not in ("src", "srcset", "action")
        assert "href" not in name or value.startswith("#")
        assert "url(" not in value or "url(#" in value
    assert "@import" not in text
    ids = [value for name, value in found.attributes if name == "id"]
    assert len(set(ids)) == len(ids)
    used = {value[1:] for name, value in found.attributes if "href" in name}
    used |= set(re.findall(r"url\(#([^)]+)\)", text))
    assert used <= set(ids)
    paths = [value for name, value in found.attributes if name in ("d", "x", "y", "transform", "viewbox")]
    assert not [p for p in paths if "nan" in p or "inf" in p]
    return found


def test_a_page_is_self_contained(page: str) -> None:
    found = check(page)
    assert found.tags.count("svg") > 8
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in found.attributes
    assert len(page) < 2_000_000


def test_a_page_says_what_is_seen(page: str) -> None:
    for text in (
        "smollm2-135m: chat",
        "Throughput still grows at the highest load",
        "99 % within",
        "At most 48 requests in flight; the server ran up to 32 and let up to 16 wait",
        "of it in the server&#39;s queue",
        "Goodput",
        "time to first token: from sending",
        "AMD EPYC, 2 cores",
        "max_num_seqs",
        "SLO 200 ms",
    ):
        assert text in page, text


@pytest.mark.usefixtures("undrawn")
def test_every_table_of_runs_has_its_numbers(sweep: Result) -> None:
    runs = page_of([sweep], [""]).runs
    assert [text for text, _ in runs.header] == ["", "1 client", "48 clients"]
    rows = {row[0][0]: [text for text, _ in row[1:]] for row in runs.rows}
    assert rows["Runs"] == ["2", "2"]
    assert rows["Failed"] == ["0", "0"]
    assert all("±" in text for text in rows["Output tok/s"])


@pytest.mark.usefixtures("undrawn")
def test_writing_it(tmp_path: Path, sweep: Result) -> None:
    write_html([sweep], tmp_path / "out.html")
    assert (tmp_path / "out.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_the_same_results_make_the_same_page() -> None:
    results = [result([closed(2, count=6)])]
    assert as_html(results) == as_html(results)


def test_without_results_there_is_no_page() -> None:
    with pytest.raises(ResultError, match="no results"):
        as_html([])


@pytest.mark.usefixtures("undrawn")
def test_runs_that_are_not_valid_are_shown_first() -> None:
    run = closed(4)
    run.summary.valid = False
    run.summary.problems = ["the client was the bottleneck"]
    other = closed(2)
    other.summary.problems = ["the server refuses ignore_eos"]
    found = page_of([result([other, run])], [""])
    assert [p.level for p in found.problems] == ["invalid", "note"]
    assert found.problems[0].text == "Not valid: the client was the bottleneck (4 clients)"
    text = as_html([result([other, run])])
    assert text.index("Not valid: the client") < text.index("<h2>Runs</h2>")
    assert "<b>not valid</b>" in text


@pytest.mark.usefixtures("undrawn")
def test_an_interruption_is_said() -> None:
    stopped = result([closed(2)])
    stopped.interrupted = True
    assert "interrupted by its user" in page_of([stopped], [""]).problems[0].text


@pytest.mark.usefixtures("undrawn")
def test_many_problems_are_cut() -> None:
    run = closed(1)
    run.summary.problems = [f"problem {i}" for i in range(40)]
    found = page_of([result([run])], [""]).problems
    assert len(found) == 13
    assert found[-1].text == "and 28 more, in the result files"


def test_a_surge_shows_its_steps_and_what_it_left() -> None:
    run = opened([(5, 4), (60, 4), (5, 8)], 0, SLO)
    text = as_html([result([run], SLO)])
    check(text)
    assert "the queue of the surge took" in text
    assert "60 requests/s" in text
    assert "vertical lines are where the load changes" in text


def test_two_results_are_compared(sweep: Result) -> None:
    faster = result([closed(c, r, SLO, Machine(fixed=0.002)) for c in (1, 48) for r in range(2)], SLO)
    text = as_html([sweep, faster], ["before", "after"])
    found = check(text)
    assert "after against before: of" in text
    assert "Larger than the noise?" in text
    assert "48 clients – after" in "".join(found.texts)


@pytest.mark.usefixtures("undrawn")
def test_two_results_without_a_common_load(sweep: Result) -> None:
    assert "no load in common" in as_html([sweep, result([closed(3)])], ["x", "y"])


def test_three_results_side_by_side(sweep: Result) -> None:
    check(as_html([sweep, result([closed(1, count=6)]), result([closed(1, count=6)])], ["x", "y", "z"]))


def test_errors_are_counted_with_examples() -> None:
    run = opened([(10, 3)])
    for r in run.requests[::3]:
        r.error, r.error_kind, r.first, r.last, r.gaps = "500: <b>boom</b>", "status", None, None, []
    text = as_html([result([run])])
    check(text)
    assert "<h2>Errors</h2>" in text
    assert "500: &lt;b&gt;boom&lt;/b&gt;" in text


def silent(samples: Iterable[LoadSample] = ()) -> Run:
    """A run in which every request failed."""
    from forno.bench.metrics import summarize

    requests = [RequestRecord(index=i, scheduled=i, sent=i, ended=i + 1, error="no", error_kind="connect") for i in range(5)]
    return Run(
        load="closed, 2 clients",
        value=2,
        repeat=0,
        seed=0,
        summary=summarize(requests, (0.0, 0.0), SLO),
        requests=requests,
        samples=list(samples),
    )


def test_a_run_in_which_nothing_was_answered() -> None:
    text = as_html([result([silent([LoadSample(time=0.5, in_flight=2)])], SLO)])
    check(text)
    assert "no counted request was answered" in text
    assert "none was answered" in text


def test_a_run_without_its_requests() -> None:
    run = closed(4)
    run.requests, run.samples = [], []
    check(as_html([result([run])]))


def test_one_request_of_one_token() -> None:
    run = closed(1, count=1)
    run.requests[0].gaps, run.requests[0].last, run.requests[0].output_tokens = [], run.requests[0].first, 1
    check(as_html([result([run])]))


def test_extreme_times() -> None:
    run = closed(2, count=6)
    run.requests[1].first = run.requests[1].last = run.requests[1].ended = 9e7
    run.requests[2].sent, run.requests[2].scheduled = -9e7, -9e7
    run.requests[3].gaps = [0.0, 9e7]
    run.value = 0.0
    run.samples = [LoadSample(time=-1e8, in_flight=1 << 39, running=1e12)]
    check(as_html([result([run], {"ttft": 1e11})]))


@pytest.mark.usefixtures("undrawn")
def test_many_loads() -> None:
    found = page_of([result([closed(c, count=3) for c in range(1, 12)])], [""])
    assert len(found.legend) == 8
    assert len(found.courses) == 6


def test_text_of_files_is_text() -> None:
    run = opened([(10, 3), (20, 3)], 0, SLO)
    run.load = HOSTILE
    for stage in run.stages:
        stage.load = HOSTILE
    run.summary.problems = [HOSTILE]
    run.requests[0].error = run.requests[0].error_kind = HOSTILE
    hostile = result([run], SLO, model=HOSTILE)
    hostile.tool = hostile.started = hostile.url = HOSTILE
    hostile.workload = {"name": HOSTILE, HOSTILE: {HOSTILE: [HOSTILE]}}
    hostile.server = {"deep": {"deep": {"deep": {"deep": {HOSTILE: HOSTILE}}}}}
    hostile.definitions = {HOSTILE: HOSTILE}
    hostile.capacity = {"said": HOSTILE, "value": HOSTILE, "probes": HOSTILE}
    other = result([opened([(10, 3)])])
    other.runs[0].load = HOSTILE
    for text in (as_html([hostile]), as_html([hostile, other], [HOSTILE, "x"])):
        found = check(text)
        assert "<script>alert" not in text
        assert "49" not in "".join(found.texts).split("alert(1)")[1][:40]
        assert "{{7*7}}" in text
        assert "\x00" not in text
