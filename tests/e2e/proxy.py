"""A TCP proxy between browser and app that breaks when told to: resets, silent ends, 503 for the stream."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct

UNAVAILABLE = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\ncontent-length: 3\r\nconnection: close\r\n\r\n503"
)


class Proxy:
    """Listens on ``port`` for the app on ``target``. Runs on the loop of tests.fakes.vllm.FakeThread."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.streams = 0
        """Requests for a race's stream that came this way, refused ones too."""
        self.refuse = 0
        """So many of the next requests for a stream get a 503."""
        self.drop = 0
        """So many of the next requests for a stream are reset."""
        self._halve: str | None = None
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> Proxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.close()

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cut(self, how: str) -> None:
        """Break every stream in the middle of the next bytes that come: ``how`` is "reset" or "end"."""
        self._halve = how

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            upstream, onward = await asyncio.open_connection("127.0.0.1", self.target)
            self._writers |= {writer, onward}
            streaming: list[bool] = []
            up = asyncio.create_task(self._up(reader, onward, writer, streaming))
            down = asyncio.create_task(self._down(upstream, writer, streaming))
            await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
            for task in (up, down):
                task.cancel()
            for one in (writer, onward):
                self._writers.discard(one)
                with contextlib.suppress(OSError, RuntimeError):
                    one.close()

    async def _up(
        self,
        reader: asyncio.StreamReader,
        onward: asyncio.StreamWriter,
        back: asyncio.StreamWriter,
        streaming: list[bool],
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                line = data.split(b"\r\n", 1)[0]
                if line.startswith(b"GET /races/") and b"/stream" in line:
                    self.streams += 1
                    if self.refuse:
                        self.refuse -= 1
                        back.write(UNAVAILABLE)
                        await back.drain()
                        return
                    if self.drop:
                        self.drop -= 1
                        _reset(back)
                        return
                    streaming.append(True)
                onward.write(data)
                await onward.drain()

    async def _down(self, upstream: asyncio.StreamReader, writer: asyncio.StreamWriter, streaming: list[bool]) -> None:
        with contextlib.suppress(OSError):
            while data := await upstream.read(65536):
                how = self._halve if streaming else None
                writer.write(data[: len(data) // 2] if how else data)
                await writer.drain()
                if how:
                    self._halve = None
                    if how == "reset":
                        await asyncio.sleep(0.05)  # a reset throws away what was not read yet: let the half arrive
                        _reset(writer)
                    return


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
