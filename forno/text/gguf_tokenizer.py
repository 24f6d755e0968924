"""Builds a tokenizer from the ``tokenizer.*`` metadata of a GGUF file: byte-level BPE, and SentencePiece BPE.

It knows the metadata's keys and nothing of the file they came from; every array and id is checked before use.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from forno.errors import CheckpointError, UnsupportedError
from forno.text.pretokenize import family

_KEY = "tokenizer.ggml."
_LONGEST_PIECE = 512  # characters; splitting a piece costs the square of its length, and real ones have under 50
SPACE = "▁"  # SentencePiece writes a space as U+2581


class TokenType(IntEnum):
    """As SentencePiece numbers them."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def build(metadata: Mapping[str, Any]) -> tuple[Tokenizer, list[str]]:
    """The tokenizer that ``metadata`` (full key names) describes, special tokens and BOS/EOS rule included, and the text of
    each id.

    Raises ``CheckpointError`` if the metadata contradicts itself, ``UnsupportedError`` for other kinds of tokenizer.
    """
    kind = metadata.get(_KEY + "model")
    builders = {"gpt2": _byte_level, "llama": _sentencepiece}
    if not isinstance(kind, str) or kind not in builders:
        raise UnsupportedError(f"the file's tokenizer is {kind!r}; supported: {', '.join(builders)}")
    try:
        vocabulary = _Vocabulary(metadata)
        return builders[kind](vocabulary, metadata), vocabulary.texts
    except (CheckpointError, UnsupportedError):
        raise
    except Exception as error:  # the tokenizers library raises bare Exception for whatever it finds inconsistent
        raise CheckpointError(f"the file's tokenizer cannot be built: {error}") from error


def special_id(metadata: Mapping[str, Any], name: str, size: int) -> int | None:
    """The id under ``tokenizer.ggml.<name>_token_id``, or None. Files write -1 or 2**32 - 1 for "there is none"."""
    value = metadata.get(f"{_KEY}{name}_token_id")
    if value is None or value in (-1, 0xFFFFFFFF):
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < size:
        raise CheckpointError(f"{_KEY}{name}_token_id is {value!r}, but the vocabulary has {size} tokens")
    return value


class _Vocabulary:
    """The token list with its types, every text unique and valid Unicode, so that ids survive whatever the file holds."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self.texts = _unique(_array(metadata, "tokens", (str, bytes)))
        self.ids = {text: index for index, text in enumerate(self.texts)}
        types = _array(metadata, "token_type", int, len(self.texts)) if _KEY + "token_type" in metadata else []
        self.types = types or [TokenType.NORMAL] * len(self.texts)

    def of(self, *types: TokenType) -> list[int]:
        wanted = frozenset(map(int, types))
        return [index for index, kind in enumerate(self.types) if kind in wanted]

    def add_special_to(self, tokenizer: Tokenizer) -> None:
        """Control and user-defined tokens are matched in text before anything else; only the former are skipped in decoding."""
        special = self.of(TokenType.CONTROL, TokenType.UNKNOWN)
        plain = self.of(TokenType.USER_DEFINED)
        tokenizer.add_special_tokens([AddedToken(self.texts[i], normalized=False, special=True) for i in special])
        tokenizer.add_tokens([AddedToken(self.texts[i], normalized=False) for i in plain])


def _byte_level(vocabulary: _Vocabulary, metadata: Mapping[str, Any]) -> Tokenizer:
    rules = family(metadata.get(_KEY + "pre", "default"))
    merges = _merges(_array(metadata, "merges", (str, bytes)))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary.ids, merges=merges, ignore_merges=rules.ignore_merges))
    if (normalizer := rules.normalizer()) is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = rules.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    vocabulary.add_special_to(tokenizer)
    _add_bos_and_eos(tokenizer, vocabulary, metadata, add_bos=rules.add_bos)
    return tokenizer


def _sentencepiece(vocabulary: _Vocabulary, metadata: Mapping[str, Any]) -> Tokenizer:
    scores = _array(metadata, "scores", (int, float), len(vocabulary.texts))
    unknown = special_id(metadata, "unknown", len(vocabulary.texts))
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary.ids,
            merges=_merges_by_score(vocabulary, scores),
            unk_token=None if unknown is None else vocabulary.texts[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefixed = bool(metadata.get(_KEY + "add_space_prefix", True))
    spaces = normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if prefixed else spaces
    undo_prefix = [decoders.Strip(" ", 1, 0)] if prefixed else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *undo_prefix]
    )
    vocabulary.add_special_to(tokenizer)
    _add_bos_and_eos(tokenizer, vocabulary, metadata, add_bos=True)
    return tokenizer


def _merges_by_score(vocabulary: _Vocabulary, scores: Sequence[float]) -> list[tuple[str, str]]:
    """SentencePiece joins the neighbours whose union scores best; as ranked merges: every split of every piece
    into two pieces, the best-scored piece first."""
    if not all(map(math.isfinite, scores)):
        raise CheckpointError(f"{_KEY}scores holds NaN or infinity")
    mergeable = vocabulary.of(TokenType.NORMAL)
    pieces = {vocabulary.texts[index] for index in mergeable}
    merges: list[tuple[str, str]] = []
    for index in sorted(mergeable, key=lambda index: (-scores[index], index)):
        piece = vocabulary.texts[index]
        if len(piece) > _LONGEST_PIECE:
            raise CheckpointError(f"token {index} is {len(piece)} characters long; at most {_LONGEST_PIECE} are supported")
        for cut in range(1, len(piece)):
            if piece[:cut] in pieces and piece[cut:] in pieces:
                merges.append((piece[:cut], piece[cut:]))
    return merges


def _add_bos_and_eos(tokenizer: Tokenizer, vocabulary: _Vocabulary, metadata: Mapping[str, Any], *, add_bos: bool) -> None:
    bos = special_id(metadata, "bos", len(vocabulary.texts)) if metadata.get(_KEY + "add_bos_token", add_bos) else None
    eos = special_id(metadata, "eos", len(vocabulary.texts)) if metadata.get(_KEY + "add_eos_token", False) else None
    surround_with(
        tokenizer, None if bos is None else (vocabulary.texts[bos], bos), None if eos is None else (vocabulary.texts[eos], eos)
    )


def surround_with(tokenizer: Tokenizer, bos: tuple[str, int] | None, eos: tuple[str, int] | None) -> None:
    """Makes ``encode(..., add_special_tokens=True)`` put ``bos`` before and ``eos`` after the text: (text, id) or None."""
    template = [*([bos[0]] if bos else []), "$A", *([eos[0]] if eos else [])]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[token for token in (bos, eos) if token is not None]
    )


def _array(metadata: Mapping[str, Any], name: str, kinds: type | tuple[type, ...], length: int | None = None) -> list[Any]:
    values = metadata.get(_KEY + name)
    if not isinstance(values, Sequence) or isinstance(values, (str, bytes)) or not _hold(values, kinds):
        raise CheckpointError(f"{_KEY}{name} is missing or not an array of the right type")
    if length is not None and len(values) != length:
        raise CheckpointError(f"{_KEY}{name} has {len(values)} entries, but there are {length} tokens")
    if not values and name == "tokens":
        raise CheckpointError(f"{_KEY}tokens is empty")
    return list(values)


def _hold(values: Sequence[Any], kinds: type | tuple[type, ...]) -> bool:
    return all(issubclass(kind, kinds) for kind in set(map(type, values)))


def _texts(raw: Sequence[str | bytes]) -> list[str]:
    """All of ``raw`` as valid Unicode. Broken UTF-8 and lone surrogates become U+FFFD: such a token keeps its id and can
    never be produced by text."""
    try:
        "".join(raw).encode()  # type: ignore[arg-type]
    except (TypeError, UnicodeEncodeError):  # bytes, or a surrogate, among them
        return [_text(text) for text in raw]
    return list(raw)  # type: ignore[arg-type]


def _text(raw: str | bytes) -> str:
    if isinstance(raw, bytes):
        return raw.decode("utf-8", "replace")
    return raw.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _unique(raw: Sequence[str | bytes]) -> list[str]:
    texts = _texts(raw)
    if len(set(texts)) == len(texts) and all(texts):
        return texts
    seen: set[str] = set()
    for index, text in enumerate(texts):
        if not text or text in seen:
            texts[index] = f"[unnamed token {index}]"
        seen.add(texts[index])
    if len(seen) != len(texts):
        raise CheckpointError(f"{_KEY}tokens repeats the name of a placeholder for a repeated token")
    return texts


def _merges(raw: Sequence[str | bytes]) -> list[tuple[str, str]]:
    """Each entry is two tokens with a space between them."""
    pairs: list[Any] = [tuple(text.split(" ", 1)) for text in _texts(raw)]
    if not all(map(all, pairs)) or not {2}.issuperset(map(len, pairs)):
        wrong = next(index for index, pair in enumerate(pairs) if len(pair) < 2 or not all(pair))
        raise CheckpointError(f"{_KEY}merges holds {raw[wrong]!r}, which is not two tokens with a space between them")
    return pairs
