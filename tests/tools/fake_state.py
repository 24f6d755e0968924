"""A server's answers as ``forno top`` reads them, without a server."""

from __future__ import annotations

import json
import random
from typing import Any

from tests.helpers.pages import Pages


def state(uptime: float = 3725.0, running: int = 8, waiting: int = 2, steps: int = 60) -> dict[str, Any]:
    """What ``/debug/state`` says."""
    rng = random.Random(1)
    labels = ("weights", "weights", "weights", "kv", "compute", "overhead")
    seconds = {"weights": 0.52, "kv": 0.11, "compute": 0.2, "overhead": 0.05, "starved": 0.02, "idle": 0.1}
    requests: list[dict[str, Any]] = [
        {
            "id": f"chatcmpl-{rng.getrandbits(128):032x}",
            "state": "running",
            "prompt": 100 * i,
            "cached": 32 * i,
            "generated": 7 * i,
        }
        for i in range(running)
    ]
    requests += [
        {
            "id": f"chatcmpl-{rng.getrandbits(128):032x}",
            "state": "waiting",
            "prompt": 2000,
            "waits_for": "seats",
        }
        for _ in range(waiting)
    ]
    for i, request in enumerate(requests):
        request |= {
            "max_tokens": 256,
            "age": 0.7 * i * i,
            "cached": request.get("cached", 0),
            "generated": request.get("generated", 0),
        }
        request.setdefault("waits_for", None)
    return {
        "model": "smollm2-135m",
        "version": "0.1.0",
        "uptime": uptime,
        "running": running,
        "waiting": waiting,
        "kv_usage": 0.41,
        "kv_waste": 0.021,
        "prefix_hit_share": 0.63,
        "ceilings": {"dram": 2.1e10, "l3": 1.2e11, "int8": 9.3e11, "bf16": 2.4e11, "fp32": 1.1e11},
        "seconds_by_label": {label: share * uptime for label, share in seconds.items()},
        "steps": [
            {
                "number": 4000 + i,
                "start": i * 0.004,
                "seconds": 0.0038,
                "wall": 0.0041,
                "rows": 8,
                "tokens": 8 + i % 5 * 16,
                "prompt_tokens": i % 5 * 16,
                "label": labels[i % 6],
                "share": rng.uniform(0.4, 0.9),
                "predicted": rng.uniform(0.003, 0.005),
                "intensity": 12.0,
                "flops": 1e9,
                "bytes": 1e8,
            }
            for i in range(steps)
        ],
        "requests": requests,
        "rates": {"output_tokens_per_s": 512.0, "prompt_tokens_per_s": 80.2, "requests_per_s": 1.25},
    }


def metrics(scale: int = 1, prefix: str = "forno") -> str:
    """What ``/metrics`` says of latencies: ``scale`` times 10 at 1 ms to 2 ms, 80 to 4 ms, 10 above 8 ms."""
    lines = []
    for name in ("time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds"):
        labels = 'engine="0",model_name="a,b"'
        for bound, count in (("0.001", 0), ("0.002", 10), ("0.004", 90), ("0.008", 90), ("+Inf", 100)):
            lines.append(f'{prefix}:{name}_bucket{{{labels},le="{bound}"}} {float(count * scale)}')
        lines.append(f"{prefix}:{name}_count{{{labels}}} {100.0 * scale}")
    return "# HELP forno:x A line with {braces}.\n" + "\n".join(lines) + "\n"


def pages(state: Any = None, metrics: str = "") -> Pages:
    """A server that is in ``state``."""
    return Pages({"/debug/state": (200, json.dumps(state)), "/metrics": (200, metrics)})
