"""Repeats on the page: races follow one another in sight of the visitor, a plot grows, and Stop ends them all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.stage import Hall, Stage, Visitor, numbered, staged, until
from tests.e2e.test_access import serious

TOKENS = 40


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with staged() as stage:
        yield stage


def state(page: Page, text: str, timeout_s: float = 15) -> None:
    expect(page.locator("#state")).to_have_text(re.compile(text), timeout=1000 * timeout_s)


def repeat(visitor: Visitor, name: str, times: int) -> Visitor:
    visitor.write(name, max_tokens=TOKENS)
    visitor.page.locator("#repeats").select_option(str(times))
    visitor.page.locator("[name=schedule][value=in_turn]").check(force=True)
    return visitor.race()


def marks(page: Page) -> int:
    """Marks on the line of the speedup: one for each race that counted."""
    return page.locator(".spread.pair").first.locator(".mark").count()


def test_three_races_follow_one_another_through_a_reload_and_the_plot_grows(hall: Hall, stage: Stage) -> None:
    name = stage.answer("again", numbered(TOKENS, 0.02), numbered(TOKENS, 0.03, chunk=4, spec=True))
    visitor = repeat(hall.enter(stage), name, 3)
    page = visitor.page
    expect(page).to_have_url(re.compile(r"/series/\w+/live$"))
    state(page, r"^Race 1 of 3\. Racing in turn")
    expect(page.locator("#run")).to_have_attribute("aria-disabled", "true")
    state(page, r"^Race 2 of 3\. Racing in turn")
    assert marks(page) == 1, "the first race is drawn before the second is over"
    visitor.until_text("speculative")
    page.reload()
    state(page, r"^Race 2 of 3\.")
    expect(page.locator("#repeats")).to_have_value("3")
    state(page, r"^Race 3 of 3\. Racing in turn")
    assert marks(page) == 2
    chip = page.locator(".chips a[href='#insight-series']")
    expect(chip).to_have_text(re.compile(r"^median of 2 so far: [\d.]+x \[[\d.]+–[\d.]+x\]$"))
    state(page, r"^Race 3 of 3\. Finished")
    expect(chip).to_have_text(re.compile(r"^median of 3: "))
    assert marks(page) == 3
    assert stage.posts(name) == [3, 3]
    expect(page.locator("#stop")).to_be_disabled()
    expect(page.locator("#run")).not_to_have_attribute("aria-disabled", "true")
    asked = len([request for request in visitor.requests if "/next?" in request.url])
    visitor.wait(2.5)
    assert len([request for request in visitor.requests if "/next?" in request.url]) == asked, "nothing more to ask for"
    assert visitor.open_streams == 0
    assert visitor.refused == []
    for selector in (
        "#speedup",
        "#run",
        "#stop",
        ".chips a[href='#insight-series']",
        "#scroll-baseline",
        "#scroll-speculative",
    ):
        expect(page.locator(selector)).to_be_in_viewport(ratio=0.99)


def test_the_series_can_be_read_on_its_own_page_and_copied(hall: Hall, stage: Stage) -> None:
    name = stage.answer("copied", numbered(TOKENS, 0.005), numbered(TOKENS, 0.01, chunk=4, spec=True))
    context = hall.context(permissions=["clipboard-read", "clipboard-write"])
    visitor = repeat(hall.enter(stage, context), name, 3)
    page = visitor.page
    state(page, r"^Race 3 of 3\. Finished", timeout_s=25)
    page.get_by_role("link", name="Link to this series").click()
    expect(page.locator("h1")).to_have_text(re.compile(r"^Speedup, median of 3: "))
    expect(page.locator("#insight-series tbody").first.locator("tr")).to_have_count(3)
    page.get_by_role("button", name="Copy as Markdown").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    table = str(page.evaluate("() => navigator.clipboard.readText()"))
    assert "| 3 of 3" in table
    page.locator("#insight-series tbody a").nth(1).click()
    state(page, r"^Race 2 of 3\. Finished")
    assert visitor.wait(1.5).page.url.split("/")[-2] == "races", "an earlier race stays where it is"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_in_a_series(hall: Hall, stage: Stage, scheme: Any) -> None:
    name = stage.answer("axe", numbered(TOKENS, 0.005), numbered(TOKENS, 0.01, chunk=4, spec=True))
    visitor = repeat(hall.enter(stage, color_scheme=scheme), name, 3)
    state(visitor.page, r"^Race 3 of 3\. Finished", timeout_s=25)
    visitor.page.locator("#insight-series summary").click()
    assert serious(visitor.page) == []
    visitor.open(visitor.page.url.removesuffix("/live"))
    assert serious(visitor.page) == []


def test_stop_ends_the_race_and_all_that_would_follow(hall: Hall, stage: Stage) -> None:
    name = stage.answer("stopped", numbered(2000, 0.02))
    visitor = repeat(hall.enter(stage), name, 5).until_text("baseline")
    page = visitor.page
    page.keyboard.press("s")
    state(page, r"^Race 1 of 5\. Stopped")
    assert until(lambda: stage.generating(name) == 0, page, 3)
    visitor.wait(2.5)
    assert sum(stage.posts(name)) <= 2
    expect(page.locator("#insight-series")).to_contain_text("Stopped in race 1 of 5.")
    expect(page.locator("#stop")).to_be_disabled()


def test_on_a_phone_nothing_is_wider_than_the_screen(hall: Hall, stage: Stage) -> None:
    name = stage.answer("phone", numbered(TOKENS, 0.005))
    visitor = repeat(hall.enter(stage, viewport={"width": 390, "height": 844}), name, 3)
    page = visitor.page
    state(page, r"^Race 3 of 3\. Finished", timeout_s=25)
    assert page.evaluate("() => document.documentElement.scrollWidth") == 390
    page.goto(page.url.removesuffix("/live"))
    assert page.evaluate("() => document.documentElement.scrollWidth") == 390


def test_somebody_who_follows_a_series_of_a_script_is_taken_from_race_to_race(hall: Hall, stage: Stage) -> None:
    import httpx2 as httpx

    name = stage.answer("script", numbered(TOKENS, 0.05))
    body = {"prompt": f"[{name}] Say it.", "repeats": 2, "max_tokens": TOKENS}
    series = httpx.post(f"{stage.root}/api/series", json=body, timeout=10).json()["id"]
    visitor = hall.enter(stage).open(f"/series/{series}/live")
    state(visitor.page, r"^Race 2 of 2\. Finished")
    own = hall.enter(stage).open(f"/series/{series}")
    expect(own.page.locator("#insight-series")).to_contain_text("2 of 2 counted")
