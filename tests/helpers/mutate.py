"""Damage to a file's bytes, as hypothesis strategies: truncated, flipped, overwritten with extremes, shuffled."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import strategies as st

DEADLINE = timedelta(seconds=20)
"""Of one damaged file. It takes milliseconds; a loop that runs away takes minutes, a busy machine does not."""

EXTREMES = tuple(
    value.to_bytes(8, "little")
    for value in (0, 1, 0xFFFF, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 62, (1 << 63) - 1, (1 << 64) - 1)
)


def damaged(data: bytes, header: int) -> st.SearchStrategy[bytes]:
    """``data`` with one kind of damage, mostly in its first ``header`` bytes, where the structure is."""

    def overwrite(at: int, value: bytes) -> bytes:
        return data[:at] + value + data[at + len(value) :]

    def flip(bits: list[int]) -> bytes:
        result = bytearray(data)
        for bit in bits:
            result[bit // 8] ^= 1 << bit % 8
        return bytes(result)

    def swap(a: int, b: int, size: int) -> bytes:
        first, second = sorted((a, b))
        size = min(size, second - first, len(data) - second)
        middle = data[first + size : second]
        return data[:first] + data[second : second + size] + middle + data[first : first + size] + data[second + size :]

    position = st.integers(0, header - 1)
    return st.one_of(
        st.builds(lambda n: data[:n], st.one_of(position, st.integers(0, len(data) - 1))),
        st.builds(overwrite, position, st.sampled_from(EXTREMES)),
        st.builds(lambda at, value: overwrite(at, value[:4]), position, st.sampled_from(EXTREMES)),
        st.builds(flip, st.lists(st.integers(0, header * 8 - 1), min_size=1, max_size=8)),
        st.builds(swap, position, position, st.integers(1, 64)),
        st.builds(lambda at, junk: data[:at] + junk + data[at:], position, st.binary(min_size=1, max_size=16)),
    )
