"""Machine facts, read from made-up file systems."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forno.kernels.cpu import cpuinfo

GIB = 1 << 30


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "250000 100000\n"}, 2.5),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, None),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "4 1\n", "sys/fs/cgroup/a/cpu.max": "3 2\n"}, 1.5),
        ({"proc/self/cgroup": "0::/gone\n", "sys/fs/cgroup/cpu.max": "300000 100000\n"}, 3.0),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/x\n1:name=systemd:/\n",
                "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us": "150000\n",
                "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us": "100000\n",
            },
            1.5,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
        ({"proc/self/cgroup": "nonsense\n0::\n", "sys/fs/cgroup/cpu.max": "x y z\n"}, None),
        ({"proc/self/cgroup": "0::/../..\n", "sys/fs/cgroup/cpu.max": "100000 0\n"}, None),
    ],
)
def test_quota(tmp_path: Path, files: dict[str, str], quota: float | None) -> None:
    assert cpuinfo.cgroup_quota(write(tmp_path, files)) == quota


@pytest.mark.parametrize(("quota", "threads"), [("50000", 1), ("100000", 1), ("199999", 1), ("10000000", None)])
def test_threads_round_the_quota_down_and_stay_within_affinity(tmp_path: Path, quota: str, threads: int | None) -> None:
    root = write(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": f"{quota} 100000\n"})
    assert cpuinfo.usable_threads(root) == (threads or cpuinfo.affinity())


def test_chip_flags_and_cores(tmp_path: Path) -> None:
    cpu = "processor : {0}\nmodel name : Oven 9000\nphysical id : 0\ncore id : {1}\nflags : avx2 fma\n"
    root = write(tmp_path, {"proc/cpuinfo": "\n".join(cpu.format(i, i // 2) for i in range(4))})
    assert cpuinfo.chip_name(root) == "Oven 9000"
    assert cpuinfo.flags(root) == {"avx2", "fma"}
    assert cpuinfo.cores(root) == 2


def test_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    assert cpuinfo.chip_name(tmp_path) == os.uname().machine
    assert (cpuinfo.flags(tmp_path), cpuinfo.caches(tmp_path)) == (frozenset(), ())
    assert cpuinfo.cores(tmp_path) == os.cpu_count()
    assert cpuinfo.memory(tmp_path) == (0, 0)
    assert cpuinfo.huge_pages(tmp_path) == "unknown"


def test_caches(tmp_path: Path) -> None:
    index = "sys/devices/system/cpu/cpu0/cache/index3/"
    files = {"level": "3\n", "size": "32768K\n", "type": "Unified\n", "shared_cpu_list": "0-3,8\n"}
    root = write(tmp_path, {index + name: text for name, text in files.items()})
    assert cpuinfo.caches(root) == (cpuinfo.Cache(3, "Unified", 32 << 20, 5),)


MEMORY = {"proc/meminfo": f"MemTotal: {8 * GIB >> 10} kB\nMemFree: 1 kB\nMemAvailable: {6 * GIB >> 10} kB\n"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, (8, 6)),
        (
            {
                "proc/self/cgroup": "0::/a\n",
                "sys/fs/cgroup/a/memory.max": f"{3 * GIB}\n",
                "sys/fs/cgroup/a/memory.current": f"{1 * GIB}\n",
            },
            (3, 2),
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/a\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{4 * GIB}\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{5 * GIB}\n",
            },
            (4, 0),
        ),
    ],
)
def test_memory_ends_at_the_cgroups_limit(tmp_path: Path, files: dict[str, str], expected: tuple[int, int]) -> None:
    total, available = cpuinfo.memory(write(tmp_path, {**MEMORY, **files}))
    assert (total / GIB, available / GIB) == expected


def test_huge_pages(tmp_path: Path) -> None:
    root = write(tmp_path, {"sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n"})
    assert cpuinfo.huge_pages(root) == "madvise"
