"""What is changed, one thing at a time: the arms of an ablation as options of ``forno serve``. It starts nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

import msgspec

from forno.errors import ConfigError

BASELINE = "baseline"
COMBINED = "combined"


class Arm(msgspec.Struct, kw_only=True, frozen=True):
    """One server: the baseline with one technique changed."""

    name: str
    """As it is chosen with ``--only``; also a file's name."""
    technique: str
    """Arms of one technique exclude each other: a combination takes at most one of them."""
    title: str
    flags: tuple[str, ...] = ()
    """Options of ``forno serve`` beside the baseline's."""
    worth: bool = True
    """Whether a combination may take it: what only shows how things were done before paging or fusion is not an option."""
    model: str = ""
    """Another model file; empty: the baseline's."""


PASSES = (
    "qkv",
    "gate_up",
    "qkv_prepare",
    "norm_quantize",
    "activation_quantize",
    "residual",
    "early_gather",
    "sample_head",
)
"""As ``forno program --help`` lists them, in order."""
FLOAT_FORMATS = frozenset({"f32", "f16", "bf16"})


def _arm(name: str, technique: str, title: str, *flags: str, worth: bool = True) -> Arm:
    return Arm(name=name, technique=technique, title=title, flags=flags, worth=worth)


def _always() -> list[Arm]:
    return [
        _arm("static", "batching", "static batching", "--batching", "static"),
        _arm("dynamic", "batching", "dynamic batching", "--batching", "dynamic"),
        _arm("unchunked", "chunking", "prompts whole", "--no-enable-chunked-prefill", "--max-num-batched-tokens", "8192"),
        _arm("chunk-64", "chunking", "chunks of 64", "--max-num-batched-tokens", "64"),
        _arm("chunk-512", "chunking", "chunks of 512", "--max-num-batched-tokens", "512"),
        _arm("no-prefix-cache", "prefix", "no prefix cache", "--no-enable-prefix-caching"),
        _arm("no-fusion", "fusion", "no fusion", "--disable-passes", ",".join(PASSES), worth=False),
        _arm("materialized", "attention", "materialized attention", "--attention", "materialized", worth=False),
        _arm("contiguous", "reservation", "contiguous KV", "--kv-reservation", "contiguous", worth=False),
        _arm("kv-int8", "kv", "int8 KV cache", "--kv-cache-dtype", "int8"),
        _arm("kv-float32", "kv", "float32 KV cache", "--kv-cache-dtype", "float32"),
        _arm("ngram", "speculation", "n-gram speculation", "--speculative", "ngram"),
    ]


def every_arm(formats: Iterable[str] = (), each_pass: bool = False, models: Sequence[str] = ()) -> list[Arm]:
    """All arms for a model whose matrices are held as ``formats``; one per fusion pass, and one per further model file."""
    arms = _always()
    if set(formats) & FLOAT_FORMATS:
        arms += [
            _arm("weights-int8", "weights", "weights in int8", "--quantize", "int8"),
            _arm("weights-int4", "weights", "weights in int4", "--quantize", "int4"),
        ]
    if each_pass:
        arms += [_arm(f"no-{p}", "fusion", f"without {p}", "--disable-passes", p, worth=False) for p in PASSES]
    for number, model in enumerate(models, 1):
        arms.append(Arm(name=f"model-{number}", technique="weights", title=_stem(model), model=model))
    return arms


def _stem(model: str) -> str:
    return model.rstrip("/").rsplit("/", 1)[-1].removesuffix(".gguf")


def chosen(arms: Sequence[Arm], only: str, skip: str) -> list[Arm]:
    """Those that comma-separated lists of names or techniques leave. Raises ``ConfigError`` for one that does not exist."""
    wanted, unwanted = _names(arms, only, "--only"), _names(arms, skip, "--skip")
    left = [a for a in arms if not wanted or {a.name, a.technique} & wanted]
    left = [a for a in left if not {a.name, a.technique} & unwanted]
    if not left:
        raise ConfigError("--only and --skip leave nothing to change")
    return left


def _names(arms: Sequence[Arm], text: str, option: str) -> set[str]:
    names = {name.strip() for name in text.split(",")} - {""}
    known = [a.name for a in arms] + sorted({a.technique for a in arms})
    for name in sorted(names - set(known)):
        near = get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"{option}: there is no {name!r}{hint} (there are {', '.join(dict.fromkeys(known))})")
    return names


def combined(arms: Sequence[Arm]) -> Arm:
    """One arm with the changes of several, which belong to different techniques."""
    assert len({a.technique for a in arms}) == len(arms), "arms of one technique exclude each other"
    return Arm(
        name=COMBINED,
        technique=COMBINED,
        title=" + ".join(a.title for a in arms),
        flags=tuple(flag for a in arms for flag in a.flags),
        model=next((a.model for a in arms if a.model), ""),
    )
