"""When an environment is made, and with what: pip itself is not run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import place
from benchmarks.peers.place import Environment, PeerError


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The commands that would have been run; making the environment makes its interpreter."""
    commands: list[tuple[str, ...]] = []

    def run(*command: str, **_: Any) -> str:
        commands.append(command)
        if "venv" in command:
            binaries = Path(command[-1]) / "bin"
            binaries.mkdir(parents=True)
            (binaries / "python").touch()
        return "{}"

    monkeypatch.setattr(place, "run", run)
    return commands


def test_packages_are_installed_in_order_once(tmp_path: Path, asked: list[tuple[str, ...]]) -> None:
    environment = Environment(tmp_path / "peer", ("engine==2",), ("torch==1",), ("torchvision",))
    environment.set_up()
    assert [command[-1] for command in asked] == [str(tmp_path / "peer" / "venv"), "torch==1", "engine==2", "torchvision"]
    assert (tmp_path / "peer" / "constraints.txt").read_text() == "torch==1\n", "the engine may not replace torch"
    environment.set_up()
    assert len(asked) == 4


def test_other_requirements_make_it_anew(tmp_path: Path, asked: list[tuple[str, ...]]) -> None:
    Environment(tmp_path / "peer", ("engine==2",)).set_up()
    done = len(asked)
    (tmp_path / "peer" / "venv" / "bin" / "python").unlink()
    (tmp_path / "peer" / "venv" / "bin").rmdir()
    Environment(tmp_path / "peer", ("engine==3",)).set_up()
    assert asked[done][1:3] == ("-m", "venv")
    assert asked[-1][-1] == "engine==3"


def test_a_failing_command_shows_its_last_words() -> None:
    with pytest.raises(PeerError, match="No such file"):
        place.run("ls", "/nowhere/at/all")
