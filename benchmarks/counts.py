"""Instructions of every kernel, compared with a table in the repository: a regression check that no busy machine disturbs.

    python -m benchmarks.counts [--isa avx2,portable] [--update] [--tolerance 0.02]

Small fixed steps (``benchmarks.counted``) run once. Callgrind counts the AVX2 and portable kernels; it does not know
AVX-512, whose kernels are stepped through (``perf stat`` would need counters that most virtual machines hide).
Ends with status 1 if a kernel takes more instructions than the table says. Counts depend on the compiler: with another one
than the table's there is nothing to compare, and a table of one's own (``--table``, ``--update``) serves.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.counted import CASES
from benchmarks.measure import progress
from forno import _native
from forno.env import child_environment

TABLE = Path(__file__).with_name("counts.json")
TOLERANCE = 0.02
SLACK = 40
"""Instructions that any op may take more or less: a few calls around it."""
MARK = "forno_instructions"
"""The function that the executor calls before, between and after the ops of a step."""
_TOTAL = re.compile(r"^(?:summary|totals): (\d+)", re.MULTILINE)

Counts = dict[str, dict[str, int]]
"""Case and rows (``q4_1 x 7``) to kind of op to instructions."""


@dataclass(frozen=True, slots=True)
class Change:
    """An op whose count is another than the table's."""

    isa: str
    case: str
    kind: str
    before: int
    now: int

    @property
    def ratio(self) -> float:
        return self.now / self.before

    def __str__(self) -> str:
        return f"{self.isa:9}{self.case:24}{self.kind:13}{self.before:>10} -> {self.now:>10}  {self.ratio - 1:+.1%}"


def why_not(isa: str) -> str:
    """Why the instructions of this instruction set's kernels cannot be counted here; empty if they can."""
    if isa not in _native.available_isas():
        return "this machine cannot run them"
    if isa == "avx512":
        return "" if _native.CAN_STEP else "instructions can be stepped through on x86-64 Linux only"
    return "" if shutil.which("valgrind") else "valgrind is not installed (Debian, Ubuntu: apt install valgrind)"


def count(isa: str, cases: Iterable[str] = tuple(CASES)) -> Counts:
    """Run the steps of ``cases`` and return what their ops took. Raises ``CalledProcessError`` if they do not run."""
    command = [sys.executable, "-m", "benchmarks.counted", "--isa", isa, "--cases", ";".join(cases)]
    if isa == "avx512":
        return totals(_records(command))
    with tempfile.TemporaryDirectory(prefix="forno-counts-") as directory:
        tool = ["valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={directory}/out", f"--dump-before={MARK}"]
        records = _records([*tool, *command, "--counter", "marks"])
        return totals(with_counts(records, parts(Path(directory))))


def _records(command: list[str]) -> list[dict[str, Any]]:
    environment = child_environment(PYTHONHASHSEED="0", PYTHONPATH=str(Path(__file__).resolve().parents[1]))
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return [json.loads(line) for line in done.stdout.splitlines()]


def parts(directory: Path) -> list[int]:
    """Instructions between the marks, from callgrind's numbered files: first those before any mark."""
    files = sorted(directory.glob("out.*"), key=lambda path: int(path.suffix[1:]))
    found = (_TOTAL.search(path.read_text()) for path in files)
    return [int(match[1]) if match else 0 for match in found]


def with_counts(records: Sequence[dict[str, Any]], counted: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Give each step its ops' counts: ``counted`` holds what lies before the step, then one number per op."""
    expected = sum(1 + len(record["kinds"]) for record in records)
    if len(counted) != expected:
        raise ValueError(f"callgrind wrote {len(counted)} parts for {expected} marks; does it see the function {MARK}?")
    place = 0
    for record in records:
        end = place + 1 + len(record["kinds"])
        yield record | {"counts": list(counted[place + 1 : end])}
        place = end


def totals(records: Iterable[dict[str, Any]]) -> Counts:
    """Counts by step and kind of op; ops that were not counted are left out."""
    result: Counts = {}
    for record in records:
        kinds = result.setdefault(f"{record['case']} x {record['rows']}", {})
        for kind, instructions in zip(record["kinds"], record["counts"], strict=True):
            if instructions:
                kinds[kind] = kinds.get(kind, 0) + instructions
    return result


def changes(isa: str, before: Counts, now: Counts, tolerance: float) -> list[Change]:
    """What differs by more than ``tolerance`` and ``SLACK``, the largest growth first. Ops that are new do not count."""
    found = []
    for case, kinds in now.items():
        for kind, instructions in kinds.items():
            known = before.get(case, {}).get(kind, instructions)
            if abs(instructions - known) > max(tolerance * known, SLACK):
                found.append(Change(isa, case, kind, known, instructions))
    return sorted(found, key=lambda change: -change.ratio)


def check(isas: Sequence[str], table: Path, tolerance: float, update: bool) -> int:
    """Count, compare, say what changed; returns the exit status. With ``update`` the table is rewritten instead."""
    held = json.loads(table.read_text()) if table.exists() else {"compiler": _native.COMPILER, "counts": {}}
    if held["compiler"] != _native.COMPILER and not update:
        print(f"{table.name} was made with {held['compiler']}, this build with {_native.COMPILER}: nothing to compare")
        return 0
    if held["compiler"] != _native.COMPILER:
        held = {"compiler": _native.COMPILER, "counts": {}}
    found: list[Change] = []
    for isa in isas:
        if reason := why_not(isa):
            print(f"{isa}: not counted, {reason}")
            continue
        progress(f"counting {isa}")
        now = count(isa)
        found += changes(isa, held["counts"].get(isa, {}), now, tolerance)
        new = sum(kind not in held["counts"].get(isa, {}).get(case, {}) for case, kinds in now.items() for kind in kinds)
        print(f"{isa}: {sum(map(len, now.values()))} ops counted" + (f", {new} of them for the first time" if new else ""))
        held["counts"][isa] = now
    for change in found:
        print(change)
    if update:
        table.write_text(as_text(held))
        return 0
    grown = sum(change.ratio > 1 for change in found)
    print(
        f"{grown} grew, {len(found) - grown} shrank beyond {tolerance:.0%}"
        + ("; make the table anew with --update" if found else "")
    )
    return int(grown > 0)


def as_text(held: dict[str, Any]) -> str:
    """JSON with a step per line, so that a change shows what it changed."""
    isas = []
    for isa, counts in sorted(held["counts"].items()):
        lines = ",\n".join(f"      {json.dumps(case)}: {json.dumps(kinds)}" for case, kinds in counts.items())
        isas.append(f'    "{isa}": {{\n{lines}\n    }}')
    return f'{{\n  "compiler": "{held["compiler"]}",\n  "counts": {{\n' + ",\n".join(isas) + "\n  }\n}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare the kernels' instruction counts with the table's.")
    parser.add_argument("--isa", default="avx512,avx2,portable", help="instruction sets, comma-separated")
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, help="growth that is let pass (default: %(default)s)")
    parser.add_argument("--update", action="store_true", help="rewrite the table")
    options = parser.parse_args(arguments)
    return check(options.isa.split(","), options.table, options.tolerance, options.update)


if __name__ == "__main__":
    sys.exit(main())
