"""``forno explain``: every line says what the server said, fits, and needs neither colors nor rich."""

from __future__ import annotations

import json
from typing import Any

import pytest

from forno.__main__ import main
from forno.tools import explain_view
from tests.server.conftest import model_path, server, shared_server  # noqa: F401
from tests.server.harness import Running, eventually


def request(**changes: Any) -> dict[str, Any]:
    """A request that met with everything."""
    parts = [("queued", 5.0), ("decode", 2.0), ("slowed", 1.5), ("prefill", 1.0), ("client", 0.4), ("overhead", 0.1)]
    return {
        "id": "chatcmpl-1234",
        "state": "finished",
        "reason": "length",
        "error": "",
        "start": 0.0,
        "seconds": 10.0,
        "age": 60.0,
        "ttft": 6.2,
        "prompt_tokens": 700,
        "cached_tokens": 100,
        "generated_tokens": 50,
        "max_tokens": 50,
        "preemptions": 0,
        "ahead": 3,
        "running": 4,
        "parts": [
            {"kind": k, "seconds": s, "share": s / 10, "means": "what it is", "by": {f"chatcmpl-{i}": s / 8 for i in range(5)}}
            for k, s in parts
        ],
        "phases": [
            {"phase": "arriving", "start": 0.0, "end": 0.01},
            {"phase": "waiting", "start": 0.01, "end": 5.0},
            {"phase": "prefill", "start": 5.0, "end": 6.0},
            {"phase": "decode", "start": 6.0, "end": 9.6},
            {"phase": "leaving", "start": 9.6, "end": 10.0},
        ],
        "waited_for": {"seats": 4.0, "tokens": 1.0, "engine": 0.0001},
        "chunks": [
            {"step": i, "start": 100 + 60 * i, "tokens": 60, "seconds": 0.1, "own": 0.09, "others": 3, "again": i == 0}
            for i in range(10)
        ],
        "decode_steps": 49,
        "decode_rows": 4.0,
        "decode_alone": 1.0,
        "lookup": {
            "matched": 100,
            "reason": "diverged",
            "position": 100,
            "means": "100 of 700 tokens were cached; others differ",
        },
        "advice": [{"change": "Let more in. " * 20, "saves": 3.5, "share": 0.35, "flag": "--max-num-seqs 8", "at_most": False}],
        "segments": None,
        **changes,
    }


def text(lines: Any) -> list[str]:
    return ["".join(p if isinstance(p, str) else p[0] for p in line) for line in lines]


@pytest.mark.parametrize("width", [60, 100, 140])
def test_a_request_in_any_width(width: int) -> None:
    lines = text(explain_view.request_lines(request(), width))
    assert lines[0].startswith("chatcmpl-1234  reached max_tokens")
    whole = "\n".join(lines)
    for said in ("first token after 6.2 s", "a seat 4 s", "60 again in 100 ms", "--max-num-seqs 8", "35%"):
        assert said in " ".join(whole.split())
    bar = lines[lines.index("") + 1]
    assert len(bar) == width - 2
    assert bar.count("░") == pytest.approx(0.5 * len(bar), abs=2)
    assert "the engine's thread" not in whole, "too short to be said"
    assert max(len(line.rstrip()) for line in lines) <= width


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "refused", "reason": "refused", "error": "QueueFullError", "chunks": [], "lookup": None, "ttft": None},
        {"state": "running", "reason": "", "advice": [], "waited_for": {}},
        {"parts": [], "phases": [], "seconds": 0.0, "prompt_tokens": 0, "decode_steps": 0, "chunks": []},
        {"phases": [{"phase": "unheard of", "start": 0.0, "end": 10.0}]},
    ],
)
def test_whatever_a_request_is(changes: dict[str, Any]) -> None:
    lines = text(explain_view.request_lines(request(**changes), 100))
    assert lines
    assert max(map(len, lines)) < 140


@pytest.mark.parametrize("width", [60, 80, 140])
def test_ids_in_the_list_can_be_copied(width: int) -> None:
    ids = [f"chatcmpl-{'a' * 30}{i:02}-and-more" for i in range(20)] + ["chatcmpl-short"]
    row = {"state": "finished", "reason": "stop", "age": 3.0, "seconds": 2.0, "prompt_tokens": 9, "generated_tokens": 9}
    rows = [{"id": id, "slowest": "decode", "slowest_seconds": 1.0, **row} for id in ids]
    lines = text(explain_view.request_table({"requests": rows}, width))
    for id, line in zip(ids, lines[1:], strict=False):
        shown = line.split()[0].removesuffix("…")
        assert [other for other in ids if other.startswith(shown)] == [id]


@pytest.mark.parametrize("width", [60, 79, 80, 100])
def test_a_list_of_ids_as_servers_make_them_fits(width: int) -> None:
    row = {"state": "finished", "reason": "length", "age": 3.0, "seconds": 2.0, "prompt_tokens": 9, "generated_tokens": 9}
    row |= {"slowest": "detokenizing", "slowest_seconds": 2.0}
    rows = [{"id": f"chatcmpl-{i:x}{'0' * 31}", **row} for i in range(16)]
    lines = text(explain_view.request_table({"requests": rows}, width))
    assert max(map(len, lines[:-1])) <= width
    assert ("prompt" in lines[0]) == (width >= explain_view.NARROW)


def test_against_a_server(server: Running, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    id = server.chat(max_tokens=4)["id"]
    eventually(lambda: not server.serving.engine.recorder.live())
    assert main(["explain", id, "--url", server.url]) == 0
    out = capsys.readouterr().out
    assert out.startswith(id)
    assert "\x1b" not in out, "no colors where nobody looks"
    assert "prefix cache" in out
    assert main(["explain", "--url", server.url + "/v1"]) == 0
    assert "slowest: " in capsys.readouterr().out
    assert main(["explain", id, "--url", server.url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["requests"][0]["id"] == id
    assert main(["explain", f"{id[:20]}…", "--url", server.url]) == 0
    assert capsys.readouterr().out.startswith(id), "as copied from a list"
    assert main(["explain", "nobody", "--url", server.url]) == 1
    assert "no request 'nobody'" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "127.0.0.1:9/v1", "ftp://127.0.0.1:9"])
def test_no_server(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--url", url]) == 1
    assert "forno explain: " in capsys.readouterr().err


def test_what_a_server_says_is_wrong_cannot_act_upon_the_terminal(server: Running, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    assert main(["explain", "\x1b[2Jgone", "--url", server.url]) == 1
    said = capsys.readouterr().err
    assert "gone" in said
    assert "\x1b" not in said
