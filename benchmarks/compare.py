"""forno against other engines, interleaved in one run, on the same weights: prefill, decode, start, and load over HTTP.

    make bench-peers        or    python -m benchmarks.compare [--engines forno,vllm] [--measures decode-8,chat-32]
    make bench-llamacpp     llama.cpp alone

Every peer runs at the types and flags at which it is at its best. An engine's processes run only while it is measured. What
fails is said, and the rest goes on. Prints a table with ratios and spreads, and ends in one JSON line; the status is 1 if
anything failed.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import engines, serving
from benchmarks.engine import GENERATE, PREFILL
from benchmarks.engines import FORNO, SAME_FILE, Engine, Measured, Setting
from benchmarks.measure import Contention, Results, Sample, machine, progress, table
from benchmarks.peers.place import DEFAULT_DIR, PeerError
from benchmarks.processes import ChildError
from benchmarks.servers import ServerError
from forno.config import DEFAULT_MODEL
from forno.errors import FornoError
from forno.kernels.cpu import cpuinfo
from forno.loader.open import open_checkpoint
from forno.loader.sources import resolve

LLAMACPP = (SAME_FILE, f"{SAME_FILE} Q4_0", f"{SAME_FILE} BF16")
ENGINES = (FORNO, *LLAMACPP, "openvino int8", "openvino int4", "vllm", "transformers")
SERVED = (FORNO, f"{SAME_FILE} Q4_0", "vllm")
"""Engines that are measured over HTTP unless others are named: of llama.cpp the type that serves fastest."""
BATCHES = (8, 32, 64)
SINGLE = (f"prefill-{PREFILL}", f"generate-{GENERATE}")
MEASURES = (*SINGLE, *(f"decode-{batch}" for batch in BATCHES), *serving.MEASURES)

Part = tuple[str, Callable[[], Measured]]


@dataclass(slots=True)
class Failures:
    """What did not work, by engine: said at once, not tried again, and counted at the end."""

    reasons: dict[str, dict[str, str]] = field(default_factory=dict)
    """Engine to part to its last words."""

    def attempt(self, engine: str, part: str, action: Callable[[], Measured]) -> Measured:
        """The result of ``action``, or nothing if it fails or has failed before."""
        if part in self.reasons.get(engine, {}):
            return {}
        try:
            return action()
        except (ChildError, ServerError, PeerError, FornoError, OSError, ValueError, LookupError) as error:
            progress(f"  {engine}: {part} failed: {error}")
            said = f"{type(error).__name__}: {error}"
            self.reasons.setdefault(engine, {})[part] = said if len(said) < 800 else f"{said[:300]} ... {said[-500:]}"
            return {}


def parts(engine: Engine, wanted: Collection[str], served: bool, contention: Contention) -> Iterator[Part]:
    """What an engine has to run for the measures ``wanted``; each has ended, with its processes, before the next begins."""
    batches = [batch for batch in BATCHES if f"decode-{batch}" in wanted]
    if batches or set(SINGLE) & set(wanted):
        yield "rates", lambda: contention.calm(lambda: engine.rates(batches))
    if served and engine.has_server:
        for number, part in enumerate(serving.parts(engine.server_command, wanted, contention, engine.paged), 1):
            yield f"server {number}", part


def ready(names: Sequence[str], setting: Setting, served: Collection[str], failures: Failures) -> dict[str, Engine]:
    """The engines that can be set up, in order; those in ``served`` have served once."""
    made = {name: engines.make(name, setting) for name in names}  # a wrong name ends the run before anything is installed
    for name, engine in made.items():
        progress(f"preparing {name}")
        failures.attempt(name, "set-up", partial(_prepare, engine, name in served and engine.has_server))
    return {name: engine for name, engine in made.items() if name not in failures.reasons}


def _prepare(engine: Engine, serve: bool) -> Measured:
    engine.prepare()
    if serve:
        serving.warm_up(engine.server_command)
    return {}


def play(
    chosen: Mapping[str, Engine],
    wanted: Collection[str],
    served: Collection[str],
    rounds: int,
    contention: Contention,
    failures: Failures,
) -> Results:
    """Every engine in turn, round after round: ABAB, so that what the machine does to one it does to the other."""
    results = Results()
    for number in range(rounds):
        for name, engine in chosen.items():
            progress(f"round {number + 1} of {rounds}: {name}")
            for part, action in parts(engine, wanted, name in served, contention):
                measured = failures.attempt(name, part, action)
                results.add(name, {what: value for what, value in measured.items() if _is_wanted(what, wanted)})
                progress("  " + ", ".join(f"{what} {value:.4g}" for what, value in measured.items()))
    return results


def _is_wanted(measured: str, wanted: Collection[str]) -> bool:
    """An engine's own benchmark gives all of ``SINGLE`` at once."""
    name = measured.split(" ")[0]
    return name in wanted or name not in MEASURES or name == serving.START


def ratio(ours: Sample, theirs: Sample, measure: str) -> float | None:
    """How many times better ``ours`` is; None if one of the two is too small to say."""
    better, worse = (ours, theirs) if measure.endswith("tok/s") else (theirs, ours)
    return round(better.median / worse.median, 2) if better.median > 0 and worse.median > 0 else None


def ratios(results: Results) -> dict[str, dict[str, float]]:
    """Measure to peer to how many times better forno is."""
    found: dict[str, dict[str, float]] = {}
    for name in results.measures:
        ours = results.sample(FORNO, name)
        for engine in results.engines:
            theirs = results.sample(engine, name)
            if engine != FORNO and ours and theirs and (better := ratio(ours, theirs, name)) is not None:
                found.setdefault(name, {})[engine] = better
    return found


def report(results: Results) -> str:
    """A row per measure: each engine's median and spread, and forno's ratio to the same file and to the best."""
    peers, better = [engine for engine in results.engines if engine != FORNO], ratios(results)
    rows = []
    for name in results.measures:
        cells = [_cell(results.sample(engine, name)) for engine in (FORNO, *peers)]
        same, best = better.get(name, {}).get(SAME_FILE), min(better.get(name, {}).values(), default=None)
        rows.append([name, *cells, *("" if value is None else f"{value:.2f}" for value in (same, best))])
    return table(["median (spread)", FORNO, *peers, "x same file", "x best"], rows)


def _cell(sample: Sample | None) -> str:
    return "" if sample is None else f"{sample.median:.4g} ({sample.spread:.0%})"


def run(options: argparse.Namespace) -> dict[str, Any]:
    before, contention, failures = machine(), Contention(options.others), Failures()
    names, wanted, model = _list(options.engines), _list(options.measures), resolve(options.model)
    if unknown := set(wanted) - set(MEASURES):
        raise PeerError(f"there is no measure {', '.join(sorted(unknown))}; known: {', '.join(MEASURES)}")
    setting = Setting(
        model=model,
        directory=options.dir,
        threads=cpuinfo.usable_threads(),
        vocab=int(open_checkpoint(model).config["vocab_size"]),
        repeats=options.repeats,
        install=not options.skip_setup,
    )
    served = _list(options.served) if set(wanted) & set(serving.MEASURES) else []
    chosen = ready(names, setting, served, failures)
    results = play(chosen, wanted, served, options.rounds, contention, failures)
    print(report(results))
    print(
        f"\nOther processes used {contention.mean} cores on average, {contention.worst} at worst; "
        f"{contention.repeated} disturbed measurements were repeated."
    )
    for name, reasons in failures.reasons.items():
        print(f"{name} FAILED: {', '.join(reasons)}")
    return {
        "benchmark": "peers",
        "model": options.model,
        "machine": before,
        "versions": {name: engine.versions() for name, engine in chosen.items()},
        "rounds": options.rounds,
        "other_cores": {"mean": contention.mean, "worst": contention.worst, "repeated": contention.repeated},
        "failures": failures.reasons,
        "results": results.as_json(),
        "ratios": ratios(results),
    }


def _list(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description="forno against other engines in one interleaved run.")
    found.add_argument("--model", default=DEFAULT_MODEL, help="a GGUF file, or a built-in model that is one")
    found.add_argument(
        "--engines", default=",".join(ENGINES), help=f"families: {', '.join(engines.FAMILIES)}; default: %(default)s"
    )
    found.add_argument("--served", default=",".join(SERVED), help="engines measured over HTTP too; default: %(default)s")
    found.add_argument("--measures", default=",".join(MEASURES), help="default: %(default)s")
    found.add_argument("--rounds", type=int, default=3, help="how often each engine has its turn")
    found.add_argument("--repeats", type=int, default=3, help="repeats within a turn, without HTTP")
    found.add_argument("--others", type=float, default=0.2, help="cores that other processes may use before a repeat")
    found.add_argument("--skip-setup", action="store_true", help="install nothing")
    found.add_argument("--dir", type=Path, default=DEFAULT_DIR, help="where peers live; default: %(default)s")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that children are ended too
    try:
        result = run(options)
    except (PeerError, FornoError) as error:
        progress(str(error))
        raise SystemExit(1) from error
    print(json.dumps(result))
    if result["failures"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
