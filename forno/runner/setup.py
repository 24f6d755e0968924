"""The choices made once at start: formats and passes, threads, instruction set, and how many KV blocks fit.

Every choice that cannot be honoured is a ``ConfigError`` that names the option.
"""

from __future__ import annotations

from dataclasses import replace

from forno import _native
from forno.config import EngineConfig
from forno.errors import ConfigError
from forno.kernels.cpu import cpuinfo
from forno.kernels.cpu.lower import KV_DTYPES, Limits
from forno.loader.checkpoint import Checkpoint
from forno.loader.dequant import QUANTIZED_FORMATS
from forno.loader.open import check_tensors
from forno.models import build_program
from forno.program import ops, passes
from forno.program.formats import FORMATS
from forno.program.program import Program

SPIN_US = 50
"""Microseconds a waiting thread spins: longer than the gap between steps, shorter than anyone notices."""
MAX_THREADS = 1024
GIB = 1 << 30
AUTO_KV_SHARE, AUTO_KV_LIMIT = 0.25, 4 * GIB
"""Share of the free memory that the KV cache takes unless told, and its limit in bytes."""
SCORES_SHARE = 0.25
"""Most of the free memory that materialized attention may reserve."""


def build(checkpoint: Checkpoint, config: EngineConfig) -> Program:
    """The program of ``checkpoint``, with formats, KV type and passes as ``config`` says.

    Raises ``CheckpointError`` if the checkpoint lacks a weight or has it in another shape.
    """
    program = build_program(checkpoint.config)
    check_tensors(program, checkpoint)
    formats = {name: checkpoint.tensors[name].format for name in program.weights}
    program = program.with_formats({**formats, **_quantized(program, formats, config.model.quantize)})
    program = program.with_kv_dtype(_kv_dtype(program, config.cache.kv_cache_dtype))
    if config.cpu.attention == "materialized":
        program = program.with_materialized_attention()
    return passes.apply(program, passes.pass_names(config.cpu.disable_passes))


def _quantized(program: Program, formats: dict[str, str], quantize: str) -> dict[str, str]:
    """Formats of the float matrices under ``--quantize``. Embedding and head keep 8 bits: they are the most sensitive."""
    if quantize == "none":
        return {}
    matrices = [n for n, w in program.weights.items() if len(w.shape) == 2 and FORMATS[formats.get(n, w.format)].block == 1]
    ends = {op.weight for op in program.ops if isinstance(op, (ops.Embed, ops.SampleHead))}
    logits = {op.logits for op in program.ops if isinstance(op, ops.Sample)}
    ends |= {w for op in program.ops if isinstance(op, ops.Linear) and op.out in logits for w in op.weights}
    return {name: QUANTIZED_FORMATS["int8" if name in ends else quantize] for name in matrices}


def _kv_dtype(program: Program, wanted: str) -> str:
    if wanted != "auto":
        return wanted
    plain = all(w.format == "f32" for w in program.weights.values() if len(w.shape) == 2)
    return "float32" if plain else "bf16"


def choose_threads(wanted: int) -> int:
    """``--threads``, or what affinity and the cgroup quota allow."""
    if not 0 <= wanted <= MAX_THREADS:
        raise ConfigError(f"--threads must be between 0 and {MAX_THREADS}, got {wanted}")
    return wanted or min(cpuinfo.usable_threads(), MAX_THREADS)


def choose_isa(wanted: str) -> str:
    """``--isa``, or the best that this machine runs."""
    available = list(_native.available_isas())
    if wanted == "auto":
        return available[0]
    if wanted not in available:
        raise ConfigError(f"--isa {wanted}: this machine can run {', '.join(available)}")
    return wanted


def choose_limits(program: Program, config: EngineConfig, threads: int, isa: str) -> Limits:
    """Sizes of the executor. The cache takes what the options or the free memory give, and no more than all requests
    at their longest could use. ``ConfigError`` if it cannot hold one request of ``--max-model-len``."""
    cache, scheduler = config.cache, config.scheduler
    longest = config.model.max_model_len or program.max_positions
    if not 1 <= longest <= program.max_positions:
        raise ConfigError(f"--max-model-len must be between 1 and the model's {program.max_positions}, got {longest}")
    per_block = block_bytes(program, cache.block_size)
    needed = -(-longest // cache.block_size)
    num_blocks = cache.num_blocks_override
    if num_blocks < 0:
        raise ConfigError(f"--num-blocks-override must not be negative, got {num_blocks}")
    if num_blocks == 0:
        memory = cache.kv_cache_memory * GIB or min(cpuinfo.memory()[1] * AUTO_KV_SHARE, AUTO_KV_LIMIT)
        num_blocks = min(int(memory // per_block), needed * scheduler.max_num_seqs + 1)
    held = num_blocks * cache.block_size
    if num_blocks < 1 or (held < longest and config.model.max_model_len):
        raise ConfigError(
            f"the KV cache holds {held} tokens, but one request may need {longest} ({needed * per_block / GIB:.2f} GiB); "
            "raise --kv-cache-memory, lower --max-model-len, or choose --kv-cache-dtype int8"
        )
    limits = Limits(
        threads=threads,
        isa=isa,
        spin_us=SPIN_US if threads <= cpuinfo.usable_threads() else 0,
        max_rows=scheduler.max_num_batched_tokens,
        max_positions=longest,
        num_blocks=num_blocks,
        block_size=cache.block_size,
    )
    limits = limits if held >= longest else replace(limits, max_positions=held)
    _check_score_matrix(program, limits)
    return limits


def _check_score_matrix(program: Program, limits: Limits) -> None:
    """Refuse materialized attention whose scores would take more than ``SCORES_SHARE`` of the free memory."""
    heads = max((op.heads for op in program.ops if isinstance(op, ops.Attention) and op.materialized), default=0)
    needed = _native.score_matrix_bytes(heads, limits.max_rows, limits.max_positions)
    if needed > cpuinfo.memory()[1] * SCORES_SHARE:
        raise ConfigError(
            f"--attention materialized needs {needed / GIB:.2f} GiB for scores of {limits.max_rows} rows, {heads} heads and "
            f"{limits.max_positions} keys, more than {SCORES_SHARE:.0%} of the free memory; lower --max-model-len or "
            "--max-num-batched-tokens, or choose --attention tiled"
        )


def block_bytes(program: Program, block_size: int) -> int:
    """Bytes of one KV block over all layers, padding included."""
    return sum(
        int(_native.kv_block_bytes(c.kv_heads, c.k_dim, c.v_dim, KV_DTYPES[c.dtype], block_size))
        for c in program.caches.values()
    )
