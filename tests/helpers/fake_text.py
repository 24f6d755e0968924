"""A byte tokenizer, so that engine tests need no tokenizer file."""

from __future__ import annotations

import codecs
from collections.abc import Iterable


class ByteTokenizer:
    """Token ``i`` is the byte ``i``; 0 begins and 1 ends a sequence and neither has text."""

    vocab_size = 256
    bos_token_id = 0
    eos_token_ids = (1,)
    special_texts: dict[str, str] = {}  # noqa: RUF012

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return ([self.bos_token_id] if add_special_tokens else []) + list(text.encode())

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        return bytes(i for i in ids if i > 1).decode(errors="replace")


class ByteDetokenizer:
    """Holds back the bytes of an incomplete character."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token_ids: Iterable[int]) -> str:
        return self._decoder.decode(bytes(i for i in token_ids if i > 1))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)
