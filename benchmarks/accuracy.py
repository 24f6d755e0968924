"""Perplexity and KL against fp32 on the dequantized weights: forno's builds and cache types, and llama.cpp, one text.

    make bench-accuracy            or    python -m benchmarks.accuracy [--tokens 2000] [--model M]

All read the same file and the same token ids, in windows of fresh context. Differences to llama.cpp are taken position by
position, with a standard error, so that "no worse" is a statement. Prints tables, and ends in one JSON line.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np

from benchmarks.measure import machine, progress, table
from benchmarks.peers import llamacpp
from benchmarks.scores import Estimate, Scores, score, windows
from forno import _native
from forno.config import DEFAULT_MODEL
from forno.engine.build import engine_config
from forno.kernels.cpu import cpuinfo
from forno.kernels.reference.executor import ReferenceExecutor
from forno.loader.checkpoint import Checkpoint
from forno.loader.dequant import dequantize
from forno.loader.open import open_checkpoint
from forno.loader.sources import resolve
from forno.models import build_program
from forno.request import Request, Row, SamplingParams, StepPlan
from forno.runner.batch import Resident, build_batch
from forno.runner.cpu import CpuRunner
from forno.text import load_tokenizer

DEFINITION = "fp32"
BLOCK_SIZE = 32
PEERS = {
    "llama.cpp, fa on": (True, "f16"),
    "llama.cpp, fa off": (False, "f16"),
    "llama.cpp, fa on, q8_0 KV": (True, "q8_0"),
}
"""Name to whether flash attention is on (``auto``, llama.cpp's default, means on here) and the type of its cache."""


def text_tokens(checkpoint: Checkpoint, count: int) -> np.ndarray:
    """The first ``count`` tokens of Python's own help topics, in English."""
    tokenizer = load_tokenizer(checkpoint)
    text = "\n".join(topics[name] for name in sorted(topics))[: 8 * count]
    ids = np.array(tokenizer.encode(text, add_special_tokens=False)[:count], np.int32)
    if len(ids) < count:
        raise SystemExit(f"the text has only {len(ids)} tokens; ask for fewer with --tokens")
    return ids


def step(tokens: np.ndarray) -> tuple[Request, StepPlan]:
    """A request that scores all its tokens, and the one step that computes it."""
    sampling = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0)
    blocks = tuple(range(-(-len(tokens) // BLOCK_SIZE)))
    return Request("text", tuple(tokens.tolist()), sampling), StepPlan((Row(0, 0, len(tokens), blocks, True),))


def reference_logits(checkpoint: Checkpoint, tokens: np.ndarray, window: int) -> Iterator[np.ndarray]:
    """The definition: the numpy executor in float32 throughout, cache included, on the unfused program."""
    program = build_program(checkpoint.config).with_kv_dtype("float32")
    weights = {name: dequantize(checkpoint.tensors[name]) for name in program.weights}
    executor = ReferenceExecutor(program, weights, -(-window // BLOCK_SIZE), BLOCK_SIZE, row_by_row=False)
    for text in windows(tokens, window):
        request, plan = step(text)
        yield executor.run(build_batch(plan, {0: Resident.of(request)}))["logits"]


def cached(made: Iterator[np.ndarray], directory: Path, count: int) -> Iterator[np.ndarray]:
    """The arrays of ``made``, kept as files: the definition is slow and does not change."""
    directory.mkdir(parents=True, exist_ok=True)
    files = [directory / f"{i:03}.npy" for i in range(count)]
    if not all(file.exists() for file in files):
        for file, array in zip(files, made, strict=True):
            progress(f"computing {file}")
            part = file.with_suffix(".part")
            with part.open("wb") as out:
                np.save(out, array)
            part.rename(file)
    for file in files:
        yield np.load(file, mmap_mode="r")


def forno_logits(checkpoint: Checkpoint, tokens: np.ndarray, window: int, **options: Any) -> Iterator[np.ndarray]:
    """The native executor, as it serves: each window is one step."""
    room = -(-window // BLOCK_SIZE)
    config = engine_config(num_blocks_override=room, block_size=BLOCK_SIZE, max_num_batched_tokens=window, **options)
    runner = CpuRunner.from_checkpoint(checkpoint, config)
    runner.executor.capture_logits(True)
    for text in windows(tokens, window):
        request, plan = step(text)
        slot = runner.admit(request)
        assert slot == plan.rows[0].request
        runner.run(plan)
        yield np.array(runner.executor.logits()[: len(text)])
        runner.release(slot)


def variants(isas: Sequence[str]) -> dict[str, dict[str, str]]:
    """forno's name to its options: every build with the default cache, the best build with every cache."""
    builds = {f"forno {isa}, bf16 KV": {"isa": isa, "kv_cache_dtype": "bf16"} for isa in isas}
    caches = {f"forno {isas[0]}, {kv} KV": {"isa": isas[0], "kv_cache_dtype": kv} for kv in ("float32", "int8")}
    return builds | caches


def run(options: argparse.Namespace) -> dict[str, Any]:
    path = resolve(options.model)
    checkpoint, peer = open_checkpoint(path), llamacpp.set_up(options.dir)
    tokens, window = text_tokens(checkpoint, options.tokens), options.window
    digest = hashlib.sha256(path.read_bytes() + tokens.tobytes() + str(window).encode()).hexdigest()[:16]
    kept = options.dir / "reference" / digest

    def definition() -> Iterator[np.ndarray]:
        return cached(reference_logits(checkpoint, tokens, window), kept, -(-len(tokens) // window))

    def scored(name: str, logits: Iterator[np.ndarray]) -> Scores:
        progress(f"scoring {name}")
        return score(definition(), logits, tokens, window)

    found = {DEFINITION: scored(DEFINITION, definition())}
    for name, (flash, kv) in PEERS.items():
        found[name] = scored(name, peer.logits(path, tokens, window, cpuinfo.usable_threads(), flash=flash, kv=kv))
    for name, chosen in variants(options.isas.split(",") if options.isas else _native.available_isas()).items():
        found[name] = scored(name, forno_logits(checkpoint, tokens, window, **chosen))
    print(f"{len(tokens)} tokens of Python's help topics in windows of {window}; {checkpoint.name}\n")
    print(absolute(found))
    for peer_name in PEERS:
        print(f"\nMinus {peer_name}: mean over positions ± one standard error; differences above two are called.")
        print(paired(found, peer_name))
    return as_json(found, options, tokens)


def absolute(found: dict[str, Scores]) -> str:
    rows = [
        [
            name,
            f"{s.perplexity:.4f}",
            f"{s.kl.mean():.6f}",
            f"{np.quantile(s.kl, 0.99):.4f}",
            f"{s.kl.max():.4f}",
            f"{s.top1.mean():.2%}",
        ]
        for name, s in found.items()
    ]
    return table(["", "perplexity", "mean KL", "KL p99", "KL max", "same top token"], rows)


def paired(found: dict[str, Scores], peer: str) -> str:
    theirs, rows = found[peer], []
    for name, ours in found.items():
        if name not in (DEFINITION, peer):
            kl, nll = Estimate.of(ours.kl - theirs.kl), Estimate.of(ours.nll - theirs.nll)
            cells = [f"{1e6 * kl.mean:+.0f} ± {1e6 * kl.error:.0f}", kl.verdict]
            rows.append([name, *cells, f"{1e3 * nll.mean:+.3f} ± {1e3 * nll.error:.3f}", nll.verdict])
    return table(["", "KL (1e-6 nats)", "", "log perplexity (1e-3)", ""], rows)


def as_json(found: dict[str, Scores], options: argparse.Namespace, tokens: np.ndarray) -> dict[str, Any]:
    def entry(ours: Scores) -> dict[str, Any]:
        against = {
            peer: {"kl": _estimate(ours.kl - found[peer].kl), "log_perplexity": _estimate(ours.nll - found[peer].nll)}
            for peer in PEERS
            if ours is not found[peer]
        }
        return {"perplexity": ours.perplexity, "kl": float(ours.kl.mean()), "top1": float(ours.top1.mean()), "minus": against}

    return {
        "benchmark": "accuracy",
        "model": options.model,
        "window": options.window,
        "tokens": len(tokens),
        "tokens_sha256": hashlib.sha256(tokens.tobytes()).hexdigest()[:16],
        "llama_cpp": f"{llamacpp.PACKAGE} {llamacpp.VERSION}",
        "machine": machine(),
        "results": {name: entry(scores) for name, scores in found.items()},
    }


def _estimate(values: np.ndarray) -> dict[str, float]:
    estimate = Estimate.of(values)
    return {"mean": estimate.mean, "error": estimate.error}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Perplexity and KL against fp32, forno and llama.cpp on the same file.")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--window", type=int, default=512, help="tokens of context, each window on its own")
    parser.add_argument("--isas", default="", help="builds of forno, comma-separated; default: all that run here, best first")
    parser.add_argument("--dir", type=Path, default=llamacpp.DEFAULT_DIR, help="where peers and the reference's logits live")
    options = parser.parse_args(arguments)
    print(json.dumps(run(options)))


if __name__ == "__main__":
    main()
