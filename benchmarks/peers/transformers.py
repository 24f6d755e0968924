"""transformers on torch's CPU build, bfloat16. It has no server worth comparing: offline rates only.

Knows how to start it, not how to measure it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers import weights
from benchmarks.peers.place import Environment

PACKAGES = ("torch==2.13.0", "transformers==5.19.0")


@dataclass(frozen=True, slots=True)
class Transformers:
    """The peer below ``directory / "transformers"``."""

    directory: Path

    @property
    def environment(self) -> Environment:
        return Environment(self.directory / "transformers", PACKAGES[1:], PACKAGES[:1])

    def model(self, gguf: Path) -> Path:
        return weights.converted(gguf, self.directory, "bf16")

    def rates_command(self, model: Path, flags: Sequence[str]) -> list[str]:
        return [self.environment.python, "-m", "benchmarks.peers.inside.transformers", str(model), *flags]

    def server_command(self, model: Path, port: int, slots: int, context: int) -> list[str]:
        """None: see above."""
        return []
