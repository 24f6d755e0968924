# The native module for type checkers: untyped, since its callers check shapes and types at run time.
from typing import Any

def __getattr__(name: str) -> Any: ...
