"""Runs the installer's commands one by one: each under a keeper that holds the lock, its lines shown and kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from app.errors import EngineError
from app.ops.logs import LogFile, cause_of
from app.ops.processes import kept

REMEMBERED = 40
STEP = "* "
"""Our own scripts begin a line with this when it says what is being done now."""
IDLE_TALK = ("+ ", "Activate with", "Using Python", "Using CPython", "Creating virtual environment")


class Audience(Struct, frozen=True):
    """Who listens to an installation. ``step`` takes what is being done now, ``line`` what was printed."""

    step: Callable[[str], None]
    line: Callable[[str], None]

    def hear(self, printed: str) -> None:
        """Pass one printed line on."""
        text = printed.strip()
        if text.startswith(STEP):
            self.step(text.removeprefix(STEP))
        elif text and not text.startswith(IDLE_TALK):
            self.line(text)


class Runner:
    """``field`` names in an error what went wrong, ``lock`` is the descriptor of a held lock."""

    def __init__(self, field: str, *, log: Path, hide: Mapping[str, str], lock: int, audience: Audience) -> None:
        self._field = field
        self._log = log
        self._hide = hide
        self._lock = lock
        self.audience = audience

    async def run(self, command: Sequence[str], env: Mapping[str, str], *, quiet: bool = False) -> None:
        """Run to the end. Raises EngineError with the cause from the output when the status is not 0.

        ``quiet`` is for a command whose failing is foreseen: its lines would only alarm.
        """
        lines: deque[str] = deque(maxlen=REMEMBERED)
        file = LogFile(self._log)
        try:
            # The keeper inherits the lock: should we die, nobody else starts before the command has ended.
            async with kept(command, env=env, pass_fds=[self._lock]) as running:
                async for line in running.lines():
                    file.write(line)
                    lines.append(line)
                    if not quiet:
                        self.audience.hear(line)
                code = await running.wait()
        finally:
            file.close()
        if code != 0:
            remedy = f"The whole output is in logs/{self._log.name} in the cache folder; it is tried again"
            raise EngineError(self._field, cause_of(lines, code, self._hide), remedy)
