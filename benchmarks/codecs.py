"""Perplexity and KL of every weight format that forno serves, with every type of its cache, against fp32: one table.

    make bench-codecs            or    python -m benchmarks.codecs [--tokens 256] [--formats Q4_0,w8a8]

All are the same model: requantized through bf16 by llama.cpp's tool, or (w8a8) rounded to nearest from the file's own weights.
Two errors are told apart. What rounding the *weights* costs: fp32 on a format's weights against fp32 on the bf16 ones. What
*forno* adds: its logits against fp32 on the very weights that it reads. Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import synthetic
from benchmarks.accuracy import forno_logits, reference_logits, text_tokens
from benchmarks.measure import machine, progress, table
from benchmarks.peers import llamacpp
from benchmarks.scores import Scores, score
from forno.config import DEFAULT_MODEL
from forno.loader.checkpoint import Checkpoint
from forno.loader.open import open_checkpoint
from forno.loader.sources import resolve

BASE = "BF16"
"""The weights that the others are rounded from."""
FORMATS = "BF16,F16,Q8_0,w8a8,Q6_K,Q5_1,Q5_0,Q5_K_S,Q4_1,Q4_0,IQ4_NL,Q4_K_S"
CACHES = "bf16,int8,float32"


def path_of(form: str, model: Path, peer: llamacpp.LlamaCpp, directory: Path) -> Path:
    if form in synthetic.DIRECTORIES:
        return synthetic.make(form, synthetic.like(str(model)), model.stem, directory)
    return peer.converted(model, form)


def mix(checkpoint: Checkpoint) -> dict[str, float]:
    """Share of the matrices' weights by the format they are held in, largest first."""
    sizes: dict[str, int] = {}
    for tensor in checkpoint.tensors.values():
        if len(tensor.shape) == 2:
            sizes[tensor.format] = sizes.get(tensor.format, 0) + math.prod(tensor.shape)
    return {form: sizes[form] / sum(sizes.values()) for form in sorted(sizes, key=lambda form: -sizes[form])}


def run(options: argparse.Namespace) -> dict[str, Any]:
    model, peer = resolve(options.model), llamacpp.set_up(options.peers)
    tokens, window = text_tokens(open_checkpoint(model), options.tokens), options.window
    base = list(reference_logits(open_checkpoint(path_of(BASE, model, peer, options.dir)), tokens, window))
    found = {}
    for form in options.formats.split(","):
        progress(f"scoring {form}")
        checkpoint = open_checkpoint(path_of(form, model, peer, options.dir))
        exact = list(reference_logits(checkpoint, tokens, window))

        def against(definition: Sequence[np.ndarray], logits: Iterator[np.ndarray]) -> dict[str, float]:
            return _entry(score(definition, logits, tokens, window))

        caches = {
            kv: against(exact, forno_logits(checkpoint, tokens, window, isa=options.isa, kv_cache_dtype=kv))
            for kv in options.caches.split(",")
        }
        found[form] = {"mix": mix(checkpoint), "weights": against(base, iter(exact)), "caches": caches}
        progress(report({form: found[form]}))
    return {
        "benchmark": "codecs",
        "model": options.model,
        "tokens": len(tokens),
        "window": window,
        "machine": machine(),
        "results": found,
    }


def _entry(scores: Scores) -> dict[str, float]:
    return {"perplexity": scores.perplexity, "kl": float(scores.kl.mean()), "top1": float(scores.top1.mean())}


def report(results: dict[str, dict[str, Any]]) -> str:
    """A line per format: its mix, what its weights cost, and what each cache type adds."""
    caches = list(next(iter(results.values()))["caches"])
    header = [
        "",
        "held as",
        "fp32: perplexity",
        "KL to bf16 weights",
        *(f"{kv} KV: {what}" for kv in caches for what in ("ppl", "KL")),
    ]
    rows = []
    for form, result in results.items():
        held = " ".join(f"{name} {share:.0%}" for name, share in result["mix"].items())
        weights = result["weights"]
        cells = [f"{weights['perplexity']:.3f}", f"{weights['kl']:.5f}"]
        for kv in caches:
            cells += [f"{result['caches'][kv]['perplexity']:.3f}", f"{result['caches'][kv]['kl']:.5f}"]
        rows.append([form, held, *cells])
    return table(header, rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Perplexity and KL against fp32 of every weight format and cache type.")
    parser.add_argument("--model", default=DEFAULT_MODEL, help="a GGUF model of the llama family")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--window", type=int, default=256, help="tokens of context, each window on its own")
    parser.add_argument("--formats", default=FORMATS, help="types of llama.cpp's, and w8a8, comma-separated")
    parser.add_argument("--caches", default=CACHES, help="types of the KV cache, comma-separated")
    parser.add_argument("--isa", default="auto")
    parser.add_argument("--dir", type=Path, default=synthetic.DEFAULT_DIR, help="where w8a8 directories lie")
    parser.add_argument("--peers", type=Path, default=llamacpp.DEFAULT_DIR, help="where llama.cpp lies")
    result = run(parser.parse_args(arguments))
    print(f"{result['tokens']} tokens of Python's help topics in windows of {result['window']}; {result['model']}\n")
    print(report(result["results"]))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
