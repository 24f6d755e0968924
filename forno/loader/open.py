"""Opens whatever a model path names, and holds the result against the program that is to run it."""

from __future__ import annotations

import logging
from pathlib import Path

from forno.errors import CheckpointError, ModelError
from forno.loader.checkpoint import Checkpoint
from forno.loader.gguf import is_gguf
from forno.loader.gguf_names import open_gguf
from forno.loader.huggingface import open_directory
from forno.program.program import Program

log = logging.getLogger(__name__)

_IGNORABLE = (".rotary_emb.inv_freq", "rope_freqs.weight")
"""Constants that some files store and every program computes."""


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a GGUF file, or a directory with ``config.json`` and safetensors (or with a single GGUF file).

    Reads headers and configs only; weights stay mapped. Raises ``ModelError`` or one of its kinds.
    """
    path = Path(path)
    if path.is_dir():
        return _open_directory(path)
    if path.suffix == ".safetensors":
        raise ModelError(f"{path} holds weights without a config; name the directory it is in, with its config.json")
    if path.suffix != ".gguf" and path.is_file() and not is_gguf(path):
        raise ModelError(f"{path} is neither a GGUF file nor a directory with config.json and safetensors")
    return open_gguf(path)


def _open_directory(path: Path) -> Checkpoint:
    if (path / "config.json").exists():
        return open_directory(path)
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return open_gguf(files[0])
    if files:
        raise ModelError(f"{path} holds several GGUF files; name one of them: {', '.join(f.name for f in files[:8])}")
    raise ModelError(f"{path} has no config.json and no GGUF file; a model directory needs config.json and safetensors")


def check_tensors(program: Program, checkpoint: Checkpoint) -> tuple[str, ...]:
    """Every weight of ``program`` is in ``checkpoint`` with its shape, or ``CheckpointError`` names it and both shapes.

    Returns the names of tensors that no op reads, after one warning about them. An output head that a tied model
    stores all the same, and constants like rotary frequencies, pass silently.
    """
    for name, spec in program.weights.items():
        tensor = checkpoint.tensors.get(name)
        if tensor is None:
            raise CheckpointError(f"{checkpoint.name} has no tensor {name!r} of shape {spec.shape}, which the model needs")
        if tensor.shape != spec.shape:
            raise CheckpointError(
                f"{checkpoint.name}: tensor {name!r} has the shape {tensor.shape}, the model needs {spec.shape}"
            )
    extra = tuple(name for name in checkpoint.tensors if name not in program.weights and not _ignorable(name, checkpoint))
    if extra:
        sample = ", ".join(extra[:3]) + (", ..." if len(extra) > 3 else "")
        log.warning("%s: %d tensors are not used by the model: %s", checkpoint.name, len(extra), sample)
    return extra


def _ignorable(name: str, checkpoint: Checkpoint) -> bool:
    return name.endswith(_IGNORABLE) or (name == "lm_head.weight" and checkpoint.config.get("tie_word_embeddings") is True)
