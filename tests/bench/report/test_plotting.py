"""Figures are SVG that can stand in a page beside others."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest

from forno.bench.report import plotting
from forno.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def paint(figure: Figure) -> None:
    axis = figure.add_subplot()
    axis.plot([1, 1000], [1, 2])
    axis.set_xlabel("$\\alpha$ <b>&amp;</b>")
    axis.set_xlim(1, 1000)
    plotting.logarithmic(axis, "x")
    plotting.plain(axis, "y")


def test_an_element_without_size_comments_or_metadata() -> None:
    text = plotting.draw(paint, name="n")
    root = ET.fromstring(text)
    assert root.tag.endswith("svg")
    assert {"viewBox"} <= root.attrib.keys()
    assert not {"width", "height"} & root.attrib.keys()
    assert "<!--" not in text
    assert "metadata" not in text
    assert "$\\alpha$ &lt;b&gt;&amp;amp;&lt;/b&gt;" in text
    assert re.findall(r">(1|10|100|1,000)</text>", text)


def test_ids_are_the_figures_own_and_only_those_used() -> None:
    one, two = plotting.draw(paint, name="one"), plotting.draw(paint, name="two")
    ids = [set(re.findall(r' id="([^"]+)"', text)) for text in (one, two)]
    assert ids[0]
    assert not ids[0] & ids[1]
    used = set(re.findall(r'(?:href="#|url\(#)([\w.-]+)', one))
    assert used == ids[0]


def test_the_same_figure_is_the_same_text() -> None:
    assert plotting.draw(paint, name="n") == plotting.draw(paint, name="n")


def test_colours_of_ordered_things_get_lighter() -> None:
    colors = plotting.sequence(5)
    light = [sum(int(c[i : i + 2], 16) * w for i, w in ((1, 0.3), (3, 0.59), (5, 0.11))) for c in colors]
    assert light == sorted(light)
    assert plotting.sequence(1) == [plotting.PALETTE[0]]


def test_ticks_and_dashes() -> None:
    assert [plotting.tick(v) for v in (0.5, 20, 1000, 2e6)] == ["0.5", "20", "1,000", "2,000,000"]
    assert plotting.dash("6 3") == (0, (6.0, 3.0))
    assert plotting.dash("") == "-"


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r'pip install "forno\[bench\]"'):
        plotting.draw(paint)
