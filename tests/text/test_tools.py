from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forno.errors import RequestError
from forno.text.tools import (
    HERMES,
    LLAMA3,
    ToolCallParser,
    ToolForm,
    describe_tools,
    supports_tools,
    tool_constraint,
    tool_form,
)

CALL = '<tool_call>\n{"name": "f", "arguments": {"x": [1, {"y": "}</tool_call>\\""}]}}\n</tool_call>'
ARGUMENTS = '{"x": [1, {"y": "}</tool_call>\\""}]}'
LLAMA = '{"name": "f", "parameters": {"x": "{"}}'
NAMES = ("f", "g")


def parse(form: ToolForm, pieces: list[str], enforced: bool = False) -> tuple[str, list[tuple[str, str]]]:
    """(content, [(name, arguments)]), checking OpenAI's delta format on the way."""
    ids = map(str, itertools.count())
    parser = ToolCallParser(form, NAMES, enforced=enforced, new_id=lambda: next(ids))
    content, calls = "", []
    for delta in [*(parser.add(piece) for piece in pieces), parser.flush()]:
        content += delta.content
        for call in delta.calls:
            if call.name is not None:
                assert (call.index, call.id, call.arguments) == (len(calls), str(len(calls)), "")
                calls.append((call.name, ""))
            else:
                assert call.index == len(calls) - 1
                assert call.id is None
                calls[-1] = (calls[-1][0], calls[-1][1] + call.arguments)
    assert parser.called == bool(calls)
    return content, calls


HERMES_CASES = [
    ("Hello", ("Hello", [])),
    (CALL, ("", [("f", ARGUMENTS)])),
    (f"Let me see.\n{CALL}\n{CALL}\n", ("Let me see.", [("f", ARGUMENTS)] * 2)),
    (f"{CALL} Done. ", (" Done. ", [("f", ARGUMENTS)])),
    ('<tool_call>{"arguments": {"a":1} , "name":"g"}</tool_call>', ("", [("g", '{"a":1}')])),
    ('<tool_call>{"name": "f"}</tool_call>', ("", [("f", "{}")])),
    ('<tool_call>{"name": "f", "arguments": {}}', ("", [("f", "{}")])),  # ended before the closing tag
    ('<tool_call>{"name": "f", "arguments": {}} </tool', ("", [("f", "{}")])),
    ("a < b <tool", ("a < b <tool", [])),
    ("<tool_call>not json</tool_call> ", ("<tool_call>not json</tool_call> ", [])),
    (
        '<tool_call>{"name": "f", "arguments": {"x": }}</tool_call>',
        ('<tool_call>{"name": "f", "arguments": {"x": }}</tool_call>', []),
    ),
    ('<tool_call>{"name": "f", "arguments": "x"}</tool_call>', ('<tool_call>{"name": "f", "arguments": "x"}</tool_call>', [])),
    ('<tool_call>{"name": 3, "arguments": {}}</tool_call>', ('<tool_call>{"name": 3, "arguments": {}}</tool_call>', [])),
    ('<tool_call>{"arguments": {}}</tool_call>', ('<tool_call>{"arguments": {}}</tool_call>', [])),
    (
        '<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>',
        ('<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>', []),
    ),
    ('<tool_call>[{"name": "f"}]</tool_call>', ('<tool_call>[{"name": "f"}]</tool_call>', [])),
    ("<tool_call>{}</tool_call>", ("<tool_call>{}</tool_call>", [])),
    ('<tool_call>{"name": "f", "arguments": {"x": "cut', ('<tool_call>{"name": "f", "arguments": {"x": "cut', [])),
    ('<tool_call>{"name": "f"} and more', ('<tool_call>{"name": "f"} and more', [])),
    (f"<tool_call>bad {CALL}", ("<tool_call>bad", [("f", ARGUMENTS)])),
    ("\n\n Hi  \n", ("\n\n Hi  \n", [])),
    ("", ("", [])),
]

LLAMA_CASES = [
    ("Hello", ("Hello", [])),
    (LLAMA, ("", [("f", '{"x": "{"}')])),
    (f"\n {LLAMA}\n", ("", [("f", '{"x": "{"}')])),
    (f"<|python_tag|>{LLAMA}", ("", [("f", '{"x": "{"}')])),
    (f"{LLAMA}; {LLAMA};", ("", [("f", '{"x": "{"}')] * 2)),
    (f"Sure.<|python_tag|>{LLAMA}", ("Sure.", [("f", '{"x": "{"}')])),
    ('{"type": "function", "name": "g", "parameters": {}}', ("", [("g", "{}")])),
    ('{"name": "other", "parameters": {}}', ('{"name": "other", "parameters": {}}', [])),  # JSON, but no tool of ours
    ('<|python_tag|>{"name": "other", "parameters": {}}', ("", [("other", "{}")])),
    ('{"answer": 42}', ('{"answer": 42}', [])),
    ('{"answer": [', ('{"answer": [', [])),
    (f"Text first: {LLAMA}", (f"Text first: {LLAMA}", [])),
    ("<|python_tag|>print(1)", ("<|python_tag|>print(1)", [])),
    ("<|python", ("<|python", [])),
    (f"{LLAMA} then; text; ", (" then; text; ", [("f", '{"x": "{"}')])),
]


@pytest.mark.parametrize(("text", "expected"), HERMES_CASES)
def test_hermes(text, expected):
    assert parse(HERMES, [text]) == expected
    assert parse(HERMES, list(text)) == expected


@pytest.mark.parametrize(("text", "expected"), LLAMA_CASES)
def test_llama3(text, expected):
    assert parse(LLAMA3, [text]) == expected
    assert parse(LLAMA3, list(text)) == expected


SYMBOLS = ["{", "}", '"', "\\", "[", "]", ";", " ", "\n", "<", ",", ":", "{}", "1", "text"]
TAGS = [CALL, LLAMA, "<tool_call>", "</tool_call>", "<|python_tag|>", "<tool_"]
MEMBERS = ['{"name": "f", ', '"arguments": ', '"parameters": ', '{"name": "f"}']
FRAGMENTS = st.sampled_from([*SYMBOLS, *TAGS, *MEMBERS])


@st.composite
def cut_texts(draw):
    text = "".join(draw(st.lists(FRAGMENTS, max_size=12)))
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return text, [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@settings(max_examples=600)
@given(cut_texts(), st.sampled_from([HERMES, LLAMA3]), st.booleans())
def test_streaming_equals_not_streaming(cut, form, enforced):
    text, pieces = cut
    whole = parse(form, [text], enforced)
    assert parse(form, pieces, enforced) == whole
    assert parse(form, list(text), enforced) == whole


@settings(max_examples=300)
@given(cut_texts(), st.sampled_from([HERMES, LLAMA3]))
def test_nothing_is_lost(cut, form):
    """Without a call, content is the text; with calls, each one's arguments are there as written, and valid."""
    text, pieces = cut
    content, calls = parse(form, pieces)
    if not calls:
        assert content == text
    for _, arguments in calls:
        assert isinstance(json.loads(arguments), dict)
        assert arguments in text or arguments == "{}"
    rest = iter(text)
    assert all(character in rest for character in content)  # in order, none added, none repeated


@pytest.mark.parametrize(("form", "text", "arguments"), [(HERMES, CALL, ARGUMENTS), (LLAMA3, LLAMA, '{"x": "{"}')])
def test_enforced_calls_stream_their_arguments(form, text, arguments):
    parser = ToolCallParser(form, NAMES, enforced=True)
    deltas = [call for character in text for call in parser.add(character).calls]
    assert deltas[0].name == "f"
    assert deltas[0].id.startswith("call_")
    assert [delta.arguments for delta in deltas[1:]] == list(arguments)
    assert parse(form, [text], enforced=True) == ("", [("f", arguments)])
    cut = text[: text.index("x") + 1]
    assert parse(form, [cut], enforced=True) == ("", [("f", '{"x')])  # out of tokens: what there is, as OpenAI does


def test_an_unclosed_call_costs_linear_time():
    text = '<tool_call>{"' * 20_000
    assert parse(HERMES, [text]) == (text, [])


def test_deep_json_is_content_not_a_crash():
    text = '<tool_call>{"name": "f", "arguments": {"a": ' + "[" * 100_000 + "]" * 100_000 + "}}</tool_call>"
    assert parse(HERMES, [text]) == (text, [])


def test_form_by_template():
    assert tool_form("... <tool_call> ...") is HERMES
    assert tool_form('{"name": ..., "parameters": ...} <|python_tag|>') is LLAMA3
    assert tool_form("{{ messages }}") is HERMES
    assert supports_tools("{% if tools %}")
    assert not supports_tools("{{ messages }}")


TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}},
    {"type": "function", "function": {"name": "g"}},
]


def test_tools_can_be_described_to_a_template_that_ignores_them():
    user = {"role": "user", "content": "Hi"}
    described = describe_tools([user], TOOLS)
    assert [message["role"] for message in described] == ["system", "user"]
    assert '"name": "g"' in described[0]["content"]
    kept = describe_tools([{"role": "system", "content": "Be brief."}, user], TOOLS)
    assert kept[0]["content"].startswith("Be brief.\n\n")
    parts = describe_tools([{"role": "system", "content": [{"type": "text", "text": "Be"}]}, user], TOOLS)
    assert len(parts[0]["content"]) == 2
    assert len(parts) == 2


def test_tool_choice():
    assert tool_constraint(HERMES, TOOLS, "none") is None
    assert tool_constraint(HERMES, TOOLS, "auto") is None
    required = tool_constraint(HERMES, TOOLS, "required").value
    assert [call.before for call in required.calls] == [
        '<tool_call>\n{"name": "f", "arguments": ',
        '<tool_call>\n{"name": "g", "arguments": ',
    ]
    assert required.separator == "\n"
    assert tool_constraint(HERMES, TOOLS, "required", parallel=False).value.separator is None
    named = tool_constraint(LLAMA3, TOOLS, {"type": "function", "function": {"name": "g"}}).value
    assert [(call.before, call.after) for call in named.calls] == [('{"name": "g", "parameters": ', "}")]
    assert named.calls[0].schema == {"type": "object", "additionalProperties": False}


@pytest.mark.parametrize("choice", ["always", {"function": {}}, {"type": "function"}, {"function": {"name": "nope"}}, 3])
def test_bad_tool_choice(choice):
    with pytest.raises(RequestError, match="tool_choice"):
        tool_constraint(HERMES, TOOLS, choice)


def test_required_without_tools_and_odd_parameters():
    with pytest.raises(RequestError, match="no tools"):
        tool_constraint(HERMES, [], "required")
    with pytest.raises(RequestError, match="type object"):
        tool_constraint(HERMES, [{"function": {"name": "f", "parameters": {"type": "string"}}}], "required")
