"""Reading result files, which may be anybody's: a file is either a ``Result`` that the rest can rely on, or a named error."""

from __future__ import annotations

from math import isfinite
from pathlib import Path

import msgspec

from forno.bench.measures import SLO_METRICS
from forno.bench.records import SCHEMA_VERSION, Distribution, LoadSample, RequestRecord, Result, Run, Summary
from forno.errors import ResultError

MAX_BYTES = 512 << 20
"""Larger files are refused: a million requests of 100 chunks come to about that."""
MAX_SECONDS = 1e8
"""No time or duration is longer: three years."""
MAX_COUNT = 1 << 40
"""No count of tokens or rate is larger."""


class _Version(msgspec.Struct):
    schema_version: int
    runs: msgspec.Raw


def read_result(path: str | Path, limit: int = MAX_BYTES) -> Result:
    """The result in a file. Raises ``ResultError`` that says what is wrong with it and where."""
    path = Path(path)
    data = _bytes_of(path, limit)
    try:
        version = msgspec.json.decode(data, type=_Version).schema_version
        if version != SCHEMA_VERSION:
            advice = "update forno to read it" if version > SCHEMA_VERSION else "measure again"
            raise ResultError(f"{path} has schema version {version}, this forno reads {SCHEMA_VERSION}: {advice}")
        result = msgspec.json.decode(data, type=Result)
        check(result)
    except msgspec.ValidationError as error:
        raise ResultError(f"{path} is not a result of `forno bench`: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ResultError(f"{path} is not valid JSON ({error}); was it cut off, or is it another file?") from None
    except _BadValue as error:
        raise ResultError(f"{path} holds values that no run has: {error}") from None
    return result


def _bytes_of(path: Path, limit: int) -> bytes:
    try:
        if not path.is_file():
            raise ResultError(
                f"{path} is {'no file' if path.exists() else 'not there'}; give a file that `forno bench --output FILE` wrote"
            )
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except (OSError, ValueError) as error:
        raise ResultError(f"cannot read {path}: {error}") from None
    if len(data) > limit:
        raise ResultError(f"{path} is larger than {limit >> 20} MiB, more than a result file holds")
    if not data.strip():
        raise ResultError(f"{path} is empty; was the benchmark interrupted?")
    return data


class _BadValue(Exception):
    """A value that is out of range, and where."""


def check(result: Result) -> None:
    """What types do not say: numbers are finite and within reason, and limits are of known metrics."""
    if not result.runs:
        raise _BadValue("no runs")
    for metric, limit in result.slo.items():
        if metric not in SLO_METRICS:
            raise _BadValue(f"slo names {metric[:40]!r}, known are {', '.join(SLO_METRICS)}")
        _within(f"slo.{metric}", limit, 0, 1e3 * MAX_SECONDS)
    for i, run in enumerate(result.runs):
        _check_run(run, f"runs[{i}]")


def _check_run(run: Run, where: str) -> None:
    _within(f"{where}.value", run.value, 0, MAX_COUNT)
    for end in run.window:
        _within(f"{where}.window", end, -MAX_SECONDS, MAX_SECONDS)
    _check_summary(run.summary, f"{where}.summary")
    for i, stage in enumerate(run.stages):
        for name in ("stage", "value", "start", "end"):
            _within(f"{where}.stages[{i}].{name}", getattr(stage, name), -MAX_SECONDS, MAX_COUNT)
        _check_summary(stage.summary, f"{where}.stages[{i}].summary")
    for i, request in enumerate(run.requests):
        _check_request(request, f"{where}.requests[{i}]")
    for i, sample in enumerate(run.samples):
        _check_sample(sample, f"{where}.samples[{i}]")


def _check_summary(summary: Summary, where: str) -> None:
    for name in summary.__struct_fields__:
        value = getattr(summary, name)
        if isinstance(value, Distribution):
            for field in value.__struct_fields__:
                _within(f"{where}.{name}.{field}", getattr(value, field), -1e3 * MAX_SECONDS, 1e3 * MAX_SECONDS)
        elif isinstance(value, int | float):
            _within(f"{where}.{name}", value, 0, MAX_COUNT)
    for kind, count in summary.errors.items():
        _within(f"{where}.errors.{kind[:40]}", count, 0, MAX_COUNT)


def _check_request(r: RequestRecord, where: str) -> None:
    for name in ("scheduled", "sent", "first", "last", "ended", "queue_seconds"):
        if (value := getattr(r, name)) is not None:
            _within(f"{where}.{name}", value, -MAX_SECONDS, MAX_SECONDS)
    for name in ("prompt_tokens", "cached_tokens", "output_tokens"):
        _within(f"{where}.{name}", getattr(r, name), 0, MAX_COUNT)
    for name in ("index", "session", "turn", "stage"):
        _within(f"{where}.{name}", getattr(r, name), -1, MAX_COUNT)
    if r.gaps:
        _within(f"{where}.gaps", min(r.gaps), 0, MAX_SECONDS)
        _within(f"{where}.gaps", max(r.gaps), 0, MAX_SECONDS)
    if r.chunk_tokens:
        _within(f"{where}.chunk_tokens", min(r.chunk_tokens), 0, MAX_COUNT)
        _within(f"{where}.chunk_tokens", max(r.chunk_tokens), 0, MAX_COUNT)


def _check_sample(sample: LoadSample, where: str) -> None:
    _within(f"{where}.time", sample.time, -MAX_SECONDS, MAX_SECONDS)
    for name in ("in_flight", "running", "waiting", "kv_usage"):
        if (value := getattr(sample, name)) is not None:
            _within(f"{where}.{name}", value, 0, MAX_COUNT)


def _within(where: str, value: float, low: float, high: float) -> None:
    if not (isfinite(value) and low <= value <= high):
        raise _BadValue(f"{where} is {value!r}")
