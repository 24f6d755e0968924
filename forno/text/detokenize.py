"""Token ids to text as they come: each call returns the text that is certain, and holds back a started character.

It never decodes a token twice: a table gives each token's bytes, and only the bytes of an unfinished character wait.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence

from forno.text.tokenizer import Tokenizer

_LONGEST_PARTIAL = 3  # bytes of a UTF-8 character that can still be incomplete


class IncrementalDetokenizer:
    """The text that ``ids`` add after ``prompt_ids``. With an empty prompt, the pieces joined, ``flush`` included, equal
    ``tokenizer.decode`` of all ids. After a prompt nothing is stripped, and a character that the prompt began is completed.
    """

    __slots__ = ("_at_start", "_partial", "_table")

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int] = (), skip_special_tokens: bool = True) -> None:
        pieces = tokenizer.pieces
        self._table = pieces.visible if skip_special_tokens else pieces.raw
        tail = self._tail(prompt_ids)
        self._at_start = pieces.strips_leading_space and not tail
        consumed = utf_8_decode(tail, "replace", False)[1]
        self._partial = tail[consumed:]

    def add(self, token_ids: Sequence[int]) -> str:
        """The text made certain by these tokens, maybe empty. Ids beyond the vocabulary (a padded head) add nothing."""
        table = self._table
        try:
            data = self._partial + b"".join([table[index] for index in token_ids])
        except IndexError:
            data = self._partial + b"".join([table[index] for index in token_ids if index < len(table)])
        if self._at_start and data:
            data, self._at_start = data.removeprefix(b" "), False
        text, consumed = utf_8_decode(data, "replace", False)
        self._partial = data[consumed:]
        return text

    def flush(self) -> str:
        """The rest, once no more tokens come: U+FFFD for an unfinished character, else nothing."""
        text, self._partial = self._partial.decode("utf-8", "replace"), b""
        return text

    def _tail(self, ids: Sequence[int]) -> bytes:
        """The prompt's last bytes, enough to tell whether it ends inside a character."""
        tail = b""
        for index in reversed(ids):
            tail = (self._table[index] if index < len(self._table) else b"") + tail
            if len(tail) >= _LONGEST_PARTIAL:
                break
        return tail[-_LONGEST_PARTIAL - 1 :]
