"""aiperf, a load generator: how it is told what to send, and what its report says in ``benchmarks.clients``' terms.

Knows its options and its report, not what is compared with it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.clients import Load, Said
from benchmarks.peers import weights
from benchmarks.peers.place import Environment
from benchmarks.processes import as_flags
from forno.loader.open import open_checkpoint

PACKAGES = ("aiperf==0.13.0",)
REPORT = "profile_export_aiperf.json"


@dataclass(frozen=True, slots=True)
class AiPerf:
    """The client below ``directory / "aiperf"``."""

    directory: Path
    name: str = "aiperf"

    @property
    def environment(self) -> Environment:
        return Environment(self.directory / self.name, PACKAGES)

    @property
    def _tokenizer(self) -> Path:
        return self.environment.root / "tokenizer"

    def prepare(self, model: Path) -> None:
        """Install it, and give it ``model``'s tokenizer: it loads one even where it uses the server's counts."""
        self.environment.set_up()
        self._tokenizer.mkdir(exist_ok=True)
        weights.write_tokenizer(open_checkpoint(model), self._tokenizer)

    def command(self, load: Load, folder: Path) -> list[str]:
        """What sends ``load``; ``folder`` is for its files."""
        data = folder / "aiperf.jsonl"
        rows = [{"text": q.text, "output_length": q.max_tokens} for q in load.questions]
        data.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        options: dict[str, Any] = {
            "--model": load.model,
            "--url": load.url,
            "--endpoint-type": "chat",
            "--input-file": data,
            "--custom-dataset-type": "single-turn",
            "--concurrency": load.clients,
            "--request-count": len(load.questions),
            "--tokenizer": self._tokenizer,
            "--extra-inputs": json.dumps({"ignore_eos": True, "temperature": 0}),
            "--ui": "none",
            "--output-artifact-dir": folder / self.name,
        }
        switches = ["--streaming", "--use-server-token-count", "--use-legacy-max-tokens"]
        switches += ["--no-server-metrics", "--no-gpu-telemetry"]
        return [str(Path(self.environment.python).parent / "aiperf"), "profile", *as_flags(options), *switches]

    def read(self, load: Load, folder: Path, output: str) -> Said:
        """Its inter-token latency is our TPOT. Its time to second token is the gap between the first two chunks."""
        report = json.loads((folder / self.name / REPORT).read_text())
        return Said(
            completed=round(_value(report, "request_count")),
            ttft_ms=_value(report, "time_to_first_token"),
            tpot_ms=_value(report, "inter_token_latency"),
            tok_s=_value(report, "output_token_throughput"),
            own={"time to second token ms": _value(report, "time_to_second_token")},
        )


def _value(report: dict[str, Any], name: str) -> float:
    return float(report[name]["avg"])
