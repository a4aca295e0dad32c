"""What the browser tests share: a stage for each module, visitors for each test, a picture of what failed."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Error

from tests.blackbox.app import ROOT
from tests.e2e.stage import Hall, Stage, staged

PICTURES = ROOT / "test-results"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """A screenshot of every open page of a test that failed."""
    report = yield
    browser = getattr(item, "funcargs", {}).get("chromium")
    if report.failed and report.when != "teardown" and browser is not None:
        PICTURES.mkdir(exist_ok=True)
        name = re.sub(r"\W+", "-", item.nodeid.removeprefix("tests/e2e/")).strip("-")
        pages = [page for context in browser.contexts for page in context.pages]
        for number, page in enumerate(pages[-6:]):
            try:
                page.screenshot(path=PICTURES / f"{name}-{number}.png", timeout=3000)
            except Error as error:
                report.sections.append(("screenshot", str(error)))
    return report


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """One pair of servers and one app for the tests of a module."""
    with staged() as stage:
        yield stage


@pytest.fixture(scope="module")
def long_hall(chromium: Browser) -> Iterator[Hall]:
    """Visitors who stay for the whole module."""
    hall = Hall(chromium)
    yield hall
    assert hall.empty() == []


@pytest.fixture
def hall(chromium: Browser) -> Iterator[Hall]:
    """Visitors of one test. A console error, an exception or a warning of a calm one fails it."""
    hall = Hall(chromium)
    yield hall
    assert hall.empty() == []
