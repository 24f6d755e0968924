"""``forno bench`` as a user calls it, against a server that does what it is told to."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forno.__main__ import main
from forno.bench.read import read_result
from forno.bench.records import Result
from forno.tools.bench.run import INTERRUPTED
from tests.bench.scripted import (
    DONE,
    END,
    FINISH,
    HEAD,
    Request,
    Script,
    Send,
    Server,
    delta,
    event,
    piece,
    reply,
    serving,
    stream,
    usage,
    whole,
)
from tests.helpers.gguf_writer import write_tiny_gguf


@contextmanager
def server_of(script: Script = whole) -> Iterator[Server]:
    """A scripted server in a thread of its own."""
    started, stop = threading.Event(), asyncio.Event()
    found: list[Any] = []

    async def serve() -> None:
        async with serving(script) as server:
            found.extend([server, asyncio.get_running_loop()])
            started.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    started.wait()
    try:
        yield found[0]
    finally:
        found[1].call_soon_threadsafe(stop.set)
        thread.join()


SHORT = ("--num-prompts", "6", "--concurrency", "2", "--no-progress", "--max-lag", "10000")


def bench(script: Script, *words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of a short run."""
    with server_of(script) as server:
        status = main(["bench", "--url", server.url, *SHORT, *words])
    out, err = capsys.readouterr()
    return status, out, err


def failing(script: Script, share: int = 1) -> Script:
    """The script for one streamed request in ``share`` after the probe, a good server for the others."""
    seen = [0]

    def answer(request: Request) -> Any:
        if not request.body.get("stream"):
            return whole(request)
        seen[0] += 1
        return script(request) if seen[0] > 1 and seen[0] % share == 0 else whole(request)

    return answer


def test_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = bench(whole, capsys=capsys)
    assert (status, err) == (0, "")
    for text in ("tiny at http://", "closed, 2 clients", "output tok/s", "TTFT, ms", "time to first token"):
        assert text in out


def test_json_files_and_the_result(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    paths = tmp_path / "r.json", tmp_path / "r.csv"
    words = (
        "--json",
        "--output",
        str(paths[0]),
        "--csv",
        str(paths[1]),
        "--repeats",
        "2",
        "--slo",
        "ttft=1e6",
        "--api-key",
        "secret",
    )
    status, out, _ = bench(whole, *words, capsys=capsys)
    assert status == 0
    result = msgspec.json.decode(out, type=Result)
    assert result == read_result(paths[0])
    assert paths[1].read_text().count("closed, 2 clients") == 2
    assert [(run.repeat, run.summary.completed, run.summary.goodput_share) for run in result.runs] == [(0, 6, 1.0), (1, 6, 1.0)]
    assert result.runs[0].seed != result.runs[1].seed
    assert (result.model, result.slo, result.workload["name"]) == ("tiny", {"ttft": 1e6}, "chat")
    assert "secret" not in out


def test_repeats_send_other_prompts_unless_told(capsys: pytest.CaptureFixture[str]) -> None:
    for words, differ in ((("--repeats", "2"), True), (("--repeats", "2", "--same-prompts"), False)):
        with server_of() as server:
            main(
                [
                    "bench",
                    "--url",
                    server.url,
                    "--concurrency",
                    "1",
                    "--num-prompts",
                    "3",
                    "--warmup",
                    "0",
                    "--no-progress",
                    *words,
                ]
            )
        sent = [json.dumps(r.body["messages"]) for r in server.requests if r.body.get("stream")][1:]
        salts = {r.body.get("cache_salt") for r in server.requests if r.body.get("stream")}
        assert sent[:3] != sent[-3:] if differ else set(sent[:3]) <= set(sent[3:])
        assert len(salts) == (3 if differ else 1)
    capsys.readouterr()


@pytest.mark.parametrize("workload", ["chat", "rag", "turns", "random"])
def test_a_seed_sends_the_same_bytes_again(workload: str, capsys: pytest.CaptureFixture[str]) -> None:
    """All but the salt, which keeps a run's prompts out of the prefix cache of the run before; ``--same-prompts`` has none."""
    sent = []
    for words in ((), (), ("--same-prompts",)):
        with server_of() as server:
            common = ("--num-prompts", "6", "--concurrency", "1", "--warmup", "0", "--no-progress", "--seed", "7")
            assert main(["bench", "--url", server.url, "--workload", workload, "--max-lag", "10000", *common, *words]) == 0
        bodies = [dict(r.body) for r in server.requests if r.body.get("stream")][1:7]
        assert len({body.pop("cache_salt", "none") for body in bodies}) == 1
        sent.append(json.dumps(bodies))
    assert len(set(sent)) == 1
    capsys.readouterr()


@pytest.mark.parametrize(
    ("words", "load"),
    [
        (("--rate", "500"), "poisson, 500 requests/s"),
        (("--request-rate", "500", "--burstiness", "0.5"), "gamma of burstiness 0.5, 500 requests/s"),
        (("--rate", "500", "--arrivals", "constant"), "constant, 500 requests/s"),
        (("--steps", "200@0.1,400@0.1"), "poisson, 200 for 0.1 s, then 400 for 0.1 s requests/s"),
        (("--ramp", "100-300@0.1"), "poisson, 100 to 300 for 0.1 s requests/s"),
    ],
)
def test_open_loops(words: tuple[str, ...], load: str, capsys: pytest.CaptureFixture[str]) -> None:
    with server_of() as server:
        common = ("--no-progress", "--json", "--max-lag", "10000", "--warmup", "0")
        extent = () if words[0] in ("--steps", "--ramp") else ("--num-prompts", "9")
        status = main(["bench", "--url", server.url, *common, *extent, *words])
    result = msgspec.json.decode(capsys.readouterr().out, type=Result)
    assert status == 0
    assert result.runs[0].load == load
    assert len(result.runs[0].stages) == (2 if words[0] == "--steps" else 0)
    assert not extent or result.runs[0].summary.completed == 9


def test_a_trace(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps({"at": at, "prompt": "An oven", "max_tokens": 2}) + "\n" for at in (5, 5.02, 5.04)))
    with server_of() as server:
        assert main(["bench", "--url", server.url, "--trace", str(path), "--speed", "2", "--json", "--no-progress"]) == 0
    run = msgspec.json.decode(capsys.readouterr().out, type=Result).runs[0]
    assert [r.scheduled for r in run.requests] == pytest.approx([0, 0.01, 0.02])
    assert {r.path for r in server.requests if r.body.get("stream")} == {"/v1/completions"}


def test_completions(capsys: pytest.CaptureFixture[str]) -> None:
    with server_of() as server:
        assert main(["bench", "--url", server.url, *SHORT, "--endpoint", "completions", "--model", "other"]) == 0
    assert {(r.path, r.body["model"]) for r in server.requests if r.body.get("stream")} == {("/v1/completions", "other")}
    capsys.readouterr()


BROKEN = {
    "a crash": (
        Send(reply({"error": "boom"}, "500 Internal Server Error")),
        "(status), such as: 500 Internal Server Error: boom",
    ),
    "a lost connection": (Send(close=True), "(dropped), such as: the connection was lost"),
    "half an answer": (Send(stream(delta("a"))), "(bad_stream), such as: the stream ended without [DONE]"),
    "silence": (Send(hang=True), "(timeout), such as: no content 0.01 s after it was sent"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_failures_are_reported_and_the_status_says_so(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    send, message = BROKEN[name]
    waits = ("--first-timeout", "0.01") if name == "silence" else ()
    with server_of(failing(lambda request: send, share=6)) as server, ExitStack() as stack:
        if waits:  # a good answer must not be late because this machine is busy
            stack.enter_context(pytest.MonkeyPatch.context()).setattr("forno.bench.client.TICK", 0.5)
        words = ("--num-prompts", "6", "--concurrency", "1", "--warmup", "0", "--no-progress", "--max-lag", "10000")
        status = main(["bench", "--url", server.url, *words, *waits])
    out, err = capsys.readouterr()
    assert status == 1
    assert message in " ".join(out.split())
    assert "failed" in err
    assert "failed" in out


LARGE = 1 << 50


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (stream(delta("a"), FINISH, usage(prompt_tokens=LARGE), DONE), "usage makes no sense"),
        (stream(delta("a"), FINISH, usage(prompt_tokens=10**400), DONE), "usage makes no sense"),
        (stream(delta("a"), FINISH, usage(completion_tokens=LARGE), DONE), "usage makes no sense"),
        (stream(delta("a"), event({"timings": {"queue_ms": -1e300}}), DONE), "makes no sense"),
        (HEAD.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n") + piece(b"\x1f\x8b") + END, "compressed (gzip)"),
        (b"HTTP/1.1 302 Found\r\nlocation: http://b/\r\ncontent-length: 0\r\n\r\n", "it redirects to http://b/"),
    ],
)
def test_numbers_and_forms_that_no_answer_has(
    answer: bytes, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "r.json"
    status, out, _ = bench(failing(lambda request: Send(answer), 3), "--output", str(path), "--json", capsys=capsys)
    assert status == 1
    assert message in out
    assert read_result(path).runs[0].summary.failed  # what is written can be read


def test_markup_in_a_models_name_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = bench(whole, "--model", "[/bold] [red]m", capsys=capsys)
    assert status == 0
    assert "[/bold] [red]m at http" in out


def test_a_row_per_request(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    assert bench(whole, "--csv-requests", str(path), capsys=capsys)[0] == 0
    header, *rows = path.read_text().splitlines()
    assert "ttft_ms" in header
    assert len(rows) >= 6


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
@pytest.mark.parametrize("option", ["--output", "--csv", "--csv-requests", "--html"])
def test_a_full_disk_takes_no_other_result_with_it(option: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    other = ("--csv" if option == "--output" else "--output", str(tmp_path / "other"))
    status, out, err = bench(whole, option, str(FULL), *other, capsys=capsys)
    assert status == 1
    assert "output tok/s" in out
    assert (tmp_path / "other").stat().st_size
    assert err == "forno bench: cannot write /dev/full: No space left on device\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--output", "{}/none/r.json"), "there is no directory"),
        (("--html", "{}"), "it is a directory"),
        (("--csv", "{}/same", "--output", "{}/./same"), "files of their own"),
    ],
)
def test_files_are_looked_at_before_the_measuring(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["bench", "--url", "127.0.0.1:1", *(word.format(tmp_path) for word in words)]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("package", ["aiohttp", "rich", "matplotlib"])
def test_a_package_that_is_missing_is_named(
    package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["bench", "--url", "127.0.0.1:1", "--html", str(tmp_path / "r.html")]) == 1
    assert capsys.readouterr().err == f'forno bench: forno bench needs {package}: pip install "forno[bench]"\n'


def test_more_clients_than_files_may_be_open(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda which: (256, 256))
    assert main(["bench", "--url", "127.0.0.1:1", "--concurrency", "8,1000"]) == 1
    assert "ulimit -n 1064" in capsys.readouterr().err


def test_some_failures_may_be_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    script = failing(lambda request: Send(reply({"error": "full"}, "429 Too Many Requests")), share=3)
    assert bench(script, "--max-failures", "100", capsys=capsys)[0] == 0


def test_a_server_that_only_fails_is_never_a_silent_zero(capsys: pytest.CaptureFixture[str]) -> None:
    script = failing(lambda request: Send(reply({"error": "boom"}, "500 Internal Server Error")))
    status, out, err = bench(script, "--max-failures", "1000000", capsys=capsys)
    assert status == 1
    assert "no counted request was answered" in out
    assert "not valid: closed, 2 clients" in err
    table = out.split("\n\n")[1]
    assert "TTFT" not in table
    assert "tok/s" not in table


def test_a_server_that_dies_ends_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    script = failing(lambda request: Send(close=True))
    status, out, _ = bench(script, "--duration", "100000", "--num-prompts", "100000", capsys=capsys)
    assert status == 1
    assert "the run was given up: 50 requests failed in a row" in " ".join(out.split())


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reports_what_is_there(sign: signal.Signals, capsys: pytest.CaptureFixture[str]) -> None:
    """The server sends it, on the tenth request."""
    seen = [0]

    def script(request: Request) -> Send:
        seen[0] += bool(request.body.get("stream"))
        if seen[0] == 10:
            os.kill(os.getpid(), sign)
            return Send(hang=True)
        return whole(request)

    status, out, err = bench(script, "--num-prompts", "1000", "--json", capsys=capsys)
    result = msgspec.json.decode(out, type=Result)
    assert status == INTERRUPTED
    assert result.interrupted
    assert result.runs[0].interrupted
    assert result.runs[0].summary.completed > 0
    assert any("interrupted" in problem for problem in result.runs[0].summary.problems)
    assert "once more to leave at once" in err


def test_a_signal_while_a_search_calibrates_ends_the_search(capsys: pytest.CaptureFixture[str]) -> None:
    seen = [0]

    def script(request: Request) -> Send:
        seen[0] += bool(request.body.get("stream"))
        if seen[0] == 5:
            os.kill(os.getpid(), signal.SIGINT)
        return whole(request) if seen[0] < 5 else Send(hang=True)

    words = ("bench", "--find-capacity", "--slo", "ttft=1e6", "--no-progress", "--json")
    with server_of(script) as server:
        status = main([*words, "--url", server.url])
    result = msgspec.json.decode(capsys.readouterr().out, type=Result)
    assert status == INTERRUPTED
    assert result.capacity is not None
    assert result.capacity["said"] == "the search was interrupted"


def test_capacity(capsys: pytest.CaptureFixture[str]) -> None:
    """A server that takes four connections of a run, and refuses what comes on others."""
    known: dict[str, list[int]] = {}

    def script(request: Request) -> Send:
        if not request.body.get("stream"):
            return whole(request)
        connections = known.setdefault(request.body["cache_salt"], [])
        if request.connection not in connections:
            connections.append(request.connection)
        full = connections.index(request.connection) >= 4
        return Send(reply({"error": "full"}, "429 Too Many Requests")) if full else whole(request)

    words = ("--find-capacity", "concurrency", "--slo", "ttft=1e6", "--num-prompts", "60", "--max-lag", "10000", "--json")
    with server_of(script) as server:
        status = main(["bench", "--url", server.url, *words, "--no-progress", "--capacity-tolerance", "1"])
    capacity = msgspec.json.decode(capsys.readouterr().out, type=Result).capacity
    assert status == 0
    assert capacity is not None
    assert (capacity["value"], capacity["upper"]) == (4, 5)
    assert [probe["value"] for probe in capacity["probes"]][:4] == [1, 2, 4, 8]


def test_a_capacity_that_is_not_there_fails(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--find-capacity", "concurrency", "--slo", "ttft=1e-6")
    status, out, _ = bench(whole, *words, capsys=capsys)
    assert status == 1
    assert "no load meets the SLO for 95 % of requests: at the lowest tried, 1 clients, 0 % of" in out


@pytest.mark.parametrize(("missing", "words"), [("aiohttp", ()), ("rich", ()), ("matplotlib", ("--html", "page.html"))])
def test_what_is_not_installed_is_said_before_the_measuring(
    missing: str, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    status, _, err = bench(lambda request: pytest.fail("asked"), *words, capsys=capsys)
    assert status == 1
    assert f"needs {missing}: pip install" in err


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("matplotlib", ("report", "none.json", "-o", "page.html")),
        ("matplotlib", ("report", "--roofline", "http://127.0.0.1:9")),
        ("aiohttp", ("ablate", "--model", "{model}", "--only", "static")),
        ("rich", ("ablate", "--model", "{model}", "--only", "static")),
    ],
)
def test_other_words_say_it_too(
    missing: str,
    words: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    model = write_tiny_gguf(tmp_path / "tiny.gguf", form="q8_0")
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *(word.format(model=model) for word in words)]) == 1
    assert f"needs {missing}: pip install" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--concurrency", "2", "--rate", "3"), "contradict each other"),
        (("--concurrency", "two"), "write numbers"),
        (("--concurrency", "1.5"), "whole numbers"),
        (("--concurrency", "nan"), "whole numbers"),
        (("--concurrency", "inf"), "whole numbers"),
        (("--concurrency", "1e9"), "whole numbers"),
        (("--url", "http://u:p@a"), "--api-key"),
        (("--concurrency", "0"), "at least 1 client"),
        (("--rate", "-3"), "between 0 and 1e6"),
        (("--steps", "fast"), "cannot read 'fast'"),
        (("--rate", "3", "--burstiness", "2", "--arrivals", "constant"), "burstiness"),
        (("--workload", "caht"), "did you mean chat?"),
        (("--documents", "3"), "--documents is no option of the workload chat"),
        (("--workload", "rag", "--documents", "three"), "--documents must be int, got 'three'"),
        (("--trace", "/nowhere.csv"), "there is no file"),
        (("--slo", "speed=3"), "is not a limit"),
        (("--find-capacity",), "needs --slo"),
        (("--output", "/nowhere/r.json"), "cannot write /nowhere/r.json"),
        (("--url", "http://127.0.0.1:9"), "no answer from http://127.0.0.1:9/v1/models"),
    ],
)
def test_what_cannot_be_done_is_one_line(words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *words]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.startswith("forno bench: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ("--num-prompts", "0"),
        ("--duration", "-1"),
        ("--extra-body", "{"),
        ("--extra-body", "[1]"),
        ("--warmup", "-2"),
        ("--warmup-seconds", "nan"),
        ("--ramp-up", "-1"),
        ("--temperature", "inf"),
        ("--max-failures", "-1"),
        ("--capacity-share", "101"),
        ("--capacity-tolerance", "nan"),
        ("--rate", ""),
        ("--concurrency", " "),
        ("--extra-body", '{"stream": false}'),
        ("--extra-body", '{"x": NaN}'),
        ("--output-tokens", "32"),
    ],
)
def test_wrong_values_are_status_2(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["bench", *words])
    assert stop.value.code == 2
    assert words[0] in capsys.readouterr().err


def test_an_unknown_flags_value_is_not_taken_for_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (("--outpt", "32"), ("--outpt", "compare")):
        with pytest.raises(SystemExit):
            main(["bench", *words])
        assert "unknown option --outpt; did you mean --output?" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("--help",), ("run", "--help"), ("compare", "--help"), ("report", "--help")])
def test_help(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["bench", *words])
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: {' '.join(['forno bench', *words[:-1]])}")


def test_the_word_run_is_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    with server_of() as server:
        assert main(["bench", "run", "--url", server.url, *SHORT]) == 0
    assert "closed, 2 clients" in capsys.readouterr().out
