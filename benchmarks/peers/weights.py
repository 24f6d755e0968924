"""A GGUF file as a folder that Hugging Face's libraries read: the same weights for engines that read nothing else.

Weights are dequantized, so every engine starts from what the file says; what an engine makes of them is its own affair.

    python -m benchmarks.peers.weights MODEL [--form f32] [--dir DIR]      prints the folder

Knows forno's loader, no engine.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.peers.place import DEFAULT_DIR, PeerError, say
from benchmarks.weights import to_bf16
from benchmarks.writers import complete, write_json, write_safetensors
from forno.errors import FornoError
from forno.loader.checkpoint import Checkpoint, Tensor
from forno.loader.dequant import dequantize
from forno.loader.open import open_checkpoint
from forno.loader.sources import resolve
from forno.text import load_chat_template, load_tokenizer

FORMS = {"f32": ("F32", "float32"), "bf16": ("BF16", "bfloat16")}
"""Our name to safetensors' dtype and torch's."""


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
        with complete(made) as part:
            part.mkdir()
            try:
                write_folder(open_checkpoint(model), part, form)
            except FornoError as error:
                raise PeerError(f"{model} cannot be converted: {error}") from error
    return made


def write_folder(checkpoint: Checkpoint, folder: Path, form: str) -> None:
    """``config.json``, ``model.safetensors``, and the tokenizer with its chat template, into an existing ``folder``."""
    config = {name: value for name, value in checkpoint.config.items() if value is not None}
    write_json(folder / "config.json", config | {"torch_dtype": FORMS[form][1]})
    write_json(folder / "generation_config.json", checkpoint.generation_config)
    write_safetensors(folder / "model.safetensors", (_stored(tensor, form) for tensor in checkpoint.tensors.values()))
    write_tokenizer(checkpoint, folder)


def write_tokenizer(checkpoint: Checkpoint, folder: Path) -> None:
    """The tokenizer with its chat template, into an existing ``folder``."""
    tokenizer = load_tokenizer(checkpoint)
    (folder / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
    template = load_chat_template(checkpoint, tokenizer)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": checkpoint.config["max_position_embeddings"],
        "chat_template": template.source,
        **tokenizer.special_texts,
    }
    write_json(folder / "tokenizer_config.json", settings)


def _stored(tensor: Tensor, form: str) -> tuple[str, str, np.ndarray]:
    values = dequantize(tensor)
    return tensor.name, FORMS[form][0], values if form == "f32" else to_bf16(values)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Convert a GGUF file to a Hugging Face folder.")
    parser.add_argument("model")
    parser.add_argument("--form", default="bf16", choices=FORMS)
    parser.add_argument("--dir", type=Path, default=DEFAULT_DIR, help=f"where peers live; default: {DEFAULT_DIR}")
    options = parser.parse_args(arguments)
    print(converted(resolve(options.model), options.dir, options.form))


if __name__ == "__main__":
    main()
