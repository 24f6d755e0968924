"""Attention against its two ceilings: bytes for decode, bf16 (or fp32) products for prefill.

Caveats: one op on its own, so nothing else competes for memory or shares a cache with it; the KV cache of decode goes
through `--layers` layers in turn, as a model's would, and is read from DRAM or L3 depending on how much that is.
Timings of a shared machine vary; ratios within one run are what to look at.

    python benchmarks/kernels/attention.py [--threads 2] [--isa avx512] [--kv bf16]

Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

import numpy as np

from forno import _native

ops = _native.ops
HEADS, KV_HEADS, DIM, BLOCK = 9, 3, 64, 32  # SmolLM2-135M


def filled(sequences: int, context: int, dtype: str, layers: int, isa: str) -> tuple[Any, list[list[int]]]:
    """A cache with ``context`` random tokens of each sequence in every layer, blocks shuffled."""
    rng = np.random.default_rng(0)
    per = -(-context // BLOCK)
    kv = ops.PagedKv(KV_HEADS, DIM, DIM, BLOCK, sequences * per, dtype, layers)
    tables = [t.tolist() for t in np.split(rng.permutation(sequences * per), sequences)]
    k, v = rng.standard_normal((2, context, KV_HEADS * DIM), dtype=np.float32)
    for layer in range(layers):
        for table in tables:
            ops.kv_write(isa, 1, kv, [(0, context, table)], k, v, layer)
    return kv, tables


def decode(args: argparse.Namespace, batch: int, context: int) -> dict[str, float]:
    kv, tables = filled(batch, context, args.kv, args.layers, args.isa)
    q = np.random.default_rng(1).standard_normal((batch, HEADS * DIM), dtype=np.float32)
    spans = [(context - 1, 1, t) for t in tables]
    ceiling = ops.read_ceiling(kv, args.threads, 10)
    seconds = min(ops.time_attention(args.isa, args.threads, kv, spans, q, HEADS, DIM**-0.5, 4 * args.layers) for _ in range(3))
    rate = kv.nbytes / args.layers / seconds / 1e9
    print(
        f"decode  B={batch:<3} context {context}: KV {kv.nbytes / 1e6:6.1f} MB  read ceiling {ceiling:6.1f} GB/s  "
        f"attention {rate:6.1f} GB/s ({rate / ceiling:4.0%})  {seconds * 1e6:7.1f} us per layer"
    )
    return {"ceiling_gb_s": round(ceiling, 1), "gb_s": round(rate, 1), "us": round(seconds * 1e6, 1)}


def shared_prefix(args: argparse.Namespace, batch: int, documents: int, shared: int = 1280, own: int = 64) -> dict[str, float]:
    """Decoding sequences of which each begins with one of some documents: reading those once against once per sequence."""
    pages, tail = shared // BLOCK, own // BLOCK
    layers = min(args.layers, 10)
    kv = ops.PagedKv(KV_HEADS, DIM, DIM, BLOCK, documents * pages + batch * tail, args.kv, layers)
    ids = np.random.default_rng(0).permutation(documents * pages + batch * tail)
    heads, tails = ids[: documents * pages].reshape(documents, pages), ids[documents * pages :].reshape(batch, tail)
    tables = [[*heads[i % documents].tolist(), *tails[i].tolist()] for i in range(batch)]
    k, v = np.random.default_rng(1).standard_normal((2, shared + own, KV_HEADS * DIM), dtype=np.float32)
    for layer in range(layers):
        for i, table in enumerate(tables):
            start = 0 if i < documents else shared
            ops.kv_write(args.isa, 1, kv, [(start, shared + own - start, table)], k[start:], v[start:], layer)
    q = np.random.default_rng(2).standard_normal((batch, HEADS * DIM), dtype=np.float32)
    spans = [(shared + own - 1, 1, t) for t in tables]
    timed = (args.isa, args.threads, kv, spans, q, HEADS, DIM**-0.5, 2 * layers)
    apart, once = (min(ops.time_attention(*timed, on) for _ in range(3)) * 1e6 for on in (False, True))
    print(
        f"decode  B={batch:<3} {shared} tokens of {documents} documents, {own} own: "
        f"{apart:.0f} us per layer, shared {once:.0f} us"
    )
    return {"apart_us": round(apart, 1), "shared_us": round(once, 1)}


def prefill(args: argparse.Namespace, start: int, tokens: int) -> dict[str, float]:
    kv, (table,) = filled(1, start + tokens, args.kv, 1, args.isa)
    q = np.random.default_rng(1).standard_normal((tokens, HEADS * DIM), dtype=np.float32)
    span = [(start, tokens, table)]
    seconds = min(ops.time_attention(args.isa, args.threads, kv, span, q, HEADS, DIM**-0.5, 5) for _ in range(3))
    pairs = tokens * start + tokens * (tokens + 1) / 2
    rate = 4 * pairs * HEADS * DIM / seconds / 1e12
    print(f"prefill {tokens} tokens after {start}: {rate:.3f} TFLOP/s (pairs seen only)  {seconds * 1e6:.0f} us per layer")
    return {"tflop_s": round(rate, 3), "us": round(seconds * 1e6, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--isa", default=ops.isas()[0], choices=ops.isas())
    parser.add_argument("--kv", default="bf16", choices=("bf16", "int8", "float32"))
    parser.add_argument("--layers", type=int, default=30)
    args = parser.parse_args()
    report: dict[str, Any] = {"benchmark": "attention", **vars(args)}
    for batch, context in ((1, 160), (8, 160), (32, 160), (64, 160), (32, 512)):
        report[f"decode_{batch}_{context}"] = decode(args, batch, context)
    for documents in (1, 4):
        report[f"shared_prefix_{documents}"] = shared_prefix(args, 32, documents)
    for start in (0, 3584):
        report[f"prefill_512_after_{start}"] = prefill(args, start, 512)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
