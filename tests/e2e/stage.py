"""The stage of the browser tests: two fake servers, the app in front of them, and visitors who look at its page."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, Page, Request, Response, expect

from tests.blackbox.app import LANES, App, running
from tests.fakes.vllm import DONE, FIN, ROLE, SLEEP, TOK, USE, FakeThread, FakeVLLM

WATCH = (Path(__file__).parent / "watch.js").read_text()
OVER = re.compile(r"Finished|One lane finished|Neither lane|Stopped|Interrupted")
STREAM = re.compile(r"/races/\w+/stream")
OTHER_TEXT = "The other lane."


def numbered(tokens: int, every_s: float, *, chunk: int = 1, ttft_s: float = 0.05, spec: bool = False) -> list[Any]:
    """``tokens`` tokens of which no two are alike, so that a loss or a repetition shows: "0 1 2 ..."."""
    steps: list[Any] = [ROLE, SLEEP(ttft_s)]
    for at in range(0, tokens, chunk):
        size = min(chunk, tokens - at)
        steps += [TOK("".join(f"{i} " for i in range(at, at + size)), size), SLEEP(every_s)]
    return [*steps, FIN("length"), USE(tokens, spec="auto" if spec else None), DONE]


def counted(tokens: int) -> str:
    """The text of ``numbered``."""
    return "".join(f"{i} " for i in range(tokens))


def said(*texts: str, every_s: float = 0.02, finish: str = "stop") -> list[Any]:
    """These deltas, one token each."""
    steps = [step for text in texts for step in (TOK(text), SLEEP(every_s))]
    return [ROLE, SLEEP(0.03), *steps, FIN(finish), USE(), DONE]


QUICK = said("The", " other", " lane.")


@dataclass(eq=False)
class Visitor:
    """One page in a browser, and everything that it complained about and asked for."""

    page: Page
    stage: Stage
    calm: bool = True
    complaints: list[str] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    responses: list[Response] = field(default_factory=list)
    ended: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        page = self.page
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.requests.append(request))  # noqa: PLW0108 - Playwright marks handlers
        page.on("response", lambda response: self.responses.append(response))  # noqa: PLW0108
        page.on("requestfinished", lambda request: self.ended.append(request))  # noqa: PLW0108
        page.on("requestfailed", lambda request: self.ended.append(request))  # noqa: PLW0108

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    # ------------------------------------------------------------------------------ what a visitor does
    def open(self, path: str = "/") -> Visitor:
        self.page.goto(path if path.startswith("http") else self.stage.root + path)
        return self

    def write(self, name: str, text: str = "Say it.", *, max_tokens: int = 256) -> Visitor:
        """The tab for prompts of one's own, with the marker by which the fakes know what to answer."""
        if self.page.locator("#prompt").count() == 0:
            self.open("/?workload=your-prompt")
        self.page.locator("#prompt").fill(f"{marker(name)} {text}")
        self.page.locator("[name=max_tokens]").fill(str(max_tokens))
        return self

    def race(self) -> Visitor:
        """A click on the start button, and the race is there."""
        wire = self.page.locator("#wire")
        before = (wire.get_attribute("hx-sse:connect") or "") if wire.count() else ""
        self.page.locator("#run").click()
        expect(wire).to_have_attribute("hx-sse:connect", re.compile(rf"^(?!{re.escape(before)}$)/races/"))
        return self

    def until_over(self, timeout_s: float = 15) -> Visitor:
        expect(self.page.locator("#state")).to_have_text(OVER, timeout=1000 * timeout_s)
        return self

    def until_text(self, lane: str, text: str = "", timeout_s: float = 10) -> Visitor:
        pattern = re.compile(re.escape(text) if text else r"\S")
        expect(self.page.locator(f"#out-{lane}")).to_have_text(pattern, timeout=1000 * timeout_s)
        return self

    def wait(self, seconds: float) -> Visitor:
        self.page.wait_for_timeout(1000 * seconds)
        return self

    # ------------------------------------------------------------------------------ what a visitor sees
    def out(self, lane: str) -> str:
        """The text of a pane, character by character."""
        return self.page.locator(f"#out-{lane}").text_content() or ""

    def words(self, selector: str) -> str:
        return " ".join(self.page.locator(selector).inner_text().split())

    @property
    def race_id(self) -> str:
        return urlsplit(self.page.url).path.removeprefix("/races/")

    @property
    def streams(self) -> list[Request]:
        return [request for request in self.requests if STREAM.search(request.url)]

    @property
    def open_streams(self) -> int:
        return len(self.streams) - sum(1 for request in self.ended if STREAM.search(request.url))

    @property
    def other_hosts(self) -> list[str]:
        own = ("data:", "blob:", "about:", "http://127.0.0.1:")
        return [request.url for request in self.requests if not request.url.startswith(own)]

    @property
    def refused(self) -> list[str]:
        """Answers that are none."""
        return [f"{response.status} {response.url}" for response in self.responses if response.status >= 400]

    def watched(self) -> dict[str, Any]:
        """What watch.js saw in the page."""
        return self.page.evaluate("() => window.watch")

    def copied(self, selector: str) -> str:
        """Select the whole element and copy it, as by hand."""
        self.page.evaluate("s => getSelection().selectAllChildren(document.querySelector(s))", selector)
        self.page.keyboard.press("ControlOrMeta+c")
        return str(self.page.evaluate("() => navigator.clipboard.readText()"))

    def pwned(self) -> bool:
        return bool(self.page.evaluate("() => 'pwned' in window"))


def marker(name: str) -> str:
    return f"[{name}]"


@dataclass(eq=False)
class Stage:
    """Two fakes and the app. ``answer`` says what the servers reply to the prompts of one case."""

    app: App
    baseline: FakeVLLM
    speculative: FakeVLLM
    thread: FakeThread

    @property
    def root(self) -> str:
        return self.app.root

    @property
    def fakes(self) -> tuple[FakeVLLM, FakeVLLM]:
        return self.baseline, self.speculative

    def answer(self, name: str, baseline: Any = QUICK, speculative: Any = None) -> str:
        for fake, script in zip(self.fakes, (baseline, baseline if speculative is None else speculative), strict=True):
            fake.on(marker(name), script)
        return name

    def default(self, baseline: Any, speculative: Any) -> None:
        """What ready prompts are answered."""
        self.baseline.script, self.speculative.script = baseline, speculative

    def posts(self, name: str = "") -> list[int]:
        """POSTs to each server for one case, or in all."""
        return [len(fake.posts_with(marker(name)) if name else fake.posts) for fake in self.fakes]

    def generating(self, name: str) -> int:
        """Requests of one case that the servers still work on."""
        return sum(seen.ended_at is None for fake in self.fakes for seen in fake.posts_with(marker(name)))

    def open_streams(self) -> int:
        found = re.search(r"^specrace_open_streams (\S+)$", self.app.get("/metrics").text, re.MULTILINE)
        assert found is not None
        return int(float(found[1]))

    def race_json(self, race_id: str) -> dict[str, Any]:
        return self.app.get(f"/api/races/{race_id}").json()


@contextlib.contextmanager
def staged(
    env: dict[str, str] | None = None, *, baseline: str = "base-m", speculative: str = "spec-m"
) -> Iterator[Stage]:
    """A stage of its own; the names are those of the models."""
    with FakeThread() as thread:
        pair = thread.start(FakeVLLM(model=baseline)), thread.start(FakeVLLM(model=speculative, speculative=4))
        for fake in pair:
            fake.script = QUICK
        app = App(
            pair[0].url, pair[1].url, env={"SPECRACE_RACES_AT_ONCE": "20", "SPECRACE_MAX_TOKENS": "20000"} | (env or {})
        )
        with running(app):
            yield Stage(app, *pair, thread)


class Hall:
    """Lets visitors in and sees them out; whoever is calm may not have complained meanwhile."""

    def __init__(self, chromium: Browser) -> None:
        self._chromium = chromium
        self._contexts: list[BrowserContext] = []
        self.visitors: list[Visitor] = []

    def context(self, **options: Any) -> BrowserContext:
        context = self._chromium.new_context(**{"viewport": {"width": 1280, "height": 720}} | options)
        context.set_default_timeout(10_000)
        context.add_init_script(WATCH)
        self._contexts.append(context)
        return context

    def enter(
        self, stage: Stage, context: BrowserContext | None = None, *, calm: bool = True, **options: Any
    ) -> Visitor:
        """A new page; in a browser profile of its own, unless it is another tab of ``context``."""
        page = (context or self.context(**options)).new_page()
        visitor = Visitor(page, stage, calm)
        self.visitors.append(visitor)
        return visitor

    def empty(self) -> list[str]:
        complaints = [complaint for visitor in self.visitors if visitor.calm for complaint in visitor.complaints]
        for context in self._contexts:
            context.close()
        return complaints


def until(true: Callable[[], bool], page: Page, timeout_s: float) -> bool:
    """Wait for something outside of the page, while the page goes on. False when it did not happen in time."""
    limit = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > limit:
            return False
        page.wait_for_timeout(20)
    return True


__all__ = [
    "LANES",
    "OTHER_TEXT",
    "QUICK",
    "STREAM",
    "Hall",
    "Stage",
    "Visitor",
    "counted",
    "marker",
    "numbered",
    "said",
    "staged",
    "until",
]
