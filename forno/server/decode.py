"""JSON bodies to wire types; what does not fit becomes a 400 that names the field."""

from __future__ import annotations

from typing import Any

import msgspec

from forno.server.errors import bad_json


class BodyDecoder:
    """Decodes bodies of one wire type. Safe to share between threads."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self._decoder = msgspec.json.Decoder(kind)

    def decode(self, raw: bytes) -> Any:
        """Raises ``HttpError``."""
        try:
            return self._decoder.decode(raw)
        except msgspec.ValidationError as error:
            if "got `float`" not in str(error):
                raise bad_json(error) from None
            return self._with_whole_numbers(raw)
        except (msgspec.MsgspecError, RecursionError, ValueError) as error:
            raise bad_json(error) from None

    def _with_whole_numbers(self, raw: bytes) -> Any:
        """Once more, with 16.0 for 16: to JSON it is an integer, and some languages know only one kind of number."""
        try:
            return msgspec.convert(_whole(msgspec.json.decode(raw)), self.kind, str_keys=True)
        except (msgspec.MsgspecError, RecursionError, ValueError) as error:
            raise bad_json(error) from None


def _whole(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return {key: _whole(item) for key, item in value.items()} if isinstance(value, dict) else value
