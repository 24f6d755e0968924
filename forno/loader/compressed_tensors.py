"""W8A8 checkpoints in the ``compressed-tensors`` format: int8 weights with a scale per output, to tensors of format ``w8a8``.

What such a checkpoint says about its activations (int8, one scale per token, found at run time) is what the format means in
a program; everything else is refused by name. Source: compressed-tensors (vllm-project), ``QuantizationConfig``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from forno.errors import CheckpointError, UnsupportedError
from forno.loader.checkpoint import Tensor
from forno.loader.dequant import dequantize

METHOD = "compressed-tensors"
FORMAT = "w8a8"
_SUPPORTED = "forno reads int8 weights with one scale per output (symmetric) and int8 activations with one per token (dynamic)"

_WEIGHTS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False, "group_size": None}
_ACTIVATIONS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True, "group_size": None}
"""What a scheme has to say; an absent field is as here, as its default is not (but for ``group_size``)."""
_SCALE, _ZERO_POINT = "_scale", "_zero_point"


def check_scheme(quantization: Mapping[str, Any], source: str) -> None:
    """That ``quantization_config`` describes W8A8 and nothing else.

    Raises ``UnsupportedError`` naming the first field that asks for more, ``CheckpointError`` for a malformed one.
    """
    groups = quantization.get("config_groups")
    if not isinstance(groups, dict) or not groups or not all(isinstance(group, dict) for group in groups.values()):
        raise CheckpointError(f"{source}: quantization_config.config_groups has to be an object of named groups")
    for name, group in groups.items():
        where = f"config_groups.{name}."
        layout = group.get("format", quantization.get("format"))
        if layout != "int-quantized":
            raise _unsupported(source, "format", layout)
        _check_fields(group.get("weights"), _WEIGHTS, source, where + "weights")
        _check_fields(group.get("input_activations"), _ACTIVATIONS, source, where + "input_activations")
        if group.get("output_activations") is not None:
            raise _unsupported(source, where + "output_activations", group["output_activations"])
    if quantization.get("kv_cache_scheme") is not None:
        raise _unsupported(source, "kv_cache_scheme", quantization["kv_cache_scheme"])
    sparsity = quantization.get("sparsity_config")
    if sparsity and not (isinstance(sparsity, dict) and sparsity.get("format") == "dense"):
        raise _unsupported(source, "sparsity_config", sparsity)


def _check_fields(scheme: Any, wanted: Mapping[str, Any], source: str, where: str) -> None:
    if not isinstance(scheme, dict):
        raise _unsupported(source, where, scheme)
    for field, value in wanted.items():
        found = scheme.get(field, None if field == "group_size" else "absent")
        if type(found) is not type(value) or found != value:
            raise _unsupported(source, f"{where}.{field}", found)


def _unsupported(source: str, field: str, value: Any) -> UnsupportedError:
    return UnsupportedError(f"{source}: quantization_config.{field} is {value!r:.60}; {_SUPPORTED}")


def join_scales(tensors: Mapping[str, Tensor], directory: Path) -> dict[str, Tensor]:
    """``tensors`` with every int8 weight joined by its ``*_scale``, and those left out; float weights stay as they are.

    Raises ``CheckpointError`` for a scale that is missing, malformed or has no weight, ``UnsupportedError`` for zero points.
    """
    joined = {}
    for name, tensor in tensors.items():
        if name.endswith((_SCALE, _ZERO_POINT)):
            weight = name.removesuffix(_SCALE).removesuffix(_ZERO_POINT)
            if weight not in tensors or tensors[weight].format != FORMAT:
                raise CheckpointError(f"{directory}: {name!r} belongs to no int8 weight")
        elif tensor.format == FORMAT:
            _check_zero_point(tensors.get(name + _ZERO_POINT), directory)
            joined[name] = replace(tensor, scales=_scales(tensor, tensors.get(name + _SCALE), directory))
        else:
            joined[name] = tensor
    return joined


def _scales(weight: Tensor, scale: Tensor | None, directory: Path) -> np.ndarray:
    """float32 ``[out]``."""
    if scale is None:
        raise CheckpointError(f"{directory}: the int8 weight {weight.name!r} has no scale ({weight.name + _SCALE})")
    outputs = weight.shape[0] if len(weight.shape) == 2 else 0
    if not outputs or scale.shape not in ((outputs,), (outputs, 1)):
        raise CheckpointError(
            f"{directory}: {scale.name!r} has the shape {scale.shape}; "
            f"a weight of shape {weight.shape} needs one scale per output"
        )
    if scale.format == FORMAT:
        raise CheckpointError(f"{directory}: {scale.name!r} is int8; scales are floats")
    values = dequantize(scale).reshape(outputs)
    if not (np.isfinite(values) & (values >= 0)).all():
        raise CheckpointError(f"{directory}: {scale.name!r} holds scales that are negative or not finite")
    return values


def _check_zero_point(tensor: Tensor | None, directory: Path) -> None:
    """Older writers store the zeros of symmetric weights."""
    if tensor is not None and tensor.data.any():
        raise UnsupportedError(f"{directory}: {tensor.name!r} is not zero; {_SUPPORTED}")
