"""uvicorn around the app: the port taken before anything else, and an end that viewers understand."""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
from collections.abc import Callable
from types import FrameType

import structlog
import uvicorn
from fastapi import FastAPI

from app.errors import SettingsError
from app.settings import Server


def bind(server: Server) -> socket.socket:
    """Take the port, so that a wrong one is one clear line before anything starts.

    Raises:
        SettingsError: the address cannot be used.
    """
    taken: socket.socket | None = None
    try:
        family = socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM)[0][0]
        taken = socket.socket(family, socket.SOCK_STREAM)
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((server.host, server.port))
    except OSError as error:
        if taken is not None:
            taken.close()
        if error.errno == errno.EADDRINUSE:
            raise SettingsError(
                "port", f"{server.port} is in use", "Stop what listens there, or give another --port"
            ) from None
        raise SettingsError(
            "host",
            f"cannot listen on {server.host}:{server.port} ({error.strerror or error})",
            "Give another --host or --port",
        ) from None
    taken.set_inheritable(False)
    return taken


class _Server(uvicorn.Server):
    """Tells the app about SIGTERM at once, not when all connections are closed: streams end because races end."""

    def __init__(self, config: uvicorn.Config, leaving: Callable[[], object]) -> None:
        super().__init__(config)
        self._leaving = leaving

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal to stop."""
        self._leaving()
        super().handle_exit(sig, frame)


async def serve_until_signal(app: FastAPI, taken: socket.socket, *, leaving: Callable[[], None]) -> None:
    """Serve until a signal comes. One process: races live in its memory.

    ``leaving`` is called on the loop as soon as the signal is there.
    """
    loop = asyncio.get_running_loop()
    config = uvicorn.Config(
        app,
        http="httptools",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=4,
        proxy_headers=False,
        ws="none",
    )
    await _Server(config, lambda: loop.call_soon_threadsafe(leaving)).serve([taken])


def configure_logs() -> None:
    """One line an event on stderr; nothing of prompts, keys or addresses is ever logged."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
