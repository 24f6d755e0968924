"""The direction of imports between packages, read from the sources, and the cost of importing forno."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / "forno"
BASE = {"errors", "env", "config", "request", "options", "phases"}
ALLOWED = {
    "errors": set(),
    "env": set(),
    "config": {"errors"},
    "options": {"errors"},
    "phases": set(),
    "request": {"errors"},
    "cache": BASE,
    "scheduler": BASE | {"cache", "observe"},
    "program": BASE,
    "models": BASE | {"program"},
    "loader": BASE | {"program", "kernels"},
    "kernels": BASE | {"program"},
    "text": BASE | {"loader"},
    "runner": BASE | {"program", "models", "kernels", "loader"},
    "observe": BASE | {"cache", "program"},
    "engine": BASE | {"cache", "scheduler", "runner", "text", "loader", "observe", "program"},
    "llm": BASE | {"engine", "text"},
    "server": BASE | {"engine", "text", "observe"},
    "bench": {"errors", "env", "options"},
}
"""Package -> packages it may import."""
FREE = {"__init__", "__main__", "tools"}
"""What puts the others together, and may import anything."""
HEAVY = {"torch", "transformers", "pandas", "scipy", "huggingface_hub", "llguidance"}
"""What a server of a local file must start without: seconds of cold start, hundreds of MB."""

LATER = {"prometheus_client", "forno.loader.fetch", "forno.loader.hub", "numpy.testing", "numpy.ma"}
"""What a start has no use for, and the first who needs it imports."""


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


def test_every_package_has_its_place() -> None:
    found = {p.stem for p in ROOT.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert found == ALLOWED.keys() | FREE


def test_nothing_imports_what_puts_it_together() -> None:
    for file in ROOT.rglob("*.py"):
        if file.relative_to(ROOT).parts[0] not in ("tools", "__main__.py"):
            assert not imports_of(file) & {"tools", "__main__"}, file.relative_to(ROOT)


def test_no_module_has_state() -> None:
    for file in ROOT.rglob("*.py"):
        nodes = [n for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.Global)]
        assert not nodes, f"{file.relative_to(ROOT)} changes a global"


def test_only_env_reads_the_environment() -> None:
    readers = [p.name for p in ROOT.rglob("*.py") if "os.environ" in p.read_text() or "os.getenv" in p.read_text()]
    assert readers == ["env.py"]


def loaded_after(statement: str) -> set[str]:
    """Modules that are loaded in a new interpreter after ``statement``."""
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_forno_imports_nothing_heavy() -> None:
    assert not loaded_after("import forno") & (HEAVY | {"numpy", "starlette", "tokenizers", "asyncio"})


def test_serving_imports_nothing_heavy() -> None:
    modules = "forno.server.serve, forno.loader.sources, forno.loader.open, forno.runner.cpu, forno.text.tokenizer, forno.llm"
    assert not loaded_after(f"import {modules}") & (HEAVY | LATER)


def test_the_command_line_imports_nothing_before_it_can_be_interrupted() -> None:
    """Ctrl-C in an import at the top of these would print a traceback."""
    assert not loaded_after("import forno.__main__") & {"argparse", "typing", "dataclasses", "forno.options", "forno.env"}


def test_loading_begins_before_the_server_is_imported() -> None:
    loaded = loaded_after("import forno.server.main, forno.engine.build, forno.runner.cpu, forno.loader.open")
    assert not loaded & {"asyncio", "uvicorn", "starlette", "jinja2", "tokenizers"}
