"""Starts the app as a user would, in a process of its own, and races through its HTTP contract."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from urllib.parse import urljoin

import anyio
import anyio.from_thread
import httpx2 as httpx

ROOT = Path(__file__).resolve().parent.parent.parent
TOKEN = "presenter-of-the-tests"
LANES = ("baseline", "speculative")
START_LIMIT_S = 30.0
RACE_LIMIT_S = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(folder: Path, more: dict[str, str] | None = None) -> dict[str, str]:
    """An environment of its own: nothing of the person who runs the tests gets in."""
    return {
        "PATH": os.environ.get("PATH", ""),
        "HOME": str(folder),
        "SPECRACE_DATABASE": str(folder / f"{secrets.token_hex(4)}.sqlite3"),
        "SPECRACE_PRESENTER_TOKEN": TOKEN,
        "SPECRACE_RATE_LIMIT": "100000/minute",
        "SPECRACE_QUEUE_LIMIT": "500",
    } | (more or {})


def command(*args: str, env: dict[str, str] | None = None, timeout_s: float = 30.0) -> subprocess.CompletedProcess[str]:
    """One run of the command line to its end."""
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(
            [sys.executable, "-m", "app", *args],
            env=environment(Path(folder), env),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )


# ------------------------------------------------------------------------------------------ event streams
@dataclass(frozen=True)
class Message:
    """One message of an event stream, as a browser would see it; ``lines`` are its raw lines."""

    id: str | None
    event: str | None
    data: str | None
    lines: tuple[str, ...]
    at: float = 0.0

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.data or "", parse_constant=_no_constant)


def _no_constant(name: str) -> object:
    raise AssertionError(f"{name} is no JSON")


def messages_of(raw: str, at: float = 0.0) -> list[Message]:
    """Messages of an event stream that uses LF alone (decision 2 of the design)."""
    assert "\r" not in raw, "the separator must be LF: htmx splits an event between CR and LF"
    found: list[Message] = []
    for block in raw.split("\n\n"):
        lines = tuple(line for line in block.split("\n") if line)
        named: dict[str, list[str]] = {}
        for line in lines:
            name, _, value = line.partition(":")
            named.setdefault(name, []).append(value.removeprefix(" "))
        if set(named) <= {""}:
            continue  # a comment: ping
        data = named.get("data")
        found.append(
            Message(
                id=named.get("id", [None])[-1],
                event=named.get("event", [None])[-1],
                data=None if data is None else "\n".join(data),
                lines=lines,
                at=at,
            )
        )
    return found


@dataclass
class Run:
    """A race and everything that a client could see of it."""

    prompt: str
    created: httpx.Response
    id: str = ""
    race: dict[str, Any] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    raw_events: str = ""
    raw_race: str = ""
    wall_s: float = 0.0
    _events: list[dict[str, Any]] = field(default_factory=list)
    _read: int = 0

    @property
    def events(self) -> list[dict[str, Any]]:
        self._events += [m.json for m in self.messages[self._read :] if m.event != "done"]
        self._read = len(self.messages)
        return self._events

    def of(self, kind: str, lane: str | None = None) -> list[dict[str, Any]]:
        return [e for e in self.events if e["type"] == kind and (lane is None or e.get("lane") == lane)]

    @property
    def baseline(self) -> dict[str, Any]:
        return self.race["lanes"]["baseline"]

    @property
    def speculative(self) -> dict[str, Any]:
        return self.race["lanes"]["speculative"]

    @property
    def comparison(self) -> dict[str, Any]:
        return self.race["comparison"]

    @property
    def status(self) -> str:
        return self.race["status"]

    def streamed(self, lane: str, *, reasoning: bool = False) -> str:
        return "".join(e["text"] for e in self.of("lane.chunk", lane) if bool(e.get("reasoning")) is reasoning)


# ------------------------------------------------------------------------------------------ the app
@dataclass
class App:
    """One process of the app. ``log`` is what it printed; a traceback in it fails whatever used the app."""

    baseline: str
    speculative: str
    env: dict[str, str] = field(default_factory=dict)
    args: Sequence[str] = ()
    port: int = 0
    traceback_ok: bool = False
    process: subprocess.Popen[bytes] | None = None
    folder: Path = Path()
    _out: IO[bytes] | None = None

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def spawn(self) -> App:
        """Start the process without waiting for it."""
        self._folder = tempfile.TemporaryDirectory(prefix="specrace-test-")
        self.folder = Path(self._folder.name)
        self.port = self.port or free_port()
        where = ["--baseline", self.baseline, "--speculative", self.speculative]
        self._out = (self.folder / "log").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "app", "serve", *where, "--host", "127.0.0.1", "--port", str(self.port), *self.args],
            env=environment(self.folder, self.env),
            cwd=ROOT,
            stdout=self._out,
            stderr=subprocess.STDOUT,
        )
        return self

    def wait(self, ready: Sequence[str] = LANES) -> App:
        """Until the page answers and the lanes in ``ready`` are seen as ready."""
        assert self.process is not None
        limit = time.monotonic() + START_LIMIT_S
        last = "nothing answered"
        while time.monotonic() < limit:
            assert self.process.poll() is None, f"the app ended with {self.process.returncode}:\n{self.log}"
            with contextlib.suppress(httpx.HTTPError):
                if self._up() and all(self.endpoint(lane).get("status") == "ready" for lane in ready):
                    return self
                last = json.dumps(self.endpoints())
            time.sleep(0.1)
        raise AssertionError(f"not ready within {START_LIMIT_S:g} s: {last}\n{self.log}")

    def start(self, ready: Sequence[str] = LANES) -> App:
        return self.spawn().wait(ready)

    def _up(self) -> bool:
        return httpx.get(f"{self.root}/healthz", timeout=2).status_code == 200

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise AssertionError(f"SIGTERM did not end the app within 10 s:\n{self.log[-3000:]}") from None
        assert self._out is not None
        self._out.close()
        log = self.log
        self._folder.cleanup()
        assert self.traceback_ok or "Traceback (most recent call last)" not in log, log
        return int(self.process.returncode)

    # -------------------------------------------------------------------------------- what a client does
    def endpoints(self) -> Any:
        return httpx.get(f"{self.root}/api/endpoints", timeout=5).json()

    def endpoint(self, lane: str) -> dict[str, Any]:
        return lane_of(self.endpoints(), lane)

    def get(self, path: str, **rest: Any) -> httpx.Response:
        return httpx.get(urljoin(self.root, path), timeout=20, **rest)

    def stream(self, run: Run | str, **rest: Any) -> str:
        """The page's stream of a race that is over, whole."""
        race = run if isinstance(run, str) else run.id
        return self.get(f"/races/{race}/stream", **rest).text

    def page(self, run: Run) -> str:
        return self.get(f"/races/{run.id}").text

    def race(self, prompt: str, **body: Any) -> Run:
        return anyio.run(self.race_async, prompt, body)

    async def race_async(
        self, prompt: str, body: dict[str, Any], on_message: Callable[[Run], Any] | None = None
    ) -> Run:
        """Ask for a race, follow its events to their end, and read the result."""
        async with httpx.AsyncClient(base_url=self.root, timeout=RACE_LIMIT_S) as client:
            asked = {"prompt": prompt, "temperature": 0.0, "max_tokens": 256} | body
            began = time.perf_counter()
            created = await client.post("/api/races", json=asked)
            run = Run(prompt, created)
            if created.status_code != 201:
                return run
            run.id = created.json()["id"]
            with anyio.fail_after(RACE_LIMIT_S):
                await self._follow(client, run, on_message)
            run.wall_s = time.perf_counter() - began
            answer = await client.get(f"/api/races/{run.id}")
            assert answer.status_code == 200, answer.text
            run.raw_race = answer.text
            run.race = json.loads(answer.text, parse_constant=_no_constant)
        return run

    async def _follow(self, client: httpx.AsyncClient, run: Run, on_message: Callable[[Run], Any] | None) -> None:
        async with client.stream("GET", run.created.json()["events_url"]) as answer:
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith("text/event-stream")
            rest = ""
            async for piece in answer.aiter_text():
                run.raw_events += piece
                whole, sep, rest_ = (rest + piece).rpartition("\n\n")
                rest = rest_ if sep else rest + piece
                if sep:
                    run.messages += messages_of(whole + sep, time.perf_counter())
                    if on_message is not None and (waits := on_message(run)) is not None:
                        await waits


def lane_of(endpoints: Any, lane: str) -> dict[str, Any]:
    """One lane's part of GET /api/endpoints."""
    if isinstance(endpoints, dict) and lane in endpoints:
        return endpoints[lane]
    if isinstance(endpoints, dict):
        return lane_of(endpoints["endpoints"], lane)
    return next(item for item in endpoints if item["lane"] == lane)


@contextlib.contextmanager
def running(*apps: App, ready: Sequence[str] = LANES, side_by_side: int = 3) -> Iterator[tuple[App, ...]]:
    """Apps, started a few at a time and stopped whatever happens."""
    try:
        for i, app in enumerate(apps):
            app.spawn()
            if i >= side_by_side - 1:
                apps[i - side_by_side + 1].wait(ready)
        for app in apps:
            app.wait(ready)
        yield apps
    finally:
        problems: list[str] = []
        for app in apps:
            if app.process is not None:
                try:
                    app.stop()
                except AssertionError as problem:
                    problems.append(str(problem))
        assert problems == []


# ------------------------------------------------------------------------------------------ what always holds
def check_run(run: Run) -> None:
    """What the contract promises of every race, whatever the servers did."""
    assert run.created.status_code == 201, run.created.text
    for message in run.messages:
        assert message.data is not None, f"a message without a data line: {message.lines}"
        assert message.data.strip(), f"a message with an empty data line: {message.lines}"
    assert run.messages[-1].event == "done", "the stream must end with a named done"
    assert [m.event for m in run.messages].count("done") == 1
    ids = [int(m.id) for m in run.messages if m.id is not None and m.event != "done"]
    assert ids == list(range(ids[0], ids[0] + len(ids))), "ids have a gap"
    events = run.events
    assert len(ids) == len(events), "an event without id cannot be resumed after"
    times = [e["t_ms"] for e in events]
    assert times == sorted(times), "t_ms goes backwards"
    assert all(t >= 0 for t in times)
    finished = run.of("race.finished")
    assert len(finished) == 1
    assert finished[0]["status"] == run.status
    for lane in LANES:
        ends = run.of("lane.finished", lane) + run.of("lane.failed", lane)
        assert len(ends) == 1, f"{lane} ended {len(ends)} times"
        final = run.race["lanes"][lane]
        assert run.streamed(lane) == final["text"], "the text of the events is not the text of the race"
        assert run.streamed(lane, reasoning=True) == (final["reasoning"] or "")
        _check_counts(run, lane)
        assert (final["error"] is None) == (final["status"] in ("finished", "stopped"))
    _check_status(run)
    _check_numbers(run.race)


def _check_counts(run: Run, lane: str) -> None:
    live = [e["completion_tokens"] for e in run.of("lane.figures", lane) if e["completion_tokens"] is not None]
    assert live == sorted(live), f"the live counter of {lane} goes down: {live}"
    final = run.race["lanes"][lane]
    if final["status"] in ("failed", "cut_off", "aborted"):
        assert run.comparison["speedup"] is None, "a ratio although a lane did not finish"
        assert run.comparison["decode_speedup"] is None
        assert run.comparison["verdict"] is None


def _check_status(run: Run) -> None:
    states = [run.race["lanes"][lane]["status"] for lane in LANES]
    done = states.count("finished")
    if "stopped" not in states:
        assert run.status == {2: "finished", 1: "partial", 0: "failed"}[done], (run.status, states)


def _check_numbers(race: dict[str, Any]) -> None:
    """A number that does not exist is null; none is negative, and rates lie within 0 and 1."""
    for lane in LANES:
        numbers = race["lanes"][lane]
        for name in ("ttft_ms", "tpot_ms", "e2e_ms", "tokens_per_second", "decode_tokens_per_second"):
            value = numbers[name]
            assert value is None or value > 0, f"{lane}.{name} is {value}"
        acceptance = numbers["acceptance"]
        if acceptance is not None:
            rate = acceptance["rate"]
            assert rate is None or 0 <= rate <= 1, acceptance
            assert acceptance["mean_length"] is None or acceptance["mean_length"] >= 1, acceptance
