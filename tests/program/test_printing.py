"""What people and scripts read about a program."""

from __future__ import annotations

import json

import pytest

from forno.models import build_program
from forno.program.passes import apply
from forno.program.printing import describe, format_program, format_totals, quantity, sections
from forno.program.shape import Cost, StepShape
from tests.helpers.models import CONFIGS

SHAPE = StepShape.decode(2, 10)


def test_equal_layers_are_folded() -> None:
    program = apply(build_program({**CONFIGS["llama"], "num_hidden_layers": 5}))
    assert [s.layers for s in sections(program)] == [(), (0, 1, 2, 3), (4,), ()]  # the last one ends with fewer rows
    assert sum(len(s.ops) * max(len(s.layers), 1) for s in sections(program)) == len(program.ops)


def test_layers_that_differ_in_a_format_or_window_stay_apart() -> None:
    program = build_program({**CONFIGS["qwen2-window"], "num_hidden_layers": 4})
    assert [s.layers for s in sections(program)] == [(), (0,), (1, 2, 3), ()]
    mixed = program.with_formats({"model.layers.2.mlp.down_proj.weight": "q8_0"})
    titles = [s.title for s in sections(mixed) if s.layers]
    assert titles == ["layer 0", "layers 1, 3", "layer 2"]


@pytest.mark.parametrize("name", CONFIGS)
def test_columns_line_up(name: str) -> None:
    text = format_program(apply(build_program(CONFIGS[name])), SHAPE).splitlines()
    header, rows = text[0], [line for line in text[1:] if line.startswith("  ")]
    for column in ("op", "reads", "shape", "type"):
        at = header.index(f"  {column} ") + 2
        assert all(line[at - 1] == " " and (line[at] != " " or "->" in line) for line in rows), column
    assert all(len(line) == len(header) for line in rows)  # the last column is right-aligned


def test_descriptions_are_json_and_add_up() -> None:
    program = apply(build_program(CONFIGS["qwen3"]))
    described = json.loads(json.dumps(describe(program, SHAPE)))
    assert [op["op"] for op in described["ops"]] == [type(op).__name__ for op in program.ops]
    for part, total in described["total"].items():
        assert total == pytest.approx(sum(op["cost"][part] for op in described["ops"]))
    assert described["passes"] == list(program.passes)


def test_totals_name_units_and_intensity() -> None:
    text = format_totals(Cost(int8=2e9, fp32=5e5, weight_bytes=4e6, kv_bytes=1000))
    assert (
        text == "2.00 GFLOP (int8 2.00 G, fp32 500 k), 4.00 MB (weight 4.00 MB, KV 1.00 kB), arithmetic intensity 500.00 FLOP/B"
    )


@pytest.mark.parametrize(
    ("x", "text"),
    [(0, "0 "), (7, "7 "), (999.4, "999 "), (999.9, "1.00 k"), (1234, "1.23 k"), (99.96e6, "100 M"), (5e15, "5000 T")],
)
def test_quantities_have_three_digits(x: float, text: str) -> None:
    assert quantity(x) == text
