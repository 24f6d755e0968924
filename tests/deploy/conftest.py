"""The tiny model that the server's tests serve."""

from __future__ import annotations

from tests.server.conftest import model_path

__all__ = ["model_path"]
