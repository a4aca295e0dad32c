"""Two fake vLLM servers in one process that do little but keep time: the stream is made of stamped tokens.

The bytes have vLLM's shape (tests/fakes/script.py). ``POST /rate`` sets the chunks per second of streams to come.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import Any

import uvloop

from tests.fakes.script import Renderer, Tok, Use

MODEL = "bench"


class Pace:
    """Chunks per second and lane."""

    rate: float = 200


async def stream(writer: asyncio.StreamWriter, renderer: Renderer, tokens: int) -> None:
    """One chunk at each tick of an absolute schedule: a late one is sent at once, none is skipped."""

    def send(data: bytes) -> None:
        if data:
            writer.write(b"%x\r\n%s\r\n" % (len(data), data))

    writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    send(renderer.role())
    due = time.monotonic()
    for number in range(1, tokens + 1):
        due += 1 / Pace.rate
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        finish = "length" if number == tokens else None
        send(renderer.tok(Tok(f"@{time.monotonic_ns()}; ", ids=(1000 + number % 50_000,), finish=finish)))
        if number % 100 == 0:
            await writer.drain()
    send(renderer.use(Use()))
    send(b"data: [DONE]\n\n")
    writer.write(b"0\r\n\r\n")
    await writer.drain()


def answer(writer: asyncio.StreamWriter, body: bytes, status: str = "200 OK", kind: str = "application/json") -> None:
    writer.write(f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)


async def read_request(reader: asyncio.StreamReader) -> tuple[str, str, bytes] | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    first, *lines = head.split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines if ": " in line)
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    method, path, _ = first.split(" ")
    return method, path, body


async def serve_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while (request := await read_request(reader)) is not None:
            await respond(writer, *request)
    except ConnectionError:
        pass
    finally:
        writer.close()


async def respond(writer: asyncio.StreamWriter, method: str, path: str, body: bytes) -> None:
    if path in {"/v1/chat/completions", "/v1/completions"}:
        asked: dict[str, Any] = json.loads(body)
        options = asked.get("stream_options") or {}
        renderer = Renderer(
            shape="chat" if "chat" in path else "completion",
            model=MODEL,
            prompt_ids=range(20),
            want_ids=bool(asked.get("return_token_ids")),
            want_usage=bool(options.get("include_usage")),
            want_continuous=bool(options.get("continuous_usage_stats")),
        )
        await stream(writer, renderer, int(asked.get("max_tokens") or asked.get("max_completion_tokens") or 16))
    elif path == "/rate":
        Pace.rate = float(body)
        answer(writer, b"{}")
    elif path == "/v1/models":
        card = {"id": MODEL, "object": "model", "created": 1, "owned_by": "vllm", "root": MODEL, "max_model_len": 10**7}
        answer(writer, json.dumps({"object": "list", "data": [card]}).encode())
    elif path == "/version":
        answer(writer, b'{"version":"0.32.0"}')
    elif path == "/health":
        answer(writer, b"")
    elif path == "/metrics":
        answer(writer, b'vllm:num_requests_running{engine="0"} 0.0\n', kind="text/plain; version=0.0.4")
    else:
        answer(writer, b'{"detail":"Not Found"}', "404 Not Found")


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("ports", type=int, nargs=2)
    for port in parser.parse_args().ports:
        await asyncio.start_server(serve_connection, "127.0.0.1", port)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main())
