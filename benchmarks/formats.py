"""forno's prefill and decode in every weight format, on one shape with random weights, as shares of the roofline.

    make bench-qwen            or    python -m benchmarks.formats [--formats Q4_0,BF16] [--shape qwen2.5-0.5b]

Makes the models it needs (``benchmarks.synthetic``). Each format is measured by ``benchmarks.engine``, with ceilings of its own
run. Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import engine, synthetic
from benchmarks.measure import progress, table
from benchmarks.models import MODELS

FORMATS = "Q4_0,Q8_0,Q4_K_M,BF16,w8a8"


def run(options: argparse.Namespace) -> dict[str, Any]:
    source = synthetic.synthetic(MODELS[options.shape], 0)
    found = {}
    for form in options.formats.split(","):
        path = synthetic.make(form, source, f"{options.shape}-0", options.dir)
        progress(f"measuring {form}")
        found[form] = engine.run(argparse.Namespace(**vars(options), model=str(path)))
    return {"benchmark": "formats", "shape": options.shape, "results": found}


def report(results: dict[str, dict[str, Any]]) -> str:
    """Tokens per second of every case, and in brackets the share of the roofline; one line per format."""
    cases = list(next(iter(results.values()))["tok_s"])
    rows = [
        [form, *(f"{r['tok_s'][case]:.0f} ({r['tok_s'][case] / r['ceiling'][case]:.0%})" for case in cases)]
        for form, r in results.items()
    ]
    return table(["tok/s (of the roofline)", *cases], rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="forno's speed in every weight format, on a model with random weights.")
    parser.add_argument("--shape", default="qwen2.5-0.5b", choices=synthetic.SHAPES)
    parser.add_argument("--formats", default=FORMATS, help="as benchmarks.synthetic takes them, comma-separated")
    parser.add_argument("--dir", type=Path, default=synthetic.DEFAULT_DIR, help="where the models lie")
    engine.add_options(parser, batches="1,8,32", repeats=3)
    result = run(parser.parse_args(arguments))
    print(report(result["results"]))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
