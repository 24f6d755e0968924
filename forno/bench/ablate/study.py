"""Measures a baseline and its arms in turns: a server each time, the same prompts for all arms of a round.

It knows servers, loads and rounds; what the numbers mean is for others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field

import msgspec

from forno import env
from forno.bench import records
from forno.bench.ablate import accuracy, counters
from forno.bench.ablate.arms import BASELINE, Arm
from forno.bench.ablate.server import Server, serving
from forno.bench.arrivals import Closed, Open
from forno.bench.bench import SEED_STEP, Bench, Settings
from forno.bench.client import Target, open_session
from forno.bench.corpus import Corpus
from forno.bench.load import Extent, Gathered
from forno.bench.probe import counter
from forno.bench.ruler import Ruler, measure
from forno.bench.workload import Workload
from forno.errors import ConfigError

FIELDS = {"temperature": 0.0, "ignore_eos": True}
SERVER_FLAGS = ("--kv-cache-prefault", "0")
"""For all arms: else a server claims KV memory that nobody uses, and how much it needs would not be seen."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What all arms have in common."""

    model: str
    """As ``forno serve --model`` takes it."""
    workload: Workload
    load: Closed | Open
    extent: Extent
    rounds: int = 3
    slo: dict[str, float] = field(default_factory=dict)
    seed: int = 0
    flags: tuple[str, ...] = ()
    """Options of the baseline."""

    def command(self, arm: Arm) -> tuple[str, ...]:
        """``forno serve``'s options for an arm, those for measuring aside."""
        return ("--model", arm.model or self.model, *self.flags, *arm.flags)


class Visit(msgspec.Struct, kw_only=True):
    """One arm in one round."""

    round: int
    run: records.Run
    work: counters.Work
    peak_memory: int | None
    start_seconds: float


class Measured(msgspec.Struct, kw_only=True):
    """Everything of one arm."""

    arm: Arm
    visits: list[Visit] = []
    """One per round; of the baseline two, the first and the last of each round."""
    accuracy: accuracy.Accuracy | None = None
    """Against the baseline's predictions."""
    error: str = ""
    """Why it could not be measured, if it could not."""
    url: str = ""
    served: str = ""
    """The model's name as served."""

    @property
    def work(self) -> counters.Work:
        total = self.visits[0].work
        for visit in self.visits[1:]:
            total = total + visit.work
        return total

    def result(self, plan: Plan, tool: str, started: str) -> records.Result:
        """As a result file, for ``forno bench compare`` and ``report``. The baseline's runs are the first of each round."""
        first = {visit.round: visit for visit in reversed(self.visits)}
        return records.Result(
            tool=tool,
            started=started,
            url=self.url,
            model=self.served,
            server={"command": ["forno", "serve", *plan.command(self.arm)]},
            workload={**plan.workload.params(), "seed": plan.seed},
            slo=plan.slo,
            runs=[first[number].run for number in sorted(first)],
        )


Opener = Callable[[Sequence[str]], AbstractAsyncContextManager[Server]]


class Study:
    """Measures arms, round after round; ``stop`` ends it with what is there."""

    def __init__(
        self,
        plan: Plan,
        opener: Opener = serving,
        say: Callable[[str], None] = lambda text: None,
        watch: Callable[[str, Extent, Gathered], None] = lambda load, extent, got: None,
        rest: Callable[[], None] = lambda: None,
    ) -> None:
        """``watch`` is called with what a run will gather when it begins, ``rest`` when it has ended."""
        self.plan, self.stopped = plan, False
        self._opener, self._say, self.watch, self._rest = opener, say, watch, rest
        self._ruler: Ruler | None = None
        self._expected: list[accuracy.Position] = []
        self._texts = accuracy.texts(Corpus.load())
        self._bench: Bench | None = None
        self._rounds_begun = 0

    def stop(self) -> None:
        """End what is under way; its round does not count."""
        self.stopped = True
        if self._bench is not None:
            self._bench.stop()

    async def measure(self, arms: Sequence[Arm]) -> tuple[Measured, list[Measured]]:
        """The baseline and every arm, in as many rounds as planned. An arm that fails is left out of later rounds.

        Raises ``ConfigError`` if the baseline fails.
        """
        baseline = Measured(arm=Arm(name=BASELINE, technique=BASELINE, title="baseline"))
        others = [Measured(arm=arm) for arm in arms]
        for number in range(self.plan.rounds):
            turn = number % max(1, len(others))
            order = [baseline, *others[turn:], *others[:turn], baseline]
            for place, measured in enumerate(order):
                where = f"round {number + 1}/{self.plan.rounds}, {place + 1}/{len(order)}: {measured.arm.title}"
                if not measured.error:
                    await self._visit(measured, number, where)
                if self.stopped:
                    self._forget(number, [baseline, *others])
                    return baseline, others
            self._rounds_begun += 1
        return baseline, others

    def _forget(self, number: int, everyone: Sequence[Measured]) -> None:
        """Drop a round that was not finished."""
        for measured in everyone:
            measured.visits = [visit for visit in measured.visits if visit.round != number]

    async def _visit(self, measured: Measured, number: int, where: str) -> None:
        try:
            async with self._opener([*self.plan.command(measured.arm), *SERVER_FLAGS]) as server:
                measured.url, measured.served = server.url, server.model
                with _named_errors():
                    await self._load(measured, server, number, where)
        except ConfigError as error:
            if measured.arm.name == BASELINE:
                raise
            measured.error = str(error)
            self._say(f"{where} is left out: {error}")

    async def _load(self, measured: Measured, server: Server, number: int, where: str) -> None:
        target = Target(url=server.url, model=server.model, api_key=env.API_KEY.get(), fields=FIELDS)
        async with open_session(target) as session:
            if self._ruler is None:
                self._ruler = await measure(counter(session, target), Corpus.load())
        # The same prompts for every arm of a round, others in the next. Each server is new: nothing is in its cache.
        seed = self.plan.seed + SEED_STEP * self._rounds_begun
        settings = Settings(self.plan.workload, seed, self.plan.slo, fresh=False)
        self._bench = bench = Bench(target, settings, self._ruler, [], has_gauges=True)

        def begin(load: str, extent: Extent, got: Gathered) -> None:
            self.watch(f"{where} · {load}", extent, got)
            if self.stopped:  # while the server started
                bench.stop()

        bench.watch = begin
        before = await _counters(target)
        try:
            run = await bench.measure(self.plan.load, self.plan.extent, number)
        finally:
            self._rest()
        after = await _counters(target)
        if not run.summary.completed and not self.stopped:
            raise ConfigError(f"no request was answered: {'; '.join(run.summary.problems) or 'no reason is known'}")
        clients = self.plan.load.clients if isinstance(self.plan.load, Closed) else 0
        measured.visits.append(
            Visit(
                round=number,
                run=run,
                work=counters.work_between(before, after, clients),
                peak_memory=server.peak_memory(),
                start_seconds=server.start_seconds,
            )
        )
        if not self._expected or (measured.accuracy is None and measured.arm.name != BASELINE):
            await self._compare(measured, target)

    async def _compare(self, measured: Measured, target: Target) -> None:
        """Ask for its predictions, once; the baseline's first are what all others are held against."""
        got = await _predictions(target, self._texts)
        if not self._expected:
            self._expected = got
        elif got:
            measured.accuracy = accuracy.compare(self._expected, got)


@contextmanager
def _named_errors() -> Iterator[None]:
    """A server that goes away while we ask it is an error that is said, like one that does not start."""
    import aiohttp

    try:
        yield
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise ConfigError(f"the server does not answer: {error or type(error).__name__}") from error


async def _counters(target: Target) -> dict[str, float]:
    async with open_session(target) as session, session.get(f"{target.url}/metrics") as response:
        return counters.parse(await response.text(errors="replace"))


async def _predictions(target: Target, texts: Sequence[str]) -> list[accuracy.Position]:
    """Log-probabilities of every position of the texts; empty if the server does not tell them."""
    body = {
        "model": target.model,
        "prompt": list(texts),
        "max_tokens": 1,
        "temperature": 0.0,
        "prompt_logprobs": accuracy.TOP,
    }
    url, data = f"{target.url}/v1/completions", msgspec.json.encode(body)
    async with open_session(target) as session, session.post(url, data=data) as response:
        raw = await response.read()
    try:
        return accuracy.positions_of(msgspec.json.decode(raw))
    except (ValueError, msgspec.DecodeError):
        return []
