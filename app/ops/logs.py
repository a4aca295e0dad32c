"""What an engine prints: phases from its boot log, the cause when it fails, lines fit to be shown, a file to keep.

Markers in the order in which vLLM 0.32 prints them; two stretches of 10-15 s in between print nothing at all.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import Struct

from app.race.types import EnginePhase

TAIL_LINES = 12
TAIL_CHARS = 240
FILE_BYTES = 2_000_000


class Stage(Struct, frozen=True):
    """A step of the start: the phase it belongs to, and words for people."""

    phase: EnginePhase
    words: str


FIRST = Stage("starting", "loading vLLM's code")
MARKERS: tuple[tuple[str, Stage], ...] = (
    ("non-default args:", Stage("starting", "reading the settings")),
    ("Resolved architecture:", Stage("starting", "starting the engine core")),
    ("Initializing a V1 LLM engine", Stage("starting", "engine core is up, preparing the device")),
    ("Starting to load model", Stage("loading_weights", "loading the weights")),
    ("Loading safetensors checkpoint shards", Stage("loading_weights", "loading the weights")),
    ("Loading weights took", Stage("loading_weights", "weights are loaded")),
    ("Loading drafter model", Stage("loading_weights", "loading the drafter")),
    ("Warming up", Stage("compiling", "preparing the kernels")),
    ("for vLLM's torch.compile", Stage("compiling", "compiling")),
    ("Dynamo bytecode transform", Stage("compiling", "compiling")),
    ("Compiling a graph", Stage("compiling", "compiling")),
    ("KV cache size:", Stage("compiling", "preparing the KV cache")),
    ("Capturing CUDA graph", Stage("compiling", "capturing CUDA graphs")),
    ("init engine (", Stage("compiling", "engine is ready, starting its server")),
    ("Starting vLLM server on", Stage("compiling", "server is starting")),
    ("Application startup complete", Stage("compiling", "server is up")),
)
PERCENT = re.compile(r"checkpoint shards:\s+(\d+)%")
VERSION = re.compile(r"\bversion (\d+\.\d+[\w.+]*)|LLM engine \(v(\d+\.\d+[\w.+]*)\)")
SPECULATION = re.compile(r"SpeculativeConfig\(method='([\w-]+)'")

# Routes, requests, the banner's art and progress bars at 0 %: nothing that helps a person who waits.
NOISE = re.compile(r'Route: /|"(?:GET|POST|HEAD|OPTIONS) /|[█▀▄]|Available routes|:\s+0%|^(?:INFO)?\s*$')
PREFIX = re.compile(r"^\((\w+)(?: pid=\d+)?\) (\w+ )\d\d-\d\d [\d:.]+ \[\S+\] ?")
ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

FAULT = re.compile(r"\b((?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception|Interrupt)): (.+)|\berror: (.+)")
ECHO = ("Engine core initialization failed", "See root cause", "EngineDeadError", "EngineCore encountered")
"""Errors that only say that another one came before them."""

REMEDIES: tuple[tuple[str, str], ...] = (
    ("address already in use", "Stop what listens on that port, or change the port in the profile"),
    ("gatedrepo", "Accept the model's licence on its hub page and set HF_TOKEN"),
    ("401 client error", "Accept the model's licence on its hub page and set HF_TOKEN"),
    ("less than desired gpu memory utilization", "Free memory on the device, or lower --gpu-memory-utilization"),
    ("no available memory for the cache blocks", "Raise --gpu-memory-utilization or lower --max-model-len"),
    ("out of memory", "Free memory on the device, or use a smaller model"),
    ("cannot allocate memory", "Free memory on this machine"),
    ("unrecognized arguments", "Correct the arguments in the profile"),
    ("no space left on device", "Free disk space in the cache folder"),
    ("couldn't connect", "Check the network, or download the weights beforehand"),
    ("cannot find an appropriate cached snapshot", "Download the weights beforehand, or unset HF_HUB_OFFLINE"),
)


class BootLog:
    """Follows one start, line by line. ``stage`` never goes backwards; the tail is fit to be shown."""

    def __init__(self, hide: Mapping[str, str]) -> None:
        """``hide`` maps folders of this machine to what is shown in their place."""
        self.stage = FIRST
        self.version: str | None = None
        self.method: str | None = None
        self._reached = -1
        self._hide = sorted(hide.items(), key=lambda pair: -len(pair[0]))
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._faults: list[str] = []
        self._engine_died = False

    def feed(self, line: str) -> bool:
        """Take one line. Returns whether it is worth keeping in the file."""
        if self.version is None and (found := VERSION.search(line)):
            self.version = found[1] or found[2]
        if self.method is None and (found := SPECULATION.search(line)):
            self.method = found[1]
        self._advance(line)
        shown = self.presentable(line)
        if shown is None:
            return False
        self._tail.append(shown)
        # Warnings quote errors that might come; only what did come is a cause.
        if not shown.startswith("WARNING") and (fault := FAULT.search(shown)):
            if any(echo in shown for echo in ECHO):
                self._engine_died = True
            else:
                self._faults = [*self._faults[-4:], fault[0]]
        return True

    def _advance(self, line: str) -> None:
        for index in range(len(MARKERS) - 1, max(self._reached, 0) - 1, -1):
            marker, stage = MARKERS[index]
            if marker in line:
                self._reached = index
                percent = PERCENT.search(line)
                self.stage = Stage(stage.phase, f"{stage.words}: {percent[1]} %") if percent else stage
                return

    def presentable(self, line: str) -> str | None:
        """The line without colours, prefixes and this machine's folders; None when it helps nobody."""
        text = PREFIX.sub(r"\2", ANSI.sub("", line)).rstrip()
        if NOISE.search(text) and "100%" not in text:
            return None
        for folder, shown in self._hide:
            text = text.replace(folder, shown)
        return text if len(text) <= TAIL_CHARS else f"{text[: TAIL_CHARS - 1]}…"

    @property
    def tail(self) -> tuple[str, ...]:
        """The last lines that were worth showing, oldest first."""
        return tuple(self._tail)

    def cause(self, code: int) -> str:
        """Why it ended, and what to do, in one line. ``code`` is the exit status (128 + N after signal N)."""
        if self._faults:
            reason = self._faults[-1]
        elif self._engine_died:
            reason = "its engine process died, often because memory ran out"
        elif code == 137:
            reason = "it was killed (signal 9), often because memory ran out"
        elif code > 128:
            reason = f"signal {code - 128} ended it"
        else:
            reason = f"it ended by itself with status {code}"
        remedy = next((remedy for sign, remedy in REMEDIES if sign in reason.lower()), None)
        return f"{reason.rstrip('.')}. {remedy}" if remedy else reason


def cause_of(lines: Iterable[str], code: int, hide: Mapping[str, str]) -> str:
    """Like ``BootLog.cause``, for a command that is no server."""
    log = BootLog(hide)
    for line in lines:
        log.feed(line)
    return log.cause(code)


class LogFile:
    """An engine's whole output in a file of at most 2 x 2 MB: the file and the one before it (``.1``)."""

    def __init__(self, path: Path, limit_bytes: int = FILE_BYTES) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._limit_bytes = limit_bytes
        self._file = path.open("ab")

    def write(self, line: str) -> None:
        """Append one line. A full disk costs log lines, never the race."""
        try:
            if self._file.tell() > self._limit_bytes:
                self._file.close()
                self._path.replace(self._path.with_name(f"{self._path.name}.1"))
                self._file = self._path.open("ab")
            self._file.write(line.encode("utf-8", "replace") + b"\n")
            self._file.flush()
        except OSError:
            return

    def close(self) -> None:
        """Close the file."""
        self._file.close()
