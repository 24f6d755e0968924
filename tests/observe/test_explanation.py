"""Segments and what they add up to, by hand."""

from __future__ import annotations

from forno.observe.explanation import Explanation, Kind, Phase
from forno.observe.record import RequestRecord


def made() -> Explanation:
    return Explanation(RequestRecord("a", 1, 4, 4), 1.0, 4.0)


def test_segments_are_cut_one_after_the_other_within_the_requests_time() -> None:
    found = made()
    cuts = [(2.0, Kind.QUEUED, 1.0), (1.5, Kind.PREFILL, 0.0), (3.0, Kind.QUEUED, 1.0), (9.0, Kind.CLIENT, 1.0)]
    assert [found.cut(until, kind, Phase.WAITING) for until, kind, _ in cuts] == [seconds for *_, seconds in cuts]
    assert [(s.start, s.end, s.kind) for s in found.segments] == [
        (1.0, 2.0, Kind.QUEUED),
        (2.0, 3.0, Kind.QUEUED),
        (3.0, 4.0, Kind.CLIENT),
    ]
    assert found.of(Kind.QUEUED, Kind.CLIENT, Kind.PREFILL) == found.seconds == 3.0


def test_phases_join_neighbours() -> None:
    found = made()
    for until, phase in ((1.5, Phase.WAITING), (2.0, Phase.WAITING), (3.0, Phase.DECODE), (4.0, Phase.WAITING)):
        found.cut(until, Kind.QUEUED, phase, step=int(until))
    assert [(s.phase, s.start, s.end, s.step) for s in found.phases()] == [
        (Phase.WAITING, 1.0, 2.0, 1),
        (Phase.DECODE, 2.0, 3.0, 3),
        (Phase.WAITING, 3.0, 4.0, 4),
    ]
    assert len(found.segments) == 4, "as they were"


def test_others_share_in_a_part_by_their_tokens() -> None:
    found = made()
    found.cut(3.0, Kind.SLOWED, Phase.DECODE)
    found.blame(Kind.SLOWED, 2.0, {"b": 3, "c": 1})
    found.blame(Kind.SLOWED, 0.5, {"c": 1})
    found.blame(Kind.SLOWED, 0.0, {"d": 1})
    found.blame(Kind.SLOWED, 1.0, {})
    assert found.parts[Kind.SLOWED].by == {"b": 1.5, "c": 1.0}
