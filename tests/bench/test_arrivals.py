"""Arrivals: counts that the rate says, times that the seed says, for every process and shape."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forno.bench.arrivals import PROCESSES, Closed, Open, Stage, parse_stages
from forno.errors import ConfigError

RATES = st.floats(0, 40)
STAGES = st.lists(st.builds(Stage, RATES, st.floats(0.5, 20), RATES), min_size=1, max_size=4).map(tuple)


@settings(max_examples=60, deadline=None)
@given(stages=STAGES, process=st.sampled_from(PROCESSES), seed=st.integers(0, 5))
def test_times_ascend_within_their_stages_and_a_seed_repeats_them(stages: tuple[Stage, ...], process: str, seed: int) -> None:
    if not any(stage.expected for stage in stages):
        return
    load = Open(stages, process)
    found = list(load.times(seed))
    assert found == list(load.times(seed))
    assert found == sorted(found)
    ends = list(itertools.accumulate(stage.seconds for stage in stages))
    for time, number in found:
        assert ends[number] - stages[number].seconds - 1e-6 <= time <= ends[number] + 1e-6


@settings(max_examples=60, deadline=None)
@given(STAGES)
def test_constant_arrivals_are_as_many_as_the_rate_says(stages: tuple[Stage, ...]) -> None:
    expected = sum(stage.expected for stage in stages)
    if expected:
        assert abs(len(list(Open(stages, "constant").times(1))) - expected) <= 1


@settings(max_examples=60, deadline=None)
@given(rate=RATES, end=RATES, seconds=st.floats(0.5, 100), share=st.floats(0, 0.999))
def test_a_stages_times_invert_its_rate(rate: float, end: float, seconds: float, share: float) -> None:
    stage = Stage(rate, seconds, end)
    if stage.expected > 1e-3:
        time = stage.time_of(share * stage.expected)
        passed = rate * time + (end - rate) / seconds * time * time / 2
        assert passed == pytest.approx(share * stage.expected, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(("process", "burstiness"), [("poisson", 1.0), ("gamma", 0.5), ("gamma", 1.0), ("gamma", 4.0)])
def test_gaps_have_the_mean_and_the_variation_of_their_process(process: str, burstiness: float) -> None:
    times = [time for time, _ in itertools.islice(Open(parse_stages("5"), process, burstiness).times(3), 20_000)]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert statistics.fmean(gaps) == pytest.approx(1 / 5, rel=0.03)
    assert statistics.variance(gaps) * 25 == pytest.approx(1 / burstiness, rel=0.06)


def test_a_surge_has_the_counts_of_its_stages() -> None:
    runs = [list(Open(parse_stages("2@30,8@20,2@30")).times(seed)) for seed in range(200)]
    for number, expected in enumerate((60, 160, 60)):
        counts = [sum(stage == number for _, stage in run) for run in runs]
        assert statistics.fmean(counts) == pytest.approx(expected, rel=0.03)
        assert statistics.variance(counts) == pytest.approx(expected, rel=0.35)  # a Poisson count's variance is its mean


def test_a_ramp_is_a_poisson_process_whose_rate_rises() -> None:
    """Halves of a ramp from 0 to 20 over 10 s expect 25 and 75."""
    runs = [[time for time, _ in Open(parse_stages("0-20@10")).times(seed)] for seed in range(200)]
    early = [sum(time < 5 for time in run) for run in runs]
    late = [sum(time >= 5 for time in run) for run in runs]
    assert statistics.fmean(early) == pytest.approx(25, rel=0.04)
    assert statistics.fmean(late) == pytest.approx(75, rel=0.04)


def test_constant_arrivals_begin_at_once() -> None:
    assert [time for time, _ in itertools.islice(Open(parse_stages("4"), "constant").times(1), 4)] == [0, 0.25, 0.5, 0.75]


def test_seeds_differ() -> None:
    load = Open(parse_stages("4"))
    assert next(load.times(1)) != next(load.times(2))


def test_a_stage_without_arrivals_is_a_pause() -> None:
    found = list(Open(parse_stages("10@2,0@5,10@2"), "constant").times(1))
    assert {stage for _, stage in found} == {0, 2}
    assert min(time for time, stage in found if stage == 2) == 7


def test_what_a_load_says_of_itself() -> None:
    assert Open(parse_stages("4")).words == "poisson, 4 requests/s"
    assert Open(parse_stages("4")).value == 4
    assert math.isinf(Open(parse_stages("4")).seconds)
    surge = Open(parse_stages("2@30,8@20,2@30"), "gamma", 0.5)
    assert surge.words == "gamma of burstiness 0.5, 2 for 30 s, then 8 for 20 s, then 2 for 30 s requests/s"
    assert (surge.value, surge.seconds) == (280 / 80, 80)
    assert Open(parse_stages("1-16@60")).words == "poisson, 1 to 16 for 60 s requests/s"


def test_clients_of_a_closed_loop_start_over_the_ramp() -> None:
    assert [Closed(4, 8).start(client) for client in range(4)] == [0, 2, 4, 6]
    assert Closed(4).start(3) == 0
    assert (Closed(1).words, Closed(32).words) == ("closed, 1 client", "closed, 32 clients")
    assert Closed(32).value == 32


@pytest.mark.parametrize("text", ["", "x", "4@", "1-2", "-4", "4@0", "4@-1", "nan", "inf", "2,4", "0", "1-@5", "4@x", "2@3,,4"])
def test_shapes_that_say_nothing_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        Open(parse_stages(text))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Closed(0),
        lambda: Closed(1, -1),
        lambda: Closed(1, math.inf),
        lambda: Open(()),
        lambda: Open((Stage(1),), "weibull"),
        lambda: Open((Stage(1),), "gamma", 0),
        lambda: Open((Stage(1),), "poisson", 2),
        lambda: Stage(1, math.inf, 2),
    ],
)
def test_loads_that_cannot_be_honoured_are_refused(make: object) -> None:
    with pytest.raises(ConfigError):
        make()  # type: ignore[operator]
