"""What only measuring needs, and only the extra `bench` installs."""

from __future__ import annotations

from importlib.util import find_spec

from forno.errors import ConfigError

EXTRAS = ("aiohttp", "rich", "matplotlib")
INSTALL = 'pip install "forno[bench]"'


def need(*modules: str, what: str = "forno bench") -> None:
    """Raise ``ConfigError`` that says what to install if one of ``modules`` is missing; before the measuring, not after it."""
    missing = [name for name in modules if not _is_there(name)]
    if missing:
        raise ConfigError(f"{what} needs {' and '.join(missing)}: {INSTALL}")


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ValueError:  # what has been imported before as missing
        return False
