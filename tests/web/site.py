"""The app in front of two fake servers, under a real uvicorn in a thread: streams behave as they do outside."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import httpx2
import uvicorn

from app.main import create_app, make_lanes, make_services
from app.race.endpoint import Endpoint, parse_endpoint
from app.race.types import LANES, LaneName
from app.services import Services
from app.settings import Settings
from tests.fakes.vllm import FakeVLLM

TOKEN = "presenter-of-the-tests"


class Site:
    """One running app. ``services`` and the fakes are read from the test's thread, never changed."""

    def __init__(self, folder: Path, fakes: dict[LaneName, FakeVLLM] | None, settings: dict[str, Any]) -> None:
        self.fakes: dict[LaneName, FakeVLLM] = fakes if fakes is not None else {lane: FakeVLLM() for lane in LANES}
        self._down = fakes == {}
        self.settings = Settings(
            database=folder / "site.sqlite3",
            presenter_token=TOKEN,
            **{"connect_timeout": 0.5, "stall_timeout": 5} | settings,
        )
        self._ready, self._stop = threading.Event(), asyncio.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.services: Services
        self.root = ""

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - the test's thread raises it
            self._error = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        endpoints: dict[LaneName, Endpoint] = {}
        for lane in LANES:
            if self._down:
                endpoints[lane] = parse_endpoint(lane, "http://127.0.0.1:9")
            else:
                endpoints[lane] = parse_endpoint(lane, (await self.fakes[lane].start()).url)
        self.services = make_services(self.settings, make_lanes(self.settings, endpoints, {}), None)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            self.root = f"http://127.0.0.1:{taken.getsockname()[1]}"
            config = uvicorn.Config(
                create_app(self.services),
                log_config=None,
                access_log=False,
                server_header=False,
                ws="none",
                http="httptools",
                timeout_graceful_shutdown=2,
            )
            server = uvicorn.Server(config)
            serving = asyncio.create_task(server.serve([taken]))
            while not server.started and not serving.done():  # noqa: ASYNC110 - uvicorn sets no event
                await asyncio.sleep(0.005)
            self._ready.set()
            await self._stop.wait()
            self.services.hub.leave()
            server.should_exit = True
            await serving
        if not self._down:
            for fake in self.fakes.values():
                await fake.stop()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(20)
        assert self._error is None, self._error
        self._client = httpx2.Client(
            base_url=self.root,
            timeout=20,
            trust_env=False,
            verify=False,
            limits=httpx2.Limits(max_keepalive_connections=0),
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(15)
        assert not self._thread.is_alive(), "the app does not stop"
        assert self._error is None, self._error

    # ---------------------------------------------------------------------------------------- a client
    def ask(self, method: str, path: str, **rest: Any) -> httpx2.Response:
        found = self._client.request(method, path, **rest)
        self._client.cookies.clear()  # every request is a new visitor
        return found

    def get(self, path: str, **rest: Any) -> httpx2.Response:
        return self.ask("GET", path, **rest)

    def post(self, path: str, **rest: Any) -> httpx2.Response:
        return self.ask("POST", path, **rest)

    def start(self, **body: Any) -> str:
        answer = self.post("/api/races", json={"prompt": "Count."} | body)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def finished(self, **body: Any) -> dict[str, Any]:
        """A race run to its end; its JSON."""
        race = self.start(**body)
        self.events(race)
        return dict(self.get(f"/api/races/{race}").json())

    def events(self, race: str, **rest: Any) -> list[Message]:
        return messages(self.get(f"/api/races/{race}/events", **rest).text)

    def until(self, found: Callable[[], Any], within_s: float = 5.0) -> None:
        limit = time.monotonic() + within_s
        while not found():
            assert time.monotonic() < limit, "it never happened"
            time.sleep(0.01)

    def call(self, work: Callable[[], Any]) -> None:
        """Do ``work`` on the app's loop."""
        self._loop.call_soon_threadsafe(work)


class Message(dict[str, str]):
    """One message of an event stream: its fields."""

    @property
    def json(self) -> Any:
        return json.loads(self["data"])


def messages(raw: str) -> list[Message]:
    """Messages of a stream whose lines end in LF alone; comments (pings) are dropped."""
    assert "\r" not in raw
    found: list[Message] = []
    for block in raw.split("\n\n"):
        one = Message()
        for line in block.split("\n"):
            name, colon, value = line.partition(":")
            if name and colon:
                value = value.removeprefix(" ")
                one[name] = f"{one[name]}\n{value}" if name in one else value
        if one:
            found.append(one)
    return found


@contextmanager
def site(folder: Path, fakes: dict[LaneName, FakeVLLM] | None = None, **settings: Any) -> Iterator[Site]:
    """A running app; ``fakes={}`` puts it in front of servers that are not there."""
    with Site(folder, fakes, settings) as found:
        yield found
