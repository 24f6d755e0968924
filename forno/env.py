"""Every environment variable that forno reads. Nothing else in the package touches ``os.environ``."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Variable:
    name: str
    default: str
    help: str

    def get(self) -> str:
        return os.environ.get(self.name, self.default)


CACHE_DIR = Variable("FORNO_CACHE", "", "Where fetched models are kept. Default: $XDG_CACHE_HOME/forno, else ~/.cache/forno.")
API_KEY = Variable("FORNO_API_KEY", "", "An API key clients must send, in addition to --api-key and --api-key-file.")
LOG_LEVEL = Variable("FORNO_LOG", "info", "debug, info, warning or error.")
DEBUG = Variable("FORNO_DEBUG", "", "Any value: check the cache's and scheduler's integrity after every step.")

VARIABLES = (CACHE_DIR, API_KEY, LOG_LEVEL, DEBUG)


def cache_dir() -> Path:
    """The directory for fetched models and tokenizers; not created here."""
    if CACHE_DIR.get():
        return Path(CACHE_DIR.get())
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "forno"


def child_environment(**extra: str) -> dict[str, str]:
    """Our environment with ``extra`` set, for a process we start."""
    return {**os.environ, **extra}
