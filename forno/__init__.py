"""forno serves large language models and can say which resource it waits for.

Public names load on first use, so that ``import forno`` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module

__version__ = "0.1.0"

_LAZY = {
    "LLM": "forno.llm",
    "SamplingParams": "forno.request",
    "RequestOutput": "forno.request",
    "FornoError": "forno.errors",
}

TYPE_CHECKING = False  # typing's own takes milliseconds to import
if TYPE_CHECKING:
    from typing import Any

    from forno.errors import FornoError
    from forno.llm import LLM
    from forno.request import RequestOutput, SamplingParams

__all__ = ["LLM", "FornoError", "RequestOutput", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'forno' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
