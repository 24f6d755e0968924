"""Server-sent events from the bytes of a response, within limits. It knows the format (HTML standard, 9.2), no content."""

from __future__ import annotations

import re

MAX_EVENT_BYTES = 4 << 20
"""One event's, or one line's: a token with twenty alternatives takes a few thousand."""
_LINE_END = re.compile(rb"\r\n|\n|\r")
_HEAD, _END, _BETWEEN = b"data: ", b"\n\n", b"\n\ndata: "


class BadStream(Exception):
    """What came is not a stream of events that an OpenAI client would understand; the message is one line."""


class EventParser:
    """Bytes in, the data of whole events out; what is incomplete waits for more.

    Comments, ``event``, ``id`` and ``retry`` are skipped, and so is an event without data.
    """

    def __init__(self, limit: int = MAX_EVENT_BYTES) -> None:
        self._limit = limit
        self._rest = b""
        self._lines: list[bytes] = []
        self._size = 0
        self._started = False

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that ``data`` completes. Raises ``BadStream`` beyond the limit."""
        if not (self._rest or self._lines) and data.startswith(_HEAD) and data.endswith(_END) and len(data) <= self._limit:
            events = data[len(_HEAD) : -len(_END)].split(_BETWEEN)  # whole events of one line each: nearly always
            if data.count(b"\n") == 2 * len(events) and b"\r" not in data:
                self._started = True
                return events
        return self._slowly(data)

    def _slowly(self, data: bytes) -> list[bytes]:
        text = self._rest + data
        if not self._started and len(text) >= 3:  # a byte order mark may lead
            self._started, text = True, text.removeprefix(b"\xef\xbb\xbf")
        held = text.endswith(b"\r")  # perhaps half of a line's end
        *lines, self._rest = _LINE_END.split(text[:-1] if held else text)
        if held:
            self._rest += b"\r"
        events = [event for line in lines if (event := self._line(line)) is not None]
        if len(self._rest) + self._size > self._limit:
            raise BadStream(f"an event is longer than {self._limit} bytes")
        return events

    def _line(self, line: bytes) -> bytes | None:
        """The data of the event that this line ends, if it ends one."""
        if not line:
            event = b"\n".join(self._lines) if self._lines else None
            self._lines, self._size = [], 0
            return event
        name, _, value = line.partition(b":")
        if name == b"data":
            self._lines.append(value.removeprefix(b" "))
            self._size += len(value)
            if self._size > self._limit:
                raise BadStream(f"an event is longer than {self._limit} bytes")
        return None

    @property
    def incomplete(self) -> bool:
        """Whether an event has begun that nothing has ended."""
        return bool(self._lines or self._rest.strip())
