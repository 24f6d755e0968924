"""Tool calls in a model's text, in the Hermes (Qwen) form and the Llama 3 form: parsed as they stream, and forced.

One parser serves streaming and non-streaming responses, so both give the same calls. It reads text alone: it knows
neither tokens nor the server's wire types.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from forno.errors import RequestError
from forno.text.spec import ConstraintSpec, ForcedCall, ForcedCalls

_WHITESPACE = " \t\r\n"
_NAME_THEN_ARGUMENTS = re.compile(r'\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*')


@dataclass(frozen=True, slots=True)
class ToolForm:
    """How a model writes a call: ``opens``, a JSON object with ``name`` and ``arguments_key``, ``closes``."""

    name: str
    opens: str
    closes: str
    arguments_key: str
    bare: bool
    """Whether the object may also come without ``opens``, as the very first thing said or right after another call."""


HERMES = ToolForm("hermes", "<tool_call>", "</tool_call>", "arguments", bare=False)
LLAMA3 = ToolForm("llama3", "<|python_tag|>", "", "parameters", bare=True)


def tool_form(template: str) -> ToolForm:
    """The form that a chat template teaches; Hermes for one that teaches none (see ``describe_tools``)."""
    if HERMES.opens not in template and ("python_tag" in template or '"parameters"' in template):
        return LLAMA3
    return HERMES


def supports_tools(template: str) -> bool:
    """Whether a chat template shows the model the tools at all."""
    return "tools" in template


def describe_tools(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages, with the tools and the Hermes form explained by the system message: for templates that ignore tools."""
    listing = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    explained = (
        f"You may call functions to answer. Their signatures:\n<tools>\n{listing}\n</tools>\nFor each call, write its name and "
        'arguments as JSON:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
    )
    first = dict(messages[0]) if messages and messages[0].get("role") == "system" else None
    if first is None:
        return [{"role": "system", "content": explained}, *map(dict, messages)]
    content = first.get("content") or ""
    suffix = f"\n\n{explained}"
    first["content"] = content + suffix if isinstance(content, str) else [*content, {"type": "text", "text": suffix}]
    return [first, *map(dict, messages[1:])]


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """As OpenAI streams it: a call's first delta has ``id`` and ``name``, the others a piece of ``arguments`` (JSON text)."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class ToolDelta:
    """What some text turned out to be."""

    content: str = ""
    calls: tuple[ToolCallDelta, ...] = ()


class _State(Enum):
    TEXT = 0
    OBJECT = 1
    CLOSING = 2


class ToolCallParser:
    """Splits text into content and calls, the same way however it is cut.

    A malformed call is content: a call is announced when its JSON is complete and valid, unless ``enforced`` says that
    a constraint guarantees its form (``tool_constraint``); then arguments stream as they come. Nothing is lost but the
    white space (and, in Llama 3's form, semicolons) next to a call.
    """

    def __init__(
        self,
        form: ToolForm,
        names: Collection[str] = (),
        *,
        enforced: bool = False,
        new_id: Callable[[], str] = lambda: f"call_{uuid.uuid4().hex[:24]}",
    ) -> None:
        """``names`` are the request's tools: a bare JSON object is a call only if it names one of them."""
        self._form = form
        self._names = frozenset(names)
        self._enforced = enforced
        self._new_id = new_id
        self._state = _State.TEXT
        self._buffer = ""  # text not looked at yet, or the start of ``opens``
        self._space = ""  # white space that a call after it would swallow
        self._fresh = True  # nothing but white space since the start or the last call
        self._count = 0
        self._content: list[str] = []
        self._calls: list[ToolCallDelta] = []
        self._begin_object("")

    @property
    def called(self) -> bool:
        """Whether any call was made: ``finish_reason`` is then ``tool_calls``."""
        return self._count > 0

    def add(self, text: str) -> ToolDelta:
        self._buffer += text
        step = {_State.TEXT: self._read_text, _State.OBJECT: self._read_object, _State.CLOSING: self._read_closing}
        while self._buffer and step[self._state]():
            pass
        return self._take()

    def flush(self) -> ToolDelta:
        """What was held back, once no more text comes. A complete call whose closing tag is missing counts."""
        if self._state is _State.CLOSING:
            self._finish_call()
        elif self._state is _State.OBJECT and not self._streamed:
            self._give_up()
        if self._state is _State.TEXT:
            self._say(self._buffer)
            if not (self._fresh and self._count):
                self._content.append(self._space)
        self._buffer = self._space = ""
        return self._take()

    def _take(self) -> ToolDelta:
        delta = ToolDelta("".join(self._content), tuple(self._calls))
        self._content.clear()
        self._calls.clear()
        return delta

    def _gap(self) -> str:
        return _WHITESPACE + ";" if self._form.bare and self._count and self._fresh else _WHITESPACE

    def _say(self, text: str) -> None:
        """Content, its trailing white space held back."""
        whole = self._space + text
        said = whole.rstrip(self._gap())
        self._space = whole[len(said) :]
        if said:
            self._content.append(said)
            self._fresh = False
            kept = self._space.rstrip(_WHITESPACE)  # a semicolon is a separator only right after a call
            self._content.append(kept)
            self._space = self._space[len(kept) :]

    def _read_text(self) -> bool:
        """True if there is more to read."""
        text, opens = self._buffer, self._form.opens
        if self._form.bare and self._fresh:
            rest = text.lstrip(self._gap())
            if rest.startswith("{"):
                return self._open(text[: len(text) - len(rest)], "", rest)
        at = text.find(opens)
        if at >= 0:
            return self._open(text[:at], opens, text[at + len(opens) :])
        held = next((n for n in range(min(len(opens) - 1, len(text)), 0, -1) if opens.startswith(text[-n:])), 0)
        self._say(text[: len(text) - held])
        self._buffer = text[len(text) - held :]
        return False

    def _open(self, before: str, opener: str, rest: str) -> bool:
        self._say(before)
        self._buffer = rest
        self._begin_object(opener)
        self._state = _State.OBJECT
        return True

    def _begin_object(self, opener: str) -> None:
        self._opener = opener
        self._object: list[str] = []  # white space, then the object's text so far
        self._depth = 0
        self._in_string = self._escaped = False
        self._streamed = False  # whether name and arguments go out as they come
        self._in_arguments = False
        self._closing = ""

    def _read_object(self) -> bool:
        """Finds the object's end by its brackets and quotes; whether it is JSON is decided then."""
        text, start = self._buffer, 0
        for position, character in enumerate(text):
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif character == "\\":
                    self._escaped = True
                elif character == '"':
                    self._in_string = False
            elif character in "{[":
                if self._depth == 0 and character == "[":
                    return self._give_up(text, position)
                if self._depth == 1 and character == "{" and self._enforced and not self._streamed:
                    start = self._announce(text, position)
                self._depth += 1
            elif self._depth == 0:
                if character not in _WHITESPACE:
                    return self._give_up(text, position)
            elif character == '"':
                self._in_string = True
            elif character in "}]":
                self._depth -= 1
                if self._depth == 1 and self._in_arguments:
                    self._stream(text[start : position + 1])
                    self._in_arguments = False
                elif self._depth == 0:
                    self._object.append(text[: position + 1])
                    self._buffer = text[position + 1 :]
                    return self._end_object()
        self._stream(text[start:])
        self._object.append(text)
        self._buffer = ""
        return False

    def _announce(self, text: str, position: int) -> int:
        """Starts to stream the call if the object so far is its name and the key of its arguments."""
        match = _NAME_THEN_ARGUMENTS.fullmatch(("".join(self._object) + text[:position]).lstrip(_WHITESPACE))
        if match is None:
            return 0
        self._call(json.loads(match[1]))
        self._streamed = self._in_arguments = True
        return position

    def _stream(self, arguments: str) -> None:
        if self._in_arguments and arguments:
            self._calls.append(ToolCallDelta(self._count - 1, arguments=arguments))

    def _call(self, name: str) -> None:
        self._calls.append(ToolCallDelta(self._count, self._new_id(), name))
        self._count += 1
        self._space = ""
        self._fresh = True

    def _end_object(self) -> bool:
        if self._form.closes:
            self._state = _State.CLOSING
        else:
            self._finish_call()
        return bool(self._buffer)

    def _read_closing(self) -> bool:
        closes = self._form.closes
        text = self._closing + self._buffer
        rest = text.lstrip(_WHITESPACE)
        if len(rest) < len(closes) and closes.startswith(rest):
            self._closing, self._buffer = text, ""
            return False
        if rest.startswith(closes):
            self._closing, self._buffer = text[: len(text) - len(rest)] + closes, rest[len(closes) :]
            self._finish_call()
        else:
            self._closing, self._buffer = "", text
            self._state = _State.TEXT
            if not self._streamed:
                self._say(self._opener + "".join(self._object))
        return True

    def _finish_call(self) -> None:
        self._state = _State.TEXT
        if self._streamed:
            return
        call = _parse_call("".join(self._object))
        if call is None or (not self._opener and call[0] not in self._names):
            self._say(self._opener + "".join(self._object) + self._closing)
            return
        self._call(call[0])
        self._calls.append(ToolCallDelta(self._count - 1, arguments=call[1]))

    def _give_up(self, text: str = "", position: int = 0) -> bool:
        """What looked like a call is content, up to the character that shows it."""
        self._state = _State.TEXT
        self._say(self._opener + "".join(self._object) + text[:position])
        self._buffer = text[position:]
        return True


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_SEPARATOR = re.compile(r"[ \t\r\n]*([:,}])[ \t\r\n]*")


def _parse_call(text: str) -> tuple[str, str] | None:
    """(name, the arguments' JSON text as written) of ``{"name": ..., "arguments": {...}}``, or None."""
    try:
        members = _members(text.strip(_WHITESPACE))
        name = json.loads(members.get("name", "null"))
    except (ValueError, RecursionError):
        return None
    arguments = members.get("arguments", members.get("parameters", "{}"))
    if not isinstance(name, str) or not name or not arguments.startswith("{"):
        return None
    return name, arguments


def _members(text: str) -> dict[str, str]:
    """The members of a JSON object, each value as it is written. Raises ``ValueError`` if it is not valid JSON."""
    members: dict[str, str] = {}
    position = 1 + len(text[1:]) - len(text[1:].lstrip(_WHITESPACE))
    if text[position:] == "}":
        return members
    while True:
        key, position = _DECODER.raw_decode(text, position)
        colon = _SEPARATOR.match(text, position)
        if not isinstance(key, str) or colon is None or colon[1] != ":":
            raise ValueError("not a member of an object")
        _, end = _DECODER.raw_decode(text, colon.end())
        members[key] = text[colon.end() : end]
        comma = _SEPARATOR.match(text, end)
        if comma is None or comma[1] == ":":
            raise ValueError("not followed by a comma or the end")
        if comma[1] == "}":
            return members
        position = comma.end()


def tool_constraint(
    form: ToolForm, tools: Sequence[Mapping[str, Any]], tool_choice: Any, parallel: bool = True
) -> ConstraintSpec | None:
    """What enforces ``tool_choice``: "none" and "auto" leave the model free (None), "required" forces one call or more, and
    ``{"type": "function", "function": {"name": ...}}`` one call of that function. Raises ``RequestError``."""
    if tool_choice in (None, "none", "auto"):
        return None
    functions = [tool["function"] for tool in tools]
    if tool_choice != "required":
        name = _chosen_name(tool_choice)
        functions = [function for function in functions if function["name"] == name]
        if not functions:
            raise RequestError(f"tool_choice names {name!r}, which is not among the tools", "tool_choice")
        parallel = False
    if not functions:
        raise RequestError("tool_choice is 'required', but there are no tools", "tool_choice")
    several = parallel and not form.bare
    return ConstraintSpec("calls", ForcedCalls(tuple(_forced(form, f) for f in functions), "\n" if several else None))


def _chosen_name(tool_choice: Any) -> str:
    function = tool_choice.get("function") if isinstance(tool_choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise RequestError("tool_choice must be 'none', 'auto', 'required' or name a function", "tool_choice")
    return name


def _forced(form: ToolForm, function: Mapping[str, Any]) -> ForcedCall:
    parameters = function.get("parameters")
    if not parameters:
        parameters = {"additionalProperties": False}
    if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
        raise RequestError(f"the parameters of {function['name']} must be a schema of type object", "tools")
    before = f'{{"name": {json.dumps(function["name"], ensure_ascii=False)}, "{form.arguments_key}": '
    after = "}"
    if form.closes:
        before, after = f"{form.opens}\n{before}", f"{after}\n{form.closes}"
    return ForcedCall(before, {"type": "object", **parameters}, after)
