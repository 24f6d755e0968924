"""What the machine and its operating system grant this process: cores, quota, chip, caches, memory. Linux; reads only.

Knows no kernel. Every reader takes the root of the file system, so that a test can hand it a made-up machine.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class Cache:
    level: int
    kind: str
    """``Data``, ``Instruction`` or ``Unified``."""
    bytes: int
    shared_by: int
    """Logical CPUs that share it."""


def affinity() -> int:
    """Logical CPUs that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return os.cpu_count() or 1


def cores(root: Path = ROOT) -> int:
    """Physical cores of the machine; its logical CPUs where the kernel does not tell."""
    found = set()
    for block in _read(root / "proc/cpuinfo").split("\n\n"):
        fields = _fields(block)
        if "core id" in fields:
            found.add((fields.get("physical id", "0"), fields["core id"]))
    return len(found) or os.cpu_count() or 1


def cgroup_quota(root: Path = ROOT) -> float | None:
    """CPUs that the cgroup grants, the least over this process's group and all groups above it; None: no limit.

    Reads version 2's ``cpu.max`` and version 1's ``cpu.cfs_quota_us``. Inside a container the path named in
    ``/proc/self/cgroup`` is often not visible; the mount's own root then speaks for it.
    """
    limits: list[float] = []
    for controllers, path in _cgroups(root):
        if controllers == "":
            limits += _limits(root / "sys/fs/cgroup", path, _quota_v2)
            limits += _limits(root / "sys/fs/cgroup/unified", path, _quota_v2)
        elif "cpu" in controllers.split(","):
            for mount in dict.fromkeys((controllers, "cpu", "cpu,cpuacct", "cpuacct,cpu")):
                limits += _limits(root / "sys/fs/cgroup" / mount, path, _quota_v1)
    return min(limits, default=None)


def usable_threads(root: Path = ROOT) -> int:
    """Threads that can run at the same time without being throttled: affinity, and the quota rounded down; at least 1."""
    quota = cgroup_quota(root)
    cpus = affinity()
    return cpus if quota is None else max(1, min(cpus, math.floor(quota + 1e-6)))


def chip_name(root: Path = ROOT) -> str:
    """The processor's own name, or the architecture's where the kernel does not tell."""
    fields = _cpuinfo(root)
    for key in ("model name", "Processor", "Hardware"):
        if fields.get(key):
            return fields[key]
    return os.uname().machine


def flags(root: Path = ROOT) -> frozenset[str]:
    """Instruction set flags as the kernel names them (``avx512_vnni``, ...)."""
    fields = _cpuinfo(root)
    return frozenset((fields.get("flags") or fields.get("Features") or "").split())


def caches(root: Path = ROOT) -> tuple[Cache, ...]:
    """Caches that CPU 0 sees, from near to far."""
    found = []
    for directory in sorted((root / "sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, size = _read(directory / "level").strip(), _bytes(_read(directory / "size").strip())
        if level.isdigit() and size:
            shared = _count_cpus(_read(directory / "shared_cpu_list").strip())
            found.append(Cache(int(level), _read(directory / "type").strip(), size, shared))
    return tuple(found)


def memory(root: Path = ROOT) -> tuple[int, int]:
    """Bytes of memory in all, and bytes that could be had now; the cgroup's limit counts as the machine's end."""
    fields = _fields(_read(root / "proc/meminfo"))
    total, available = (_bytes(fields.get(name, "0").replace(" ", "")) for name in ("MemTotal", "MemAvailable"))
    room = _cgroup_memory(root)
    return (total, available) if room is None else (min(total, room[0]), min(available, max(room[1], 0)))


def huge_pages(root: Path = ROOT) -> str:
    """The kernel's transparent huge page mode: ``always``, ``madvise``, ``never``, or ``unknown``."""
    text = _read(root / "sys/kernel/mm/transparent_hugepage/enabled")
    return text.split("[", 1)[1].split("]", 1)[0] if "[" in text and "]" in text else "unknown"


def _cgroup_memory(root: Path) -> tuple[int, int] | None:
    """(limit, room left below it) of the tightest memory cgroup; None: no limit."""
    found = []
    for controllers, path in _cgroups(root):
        if controllers == "":
            names, mount = ("memory.max", "memory.current"), root / "sys/fs/cgroup"
        elif "memory" in controllers.split(","):
            names, mount = ("memory.limit_in_bytes", "memory.usage_in_bytes"), root / "sys/fs/cgroup/memory"
        else:
            continue
        for directory in _ancestors(mount, path):
            limit, used = (_read(directory / name).strip() for name in names)
            if limit.isdigit() and used.isdigit() and int(limit) < 1 << 60:
                found.append((int(limit), int(limit) - int(used)))
    return min(found, key=lambda pair: pair[1], default=None)


def _cgroups(root: Path) -> list[tuple[str, str]]:
    """(controllers, path) of each hierarchy that this process is in; version 2 names no controllers."""
    lines = (line.split(":", 2) for line in _read(root / "proc/self/cgroup").splitlines())
    return [(fields[1], fields[2]) for fields in lines if len(fields) == 3]


def _limits(mount: Path, path: str, read: Callable[[Path], float | None]) -> list[float]:
    return [limit for directory in _ancestors(mount, path) if (limit := read(directory)) is not None]


def _ancestors(mount: Path, path: str) -> list[Path]:
    """The group's directory under ``mount`` and those above it, up to the mount itself."""
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    return [mount.joinpath(*parts[:n]) for n in range(len(parts), -1, -1)]


def _quota_v2(directory: Path) -> float | None:
    fields = _read(directory / "cpu.max").split()
    if len(fields) == 2 and fields[0].isdigit() and fields[1].isdigit() and int(fields[1]) > 0:
        return int(fields[0]) / int(fields[1])
    return None


def _quota_v1(directory: Path) -> float | None:
    quota, period = (_read(directory / name).strip() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
    if quota.isdigit() and period.isdigit() and int(period) > 0:  # -1: no limit
        return int(quota) / int(period)
    return None


def _cpuinfo(root: Path) -> dict[str, str]:
    """The fields of the first processor, and those that are given once for all."""
    return _fields(_read(root / "proc/cpuinfo"))


def _fields(text: str) -> dict[str, str]:
    """``key : value`` lines; the first of equal keys counts."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip(), value.strip())
    return fields


def _count_cpus(text: str) -> int:
    """CPUs in a list such as ``0-3,8``."""
    count = 0
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            count += int(last) - int(first) + 1 if last.isdigit() else 1
    return count


def _bytes(text: str) -> int:
    """``32768K``, ``2M`` or ``16384kB`` in bytes; 0 for anything else."""
    digits = text.rstrip("kKMGBb")
    unit = {"": 1, "K": 1 << 10, "KB": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[len(digits) :].upper(), 0)
    return int(digits) * unit if digits.isdigit() else 0


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
