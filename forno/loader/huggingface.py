"""Opens a model directory as Hugging Face writes it: JSON files next to safetensors weights.

It reads configs but does not judge them: what a ``model_type`` needs is known in ``models``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forno.errors import CheckpointError, UnsupportedError
from forno.loader import compressed_tensors
from forno.loader.checkpoint import Checkpoint, Tensor, TokenizerSource
from forno.loader.files import read_bytes, read_json_object
from forno.loader.safetensors import read_directory

_MAX_TEMPLATE_BYTES = 4 << 20


def open_directory(directory: Path) -> Checkpoint:
    """Open a directory with ``config.json`` and safetensors.

    A missing ``tokenizer.json`` is left to whoever reads the tokenizer: weights alone are useful without text.
    Raises ``ModelError``, ``CheckpointError`` (malformed), ``UnsupportedError`` (dtype, other quantized weights).
    """
    config = read_json_object(directory / "config.json")
    quantization = config.get("quantization_config")
    if quantization:
        _check_quantization(quantization, directory)
    tensors, files = read_directory(directory)
    if quantization:
        tensors = compressed_tensors.join_scales(tensors, directory)
    _refuse_bare_int8(tensors, directory)
    settings = _optional(directory / "special_tokens_map.json") | _optional(directory / "tokenizer_config.json")
    return Checkpoint(
        name=_display_name(directory),
        config=config,
        tensors=tensors,
        tokenizer=TokenizerSource(json_path=str(directory / "tokenizer.json"), config=settings),
        chat_template=_chat_template(directory, settings),
        generation_config=_optional(directory / "generation_config.json"),
        files=files,
    )


def _check_quantization(quantization: Any, directory: Path) -> None:
    method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
    if method != compressed_tensors.METHOD:
        raise UnsupportedError(
            f"{directory} holds weights quantized by {method!r:.60}; forno reads fp32, fp16 and bf16 safetensors "
            "(quantize them while loading with --quantize), W8A8 ones of compressed-tensors, and quantized GGUF files"
        )
    compressed_tensors.check_scheme(quantization, str(directory / "config.json"))


def _refuse_bare_int8(tensors: Mapping[str, Tensor], directory: Path) -> None:
    for name, tensor in tensors.items():
        if tensor.format == compressed_tensors.FORMAT and tensor.scales is None:
            raise UnsupportedError(f"{directory}: tensor {name!r} is int8, but config.json has no quantization_config")


def _optional(path: Path) -> dict[str, Any]:
    return read_json_object(path) if path.exists() else {}


def _display_name(directory: Path) -> str:
    """The directory's name; in huggingface_hub's cache (``models--owner--name/snapshots/<commit>``) the repository's."""
    parts = directory.absolute().parts
    if len(parts) >= 3 and parts[-2] == "snapshots" and parts[-3].startswith("models--"):
        return parts[-3].removeprefix("models--").replace("--", "/")
    return directory.absolute().name or "model"


def _chat_template(directory: Path, settings: dict[str, Any]) -> str | None:
    """``chat_template.jinja``, else ``chat_template.json``, else the one in ``tokenizer_config.json``."""
    path = directory / "chat_template.jinja"
    if path.exists():
        try:
            return read_bytes(path, _MAX_TEMPLATE_BYTES).decode()
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{path} is not UTF-8 text: {error}") from None
    value = _optional(directory / "chat_template.json").get("chat_template", settings.get("chat_template"))
    if isinstance(value, list):  # several, by name
        named = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
        value = named.get("default")
    if value is not None and not isinstance(value, str):
        raise CheckpointError(
            f"{directory}: chat_template is {type(value).__name__}, expected a string or a list of named strings"
        )
    return value
