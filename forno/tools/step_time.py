"""How long one step of a program should take on this machine, kind of op by kind of op. Knows no model and runs none."""

from __future__ import annotations

from typing import Any

from forno import _native
from forno.kernels.cpu import ceilings, cpuinfo
from forno.kernels.cpu.buffers import legalize
from forno.observe.step_time import EFFICIENCIES, StepTimeModel
from forno.program.cost_model import CostModel
from forno.program.program import Program
from forno.program.shape import StepShape


def predict(program: Program, shape: StepShape) -> dict[str, Any]:
    """Predicted and least microseconds of each kind of op and of the whole step, and the parts of its time."""
    threads, isa = cpuinfo.usable_threads(), _native.available_isas()[0]
    ceiling, model = ceilings.known(threads, isa), CostModel(legalize(program))
    times = StepTimeModel(model, ceiling, EFFICIENCIES[isa])
    features = model.features(
        [[span.start for span in shape.spans]], [[span.num_tokens for span in shape.spans]], [shape.outputs]
    )
    limits, seconds, whole = (
        model.limits(model.costs(features), ceiling)[:, 0],
        times.by_kind(features)[:, 0],
        times.predict(features),
    )
    kinds: dict[str, dict[str, float]] = {}
    for kind, least, predicted in zip(model.kinds, limits.tolist(), seconds.tolist(), strict=True):
        entry = kinds.setdefault(kind.name, {"ops": 0, "us": 0.0, "limit_us": 0.0})
        entry["ops"] += kind.count
        entry["us"] += predicted * 1e6
        entry["limit_us"] += least * 1e6
    e, sequences = times.efficiency, len(shape.spans)
    kinds["in and out"] = {"ops": 0, "us": 1e6 * (e.step_seconds + e.row_seconds * sequences), "limit_us": 0.0}
    parts = {"weights": whole.weights, "kv": whole.kv, "compute": whole.compute, "overhead": whole.fixed}
    return {
        "isa": isa,
        "threads": threads,
        "ceiling": str(ceiling),
        "us": float(whole.total[0]) * 1e6,
        "limit_us": float(limits.sum()) * 1e6,
        "parts_us": {name: float(part[0]) * 1e6 for name, part in parts.items()},
        "kinds": dict(sorted(kinds.items(), key=lambda item: -item[1]["us"])),
    }


def as_table(found: dict[str, Any]) -> str:
    """The same for people: kinds by their time, the whole, and what it consists of."""
    rows = [("op", "ops", "us", "at the least", "of it reached")]
    for name, kind in found["kinds"].items():
        share = kind["limit_us"] / kind["us"] if kind["us"] else 0.0
        rows.append((name, f"{kind['ops']:.0f}", f"{kind['us']:.1f}", f"{kind['limit_us']:.1f}", f"{share:.0%}"))
    hidden = sum(kind["us"] for kind in found["kinds"].values()) - found["us"]
    if hidden > 0.01 * found["us"]:
        rows.append(("hidden behind others", "", f"-{hidden:.1f}", "", ""))
    rows.append(("step", "", f"{found['us']:.1f}", f"{found['limit_us']:.1f}", f"{found['limit_us'] / found['us']:.0%}"))
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]) for row in rows
    ]
    parts = ", ".join(f"{name} {us / found['us']:.0%}" for name, us in found["parts_us"].items())
    machine = f"{found['threads']} threads ({found['isa']}); {found['ceiling']}"
    return "\n".join([*lines, "", f"It waits for: {parts}", f"Predicted for {machine}"])
