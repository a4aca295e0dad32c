"""A client that shares no code with the app: a blocking socket, the standard library, packets stamped as they are read.

Token counts come from ``token_ids``, acceptance from the server's own record in the last chunk.
"""

from __future__ import annotations

import json
import socket
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Measured:
    """One answer. TTFT from the request's last byte being handed to the socket, TPOT from first to last token."""

    tokens: int
    ttft_ms: float
    tpot_ms: float
    tokens_per_second: float
    record: dict[str, Any] | None


def measure(url: str, body: dict[str, Any], *, timeout_s: float = 120) -> Measured:
    """POSTs ``body`` to ``url``/v1/chat/completions and reads the stream to its end.

    Raises:
        RuntimeError: the server sent something that is no answer.
    """
    where = urlsplit(url)
    payload = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(payload)}\r\nConnection: close\r\n\r\n"
    )
    with socket.create_connection((where.hostname or "", where.port or 80), timeout=timeout_s) as wire:
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sent = time.perf_counter_ns()
        wire.sendall(head.encode() + payload)
        packets: list[tuple[int, bytes]] = []
        while data := wire.recv(65536):
            packets.append((time.perf_counter_ns(), data))
    return read(sent, packets)


def read(sent: int, packets: list[tuple[int, bytes]]) -> Measured:
    """The figures of one answer. Finds each ``data:`` line and the time at which its last byte had come."""
    first = last = 0
    tokens = 0
    record: dict[str, Any] | None = None
    rest = b""
    if not packets or b" 200 " not in packets[0][1].split(b"\r\n")[0]:
        raise RuntimeError(repr(packets[0][1][:300]) if packets else "an empty answer")
    for at, data in packets:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if not line.startswith(b"data: {"):
                continue  # chunk sizes, blank lines, [DONE]
            message = json.loads(line[6:])
            record = message.get("metrics", {}).get("speculative_decoding") or record
            ids = [token for choice in message["choices"] for token in choice.get("token_ids") or []]
            if ids:
                first, last, tokens = first or at, at, tokens + len(ids)
    if tokens < 2:
        raise RuntimeError(f"{tokens} tokens: nothing to measure")
    return Measured(
        tokens=tokens,
        ttft_ms=(first - sent) / 1e6,
        tpot_ms=(last - first) / 1e6 / (tokens - 1),
        tokens_per_second=tokens / (last - sent) * 1e9,
        record=record,
    )
