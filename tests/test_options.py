"""Flags from config dataclasses, and the verbs."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from typing import Any

import pytest

from forno import __version__
from forno.__main__ import VERBS, main, parser
from forno.config import CacheConfig, CpuConfig, ModelConfig, SchedulerConfig, ServerConfig, option
from forno.errors import ConfigError
from forno.options import Parser, add_options, flag, from_args, from_options, refuse_unknown

CONFIGS = (ModelConfig, CpuConfig, CacheConfig, SchedulerConfig, ServerConfig)


@dataclass(frozen=True)
class Sample:
    """A sample. More words."""

    some_number: int = option(3, "100% a number.")
    some_switch: bool = option(True, "A switch.")
    some_choice: str = option("a", "A choice.", choices=("a", "b"))


def parse(*argv: str) -> Sample:
    root = Parser(prog="x")
    add_options(root, Sample)
    return from_args(Sample, root.parse_args(argv))


def test_a_field_is_a_flag() -> None:
    assert parse() == Sample()
    assert parse("--some-number", "4", "--no-some-switch", "--some-choice=b") == Sample(4, False, "b")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--some-numbr", "4"], "unknown option --some-numbr; did you mean --some-number?"),
        (["--some-num", "4"], "unknown option --some-num; did you mean"),
        (["--zzzzz=4"], "unknown option --zzzzz\n"),
        (["--some-number", "x"], "invalid int value"),
        (["--some-choice", "c"], "invalid choice"),
    ],
)
def test_what_is_wrong_is_said(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(*argv)
    assert message in capsys.readouterr().err


def test_help_shows_texts_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--help")
    text = capsys.readouterr().out
    assert "100% a number. (default: 3)" in text
    assert "{a,b}" in text


def test_options_by_keyword() -> None:
    options: dict[str, Any] = {"some_number": 5, "other": 1}
    assert from_options(Sample, options) == Sample(some_number=5)
    with pytest.raises(ConfigError, match="unknown option 'other'"):
        refuse_unknown(options, Sample)
    with pytest.raises(ConfigError, match="did you mean some_switch"):
        refuse_unknown({"some_swich": 1}, Sample)


@pytest.mark.parametrize("config", CONFIGS)
def test_every_setting_is_documented_and_reachable(config: type) -> None:
    root = argparse.ArgumentParser()
    add_options(root, config)
    for field in fields(config):
        assert field.metadata["help"].endswith(".")
        assert flag(field.name) in root.format_help()


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main([verb, "--help"])
    assert done.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: forno {verb}")


def test_without_a_verb(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as version:
        main(["--version"])
    assert version.value.code == 0
    assert __version__ in capsys.readouterr().out
    with pytest.raises(SystemExit) as nothing:
        parser().parse_args([])
    assert nothing.value.code == 2
