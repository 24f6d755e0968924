"""Where a server is, as people write it. It asks nobody."""

from __future__ import annotations

from forno.errors import ConfigError

HINT = "is a server running there (--url)?"
"""What to ask oneself first if there is no answer."""


def base_url(text: str) -> str:
    """A server's URL without ``/v1`` and trailing slashes; ``http://`` is added where no scheme is given.

    Raises ``ConfigError`` for a scheme that is none of HTTP's.
    """
    url = text if "://" in text else f"http://{text}"
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"--url must start with http:// or https://, got {text!r}")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")
