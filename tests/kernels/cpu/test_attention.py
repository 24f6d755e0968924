"""Attention over paged keys and values: right against a float64 definition, and the same bits whatever shares the step.

The invariance tests compare raw bits: a row computed alone, in chunks, next to other requests, by several threads,
with its keys split over workers or not.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forno import _native

ops = _native.ops
ISAS = ops.isas()
EVERY_WAY = pytest.mark.parametrize("materialized", [False, True], ids=["tiled", "materialized"])
# Largest error against float64 on the values as the cache holds them, for inputs of unit variance.
TOLERANCE = {"float32": 2e-5, "bf16": 2e-2, "int8": 2e-2}


@dataclass
class Sequence:
    """One request's keys and values, written to blocks of a cache."""

    length: int
    blocks: list[int]
    k: np.ndarray
    v: np.ndarray
    q: np.ndarray


@dataclass
class World:
    """A paged cache with some sequences in it; blocks are handed out shuffled, so tables are never contiguous."""

    heads: int
    kv_heads: int
    dim: int
    v_dim: int
    dtype: str = "bf16"
    block_size: int = 32
    num_blocks: int = 64
    seed: int = 0
    materialized: bool = False
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.kv = ops.PagedKv(self.kv_heads, self.dim, self.v_dim, self.block_size, self.num_blocks, self.dtype)
        self.free = list(self.rng.permutation(self.num_blocks))

    @property
    def scale(self) -> float:
        return self.dim**-0.5

    def sequence(self, length: int, isa: str = "portable") -> Sequence:
        blocks = [int(self.free.pop()) for _ in range(-(-length // self.block_size))]
        k = self.rng.standard_normal((length, self.kv_heads * self.dim), dtype=np.float32)
        v = self.rng.standard_normal((length, self.kv_heads * self.v_dim), dtype=np.float32)
        q = self.rng.standard_normal((length, self.heads * self.dim), dtype=np.float32)
        ops.kv_write(isa, 1, self.kv, [(0, length, blocks)], k, v)
        return Sequence(length, blocks, k, v, q)

    def extend(self, base: Sequence, shared: int, length: int, isa: str = "portable") -> Sequence:
        """A sequence whose first ``shared`` tokens (whole blocks) are those of ``base``."""
        own = self.sequence(length - shared, isa)
        k, v, q = (np.concatenate([a[:shared], b]) for a, b in ((base.k, own.k), (base.v, own.v), (base.q, own.q)))
        return Sequence(length, base.blocks[: shared // self.block_size] + own.blocks, k, v, q)

    def attend(self, isa: str, spans: list[tuple[Sequence, int, int]], threads: int = 1, **options: object) -> np.ndarray:
        """Rows of each (sequence, start, tokens), as float32."""
        q = np.concatenate([s.q[start : start + n] for s, start, n in spans])
        table = [(start, n, s.blocks) for s, start, n in spans]
        options = {"materialized": self.materialized, **options}
        raw = ops.attention(isa, threads, self.kv, table, q, self.heads, self.scale, **options)
        return raw.view(np.float32)

    def expected(self, s: Sequence, start: int, tokens: int, window: int = 0, softcap: float = 0.0) -> np.ndarray:
        """The definition, in float64, on the values as stored."""
        end = start + tokens
        k, v = (self.kv.read(s.blocks, end, part).astype(np.float64) for part in (0, 1))
        q = s.q[start:end].astype(np.float64).reshape(tokens, self.heads, self.dim)
        group = self.heads // self.kv_heads
        scores = np.einsum("thd,shd->hts", q, np.repeat(k, group, axis=1)) * self.scale
        if softcap:
            scores = softcap * np.tanh(scores / softcap)
        position, key = np.arange(start, end)[:, None], np.arange(end)[None]
        seen = (key <= position) & ((key > position - window) if window else True)
        scores = np.where(seen, scores, -np.inf)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        return np.einsum("hts,shd->thd", p, np.repeat(v, group, axis=1)).reshape(tokens, -1)


def bits(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).view(np.uint32)


@settings(max_examples=60, deadline=None)
@given(
    isa=st.sampled_from(ISAS),
    dtype=st.sampled_from(["bf16", "int8", "float32"]),
    group=st.sampled_from([1, 2, 3, 4, 7, 8]),
    kv_heads=st.sampled_from([1, 2, 3]),
    dim=st.sampled_from([16, 64, 80, 128]),
    block_size=st.sampled_from([32, 64]),
    length=st.integers(1, 300),
    data=st.data(),
)
def test_matches_the_definition(
    isa: str, dtype: str, group: int, kv_heads: int, dim: int, block_size: int, length: int, data: st.DataObject
) -> None:
    materialized = data.draw(st.booleans(), label="materialized")
    world = World(group * kv_heads, kv_heads, dim, dim, dtype, block_size, seed=length, materialized=materialized)
    s = world.sequence(length, isa)
    start = data.draw(st.integers(0, length - 1), label="start")
    tokens = data.draw(st.integers(1, min(length - start, 40)), label="tokens")
    window = data.draw(st.sampled_from([0, 1, 5, 130]), label="window")
    softcap = data.draw(st.sampled_from([0.0, 2.0]), label="softcap")
    threads = data.draw(st.sampled_from([1, 2]), label="threads")
    got = world.attend(isa, [(s, start, tokens)], threads, window=window, softcap=softcap)
    np.testing.assert_allclose(got, world.expected(s, start, tokens, window, softcap), atol=TOLERANCE[dtype], rtol=0)


@EVERY_WAY
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["bf16", "int8", "float32"])
@pytest.mark.parametrize(("dim", "v_dim"), [(5, 7), (17, 33), (96, 64), (24, 40), (5, 600)])
def test_any_head_dim(isa: str, dtype: str, dim: int, v_dim: int, materialized: bool) -> None:
    world = World(6, 2, dim, v_dim, dtype, materialized=materialized)
    s = world.sequence(150, isa)
    np.testing.assert_allclose(world.attend(isa, [(s, 100, 50)]), world.expected(s, 100, 50), atol=TOLERANCE[dtype], rtol=0)


@EVERY_WAY
@pytest.mark.parametrize("isa", ISAS)
def test_a_group_larger_than_a_tile(isa: str, materialized: bool) -> None:
    world = World(130, 1, 16, 16, materialized=materialized)
    s = world.sequence(140, isa)
    np.testing.assert_allclose(world.attend(isa, [(s, 137, 3)], 2), world.expected(s, 137, 3), atol=2e-2, rtol=0)


@EVERY_WAY
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["bf16", "int8", "float32"])
def test_scores_of_any_size(isa: str, dtype: str, materialized: bool) -> None:
    """Scores far from 0 neither overflow nor vanish: softmax depends on their differences only."""
    world = World(2, 1, 16, 16, dtype, materialized=materialized)
    s = world.sequence(200, isa)
    s.q *= 200.0
    got = world.attend(isa, [(s, 150, 50)])
    assert np.isfinite(got).all()
    assert np.abs(got).max() <= np.abs(world.kv.read(s.blocks, 200, 1)).max() * 1.01


@settings(max_examples=25, deadline=None)
@given(
    isa=st.sampled_from(ISAS),
    dtype=st.sampled_from(["bf16", "int8", "float32"]),
    shape=st.sampled_from([(3, 1, 64), (9, 3, 64), (7, 1, 80), (4, 4, 16), (14, 2, 64)]),
    window=st.sampled_from([0, 0, 40, 200]),
    data=st.data(),
)
def test_bits_do_not_depend_on_company(
    isa: str, dtype: str, shape: tuple[int, int, int], window: int, data: st.DataObject
) -> None:
    heads, kv_heads, dim = shape
    materialized = data.draw(st.booleans(), label="materialized")
    world = World(heads, kv_heads, dim, dim, dtype, 32, 96, seed=data.draw(st.integers(0, 99)), materialized=materialized)
    lengths = data.draw(st.lists(st.integers(1, 600), min_size=2, max_size=4), label="lengths")
    sequences = [world.sequence(n, isa) for n in lengths]
    whole = [bits(world.attend(isa, [(s, 0, s.length)], window=window)) for s in sequences]
    for s, rows in zip(sequences, whole, strict=True):  # one row at a time, as decode computes it
        for position in {0, s.length // 2, s.length - 1}:
            assert (bits(world.attend(isa, [(s, position, 1)], window=window)) == rows[position]).all()
    done = [0] * len(sequences)
    while any(d < s.length for d, s in zip(done, sequences, strict=True)):  # random chunks, random batch-mates
        order = data.draw(st.permutations(range(len(sequences))))
        spans: list[tuple[int, int, int]] = []
        for i in order:
            left = sequences[i].length - done[i]
            if left and (not spans or data.draw(st.booleans())):
                spans.append((i, done[i], data.draw(st.integers(max(1, left // 3), left))))
                done[i] += spans[-1][2]
        threads = data.draw(st.sampled_from([1, 2, 4]))
        shared = data.draw(st.sampled_from([-1, 0, 1 << 20]))
        got = bits(world.attend(isa, [(sequences[i], a, n) for i, a, n in spans], threads, window=window, shared_bytes=shared))
        assert (got == np.concatenate([whole[i][a : a + n] for i, a, n in spans])).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("threads", "shared"), list(itertools.product([1, 2, 4, 7], [0, 4096, 1 << 16, 1 << 22])))
def test_split_equals_unsplit(isa: str, threads: int, shared: int) -> None:
    """One long decode with few heads is what gets split; too little shared memory means no split, never other bits."""
    world = World(3, 1, 64, 64, num_blocks=64)
    s = world.sequence(1900, isa)
    alone = bits(world.attend(isa, [(s, 1899, 1)]))
    assert (bits(world.attend(isa, [(s, 1899, 1)], threads, shared_bytes=shared)) == alone).all()


@EVERY_WAY
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["bf16", "int8", "float32"])
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_masked_keys_contribute_nothing(isa: str, dtype: str, poison: float, materialized: bool) -> None:
    """Later tokens and an earlier owner's leftovers may hold NaN; rows that do not see them keep their bits."""
    world = World(6, 2, 64, 64, dtype, materialized=materialized)
    s = world.sequence(200, isa)
    clean = bits(world.attend(isa, [(s, 0, 200)]))
    ops.kv_write(isa, 1, world.kv, [(150, 50, s.blocks)], s.k[150:] * poison, s.v[150:] * poison)
    assert (bits(world.attend(isa, [(s, 0, 150)])) == clean[:150]).all()
    mixed = world.attend(isa, [(s, 0, 200)], 2)
    assert (bits(mixed[:150]) == clean[:150]).all()
    assert np.isnan(mixed[150:]).all()
    windowed = world.attend(isa, [(s, 0, 200)], window=20)
    assert np.isfinite(windowed[:150]).all()


@EVERY_WAY
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["bf16", "int8", "float32"])
def test_keys_before_the_window_contribute_nothing(isa: str, dtype: str, materialized: bool) -> None:
    world = World(2, 1, 64, 64, dtype, materialized=materialized)
    s = world.sequence(300, isa)
    clean = bits(world.attend(isa, [(s, 100, 200)], window=50))
    ops.kv_write(isa, 1, world.kv, [(0, 51, s.blocks)], s.k[:51] * np.nan, s.v[:51] * np.nan)
    assert (bits(world.attend(isa, [(s, 100, 200)], window=50)) == clean).all()


@EVERY_WAY
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["bf16", "float32"])
def test_a_score_of_minus_infinity_is_a_weight_of_zero(isa: str, dtype: str, materialized: bool) -> None:
    world = World(2, 1, 16, 16, dtype, materialized=materialized)
    s = world.sequence(200, isa)
    s.q[150:] = np.abs(s.q[150:]) * 100
    ops.kv_write(isa, 1, world.kv, [(0, 50, s.blocks)], np.full((50, 16), -3e38, np.float32), s.v[:50])
    hidden = world.attend(isa, [(s, 150, 1)], window=101)  # of its own 101 keys none is of these
    np.testing.assert_allclose(world.attend(isa, [(s, 150, 1)]), hidden, atol=2e-2 if dtype == "bf16" else 2e-5, rtol=0)


@EVERY_WAY
@pytest.mark.parametrize("isa", ISAS)
def test_nan_in_a_query_reaches_its_rows_only(isa: str, materialized: bool) -> None:
    world = World(4, 2, 32, 32, materialized=materialized)
    s = world.sequence(40, isa)
    clean = world.attend(isa, [(s, 0, 40)])
    s.q[7, :32] = np.nan  # head 0 of row 7
    got = world.attend(isa, [(s, 0, 40)])
    assert np.isnan(got[7, :32]).all()
    got[7, :32] = clean[7, :32]
    assert (bits(got) == bits(clean)).all()


@EVERY_WAY
@pytest.mark.parametrize("isa", ISAS)
def test_one_key_returns_its_value(isa: str, materialized: bool) -> None:
    world = World(4, 2, 64, 64, "float32", materialized=materialized)
    s = world.sequence(1, isa)
    np.testing.assert_array_equal(world.attend(isa, [(s, 0, 1)]), np.repeat(s.v.reshape(2, 64), 2, axis=0).reshape(1, -1))


@EVERY_WAY
@pytest.mark.parametrize("isa", ISAS)
def test_empty_spans_and_empty_steps(isa: str, materialized: bool) -> None:
    world = World(2, 1, 16, 16, materialized=materialized)
    s = world.sequence(40, isa)
    assert world.attend(isa, [(s, 5, 0)], 2).shape == (0, 32)
    both = world.attend(isa, [(s, 5, 0), (s, 30, 2), (s, 9, 0)], 2)
    assert (bits(both) == bits(world.attend(isa, [(s, 30, 2)]))).all()


@pytest.mark.parametrize("isa", ISAS)
def test_output_types_round_the_same_result(isa: str) -> None:
    world = World(6, 3, 64, 64)
    s = world.sequence(100, isa)
    table, q = [(60, 40, s.blocks)], s.q[60:]
    f32 = world.attend(isa, [(s, 60, 40)])
    raw = ops.attention(isa, 2, world.kv, table, q, 6, world.scale, dtype="bf16")
    as_f32 = (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_allclose(as_f32, f32, rtol=2**-8)
    raw = ops.attention(isa, 2, world.kv, table, q, 6, world.scale, dtype="s8")
    width = f32.shape[1]
    q8, scale, total = np.split(raw, [width, width + width // 8], axis=1)
    groups = f32.reshape(40, -1, 32)
    amax = np.abs(groups).max(-1)
    np.testing.assert_array_equal(scale.copy().view(np.float32), amax / np.float32(127))
    expected = np.rint(groups * (np.float32(127) / amax)[..., None])
    np.testing.assert_array_equal(q8.copy().view(np.int8).reshape(groups.shape), expected)
    np.testing.assert_array_equal(total.copy().view(np.int32), expected.sum(-1))


def test_refuses_what_it_cannot_lay_out() -> None:
    with pytest.raises(ValueError, match="multiple of 32"):
        ops.PagedKv(1, 16, 16, 48, 4, "bf16")
    with pytest.raises(ValueError, match="too large"):
        ops.PagedKv(65536, 65536, 65536, 65536, 2**31 - 1, "float32")
    kv = ops.PagedKv(2, 16, 16, 32, 1, "bf16")
    with pytest.raises(ValueError, match="v_dim % 32"):
        ops.attention("portable", 1, kv, [(0, 1, [0])], np.zeros((1, 32), np.float32), 2, 1.0, dtype="s8")


def test_shared_memory_is_bounded() -> None:
    assert _native.score_matrix_bytes(9, 256, 8192) == 9 * 256 * 8192 * 4
    assert _native.score_matrix_bytes(3, 2, 129) == 3 * 2 * 256 * 4
    assert ops.attention_shared_bytes(9, 64, 512, 8192, 1) == 4096
    assert ops.attention_shared_bytes(9, 64, 512, 8192, 2) == 4096 + 4 * 64 * 9 * 96 * 4
    assert ops.attention_shared_bytes(128, 128, 8192, 1 << 20, 64) == 4096 + (64 << 20)


@settings(max_examples=25, deadline=None)
@given(
    isa=st.sampled_from(ISAS),
    dtype=st.sampled_from(["bf16", "int8", "float32"]),
    shape=st.sampled_from([(3, 1, 64), (9, 3, 64), (7, 1, 80), (4, 4, 16), (30, 1, 16)]),
    block_size=st.sampled_from([32, 64, 96]),
    softcap=st.sampled_from([0.0, 2.0]),
    data=st.data(),
)
def test_a_shared_prefix_changes_no_bits(
    isa: str, dtype: str, shape: tuple[int, int, int], block_size: int, softcap: float, data: st.DataObject
) -> None:
    """Sequences on one or two documents, some rows of them at different depths, next to one that shares nothing."""
    heads, kv_heads, dim = shape
    world = World(heads, kv_heads, dim, dim, dtype, block_size, num_blocks=160, seed=data.draw(st.integers(0, 99)))
    documents = [world.sequence(block_size * 6, isa) for _ in range(data.draw(st.integers(1, 2)))]
    spans = [(world.sequence(300, isa), 299, 1)]
    for _ in range(data.draw(st.integers(2, 9), label="sequences")):
        shared = block_size * data.draw(st.integers(1, 6))
        tokens = data.draw(st.integers(1, 5))
        s = world.extend(data.draw(st.sampled_from(documents)), shared, shared + data.draw(st.integers(tokens, 200)), isa)
        spans.insert(data.draw(st.integers(0, len(spans))), (s, s.length - tokens, tokens))
    threads = data.draw(st.sampled_from([1, 2, 4]))
    apart = bits(world.attend(isa, spans, threads, softcap=softcap, share_prefixes=False))
    assert (bits(world.attend(isa, spans, threads, softcap=softcap)) == apart).all()
    assert (bits(world.attend(isa, spans, 1, softcap=softcap)) == apart).all()


def test_groups_save_the_most_reads() -> None:
    """Everyone begins with a system prompt of 128 tokens; five of the eight go on with a document each of two."""
    system, first, second = [1, 2, 3, 4], list(range(10, 20)), list(range(20, 40))
    tails = iter(range(100, 200))

    def span(document: list[int]) -> tuple[int, int, list[int]]:
        blocks = [*system, *document, next(tails)]
        return len(blocks) * 32 - 1, 1, blocks

    spans = [span(first), span([]), span(second), span(first), span([]), span(second), span(first), span([])]
    groups = ops.shared_prefixes(spans, 32)
    assert sorted((sorted(members), keys) for members, keys in groups) == [
        ([0, 3, 6], 384),  # 14 blocks: three whole segments
        ([1, 4, 7], 128),
        ([2, 5], 768),
    ]


def test_what_does_not_share() -> None:
    table = list(range(20))
    assert ops.shared_prefixes([(500, 1, table), (500, 1, table)], 32) == [([0, 1], 384)]  # 15 blocks seen whole
    assert ops.shared_prefixes([(500, 1, table), (500, 5, table)], 32) == []  # long spans fill tiles alone
    assert ops.shared_prefixes([(500, 1, table), (127, 1, table)], 32) == []  # the second sees no segment whole
    assert ops.shared_prefixes([(500, 1, table), (500, 1, table[::-1])], 32) == []
    assert ops.shared_prefixes([(500, 1, table), (500, 0, table)], 32) == []
    assert ops.shared_prefixes([], 32) == []
