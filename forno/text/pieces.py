"""The bytes each token stands for, as one table: what decoding, streaming, log-probabilities and constraints all read.

Two ways of writing bytes as text exist. Byte-level BPE gives each of the 256 bytes a visible character. SentencePiece
writes text as it is, a space as U+2581 and bytes outside the vocabulary as ``<0xE2>``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from tokenizers import Tokenizer

from forno.errors import UnsupportedError

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class Pieces:
    """``raw[id]`` is the token's bytes, ``visible[id]`` the same but empty for special tokens; an unused id has none."""

    raw: list[bytes]
    visible: list[bytes]
    special: frozenset[int]
    strips_leading_space: bool
    """Whether encoding puts a space before the text, so that decoding drops one at the very start."""


def read_pieces(backend: Tokenizer) -> Pieces:
    """The table of ``backend``. Raises ``UnsupportedError`` if its decoder is neither byte-level nor SentencePiece."""
    byte_level, strips = _decoder_rule(backend)
    vocabulary = backend.get_vocab(with_added_tokens=True)
    raw = [b""] * (max(vocabulary.values(), default=-1) + 1)
    convert = _byte_level_piece if byte_level else _sentencepiece_piece
    for text, index in vocabulary.items():
        raw[index] = convert(text)
    visible, special = raw.copy(), []
    for index, token in backend.get_added_tokens_decoder().items():  # written as they read, whatever the decoder
        raw[index] = visible[index] = token.content.encode()
        if token.special:
            visible[index] = b""
            special.append(index)
    return Pieces(raw, visible, frozenset(special), strips)


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


@cache
def _byte_characters() -> dict[int, int]:
    """Code point to byte. Printable Latin-1 stands for itself, the other bytes for U+0100 and on (as GPT-2 does); the Latin-1
    characters that stand for nothing are sent out of Latin-1."""
    itself = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in itself]
    return {**{0x100 + i: byte for i, byte in enumerate(others)}, **dict.fromkeys(others, 0xFFFF)}


def _byte_level_piece(text: str) -> bytes:
    try:
        return text.translate(_byte_characters()).encode("latin-1")
    except UnicodeEncodeError:  # not written in the byte alphabet: it stands for itself
        return text.encode()


def _sentencepiece_piece(text: str) -> bytes:
    if len(text) == 6 and (match := _BYTE.fullmatch(text)):
        return bytes([int(match[1], 16)])
    return text.replace("▁", " ").encode()
