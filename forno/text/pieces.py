"""The bytes each token stands for, as one table: what decoding, streaming, log-probabilities and constraints all read.

Two ways of writing bytes as text exist. Byte-level BPE gives each of the 256 bytes a visible character. SentencePiece
writes text as it is, a space as U+2581 and bytes outside the vocabulary as ``<0xE2>``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from forno.errors import UnsupportedError

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_NO_BYTE = 0xFFFF


@dataclass(frozen=True, slots=True)
class Pieces:
    """``raw[id]`` is the token's bytes, ``visible[id]`` the same but empty for special tokens; an unused id has none."""

    raw: list[bytes]
    visible: list[bytes]
    special: frozenset[int]
    strips_leading_space: bool
    """Whether encoding puts a space before the text, so that decoding drops one at the very start."""


def read_pieces(backend: Tokenizer, texts: Sequence[str] | None = None) -> Pieces:
    """The table of ``backend``; ``texts``, its vocabulary by id, spares asking it for a copy of that.

    Raises ``UnsupportedError`` if its decoder is neither byte-level nor SentencePiece.
    """
    byte_level, strips = _decoder_rule(backend)
    texts = _vocabulary(backend) if texts is None else texts
    raw = _byte_level_pieces(texts) if byte_level else [*map(_sentencepiece_piece, texts)]
    visible, special = raw.copy(), []
    for index, token in backend.get_added_tokens_decoder().items():  # written as they read, whatever the decoder
        raw[index] = visible[index] = token.content.encode()
        if token.special:
            visible[index] = b""
            special.append(index)
    return Pieces(raw, visible, frozenset(special), strips)


def _vocabulary(backend: Tokenizer) -> list[str]:
    ids = backend.get_vocab(with_added_tokens=True)
    texts = [""] * (max(ids.values(), default=-1) + 1)
    for text, index in ids.items():
        texts[index] = text
    return texts


def _decoder_rule(backend: Tokenizer) -> tuple[bool, bool]:
    """(whether it is byte-level, whether it drops a leading space)."""
    decoder: dict[str, Any] = json.loads(backend.decoder.__getstate__()) if backend.decoder is not None else {}
    steps = decoder.get("decoders", [decoder])
    kinds = [step.get("type") for step in steps]
    if "ByteLevel" in kinds:
        return True, False
    strips = any(
        (step.get("type") == "Strip" and step.get("content") == " " and step.get("start", 0) > 0)
        or (step.get("type") == "Metaspace" and step.get("prepend_scheme", "always") != "never")
        for step in steps
    )
    if "Metaspace" in kinds or ("Replace" in kinds and "ByteFallback" in kinds):
        return False, strips
    raise UnsupportedError(
        f"the tokenizer decodes with {' + '.join(map(str, kinds))}; supported: byte-level BPE and SentencePiece"
    )


def _byte_alphabet() -> np.ndarray:
    """Byte by code point, or ``_NO_BYTE``. Printable Latin-1 stands for itself, the other bytes for U+0100 and on (as GPT-2
    does)."""
    itself = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)).difference(itself))
    table = np.full(0x101 + len(others), _NO_BYTE, np.uint16)
    table[itself] = itself
    table[0x100:-1] = others
    return table  # its last entry stands for all code points beyond


def _byte_level_pieces(texts: Sequence[str]) -> list[bytes]:
    """Every text's bytes. One that is not written in the byte alphabet stands for itself. All at once: a look-up per text
    takes a tenth of a second for a large vocabulary."""
    table = _byte_alphabet()
    codes = np.frombuffer("".join(texts).encode("utf-32-le"), "<u4")
    values = table[np.minimum(codes, len(table) - 1)]
    data, ends = values.astype(np.uint8).tobytes(), [*accumulate(map(len, texts), initial=0)]
    pieces = [data[begin:end] for begin, end in pairwise(ends)]
    strange = np.flatnonzero(values == _NO_BYTE)
    for index in {*(np.searchsorted(ends, strange, "right") - 1).tolist()}:
        pieces[index] = texts[index].encode()
    return pieces


def _sentencepiece_piece(text: str) -> bytes:
    if len(text) == 6 and (match := _BYTE.fullmatch(text)):
        return bytes([int(match[1], 16)])
    return text.replace("▁", " ").encode()
