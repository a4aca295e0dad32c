"""A viewer that costs little: reads one stream and notes when each stamped token came in."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass, field

import httptools

_STAMP = re.compile(rb"@(\d+);")
_LONGEST_STAMP = 24


@dataclass
class Seen:
    """What one viewer saw of one race. Times in nanoseconds."""

    added_ns: list[int] = field(default_factory=list)
    arrivals_ns: list[int] = field(default_factory=list)
    bytes: int = 0
    messages: int = 0


class _Viewer(asyncio.Protocol):
    """Stamps what arrives before looking at it."""

    def __init__(self, seen: Seen, until: bytes | None) -> None:
        self.seen = seen
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._until = until
        self._known: set[bytes] = set()
        self._rest = b""
        self._now = 0
        self._parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        self._now = time.monotonic_ns()
        self.seen.bytes += len(data)
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        text = self._rest + body
        stamps = _STAMP.findall(text)
        if stamps and (not self.seen.arrivals_ns or self._now != self.seen.arrivals_ns[-1]):
            self.seen.arrivals_ns.append(self._now)
        for stamp in stamps:
            if stamp in self._known:
                continue  # the last frame may draw a pane anew
            self._known.add(stamp)
            self.seen.added_ns.append(self._now - int(stamp))
        self.seen.messages += body.count(b"\n\n")
        if self._until is not None and self._until in text and not self.over.done():
            self.over.set_result(None)
        last = text.rfind(b"@", len(text) - _LONGEST_STAMP if len(text) > _LONGEST_STAMP else 0)
        self._rest = text[last:] if last >= 0 and b";" not in text[last:] else b""

    def on_message_complete(self) -> None:
        if not self.over.done():
            self.over.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.done():
            self.over.set_exception(exc or ConnectionError("the stream ended early"))


async def watch(port: int, path: str, *, until: bytes | None, timeout_s: float) -> Seen:
    """Reads ``path`` to its end, or until the bytes ``until`` came."""
    seen = Seen()
    loop = asyncio.get_running_loop()
    transport, viewer = await loop.create_connection(lambda: _Viewer(seen, until), "127.0.0.1", port)
    try:
        transport.write(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\naccept: text/event-stream\r\n\r\n".encode())
        await asyncio.wait_for(viewer.over, timeout_s)
    finally:
        transport.close()
    return seen
