"""Locks between processes: one installs while the other waits, and two pairs never share a port.

A lock is a held ``flock``: the kernel lets go when the holder dies, however it dies, so none is ever stale.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from app.errors import EngineError

PORTS_TRIED = 50


def try_lock(path: Path) -> int | None:
    """Take the lock; its file descriptor holds it until closed. None when another process has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return None
        raise
    return descriptor


@asynccontextmanager
async def locked(path: Path, *, waiting: Callable[[], None], every_s: float = 0.5) -> AsyncGenerator[int]:
    """Hold the lock inside the block; ``waiting`` is called once when another process has it."""
    descriptor = try_lock(path)
    if descriptor is None:
        waiting()
    while descriptor is None:
        await anyio.sleep(every_s)
        descriptor = try_lock(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def port_is_free(port: int) -> bool:
    """Whether a server could listen there now, on loopback and on every address."""
    for address in ("127.0.0.1", ""):
        with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
            # A port that is only in TIME_WAIT after a stop can be used again at once.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError:
                return False
    return True


class Port:
    """A port that is ours among all Specrace processes with this cache, until ``release``."""

    def __init__(self, wanted: int, folder: Path) -> None:
        """Take ``wanted`` or the next free one. Raises EngineError when none of the next 50 is free."""
        for number in range(wanted, min(wanted + PORTS_TRIED, 65_536)):
            if not port_is_free(number):
                continue
            lock = try_lock(folder / f"port-{number}.lock")
            if lock is not None:
                self.number = number
                self._lock: int | None = lock
                return
        raise EngineError(
            f"port {wanted}",
            f"it and the {PORTS_TRIED - 1} ports after it are in use",
            "Stop what listens there, or write another port into the profile",
        )

    def release(self) -> None:
        """Let others have it. Harmless when called twice."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
