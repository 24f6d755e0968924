"""Models from the Hugging Face Hub, through ``huggingface_hub``: its cache, its login, its mirrors.

Only what serving needs is fetched: config, tokenizer and safetensors, or one GGUF file.
"""

from __future__ import annotations

import errno
import hashlib
import re
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from forno.errors import DownloadError, FornoError, ModelError
from forno.loader.fetch import sha256_of
from forno.loader.safetensors import read_directory
from forno.loader.sources import PREFIX

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_WANTED = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "model.safetensors.index.json",
)


@dataclass(frozen=True, slots=True)
class HubModel:
    """``hf:owner/name`` or ``hf:owner/name:file``."""

    repo: str
    file: str | None = None


def parse(model: str) -> HubModel:
    """Read ``hf:owner/name[:file]``. Raises ``ModelError`` for anything else."""
    repo, _, file = model.removeprefix(PREFIX).partition(":")
    if not _NAME.fullmatch(repo) or ".." in repo:
        raise ModelError(f"{model!r} does not name a model on the Hub; write hf:owner/name or hf:owner/name:file.gguf")
    parts = file.split("/")
    if file and (not file.endswith(".gguf") or "\\" in file or any(part in ("", ".", "..") for part in parts)):
        raise ModelError(f"{model!r}: {file!r} is not the name of a .gguf file; for safetensors leave the file out")
    return HubModel(repo, file or None)


def fetch_hub(model: HubModel, *, verify: bool = False, refresh: bool = False) -> Path:
    """The GGUF file, or the directory, of ``model`` in huggingface_hub's cache; fetched if it is not there.

    What was fetched before is used without asking the network, unless ``refresh`` wants the newest; then it still
    serves if there is no network. ``verify`` hashes every file against the Hub's own checksums.
    Raises ``DownloadError`` or ``ModelError``.
    """
    path = None if refresh else _cached(model)
    try:
        path = path or _fetch(model)
    except FornoError:
        raise
    except Exception as error:  # the library raises its own, its HTTP client's and the system's errors
        path = None if _is_answer(error) else _cached(model)
        if path is None:
            raise _explain(error, model) from error
    if verify:
        for file in [path] if path.is_file() else sorted(p for p in path.iterdir() if p.is_file()):
            verify_blob(file)
    return path


def _fetch(model: HubModel) -> Path:
    from huggingface_hub import hf_hub_download

    if model.file:
        return Path(hf_hub_download(model.repo, model.file))
    files = _list_files(model.repo)
    if "config.json" in files and any(name.endswith(".safetensors") for name in files):
        return _snapshot(model.repo, local_files_only=False)
    return Path(hf_hub_download(model.repo, _only_gguf(model.repo, files)))


def _list_files(repo: str) -> list[str]:
    from huggingface_hub import HfApi

    return HfApi().list_repo_files(repo)


def _snapshot(repo: str, *, local_files_only: bool) -> Path:
    from huggingface_hub import snapshot_download

    return Path(
        snapshot_download(
            repo,
            local_files_only=local_files_only,
            allow_patterns=[*_WANTED, "*.safetensors"],
            # Patterns match across slashes: no subfolders, and not Mistral's second copy of the weights.
            ignore_patterns=["*/*", "consolidated*"],
        )
    )


def _cached(model: HubModel) -> Path | None:
    """What an earlier run fetched, if it is complete: the file, the directory, or the only GGUF file of the repository."""
    from huggingface_hub import hf_hub_download

    try:
        if model.file:
            return Path(hf_hub_download(model.repo, model.file, local_files_only=True))
        path = _snapshot(model.repo, local_files_only=True)
        if (path / "config.json").exists():
            read_directory(path)  # an interrupted fetch leaves shards missing
            return path
    except Exception:  # nothing there, or not all of it
        return None
    files = list(path.glob("*.gguf"))
    return files[0] if len(files) == 1 else None


def _only_gguf(repo: str, files: list[str]) -> str:
    names = sorted(name for name in files if name.endswith(".gguf"))
    if len(names) == 1:
        return names[0]
    if names:
        shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
        raise ModelError(f"{repo} has {len(names)} GGUF files; choose one with hf:{repo}:FILE from: {shown}")
    raise ModelError(f"{repo} has neither config.json with safetensors nor GGUF files; forno reads no other format")


def verify_blob(file: Path) -> None:
    """Hash a file of huggingface_hub's cache, whose blobs are named by their content. Raises ``DownloadError``."""
    name = file.resolve().name
    if re.fullmatch(r"[0-9a-f]{64}", name):
        found = sha256_of(file, f"Checking {file.name}")
    elif re.fullmatch(r"[0-9a-f]{40}", name):  # small files are named as git names them
        content = file.read_bytes()
        found = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
    else:
        return
    if found != name:
        raise DownloadError(f"{file} is damaged: its hash is {found}, expected {name}. Delete {file.resolve()} and pull again")


def _is_answer(error: Exception) -> bool:
    """Whether the Hub was reached and said no, as opposed to not being reached."""
    from huggingface_hub.utils import EntryNotFoundError, LocalEntryNotFoundError, RepositoryNotFoundError

    answers = isinstance(error, (RepositoryNotFoundError, EntryNotFoundError))
    return answers and not isinstance(error, LocalEntryNotFoundError)


def _explain(error: Exception, model: HubModel) -> ModelError:
    from huggingface_hub.utils import EntryNotFoundError, GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    url = f"https://huggingface.co/{model.repo}"
    if isinstance(error, GatedRepoError):
        return DownloadError(f"{model.repo} is gated: accept its terms at {url}, then log in with `hf auth login`")
    if isinstance(error, RepositoryNotFoundError):
        return DownloadError(
            f"{model.repo} was not found on the Hub ({url}), or is private: check the name, or `hf auth login`"
        )
    if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
        return ModelError(f"{model.repo} has no file {model.file!r}.{_suggestion(model)}")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DownloadError(
            f"could not fetch {model.repo}: the disk of the Hugging Face cache is full; free some space, or set HF_HOME"
        )
    reason = (str(error).strip().splitlines() or [""])[0][:300]
    return DownloadError(
        f"could not fetch {model.repo} from the Hugging Face Hub: {type(error).__name__}: {reason}. Nothing usable was fetched "
        f"before. If this machine is offline, fetch the files of {url} elsewhere and name their path"
    )


def _suggestion(model: HubModel) -> str:
    try:
        names: list[Any] = [name for name in _list_files(model.repo) if name.endswith(".gguf")]
    except Exception:  # only a hint, and the real error is about to be raised
        return ""
    close = get_close_matches(model.file or "", names, n=1, cutoff=0.0)
    return f" Did you mean {close[0]}? It has {len(names)} GGUF files" if close else " It has no GGUF files"
