"""``forno run``: one answer from arguments or a pipe, and a chat in a terminal."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from tests.helpers.safetensors_writer import write_tiny_directory
from tests.helpers.tiny import CHAT_TEMPLATE, TinyModel


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_directory(tmp_path_factory.mktemp("models") / "tiny", TinyModel(context=16384))


def command(model: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "forno", "run", "--model", str(model), "--threads", "1", *arguments]


def run(model: Path, *arguments: str, stdin: str | bytes = b"") -> subprocess.CompletedProcess[str]:
    raw = stdin.encode() if isinstance(stdin, str) else stdin
    done = subprocess.run(command(model, *arguments), input=raw, capture_output=True, timeout=60)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def start(model: Path, *arguments: str) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen(command(model, *arguments), stdout=pipe, stderr=pipe, stdin=subprocess.DEVNULL)


def test_arguments_and_a_pipe_ask_the_same(model: Path) -> None:
    options = ("--max-tokens", "12", "--seed", "1", "--temperature", "1")
    a = run(model, "hello", "there", *options)
    b = run(model, *options, stdin="hello there\n")
    assert a.returncode == b.returncode == 0, a.stderr + b.stderr
    assert a.stdout == b.stdout
    assert len(a.stdout) > 1
    assert a.stdout.endswith("\n")
    assert "cut at the token limit" in a.stderr


def test_raw_continues_the_text(model: Path) -> None:
    options = ("--max-tokens", "8", "--temperature", "0")
    raw, chat = run(model, "the inner", "--raw", *options), run(model, "the inner", *options)
    assert raw.returncode == chat.returncode == 0
    assert raw.stdout != chat.stdout


def test_stats_go_to_stderr(model: Path) -> None:
    done = run(model, "hello", "--max-tokens", "3", "--stats")
    assert "prompt tokens" in done.stderr
    assert "tok/s" not in done.stdout


def test_a_template_and_a_system_message_are_used(model: Path, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{% if messages[0].role != 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHAT_TEMPLATE)
    options = ("--chat-template", str(template), "--max-tokens", "2")
    assert "no system" in run(model, "hello", *options).stderr
    assert run(model, "hello", "--system", "Be brief.", *options).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        ((), b"", "the pipe was empty"),
        ((), b" \n\n", "the pipe was empty"),
        (("hello", "--max-tokens", "-1"), b"", "--max-tokens"),
        (("hello", "--temperature", "-1"), b"", "temperature"),
        (("hello", "--top-p", "0"), b"", "top_p"),
        (("hello", "--chat-template", "/no/file"), b"", "--chat-template"),
        ((), b"a " * 40_000, "context"),
    ],
)
def test_what_cannot_be_is_said(model: Path, arguments: tuple[str, ...], stdin: bytes, message: str) -> None:
    done = run(model, *arguments, stdin=stdin)
    assert done.returncode == 1
    assert message in done.stderr
    assert done.stderr.startswith("forno run: ")
    assert done.stderr.count("\n") == 1


def test_a_pipe_of_broken_text_is_answered(model: Path) -> None:
    assert run(model, "--max-tokens", "1", stdin=b"\xff\xfe \x00 \xed\xa0\x80").returncode == 0


def test_an_unknown_flag_is_refused_with_the_nearest(model: Path) -> None:
    done = run(model, "hello", "--max-token", "3")
    assert done.returncode == 2
    assert "unknown option --max-token; did you mean --max-tokens?" in done.stderr


def test_a_reader_that_leaves_is_no_traceback(model: Path) -> None:
    process = subprocess.Popen(
        command(model, "hello", "--temperature", "0"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    assert process.stdout is not None
    process.stdout.read(1)
    process.stdout.close()
    _, errors = process.communicate(timeout=60)
    assert b"Traceback" not in errors
    assert b"Exception ignored" not in errors


def test_ctrl_c_stops_the_answer(model: Path) -> None:
    process = subprocess.Popen(
        command(model, "hello", "--temperature", "0"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    assert process.stdout is not None
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert errors == b" [stopped]"


def _until(terminal: IO[bytes], *texts: str) -> None:
    """Read until each text has come, in order."""
    seen = b""
    for text in texts:
        while text.encode() not in seen:
            part = os.read(terminal.fileno(), 4096)
            assert part, seen
            seen += part
        seen = seen.split(text.encode(), 1)[1]


def _interrupt(terminal: IO[bytes], process: subprocess.Popen[bytes]) -> None:
    """Press Ctrl-C until it is answered: readline sees one that comes just before it waits only with the next."""
    answered = False
    while not answered:
        process.send_signal(signal.SIGINT)
        answered = bool(select.select([terminal], [], [], 1.0)[0])


def test_a_chat_in_a_terminal(model: Path) -> None:
    main, child = pty.openpty()
    options = ("--max-tokens", "16000", "--temperature", "0", "--stats")
    process = subprocess.Popen(command(model, *options), stdin=child, stdout=child, stderr=child, start_new_session=True)
    os.close(child)
    with open(main, "r+b", buffering=0) as terminal:
        _until(terminal, "/clear forgets", "> ")
        terminal.write(b"hello\n")
        _until(terminal, "hello", "\r\n")
        os.read(main, 1)
        process.send_signal(signal.SIGINT)  # in the middle of an answer
        _until(terminal, "[stopped]", "> ")
        terminal.write(b"/system Be brief.\n")
        _until(terminal, "> ")
        terminal.write(b"/nonsense\n")
        _until(terminal, "/clear forgets", "> ")
        _interrupt(terminal, process)  # while it waits for a line
        _until(terminal, "Ctrl-D leaves", "> ")
        terminal.write(b"/exit\n")
        assert process.wait(timeout=30) == 0
