"""The direction of imports between packages, read from the sources, and the cost of importing forno."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / "forno"
BASE = {"errors", "env", "config", "request", "options"}
ALLOWED = {
    "errors": set(),
    "env": set(),
    "config": {"errors"},
    "options": {"errors"},
    "request": {"errors"},
    "cache": BASE,
    "scheduler": BASE | {"cache"},
    "program": BASE,
    "models": BASE | {"program"},
    "loader": BASE | {"program", "kernels"},
    "kernels": BASE | {"program"},
    "text": BASE | {"loader"},
    "runner": BASE | {"program", "models", "kernels", "loader"},
    "engine": BASE | {"cache", "scheduler", "runner", "text", "loader"},
    "llm": BASE | {"engine", "text"},
    "server": BASE | {"engine", "text"},
}
"""Package -> packages it may import. ``tools`` and ``__main__`` may import anything."""


def imports_of(path: Path) -> set[str]:
    """Second-level forno packages that a file imports anywhere, lazily or not."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("forno."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.ImportFrom) and node.module == "forno":
            found |= {alias.name for alias in node.names if (ROOT / alias.name).exists()}
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("forno.")}
    return found - {"_native"}


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_import_direction(package: str) -> None:
    path = ROOT / package
    files = list(path.rglob("*.py")) if path.is_dir() else [ROOT / f"{package}.py"]
    assert files
    for file in files:
        extra = imports_of(file) - ALLOWED[package] - {package}
        assert not extra, f"{file.relative_to(ROOT)} must not import {sorted(extra)}"


def test_only_env_reads_the_environment() -> None:
    readers = [p.name for p in ROOT.rglob("*.py") if "os.environ" in p.read_text() or "os.getenv" in p.read_text()]
    assert readers == ["env.py"]


def test_importing_forno_imports_nothing_heavy() -> None:
    code = (
        "import sys, forno; print(sorted({m.split('.')[0] for m in sys.modules} & {'numpy','torch','starlette','tokenizers'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
