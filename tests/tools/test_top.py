"""``forno top`` as a command."""

from __future__ import annotations

import json
import time
from unittest import mock

import pytest

from forno.__main__ import main
from tests.helpers.pages import serving
from tests.tools import fake_state


def test_one_view(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(fake_state.pages(fake_state.state(), fake_state.metrics())) as pages:
        assert main(["top", "--url", pages.url + "/v1/", "--once"]) == 0
    out = capsys.readouterr().out
    assert "8 running, 2 waiting" in out
    assert "\x1b" not in out  # no terminal, no colors


def test_json_for_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(fake_state.pages(fake_state.state(), fake_state.metrics())) as pages:
        assert main(["top", "--url", pages.url, "--once", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["state"] == fake_state.state()
    assert found["seconds"] is None
    assert found["shares"]["weights"] == pytest.approx(0.52)
    assert found["percentiles"]["itl"]["p50"] == pytest.approx(0.003)


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_nobody_there_is_an_error_of_one_look(form: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with serving(fake_state.pages()) as pages:
        pass
    assert main(["top", "--url", pages.url, "--once", *form]) == 1
    assert "forno top: no answer from http://127.0.0.1" in capsys.readouterr().err


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_it_keeps_trying_until_interrupted(form: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The server is there, goes, comes back; Ctrl-C leaves without a word."""
    with serving(fake_state.pages(fake_state.state(), fake_state.metrics())) as pages:
        good, naps = dict(pages.pages), []

        def nap(seconds: float) -> None:
            naps.append(seconds)
            if len(naps) == 4:
                raise KeyboardInterrupt
            pages.pages = {} if len(naps) == 1 else good

        with mock.patch.object(time, "sleep", nap):
            assert main(["top", "--url", pages.url, "--interval", "0.5", *form]) == 0
    printed = capsys.readouterr()
    assert naps == [0.5] * 4
    assert printed.err == ""
    assert printed.out.count("no forno server" if form else "trying again") == 1
    assert printed.out.count("smollm2-135m") >= 3


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--interval", "0"], "--interval must be 0.1 to 3600 seconds"),
        (["--interval", "nan"], "--interval must be"),
        (["--url", "ftp://localhost:8000"], "is not the URL of a server"),
    ],
)
def test_bad_options(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--once", *arguments]) == 1
    assert says in capsys.readouterr().err


def test_without_rich_it_says_what_to_install(capsys: pytest.CaptureFixture[str]) -> None:
    with mock.patch.dict("sys.modules", {"rich": None, "rich.console": None}):
        assert main(["top", "--once"]) == 1
    assert 'pip install "forno[bench]"' in capsys.readouterr().err
