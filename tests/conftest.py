"""What all tests share: a build of the native module to test, and property tests without a clock."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ExtensionFileLoader

import pytest
from hypothesis import settings

settings.register_profile("forno", deadline=None)  # a busy machine, or a sanitizer, is slow and not wrong
settings.load_profile("forno")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--native", help="test this build of the native module (the sanitizer build) instead of the installed one")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--native")
    if path:
        loader = ExtensionFileLoader("forno._native", path)
        spec = importlib.util.spec_from_loader("forno._native", loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        sys.modules["forno._native"] = module
