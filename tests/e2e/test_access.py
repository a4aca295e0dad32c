"""For everybody: a phone, a keyboard, a screen reader, eyes that want no motion, a reader who scrolls (P42.7–11)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.blackbox.app import LANES, App, running
from tests.e2e.stage import QUICK, Hall, Stage, Visitor, counted, numbered, said, staged, until
from tests.fakes.vllm import ERR, HANG, ROLE, TOK, FakeThread, FakeVLLM, refused_port

WIDE_JSON = '{"key_without_any_space_in_it":"' + "x" * 400 + '"}\n'


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with staged({"SPECRACE_STALL_TIMEOUT": "60"}) as stage:
        yield stage


# ------------------------------------------------------------------------------------------- phone
@pytest.fixture(scope="module")
def phone(chromium: Browser, stage: Stage) -> Iterator[Visitor]:
    hall = Hall(chromium)
    stage.answer("phone", said(*[WIDE_JSON] * 20, "end"), said(*[WIDE_JSON] * 20, "end", every_s=0.01))
    viewport = {"width": 390, "height": 844}
    visitor = hall.enter(stage, viewport=viewport, has_touch=True, is_mobile=True, device_scale_factor=2)
    yield visitor.write("phone")
    assert hall.empty() == []


def sideways(page: Page) -> tuple[int, int]:
    return tuple(page.evaluate("() => [document.scrollingElement.scrollWidth, innerWidth]"))


def test_p42_7_a_phone_never_scrolls_sideways(phone: Visitor) -> None:
    width, screen = sideways(phone.page)
    assert screen == 390
    assert width <= 390, "at rest"
    phone.race().until_text("baseline")
    assert sideways(phone.page)[0] <= 390, "while it runs"
    phone.until_over()
    assert sideways(phone.page)[0] <= 390, "at the end"
    for path in ("/", "/?workload=creative", "/races", "/races/none"):
        other = phone.page.context.new_page()
        other.goto(phone.stage.root + path)
        assert sideways(other)[0] <= 390, path
        other.close()


def test_p42_7_on_a_phone_the_speedup_is_in_sight(phone: Visitor) -> None:
    phone.until_over()
    box = phone.page.locator("#speedup").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    phone.page.reload()
    phone.page.locator("#speedup").scroll_into_view_if_needed()
    expect(phone.page.locator("#speedup")).to_be_in_viewport()


def test_p42_7_on_a_phone_the_panes_stack_and_hold_the_text(phone: Visitor) -> None:
    phone.until_over()
    first, second = (phone.page.locator(f"#pane-{lane}").bounding_box() or {} for lane in LANES)
    assert second["y"] >= first["y"] + first["height"] - 1
    for lane in LANES:
        assert phone.out(lane) == WIDE_JSON * 20 + "end"
        wide, seen = phone.page.locator(f"#scroll-{lane}").evaluate("box => [box.scrollWidth, box.clientWidth]")
        assert wide <= seen, "a long line widens the pane"


def test_p42_7_on_a_phone_starting_brings_the_race_into_sight(hall: Hall, stage: Stage) -> None:
    name = stage.answer("phone-start", numbered(100, 0.02))
    visitor = hall.enter(stage, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True).write(name)
    visitor.race().until_text("baseline")
    expect(visitor.page.locator("#speedup")).to_be_in_viewport()


def test_at_1280_by_720_a_whole_race_fits_without_scrolling(hall: Hall, stage: Stage) -> None:
    name = stage.answer("fits", numbered(400, 0.005))
    visitor = hall.enter(stage).write(name, max_tokens=400).race().until_over()
    bottom, seen = visitor.page.evaluate(
        "() => [document.querySelector('#panes').getBoundingClientRect().bottom, innerHeight]"
    )
    assert bottom <= seen, "what stands behind the numbers comes below the race, not instead of it"
    for selector in ("#speedup", "#acceptance", "#run", "#stop", ".lamps", "#scroll-baseline", "#scroll-speculative"):
        expect(visitor.page.locator(selector)).to_be_in_viewport(ratio=0.99)
    for lane in LANES:
        assert (visitor.page.locator(f"#scroll-{lane}").bounding_box() or {})["height"] > 150, "no room for the text"


def test_on_a_stage_the_speedup_is_the_largest_thing(hall: Hall, stage: Stage) -> None:
    name = stage.answer("large", numbered(30, 0.01))
    visitor = hall.enter(stage, viewport={"width": 1920, "height": 1080}).write(name).race().until_over()
    sizes: dict[str, float] = {
        selector: visitor.page.locator(selector).first.evaluate("e => parseFloat(getComputedStyle(e).fontSize)")
        for selector in ("#speedup", "#acceptance", "#tps-baseline", "#out-baseline", "h2")
    }
    assert sizes["#speedup"] >= 72
    assert sizes["#out-baseline"] >= 22
    assert sorted(sizes, key=sizes.__getitem__)[-2:] == ["#acceptance", "#speedup"]


# ------------------------------------------------------------------------------------------- screen reader
def test_p42_8_start_and_end_are_said_once_each(hall: Hall, stage: Stage) -> None:
    name = stage.answer("said", numbered(60, 0.02), numbered(60, 0.01))
    visitor = hall.enter(stage).write(name).race().until_over()
    visitor.wait(0.3)
    spoken = visitor.watched()["said"]
    assert [words for words in spoken if words] == ["Race started.", f"Race finished: {visitor.words('#verdict')}."]


def test_p42_8_a_failure_is_said_once(hall: Hall, stage: Stage) -> None:
    name = stage.answer("said-failed", numbered(60, 0.02), [ROLE, TOK("a "), ERR()])
    visitor = hall.enter(stage).write(name).race().until_over()
    visitor.wait(0.3)
    spoken = [words for words in visitor.watched()["said"] if words]
    assert [words for words in spoken if "Speculative failed" in words] == ["Speculative failed."]
    assert len(spoken) == len(set(spoken)) <= 3, spoken
    assert "did not finish" in spoken[-1]


def test_p42_8_the_text_is_in_no_live_region(hall: Hall, stage: Stage) -> None:
    visitor = hall.enter(stage).open()
    loud = "[aria-live]:not([aria-live=off]), [role=status], [role=alert], [role=log], output"
    for lane in LANES:
        assert visitor.page.locator(f"#out-{lane}").evaluate("(e, loud) => Boolean(e.closest(loud))", loud) is False
    assert visitor.page.locator("#score").evaluate("(e, loud) => Boolean(e.closest(loud))", loud) is False
    expect(visitor.page.locator("#say")).to_have_attribute("role", "status")


AXE_IGNORED: dict[str, str] = {}
"""Rules that are not asked for, each with its reason."""


def serious(page: Page) -> list[str]:
    """Findings of axe that hurt somebody, each with where."""
    results: dict[str, Any] = Axe().run(page).response
    return [
        f"{found['impact']}: {found['id']} at {node['target']}: {node['failureSummary']}"
        for found in results["violations"]
        if found["impact"] in ("serious", "critical") and found["id"] not in AXE_IGNORED
        for node in found["nodes"][:3]
    ]


SCHEMES = ["light", "dark"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_axe_finds_nothing_serious(hall: Hall, stage: Stage, scheme: Any) -> None:
    name = stage.answer("axe", [ROLE, TOK("one "), HANG], numbered(60, 0.01, chunk=4, spec=True))
    visitor = hall.enter(stage, color_scheme=scheme).open()
    found = {"at rest": serious(visitor.page)}
    visitor.write(name)
    found["own prompt"] = serious(visitor.page)
    visitor.race().until_text("baseline", "one").wait(0.8)
    found["live"] = serious(visitor.page)
    visitor.page.locator("#stop").click()
    visitor.until_over()
    found["stopped"] = serious(visitor.page)
    stage.answer("axe", numbered(30, 0.01), numbered(30, 0.02, chunk=4, spec=True))
    visitor.race().until_over()
    found["finished"] = serious(visitor.page)
    visitor.page.get_by_role("button", name="Speedup").click()
    found["what a number means"] = serious(visitor.page)
    visitor.page.keyboard.press("Escape")
    visitor.page.get_by_role("button", name="Replay").click()
    visitor.until_over()
    found["replay"] = serious(visitor.page)
    stage.answer("axe", [ROLE, TOK("a "), ERR()])
    visitor.race().until_over()
    found["failed"] = serious(visitor.page)
    visitor.open("/races")
    found["history"] = serious(visitor.page)
    assert {state: findings for state, findings in found.items() if findings} == {}


def test_axe_finds_nothing_serious_when_a_server_is_down(hall: Hall) -> None:
    found: dict[str, list[str]] = {}
    with FakeThread() as thread, refused_port() as port:
        baseline = thread.start(FakeVLLM(model="base-m", script=QUICK))
        with running(App(baseline.url, f"http://127.0.0.1:{port}/v1"), ready=("baseline",)) as (app,):
            for scheme in SCHEMES:
                there = Stage(app, baseline, baseline, thread)
                visitor = hall.enter(there, color_scheme=scheme, calm=False).open()
                expect(visitor.page.locator(".lamp.speculative")).to_contain_text("down")
                found[f"{scheme}: down"] = serious(visitor.page)
                visitor.page.locator(".lamps").click()
                found[f"{scheme}: servers"] = serious(visitor.page)
                visitor.open("/races")
                found[f"{scheme}: empty history"] = serious(visitor.page)
                visitor.open("/races/none")
                found[f"{scheme}: problem"] = serious(visitor.page)
    assert {state: findings for state, findings in found.items() if findings} == {}


# ------------------------------------------------------------------------------------------- keyboard
def focused(page: Page) -> str:
    return page.evaluate("() => document.activeElement.id || document.activeElement.textContent.trim()")


def test_p42_11_keyboard_alone_does_tab_run_and_stop(hall: Hall, stage: Stage) -> None:
    slow = numbered(2000, 0.02)
    stage.default(slow, slow)
    before = stage.posts()
    visitor = hall.enter(stage).open()
    reached: list[str] = []
    for _ in range(40):
        visitor.page.keyboard.press("Tab")
        reached.append(focused(visitor.page))
        if reached[-1] == "Creative" and reached.count("Creative") == 1:
            visitor.page.keyboard.press("Enter")
            expect(visitor.page.locator(".tabs [aria-current]")).to_have_text("Creative")
        if reached[-1] == "run":
            outline = visitor.page.locator("#run").evaluate("e => getComputedStyle(e).outlineStyle")
            assert outline != "none", "nobody sees where the focus is"
            break
    assert reached[-1] == "run", reached
    visitor.page.keyboard.press("Enter")
    visitor.until_text("baseline")
    for _ in range(40):
        if focused(visitor.page) == "stop":
            break
        visitor.page.keyboard.press("Tab")
    assert focused(visitor.page) == "stop"
    visitor.page.keyboard.press("Space")
    visitor.until_over(3)
    assert visitor.words("#state").startswith("Stopped")
    assert stage.posts() == [before[0] + 1, before[1] + 1]


def test_p42_11_picking_a_tab_by_keyboard_keeps_ones_place(hall: Hall, stage: Stage) -> None:
    visitor = hall.enter(stage).open()
    visitor.page.locator(".tabs a").nth(1).focus()
    visitor.page.keyboard.press("Enter")
    expect(visitor.page.locator(".tabs [aria-current]")).to_have_text("Creative")
    assert until(lambda: focused(visitor.page) == "Creative", visitor.page, 1), focused(visitor.page)[:60]


def test_p42_11_stopping_by_keyboard_keeps_ones_place(hall: Hall, stage: Stage) -> None:
    name = stage.answer("focus", numbered(2000, 0.02))
    visitor = hall.enter(stage).write(name).race().until_text("baseline")
    visitor.page.locator("#stop").focus()
    visitor.page.keyboard.press("Enter")
    visitor.until_over(3)
    assert until(lambda: focused(visitor.page) in ("run", "stop", "arena"), visitor.page, 1), focused(visitor.page)[:60]


def test_keys_switch_tabs_start_and_stop_but_not_while_typing(hall: Hall, stage: Stage) -> None:
    name = stage.answer("keys", numbered(2000, 0.02))
    visitor = hall.enter(stage).open()
    visitor.page.keyboard.press("2")
    expect(visitor.page.locator(".tabs [aria-current]")).to_have_text("Creative")
    visitor.page.keyboard.press("4")
    expect(visitor.page.locator(".tabs [aria-current]")).to_have_text("Your prompt")
    visitor.page.locator("#prompt").focus()
    visitor.page.keyboard.type(f"[{name}] 1 s 2\n3 S")
    expect(visitor.page.locator(".tabs [aria-current]")).to_have_text("Your prompt")
    assert visitor.streams == []
    visitor.page.keyboard.press("Control+Enter")
    visitor.until_text("baseline")
    assert stage.posts(name) == [1, 1]
    visitor.page.locator("#arena").focus()
    visitor.page.keyboard.press("s")
    visitor.until_over(3)


def test_the_skip_link_leads_to_the_race(hall: Hall, stage: Stage) -> None:
    visitor = hall.enter(stage).open()
    visitor.page.keyboard.press("Tab")
    skip = visitor.page.locator(".skip")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport()
    visitor.page.keyboard.press("Enter")
    assert focused(visitor.page) == "arena"


# ------------------------------------------------------------------------------------------- motion
MOVING = "() => document.getAnimations().filter(a => a.playState === 'running').length"


@pytest.mark.parametrize(("motion", "moves"), [("reduce", False), ("no-preference", True)])
def test_p42_9_nothing_moves_where_no_motion_is_wanted(hall: Hall, stage: Stage, motion: Any, moves: bool) -> None:
    name = stage.answer("motion", numbered(100, 0.02))
    visitor = hall.enter(stage, reduced_motion=motion).write(name)
    most = visitor.page.evaluate(MOVING)
    visitor.race().until_text("baseline", "5 ")
    for _ in range(8):
        visitor.wait(0.1)
        most = max(most, visitor.page.evaluate(MOVING))
    visitor.until_over()
    most = max(most, visitor.page.evaluate(MOVING)) if not moves else most
    assert (most > 0) is moves


# ------------------------------------------------------------------------------------------- the reader
def test_p42_11_a_reader_who_scrolled_up_stays_there(hall: Hall, stage: Stage) -> None:
    lines = [f"line {i}\n" for i in range(200)]
    name = stage.answer("scroll", said(*lines, every_s=0.02))
    visitor = hall.enter(stage).write(name).race().until_text("baseline", "line 60")
    box = visitor.page.locator("#scroll-baseline")
    box.hover()
    visitor.page.mouse.wheel(0, -400)
    visitor.wait(0.3)
    there = box.evaluate("box => box.scrollTop")
    assert there > 0
    for _ in range(5):
        visitor.wait(0.15)
        assert box.evaluate("box => box.scrollTop") == there
    follow = visitor.page.locator("#pane-baseline .follow")
    expect(follow).to_be_visible()
    other = visitor.page.locator("#scroll-speculative").evaluate("b => b.scrollHeight - b.scrollTop - b.clientHeight")
    assert other <= 64, "the other pane follows no more"
    visitor.until_over()
    visitor.wait(0.3)
    assert box.evaluate("box => box.scrollTop") == there, "the end pulled the reader down"
    follow.click()
    assert until(lambda: box.evaluate("b => b.scrollHeight - b.scrollTop - b.clientHeight") <= 32, visitor.page, 1)
    expect(follow).to_be_hidden()


def test_p42_11_the_page_does_not_take_its_own_scrolling_for_the_readers(hall: Hall, stage: Stage) -> None:
    """On a slow machine text arrives between a scroll of ours and its event; nobody scrolled up for that."""
    name = stage.answer("slow", numbered(1600, 0.01, chunk=4))
    visitor = hall.enter(stage).write(name, max_tokens=1600)
    visitor.page.context.new_cdp_session(visitor.page).send("Emulation.setCPUThrottlingRate", {"rate": 8})
    visitor.race().until_text("baseline")
    away = 0
    while visitor.page.locator("#stop:enabled").count():
        away += visitor.page.locator("[data-away]").count()
        visitor.wait(0.3)
    visitor.until_over()
    assert away == 0, "the page followed the text no more, and nobody had touched it"
    for lane in LANES:
        left = visitor.page.locator(f"#scroll-{lane}").evaluate("b => b.scrollHeight - b.scrollTop - b.clientHeight")
        assert left <= 32


def test_p42_11_marked_text_stays_marked_while_the_rest_arrives(hall: Hall, stage: Stage) -> None:
    name = stage.answer("marked", numbered(150, 0.02))
    visitor = hall.enter(stage).write(name).race().until_text("baseline", "20 ")
    visitor.page.evaluate(
        """() => { const first = document.querySelector('#out-baseline').firstElementChild;
                   getSelection().selectAllChildren(first); window.marked = first.textContent; }"""
    )
    visitor.until_over()
    assert visitor.page.evaluate("() => getSelection().toString().trim() === marked.trim()")
    assert visitor.out("baseline") == counted(150)


def test_an_open_explanation_survives_the_frames(hall: Hall, stage: Stage) -> None:
    name = stage.answer("open", numbered(150, 0.02))
    visitor = hall.enter(stage).write(name).race().until_text("baseline", "10 ")
    term = visitor.page.get_by_role("button", name=re.compile("^TTFT"))
    term.focus()
    visitor.page.keyboard.press("Enter")
    about = visitor.page.locator("#about-ttft")
    expect(about).to_be_visible()
    visitor.wait(1)
    expect(about).to_be_visible()
    expect(term).to_be_focused()
    visitor.until_over()
    expect(about).to_be_visible()
