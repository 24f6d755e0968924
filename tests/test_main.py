"""The command line: one import and one call per verb, and exit statuses that scripts can rely on."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from types import SimpleNamespace

import pytest

from forno import __main__ as command
from forno.errors import ConfigError


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A verb ``echo`` with an option ``--times``, whose ``run`` a test may replace."""
    module = SimpleNamespace(add_arguments=lambda parser: parser.add_argument("--times", type=int), run=lambda args: args.times)
    monkeypatch.setattr(command, "VERBS", {"echo": ("its.module", "say it")})
    monkeypatch.setattr(command, "import_module", {"its.module": module}.__getitem__)
    return module


def test_a_verb_gets_its_options_and_gives_the_status(verb: SimpleNamespace) -> None:
    assert command.main(["echo", "--times", "3"]) == 3


def test_explained_errors_are_one_line_and_status_1(verb: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(args: argparse.Namespace) -> int:
        raise ConfigError("no oven")

    verb.run = refuse
    assert command.main(["echo"]) == 1
    assert capsys.readouterr() == ("", "forno echo: no oven\n")


def test_ctrl_c_is_130(verb: SimpleNamespace) -> None:
    def interrupted(args: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    verb.run = interrupted
    assert command.main(["echo"]) == 130


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required"),
        (["bake"], "invalid choice: 'bake'"),
        (["ehco"], "did you mean echo?"),
        (["echo", "--time", "3"], "did you mean --times?"),
    ],
)
def test_wrong_usage_is_status_2(
    verb: SimpleNamespace, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as stop:
        command.main(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_a_reader_that_leaves_is_no_traceback() -> None:
    """As in ``forno program MODEL | head``."""
    code = "import sys; from forno import __main__ as m; m.import_module = lambda name: M; sys.exit(m.main(['doctor']))"
    fake = (
        "class M:\n add_arguments = staticmethod(lambda parser: None)\n @staticmethod\n def run(args): raise BrokenPipeError\n"
    )
    done = subprocess.run([sys.executable, "-c", fake + code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_standard_stream_is_no_socket(closed: str) -> None:
    """The event loop aborts the process that hands it a socket with the number of a standard stream."""
    command = f"{shlex.quote(sys.executable)} -m forno bench --url 127.0.0.1:1 {closed}"
    done = subprocess.run(["sh", "-c", command], check=False, timeout=60)
    assert done.returncode == 1
