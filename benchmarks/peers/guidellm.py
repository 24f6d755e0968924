"""guidellm, a load generator: how it is told what to send, and what its report says in ``benchmarks.clients``' terms.

Knows its options and its report, not what is compared with it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.clients import Load, Said
from benchmarks.peers.place import Environment

PACKAGES = ("guidellm==0.8.1",)
REPORT = "guidellm.json"


@dataclass(frozen=True, slots=True)
class GuideLlm:
    """The client below ``directory / "guidellm"``."""

    directory: Path
    name: str = "guidellm"

    @property
    def environment(self) -> Environment:
        return Environment(self.directory / self.name, PACKAGES)

    def prepare(self, model: Path) -> None:
        """Install it. It takes lengths from the server's usage, so it needs no tokenizer of ``model``."""
        self.environment.set_up()

    def command(self, load: Load, folder: Path) -> list[str]:
        """What sends ``load``; ``folder`` is for its files."""
        data = folder / "guidellm.jsonl"
        rows = [{"prompt": text, "output_tokens_count": load.max_tokens} for text in load.prompts]
        data.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        backend: dict[str, Any] = {
            "kind": "openai_http",
            "target": load.url,
            "model": load.model,
            "request_format": "/v1/chat/completions",
        }
        backend |= {"http2": False, "extras": {"body": {"temperature": 0}}}
        options: dict[str, Any] = {
            "--backend": backend,
            "--data": {"kind": "json_file", "path": str(data)},
            "--profile": {"kind": "concurrent", "streams": [load.clients]},
            "--constraint": {"kind": "max_requests", "count": len(load.prompts)},
            "--output": {"kind": "json", "path": str(folder / REPORT)},
        }
        flags = [part for flag, value in options.items() for part in (flag, json.dumps(value))]
        return [str(Path(self.environment.python).parent / "guidellm"), "run", *flags, "--disable-console"]

    def read(self, load: Load, folder: Path, output: str) -> Said:
        """Its inter-token latency is our TPOT; what it calls time per output token counts the prefill in."""
        report = json.loads((folder / REPORT).read_text())["benchmarks"][0]
        metrics, requests = report["metrics"], report["requests"]["successful"]
        return Said(
            completed=len(requests),
            ttft_ms=_mean(metrics, "time_to_first_token_ms"),
            tpot_ms=_mean(metrics, "inter_token_latency_ms"),
            tok_s=sum(request["output_tokens"] for request in requests) / _span(requests),
            own={
                "time per output token ms": _mean(metrics, "time_per_output_token_ms"),
                "output tok/s": _mean(metrics, "output_tokens_per_second"),
            },
        )


def _mean(metrics: dict[str, Any], name: str) -> float:
    return float(metrics[name]["successful"]["mean"])


def _span(requests: Sequence[dict[str, Any]]) -> float:
    """Seconds from the first request to the last token."""
    times = [request["info"]["timings"] for request in requests]
    return float(max(time["last_token_iteration"] for time in times) - min(time["request_start"] for time in times))
