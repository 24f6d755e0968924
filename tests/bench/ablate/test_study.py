"""The order of an ablation, and what it makes of servers that do not start, on one tiny server in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from unittest import mock

import pytest

from forno.bench.ablate import accuracy
from forno.bench.ablate.arms import Arm, every_arm
from forno.bench.ablate.study import Measured, Plan, Study
from forno.bench.arrivals import Closed
from forno.bench.compare import compare
from forno.bench.load import Extent
from forno.bench.workloads import ChatWorkload
from forno.errors import ConfigError
from tests.helpers.gguf_writer import write_tiny_gguf
from tests.helpers.tiny import TinyModel
from tests.server.harness import Running, running

ARMS = {arm.name: arm for arm in every_arm()}


@dataclass
class Oven:
    """Opens the one server for every arm, and remembers which."""

    url: str
    opened: list[str] = field(default_factory=list)
    broken: str = "nothing"
    start_seconds: float = 0.5
    model: str = ""

    @asynccontextmanager
    async def __call__(self, flags: Sequence[str]) -> AsyncIterator[Oven]:
        self.opened.append(" ".join(flags))
        if self.broken in self.opened[-1]:
            raise ConfigError("the server did not start: no memory")
        yield self

    def peak_memory(self) -> int:
        return 1_000_000 * len(self.opened)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    path = write_tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf", TinyModel(context=4096))
    with running(path) as one:
        yield one


@pytest.fixture(autouse=True, scope="module")
def few_words() -> Iterator[None]:
    """Predictions of fewer words than a real study compares."""
    with mock.patch.object(accuracy, "WORDS", 20):
        yield


def plan(rounds: int = 2) -> Plan:
    workload = ChatWorkload(input_tokens="40", max_tokens="4")
    return Plan("tiny.gguf", workload, Closed(2), Extent(requests=4, warmup_requests=1), rounds, flags=("--threads", "1"))


@dataclass(frozen=True)
class Done:
    oven: Oven
    baseline: Measured
    others: list[Measured]


@pytest.fixture(scope="module")
def done(server: Running, few_words: None) -> Done:
    """Two rounds of two arms."""
    oven = Oven(server.url, model=server.model)
    return Done(oven, *asyncio.run(Study(plan(), oven).measure([ARMS["static"], ARMS["kv-int8"]])))


def test_rounds_begin_and_end_with_the_baseline_and_turn(done: Done) -> None:
    common = "--model tiny.gguf --threads 1"
    names = [flags.removeprefix(common).removesuffix("--kv-cache-prefault 0").strip() for flags in done.oven.opened]
    static, int8 = "--batching static", "--kv-cache-dtype int8"
    assert names == ["", static, int8, "", "", int8, static, ""]
    assert [visit.round for visit in done.baseline.visits] == [0, 0, 1, 1]
    assert [[visit.round for visit in one.visits] for one in done.others] == [[0, 1], [0, 1]]


def test_all_arms_of_a_round_get_the_same_prompts_and_the_next_round_others(done: Done) -> None:
    visits = [*done.baseline.visits, *done.others[0].visits]
    assert [visit.run.seed == visits[0].run.seed for visit in visits] == [True, True, False, False, True, False]
    assert visits[2].run.seed == visits[5].run.seed
    prompts = [sorted(r.prompt_tokens for r in v.run.requests if r.counted) for v in visits]
    assert len(prompts[0]) == 4
    assert prompts[0] == prompts[1] == prompts[4]


def test_work_memory_and_predictions_are_noted(done: Done) -> None:
    static = done.others[0]
    work = static.work
    assert work.requests >= 2 * 4
    assert work.output_tokens >= 2 * 4 * 4
    assert work.rows >= work.prompt_tokens - work.cached_tokens
    assert work.weight_bytes
    assert work.waste_share is not None
    assert [visit.peak_memory for visit in static.visits] == [2_000_000, 7_000_000]
    assert static.accuracy is not None
    assert (static.accuracy.kl, static.accuracy.identical) == (0.0, True), "it is the same server"
    assert done.baseline.accuracy is None


def test_results_can_be_compared(done: Done) -> None:
    results = [m.result(plan(), "forno bench ablate", "2026-01-01T00:00:00+00:00") for m in (done.baseline, done.others[0])]
    assert [[run.repeat for run in result.runs] for result in results] == [[0, 1], [0, 1]]
    assert results[1].server["command"][-2:] == ["--batching", "static"]
    assert compare(*results) is not None


def test_an_arm_that_does_not_start_is_left_out_and_said(server: Running) -> None:
    said: list[str] = []
    oven = Oven(server.url, model=server.model, broken="int8")
    _, (broken, other) = asyncio.run(Study(plan(), oven, say=said.append).measure([ARMS["kv-int8"], ARMS["static"]]))
    assert broken.error == "the server did not start: no memory"
    assert (len(broken.visits), len(other.visits)) == (0, 2)
    assert sum("int8" in flags for flags in oven.opened) == 1, "not tried again"
    assert said == ["round 1/2, 2/4: int8 KV cache is left out: the server did not start: no memory"]


def test_without_a_baseline_there_is_nothing() -> None:
    with pytest.raises(ConfigError, match="no memory"):
        asyncio.run(Study(plan(), Oven("", broken="threads")).measure([ARMS["static"]]))


def test_a_server_that_goes_away_is_an_arm_that_failed(server: Running) -> None:
    class Leaving(Oven):
        @asynccontextmanager
        async def __call__(self, flags: Sequence[str]) -> AsyncIterator[Oven]:
            yield Oven("http://127.0.0.1:9", model=self.model) if "static" in " ".join(flags) else self

    _, (gone,) = asyncio.run(Study(plan(1), Leaving(server.url, model=server.model)).measure([ARMS["static"]]))
    assert gone.error.startswith("the server does not answer: ")


def test_stopping_drops_the_round_that_was_not_finished(server: Running) -> None:
    oven = Oven(server.url, model=server.model)
    study = Study(plan(2), oven)

    def watch(load: str, extent: Extent, got: object) -> None:
        if load.startswith("round 2/2, 2/3"):
            asyncio.get_running_loop().call_soon(study.stop)

    study.watch = watch
    baseline, (other,) = asyncio.run(study.measure([ARMS["static"]]))
    assert study.stopped
    assert ([v.round for v in baseline.visits], [v.round for v in other.visits]) == ([0, 0], [0])
    assert len(oven.opened) == 5


def test_commands_of_other_models() -> None:
    arm = Arm(name="model-1", technique="weights", title="other", model="other.gguf")
    assert plan().command(arm) == ("--model", "other.gguf", "--threads", "1")
