"""Running a command under its keeper, with its output as lines. Used for servers, uv and the weights script."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from subprocess import PIPE, STDOUT

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream, Process

KEEPER = Path(__file__).with_name("keeper.py")
GRACE_S = 3.0
"""From SIGTERM to SIGKILL."""
LAST_S = 2.0
"""After the grace: how long the keeper may take to end before it is killed too."""
LINE_BYTES = 65_536
"""A longer line is cut: a progress bar without line ends must not fill the memory."""

SECRETS = ("API_KEY", "PASSWORD", "SECRET")
"""Variables with these in their names are not for the engines. HF_TOKEN is: it opens gated weights."""


class Kept:
    """A command that runs under its keeper. ``lines`` and ``wait`` are for one reader."""

    def __init__(self, process: Process, lifeline: ByteSendStream, output: ByteReceiveStream) -> None:
        """``lifeline`` is the keeper's stdin: it ends the command when it is closed."""
        self._process = process
        self._lifeline = lifeline
        self._output = output
        self.pid: int | None = None
        """The server's own process, known after the keeper's first line."""

    async def lines(self) -> AsyncIterator[str]:
        """Lines as they come, without line ends; a carriage return ends a line too. Ends when all writers ended."""
        rest = b""
        with contextlib.suppress(anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            while True:
                rest += (await self._output.receive()).replace(b"\r", b"\n")
                *whole, rest = rest.split(b"\n")
                if len(rest) > LINE_BYTES:
                    whole, rest = [*whole, rest], b""
                for line in self._without_keepers(whole):
                    yield line
        for line in self._without_keepers([rest] if rest else []):
            yield line

    def _without_keepers(self, raw: Sequence[bytes]) -> list[str]:
        lines = [line.decode("utf-8", "replace") for line in raw]
        for line in [line for line in lines if self.pid is None and line.startswith("keeper: pid ")]:
            self.pid = int(line.rpartition(" ")[2])
            lines.remove(line)
        return lines

    async def wait(self) -> int:
        """The command's exit status; 128 + N when signal N ended it."""
        code = await self._process.wait()
        return code if code >= 0 else 128 - code

    async def stop(self, grace_s: float) -> None:
        """End it and all its descendants: politely for ``grace_s``, then not."""
        with contextlib.suppress(OSError, anyio.BrokenResourceError):
            await self._lifeline.aclose()
        with anyio.move_on_after(grace_s + LAST_S):
            await self._process.wait()
        if self._process.returncode is None:
            self._process.kill()
        # A killed keeper leaves the server to us; after an ordinary end the group is empty.
        if self._process.returncode is None or self._process.returncode < 0:
            self._kill_group()

    def _kill_group(self) -> None:
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)


@asynccontextmanager
async def kept(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cpus: Sequence[int] = (),
    grace_s: float = GRACE_S,
    cwd: Path | None = None,
    pass_fds: Sequence[int] = (),
) -> AsyncGenerator[Kept]:
    """Start ``command``; on leaving the block it has ended, with all its descendants, also when cancelled.

    ``pass_fds`` stay open in the keeper, so a file lock among them lasts as long as the command.
    """
    pinned = ["--cpus", ",".join(str(cpu) for cpu in cpus)] if cpus else []
    argv = [sys.executable, "-I", str(KEEPER), *pinned, "--grace", str(grace_s), "--", *command]
    process = await anyio.open_process(
        argv, stdin=PIPE, stdout=PIPE, stderr=STDOUT, env=env, cwd=cwd, start_new_session=True, pass_fds=pass_fds
    )
    async with AsyncExitStack() as stack:
        stack.push_async_callback(process.aclose)
        if process.stdin is None or process.stdout is None:
            raise OSError("the keeper has no pipes")
        running = Kept(process, process.stdin, process.stdout)
        try:
            yield running
        finally:
            with anyio.CancelScope(shield=True):
                await running.stop(grace_s)


def engine_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """This process's variables for an engine: without our own settings and keys, without another Python's paths."""
    ours = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SPECRACE_", "OPENAI_"))
        and not any(secret in name for secret in SECRETS)
        and name not in ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "LD_PRELOAD")
    }
    # Uvicorn and tqdm must not hold lines back while a person waits for them.
    return {**ours, "PYTHONUNBUFFERED": "1", **extra}
