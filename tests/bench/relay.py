"""The least that could carry two streams to a viewer: their bytes, unread, through httpx2 and Starlette."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from tests.bench.source import MODEL


def create(upstreams: list[str]) -> Starlette:
    client = httpx2.AsyncClient(timeout=60, trust_env=False)

    async def bytes_of_both(tokens: int) -> AsyncIterator[bytes]:
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()

        async def pump(base: str) -> None:
            body = {
                "model": MODEL,
                "messages": [{"role": "user", "content": "go"}],
                "max_tokens": tokens,
                "stream": True,
                "stream_options": {"include_usage": True},
                "return_token_ids": True,
            }
            async with client.stream("POST", f"{base}/v1/chat/completions", json=body) as response:
                async for data in response.aiter_raw():
                    queue.put_nowait(data)
            queue.put_nowait(None)

        async with asyncio.TaskGroup() as group:
            for base in upstreams:
                group.create_task(pump(base))
            open_streams = len(upstreams)
            while open_streams:
                data = await queue.get()
                if data is None:
                    open_streams -= 1
                else:
                    yield data

    async def relay(request: Request) -> StreamingResponse:
        tokens = int(request.query_params["tokens"])
        return StreamingResponse(bytes_of_both(tokens), media_type="text/event-stream")

    async def healthz(_: Request) -> PlainTextResponse:
        return PlainTextResponse("ok")

    return Starlette(routes=[Route("/relay", relay), Route("/healthz", healthz)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("upstreams", nargs=2)
    given = parser.parse_args()
    uvicorn.run(
        create(given.upstreams), port=given.port, loop="uvloop", http="httptools", access_log=False, log_level="warning"
    )
