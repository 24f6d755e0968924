"""``forno batch``: every line answered once, whatever interrupts it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from forno.__main__ import main
from tests.helpers.safetensors_writer import write_tiny_directory
from tests.helpers.tiny import TinyModel

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_directory(tmp_path_factory.mktemp("models") / "tiny", TinyModel())


def line(id: str, url: str = CHAT, **body: Any) -> dict[str, Any]:
    base = {"messages": [{"role": "user", "content": "Hi"}]} if url == CHAT else {"prompt": "the"}
    return {"custom_id": id, "method": "POST", "url": url, "body": {"model": "tiny", **base, **body}}


def write(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines))
    return path


def results(path: Path) -> dict[str, dict[str, Any]]:
    """The records by id; no line may be broken, and no id come twice."""
    records = [json.loads(text) for text in path.read_bytes().splitlines()]
    found = {r["custom_id"]: r for r in records}
    assert len(found) == len(records)
    return found


def batch(model: Path, source: Path, output: Path, *options: str) -> int:
    return main(["batch", str(source), str(output), "--model", str(model), "--threads", "1", *options])


def command(model: Path, source: Path, output: Path, *options: str) -> list[str]:
    arguments = ["batch", str(source), str(output), "--model", str(model), "--threads", "1", *options]
    return [sys.executable, "-m", "forno", *arguments]


def test_both_endpoints_and_their_errors(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(
        tmp_path / "in.jsonl",
        [
            line("a", max_tokens=3),
            "",
            line("b", "/v1/completions", max_tokens=3, n=2),
            line("c", temperature=-1),
            line("d", bogus=1),
            line("e", stream=True),
            line("f", model="gpt-5"),
            line("g", max_tokens=100_000),
        ],
    )
    assert batch(model, source, tmp_path / "out.jsonl", "--json") == 1
    summary = json.loads(capsys.readouterr().out)
    assert summary == {"total": 7, "skipped": 0, "ok": 2, "failed": 5, "output": str(tmp_path / "out.jsonl")}
    found = results(tmp_path / "out.jsonl")
    assert {k: r["response"]["status_code"] for k, r in found.items()} == {
        "a": 200,
        "b": 200,
        "c": 400,
        "d": 400,
        "e": 400,
        "f": 404,
        "g": 400,
    }
    assert found["a"]["response"]["body"]["choices"][0]["message"]["role"] == "assistant"
    assert len(found["b"]["response"]["body"]["choices"]) == 2
    assert found["d"]["response"]["body"]["error"]["param"] == "bogus"


def test_answers_are_those_of_a_seed(model: Path, tmp_path: Path) -> None:
    lines = [line(str(i), seed=i, max_tokens=20) for i in range(8)]
    texts = []
    for name, width in (("wide", "8"), ("narrow", "1")):
        assert batch(model, write(tmp_path / "in.jsonl", lines), tmp_path / name, "--concurrency", width) == 0
        texts.append({k: r["response"]["body"]["choices"][0]["message"] for k, r in results(tmp_path / name).items()})
    assert texts[0] == texts[1]


def test_a_finished_batch_is_not_run_again(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = write(tmp_path / "in.jsonl", [line("a", max_tokens=1)]), tmp_path / "out.jsonl"
    assert batch(model, source, output) == 0
    before = output.read_bytes()
    assert batch(Path("/no/model/needed"), source, output, "--json") == 0
    assert json.loads(capsys.readouterr().out)["skipped"] == 1
    assert output.read_bytes() == before


def test_a_kill_loses_and_repeats_nothing(model: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", [line(str(i), max_tokens=400, ignore_eos=True) for i in range(40)])
    output = tmp_path / "out.jsonl"
    process = subprocess.Popen(command(model, source, output, "--concurrency", "2"), stderr=subprocess.DEVNULL)
    end = time.monotonic() + 60
    while not output.exists() or output.read_bytes().count(b"\n") < 5:
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.005)
    process.kill()
    process.wait()
    done = output.read_bytes().count(b"\n")
    assert 5 <= done < 40
    kept = output.read_bytes()
    assert batch(model, source, output) == 0
    assert output.read_bytes().startswith(kept[: kept.rindex(b"\n") + 1])
    assert set(results(output)) == {str(i) for i in range(40)}


@pytest.mark.parametrize("cut", [1, 10, 30, 200])
def test_a_line_cut_short_is_computed_again(model: Path, tmp_path: Path, cut: int) -> None:
    source = write(tmp_path / "in.jsonl", [line("a", max_tokens=1), line("b", max_tokens=1)])
    output = tmp_path / "out.jsonl"
    assert batch(model, source, output, "--concurrency", "1") == 0
    whole = output.read_bytes()
    first = whole.index(b"\n") + 1
    output.write_bytes(whole[: first + cut])
    assert batch(model, source, output) == 0
    assert output.read_bytes()[:first] == whole[:first]
    assert set(results(output)) == {"a", "b"}


@pytest.mark.parametrize(
    "content",
    [
        "notes",
        "notes\n",
        "{}\n",
        '{"custom_id": "a"}\n',
        "\n",
        json.dumps(line("a")) + "\n",
        '{"id":"batch_req_a"}\n{"id":"batch',
    ],
)
def test_a_file_that_is_not_ours_is_left_alone(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    output = tmp_path / "precious"
    output.write_text(content)
    assert batch(model, write(tmp_path / "in.jsonl", [line("a")]), output) == 1
    assert "is no batch output" in capsys.readouterr().err
    assert output.read_text() == content


def test_the_input_is_never_the_output(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "in.jsonl", [line("a")])
    assert batch(model, source, source) == 1
    assert "is the input" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["{"], "line 1"),
        ([line("a"), "[]"], "line 2"),
        ([{"custom_id": "a", "url": CHAT}], "body"),
        ([{**line("a"), "extra": 1}], "extra"),
        ([{**line("a"), "method": "GET"}], "GET"),
        ([{**line("a"), "url": "/v1/embeddings"}], "/v1/embeddings"),
        ([line("a"), line("a")], "used before"),
        (["\udcff"], "line 1"),
    ],
)
def test_malformed_lines_are_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: list[Any], message: str
) -> None:
    raw = "".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines)
    (tmp_path / "in.jsonl").write_bytes(raw.encode("utf-8", "surrogateescape"))
    assert batch(Path("/no/model/needed"), tmp_path / "in.jsonl", tmp_path / "out.jsonl") == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out.jsonl").exists()


def test_a_missing_input_and_an_impossible_width(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert batch(Path("x"), tmp_path / "none", tmp_path / "out") == 1
    assert "cannot read" in capsys.readouterr().err
    assert batch(Path("x"), tmp_path / "none", tmp_path / "out", "--concurrency", "-1") == 1
    assert "--concurrency" in capsys.readouterr().err


def test_a_full_disk_is_an_error_and_can_be_continued(model: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", [line(str(i), max_tokens=30, ignore_eos=True) for i in range(40)])
    output = tmp_path / "out.jsonl"
    limited = ["bash", "-c", 'ulimit -f 8; exec "$@"', "bash", *command(model, source, output, "--concurrency", "3")]
    done = subprocess.run(limited, capture_output=True, text=True)
    assert done.returncode == 1
    assert "cannot write" in done.stderr
    assert "Traceback" not in done.stderr
    assert batch(model, source, output) == 0
    assert set(results(output)) == {str(i) for i in range(40)}


def test_a_device_without_room(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert batch(model, write(tmp_path / "in.jsonl", [line("a", max_tokens=1)]), Path("/dev/full")) == 1
    assert "No space left" in capsys.readouterr().err
