"""Reads safetensors files, single or sharded, without the library: a JSON header, then raw little-endian values.

It knows no model: names and shapes are the file's own, which are Hugging Face's.
Source: the safetensors format description (huggingface/safetensors, README).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from forno.errors import CheckpointError, ModelError, UnsupportedError
from forno.loader.checkpoint import Tensor
from forno.loader.files import SourceFile, map_file, parse_json_object, read_json_object, source_file
from forno.program.formats import FORMATS

DTYPES = {"F32": "f32", "F16": "f16", "BF16": "bf16", "I8": "w8a8"}
"""safetensors dtype to a key of ``FORMATS``. Whoever reads int8 has to find its scales (``compressed_tensors``)."""

INDEX_NAME = "model.safetensors.index.json"

_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_MAX_DIMS = 8
_BUFFERS = (".rotary_emb.inv_freq", ".attn.masked_bias", ".attn.bias", ".position_ids")
"""Names old exporters gave to constants; they may have any dtype and no program wants them."""


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of one file by name; data stay on disk until touched, and may be unaligned.

    Raises ``ModelError`` (cannot be opened), ``CheckpointError`` (malformed), ``UnsupportedError`` (dtype).
    """
    data = map_file(path)
    if len(data) < 8:
        raise CheckpointError(f"{path} has {len(data)} bytes, too few for a safetensors file; fetch it again")
    size = int.from_bytes(data[:8].tobytes(), "little")
    if size > min(_MAX_HEADER_BYTES, len(data) - 8):
        raise CheckpointError(f"{path}: a header of {size} bytes cannot be right in a file of {len(data)}; fetch it again")
    header = parse_json_object(data[8 : 8 + size].tobytes(), f"the header of {path}")
    body = data[8 + size :]
    tensors: dict[str, Tensor] = {}
    ranges: list[tuple[int, int, str]] = []
    for name, entry in header.items():
        if name == "__metadata__" or name.endswith(_BUFFERS):
            continue
        tensor, begin, end = _tensor(name, entry, body, path)
        tensors[name] = tensor
        ranges.append((begin, end, name))
    _check_overlaps(ranges, path)
    return tensors


def _tensor(name: str, entry: Any, body: np.ndarray, path: Path) -> tuple[Tensor, int, int]:
    """One header entry as a tensor, with its range in ``body``."""
    fields = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = fields.get("dtype"), _sizes(fields.get("shape")), _sizes(fields.get("data_offsets"))
    if not isinstance(dtype, str) or shape is None or len(shape) > _MAX_DIMS or offsets is None or len(offsets) != 2:
        raise CheckpointError(f"{path}: the header entry of tensor {name!r} is malformed: {entry!r:.120}")
    if dtype not in DTYPES:
        raise UnsupportedError(f"{path}: tensor {name!r} has the dtype {dtype}; forno supports {', '.join(DTYPES)}")
    begin, end = offsets
    if not begin <= end <= len(body):
        raise CheckpointError(
            f"{path}: tensor {name!r} lies at bytes {begin} to {end} of {len(body)}; "
            "the file is truncated or damaged: fetch it again"
        )
    form = DTYPES[dtype]
    if math.prod(shape) * int(FORMATS[form].bits) != 8 * (end - begin):
        raise CheckpointError(f"{path}: tensor {name!r} of shape {shape} and dtype {dtype} cannot have {end - begin} bytes")
    return Tensor(name, tuple(shape), form, body[begin:end]), begin, end


def _sizes(value: Any) -> list[int] | None:
    """``value`` if it is a list of sizes, else None."""
    return value if isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 63 for item in value) else None


def _check_overlaps(ranges: list[tuple[int, int, str]], path: Path) -> None:
    end = 0
    for begin, stop, name in sorted(ranges):
        if begin < end:
            raise CheckpointError(f"{path}: tensor {name!r} overlaps the one before it; the header is damaged")
        end = stop


def read_directory(directory: Path) -> tuple[dict[str, Tensor], tuple[SourceFile, ...]]:
    """The tensors of a model directory and the files they come from, as they were just before.

    Taken in this order: ``model.safetensors``, the shards that ``model.safetensors.index.json`` names, the only
    ``*.safetensors`` file there is.
    """
    single, index = directory / "model.safetensors", directory / INDEX_NAME
    if not single.exists() and index.exists():
        return _read_shards(directory, index)
    if not single.exists():
        files = sorted(directory.glob("*.safetensors"))
        if len(files) != 1:
            raise _no_weights(directory, files)
        single = files[0]
    state = source_file(single)
    return read_safetensors(single), (state,)


def _no_weights(directory: Path, files: list[Path]) -> ModelError:
    if files:
        names = ", ".join(file.name for file in files[:4])
        return ModelError(f"{directory} has several safetensors files ({names}) but no {INDEX_NAME} that says which to use")
    if any(directory.glob("*.bin")):
        return UnsupportedError(
            f"{directory} has only PyTorch .bin weights; forno reads safetensors and GGUF: convert them first"
        )
    return ModelError(f"{directory} has no safetensors weights (model.safetensors, or shards with {INDEX_NAME})")


def _read_shards(directory: Path, index: Path) -> tuple[dict[str, Tensor], tuple[SourceFile, ...]]:
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: weight_map has to be an object that names a file for each tensor")
    for file in weight_map.values():
        # A plain name only: an index must not reach outside its directory.
        if not isinstance(file, str) or not file.endswith(".safetensors") or "/" in file or "\\" in file or "\0" in file:
            raise CheckpointError(f"{index}: {file!r:.120} is not the name of a .safetensors file in the same directory")
    paths = {file: directory / file for file in sorted(set(weight_map.values()))}
    missing = [file for file, path in paths.items() if not path.exists()]
    if missing:
        raise CheckpointError(f"{index} names {missing[0]}, which is not there ({len(missing)} of {len(paths)} shards missing)")
    states = tuple(source_file(path) for path in (*paths.values(), index))
    shards = {file: read_safetensors(path) for file, path in paths.items()}
    tensors: dict[str, Tensor] = {}
    for name, file in weight_map.items():
        if name in shards[file]:
            tensors[name] = shards[file][name]
        elif not name.endswith(_BUFFERS):
            raise CheckpointError(f"{index} says that {name!r} is in {file}, but it is not")
    return tensors, states
