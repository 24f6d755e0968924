"""What each load generator is told, and how its report is read: samples of their reports, cut to what is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import clients
from benchmarks.clients import FornoBench, Load, LoadGen, Question
from benchmarks.peers import aiperf, guidellm
from benchmarks.peers.aiperf import AiPerf
from benchmarks.peers.guidellm import GuideLlm

LOAD = Load("http://127.0.0.1:9", "m", (Question("one", 3), Question("two", 5)), clients=2)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def following(command: list[str], flag: str) -> str:
    return command[command.index(flag) + 1]


def test_forno_bench_and_loadgen_send_the_same_file(tmp_path: Path) -> None:
    ours, theirs = FornoBench().command(LOAD, tmp_path), LoadGen().command(LOAD, tmp_path)
    assert following(ours, "--path") == following(theirs, "--prompts")
    assert (following(ours, "--concurrency"), following(theirs, "-c")) == ("2", "2")
    assert "--no-repeat" in ours
    assert lines(Path(following(ours, "--path"))) == [
        {"messages": [{"role": "user", "content": "one"}], "max_tokens": 3},
        {"messages": [{"role": "user", "content": "two"}], "max_tokens": 5},
    ]


def test_forno_bench_is_read_request_by_request(tmp_path: Path) -> None:
    first = {"sent": 0.0, "first": 0.1, "last": 0.3, "output_tokens": 3, "error": None}
    second = {"sent": 0.1, "first": 0.4, "last": 0.6, "output_tokens": 5, "error": None}
    broken = {"sent": 0.0, "first": None, "last": None, "output_tokens": 0, "error": "no"}
    summary = {"output_tokens_per_s": 9.0, "ttft_ms": {"p50": 99.0}}
    (tmp_path / clients.REPORT).write_text(json.dumps({"runs": [{"requests": [first, second, broken], "summary": summary}]}))
    said = FornoBench().read(LOAD, tmp_path, "")
    assert said.completed == 2
    assert said.ttft_ms == pytest.approx(200)
    assert said.tpot_ms == pytest.approx((100 + 50) / 2)
    assert said.tok_s == pytest.approx(8 / 0.6)


def test_loadgen_is_read_from_its_line() -> None:
    line = {"err": 1, "ttft_mean": 12.5, "tpot_mean": 3.125, "out_tok_s": 80.0, "itl_p50": 3.1}
    said = LoadGen().read(LOAD, Path(), f"something\n{json.dumps(line)}\n")
    assert (said.completed, said.ttft_ms, said.tpot_ms, said.tok_s) == (1, 12.5, 3.125, 80.0)


def test_guidellm(tmp_path: Path) -> None:
    command = GuideLlm(tmp_path).command(LOAD, tmp_path)
    assert lines(tmp_path / "guidellm.jsonl")[1] == {"prompt": "two", "output_tokens_count": 5}
    assert json.loads(following(command, "--profile")) == {"kind": "concurrent", "streams": [2]}
    assert json.loads(following(command, "--constraint"))["count"] == 2
    names = ("time_to_first_token_ms", "inter_token_latency_ms", "time_per_output_token_ms", "output_tokens_per_second")
    metrics = {name: {"successful": {"mean": float(value)}} for value, name in enumerate(names, 5)}
    requests = [
        {
            "output_tokens": tokens,
            "inter_token_latency_ms": tpot,
            "info": {"timings": {"request_start": start, "last_token_iteration": end}},
        }
        for tokens, tpot, start, end in ((3, 4.0, 10.0, 11.0), (5, 8.0, 10.5, 12.0))
    ]
    report = {"benchmarks": [{"metrics": metrics, "requests": {"successful": requests}}]}
    (tmp_path / guidellm.REPORT).write_text(json.dumps(report))
    said = GuideLlm(tmp_path).read(LOAD, tmp_path, "")
    assert (said.completed, said.ttft_ms, said.tpot_ms, said.tok_s) == (2, 5.0, 6.0, 4.0)
    assert said.own == {"inter-token latency ms": 6.0, "time per output token ms": 7.0, "output tok/s": 8.0}


def test_aiperf(tmp_path: Path) -> None:
    command = AiPerf(tmp_path).command(LOAD, tmp_path)
    assert lines(tmp_path / "aiperf.jsonl")[0] == {"text": "one", "output_length": 3}
    assert (following(command, "--concurrency"), following(command, "--request-count")) == ("2", "2")
    assert {"--streaming", "--use-server-token-count"} <= set(command)
    names = ("request_count", "time_to_first_token", "inter_token_latency", "output_token_throughput", "time_to_second_token")
    (tmp_path / "aiperf").mkdir()
    (tmp_path / "aiperf" / aiperf.REPORT).write_text(json.dumps({name: {"avg": float(i)} for i, name in enumerate(names, 2)}))
    said = AiPerf(tmp_path).read(LOAD, tmp_path, "")
    assert (said.completed, said.ttft_ms, said.tpot_ms, said.tok_s) == (2, 3.0, 4.0, 5.0)
    (tmp_path / "aiperf" / aiperf.REPORT).write_text("{}")
    with pytest.raises(LookupError):
        AiPerf(tmp_path).read(LOAD, tmp_path, "")
