"""Which servers a measure needs, and what is read off them. No server is run but a small script."""

from __future__ import annotations

import os
from typing import Any

import pytest

from benchmarks import servers, serving
from benchmarks.measure import Contention
from benchmarks.serving import LOADS, LONG, SHARED, SHORT, Load, idle_cores


def rooms(monkeypatch: pytest.MonkeyPatch, wanted: set[str], paged: bool) -> list[tuple[Any, list[str], list[str]]]:
    """The servers that would be started: room, loads, and what else is measured."""
    started: list[tuple[Any, list[str], list[str]]] = []

    def measure(_: Any, room: Any, loads: list[Load], others: Any, __: Any) -> dict[str, float]:
        started.append((room, [load.name for load in loads], sorted({*others} & {serving.START, serving.IDLE})))
        return {}

    monkeypatch.setattr(serving, "measure", measure)
    for part in serving.parts(lambda *_: [], wanted, Contention(), paged):
        part()
    return started


def test_slots_are_as_long_as_their_loads_need(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"start", "idle", "chat-1", "chat-32", "turns-32", "long-8"}
    assert rooms(monkeypatch, wanted, paged=False) == [
        (SHORT, ["chat-1", "chat-32"], ["idle", "start"]),
        (SHARED, ["turns-32"], []),
        (LONG, ["long-8"], []),
    ]


def test_one_server_does_for_a_paged_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rooms(monkeypatch, {"start", "chat-8", "long-8"}, paged=True) == [(serving.ALL, ["chat-8", "long-8"], ["start"])]


@pytest.mark.parametrize("paged", [True, False])
def test_nothing_is_started_for_nothing(monkeypatch: pytest.MonkeyPatch, paged: bool) -> None:
    assert rooms(monkeypatch, {"prefill-512"}, paged) == []


def test_every_load_fits_its_room() -> None:
    for load in LOADS:
        assert load.clients + (load.workload == "among") <= load.room.slots
        assert load.room.context <= serving.ALL.context
        assert load.room.slots <= serving.ALL.slots


def test_a_loads_line_becomes_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    line = {"out_tok_s": 300.0, "ttft_p50": 20.0, "itl_p50": 3.0, "itl_p99": 9.0, "long_ttft": None}
    monkeypatch.setattr(servers, "load", lambda *_: line)
    found = Load("among", 16, 16, LONG).answered("http://x", 1)
    assert found == {
        "among-16 tok/s": 300.0,
        "among-16 ttft p50 ms": 20.0,
        "among-16 itl p99 ms": 9.0,
        "among-16 itl p50 ms": 3.0,
    }


def test_a_disturbed_load_is_asked_other_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []

    def load(*arguments: Any) -> dict[str, Any]:
        seeds.append(arguments[-1])
        return {"out_tok_s": 1.0, "ttft_p50": 1.0, "itl_p99": 1.0}

    class Twice(Contention):
        def calm(self, measure: Any) -> Any:
            measure()
            return measure()

    class Server:
        url = "http://x"

        def first_token(self) -> float:
            return 0.5

    class Running:
        def __enter__(self) -> Server:
            return Server()

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(servers, "load", load)
    monkeypatch.setattr(servers, "running", lambda *_: Running())
    found = serving.measure(lambda *_: [], SHORT, [LOADS[0], LOADS[1]], (), Twice())
    assert seeds == [1, 2, 1, 2], "the same for every engine, but never twice for one server"
    assert found["chat-1 tok/s"] == 1.0


def test_an_idle_process_uses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "IDLE_SECONDS", 0.0)
    monkeypatch.setattr(serving.processes, "cpu_seconds", lambda _: 1.25)
    assert idle_cores(os.getpid()) == 0.0
