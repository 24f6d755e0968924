"""The image's format: what was packed comes back bit for bit, and whatever is not exactly that is refused, never believed."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from forno import _native
from forno.kernels.cpu import image
from forno.kernels.cpu.image import Image, ImageError, image_parts, table_of
from forno.kernels.cpu.pack import PackedWeights, pack_weights
from forno.loader.dequant import row_bytes
from tests.helpers.models import tokens_for
from tests.helpers.mutate import DEADLINE, damaged
from tests.helpers.runners import Model, score_prompt

MODEL = Model.tiny("qwen2", "q4_1")
MADE_OF = {"anything": ["that", "JSON", 1]}


def packed_file(model: Model) -> bytes:
    weights = pack_weights(model.program, model.tensors, 1)
    return b"".join(image_parts(model.program, weights, MADE_OF, 2))


FILE = packed_file(MODEL)
HEADER = 48 + int.from_bytes(FILE[12:16], "little")
PAYLOAD = -(-HEADER // 4096) * 4096


def with_header(header: Any, file: bytes = FILE) -> bytes:
    """``file`` with another header, its length and digest right."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    start = file[:12] + len(raw).to_bytes(4, "little") + hashlib.sha256(raw).digest() + raw
    return start + bytes(-len(start) % 4096) + file[PAYLOAD:]


def header_of(file: bytes = FILE) -> dict[str, Any]:
    header: dict[str, Any] = json.loads(file[48:HEADER])
    return header


def read(path: Path, model: Model = MODEL, threads: int = 2) -> PackedWeights:
    with Image.open(path) as opened:
        assert opened.made_of == MADE_OF
        return opened.read(model.program, model.tensors, threads)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("image") / "x.packed"


@pytest.mark.parametrize("format", ["f32", "bf16", "q8_0", "q4_k", "w8a8"])
@pytest.mark.parametrize("threads", [1, 3])
def test_what_was_packed_comes_back(tmp_path: Path, format: str, threads: int) -> None:
    model = Model.tiny("llama", format)
    (tmp_path / "x").write_bytes(packed_file(model))
    weights = pack_weights(model.program, model.tensors, 1)
    again = read(tmp_path / "x", model, threads)
    assert (again.memory.content == weights.memory.content).all()
    assert list(again.matrices) == list(weights.matrices)
    assert all((again.vectors[name] == vector).all() for name, vector in weights.vectors.items())


def test_the_logits_are_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").write_bytes(FILE)
    expected = score_prompt(MODEL.runner(), tokens_for(1, 40))
    again = read(tmp_path / "x")
    monkeypatch.setattr("tests.helpers.runners.pack_weights", lambda *_: again)
    assert score_prompt(MODEL.runner(), tokens_for(1, 40)).tobytes() == expected.tobytes()


@given(damaged(FILE, HEADER))
@settings(max_examples=300, deadline=DEADLINE)
def test_a_damaged_header_is_refused_or_does_not_matter(scratch: Path, data: bytes) -> None:
    check_refused(scratch, data)


@given(damaged(FILE, len(FILE)))
@settings(max_examples=200, deadline=DEADLINE)
def test_damage_anywhere_is_refused_or_does_not_matter(scratch: Path, data: bytes) -> None:
    check_refused(scratch, data)


def check_refused(path: Path, data: bytes) -> None:
    """Either nothing was damaged after all, or it is noticed."""
    path.write_bytes(data)
    if data == FILE:
        assert (read(path).memory.content == np.frombuffer(FILE, np.uint8)[PAYLOAD:]).all()
        return
    with pytest.raises(ImageError):
        read(path)


@pytest.mark.parametrize("size", [0, 7, 8, 47, 48, 49, HEADER - 1, HEADER, PAYLOAD - 1, PAYLOAD, PAYLOAD + 1, len(FILE) - 1])
def test_a_truncated_file_is_refused(scratch: Path, size: int) -> None:
    scratch.write_bytes(FILE[:size])
    with pytest.raises(ImageError):
        read(scratch)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (FILE + b"\0", "has .* bytes"),
        (b"GGUF" + FILE, "does not begin"),
        (FILE[:8] + (image.VERSION + 1).to_bytes(4, "little") + FILE[12:], "version"),
        (FILE[:12] + b"\xff\xff\xff\xff" + FILE[16:], "truncated"),
        (FILE[: HEADER + 1] + b"\1" + FILE[HEADER + 2 :], "header is damaged"),
        (FILE[:-100] + bytes([FILE[-100] ^ 1]) + FILE[-99:], "checksum of mebibyte 0"),
        (with_header(b"[" * 100_000), "no JSON"),
        (with_header(b"\xff"), "no JSON"),
        (with_header([1]), "no JSON object"),
        (with_header({**header_of(), "table": []}), "other matrices"),
        (with_header({**header_of(), "table": None}), "other matrices"),
        (with_header({**header_of(), "bytes": 1 << 63}), "has .* bytes"),
        (with_header({**header_of(), "checksums": None}), "checksums"),
        (with_header({**header_of(), "checksums": "00"}), "checksums"),
        (with_header({**header_of(), "checksums": "xy"}), "checksums"),
        (with_header({**header_of(), "checksums": ""}), "0 checksums for 1 chunks"),
        (with_header({**header_of(), "checksums": "00" * 16}), "2 checksums for 1 chunks"),
    ],
)
def test_each_lie_is_named(scratch: Path, data: bytes, why: str) -> None:
    scratch.write_bytes(data)
    with pytest.raises(ImageError, match=why):
        read(scratch)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("pipe", "loop", "."):
        with pytest.raises(ImageError):
            Image.open(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        Image.open(tmp_path / "absent")


@pytest.mark.parametrize(
    "other", [Model.tiny("qwen2", "q8_0"), Model.tiny("llama", "q4_1"), Model.tiny("qwen2", "q4_1", disable=["gate_up"])]
)
def test_another_program_does_not_take_it(scratch: Path, other: Model) -> None:
    scratch.write_bytes(FILE)
    assert table_of(other.program) != table_of(MODEL.program)
    with pytest.raises(ImageError, match="other matrices"):
        read(scratch, other)


@pytest.mark.parametrize("at", [0, 5, (1 << 20) - 1, 1 << 20, (5 << 19) - 64, (5 << 19) - 1])
def test_every_chunk_is_checked(scratch: Path, at: int) -> None:
    """Two and a half chunks, read by more threads than there are."""
    values = np.random.default_rng(0).standard_normal((64, 10240)).astype(np.float32)
    memories = [_native.WeightMemory(values.nbytes) for _ in range(2)]
    given, taken = (_native.PackedMatrix("f32", *values.shape, memory=memory) for memory in memories)
    given.pack(values.view(np.uint8).reshape(-1))
    sums = memories[0].checksums(3)
    assert (len(sums), sums) == (3, memories[0].checksums(1))
    data = bytearray(b"offset" + memories[0].content.tobytes())
    scratch.write_bytes(data)
    with open(scratch, "rb") as file:
        assert memories[1].read(file.fileno(), 6, sums, 8) is None
        assert (taken.dequantize() == values).all()
        assert "of mebibyte 0 " in memories[1].read(file.fileno(), 5, sums, 1)
        assert memories[1].read(file.fileno(), len(data), sums, 1) == "the file ends early"
    data[6 + at] ^= 16
    scratch.write_bytes(data)
    with open(scratch, "rb") as file:
        assert f"mebibyte {at >> 20} " in memories[1].read(file.fileno(), 6, sums, 1)


def test_a_memory_is_read_from_what_can_be_read(tmp_path: Path) -> None:
    memory = _native.WeightMemory(4096)
    assert memory.read(-1, 0, [], 1) is None, "nothing handed out, nothing to read"
    _native.PackedMatrix("f32", 3, 16, memory=memory)
    sums = memory.checksums(1)
    assert "Bad file descriptor" in memory.read(-1, 0, sums, 1)
    with pytest.raises(ValueError, match="negative"):
        memory.read(0, -1, sums, 1)
    for threads in (0, 1025):
        with pytest.raises(ValueError, match="threads"):
            memory.read(0, 0, sums, threads)
        with pytest.raises(ValueError, match="threads"):
            memory.checksums(threads)


def test_the_content_keeps_the_memory() -> None:
    memory = _native.WeightMemory(4096)
    matrix = _native.PackedMatrix("f32", 3, 16, memory=memory)
    matrix.pack(np.ones((3, 16), np.float32).view(np.uint8).reshape(-1))
    content = memory.content
    del memory, matrix
    assert content.view(np.float32).sum() == 48
    assert not content.flags.writeable


def packed_sum(format: str, source: str) -> int:
    """The checksum of a weight packed from the same bytes on every machine, as they are or quantized from ``source``."""
    n, k = 70, 512
    memory = _native.WeightMemory(_native.packed_bytes(format, n, k))
    matrix = _native.PackedMatrix(format, n, k, memory=memory)
    counter = np.arange(n * row_bytes(source or format, k), dtype=np.int64)
    values = ((counter[: n * k] * 7919 % 1001 - 500) / 512).astype(np.float32)  # exact
    if source:
        data = values if source == "f32" else (values.view(np.uint32) >> 16).astype(np.uint16)
    else:
        data = (counter * 2654435761 >> 13).astype(np.uint8)
    matrix.pack(data.view(np.uint8), source, scales=values[:n].copy() if format == "w8a8" else None)
    return int(memory.checksums(1)[0])


LAYOUT_SUMS = {
    ("f32", ""): 0xB84E8DDA1AF8BAF3,
    ("f16", ""): 0x303876DCB9F714C4,
    ("q4_0", ""): 0x1F2DC343C551A008,
    ("q4_1", ""): 0x1BD4D553521DB0D3,
    ("q5_0", ""): 0x6D57A45E5A00F7DE,
    ("q5_1", ""): 0x85A2AB14DBF5E719,
    ("q8_0", ""): 0xE0A58D652557F1D1,
    ("q4_k", ""): 0x208D38A9FEAA08EF,
    ("q5_k", ""): 0x2A911D3E79F47F95,
    ("q6_k", ""): 0x1A787D8D27F34313,
    ("iq4_nl", ""): 0x1F2DC343C551A008,
    ("bf16", ""): 0x79E6A95A76813833,
    ("w8a8", ""): 0x776FB19AE40ADBC3,
    ("q8_0", "f32"): 0x9EDB75D08908202C,
    ("q8_0", "bf16"): 0xEF58960B40304F1C,
    ("q4_1", "f32"): 0xC02BFC1EF3AC26A4,
    ("q4_1", "bf16"): 0xA021C4B7AA44AA11,
}
"""By format and what it is quantized from."""


@pytest.mark.parametrize(("format", "source"), LAYOUT_SUMS)
def test_the_layouts_number_stands_for_these_bytes(format: str, source: str) -> None:
    """If this fails, images that users have would be read as what they are not: raise ``kPackedLayout``, then change this."""
    assert _native.PACKED_LAYOUT == 1
    assert packed_sum(format, source) == LAYOUT_SUMS[format, source]
