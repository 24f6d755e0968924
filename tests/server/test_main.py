"""``forno serve`` as a process: what it says, how it stops, what it refuses before the model is loaded."""

from __future__ import annotations

import json
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from forno.__main__ import main
from tests.server.harness import LONG, eventually


@contextmanager
def serve(model: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and its URL, as its ready line says it."""
    command = [sys.executable, "-m", "forno", "serve", str(model), "--port", "0", "--threads", "1", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        lines = []
        while not lines or " INFO forno." in lines[-1]:  # such as one about a machine too busy to be measured
            lines.append(process.stderr.readline())
        pattern = r"forno is ready: (http://\S+) serves .+ on 1 threads \(\w+\), started in [\d.]+ s \(.+\)"
        match = re.search(pattern, lines[-1])
        assert match, lines
        yield process, match[1]
    finally:
        process.kill()
        process.communicate()


def test_the_line_to_paste_works_and_a_signal_ends_it(model_path: Path) -> None:
    with serve(model_path, "--served-model-name", "it's mine") as (process, url):
        assert process.stderr is not None
        words = shlex.split(process.stderr.readline())
        assert words[:2] == ["curl", f"{url}/v1/chat/completions"]
        body = json.loads(words[words.index("-d") + 1])
        assert body["model"] == "it's mine"
        assert body["max_tokens"] <= 100  # it comes back in seconds, however long the model would go on
        headers = dict([words[words.index("-H") + 1].split(": ")])
        assert httpx.post(words[1], content=json.dumps(body | {"max_tokens": 2}), headers=headers).status_code == 200
        process.send_signal(signal.SIGTERM)
        rest, errors = process.communicate(timeout=30)
        assert (process.returncode, rest, errors) == (0, "", "")


def test_an_idle_server_has_let_go_of_what_the_start_needed(model_path: Path) -> None:
    """The model's file is not mapped any more, and no thread wakes up: not one context switch in a while."""
    with serve(model_path) as (process, url):
        assert httpx.get(f"{url}/health").status_code == 200
        assert model_path.name not in Path(f"/proc/{process.pid}/maps").read_text()
        eventually(lambda: is_idle(process.pid))


def is_idle(process: int) -> bool:
    before = switches(process)
    time.sleep(0.25)
    return switches(process) == before


def switches(process: int) -> int:
    """How often its threads have given up a core so far."""
    statuses = [path.read_text() for path in Path(f"/proc/{process}/task").glob("*/status")]
    return sum(int(count) for status in statuses for count in re.findall(r"voluntary_ctxt_switches:\s+(\d+)", status))


def test_ctrl_c_while_the_model_loads_is_quiet(model_path: Path) -> None:
    """The signal comes when the first import of a start is under way, here one that never ends."""
    code = (
        "import sys, time, types, forno.__main__ as command\n"
        "class Endless:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'argparse':\n"
        "            print('importing', flush=True)\n"
        "            time.sleep(60)\n"
        "sys.meta_path.insert(0, Endless())\n"
        "command.entry()\n"
    )
    command = [sys.executable, "-c", code, "serve", str(model_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30) == ("", "")
        assert process.returncode == 130


@pytest.mark.parametrize("times", [1, 2])
def test_signals_while_a_request_runs(model_path: Path, times: int) -> None:
    """The first waits for the request, here until the time for that is over; a second leaves at once."""
    limit = "0.2" if times == 1 else "1000"
    with serve(model_path, "--shutdown-timeout", limit) as (process, url):
        body = {"model": "tiny", "prompt": "the", "stream": True, **LONG}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=30) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGINT)
            if times == 2:
                eventually(lambda: httpx.get(f"{url}/health").status_code == 503)
                process.send_signal(signal.SIGINT)
            assert process.wait(timeout=30) == 0


def test_what_is_refused_at_once(model_path: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for options, message in (
            (["--port", port], f"cannot listen on 127.0.0.1:{port}"),
            (["--port", "99999"], "cannot listen on 127.0.0.1:99999: port must be 0-65535; choose another --port"),
            (["--api-key", ","], "holds no key"),
            (["--api-key-file", str(tmp_path / "none")], "--api-key-file"),
            (["--model", "other"], "two models"),
            (["--chat-template", str(tmp_path / "none"), "--port", "0"], "--chat-template"),
            (["--max-num-seqs", "0", "--port", "0"], "--max-num-seqs"),
        ):
            assert main(["serve", str(model_path), *options]) == 1
            errors = capsys.readouterr().err
            assert errors.startswith("forno serve: ")
            assert message in errors


def test_unknown_flags_are_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["serve", "--max-num-sequences", "3"])
    assert refused.value.code == 2
    assert "unknown option --max-num-sequences; did you mean --max-num-seqs?" in capsys.readouterr().err
