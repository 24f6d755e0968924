"""Measures what this machine allows at most, and remembers it: peaks of arithmetic, bandwidths of DRAM and of L3.

Uses as many threads as serve; knows no model. A remembered file is only ever a hint: one that is missing, broken or of another
machine is measured again and replaced.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import tempfile
import time
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import forno
from forno import _native, env
from forno.kernels.cpu import cpuinfo
from forno.program.ceiling import Ceiling

log = logging.getLogger(__name__)

SECONDS = 0.2
"""Length of each of the long measurements."""
QUICK_SECONDS = {"dram_read": 0.04, "l3_read": 0.015, "int8": 0.015, "bf16": 0.015, "fp32": 0.015}
REPEATS = 2
"""Of the short ones, the best of so many is within 5 % of a long one; a fifth of a second in all."""
UNDISTURBED = 0.9
"""Share of the threads' time on their cores below which a measurement is not remembered."""
_SPIN_US = 50
_MIB = 1 << 20


def rates(threads: int, isa: str, seconds: float = SECONDS) -> dict[str, float | None]:
    """Bytes or operations per second of all threads together, ``seconds`` each. None: the machine or ``isa`` lacks it."""
    return _measure(threads, isa, dict.fromkeys(QUICK_SECONDS, seconds), 1)


def measure(threads: int, isa: str, seconds: float = SECONDS) -> Ceiling:
    """The same as a ``Ceiling``: a unit that ``isa`` lacks is replaced by fp32, an L3 by DRAM."""
    return as_ceiling(rates(threads, isa, seconds))


def as_ceiling(found: dict[str, float | None]) -> Ceiling:
    units = {name: found[name] or found["fp32"] or 0.0 for name in ("int8", "bf16", "fp32")}
    dram = found["dram_read"] or 0.0
    return Ceiling(**units, dram=dram, l3=found["l3_read"] or dram)


def known(threads: int, isa: str, directory: Path | None = None) -> Ceiling:
    """What was measured on this machine before, else a quick measurement, which is remembered in ``directory`` (default:
    forno's cache directory). Remembered, it costs well under a millisecond; measured, about a quarter of a second.

    A measurement during which others had our cores is too low, so the next call makes another.
    """
    path, key = _file(threads, isa, directory)
    ceiling = _read(path, key)
    if ceiling is None:
        used, started = time.process_time(), time.perf_counter()
        ceiling = as_ceiling(_measure(threads, isa, QUICK_SECONDS, REPEATS))
        share = (time.process_time() - used) / (time.perf_counter() - started) / threads
        if share >= UNDISTURBED:
            _write(path, key, ceiling)
        else:
            log.info("the machine's ceilings were measured while others used its cores, and are not remembered: %s", ceiling)
    return ceiling


def remember(threads: int, isa: str, ceiling: Ceiling, directory: Path | None = None) -> None:
    """Let ``known`` answer ``ceiling`` from now on. A directory that cannot be written is left as it is."""
    path, key = _file(threads, isa, directory)
    _write(path, key, ceiling)


def _measure(threads: int, isa: str, seconds: dict[str, float], repeats: int) -> dict[str, float | None]:
    pool = _native.Pool(threads, _SPIN_US)
    near, far = working_sets(threads, cpuinfo.caches(), cpuinfo.memory()[1])

    def once(name: str) -> float | None:
        if name == "l3_read":
            return None if near is None else float(pool.read_bandwidth(near, seconds[name]))
        if name == "dram_read":
            return float(pool.read_bandwidth(far, seconds[name]))
        rate = pool.peak(isa, name, seconds[name])
        return None if rate is None else float(rate)

    found: dict[str, float | None] = {}
    for name in ("l3_read", "dram_read", "int8", "bf16", "fp32"):
        values = [value for _ in range(repeats) if (value := once(name)) is not None]
        found[name] = max(values, default=None)
    return found


def working_sets(threads: int, caches: tuple[cpuinfo.Cache, ...], available: int) -> tuple[int | None, int]:
    """Bytes per thread that stay in L3 but not in L2 (None without an L3), and bytes that no cache holds.

    A chip may have several L3 caches, each shared by some of its CPUs: threads on all of them fill them all.
    """
    shared = {c.level: (c.bytes, max(c.shared_by, 1)) for c in caches if c.kind != "Instruction"}
    size, sharing = shared.get(3, (0, 1))
    last = size * math.ceil(threads / sharing)
    near = max(last // 2 // threads, 2 * shared.get(2, (_MIB, 1))[0]) if last else None
    far = min(max(4 * last, 128 * _MIB), available // 2)
    return near, max(far // threads, _MIB)


def _file(threads: int, isa: str, directory: Path | None) -> tuple[Path, dict[str, Any]]:
    """Where it is remembered, and what it must be of."""
    key = {
        "chip": cpuinfo.chip_name(),
        "threads": threads,
        "isa": isa,
        "forno": forno.__version__,
        "kernel": os.uname().release,
    }
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    return (env.cache_dir() if directory is None else directory) / f"ceilings-{digest}.json", key


def _read(path: Path, key: dict[str, Any]) -> Ceiling | None:
    """None if the file is missing, is of something else, or does not hold five positive rates."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("of") != key or not isinstance(found.get("rates"), dict):
        return None
    values = [found["rates"].get(field.name) for field in fields(Ceiling)]
    if not all(isinstance(value, float) and math.isfinite(value) and value > 0 for value in values):
        return None
    return Ceiling(*values)


def _write(path: Path, key: dict[str, Any], ceiling: Ceiling) -> None:
    """Whole or not at all, and without a word where it cannot be: it is measured again then."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        try:
            with os.fdopen(descriptor, "w") as file:
                json.dump({"of": key, "rates": asdict(ceiling)}, file, indent=2)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
