"""A GGUF file as a folder that Hugging Face's libraries read: the same weights for engines that read nothing else.

Weights are dequantized, so every engine starts from what the file says; what an engine makes of them is its own affair.

    python -m benchmarks.peers.weights MODEL [--form f32] [--dir DIR]      prints the folder

Knows forno's loader and the safetensors format, no engine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.place import DEFAULT_DIR, PeerError, say
from forno.errors import FornoError
from forno.loader.checkpoint import Checkpoint, Tensor
from forno.loader.dequant import dequantize
from forno.loader.open import open_checkpoint
from forno.loader.sources import resolve
from forno.text import load_chat_template, load_tokenizer

FORMS = {"f32": ("F32", 4, "float32"), "bf16": ("BF16", 2, "bfloat16")}
"""Our name to safetensors' dtype, bytes per weight, and torch's name."""


def fingerprint(model: Path) -> str:
    """A name for what is made from ``model``: its own, and the start of its SHA-256, so that a new file is never taken for
    an old one."""
    with open(model, "rb") as file:
        return f"{model.stem}-{hashlib.file_digest(file, 'sha256').hexdigest()[:8]}"


def converted(model: Path, directory: Path, form: str = "bf16") -> Path:
    """The folder with ``model``'s weights as ``form``, made once below ``directory / "weights"``. Raises ``PeerError``."""
    if model.is_dir():
        raise PeerError(f"{model} is a folder; the comparison needs a GGUF file, which llama.cpp reads too")
    made = directory / "weights" / f"{fingerprint(model)}-{form}"
    if not made.exists():
        say("weights", f"writing {made.name}")
        made.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=made.parent) as scratch:
            part = Path(scratch) / made.name
            part.mkdir()
            try:
                write_folder(open_checkpoint(model), part, form)
            except FornoError as error:
                raise PeerError(f"{model} cannot be converted: {error}") from error
            part.rename(made)
    return made


def write_folder(checkpoint: Checkpoint, folder: Path, form: str) -> None:
    """``config.json``, ``model.safetensors``, and the tokenizer with its chat template, into an existing ``folder``."""
    config = {name: value for name, value in checkpoint.config.items() if value is not None}
    _write_json(folder / "config.json", config | {"torch_dtype": FORMS[form][2]})
    _write_json(folder / "generation_config.json", checkpoint.generation_config)
    write_safetensors(folder / "model.safetensors", checkpoint.tensors.values(), form)
    tokenizer = load_tokenizer(checkpoint)
    (folder / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
    template = load_chat_template(checkpoint, tokenizer)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": config["max_position_embeddings"],
        "chat_template": template.source,
        **tokenizer.special_texts,
    }
    _write_json(folder / "tokenizer_config.json", settings)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(dict(value), indent=1), encoding="utf-8")


def write_safetensors(path: Path, tensors: Iterable[Tensor], form: str) -> None:
    """One file, tensors in the order given: eight bytes of header size, the JSON header, the values."""
    dtype, size, _ = FORMS[form]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    ordered, end = list(tensors), 0
    for tensor in ordered:
        begin, end = end, end + size * math.prod(tensor.shape)
        header[tensor.name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # values stay aligned
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in ordered:
            values = dequantize(tensor)
            file.write((values if form == "f32" else round_to_bf16(values)).tobytes())


def round_to_bf16(values: np.ndarray) -> np.ndarray:
    """Finite float32 as the upper halves of its bits, uint16, rounded to nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + (np.uint32(0x7FFF) + (bits >> 16 & 1))) >> 16).astype(np.uint16)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Convert a GGUF file to a Hugging Face folder.")
    parser.add_argument("model")
    parser.add_argument("--form", default="bf16", choices=FORMS)
    parser.add_argument("--dir", type=Path, default=DEFAULT_DIR, help=f"where peers live; default: {DEFAULT_DIR}")
    options = parser.parse_args(arguments)
    print(converted(resolve(options.model), options.dir, options.form))


if __name__ == "__main__":
    main()
