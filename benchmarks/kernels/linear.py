"""How much of one core the linear kernels use, for the shapes of two small models.

Caveats: one thread; weights are random; the ceiling is a loop of nothing but multiply-adds, measured in turn with each
shape because a shared machine's speed drifts; every number is the best of several rounds. At one row, matrices are used
in turn until they exceed the caches, so GB/s is that of memory; a plain read of memory gives its ceiling.

    python -m benchmarks.kernels.linear [--isa avx512] [--formats q8_0,q4_1]
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np

from forno import _native
from tests.kernels.cpu.block_formats import BLOCK, random_weight

SHAPES = {
    "SmolLM2-135M": {"qkv": (960, 576), "o": (576, 576), "gate|up": (3072, 576), "down": (576, 1536)},
    "Qwen2.5-0.5B": {"qkv": (1152, 896), "o": (896, 896), "gate|up": (9728, 896), "down": (896, 4864)},
}
ROWS = (1, 6, 8, 32, 64, 256)
STREAM_BYTES = 128 << 20
STREAM_SHAPE = (1024, 1536)


def weight(fmt: str, n: int, k: int) -> _native.PackedMatrix:
    matrix = _native.PackedMatrix(fmt, n, k)
    matrix.pack(random_weight(np.random.default_rng(0), fmt, n, k))
    return matrix


def activations(rows: int, k: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((rows, k)).astype(np.float32)


def read_bandwidth() -> float:
    """Bytes per second of summing an array that no cache holds: the best of five."""
    memory = np.ones(STREAM_BYTES // 8)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        memory.sum()
        best = min(best, time.perf_counter() - start)
    return memory.nbytes / best


def compute(fmt: str, isa: str) -> list[dict[str, object]]:
    """Share of the peak per model, shape and number of rows."""
    results: list[dict[str, object]] = []
    for model, shapes in SHAPES.items():
        for name, (n, k) in shapes.items():
            if k % BLOCK.get(fmt, 32):
                continue
            matrix, cells = weight(fmt, n, k), []
            for rows in ROWS:
                operations = 2 * rows * n * k
                seconds, peak = _native.time_linear(
                    activations(rows, k), [matrix], max(5, min(300, int(2e9 / operations))), isa
                )
                speed = operations / seconds
                cells.append(f"{speed / 1e9:5.0f} {100 * speed / peak:3.0f}%" if peak else f"{speed / 1e9:5.0f}")
                results.append(
                    {"format": fmt, "model": model, "shape": name, "rows": rows, "gops": speed / 1e9, "peak": peak / 1e9}
                )
            print(f"{fmt:7}{model:14}{name:9}" + "".join(f"{c:>12}" for c in cells), flush=True)
    return results


def stream(fmt: str, isa: str) -> float:
    """Bytes of weights per second at one row."""
    n, k = STREAM_SHAPE
    first = weight(fmt, n, k)
    matrices = [first] + [weight(fmt, n, k) for _ in range(STREAM_BYTES // first.nbytes)]
    seconds, _ = _native.time_linear(activations(1, k), matrices, 8, isa)
    return first.nbytes / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", default=_native.available_isas()[0])
    parser.add_argument("--formats", default="q8_0,q4_1,q5_0,bf16")
    args = parser.parse_args()
    formats = args.formats.split(",")
    _, int8 = _native.time_linear(activations(1, 64), [weight("q8_0", 64, 64)], 50, args.isa)
    print(f"ceiling of one core with {args.isa}: {int8 / 1e9:.0f} Gops int8, {read_bandwidth() / 1e9:.1f} GB/s read by numpy")
    print(f"Gops and share of the peak, by rows:{'':>5}" + "".join(f"{r:>12}" for r in ROWS))
    results = [result for fmt in formats for result in compute(fmt, args.isa)]
    bandwidth = {fmt: stream(fmt, args.isa) / 1e9 for fmt in formats}
    print("one row, from memory: " + ", ".join(f"{fmt} {rate:.1f} GB/s" for fmt, rate in bandwidth.items()))
    print(json.dumps({"isa": args.isa, "int8_peak_gops": int8 / 1e9, "stream_gbps": bandwidth, "results": results}))


if __name__ == "__main__":
    main()
