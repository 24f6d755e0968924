"""When an image is used, where it lies, and that nothing about it ever keeps a model from being served."""

from __future__ import annotations

import logging
import os
import shutil
import stat
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forno import env
from forno.config import CacheConfig, CpuConfig, EngineConfig, ModelConfig
from forno.kernels.cpu import image
from forno.loader.open import open_checkpoint
from forno.phases import PhaseClock
from forno.runner import setup, weights
from forno.runner.cpu import CpuRunner
from forno.runner.weights import WRITER, image_places
from tests.helpers.gguf_writer import write_tiny_gguf
from tests.helpers.models import tokens_for
from tests.helpers.runners import score_prompt
from tests.helpers.safetensors_writer import write_tiny_directory
from tests.helpers.tiny import TinyModel

LOGGER = "forno.runner.weights"


@pytest.fixture(autouse=True)
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Path:
    caplog.set_level(logging.INFO, LOGGER)
    monkeypatch.setenv(env.CACHE_DIR.name, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    return write_tiny_gguf(tmp_path / "models" / "tiny.gguf", form="bf16")


def start(model: Path, quantize: str = "int4", packed_image: str = "auto", isa: str = "auto") -> tuple[str, bytes]:
    """Start, wait until an image is written if one is, and tell by which phase the weights came and what they compute."""
    options = ModelConfig(quantize=quantize, packed_image=packed_image)
    config = EngineConfig(model=options, cpu=CpuConfig(threads=2, isa=isa), cache=CacheConfig(num_blocks_override=16))
    clock = PhaseClock()
    runner = CpuRunner.from_checkpoint(open_checkpoint(model), config, clock)
    for thread in threading.enumerate():
        if thread.name == WRITER:
            thread.join()
    phases = [name for name, _ in clock.phases if name in ("pack", "image")]
    return "+".join(phases), score_prompt(runner, tokens_for(0, 30)).tobytes()


def images(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.packed*")) if folder.exists() else []


def only_image(folder: Path) -> Path:
    (path,) = images(folder)
    return path


def test_what_was_quantized_once_is_read_the_next_time(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    phase, logits = start(model)
    assert phase == "pack"
    assert "wrote the packed image" in caplog.text
    written = only_image(model.parent)
    assert written.name.startswith("tiny.gguf.forno-")
    before = written.stat()
    assert start(model) == ("image", logits)
    assert start(model, isa="portable") == ("image", start(model, packed_image="off", isa="portable")[1])
    assert (written.stat().st_ino, written.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize(
    ("quantize", "packed_image", "expected"),
    [("none", "auto", False), ("none", "on", True), ("int8", "auto", True), ("int8", "off", False), ("int4", "on", True)],
)
def test_an_image_is_written_where_it_pays_or_is_wanted(model: Path, quantize: str, packed_image: str, expected: bool) -> None:
    phase, logits = start(model, quantize, packed_image)
    assert (phase, bool(images(model.parent))) == ("pack", expected)
    assert start(model, quantize, packed_image) == ("image" if expected else "pack", logits)


def test_every_setting_has_an_image_of_its_own(model: Path) -> None:
    first = {q: start(model, q, "on") for q in ("none", "int8", "int4")}
    assert {phase for phase, _ in first.values()} == {"pack"}
    assert len(images(model.parent)) == 3
    assert {q: start(model, q, "on") for q in first} == {q: ("image", logits) for q, (_, logits) in first.items()}


@pytest.mark.parametrize("shards", [1, 3])
def test_directories_have_images_too(tmp_path: Path, shards: int) -> None:
    folder = write_tiny_directory(tmp_path / "model", TinyModel(tied=False), "bf16", shards=shards)
    phase, logits = start(folder)
    assert phase == "pack"
    assert only_image(folder).name.startswith("model")
    assert start(folder) == ("image", logits)


def test_another_model_of_the_same_name_and_size_is_not_served_from_the_old_image(model: Path, caplog: Any) -> None:
    _, old = start(model)
    size, times = model.stat().st_size, (model.stat().st_atime_ns, model.stat().st_mtime_ns)
    write_tiny_gguf(model, TinyModel(seed=1), form="bf16")
    os.utime(model, ns=times)
    assert model.stat().st_size == size
    caplog.clear()
    phase, new = start(model)
    assert (phase, caplog.text.count("has changed since")) == ("pack", 1)
    assert new != old
    assert start(model) == ("image", new)


def test_a_model_that_was_only_moved_keeps_its_image(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashed once, and the image written again so that the start after the next does not."""
    _, logits = start(model)
    moved = shutil.copytree(model.parent, tmp_path / "moved") / model.name
    assert start(moved) == ("image", logits)
    monkeypatch.setattr(weights, "_sha256", lambda path: pytest.fail("hashed again"))
    assert start(moved) == ("image", logits)
    assert start(model) == ("image", logits)


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b[:20], lambda b: b"", lambda b: b[:-9] + b"x" + b[-8:]])
def test_a_damaged_image_is_written_again(model: Path, damage: Any, caplog: pytest.LogCaptureFixture) -> None:
    _, logits = start(model)
    path = only_image(model.parent)
    good = path.read_bytes()
    path.write_bytes(damage(good))
    caplog.clear()
    assert start(model) == ("pack", logits)
    assert [r.levelname for r in caplog.records if r.name == LOGGER] == ["WARNING", "INFO"]
    assert path.read_bytes() == good
    assert start(model) == ("image", logits)


def test_an_image_of_another_version_is_written_again(model: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    _, logits = start(model)
    path = only_image(model.parent)
    monkeypatch.setattr(image, "VERSION", image.VERSION + 1)
    assert start(model) == ("pack", logits)
    assert f"{image.VERSION - 1}, this is version {image.VERSION}" in caplog.text
    assert only_image(model.parent) == path, "no file is left for every version"
    assert start(model) == ("image", logits)


@pytest.mark.parametrize("made_of", [None, [], [1], [{}], {"a": 1}, [{"size": 1, "sha256": "x"}, {}]])
def test_an_image_that_does_not_say_what_it_is_made_of_is_not_used(model: Path, made_of: Any) -> None:
    program = setup.build(open_checkpoint(model), EngineConfig(model=ModelConfig(quantize="int4")))
    packed = weights.pack_weights(program, open_checkpoint(model).tensors, 1)
    path = image_places(program, open_checkpoint(model).files)[1]
    path.write_bytes(b"".join(image.image_parts(program, packed, made_of, 1)))
    assert start(model)[0] == "pack"
    assert start(model)[0] == "image"


def test_a_folder_that_cannot_be_written_leaves_the_image_in_the_cache(model: Path, cache_dir: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(weights.os, "access", lambda path, mode: False)  # root may write anywhere
    _, logits = start(model)
    assert not images(model.parent)
    assert len(images(cache_dir / "packed")) == 1
    assert start(model) == ("image", logits)
    other = write_tiny_gguf(model.parent.parent / "tiny.gguf", TinyModel(seed=1), form="bf16")
    assert start(other)[0] == "pack"
    assert len(images(cache_dir / "packed")) == 2, "models of one name in two folders"
    assert start(model) == ("image", logits)


def test_an_image_that_cannot_be_written_is_one_warning(model: Path, monkeypatch: Any, caplog: Any) -> None:
    def full(file: int, data: Any) -> int:
        raise OSError(28, "No space left on device")

    expected = start(model, packed_image="off")
    with monkeypatch.context() as patch:
        patch.setattr("forno.loader.whole.os.write", full)
        assert start(model) == expected
    assert [r.levelname for r in caplog.records if r.name == LOGGER] == ["WARNING"]
    assert "No space left" in caplog.text
    assert not images(model.parent)
    assert start(model) == expected


def test_a_thread_that_cannot_be_had_is_one_warning(model: Path, monkeypatch: Any, caplog: Any) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(weights.threading.Thread, "start", refuse)
    assert start(model)[0] == "pack"
    assert "can't start new thread" in caplog.text
    assert not images(model.parent)


def test_a_model_replaced_while_it_was_loaded_leaves_no_image(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoint = open_checkpoint(model)
    program = setup.build(checkpoint, EngineConfig(model=ModelConfig(quantize="int4")))
    packed = weights.pack_weights(program, checkpoint.tensors, 1)
    places = image_places(program, checkpoint.files)
    os.replace(write_tiny_gguf(model.parent / "new", TinyModel(seed=1), form="bf16"), model)
    weights.save_image(program, packed, checkpoint.files, places)
    assert "have changed since" in caplog.text
    model.unlink()
    weights.save_image(program, packed, checkpoint.files, places)
    assert "cannot be written" in caplog.text
    assert not images(model.parent)


def test_who_may_not_read_the_model_may_not_read_the_image(model: Path) -> None:
    model.chmod(0o600)
    start(model)
    assert stat.S_IMODE(only_image(model.parent).stat().st_mode) == 0o600


@pytest.mark.parametrize("grace", [0.0, 60.0])
def test_the_end_of_the_process_waits_a_little_and_no_longer(model: Path, monkeypatch: Any, caplog: Any, grace: float) -> None:
    class Ended:
        @staticmethod
        def is_alive() -> bool:
            return False

    monkeypatch.setattr(weights, "GRACE", grace)
    monkeypatch.setattr(weights.threading, "main_thread", Ended)
    start(model)
    assert len(images(model.parent)) == (1 if grace else 0)
    assert not [r for r in caplog.records if r.levelname == "WARNING"]


def test_starters_at_the_same_time_leave_one_good_image(model: Path) -> None:
    results: list[tuple[str, bytes]] = []
    threads = [threading.Thread(target=lambda: results.append(start(model))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({logits for _, logits in results}) == 1
    assert len(images(model.parent)) == 1
    assert start(model) == ("image", results[0][1])


def test_tensors_that_come_from_no_file_are_packed(model: Path) -> None:
    checkpoint = replace(open_checkpoint(model), files=())
    config = EngineConfig(model=ModelConfig(quantize="int4"))
    program = setup.build(checkpoint, config)
    clock = PhaseClock()
    packed = weights.load_weights(program, checkpoint, "on", 1, clock)
    assert [name for name, _ in clock.phases] == ["pack"]
    assert np.isfinite(packed.matrix("model.embed_tokens.weight").dequantize()).all()
    assert not images(model.parent)
