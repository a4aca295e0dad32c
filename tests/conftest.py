"""What every test stands on: an environment of its own, free ports, a browser."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

# Shared machines stall for longer than hypothesis allows an example; CI repeats the same examples every time.
settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")

_OUTSIDE = ("SPECRACE_", "OPENAI_", "VLLM_")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")

CHROMIUM_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever uses Chromium is a browser test, and those come last.

    Playwright keeps a loop running in the main thread from its first use on; no coroutine test could run after it.
    """
    for item in items:
        if "chromium" in getattr(item, "fixturenames", ()):
            item.add_marker("browser")
    items.sort(key=lambda item: "browser" in item.keywords)


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test reads the settings, keys or database of the person who runs it."""
    for name in list(os.environ):
        if name.startswith(_OUTSIDE) or name.upper() in _PROXIES:
            monkeypatch.delenv(name)
    monkeypatch.setenv("SPECRACE_DATABASE", str(tmp_path / "specrace.sqlite3"))


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """The loop that the app runs on."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
def free_port() -> Callable[[], int]:
    """Gives a port on the loopback that nobody listens on; never the same twice in one test."""
    given: set[int] = set()

    def take() -> int:
        while True:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port: int = probe.getsockname()[1]
            if port not in given:
                given.add(port)
                return port

    return take


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """The system's Chromium, headless, driven by Playwright. ``make test-browser`` installs it when absent."""
    from playwright.sync_api import sync_playwright

    path = os.environ.get("SPECRACE_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.fail("no Chromium: run `make chromium`, or set SPECRACE_CHROMIUM to its path", pytrace=False)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(CHROMIUM_FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def context(chromium: Browser) -> Iterator[BrowserContext]:
    """A fresh browser profile at a projector's size."""
    context = chromium.new_context(viewport={"width": 1280, "height": 720})
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """A page that may not log an error, throw, or ask any host but the loopback; checked when the test ends.

    A test that provokes such an error takes a page from ``context`` instead.
    """
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: None if _is_local(request.url) else complaints.append(f"asked {request.url}"))
    yield page
    assert complaints == []


def _is_local(url: str) -> bool:
    return url.startswith(("http://127.0.0.1", "http://localhost", "data:", "blob:", "about:"))
