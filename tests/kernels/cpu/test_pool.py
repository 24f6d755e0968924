"""The thread pool: every unit done once per op whatever the thread count, float modes restored, forks refused."""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from forno import _native


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("spin_us", [0, 50])
def test_every_unit_is_done_once_per_round(count: int, spin_us: int) -> None:
    pool = _native.Pool(count, spin_us)
    for units in (1, 3, 64):
        done, _ = pool.exercise(units, 50)
        assert done == [50] * units


@pytest.mark.parametrize("count", [2, 5])
def test_workers_without_a_core_are_not_waited_for(count: int) -> None:
    """The first worker does all units of all phases; the others then skip what has ended, and count on from there."""
    pool = _native.Pool(count, 0)
    for late in (True, False, True):
        done, _ = pool.exercise(7, 30, late)
        assert done == [30] * 7


def test_more_workers_than_cores_make_progress() -> None:
    count = 4 * (os.cpu_count() or 1)
    done, _ = _native.Pool(count, 0).exercise(2 * count, 20)
    assert done == [20] * (2 * count)


def test_every_worker_flushes_denormals_and_the_caller_gets_its_mode_back() -> None:
    assert not _native.flushes_denormals()
    _, flushed = _native.Pool(3, 0).exercise(1, 1)
    assert flushed == [True] * 3
    assert not _native.flushes_denormals()


def workers() -> dict[str, dict[str, str]]:
    """``/proc/self/task/*/status`` by thread id, of the pool threads of this process."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread may end while it is looked at
            fields = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines() if ":\t" in line)
            if fields["Name"] == "forno-worker":
                found[task.name] = fields
    return found


def eventually(condition: Callable[[], bool]) -> bool:
    """Whether ``condition`` comes true within ten seconds; it should within microseconds."""
    deadline = time.monotonic() + 10
    while not condition():
        if time.monotonic() > deadline:
            return False
    return True


def test_idle_workers_sleep_and_a_pool_ends_its_threads() -> None:
    others = set(workers())
    pool = _native.Pool(3, 50)
    pool.exercise(3, 10)
    own = set(workers()) - others
    assert len(own) == 2
    assert eventually(lambda: all(workers()[w]["State"].startswith("S") for w in own))
    del pool
    assert eventually(lambda: not own & set(workers()))


def test_workers_leave_signals_to_python() -> None:
    others = set(workers())
    pool = _native.Pool(3, 0)
    pool.exercise(1, 1)
    for name in set(workers()) - others:
        blocked = int(workers()[name]["SigBlk"], 16)
        assert blocked >> (signal.SIGINT - 1) & 1
        assert not blocked >> (signal.SIGSEGV - 1) & 1
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


@pytest.mark.parametrize("count", [0, -1, 5000])
def test_absurd_sizes_are_refused(count: int) -> None:
    with pytest.raises(ValueError, match="workers"):
        _native.Pool(count, 0)


def test_a_forked_child_is_told_so_and_can_make_its_own_pool() -> None:
    pool = _native.Pool(2, 0)
    pool.exercise(1, 1)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            pool.exercise(1, 1)
            os.write(write, b"ran")
        except RuntimeError as error:
            fresh, _ = _native.Pool(2, 0).exercise(4, 2)
            os.write(write, b"refused" if "fork" in str(error) and fresh == [2] * 4 else b"wrong")
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    assert (said, status) == (b"refused", 0)
