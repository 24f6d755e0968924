"""What every word of ``forno bench`` needs before it works, and what it says when that is missing."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

from forno.errors import ConfigError

EXTRAS = ("aiohttp", "rich", "matplotlib")
"""Packages of the extra ``bench``."""


def missing(package: str) -> ConfigError:
    """The error that names what to install."""
    return ConfigError(f'this needs {package}: pip install "forno[bench]"')


def import_extras(*packages: str) -> None:
    """Import them now, rather than after the measuring. Raises ``ConfigError`` for one that is not installed."""
    for package in packages:
        try:
            import_module(package)
        except ModuleNotFoundError as error:
            raise missing(package) from error


def check_writable(path: Path) -> None:
    """Raises ``ConfigError`` for a file that cannot be written; it is neither made nor changed."""
    folder = path.parent
    if path.is_dir():
        raise ConfigError(f"cannot write {path}: it is a directory")
    if not folder.is_dir():
        raise ConfigError(f"cannot write {path}: there is no directory {folder}")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise ConfigError(f"cannot write {path}: you may not write there")
