"""Frozen settings, one dataclass per concern. The command line is derived from these fields: a field
``max_num_seqs`` is the flag ``--max-num-seqs``, its metadata ``help`` the help text, ``choices`` the choices.

A config is never changed after construction: derive a new one with ``dataclasses.replace``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from forno.errors import ConfigError

DEFAULT_MODEL = "smollm2-135m"
LEAST_MIXED = 32
"""Rows that a step with prompt tokens may always have: fewer would leave a CPU's arithmetic units half idle."""


def option(default: Any, help: str, **metadata: Any) -> Any:
    """A documented field. ``metadata`` may hold ``choices`` and ``metavar`` for the command line."""
    return field(default=default, metadata={"help": help, **metadata})


def _check_values(config: Any) -> None:
    """Raise ``ConfigError`` for a value that is not among its field's ``choices``, or a fraction that is no amount."""
    for spec in fields(config):
        choices, value = spec.metadata.get("choices"), getattr(config, spec.name)
        if choices is not None and value not in choices:
            raise ConfigError(f"--{spec.name.replace('_', '-')} must be one of {', '.join(choices)}, got {value!r}")
        if isinstance(value, float) and not (math.isfinite(value) and value >= 0):
            raise ConfigError(f"--{spec.name.replace('_', '-')} must be a finite number, at least 0, got {value}")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Which model, and how its weights are held."""

    model: str = option(
        DEFAULT_MODEL, "A GGUF file, a directory with config.json and safetensors, hf:owner/name[:file], or a built-in name."
    )
    served_model_name: str = option("", "The name clients use; default: the model's own name.")
    quantize: str = option(
        "none", "Quantize fp32/fp16/bf16 weights while loading, in groups of 32.", choices=("none", "int8", "int4")
    )
    packed_image: str = option(
        "auto",
        "Keep the packed weights in a file beside the model, or in the cache directory, and read it at the next start; auto: "
        "where --quantize converts weights, which takes seconds. Others are packed as fast as an image is read.",
        choices=("auto", "on", "off"),
    )
    max_model_len: int = option(0, "Longest prompt plus output in tokens; 0: the model's own, or what the KV memory holds.")
    chat_template: str = option("", "A file with a Jinja chat template, instead of the model's own.")

    def __post_init__(self) -> None:
        _check_values(self)


@dataclass(frozen=True, slots=True)
class CpuConfig:
    """Which cores and which instruction set compute."""

    threads: int = option(0, "Compute threads; 0: what affinity and the cgroup quota allow.")
    isa: str = option("auto", "Instruction set of the kernels.", choices=("auto", "avx512", "avx2", "portable"))
    attention: str = option(
        "tiled",
        "tiled: scores stay in the cores' caches; materialized: the whole score matrix is written to memory and read again, "
        "for measurement.",
        choices=("tiled", "materialized"),
    )
    disable_passes: str = option("", "Comma-separated fusion passes to leave out, for measurement (see `forno program`).")

    def __post_init__(self) -> None:
        _check_values(self)


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The KV cache. Its memory is bounded at start."""

    block_size: int = option(32, "Tokens per KV block; a multiple of 32.")
    kv_cache_dtype: str = option(
        "auto",
        "Type of cached K and V; auto: bf16, float32 for float32 weights; int8: half of bf16, a scale for every 32 values.",
        choices=("auto", "bf16", "int8", "float32"),
    )
    kv_cache_memory: float = option(0.0, "GiB for the KV cache; 0: a quarter of the free memory, at most 4.")
    kv_cache_prefault: float = option(
        1.0, "GiB of the KV cache claimed from the system between requests after the start; 0: as it is used."
    )
    num_blocks_override: int = option(0, "Exact number of KV blocks, for tests; 0: derived from the memory.")
    enable_prefix_caching: bool = option(True, "Reuse the KV blocks of prompts that share a prefix.")
    kv_reservation: str = option(
        "paged",
        "paged: blocks as they are needed. For comparison, as servers before paging: each request gets one run of "
        "neighbouring blocks at admission, for --max-model-len (contiguous) or for its prompt and max_tokens "
        "(contiguous-as-asked); no prefix is shared then.",
        choices=("paged", "contiguous", "contiguous-as-asked"),
    )
    explain_salts: bool = option(
        False,
        "Tell in metrics and explanations that a prompt missed because it is cached for another cache_salt only. Whoever can "
        "read those then learns whether somebody else's prompt is cached.",
    )

    def __post_init__(self) -> None:
        _check_values(self)
        if self.block_size < 32 or self.block_size % 32:
            raise ConfigError(f"--block-size must be a multiple of 32, got {self.block_size}")


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Who runs in the next step."""

    max_num_seqs: int = option(64, "Most requests in one step.")
    max_num_batched_tokens: int = option(256, "Token budget of one step.")
    mixed_step_stretch: float = option(
        1.75,
        "How many times as long as decoding alone a step may take that also computes prompts, so that a long prompt does not "
        "hold up the others; more where more requests wait than decode. 0: no limit but the token budget.",
    )
    enable_chunked_prefill: bool = option(True, "Split long prompts over steps so that decodes keep flowing.")
    long_prefill_token_threshold: int = option(0, "Longest chunk of one prompt per step; 0: the whole budget.")
    scheduling_policy: str = option(
        "fcfs", "Order of admission: arrival, or priority (lower first).", choices=("fcfs", "priority")
    )
    batching: str = option(
        "continuous",
        "continuous; static: a full batch runs to its end; dynamic: a batch starts when full or after a delay.",
        choices=("continuous", "static", "dynamic"),
    )
    batch_max_delay: float = option(0.05, "Seconds that dynamic batching waits for a batch to fill.")
    max_num_queued_reqs: int = option(1024, "Waiting requests before new ones are refused with 429; 0: no limit.")
    max_num_queued_tokens: int = option(0, "Waiting prompt tokens before new requests are refused; 0: no limit.")

    def __post_init__(self) -> None:
        _check_values(self)
        if 0 < self.mixed_step_stretch < 1:
            raise ConfigError(f"--mixed-step-stretch must be 0 or at least 1, got {self.mixed_step_stretch}")
        if self.max_num_seqs < 1:
            raise ConfigError(f"--max-num-seqs must be at least 1, got {self.max_num_seqs}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"--max-num-batched-tokens ({self.max_num_batched_tokens}) must be at least "
                f"--max-num-seqs ({self.max_num_seqs}), or a full batch could not decode in one step"
            )


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """Guessing several tokens and verifying them in one step. Changes no output."""

    speculative: str = option(
        "none",
        "ngram: guess that text goes on as it did after the same tokens before (prompt lookup), in steps so small that "
        "another row costs little.",
        choices=("none", "ngram"),
    )
    num_speculative_tokens: int = option(8, "Most tokens guessed for one request in one step.")
    prompt_lookup_max: int = option(4, "Longest run of tokens that is compared.")
    prompt_lookup_min: int = option(2, "Shortest run of tokens that must occur again.")
    speculative_max_rows: int = option(12, "Most tokens, guesses included, of a step in which any are guessed.")

    def __post_init__(self) -> None:
        _check_values(self)
        if self.num_speculative_tokens < 1:
            raise ConfigError(f"--num-speculative-tokens must be at least 1, got {self.num_speculative_tokens}")
        if not 1 <= self.prompt_lookup_min <= self.prompt_lookup_max:
            raise ConfigError(
                f"--prompt-lookup-min ({self.prompt_lookup_min}) must be between 1 and "
                f"--prompt-lookup-max ({self.prompt_lookup_max})"
            )
        if self.speculative_max_rows < 2:
            raise ConfigError(
                f"--speculative-max-rows must be at least 2, for a token and a guess, got {self.speculative_max_rows}"
            )


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The HTTP front."""

    host: str = option("127.0.0.1", "Address to bind; loopback unless you say otherwise.")
    port: int = option(8000, "Port to bind; 0 picks a free one.")
    api_key: str = option("", "Key that clients must send as a bearer token; comma-separated for several.")
    api_key_file: str = option("", "File with one key per line.")
    max_body_bytes: int = option(8 << 20, "Largest request body in bytes.")
    metrics_prefix: str = option("forno", "Prefix of the Prometheus names.", choices=("forno", "vllm"))
    shutdown_timeout: float = option(30.0, "Seconds that SIGTERM waits for running requests before aborting them.")
    request_timeout: float = option(0.0, "Default deadline of a request in seconds; 0: none.")
    otlp_traces_endpoint: str = option(
        "",
        "Send OpenTelemetry spans of requests, with times and lengths and no text, to this OTLP/HTTP address, such as "
        "http://127.0.0.1:4318/v1/traces.",
        metavar="URL",
    )
    slo: str = option(
        "",
        "Latency limits that requests are counted against (goodput), by class, in seconds: "
        "'interactive:ttft=0.5,tpot=0.05;batch:e2e=60'. A request names its class in the header x-slo-class; else the first.",
    )

    def __post_init__(self) -> None:
        _check_values(self)


@dataclass(frozen=True, slots=True)
class ObserveConfig:
    """What the server remembers of its own work."""

    record: bool = option(
        True,
        "Remember the times and sizes of the last steps and requests, for `forno explain` and `forno top`; no text and no "
        "token. Costs well below 1 % and at most 8 MiB.",
    )

    def __post_init__(self) -> None:
        _check_values(self)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything an engine is built from."""

    model: ModelConfig = ModelConfig()
    cpu: CpuConfig = CpuConfig()
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    speculative: SpeculativeConfig = SpeculativeConfig()
    observe: ObserveConfig = ObserveConfig()


ENGINE_PARTS: Mapping[str, type] = {f.name: type(f.default) for f in fields(EngineConfig)}
"""Field of ``EngineConfig`` to its config class."""
