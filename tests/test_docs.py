"""What the documents say exists: links, files, flags, targets, verbs, endpoints, fields, metrics, models."""

from __future__ import annotations

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from forno import env
from forno.__main__ import VERBS, main, parser
from forno.loader.sources import BUILTIN_MODELS
from forno.program.passes import default_passes
from forno.server import engine_metrics, wire
from forno.server.app import ENDPOINTS
from forno.tools.bench import WORDS

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md"), *ROOT.glob("deploy/*.md")])
CODE = re.compile(r"`([^`\n]+)`")
HERE = ("", "forno/", "forno/kernels/", "benchmarks/", "deploy/")
"""Where a path in a document may start."""


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def section(name: str, title: str) -> str:
    """The part of a document under a heading."""
    return text_of(name).split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def flags() -> set[str]:
    """Every option of every verb, and of the words of ``forno bench``."""
    helps = [help_of(verb) for verb in VERBS] + [help_of("bench", word) for word in WORDS]
    return {option for text in helps for option in re.findall(r"--[a-z][a-z-]+", text)}


def help_of(*words: str) -> str:
    out = StringIO()
    with redirect_stdout(out), pytest.raises(SystemExit) as stop:
        main([*words, "--help"])
    assert stop.value.code == 0
    return out.getvalue()


def test_there_are_documents() -> None:
    assert {"README.md", "CONTRIBUTING.md", "architecture.md", "api.md"} <= {d.name for d in DOCUMENTS}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (document.parent / target).exists(), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_files_that_are_named_exist(document: Path) -> None:
    for name in CODE.findall(document.read_text(encoding="utf-8")):
        if re.fullmatch(r"[\w./-]*/[\w.-]*\.(py|cpp|hpp|md)|[\w-]+/([\w-]+/)*", name):
            assert any((ROOT / start / name).exists() for start in HERE), name


CURRENT = ["README.md", "CONTRIBUTING.md", "docs/api.md", "docs/architecture.md", "docs/metrics.md", "deploy/README.md"]
CURRENT += [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("docs/guides/*.md"))]
"""Documents that say how things are now, not what was tried."""
OTHERS = {"--config"}
"""Options of other programs."""


@pytest.mark.parametrize("document", CURRENT)
def test_flags_and_targets_that_are_named_exist(document: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), re.MULTILINE))
    text = text_of(document)
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) <= flags() | OTHERS
    assert set(re.findall(r"`make ([a-z-]+)", text)) <= targets


def test_every_job_is_in_contributing() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*##", text_of("Makefile"), re.MULTILINE)) - {"help", "clean"}
    assert targets == set(re.findall(r"`make ([a-z-]+)", text_of("CONTRIBUTING.md")))


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb(verb: str) -> None:
    assert help_of(verb).startswith(f"usage: forno {verb}")
    assert f"`forno {verb}" in section("README.md", "The verbs")


def test_the_root_help_names_every_verb_and_variable() -> None:
    text = parser().format_help()
    for name in (*VERBS, *(variable.name for variable in env.VARIABLES)):
        assert name in text


def test_endpoints() -> None:
    documented = set(re.findall(r"`(GET|POST) (/[\w/.{}]*)`", section("docs/api.md", "Endpoints")))
    offered = {(e.method, e.path) for e in ENDPOINTS}
    assert documented - offered == {("GET", "/docs"), ("GET", "/openapi.json")}
    assert offered <= documented


def test_fields() -> None:
    text = section("docs/api.md", "Fields of both completion endpoints")
    named = set(re.findall(r"[a-z_]+", " ".join(CODE.findall(text))))
    for kind in (wire.ChatRequest, wire.CompletionRequest):
        assert set(kind.__struct_fields__) <= named
    for field in re.findall(r"`([a-z_]+)`[,;. ]", text.split("Defaults come", 1)[0]):
        known = {*wire.ChatRequest.__struct_fields__, *wire.CompletionRequest.__struct_fields__}
        known |= {*wire.StructuredOutputs.__struct_fields__, "none", "auto", "required"}
        assert field in known, field


def test_metrics() -> None:
    source = Path(engine_metrics.__file__).read_text(encoding="utf-8")
    for name in re.findall(r"`([a-z0-9_]{10,})`", section("docs/api.md", "Metrics")):
        assert f'"{name}"' in source or f'"{name.removesuffix("_total")}"' in source, name


def test_passes() -> None:
    named = CODE.findall(section("docs/architecture.md", "Program and passes"))
    assert [name for name in named if name in default_passes()] == list(default_passes())


def test_every_model_with_a_short_name_is_in_the_notice_and_in_help() -> None:
    lines = {line.split()[0]: line for line in text_of("NOTICE").splitlines() if line.strip()}
    for name, model in BUILTIN_MODELS.items():
        assert model.license.split()[0] in lines[name]
        assert name in "".join(help_of("pull").split())
