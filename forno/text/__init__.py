"""Everything between a client's text and token ids: tokenizers, chat templates, incremental detokenizing,
stop strings, tool calls and output constraints. It knows nothing of the engine, and nothing of HTTP.

Names load on first use: importing this package costs nothing, and jinja2, tokenizers and llguidance are imported
only by a program that renders, tokenizes or constrains.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_LAZY = {
    "ChatTemplate": "forno.text.chat",
    "ConstraintCompiler": "forno.text.constraints",
    "ConstraintSpec": "forno.text.spec",
    "IncrementalDetokenizer": "forno.text.detokenize",
    "StopStrings": "forno.text.stop",
    "Tokenizer": "forno.text.tokenizer",
    "ToolCallParser": "forno.text.tools",
    "load_chat_template": "forno.text.chat",
    "load_tokenizer": "forno.text.tokenizer",
    "read_template": "forno.text.chat",
    "tool_constraint": "forno.text.tools",
    "tool_form": "forno.text.tools",
}

if TYPE_CHECKING:
    from forno.text.chat import ChatTemplate, load_chat_template, read_template
    from forno.text.constraints import ConstraintCompiler
    from forno.text.detokenize import IncrementalDetokenizer
    from forno.text.spec import ConstraintSpec
    from forno.text.stop import StopStrings
    from forno.text.tokenizer import Tokenizer, load_tokenizer
    from forno.text.tools import ToolCallParser, tool_constraint, tool_form

__all__ = [
    "ChatTemplate",
    "ConstraintCompiler",
    "ConstraintSpec",
    "IncrementalDetokenizer",
    "StopStrings",
    "Tokenizer",
    "ToolCallParser",
    "load_chat_template",
    "load_tokenizer",
    "read_template",
    "tool_constraint",
    "tool_form",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'forno.text' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
