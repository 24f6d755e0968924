"""Start-up choices, and a runner from a model file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forno import _native
from forno.config import CacheConfig, CpuConfig, EngineConfig, ModelConfig, SchedulerConfig
from forno.errors import CheckpointError, ConfigError
from forno.kernels.cpu import cpuinfo
from forno.loader.checkpoint import Checkpoint
from forno.loader.dequant import QUANTIZED_FORMATS
from forno.loader.open import open_checkpoint
from forno.phases import PhaseClock
from forno.runner import setup
from forno.runner.cpu import CpuRunner
from tests.helpers.gguf_writer import write_tiny_gguf
from tests.helpers.runners import generate, request
from tests.helpers.safetensors_writer import write_tiny_directory
from tests.helpers.tiny import TinyModel
from tests.server.harness import eventually

SMALL = CacheConfig(num_blocks_override=16)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return open_checkpoint(write_tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf"))


def config(**changes: Any) -> EngineConfig:
    return replace(EngineConfig(cache=SMALL, cpu=CpuConfig(threads=1)), **changes)


def test_a_runner_from_a_file_generates_and_tells_how_it_started(checkpoint: Checkpoint) -> None:
    clock = PhaseClock()
    runner = CpuRunner.from_checkpoint(checkpoint, config(), clock)
    assert len(generate(runner, request([1, 2, 3]), 5)) == 5
    assert [name for name, _ in clock.phases] == ["program", "pack", "cache", "warm"]
    assert all(seconds > 0 for _, seconds in clock.phases)
    assert (runner.num_blocks, runner.block_size, runner.max_model_len, runner.threads) == (16, 32, 512, 1)
    assert runner.isa == _native.available_isas()[0]
    assert runner.executor.num_requests == 0
    assert runner.weight_bytes > 0
    assert runner.kv_bytes >= 16 * setup.block_bytes(runner.program, 32)


def test_idle_moments_claim_the_caches_memory_up_to_the_option(checkpoint: Checkpoint) -> None:
    lazy, eager = (CpuRunner.from_checkpoint(checkpoint, config()) for _ in range(2))
    lazy.prefault(0.0)
    eager.prefault(1e9)
    eventually(lambda: eager.executor.prefaulted == eager.kv_bytes, 60.0)
    assert lazy.executor.prefaulted == 0
    assert generate(lazy, request([1, 2, 3]), 5) == generate(eager, request([1, 2, 3]), 5)


def test_a_runner_may_go_while_its_memory_is_being_claimed(checkpoint: Checkpoint) -> None:
    runner = CpuRunner.from_checkpoint(checkpoint, config(cache=CacheConfig(num_blocks_override=4096)))
    runner.prefault(1.0)
    assert len(generate(runner, request([1, 2, 3]), 5)) == 5


@pytest.mark.parametrize("isa", _native.available_isas())
def test_gguf_and_safetensors_of_one_model_give_the_same_tokens(tmp_path: Path, checkpoint: Checkpoint, isa: str) -> None:
    directory = open_checkpoint(write_tiny_directory(tmp_path / "model"))
    chosen = config(cpu=CpuConfig(threads=2, isa=isa))
    tokens = [generate(CpuRunner.from_checkpoint(c, chosen), request(range(20)), 12) for c in (checkpoint, directory)]
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_quantizing_while_loading(tmp_path: Path, quantize: str) -> None:
    checkpoint = open_checkpoint(write_tiny_directory(tmp_path / "model", TinyModel(tied=False), "bf16"))
    program = setup.build(checkpoint, config(model=ModelConfig(quantize=quantize)))
    formats = {n: w.format for n, w in program.weights.items() if len(w.shape) == 2}
    ends = {"model.embed_tokens.weight", "lm_head.weight"}
    assert {formats[n] for n in ends} == {"q8_0"}
    assert {f for n, f in formats.items() if n not in ends} == {QUANTIZED_FORMATS[quantize]}
    runner = CpuRunner.from_checkpoint(checkpoint, config(model=ModelConfig(quantize=quantize)))
    assert len(generate(runner, request([5, 6]), 3)) == 3


def test_quantized_files_stay_as_they_are(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_tiny_gguf(tmp_path / "tiny.gguf", form="q4_0"))
    program = setup.build(checkpoint, config(model=ModelConfig(quantize="int8")))
    assert {w.format for w in program.weights.values() if len(w.shape) == 2} == {"q4_0"}


def test_the_cache_type_follows_the_weights_unless_told(tmp_path: Path, checkpoint: Checkpoint) -> None:
    quantized = open_checkpoint(write_tiny_gguf(tmp_path / "tiny.gguf", form="q8_0"))
    for given, told, expected in (
        (checkpoint, "auto", "float32"),
        (quantized, "auto", "bf16"),
        (checkpoint, "int8", "int8"),
    ):
        cache = replace(SMALL, kv_cache_dtype=told)
        assert {c.dtype for c in setup.build(given, config(cache=cache)).caches.values()} == {expected}


def test_weights_that_do_not_divide_into_groups_cannot_be_quantized(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_tiny_directory(tmp_path / "model", TinyModel(hidden=48, ffn=80)))
    with pytest.raises(CheckpointError, match="multiple of the 32"):
        setup.build(checkpoint, config(model=ModelConfig(quantize="int8")))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cpu": CpuConfig(threads=-1)}, "--threads"),
        ({"cpu": CpuConfig(threads=5000)}, "--threads"),
        ({"cpu": CpuConfig(disable_passes="qkv,nonsense")}, "nonsense"),
        ({"model": ModelConfig(max_model_len=513)}, "--max-model-len"),
        ({"model": ModelConfig(max_model_len=-1)}, "--max-model-len"),
        ({"model": ModelConfig(max_model_len=512), "cache": CacheConfig(num_blocks_override=15)}, "holds 480 tokens"),
        ({"cache": CacheConfig(kv_cache_memory=1e-9)}, "holds 0 tokens"),
        (
            {"cpu": CpuConfig(attention="materialized"), "scheduler": SchedulerConfig(max_num_batched_tokens=1 << 28)},
            "--attention materialized needs .* GiB for scores of 268435456 rows",
        ),
        ({"cache": CacheConfig(num_blocks_override=-1)}, "--num-blocks-override must not be negative, got -1"),
    ],
)
def test_options_that_cannot_be_honoured_are_named(checkpoint: Checkpoint, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CpuRunner.from_checkpoint(checkpoint, config(**changes))


def test_the_model_length_shrinks_to_what_the_cache_holds(checkpoint: Checkpoint) -> None:
    runner = CpuRunner.from_checkpoint(checkpoint, config(cache=CacheConfig(num_blocks_override=3)))
    assert runner.max_model_len == 96


def test_the_cache_is_no_larger_than_all_requests_could_use(checkpoint: Checkpoint) -> None:
    few = config(cache=CacheConfig(), scheduler=SchedulerConfig(max_num_seqs=2))
    limits = setup.choose_limits(setup.build(checkpoint, few), few, 1, "portable")
    assert limits.num_blocks == 2 * 512 // 32 + 1


def test_threads_beyond_the_usable_cores_do_not_spin(checkpoint: Checkpoint) -> None:
    program, usable = setup.build(checkpoint, config()), cpuinfo.usable_threads()
    spins = [setup.choose_limits(program, config(), threads, "portable").spin_us for threads in (usable, usable + 1)]
    assert spins == [setup.SPIN_US, 0]
    assert setup.choose_threads(0) == usable
