"""What clients name their requests does nothing to the terminal of whoever looks at them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forno.__main__ import main
from forno.tools import explain
from forno.tools.plain import REPLACEMENT, plain
from forno.tools.watch import Watch
from tests.helpers.pages import serving
from tests.tools import fake_state
from tests.tools.test_explain import request
from tests.tools.test_panels import drawn

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)
ODD = ["\x1b[2J", "\x9b31m", "a\nb", "\u202eabc", "\x00", "\r"]
"""Escape sequences, lines, a change of direction."""


def strings(value: Any) -> list[str]:
    """All in a JSON value."""
    if isinstance(value, dict):
        return [*value, *(s for item in value.values() for s in strings(item))]
    if isinstance(value, list):
        return [s for item in value for s in strings(item)]
    return [value] if isinstance(value, str) else []


@given(st.text())
def test_nothing_but_what_a_terminal_acts_upon_is_replaced(text: str) -> None:
    assert plain(text) == "".join(c if c.isprintable() else REPLACEMENT for c in text)


@given(JSON)
def test_it_is_found_wherever_it_is(value: Any) -> None:
    assert all(s.isprintable() for s in strings(plain(value)))
    if all(s.isprintable() for s in strings(value)):
        assert plain(value) == value


@pytest.mark.parametrize("id", [*ODD, "[/x]", "[bold]y", "\\[z"])
def test_top_shows_any_id(id: str) -> None:
    state = fake_state.state(running=2, waiting=1)
    state["requests"][0]["id"] = id
    with serving(fake_state.pages(state, fake_state.metrics())) as pages:
        shown = Watch(pages.url).ask(0.0).raw
    assert shown["requests"][0]["id"] == id, "--json has what the server said"
    lines = drawn(plain(state))
    assert all(line.isprintable() for line in lines)
    assert any(plain(id) in line for line in lines)


@pytest.mark.parametrize("id", ODD)
def test_explain_shows_any_id(id: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = {"id": id, "model": "m", "requests": [request(id=id, parts=[{**request()["parts"][0], "by": {id: 1.0}}])]}
    monkeypatch.setattr(explain, "ask", lambda url, key: found)
    assert main(["explain", "x"]) == 0
    assert all(line.isprintable() for line in capsys.readouterr().out.split("\n"))
