"""The bytes of a text/event-stream body to its messages. Pure, and indifferent to how the bytes were cut.

After the WHATWG rules: lines end at CR LF, CR or LF and nowhere else (not at U+2028 or U+0085), a leading BOM is
dropped, comment lines and unknown fields are ignored, several ``data`` lines are joined with a newline.
"""

from __future__ import annotations

from msgspec import Struct

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""A line or message longer than this is no token stream."""


class SseMessage(Struct, frozen=True):
    """One message. ``event`` is empty for unnamed ones."""

    event: str
    data: bytes


class SseLines:
    """Feed bytes in, take messages out. Raises OverflowError past MAX_MESSAGE_BYTES."""

    def __init__(self) -> None:
        self._rest: bytes = b""
        self._skip_lf = False
        self._first = True
        self._event = ""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, received: bytes) -> list[SseMessage]:
        """The messages that ``received`` completed, in order."""
        if self._first:
            received = self._rest + received
            self._rest = b""
            if len(received) < 3 and b"\xef\xbb\xbf".startswith(received):
                self._rest = received
                return []
            received = received.removeprefix(b"\xef\xbb\xbf")
            self._first = False
        if self._skip_lf and received:
            # the CR that ended the last line was the first half of a CR LF
            received = received.removeprefix(b"\n")
            self._skip_lf = False
        buffer = self._rest + received
        if b"\r" in received:
            self._skip_lf = buffer.endswith(b"\r")
            buffer = buffer.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, self._rest = buffer.split(b"\n")
        messages = [message for line in lines if (message := self._line(line)) is not None]
        if len(self._rest) + self._size > MAX_MESSAGE_BYTES:
            raise OverflowError("a message of the stream is longer than 16 MiB")
        return messages

    def _line(self, line: bytes) -> SseMessage | None:
        if not line:
            message = SseMessage(self._event, b"\n".join(self._data)) if self._data else None
            self._event, self._data, self._size = "", [], 0
            return message
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
            self._size += len(value)
        elif field == b"event":
            self._event = value.decode("utf-8", "replace")
        return None
