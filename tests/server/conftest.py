"""One server for all tests that need nothing special of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.safetensors_writer import write_tiny_directory
from tests.helpers.tiny import TinyModel
from tests.server.harness import CONTEXT, Running, running


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_directory(tmp_path_factory.mktemp("models") / "tiny", TinyModel(context=CONTEXT))


@pytest.fixture(scope="session")
def shared_server(model_path: Path) -> Iterator[Running]:
    with running(model_path) as server:
        yield server


@pytest.fixture
def server(shared_server: Running) -> Iterator[Running]:
    """The shared server; after each test nothing may be left in it."""
    yield shared_server
    shared_server.wait_idle()
