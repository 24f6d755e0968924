"""The waiting line: in rank order, with a side room for those who wait for a block that is being computed."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from forno.scheduler.sequence import Sequence

by_rank = attrgetter("rank")


class WaitingLine:
    """Sequences without blocks. A preempted one comes back to its old place, since its rank has not changed."""

    def __init__(self) -> None:
        self._line: list[Sequence] = []
        self._parked: dict[bytes, list[Sequence]] = {}
        self._place: dict[Sequence, bytes] = {}
        self.num_tokens = 0
        """Tokens of all waiting sequences."""

    def __len__(self) -> int:
        return len(self._line) + len(self._place)

    def __iter__(self) -> Iterator[Sequence]:
        yield from self._line
        yield from self._place

    @property
    def num_parked(self) -> int:
        return len(self._place)

    def first(self) -> Sequence | None:
        """The best-ranked sequence that is not parked."""
        return self._line[0] if self._line else None

    def push(self, sequence: Sequence) -> None:
        insort(self._line, sequence, key=by_rank)
        self.num_tokens += len(sequence.tokens)

    def remove(self, sequence: Sequence) -> None:
        digest = self._place.pop(sequence, None)
        if digest is None:
            at = bisect_left(self._line, sequence.rank, key=by_rank)
            assert self._line[at] is sequence
            del self._line[at]
        else:
            companions = self._parked[digest]
            companions.remove(sequence)
            if not companions:
                del self._parked[digest]
        self.num_tokens -= len(sequence.tokens)

    def park(self, sequence: Sequence, digest: bytes) -> None:
        """Pass over ``sequence`` until ``wake(digest)``."""
        self.remove(sequence)
        self._place[sequence] = digest
        self._parked.setdefault(digest, []).append(sequence)
        self.num_tokens += len(sequence.tokens)

    def wake(self, digest: bytes) -> None:
        """Everyone parked on ``digest`` takes their place in the line again."""
        for sequence in self._parked.pop(digest, ()):
            del self._place[sequence]
            insort(self._line, sequence, key=by_rank)

    def parked_on(self) -> set[bytes]:
        return set(self._parked)

    def check_integrity(self) -> None:
        ranks = [s.rank for s in self._line]
        assert ranks == sorted(ranks), "the line is out of order"
        assert {s for group in self._parked.values() for s in group} == set(self._place)
        assert not set(self._line) & set(self._place), "a sequence waits twice"
        assert self.num_tokens == sum(len(s.tokens) for s in self)
