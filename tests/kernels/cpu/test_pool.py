"""The thread pool: every unit done once per op whatever the thread count, float modes restored, forks refused."""

import os

import pytest

from forno import _native


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("spin_us", [0, 50])
def test_every_unit_is_done_once_per_round(workers: int, spin_us: int) -> None:
    pool = _native.Pool(workers, spin_us)
    for units in (1, 3, 64):
        done, _ = pool.exercise(units, 50)
        assert done == [50] * units


def test_more_workers_than_cores_make_progress() -> None:
    workers = 4 * (os.cpu_count() or 1)
    done, _ = _native.Pool(workers, 0).exercise(2 * workers, 20)
    assert done == [20] * (2 * workers)


def test_every_worker_flushes_denormals_and_the_caller_gets_its_mode_back() -> None:
    assert not _native.flushes_denormals()
    _, flushed = _native.Pool(3, 0).exercise(1, 1)
    assert flushed == [True] * 3
    assert not _native.flushes_denormals()


@pytest.mark.parametrize("workers", [0, -1, 5000])
def test_absurd_sizes_are_refused(workers: int) -> None:
    with pytest.raises(ValueError, match="workers"):
        _native.Pool(workers, 0)


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
