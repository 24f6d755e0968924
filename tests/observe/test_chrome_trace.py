"""The trace against the format's rules, for random histories, and what it shows of a known one."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from forno.observe.chrome_trace import ENGINE, REQUESTS, chrome_trace
from forno.observe.record import RequestRecord, Shortage, StepRecord


def step(number: int, start: float, rows: list[tuple[RequestRecord, int, int]], **other: Any) -> StepRecord:
    """A step of ten milliseconds: one to plan, eight to run, one for the outputs."""
    values: dict[str, Any] = {
        "number": number,
        "start": start,
        "planned": start + 0.001,
        "computed": start + 0.009,
        "end": start + 0.01,
        "seconds": 0.008,
        "mask_seconds": 0.0,
        "cpu_seconds": 0.016,
        "outputs": len(rows),
        "num_drafts": 0,
        "waiting": 0,
        "shortage": None,
        "kv_reserved": 64,
        "kv_used": 40,
        "requests": tuple(r for r, _, _ in rows),
        "starts": tuple(s for _, s, _ in rows),
        "tokens": tuple(n for _, _, n in rows),
    }
    return StepRecord(**{**values, **other})


def request(serial: int, arrival: float, **other: Any) -> RequestRecord:
    values: dict[str, Any] = {"id": f"cmpl-{serial}", "serial": serial, "num_prompt": 40, "max_tokens": 5, "arrival": arrival}
    return RequestRecord(**{**values, **other})


def check_format(trace: dict[str, Any]) -> None:
    """What viewers rely on: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU."""
    assert json.loads(json.dumps(trace, allow_nan=False)) == trace
    assert trace["displayTimeUnit"] in ("ms", "ns")
    named, stacks = set(), {}
    for event in trace["traceEvents"]:
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert event["name"]
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name")
            assert set(event["args"]) == {"name"}
            named.add((event["pid"], event["tid"] if event["name"] == "thread_name" else None))
            continue
        assert event["ts"] >= 0
        assert (event["pid"], None) in named
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert (event["pid"], event["tid"]) in named
            stacks.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] == "C":
            assert all(isinstance(value, int | float) and value >= 0 for value in event["args"].values())
        else:
            assert (event["ph"], event["s"]) == ("i", "t")
    for slices in stacks.values():
        _check_nested(slices)


def _check_nested(slices: list[tuple[float, float]]) -> None:
    """Slices of one track lie beside or within each other, never across."""
    stack: list[float] = []
    for start, end in sorted(slices, key=lambda s: (s[0], -s[1])):
        while stack and stack[-1] <= start + 1e-6:
            stack.pop()
        assert not stack or end <= stack[-1] + 1e-6, (start, end, stack)
        stack.append(end)


@st.composite
def histories(draw: Any) -> tuple[list[StepRecord], list[RequestRecord]]:
    """Requests that arrive between steps, are computed in chunks and at times preempted; the first steps may be lost."""
    steps, alive, over, now = [], [], [], 100.0
    positions: dict[int, int] = {}
    for number in range(1, draw(st.integers(1, 12))):
        for _ in range(draw(st.integers(0, 2))):
            alive.append(request(len(alive) + len(over) + 1, now + draw(st.floats(-0.05, 0.0005)), ahead=1))
            positions[alive[-1].serial] = 0
        rows = []
        for r in draw(st.permutations(alive)):
            if not draw(st.booleans()):
                continue
            r.scheduled = r.scheduled or now + 0.0005
            if r.preempted and len(r.resumed) < len(r.preempted):
                r.resumed.append((now + 0.0005, 0))
            start = positions[r.serial]
            tokens = draw(st.integers(1, r.num_prompt - start)) if start < r.num_prompt else 1
            positions[r.serial] = start + tokens
            rows.append((r, start, tokens))
        if rows:
            steps.append(step(number, now, rows, waiting=draw(st.integers(0, 3)), shortage=Shortage.SEATS))
        now += 0.01 + draw(st.floats(0, 0.01))
        for r, _, _ in rows:
            fate = draw(st.sampled_from(("stay", "stay", "end", "lose")))
            if fate == "end":
                r.finished, r.sent, r.reason = now, now + draw(st.sampled_from((0.0, 0.004))), "length"
                alive.remove(r)
                over.append(r)
            elif fate == "lose":
                r.preempted.append((now + 0.0002, positions[r.serial]))
                positions[r.serial] = 0
    return steps[draw(st.integers(0, 3)) :], alive + over


@settings(max_examples=60, deadline=None)
@given(histories())
def test_any_history_is_a_valid_trace(history: tuple[list[StepRecord], list[RequestRecord]]) -> None:
    steps, requests = history
    trace = chrome_trace(steps, requests, model="tiny")
    check_format(trace)
    slices = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["name"] == "step"]
    assert [e["args"]["step"] for e in slices] == [s.number for s in steps]


def names(trace: dict[str, Any], pid: int) -> list[str]:
    return [e["name"] for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == pid]


def test_the_way_of_a_request() -> None:
    first = request(1, 10.0, received=9.998, tokenized=9.999, scheduled=10.002, finished=10.06, sent=10.07, slo_class="fast")
    later = request(2, 10.03)
    steps = [
        step(1, 10.002, [(first, 0, 32)]),
        step(2, 10.012, [(first, 32, 8)], waiting=1, shortage=Shortage.BLOCKS),
        step(3, 10.022, [(first, 40, 1)]),
        step(4, 10.032, [(first, 41, 1)]),
    ]
    trace = chrome_trace(steps, [first, later], model="tiny")
    check_format(trace)
    assert names(trace, ENGINE) == ["step", "schedule", "run", "outputs"] * 4
    # It came before the first step: what was over by then is cut.
    assert names(trace, REQUESTS) == ["cmpl-1", "prefill 0-32", "prefill 32-40", "decode", "cmpl-2", "queued"]
    decode = next(e for e in trace["traceEvents"] if e["name"] == "decode")
    assert decode["args"] == {"steps": 2, "tokens": 2}
    assert (decode["ts"], decode["dur"]) == (20000.0, 20000.0)
    counters = [e["args"] for e in trace["traceEvents"] if e["ph"] == "C" and e["name"] == "requests"]
    assert counters[1] == {"running": 1, "waiting": 1}
    lanes = {e["name"]: e["tid"] for e in trace["traceEvents"] if e["pid"] == REQUESTS and e["ph"] == "X"}
    assert lanes["cmpl-1"] != lanes["cmpl-2"]


def test_lanes_are_used_again() -> None:
    one = request(1, 10.0, scheduled=10.0, finished=10.01, sent=10.01)
    two = request(2, 10.02, scheduled=10.02, finished=10.03, sent=10.03)
    trace = chrome_trace([step(1, 10.0, [(one, 0, 40)]), step(2, 10.02, [(two, 0, 40)])], [])
    assert {e["tid"] for e in trace["traceEvents"] if e["pid"] == REQUESTS and e["ph"] == "X"} == {1}


def test_what_was_lost_is_computed_again() -> None:
    r = request(1, 10.0, scheduled=10.0, preempted=[(10.0205, 41)], resumed=[(10.0305, 0)])
    steps = [
        step(1, 10.0, [(r, 0, 40)]),
        step(2, 10.01, [(r, 40, 1)]),
        step(3, 10.03, [(r, 0, 32)]),
        step(4, 10.04, [(r, 32, 9)]),
    ]
    steps += [step(5, 10.05, [(r, 41, 1)])]
    trace = chrome_trace(steps, [])
    check_format(trace)
    expected = ["prefill 0-40", "decode", "preempted", "recompute 0-32", "recompute 32-41", "decode"]
    assert [n for n in names(trace, REQUESTS) if n not in ("cmpl-1", "queued")] == expected
    assert [e["args"] for e in trace["traceEvents"] if e["ph"] == "i"] == [{"computed_tokens_lost": 41}]


def test_a_request_that_was_forgotten_has_its_steps() -> None:
    forgotten = RequestRecord("request 7", 7, 0, 0)
    trace = chrome_trace([step(1, 10.0, [(forgotten, 50, 1)])], [])
    check_format(trace)
    assert names(trace, REQUESTS) == ["request 7", "decode"]


def test_what_a_step_waited_for() -> None:
    steps = [step(1, 10.0, [(request(1, 10.0), 0, 40)])]
    analyses = [SimpleNamespace(label="weights", share=0.51239, predicted=0.0071)]
    trace = chrome_trace(steps, [], analyses)
    check_format(trace)
    [args] = [e["args"] for e in trace["traceEvents"] if e["ph"] == "X" and e["name"] == "step"]
    assert (args["waited_for"], args["roofline_share"], args["predicted_ms"]) == ("weights", 0.5124, 7.1)


def test_nothing_yet() -> None:
    trace = chrome_trace([], [], model="tiny")
    check_format(trace)
    assert trace["otherData"] == {"model": "tiny"}
