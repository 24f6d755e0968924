"""Messages to a prompt: the model's own chat template, rendered as Hugging Face renders it, in a sandbox.

It knows the OpenAI message format and Jinja; it knows nothing of token ids.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import jinja2

from forno.errors import ConfigError, RequestError, TemplateError
from forno.text import sandbox

if TYPE_CHECKING:
    from forno.loader.checkpoint import Checkpoint
    from forno.text.tokenizer import Tokenizer

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""Used, and said so, when a model has no template of its own."""

_MAX_SOURCE = 1 << 20  # characters; the longest in use have some 20,000


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A compiled template. Safe to share between threads."""

    source: str
    variables: Mapping[str, Any] = field(default_factory=dict)
    """Set for every rendering: ``bos_token``, ``eos_token`` and so on."""
    is_default: bool = False
    """Whether this is ``CHATML`` for want of the model's own."""
    _environment: sandbox.BoundedEnvironment = field(init=False, repr=False, compare=False)
    _code: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.source) > _MAX_SOURCE:
            raise TemplateError(f"the chat template has {len(self.source)} characters; at most {_MAX_SOURCE} are supported")
        environment = sandbox.new_environment(
            filters={"tojson": _tojson}, functions={"raise_exception": _raise, "strftime_now": _strftime_now}
        )
        object.__setattr__(self, "_environment", environment)
        try:
            object.__setattr__(self, "_code", sandbox.compile_source(environment, self.source))
        except (Exception, MemoryError) as error:
            raise TemplateError(f"the chat template does not compile: {_describe(error)}", "chat_template") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        /,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """The prompt, to be encoded with ``add_special_tokens=False``. ``kwargs`` (``enable_thinking``) reach the template.

        Raises ``RequestError`` for messages we cannot express, ``TemplateError`` for whatever the template does wrong,
        including taking more than a second or making more text than a prompt can hold.
        """
        for name in ("messages", "tools"):
            if name in kwargs:
                raise RequestError(f"chat_template_kwargs may not set {name!r}", "chat_template_kwargs")
        variables = {
            **self.variables,
            **kwargs,
            "messages": [_message(message, index) for index, message in enumerate(messages)],
            "tools": list(tools) if tools else None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return sandbox.render(self._environment, self._code, variables)
        except (Exception, MemoryError) as error:
            raise TemplateError(f"the chat template cannot render these messages: {_describe(error)}", "messages") from error


def load_chat_template(checkpoint: Checkpoint, tokenizer: Tokenizer, override: str | None = None) -> ChatTemplate:
    """The template to use: ``override`` (template source), else the checkpoint's own, else ChatML.
    Raises ``TemplateError`` if it does not compile."""
    source = override or checkpoint.chat_template
    return ChatTemplate(source or CHATML, tokenizer.special_texts, is_default=not source)


def read_template(path: str) -> str | None:
    """The text of ``--chat-template``; None if ``path`` is empty. Raises ``ConfigError`` if it cannot be read."""
    if not path:
        return None
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read --chat-template {path}: {error}") from error


def _message(message: Mapping[str, Any], index: int) -> dict[str, Any]:
    """A message as templates expect it: content is text, tool-call arguments are an object, and what is absent is not there
    (they ask ``message.tool_calls is defined``)."""
    result = {name: value for name, value in message.items() if value is not None and name != "tool_calls"}
    result["content"] = _content(message.get("content"), f"messages[{index}].content")
    if calls := message.get("tool_calls"):
        result["tool_calls"] = [_tool_call(call, f"messages[{index}].tool_calls[{i}]") for i, call in enumerate(calls)]
    return result


def _content(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise RequestError(f"{where} must be text or a list of parts", where)
    return "".join(_part(part, f"{where}[{index}]") for index, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    if kind != "text":
        raise RequestError(f"{where} has type {kind!r}; this server takes text only", where)
    text = part.get("text")
    if not isinstance(text, str):
        raise RequestError(f"{where}.text must be text", where)
    return text


def _tool_call(call: Any, where: str) -> dict[str, Any]:
    """OpenAI sends ``arguments`` as JSON text; templates write it out with ``tojson`` and want the object."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise RequestError(f"{where}.function is missing", where)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        # What a model wrote may be broken, and is then shown to it as the text it is: the conversation must go on.
        with suppress(ValueError, RecursionError):
            arguments = json.loads(arguments or "{}")
    return {**call, "function": {**function, "arguments": {} if arguments is None else arguments}}


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Hugging Face's ``tojson``: plain JSON, where Jinja's own would escape HTML."""
    if isinstance(value, jinja2.Undefined):
        raise TemplateError("tojson of an undefined value")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: Any) -> NoReturn:
    """``raise_exception`` in a template: the messages do not suit the model, and it says why."""
    raise TemplateError(str(message))


def _strftime_now(layout: str) -> str:
    """The local date and time. The layout is limited: some C libraries take field widths."""
    if len(layout) > 256 or any(character.isdigit() for character in layout):
        raise TemplateError("strftime_now takes a short layout without digits")
    return datetime.now().strftime(layout)


def _describe(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "it recurses without end"
    if isinstance(error, MemoryError):
        return "it needs too much memory"
    if isinstance(error, jinja2.TemplateSyntaxError):
        return f"{error.message} (line {error.lineno})"
    return str(error) or type(error).__name__
