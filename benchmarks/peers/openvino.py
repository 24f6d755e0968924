"""OpenVINO GenAI: its own environment, and models exported to the weight formats at which it is fastest.

The wheel has no HTTP server, and OpenVINO Model Server is not on PyPI: offline rates only.
Knows how to start it, not how to measure it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers import weights
from benchmarks.peers.place import Environment, run, say

PACKAGES = ("openvino-genai==2026.4.1.0", "openvino==2026.4.1", "optimum-intel[openvino]==2.2.0", "nncf==3.4.0")
FORMATS = {
    "int8": ("--weight-format", "int8"),
    "int4": ("--weight-format", "int4", "--group-size", "32", "--ratio", "1.0"),
}
"""Flags of the export. Both are asymmetric; with int4 the embedding and the head stay in int8, as in the Q4_1 file."""


@dataclass(frozen=True, slots=True)
class OpenVino:
    """The peer below ``directory / "openvino"``, with one weight format."""

    directory: Path
    form: str

    @property
    def environment(self) -> Environment:
        return Environment(self.directory / "openvino", PACKAGES, ("torch==2.13.0",), ("torchvision",))

    def model(self, gguf: Path) -> Path:
        """``gguf``'s weights, from float32, as OpenVINO reads them; exported once. Raises ``PeerError``."""
        made = self.environment.root / "models" / f"{weights.fingerprint(gguf)}-{self.form}"
        if not made.exists():
            source = weights.converted(gguf, self.directory, "f32")
            say("openvino", f"exporting {made.name} (a minute)")
            made.parent.mkdir(exist_ok=True)
            tool = str(Path(self.environment.python).with_name("optimum-cli"))
            with tempfile.TemporaryDirectory(dir=made.parent) as scratch:
                part = Path(scratch) / made.name
                command = (tool, "export", "openvino", "--model", str(source), "--task", "text-generation-with-past")
                run(*command, *FORMATS[self.form], str(part), environment={**os.environ, "HF_HUB_OFFLINE": "1"})
                part.rename(made)
        return made

    def rates_command(self, model: Path, flags: Sequence[str]) -> list[str]:
        return [self.environment.python, "-m", "benchmarks.peers.inside.openvino", str(model), *flags]

    def server_command(self, model: Path, port: int, slots: int, context: int) -> list[str]:
        """None: see above."""
        return []
