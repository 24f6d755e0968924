"""Figures as SVG inside a page: one style, colours that the colour-blind tell apart, no text that can be more than text.

It knows matplotlib, no metric. A unit of a figure is a CSS pixel at its natural size; the page scales it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from io import StringIO
from itertools import count
from typing import TYPE_CHECKING, Any

from forno.bench.extra import need

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 460, 270
WIDE = 940
INK, GRID, MUTED = "#1b1f24", "#d9dee3", "#57606a"
BAD = "#c1121f"
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
"""Okabe and Ito's, the yellow left out."""
DASHES = ("", "6 3", "2 2", "8 3 2 3")
"""Of lines that share a colour."""
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 11,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.linewidth": 1.8,
    "path.simplify_threshold": 0.3,
    "hatch.linewidth": 0.6,
}


def draw(paint: Callable[[Figure], object], width: int = WIDTH, height: int = HEIGHT, name: str = "f") -> str:
    """An SVG element that ``paint`` draws; ``name`` keeps its ids apart from other figures'.

    Raises ``ConfigError`` without matplotlib.
    """
    need("matplotlib", what="a page with plots")
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    style: Any = {**_STYLE, "svg.hashsalt": name}
    with rc_context(style):
        figure = Figure(figsize=(width / 72, height / 72), layout="constrained")
        FigureCanvasSVG(figure)
        paint(figure)
        out = StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(out, format="svg", transparent=True, metadata=nothing)
    return _inline(out.getvalue(), name)


def _inline(document: str, name: str) -> str:
    """The SVG element of a document, with short ids that no other figure has, and sized by the page."""
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", document[document.index("<svg") :], flags=re.DOTALL)
    used = set(re.findall(r'(?:xlink:href="#|url\(#)([\w.-]+)', text))
    short = {old: f"{name}-{i}" for i, old in zip(count(), sorted(used), strict=False)}
    text = re.sub(r'\s+id="([\w.-]+)"', lambda m: f' id="{short[m[1]]}"' if m[1] in short else "", text)
    text = re.sub(r'(xlink:href="#|url\(#)([\w.-]+)', lambda m: m[1] + short[m[2]], text)
    text = re.sub(r"<g>\s*</g>", "", text)
    return re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1), count=1)


def sequence(size: int) -> list[str]:
    """Colours of ordered things, dark to light, told apart in grey too."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    if size == 1:
        return [PALETTE[0]]
    return [to_hex(colormaps["viridis"](0.85 * i / (size - 1))) for i in range(size)]


def logarithmic(axis: Axes, which: str) -> None:
    """A logarithmic axis whose ticks are plain numbers at 1, 2 and 5."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    getattr(axis, f"set_{which}scale")("log")
    line = getattr(axis, f"{which}axis")
    low, high = sorted(getattr(axis, f"get_{which}lim")())
    subs: Sequence[float] = (1.0, 2.0, 5.0) if high / max(low, 1e-12) < 300 else (1.0,)
    line.set_major_locator(LogLocator(10, subs))
    line.set_major_formatter(FuncFormatter(tick))
    line.set_minor_formatter(NullFormatter())


def plain(axis: Axes, *which: str, whole: bool = False) -> None:
    """Linear axes with few ticks and thousands apart; ``whole``: what is counted has no halves."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    for name in which:
        line = getattr(axis, f"{name}axis")
        line.set_major_locator(MaxNLocator(6, integer=whole))
        line.set_major_formatter(FuncFormatter(tick))


def tick(value: float, place: int | None = None) -> str:
    """A tick's label: 20, 0.5, 1,000."""
    return f"{value:,.6g}" if abs(value) < 1e6 else f"{value:,.0f}"


def dash(pattern: str) -> Any:
    """matplotlib's form of an SVG dash pattern."""
    return (0, tuple(float(part) for part in pattern.split())) if pattern else "-"
