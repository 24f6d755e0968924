"""What differs is seen, what does not is not, and what must not be compared is said."""

from __future__ import annotations

import msgspec
import pytest

from forno.bench.compare import METRICS, Comparison, compare
from forno.bench.compare_text import as_text, cells
from forno.bench.records import Result, Run
from forno.errors import ResultError
from tests.bench.simulate import Machine, closed, opened, result

SLO = {"ttft": 100.0, "tpot": 10.0}


def runs(fixed: float = 0.004, repeats: int = 4, slo: dict[str, float] | None = None) -> list[Run]:
    return [closed(4, r, slo, Machine(fixed=fixed)) for r in range(repeats)]


@pytest.fixture(scope="module")
def base() -> Result:
    return result(runs(slo=SLO), SLO)


def verdicts(found: Comparison) -> dict[str, str]:
    return {row.metric: row.verdict for row in found.pairs[0].rows}


def test_a_result_is_no_different_from_itself(base: Result) -> None:
    found = compare(base, base)
    assert found.warnings == []
    assert set(verdicts(found).values()) == {"noise"}
    assert found.regressions(0) == []


def test_a_slower_server_is_worse_in_what_it_is_slower_in(base: Result) -> None:
    found = compare(base, result(runs(0.008, slo=SLO), SLO))
    told = verdicts(found)
    assert {told[m] for m in ("tpot_p50_ms", "e2e_p50_ms", "output_tokens_per_s", "requests_per_s")} == {"worse"}
    assert told["queue_p50_ms"] == "noise"
    assert {row.basis for row in found.pairs[0].rows} == {"pairs"}
    assert "tpot_p50_ms" in {row.metric for _, row in found.regressions(20)}
    assert "tpot_p50_ms" not in {row.metric for _, row in found.regressions(200)}
    better = verdicts(compare(result(runs(0.008)), result(runs(0.004))))
    assert better["output_tokens_per_s"] == better["tpot_p50_ms"] == "better"


def test_repeats_of_other_seeds_are_two_groups(base: Result) -> None:
    found = compare(base, result([closed(4, r, SLO) for r in range(4, 8)], SLO))
    assert {row.basis for row in found.pairs[0].rows} == {"repeats"}
    assert any("the seeds differ at closed, 4 clients" in w for w in found.warnings)


def test_repeats_of_one_seed_are_no_pairs(base: Result) -> None:
    """Each repeat of one result may be held against any of the other's."""
    same = msgspec.convert(msgspec.to_builtins(base), Result)
    for run in same.runs:
        run.seed = 1
    assert {row.basis for row in compare(same, same).pairs[0].rows} == {"repeats"}


def test_single_runs_are_judged_by_their_requests_and_say_so(base: Result) -> None:
    found = compare(result(runs(repeats=1, slo=SLO), SLO), result(runs(0.008, repeats=1, slo=SLO), SLO))
    bases = {row.metric: row.basis for row in found.pairs[0].rows}
    assert bases["e2e_p50_ms"] == "requests"
    assert bases["output_tokens_per_s"] == bases["goodput_per_s"] == "slices"
    assert bases["e2e_p99_ms"] == "nothing"
    assert verdicts(found)["tpot_p50_ms"] == "worse"
    text = as_text(found)
    assert "WORSE, if other runs agree" in text
    assert "cannot tell" in text
    assert "use --repeats 3" in text


def test_runs_without_their_requests_have_unknown_noise() -> None:
    a, b = result(runs(repeats=1)), result(runs(0.008, repeats=1))
    for r in (a, b):
        r.runs[0].requests = []
    assert set(verdicts(compare(a, b)).values()) == {"unknown"}
    assert compare(a, b).regressions(0) == []


def test_other_loads_are_named_and_not_compared(base: Result) -> None:
    with pytest.raises(ResultError, match=r"no load in common: x has closed, 4 clients; y has closed, 2 clients"):
        compare(base, result([closed(2)]), ("x", "y"))
    found = compare(base, result([*runs(slo=SLO), closed(2, slo=SLO)], SLO), ("x", "y"))
    assert [pair.load for pair in found.pairs] == ["closed, 4 clients"]
    assert found.warnings == ["only y has 1 load: closed, 2 clients"]


def test_what_makes_results_unlike_is_said(base: Result) -> None:
    other = msgspec.convert(msgspec.to_builtins(base), Result)
    other.model = "other\n<model>"
    other.workload = {**base.workload, "max_tokens": 96}
    other.slo = {"ttft": 50}
    other.definitions = {}
    other.runs[1].summary.valid = False
    other.runs[1].summary.problems = ["the client was the bottleneck"]
    found = compare(base, other, ("x", "y"))
    text = "\n".join(found.warnings)
    assert found.warnings[0] == "y at closed, 4 clients, repeat 1, is not valid: the client was the bottleneck"
    assert "the models differ: smollm2-135m and other <model>" in text
    assert "the workloads differ: max_tokens 48 and 96" in text
    assert "goodput is not compared" in text
    assert "defined differently" in text
    assert "goodput_per_s" not in verdicts(found)
    assert "NOT VALID: b" in as_text(found)


def test_failures_are_compared_where_there_are_any(base: Result) -> None:
    assert "failed_share" not in verdicts(compare(base, base))
    other = msgspec.convert(msgspec.to_builtins(base), Result)
    for i, run in enumerate(other.runs):
        run.summary.failed = 6 + i
    row = next(r for r in compare(base, other).pairs[0].rows if r.metric == "failed_share")
    assert row.verdict == "worse"
    assert row.ratio is None
    assert cells(row)[1:4] == ("0.0 %", "27.2 %", "+27 pt")
    assert compare(base, other).regressions(1000)[0][1] == row


def test_json_has_every_number(base: Result) -> None:
    tree = msgspec.json.decode(msgspec.json.encode(compare(base, base)))
    assert tree["pairs"][0]["repeats"] == [4, 4]
    assert {row["metric"] for row in tree["pairs"][0]["rows"]} <= {m.name for m in METRICS}
    assert tree["pairs"][0]["rows"][0]["ratio"] == 1


def test_text_is_aligned_and_in_percent(base: Result) -> None:
    lines = as_text(compare(base, result(runs(0.008, slo=SLO), SLO), ("a.json", "b.json"))).splitlines()
    assert lines[:2] == ["a  a.json", "b  b.json"]
    at = next(i for i, line in enumerate(lines) if "larger than the noise?" in line)
    table = lines[at + 1 : at + 14]
    assert len({line.index(word) for line in table for word in ("no", "yes") if f"  {word}" in line}) == 1
    assert table[2].split()[:2] == ["TPOT", "p50,"]
    assert table[2].endswith("yes, WORSE")


def test_stages_of_a_surge_are_one_load() -> None:
    surge = result([opened([(5, 2), (20, 2), (5, 2)])])
    assert compare(surge, surge).pairs[0].load == "poisson, 5 then 20 then 5 requests/s"
