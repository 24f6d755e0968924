"""One command line for all workloads' knobs."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

import pytest

from forno.bench.workload import Workload
from forno.bench.workloads import WORKLOADS
from forno.errors import ConfigError
from forno.options import flag
from forno.tools.bench import knobs

MADE = [name for name in WORKLOADS if name not in ("file", "trace")]


def parsed(*words: str) -> Workload:
    parser = argparse.ArgumentParser()
    knobs.add_options(parser)
    return knobs.workload_of(parser.parse_args(words))


@pytest.mark.parametrize("name", MADE)
def test_without_options_a_workload_has_its_own_defaults(name: str) -> None:
    assert parsed("--workload", name) == WORKLOADS[name]()


def test_every_knob_is_an_option_and_names_its_workloads() -> None:
    parser = argparse.ArgumentParser()
    knobs.add_options(parser)
    helps = {option: action.help or "" for action in parser._actions for option in action.option_strings}
    for name, kind in WORKLOADS.items():
        for knob in fields(kind):
            assert name in helps[flag(knob.name)].split(":")[0]


def test_a_shared_knob_goes_to_the_chosen_workload(tmp_path: Path) -> None:
    assert parsed("--workload", "long", "--max-tokens", "7").params()["max_tokens"] == "7"
    path = tmp_path / "f.jsonl"
    path.write_text("")
    file = parsed("--workload", "file", "--path", str(path), "--max-tokens", "7", "--no-repeat", "--limit", "3").params()
    assert (file["max_tokens"], file["repeat"], file["limit"], file["in_order"]) == (7, False, 3, True)


def test_a_near_knob_is_named() -> None:
    with pytest.raises(ConfigError, match="--turns is no option of the workload chat"):
        parsed("--turns", "3")
    with pytest.raises(ConfigError, match="--max-input-tokens is no option of the workload chat; did you mean --input-tokens"):
        parsed("--max-input-tokens", "3")
