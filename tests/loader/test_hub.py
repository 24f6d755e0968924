"""Models of the Hub, with huggingface_hub's functions replaced: what is asked for, and what failures become."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.utils import (
    EntryNotFoundError,
    GatedRepoError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    filter_repo_objects,
)

from forno.errors import DownloadError, ModelError
from forno.loader.hub import HubModel, fetch_hub, parse, verify_blob
from tests.helpers.safetensors_writer import write_tiny_directory

REPO = "org/tiny"


def test_names_are_parsed() -> None:
    assert parse("hf:org/tiny") == HubModel("org/tiny")
    assert parse("hf:org/tiny:a.Q4_0.gguf") == HubModel("org/tiny", "a.Q4_0.gguf")
    assert parse("hf:org/tiny:sub/a.gguf") == HubModel("org/tiny", "sub/a.gguf")


@pytest.mark.parametrize(
    "name", ["hf:", "hf:tiny", "hf:a/b/c", "hf:../b", "hf:a/..", "hf:a/b..c", "hf:a b/c", "hf:-a/b", "hf:ä/b"]
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ModelError, match="write hf:owner/name"):
        parse(name)


@pytest.mark.parametrize("file", ["a.safetensors", "../a.gguf", "/a.gguf", "a//b.gguf", "./a.gguf", "a\\b.gguf"])
def test_other_files_are_refused(file: str) -> None:
    with pytest.raises(ModelError, match=r"not the name of a \.gguf file"):
        parse(f"hf:{REPO}:{file}")


class FakeHub:
    """A repository's files; ``error`` is raised by every call that needs the network."""

    def __init__(self, root: Path, files: list[str]) -> None:
        self.root, self.files = root, files
        self.error: Exception | None = None
        self.fetched: list[str] = []

    def list_repo_files(self, _: Any, repo: str) -> list[str]:
        if self.error:
            raise self.error
        return self.files

    def hf_hub_download(self, repo: str, filename: str, *, local_files_only: bool = False) -> str:
        if local_files_only:
            if not (self.root / filename).exists():
                raise LocalEntryNotFoundError("not cached")
            return str(self.root / filename)
        if self.error:
            raise self.error
        if filename not in self.files:
            raise EntryNotFoundError("404")
        self.fetched.append(filename)
        return str(self._put(filename))

    def snapshot_download(self, repo: str, *, local_files_only: bool, allow_patterns: Any, ignore_patterns: Any) -> str:
        if local_files_only:
            if not any(self.root.iterdir()):
                raise LocalEntryNotFoundError("not cached")
            return str(self.root)
        for name in filter_repo_objects(self.files, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns):
            self.fetched.append(name)
            self._put(name)
        return str(self.root)

    def _put(self, name: str) -> Path:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).touch()
        return self.root / name


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeHub]:
    def make(*files: str) -> FakeHub:
        fake = FakeHub(tmp_path, list(files))
        monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", lambda api, repo: fake.list_repo_files(api, repo))
        monkeypatch.setattr(huggingface_hub, "hf_hub_download", fake.hf_hub_download)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", fake.snapshot_download)
        return fake

    return make


SAFETENSORS = ("config.json", "tokenizer.json", "tokenizer_config.json", "model-1.safetensors", "model.safetensors.index.json")
NOT_NEEDED = (
    "README.md",
    "pytorch_model.bin",
    "consolidated.safetensors",
    "original/model.safetensors",
    "onnx/config.json",
    "a.gguf",
)


def test_a_safetensors_repository_is_fetched_without_the_rest(hub: Callable[..., FakeHub], tmp_path: Path) -> None:
    fake = hub(*SAFETENSORS, *NOT_NEEDED)
    assert fetch_hub(HubModel(REPO)) == tmp_path
    assert sorted(fake.fetched) == sorted(SAFETENSORS)


def test_a_named_file_is_all_that_is_fetched(hub: Callable[..., FakeHub], tmp_path: Path) -> None:
    fake = hub("a.gguf", "b.gguf", *SAFETENSORS)
    assert fetch_hub(HubModel(REPO, "b.gguf")) == tmp_path / "b.gguf"
    assert fake.fetched == ["b.gguf"]


def test_gguf_repositories(hub: Callable[..., FakeHub], tmp_path: Path) -> None:
    hub("README.md", "a.gguf")
    assert fetch_hub(HubModel(REPO)) == tmp_path / "a.gguf"
    (tmp_path / "a.gguf").unlink()
    hub("b.gguf", "a.gguf")
    with pytest.raises(ModelError, match=r"2 GGUF files; choose one with hf:org/tiny:FILE from: a.gguf, b.gguf"):
        fetch_hub(HubModel(REPO))
    hub("pytorch_model.bin", "config.json")
    with pytest.raises(ModelError, match=r"neither config\.json with safetensors nor GGUF"):
        fetch_hub(HubModel(REPO))


def test_what_is_complete_in_the_cache_needs_no_network(hub: Callable[..., FakeHub], tmp_path: Path) -> None:
    fake = hub(*SAFETENSORS)
    fake.error = ConnectionError("no route")
    with pytest.raises(DownloadError, match=r"ConnectionError: no route.*offline"):
        fetch_hub(HubModel(REPO))
    write_tiny_directory(tmp_path, shards=2)
    assert fetch_hub(HubModel(REPO)) == fetch_hub(HubModel(REPO), refresh=True) == tmp_path
    next(tmp_path.glob("*.safetensors")).unlink()
    with pytest.raises(DownloadError, match="no route"):
        fetch_hub(HubModel(REPO))


def test_a_cached_gguf_file_needs_no_network(hub: Callable[..., FakeHub], tmp_path: Path) -> None:
    fake = hub("a.gguf")
    fetch_hub(HubModel(REPO))
    fake.error = ConnectionError("no route")
    assert fetch_hub(HubModel(REPO)) == tmp_path / "a.gguf"
    assert fetch_hub(HubModel(REPO, "a.gguf")) == tmp_path / "a.gguf"
    assert fake.fetched == ["a.gguf"]


def test_refresh_asks_again(hub: Callable[..., FakeHub]) -> None:
    fake = hub("a.gguf")
    for _ in range(2):
        fetch_hub(HubModel(REPO, "a.gguf"), refresh=True)
    assert fake.fetched == ["a.gguf"] * 2


def response_error(kind: type[Exception]) -> Exception:
    error = kind.__new__(kind)  # their constructors want an HTTP client's response, whose type changes between versions
    Exception.__init__(error, "the server said no")
    return error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (response_error(GatedRepoError), r"org/tiny is gated: accept its terms at https://huggingface.co/org/tiny"),
        (response_error(RepositoryNotFoundError), "org/tiny was not found on the Hub"),
        (OSError(28, "No space left on device"), "disk of the Hugging Face cache is full"),
        (LocalEntryNotFoundError("cannot reach it"), "LocalEntryNotFoundError: cannot reach it"),
        (ValueError(""), "ValueError"),
    ],
)
@pytest.mark.parametrize("file", [None, "a.gguf"])
def test_failures_are_explained(hub: Callable[..., FakeHub], error: Exception, message: str, file: str | None) -> None:
    hub(*SAFETENSORS).error = error
    with pytest.raises(DownloadError, match=message):
        fetch_hub(HubModel(REPO, file))


def test_a_missing_file_suggests_another(hub: Callable[..., FakeHub]) -> None:
    hub("tiny-q4_0.gguf", "tiny-q8_0.gguf", "README.md")
    with pytest.raises(ModelError, match=r"no file 'tiny-Q8_0.gguf'. Did you mean tiny-q8_0.gguf\? It has 2 GGUF files"):
        fetch_hub(HubModel(REPO, "tiny-Q8_0.gguf"))


@pytest.mark.parametrize("how", ["sha256", "git"])
def test_blobs_are_verified_by_their_names(tmp_path: Path, how: str) -> None:
    content = b"hello\n"
    hashes = {"sha256": hashlib.sha256(content).hexdigest(), "git": "ce013625030ba8dba906f756967f9e9ca394464a"}
    blob, link = tmp_path / hashes[how], tmp_path / "config.json"
    blob.write_bytes(content)
    link.symlink_to(blob)
    verify_blob(link)
    blob.write_bytes(b"hellO\n")
    with pytest.raises(DownloadError, match=r"config.json is damaged"):
        verify_blob(link)


def test_verify_covers_every_file_of_a_snapshot(hub: Callable[..., FakeHub], monkeypatch: pytest.MonkeyPatch) -> None:
    hub(*SAFETENSORS)
    seen: list[str] = []
    monkeypatch.setattr("forno.loader.hub.verify_blob", lambda file: seen.append(file.name))
    fetch_hub(HubModel(REPO), verify=True)
    assert seen == sorted(SAFETENSORS)
