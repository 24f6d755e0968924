"""``forno doctor``: what this machine grants, how fast it is, and one sentence of advice per problem found.

Measures with the same threads that serve; knows no model. Servers that are started later hold their steps against what it
measured, unless the machine was busy.
"""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from forno import _native
from forno.kernels.cpu import ceilings, cpuinfo

MIB, GIB = 1 << 20, 1 << 30
_FLAGS = ("avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16")
LOW_MEMORY = 2 * GIB
"""Bytes available below which even a small model is tight."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's options."""
    parser.add_argument("--json", action="store_true", help="Print one JSON object instead of a table.")


def run(args: argparse.Namespace) -> int:
    """Print the report; returns the exit status."""
    report = examine()
    if not _busy(report):
        ceilings.remember(report["threads"], report["kernels_chosen"], ceilings.as_ceiling(report["measured"]))
    print(json.dumps(report, indent=2) if args.json else as_table(report))
    return 0


def examine(seconds: float = ceilings.SECONDS) -> dict[str, Any]:
    """Everything the report holds: sizes in bytes, rates per second."""
    available, threads = list(_native.available_isas()), cpuinfo.usable_threads()
    total, free = cpuinfo.memory()
    report: dict[str, Any] = {
        "chip": cpuinfo.chip_name(),
        "cores": cpuinfo.cores(),
        "logical_cpus": os.cpu_count() or 1,
        "affinity": cpuinfo.affinity(),
        "cgroup_quota": cpuinfo.cgroup_quota(),
        "threads": threads,
        "instruction_sets": [flag for flag in _FLAGS if flag in cpuinfo.flags()],
        "kernels_available": available,
        "kernels_chosen": available[0],
        "caches": [{"level": c.level, "kind": c.kind, "bytes": c.bytes, "shared_by": c.shared_by} for c in cpuinfo.caches()],
        "memory_total": total,
        "memory_available": free,
        "huge_pages": cpuinfo.huge_pages(),
        "load": round(os.getloadavg()[0], 2),
        "measured": ceilings.rates(threads, available[0], seconds),
    }
    return {**report, "advice": advise(report)}


def advise(report: dict[str, Any]) -> list[str]:
    """One sentence per problem found: what it is and what to do."""
    quota, affinity, chosen = report["cgroup_quota"], report["affinity"], report["kernels_chosen"]
    advice = []
    if quota is not None and quota < affinity:
        lost = "" if float(quota).is_integer() else " (quotas are rounded down, so give whole CPUs)"
        advice.append(
            f"The cgroup grants {quota:g} CPUs of the {affinity} visible ones{lost}: raise the limit to use the others."
        )
    if affinity < report["logical_cpus"]:
        advice.append(
            f"This process may run on {affinity} of {report['logical_cpus']} CPUs: "
            "widen its affinity (taskset, cpuset) to use the others."
        )
    if report["threads"] > report["cores"]:
        advice.append(f"{report['threads']} threads share {report['cores']} cores: try --threads {report['cores']}.")
    if chosen == "portable":
        advice.append("No fast kernels fit this chip: it lacks AVX2, so expect a tenth of the usual speed.")
    if report["huge_pages"] == "never":
        advice.append(
            "Transparent huge pages are off: set /sys/kernel/mm/transparent_hugepage/enabled to madvise "
            "for faster weight and cache reads."
        )
    if _busy(report):
        advice.append(
            f"Other work keeps this machine busy (load {report['load']:g} on {report['logical_cpus']} CPUs): "
            "the measured speeds are too low; measure again when it is idle."
        )
    if report["memory_available"] < LOW_MEMORY:
        advice.append(
            f"Only {report['memory_available'] / GIB:.1f} GiB of memory are available: free some, or use a small model "
            "with --kv-cache-memory."
        )
    return advice


def _busy(report: dict[str, Any]) -> bool:
    return bool(report["load"] > report["logical_cpus"] / 2)


def as_table(report: dict[str, Any]) -> str:
    """The report as aligned text."""
    quota = report["cgroup_quota"]
    caches = ", ".join(
        f"L{c['level']} {_size(c['bytes'])}" + (f" shared by {c['shared_by']}" if c["shared_by"] > 1 else "")
        for c in report["caches"]
        if c["kind"] != "Instruction"
    )
    others = ", ".join(name for name in report["kernels_available"] if name != report["kernels_chosen"])
    measured = report["measured"]
    rows = [
        ("chip", report["chip"]),
        ("cores", f"{report['cores']} cores, {report['logical_cpus']} logical CPUs, {report['affinity']} allowed by affinity"),
        ("cgroup quota", "none" if quota is None else f"{quota:g} CPUs"),
        ("threads", f"{report['threads']} (what affinity and quota allow)"),
        ("instruction sets", " ".join(report["instruction_sets"]) or "none that forno uses"),
        ("kernels", report["kernels_chosen"] + (f" (also: {others})" if others else "")),
        ("caches", caches or "unknown"),
        ("memory", f"{_size(report['memory_total'])}, {_size(report['memory_available'])} available"),
        ("huge pages", report["huge_pages"]),
        ("load", f"{report['load']:g}"),
        ("DRAM read", _rate(measured["dram_read"], "GB/s", 1e9)),
        ("L3 read", _rate(measured["l3_read"], "GB/s", 1e9)),
        ("int8 peak", _rate(measured["int8"], "Tops/s", 1e12)),
        ("bf16 peak", _rate(measured["bf16"], "TFLOP/s", 1e12)),
        ("fp32 peak", _rate(measured["fp32"], "TFLOP/s", 1e12)),
    ]
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {text}" for name, text in rows]
    lines += ["", *(f"- {sentence}" for sentence in report["advice"] or ["No problems found."])]
    return "\n".join(lines)


def _size(count: int) -> str:
    """Bytes for people."""
    for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}".replace(".0 ", " ")
    return f"{count} B"


def _rate(value: float | None, unit: str, scale: float) -> str:
    return "not available" if value is None else f"{value / scale:.2f} {unit}"
