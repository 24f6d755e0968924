"""The GGUF reader: values come back as written, by two independent writers; nothing in a file can break it."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forno.errors import CheckpointError, FornoError, ModelError, UnsupportedError
from forno.loader.checkpoint import Checkpoint
from forno.loader.dequant import dequantize
from forno.loader.gguf import TENSOR_TYPES, GgufFile, is_gguf, read_gguf
from forno.loader.gguf_names import open_gguf
from forno.loader.sources import BUILTIN_MODELS
from forno.program.formats import FORMATS
from tests.helpers.gguf_writer import RawTensor, Typed, pack_gguf, random_weights, tiny_metadata, tiny_tensors
from tests.helpers.mutate import DEADLINE, damaged
from tests.helpers.tiny import TinyModel


def read(path: Path, data: bytes) -> GgufFile:
    path.write_bytes(data)
    return read_gguf(path)


def header(tensors: int, keys: int, body: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + body


def key(name: str, kind: int, body: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind) + body


def info(name: str, dims: list[int], kind: int = 0, offset: int = 0) -> bytes:
    raw = struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", len(dims))
    return raw + struct.pack(f"<{len(dims)}Q", *dims) + struct.pack("<IQ", kind, offset)


EVERY_TYPE: dict[str, tuple[Any, Any]] = {
    "u8": (Typed("u8", 255), 255),
    "i8": (Typed("i8", -128), -128),
    "u16": (Typed("u16", 65535), 65535),
    "i16": (Typed("i16", -32768), -32768),
    "u32": (Typed("u32", 2**32 - 1), 2**32 - 1),
    "i32": (Typed("i32", -(2**31)), -(2**31)),
    "u64": (Typed("u64", 2**64 - 1), 2**64 - 1),
    "i64": (Typed("i64", -(2**63)), -(2**63)),
    "f32": (Typed("f32", 0.5), 0.5),
    "f64": (Typed("f64", 0.1), 0.1),
    "bool": (True, True),
    "string": ("Grüße 오븐 🔥", "Grüße 오븐 🔥"),
    "broken": (b"\xff\xfe", b"\xff\xfe"),
    "empty": ("", ""),
    "strings": (["a", b"\x80", "ü", ""], ["a", b"\x80", "ü", ""]),
    "no items": ([], []),
    "bools": ([True, False], [True, False]),
    "u64s": (Typed("u64", [0, 2**64 - 1]), [0, 2**64 - 1]),
    "f64s": (Typed("f64", [0.1, -1e300]), [0.1, -1e300]),
    "nested": ([["a", "b"], ["c"]], [["a", "b"], ["c"]]),
    "deep": ([[[1, 2]], [[3], []]], [[[1, 2]], [[3], []]]),
}


@pytest.mark.parametrize("version", [2, 3])
def test_every_metadata_type_comes_back(tmp_path: Path, version: int) -> None:
    file = read(tmp_path / "a.gguf", pack_gguf({name: value for name, (value, _) in EVERY_TYPE.items()}, version=version))
    assert file.version == version
    assert dict(file.metadata) == {name: expected for name, (_, expected) in EVERY_TYPE.items()}
    assert file.metadata["strings"] == file.metadata["strings"]  # decoded whenever asked for


def test_metadata_under_a_prefix_keeps_full_names(tmp_path: Path) -> None:
    metadata = read(tmp_path / "a.gguf", pack_gguf({"a.x": 1, "b.y": ["s"], "b.z": 2})).metadata
    assert dict(metadata.under("b.")) == {"b.y": ["s"], "b.z": 2}
    assert "a.x" not in metadata.under("b.")


@pytest.mark.parametrize("alignment", [1, 32, 128])
def test_tensors_of_every_format_come_back(tmp_path: Path, alignment: int) -> None:
    rng = np.random.default_rng(1)
    written = [RawTensor(f"t.{form}", (3, 256), form, random_weights(form, (3, 256), rng)) for form in TENSOR_TYPES.values()]
    file = read(tmp_path / "a.gguf", pack_gguf({}, written, alignment=alignment))
    assert {*TENSOR_TYPES.values()} == {*FORMATS} - {"w8a8"}
    assert [(t.name, t.shape, t.format, t.data.tobytes()) for t in file.tensors.values()] == [
        (t.name, t.shape, t.format, t.data) for t in written
    ]
    assert not any(tensor.data.flags.owndata or tensor.data.flags.writeable for tensor in file.tensors.values())


def test_a_file_written_by_the_gguf_package_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_token_list(["a", "ü", "b"])
    writer.add_array("n", [1, -2, 3])
    values = np.arange(64, dtype=np.float32).reshape(2, 32)
    writer.add_tensor("x", values)
    quantized = gguf.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("y", quantized, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = read_gguf(path)
    assert file.metadata["llama.block_count"] == 2
    assert file.metadata["tokenizer.ggml.tokens"] == ["a", "ü", "b"]
    assert file.metadata["n"] == [1, -2, 3]
    assert np.array_equal(dequantize(file.tensors["x"]), values)
    assert file.tensors["y"].shape == (2, 32)
    assert file.tensors["y"].data.tobytes() == quantized.tobytes()


def test_our_writer_is_read_by_the_gguf_package(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(pack_gguf(tiny_metadata(TinyModel()), tiny_tensors(TinyModel(), "q4_1")))
    theirs, ours = gguf.GGUFReader(path), read_gguf(path)
    assert {t.name: t.data.tobytes() for t in theirs.tensors} == {n: t.data.tobytes() for n, t in ours.tensors.items()}
    for name in ours.metadata:
        assert theirs.fields[name].contents() == pytest.approx(ours.metadata[name])


Q4_2, IQ2_XS, UNHEARD_OF = 4, 17, 999


@pytest.mark.parametrize(("kind", "label"), [(Q4_2, "Q4_2"), (IQ2_XS, "IQ2_XS"), (UNHEARD_OF, "number 999")])
def test_an_unsupported_tensor_type_is_named_with_the_supported_ones(tmp_path: Path, kind: int, label: str) -> None:
    with pytest.raises(UnsupportedError, match=f"'blk.0.x' has the type {label}; forno supports F32, F16, Q4_0.*IQ4_NL"):
        read(tmp_path / "a.gguf", header(1, 0, info("blk.0.x", [256], kind)) + bytes(4096))


LIMIT = 1 << 64
STRING, ARRAY, U8, U32 = 8, 9, 0, 4
BAD_FILES = {
    "nothing": (b"", "is empty"),
    "other magic": (b"PK\x03\x04" + bytes(64), "not a GGUF file"),
    "only magic": (b"GGUF", "ends early"),
    "no counts": (b"GGUF\x03\0\0\0", "ends early"),
    "many tensors": (header(LIMIT - 1, 0), "count of 18446744073709551615 tensors"),
    "many keys": (header(0, LIMIT - 1), "metadata keys cannot be right"),
    "long key": (header(0, 1, struct.pack("<Q", LIMIT - 1) + bytes(64)), "a metadata key cannot be right"),
    "key past the end": (header(0, 1, struct.pack("<Q", 60) + bytes(20)), "cannot be right"),
    "key not UTF-8": (header(0, 1, struct.pack("<Q", 2) + b"\xff\xff" + bytes(64)), "not UTF-8"),
    "same key": (header(0, 2, key("k", U8, b"\1") * 2), "'k' appears twice"),
    "unknown type": (header(0, 1, key("k", 77, bytes(16))), "unknown value type 77"),
    "unknown items": (header(0, 1, key("k", ARRAY, struct.pack("<IQ", 77, 1) + bytes(8))), "unknown type 77"),
    "long string": (header(0, 1, key("k", STRING, struct.pack("<Q", LIMIT - 1))), "cannot be right"),
    "many numbers": (header(0, 1, key("k", ARRAY, struct.pack("<IQ", U32, LIMIT - 1))), "items for k cannot be right"),
    "many strings": (header(0, 1, key("k", ARRAY, struct.pack("<IQ", STRING, LIMIT - 1))), "strings for k cannot be right"),
    "huge string": (
        header(0, 1, key("k", ARRAY, struct.pack("<IQQQ", STRING, 2, LIMIT - 1, 0) + bytes(64))),
        "k ends outside the file",
    ),
    "last string": (header(0, 1, key("k", ARRAY, struct.pack("<IQQ", STRING, 1, 1 << 62))), "ends outside the file"),
    "deep arrays": (header(0, 1, key("k", ARRAY, struct.pack("<IQ", ARRAY, 1) * 100)), "nests too many arrays"),
    "no alignment": (pack_gguf({"general.alignment": 0}), "general.alignment is 0"),
    "odd alignment": (pack_gguf({"general.alignment": 24}), "not a power of two"),
    "text alignment": (pack_gguf({"general.alignment": "32"}), "not a power of two"),
    "no dimensions": (header(1, 0, info("x", [])) + bytes(99), "'x' has 0 dimensions"),
    "many dimensions": (header(1, 0, info("x", [1] * 5)) + bytes(99), "'x' has 5 dimensions"),
    "zero dimension": (header(1, 0, info("x", [0, 4])) + bytes(99), "'x' has the shape"),
    "product wraps": (header(1, 0, info("x", [1 << 32, 1 << 32])) + bytes(99), "'x' has the shape"),
    "product wraps to 4": (header(1, 0, info("x", [(1 << 62) + 1, 4])) + bytes(99), "'x' has the shape"),
    "odd row": (header(1, 0, info("x", [33], 8)) + bytes(99), "rows of 33, no multiple of Q8_0's 32"),
    "offset past the end": (header(1, 0, info("x", [4], 0, LIMIT - 32)) + bytes(99), "truncated"),
    "unaligned": (header(1, 0, info("x", [4], 0, 4)) + bytes(99), "no multiple of the alignment"),
    "overlap": (header(2, 0, info("x", [16]) + info("y", [16], 0, 32)) + bytes(999), "'y' overlaps"),
    "same name": (header(2, 0, info("x", [8]) + info("x", [8], 0, 32)) + bytes(999), "same name"),
    "no data": (header(1, 0, info("x", [8])), "truncated"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_file_is_a_named_error(tmp_path: Path, case: str) -> None:
    data, message = BAD_FILES[case]
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path / "a.gguf", data)


@pytest.mark.parametrize(
    ("version", "message"), [(1, "version 1"), (4, "version 4"), (3 << 24, "big-endian"), (0, "version 0")]
)
def test_other_versions_are_refused(tmp_path: Path, version: int, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        read(tmp_path / "a.gguf", header(0, 0, version=version))


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="No such file"):
        read_gguf(tmp_path / "absent.gguf")
    with pytest.raises(ModelError, match="not a regular file"):
        read_gguf(tmp_path)
    assert not is_gguf(tmp_path)


TINY = TinyModel(hidden=32, layers=1, heads=2, kv_heads=1, ffn=32)
TINY_FILE = pack_gguf(tiny_metadata(TINY), tiny_tensors(TINY, "q8_0"))
TINY_HEADER = len(TINY_FILE) - sum(len(t.data) + -len(t.data) % 32 for t in tiny_tensors(TINY, "q8_0"))


def touch_everything(checkpoint: Checkpoint) -> None:
    for tensor in checkpoint.tensors.values():
        assert dequantize(tensor).shape == tensor.shape
    assert dict(checkpoint.tokenizer.gguf or {})


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gguf") / "a.gguf"


@given(damaged(TINY_FILE, TINY_HEADER))
@settings(max_examples=400, deadline=DEADLINE)
def test_a_damaged_file_opens_or_is_a_named_error(scratch: Path, data: bytes) -> None:
    scratch.write_bytes(data)
    try:
        checkpoint = open_gguf(scratch)
    except FornoError:
        return
    touch_everything(checkpoint)


@given(st.integers(0, len(TINY_FILE) - 32))
@settings(max_examples=100, deadline=DEADLINE)
def test_a_truncated_file_is_always_an_error(scratch: Path, size: int) -> None:
    scratch.write_bytes(TINY_FILE[:size])
    with pytest.raises(CheckpointError):
        open_gguf(scratch)


def test_the_default_model(default_model: Path) -> None:
    checkpoint = open_gguf(default_model)
    assert len(checkpoint.tensors) == 272
    assert checkpoint.config["hidden_size"] == 576
    assert checkpoint.config["eos_token_id"] == 2
    assert checkpoint.tokenizer.gguf is not None
    assert len(checkpoint.tokenizer.gguf["tokenizer.ggml.merges"]) == 48900
    q = checkpoint.tensors["model.layers.29.self_attn.q_proj.weight"]
    assert (q.shape, q.format) == ((576, 576), "q4_1")
    assert 0.01 < float(np.abs(dequantize(q)).mean()) < 1.0


@pytest.fixture
def default_model() -> Path:
    from forno import env

    source = BUILTIN_MODELS["smollm2-135m"].source
    assert not isinstance(source, str)
    path = env.cache_dir() / "models" / source.filename
    if not path.exists():
        pytest.skip("the default model is not in the cache (forno pull smollm2-135m)")
    return path
