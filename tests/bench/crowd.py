"""Viewers beside the one that counts: each reads the stream of whatever race standard input tells, for nothing."""

from __future__ import annotations

import argparse
import asyncio
import sys


async def view(port: int, path: str) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\naccept: text/event-stream\r\n\r\n".encode())
    read = 0
    while data := await reader.read(65536):
        read += len(data)
        if b"event: done" in data:
            break
    writer.close()
    return read


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--viewers", type=int, required=True)
    options = parser.parse_args()
    while race := (await asyncio.to_thread(sys.stdin.readline)).strip():
        read = await asyncio.gather(*(view(options.port, f"/races/{race}/stream") for _ in range(options.viewers)))
        print(min(read), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
