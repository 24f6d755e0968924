"""What a server tells of its KV cache, in ``/debug/cache`` and ``/metrics``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forno.cache import KvCache
from forno.config import CacheConfig
from forno.engine.cache_report import cache_report
from forno.server.cache_debug import state_of
from tests.server.harness import Running, running
from tests.server.test_engine_metrics import scrape

PROMPT = list(range(40, 40 + 100))


def state(server: Running) -> dict[str, Any]:
    response = server.http.get("/debug/cache")
    assert response.status_code == 200
    return response.json()


def test_hits_misses_and_other_sizes(model_path: Path) -> None:
    with running(model_path) as server:
        assert state(server)["hit_share"] is None
        assert state(server)["curve"] == []
        for last in (1, 2):
            server.complete(prompt=[*PROMPT, last], max_tokens=4, ignore_eos=True)
        found, metrics = state(server), scrape(server)
    assert (found["prompt_tokens"], found["hit_tokens"], found["hit_share"]) == (202, 100, 0.495)
    misses = {m["reason"]: (m["lookups"], m["missed_tokens"]) for m in found["misses"]}
    assert misses == {"never_seen": (1, 101), "none": (1, 1)}
    assert found["gib"] > 0
    for point in found["curve"]:
        assert point["hit_share"] == 0.495
        assert point["gib"] == pytest.approx(found["gib"] * point["blocks"] / found["blocks"], abs=0.02)
    assert [point["scale"] for point in found["curve"]] == [0.25, 0.5, 1, 2, 4, 8, 16]
    assert found["waste"]["reserved_tokens"] == 0, "nobody runs"
    assert 0 < found["waste"]["mean_waste_share"] < 0.5
    assert metrics["forno:prefix_cache_misses_total[never_seen]"] == 1
    assert metrics["forno:prefix_cache_missed_tokens_total[never_seen]"] == 101
    assert "forno:prefix_cache_misses_total[none]" not in metrics
    assert metrics["forno:ghost_cache_hit_share[2x]"] == pytest.approx(100 / 202)
    assert metrics["forno:kv_waste_share"] == 0
    used, reserved = metrics["forno:kv_used_slot_steps_total"], metrics["forno:kv_reserved_slot_steps_total"]
    assert found["waste"]["mean_waste_share"] == pytest.approx(1 - used / reserved, abs=1e-4)


@pytest.mark.parametrize("told", [False, True])
def test_another_salts_prompt_is_counted_only_if_asked_for(model_path: Path, told: bool) -> None:
    with running(model_path, cache=CacheConfig(explain_salts=told, num_blocks_override=1200)) as server:
        for salt in ("one", "other"):
            server.complete(prompt=PROMPT, max_tokens=1, cache_salt=salt)
        metrics = scrape(server)
    assert metrics["forno:prefix_cache_misses_total[salt]"] == told
    assert metrics["forno:prefix_cache_misses_total[never_seen]"] == 2 - told


@pytest.mark.parametrize("reservation", ["contiguous", "contiguous-as-asked"])
def test_contiguous_reservation_gives_the_same_answers(model_path: Path, server: Running, reservation: str) -> None:
    body = {"prompt": PROMPT, "max_tokens": 20, "ignore_eos": True, "temperature": 0}
    expected = server.complete(**body)
    with running(model_path, cache=CacheConfig(kv_reservation=reservation, num_blocks_override=1200)) as other:
        answers = [other.complete(**body) for _ in range(2)]
        found = state(other)
    assert [answer["choices"] for answer in answers] == [expected["choices"]] * 2
    assert answers[1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert [(m["reason"], m["lookups"]) for m in found["misses"]] == [("disabled", 2)]
    assert (found["waste"]["mean_waste_share"] > 0.9) == (reservation == "contiguous")


def test_without_memory_to_tell_of() -> None:
    report = state_of(cache_report(KvCache(8, 4)), 0)
    assert (report.gib, report.curve, report.waste.mean_waste_share) == (None, [], 0)


def test_it_is_behind_the_key(model_path: Path) -> None:
    with running(model_path, keys=(b"secret",)) as server:
        assert server.http.get("/debug/cache").status_code == 401
