"""What only measuring needs, and only the extra `bench` installs."""

from __future__ import annotations

from importlib.util import find_spec

from forno.errors import ConfigError

INSTALL = 'pip install "forno[bench]"'


def need(*modules: str, what: str = "forno bench") -> None:
    """Raise ``ConfigError`` that says what to install if one of ``modules`` is missing; before the measuring, not after it."""
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise ConfigError(f"{what} needs {' and '.join(missing)}: {INSTALL}")
