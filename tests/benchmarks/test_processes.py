"""Children end with the block that started them, and so do theirs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from benchmarks import processes
from benchmarks.processes import ChildError, as_flags, child, cpu_seconds, family, output, resident_mib

NEST = """
import subprocess, sys
inner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(inner.pid, flush=True)
inner.wait()
"""


def alive(pid: int) -> bool:
    """Running, not merely waiting for whoever adopted it to collect its status."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def eventually_gone(pid: int) -> bool:
    deadline = time.monotonic() + 20
    while alive(pid) and time.monotonic() < deadline:
        os.sched_yield()
    return not alive(pid)


def grandchild(log: Path) -> int:
    """Its pid, once the child has written it."""
    deadline = time.monotonic() + 20
    while not log.read_text().endswith("\n"):
        assert time.monotonic() < deadline, "the child wrote nothing"
    return int(log.read_text())


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_the_whole_family_ends_with_the_block(tmp_path: Path, error: type[BaseException] | None) -> None:
    log, inner = tmp_path / "log", 0
    try:
        with open(log, "w+b") as out, child([sys.executable, "-c", NEST], out, out) as process:
            inner = grandchild(log)
            assert inner in family(os.getpid())
            if error:
                raise error
    except KeyboardInterrupt:
        pass
    assert process.returncode is not None
    assert eventually_gone(inner)


def test_a_child_that_will_not_end_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processes, "STOP_LIMIT", 0.1)
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    log = tmp_path / "log"
    with open(log, "w+b") as out, child([sys.executable, "-c", stubborn], out, out) as process:
        deadline = time.monotonic() + 20
        while not log.read_text() and time.monotonic() < deadline:
            os.sched_yield()
    assert process.returncode == -9


def test_output_is_returned_or_the_last_words_raised() -> None:
    assert output([sys.executable, "-c", "print('bread')"]) == "bread\n"
    with pytest.raises(ChildError, match=r"status 3:\nburnt"):
        output([sys.executable, "-c", "import sys; print('burnt', file=sys.stderr); sys.exit(3)"])
    with pytest.raises(ChildError, match="took longer"):
        output([sys.executable, "-c", "import time; time.sleep(600)"], limit=0.1)


def test_time_of_ended_children_is_kept() -> None:
    burn = "import time\nwhile time.process_time() < 0.4: pass"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}]); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        assert cpu_seconds(process.pid) >= 0.38, "the kernel cuts either kind of time to whole ticks"
        process.stdin.close()


def test_memory_counts_what_children_hold() -> None:
    hold = "import sys; held = b'x' * (64 << 20); print(flush=True); sys.stdin.read()"
    before = resident_mib(os.getpid())
    with subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        assert resident_mib(os.getpid()) - before > 60
        process.stdin.close()


def test_a_process_that_is_gone_counts_nothing() -> None:
    with tempfile.TemporaryFile() as out, child(["true"], out, out) as process:
        process.wait()
    assert cpu_seconds(process.pid) == 0
    assert resident_mib(process.pid) == 0


def test_options_become_words() -> None:
    assert as_flags({"--port": 80, "-c": Path("a b")}) == ["--port", "80", "-c", "a b"]
