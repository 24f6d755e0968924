"""Where peers live: a folder for each outside the repository, and for those written in Python an environment in it.

Knows pip and processes, no engine.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

DEFAULT_DIR = Path.home() / ".cache" / "forno-peers"
REPOSITORY = Path(__file__).parents[2]
"""Where ``python -m benchmarks.peers.inside...`` finds its module, whatever else the interpreter has."""


class PeerError(RuntimeError):
    """A peer cannot be set up or run; the message says what to do."""


def say(who: str, text: str) -> None:
    print(f"{who}: {text}", file=sys.stderr, flush=True)


def run(*command: str, environment: Mapping[str, str] | None = None) -> str:
    """Standard output and error of a command that must succeed, or ``PeerError`` with its last words."""
    result = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environment
    )
    if result.returncode:
        raise PeerError(f"{' '.join(command)} failed with status {result.returncode}:\n{result.stdout[-2000:]}")
    return result.stdout


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment in ``root / "venv"`` with pinned packages."""

    root: Path
    requirements: tuple[str, ...]
    """What pip installs, in one resolution; exact versions."""
    first: tuple[str, ...] = ()
    """Installed before, and held at that version afterwards: a torch that the rest must not replace."""
    remove: tuple[str, ...] = ()
    """Taken out again: packages that others pull in and that break or are not used."""

    @property
    def python(self) -> str:
        return str(self.root / "venv" / "bin" / "python")

    @property
    def _stamp(self) -> Path:
        return self.root / "installed.json"

    def set_up(self) -> None:
        """Install what is missing; nothing if these very requirements are there. Raises ``PeerError``."""
        wanted = [*self.first, *self.requirements]
        if Path(self.python).exists() and self._stamp.exists() and json.loads(self._stamp.read_text()) == wanted:
            return
        say(self.root.name, f"installing {', '.join(wanted)} (minutes)")
        self.root.mkdir(parents=True, exist_ok=True)
        run(sys.executable, "-m", "venv", "--clear", str(self.root / "venv"))
        held = self.root / "constraints.txt"
        held.write_text("".join(f"{requirement}\n" for requirement in self.first))
        pip = ("-m", "pip", "install", "-q", "-c", str(held))
        if self.first:
            run(self.python, *pip, *self.first)
        run(self.python, *pip, *self.requirements)
        if self.remove:
            run(self.python, "-m", "pip", "uninstall", "-q", "-y", *self.remove)
        self._stamp.write_text(json.dumps(wanted))

    def versions(self, packages: Sequence[str]) -> dict[str, str]:
        """What is installed of ``packages``."""
        code = "import importlib.metadata as m, json, sys; print(json.dumps({p: m.version(p) for p in sys.argv[1:]}))"
        versions: dict[str, str] = json.loads(run(self.python, "-c", code, *packages))
        return versions
