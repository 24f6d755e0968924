"""The roofline's page: what is drawn is what the server told, and what it told wrongly is left out."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from forno.bench.report.roofline import (
    Point,
    by_label,
    ceilings_of,
    headline,
    points_of,
    read_state,
    roofline_page,
    write_roofline,
)
from forno.errors import ConfigError, ResultError, UnreachableError
from tests.bench.report.test_page import HOSTILE, check

CEILINGS = {"int8": 2e12, "bf16": 1e12, "fp32": 5e11, "dram": 7e10, "l3": 1.8e11}


def step(**changes: Any) -> dict[str, Any]:
    whole = {
        "flops": 1e9,
        "bytes": 1e8,
        "intensity": 10.0,
        "seconds": 0.002,
        "label": "weights",
        "share": 0.5,
        "predicted": 0.001,
    }
    return {**whole, **changes}


def state(*steps: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"model": "m", "ceilings": CEILINGS, "steps": list(steps), **changes}


def test_a_page() -> None:
    text = roofline_page(
        state(step(), step(label="compute", flops=4e9, intensity=40.0), step(label="starved"), step(label="kv"))
    )
    check(text)
    for part in ("m on the roofline", "reading weights", "arithmetic", "DRAM: 70 GB/s", "int8: 2 Top/s", "bf16: 1 TFLOP/s"):
        assert part in text, part


def test_points_are_steps_with_their_work() -> None:
    bad = [
        {},
        3,
        None,
        step(flops=None),
        step(seconds=0),
        step(flops="1"),
        step(flops=True),
        step(seconds=1e300),
        step(flops=-1),
    ]
    found = points_of(state(step(), step(label="nonsense", share=None), step(intensity=None), *bad))
    assert [p.intensity for p in found] == [10, 10, 10]
    assert [p.rate for p in found] == [5e11] * 3
    assert [p.label for p in found] == ["weights", "", "weights"]
    assert found[1].share is None


@pytest.mark.parametrize("steps", [None, {}, "x", [], [step(flops=None)]])
def test_without_steps_it_says_what_to_do(steps: Any) -> None:
    with pytest.raises(ResultError, match="send it requests first"):
        points_of({"steps": steps})


@pytest.mark.parametrize(
    "ceilings", [None, [], {"int8": 1e12}, {"dram": 1e10}, {"int8": "x", "dram": 1e10}, dict.fromkeys(CEILINGS)]
)
def test_without_ceilings_it_says_what_is_missing(ceilings: Any) -> None:
    with pytest.raises(ResultError, match="ceilings"):
        ceilings_of({"ceilings": ceilings})


def test_some_ceilings_are_enough() -> None:
    check(roofline_page(state(step(), ceilings={"fp32": 5e11, "dram": 7e10, "l3": None})))


def test_the_headline_goes_by_time() -> None:
    points = [Point(1, 1, "weights", 3.0, 0.6), Point(1, 1, "compute", 1.0, 0.8), Point(1, 1, "kv", 0.001)]
    text = headline(points)
    assert (
        text == "4.00 s in 3 steps, by what they waited for most: reading weights 75 %, arithmetic 25 %; "
        "the median step reached 70 % of its roof"
    )
    assert "not known" in headline([Point(1, 1, "", 1.0)])


def test_the_table_goes_by_label() -> None:
    rows = by_label([Point(2, 1, "weights", 3.0, 0.6, 2.0), Point(4, 1, "weights", 1.0, 0.8, 1.0), Point(1, 1, "", 4.0)]).rows
    assert [[text for text, _ in row] for row in rows] == [
        ["reading weights", "2", "4", "50 %", "3", "70 %", "1.25"],
        ["unknown", "1", "4", "50 %", "1", "–", "–"],
    ]


def test_text_of_a_server_is_text() -> None:
    text = roofline_page(state(step(label=HOSTILE), model=HOSTILE))
    check(text)
    assert "<script>alert" not in text


def test_reading_and_writing(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text(json.dumps(state(step())), encoding="utf-8")
    write_roofline(str(path), tmp_path / "out.html")
    assert "on the roofline" in (tmp_path / "out.html").read_text(encoding="utf-8")
    for data, why in (
        (b"[]", "no steps"),
        (b'{"runs": []}', "no steps"),
        (b"{", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"\xff", "no JSON"),
    ):
        path.write_bytes(data)
        with pytest.raises(ResultError, match=why):
            read_state(str(path))
    with pytest.raises(ResultError, match="no file"):
        read_state(str(tmp_path / "nowhere"))


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "https://127.0.0.1:1/debug/state"])
def test_a_server_that_is_not_there(url: str) -> None:
    with pytest.raises(UnreachableError):
        read_state(url)


@pytest.mark.parametrize("url", ["http://", "http://[", "http://a b"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ConfigError, match="is not the URL of a server"):
        read_state(url)


def test_a_server_that_speaks_no_http() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"SSH-2.0\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(UnreachableError, match="no HTTP that can be read"):
            read_state(f"http://127.0.0.1:{listener.getsockname()[1]}")
        thread.join()
