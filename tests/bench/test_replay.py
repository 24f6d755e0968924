"""Traffic from files: what was written is sent, lengths become text, equal blocks equal text, and times scale."""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from forno.bench.replay import FileWorkload, TraceWorkload
from forno.bench.ruler import Ruler
from forno.bench.workload import Call, Workload
from forno.errors import ConfigError
from forno.options import add_options, from_args

RULER = Ruler(1.0, 3.0)


def write(folder: Path, lines: list[dict[str, Any]]) -> str:
    path = folder / "requests.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return str(path)


def firsts(workload: Workload, count: int, seed: int = 1) -> list[Call]:
    return [conversation.first() for conversation in itertools.islice(workload.conversations(RULER, seed), count)]


def text(call: Call) -> list[str]:
    return call.messages[0]["content"].split()


def mooncake(*requests: tuple[float, int, list[int]]) -> list[dict[str, Any]]:
    return [{"timestamp": at, "input_length": n, "output_length": 9, "hash_ids": ids} for at, n, ids in requests]


def test_equal_hashes_are_equal_blocks_of_text(tmp_path: Path) -> None:
    lines = mooncake((0, 1300, [7, 8, 9]), (1000, 1500, [7, 8, 10]), (2000, 1300, [11, 8, 9]), (3000, 600, [7, 12]))
    first, second, other, short = firsts(TraceWorkload(path=write(tmp_path, lines)), 4)
    assert [len(text(call)) for call in (first, second, other, short)] == [1297, 1497, 1297, 597]
    assert text(first)[:1024] == text(second)[:1024]
    assert text(first)[1024] != text(second)[1024]
    assert text(first)[:512] == text(short)[:512]
    assert text(other)[0] != text(first)[0]
    assert text(other)[512:] == text(first)[512:]  # the same blocks behind another one


def test_what_no_hash_names_is_a_requests_own(tmp_path: Path) -> None:
    calls = firsts(TraceWorkload(path=write(tmp_path, mooncake((0, 1200, [1]), (1, 1200, [1])))), 2)
    assert text(calls[0])[:512] == text(calls[1])[:512]
    assert text(calls[0])[512:] != text(calls[1])[512:]
    assert [len(text(call)) for call in calls] == [1197, 1197]


def test_blocks_have_the_size_that_the_trace_says(tmp_path: Path) -> None:
    path = write(tmp_path, mooncake((0, 60, [1, 2, 3, 4]), (1, 60, [1, 2, 9])))
    first, second = firsts(TraceWorkload(path=path, block_tokens=16), 2)
    assert text(first)[:32] == text(second)[:32]
    assert text(first)[32] != text(second)[32]


def test_times_scale_from_the_first_request_in_any_order(tmp_path: Path) -> None:
    path = write(tmp_path, mooncake((9000, 10, []), (5000, 20, []), (6000, 30, [])))
    assert [(call.at, len(text(call))) for call in firsts(TraceWorkload(path=path, speed=2), 3)] == [(0, 17), (0.5, 27), (2, 7)]


def test_cuts_and_limits(tmp_path: Path) -> None:
    path = write(tmp_path, mooncake((0, 5000, [1]), (1, 50, []), (2, 50, [])))
    calls = firsts(TraceWorkload(path=path, limit=2, max_input_tokens=100, max_output_tokens=4), 9)
    assert [len(text(call)) for call in calls] == [97, 47]
    assert [call.max_tokens for call in calls] == [4, 4]


def test_azure_traces_replay(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,374,44\n2023-11-16 18:15:50.5,396,109\n")
    calls = firsts(TraceWorkload(path=str(path)), 9)
    assert [(call.at, len(text(call)), call.max_tokens) for call in calls] == [(0, 371, 44), (4.5, 393, 109)]
    assert text(calls[0])[:9] != text(calls[1])[:9]


def test_a_recorded_session_is_sent_in_order_and_its_lengths_share_a_prefix(tmp_path: Path) -> None:
    lines = [{"at": at, "input_tokens": n, "session": name} for at, n, name in [(0, 30, "a"), (1, 40, "b"), (2, 50, "a")]]
    a, b = TraceWorkload(path=write(tmp_path, lines), max_tokens=5).conversations(RULER, 1)
    first, second = a.first(), a.next("Whatever.")
    assert second is not None
    assert (first.at, second.at, a.next("No more.")) == (0, 2, None)
    assert text(second)[: len(text(first))] == text(first)
    assert (b.first().at, b.next("x"), b.session) == (1, None, 1)
    assert first.max_tokens == 5


def test_a_file_is_sent_as_it_is_written_again_and_again(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    lines: list[dict[str, Any]] = [{"messages": messages, "max_tokens": 3, "body": {"top_p": 0.5}}, {"prompt": "P", "at": 4.0}]
    workload = FileWorkload(path=write(tmp_path, lines), max_tokens=8)
    calls = firsts(workload, 4)
    assert calls[0] == Call(3, tuple(messages), extra={"top_p": 0.5})
    assert calls[1] == Call(8, prompt="P")
    assert calls[2:] == calls[:2]
    assert [c.session for c in itertools.islice(workload.conversations(RULER, 1), 4)] == [0, 1, 2, 3]
    assert len(list(FileWorkload(path=workload.path, repeat=False).conversations(RULER, 1))) == 2


def test_a_files_order_can_be_random_and_is_the_seeds(tmp_path: Path) -> None:
    workload = FileWorkload(path=write(tmp_path, [{"prompt": str(i)} for i in range(20)]), in_order=False)
    orders = [[call.prompt for call in firsts(workload, 40, seed)] for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert orders[0][:20] != orders[0][20:]
    assert sorted(orders[0][:20], key=lambda prompt: int(prompt or "")) == [str(i) for i in range(20)]


@pytest.mark.parametrize("kind", [FileWorkload, TraceWorkload])
def test_parameters_are_options_and_say_how_to_make_it_again(tmp_path: Path, kind: type[Any]) -> None:
    parser = argparse.ArgumentParser()
    add_options(parser, kind)
    workload = from_args(kind, parser.parse_args(["--path", write(tmp_path, [{"prompt": "a"}])]))
    params = workload.params()
    assert params.pop("name") == kind.name
    assert kind(**params) == workload


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        (FileWorkload, {"path": ""}, "--path"),
        (FileWorkload, {"path": "/nowhere"}, "no file /nowhere"),
        (FileWorkload, {"limit": -1}, "--limit"),
        (FileWorkload, {"max_tokens": 0}, "--max-tokens"),
        (TraceWorkload, {"speed": 0.0}, "--speed"),
        (TraceWorkload, {"speed": float("nan")}, "--speed"),
        (TraceWorkload, {"block_tokens": 0}, "--block-tokens"),
    ],
)
def test_parameters_that_cannot_be_honoured(tmp_path: Path, kind: type[Any], options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        kind(**{"path": write(tmp_path, [{"prompt": "a"}])} | options)


def test_a_trace_without_times_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="without a time"):
        next(TraceWorkload(path=write(tmp_path, [{"prompt": "a"}])).conversations(RULER, 1))
