"""The comparison of load generators: its arithmetic, and that the same load reaches each of them."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import agreement
from benchmarks.agreement import Comparison, ask, clients, halves, known, parser, questions
from benchmarks.clients import OURS, Load, Question, Said
from benchmarks.measure import Contention
from benchmarks.peers.place import PeerError

LOAD = Load("http://127.0.0.1:1", "m", (Question("a", 3), Question("b", 5)), clients=2)


def said(ttft: float, tpot: float, rate: float) -> Said:
    return Said(2, ttft, tpot, rate)


def test_a_client_is_held_against_what_the_server_knows_of_its_own_run() -> None:
    """A machine that was slower while a client ran is not the client's difference."""
    found = Comparison("forno", 2)
    for slower in (1.0, 2.0, 3.0):
        truth = {"ttft_ms": 100 * slower, "tpot_ms": 10.0, "tok_s": 200.0}
        found.add(OURS, said(102.0, 10.0, 198.0), {"ttft_ms": 100.0, "tpot_ms": 10.0, "tok_s": 200.0})
        found.add("other", said(102.0 * slower * 1.03, 10.0, 190.0), truth)
    assert found.share("other", "ttft_ms") == pytest.approx(1.0506)
    assert found.difference("other", "ttft_ms") == pytest.approx(0.03)
    assert found.difference(OURS, "ttft_ms") == 0
    assert found.worst() == pytest.approx(1 - 190 / 198)
    assert found.rows()[0] == ["forno, 2 clients: ttft ms", "102 (+2.0%)", "210.1 (+5.1%)", "+3.0%"]
    assert found.as_json()["said"]["other"]["difference"]["ttft_ms"] == 0.03


def test_a_steady_server_is_known_beforehand() -> None:
    truth = known("steady", LOAD, {}, {})
    assert (truth["ttft_ms"], truth["tpot_ms"]) == (agreement.TTFT, agreement.TPOT)
    seconds = (2 * agreement.TTFT + (2 + 4) * agreement.TPOT) / 1000
    assert truth["tok_s"] == pytest.approx(8 * 2 / seconds)


def test_fornos_histograms_are_read_as_differences() -> None:
    ttft, tpot = agreement.TIMES
    before = {f"{name}_{what}": 1.0 for name in agreement.TIMES for what in ("sum", "count")}
    after = before | {f"{ttft}_sum": 1.4, f"{ttft}_count": 3.0, f"{tpot}_sum": 1.02, f"{tpot}_count": 3.0}
    seconds = 2 * 0.2 + (2 + 4) * 0.01
    assert known("forno", LOAD, before, after) == pytest.approx({"ttft_ms": 200, "tpot_ms": 10, "tok_s": 8 * 2 / seconds})


def test_questions_differ_and_are_the_seeds() -> None:
    found = questions(20, prompt=50, answer=40, seed=3)
    assert found == questions(20, prompt=50, answer=40, seed=3) != questions(20, prompt=50, answer=40, seed=4)
    assert len({question.text for question in found}) == 20
    assert all(20 <= question.max_tokens <= 60 for question in found)


def test_the_server_and_its_clients_share_no_core_if_there_are_two() -> None:
    assert halves([4, 5, 6, 7, 8]) == ([4, 5], [6, 7, 8])
    assert halves([3]) == ([3], [3])


class Echo:
    """A client that answers nothing."""

    name = "echo"

    def __init__(self, answered: int, status: int = 0) -> None:
        self.answered, self.status = answered, status

    def prepare(self, model: Path) -> None:
        pass

    def command(self, load: Load, folder: Path) -> list[str]:
        return [sys.executable, "-c", f"import sys; print({self.answered}); sys.exit({self.status})"]

    def read(self, load: Load, folder: Path, output: str) -> Said:
        return Said(int(output), 1.0, 1.0, 1.0)


def test_a_client_that_lost_requests_is_an_error() -> None:
    assert ask(Echo(2), LOAD).completed == 2
    with pytest.raises(PeerError, match="echo counts 1 of 2"):
        ask(Echo(1), LOAD)
    with pytest.raises(agreement.processes.ChildError):
        ask(Echo(2, status=3), LOAD)


@pytest.mark.slow
def test_our_own_two_clients_agree_on_a_steady_server() -> None:
    """Seconds, and times: not for every run of the tests."""
    options = parser().parse_args(["--clients", "2", "--requests", "3", "--max-tokens", "8", "--rounds", "1"])
    chosen = [client for client in clients(Path("/nowhere")) if client.name in (OURS, "loadgen")]
    (found,) = agreement.compare("steady", Path("/nowhere"), chosen, options, Contention())
    assert found.worst() < 0.2


@pytest.fixture
def no_servers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """``run`` with clients that answer at once."""
    prepared: list[str] = []

    def compare(kind: str, model: Path, chosen: list[Any], options: argparse.Namespace, watch: Contention) -> list[Comparison]:
        prepared.extend(client.name for client in chosen)
        found = Comparison(kind, 1)
        for client, rate in zip(chosen, (100.0, 93.0), strict=True):
            found.add(client.name, said(1.0, 1.0, rate), {"ttft_ms": 1.0, "tpot_ms": 1.0, "tok_s": 100.0})
        return [found]

    monkeypatch.setattr(agreement, "compare", compare)
    monkeypatch.setattr(agreement, "resolve", lambda model: Path(model))
    return prepared


def test_a_difference_above_the_tolerance_fails(no_servers: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for tolerance, agrees in (("10", True), ("5", False)):
        arguments = ["--against", "steady", "--tools", "loadgen", "--tolerance", tolerance]
        if agrees:
            agreement.main(arguments)
        else:
            with pytest.raises(SystemExit) as ended:
                agreement.main(arguments)
            assert ended.value.code == 1
        line = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert (line["largest_difference"], line["agrees"]) == (0.07, agrees)
    assert no_servers == [OURS, "loadgen"] * 2


def test_an_unknown_client_is_named(no_servers: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        agreement.main(["--tools", "wrk"])
    assert "there is no client wrk" in capsys.readouterr().err
