"""What the words of ``forno bench`` that write files make sure of before they work."""

from __future__ import annotations

import os
from pathlib import Path

from forno.errors import ConfigError


def check_writable(path: Path) -> None:
    """Raises ``ConfigError`` for a file that cannot be written; it is neither made nor changed."""
    folder = path.parent
    if path.is_dir():
        raise ConfigError(f"cannot write {path}: it is a directory")
    if not folder.is_dir():
        raise ConfigError(f"cannot write {path}: there is no directory {folder}")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise ConfigError(f"cannot write {path}: you may not write there")
