"""Progress: a bar on a terminal, a line elsewhere, never on stdout."""

from __future__ import annotations

import sys

import pytest

from forno.loader.progress import Progress


def test_a_line_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("Fetching it", 3 << 20) as progress:
        progress.reach(1 << 20)
    assert capsys.readouterr() == ("", "Fetching it (3 MiB)\n")


def test_a_bar_on_a_terminal_ends_full_and_never_beyond(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with Progress("Fetching it", 2048) as progress:
        progress.reach(5000)
        progress.reach(1024)
    out, err = capsys.readouterr()
    assert out == ""
    assert "Fetching it: 100%" in err.split("\r")[-1]
    assert "2.00k/2.00k" in err
