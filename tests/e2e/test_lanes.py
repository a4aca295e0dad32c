"""Two lanes that do not do alike: one is slower, fails, stalls or is not there, and the page says so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.blackbox.app import LANES, ROOT, App, running
from tests.e2e.stage import QUICK, Hall, Stage, Visitor, counted, numbered, said, staged, until
from tests.fakes.vllm import ERR, HANG, RESET, ROLE, SLEEP, TOK, FakeThread, FakeVLLM, Reply, refused_port

STALL_S = 7
SOME = [ROLE, SLEEP(0.03), TOK("kept "), SLEEP(0.2), TOK("words"), SLEEP(0.2)]


@dataclass(frozen=True)
class Failure:
    """What one server does, and what its pane says: how it ended, the cause, and what to do."""

    script: Any
    chip: str
    cause: str
    remedy: str
    keeps: str = "kept words"


FAILURES = {
    "error": Failure([*SOME, ERR()], "failed", "EngineCore encountered an issue", "Look into the server's log"),
    "reset": Failure([*SOME, RESET], "cut off", "connection broke", "look into its log"),
    "silent": Failure([*SOME, HANG], "failed", "Stalled", "check both"),
    "500": Failure(Reply.error(500, "boom", "InternalServerError"), "failed", "HTTP 500", "restart it", ""),
    "login": Failure(
        Reply(body=b"<html><h1>Welcome to the Wi-Fi</h1></html>", content_type="text/html"),
        "failed", "Not a model server", "Check the address", "",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with staged({"SPECRACE_STALL_TIMEOUT": str(STALL_S)}) as stage:
        yield stage


# ------------------------------------------------------------------------------------------- a lane fails
@pytest.fixture(scope="module")
def failed(chromium: Browser, stage: Stage) -> Iterator[dict[str, Visitor]]:
    """Every failure at once, each in a page of its own."""
    hall = Hall(chromium)
    visitors: dict[str, Visitor] = {}
    for name, failure in FAILURES.items():
        stage.answer(name, numbered(120, 0.02), failure.script)
        visitors[name] = hall.enter(stage).write(name).race()
    yield visitors
    assert hall.empty() == []


@pytest.mark.parametrize("name", [name for name in FAILURES if name != "silent"] + ["silent"])
def test_a_lane_that_fails_keeps_its_words_and_says_why(failed: dict[str, Visitor], name: str) -> None:
    visitor, failure = failed[name].until_over(STALL_S + 6), FAILURES[name]
    for _ in range(2):
        assert visitor.out("speculative") == failure.keeps
        expect(visitor.page.locator("#head-speculative .chip")).to_have_text(failure.chip)
        trouble = visitor.words("#foot-speculative")
        assert failure.cause.lower() in trouble.lower()
        assert failure.remedy.lower() in trouble.lower()
        assert "Welcome" not in visitor.words("#foot-speculative")
        assert visitor.out("baseline") == counted(120), "the other lane was disturbed"
        assert visitor.words("#speedup") == "n/a", "a ratio although a lane did not finish"
        assert "speculative lane did not finish" in visitor.words("#verdict")
        assert visitor.page.locator("#state").inner_text() == "One lane finished, the other did not."
        visitor.page.reload()


@pytest.mark.parametrize("name", list(FAILURES))
def test_after_a_failure_the_next_race_needs_no_reload(failed: dict[str, Visitor], stage: Stage, name: str) -> None:
    visitor = failed[name].until_over(STALL_S + 6)
    stage.answer(name, QUICK)
    visitor.race().until_over()
    for lane in LANES:
        assert visitor.out(lane) == "The other lane."
        expect(visitor.page.locator(f"#head-{lane} .chip")).to_have_text("finished")
    assert visitor.page.locator(".trouble").count() == 0


def test_both_lanes_failing_is_said_once(hall: Hall, stage: Stage) -> None:
    name = stage.answer("both-fail", [*SOME, ERR()])
    visitor = hall.enter(stage).write(name).race().until_over()
    assert visitor.words("#state") == "Neither lane finished."
    for lane in LANES:
        assert visitor.out(lane) == "kept words"
    assert "both lanes failed" in visitor.words("#verdict")


# ------------------------------------------------------------------------------------------- a lane is slower
@pytest.fixture(scope="module")
def slower(chromium: Browser, stage: Stage) -> Iterator[Visitor]:
    hall = Hall(chromium)
    stage.answer("slower", numbered(100, 0.022, ttft_s=0), numbered(100, 0.022 / 0.88, ttft_s=0))
    yield hall.enter(stage).write("slower").race().until_over()
    assert hall.empty() == []


def test_p24_slower_is_shown_as_slower(slower: Visitor) -> None:
    for _ in range(2):
        ratio = slower.stage.race_json(slower.race_id)["comparison"]["speedup"]
        assert ratio == pytest.approx(0.88, abs=0.012)
        assert slower.words("#speedup") == f"{ratio:.2f}x"
        assert slower.words("#verdict") == f"{ratio:.2f}x: slower here"
        assert "faster" not in slower.words("#score")
        slower.page.reload()


def test_p24_a_loss_wears_no_winners_colour_and_hides_no_bar(slower: Visitor, hall: Hall, stage: Stage) -> None:
    name = stage.answer("wins", numbered(40, 0.03), numbered(40, 0.01))
    faster = hall.enter(stage).write(name).race().until_over()
    colour = "s => getComputedStyle(document.querySelector(s)).color"
    assert faster.page.evaluate(colour, "#speedup") != slower.page.evaluate(colour, "#speedup")
    for lane in LANES:
        bar = slower.page.locator(f".track.race .bar.{lane} .done")
        assert (bar.bounding_box() or {})["width"] > 100


# ------------------------------------------------------------------------------------------- a lane stalls
def test_p38_a_lane_that_stalls_does_not_hold_up_the_other(hall: Hall, stage: Stage) -> None:
    pauses: list[float] = []
    for attempt in range(2):  # the machine itself may pause: what counts is the better of two
        stalls = [ROLE, TOK("before "), SLEEP(5), *said("after")[1:]]
        name = stage.answer(f"stalls-{attempt}", stalls, numbered(275, 0.02))
        visitor = hall.enter(stage).write(name, max_tokens=400).race().until_text("speculative", "270 ")
        visitor.until_over()
        assert visitor.out("baseline") == "before after"
        assert visitor.out("speculative") == counted(275)
        watched = visitor.watched()
        grew = watched["grew"]["speculative"]
        assert grew[-1] - grew[0] > 5000
        pauses.append(max(b - a - late(watched, a, b) for a, b in pairwise(grew)))
        if pauses[-1] <= 300:
            return
    pytest.fail(f"the other lane stood still for {pauses} ms")


def late(watched: dict[str, Any], start: float, end: float) -> float:
    """For how long of this span the browser could do nothing at all (its own timers were late)."""
    return sum(max(0.0, min(end, at + gap) - max(start, at) - 20) for at, gap in watched["late"])


# ------------------------------------------------------------------------------------------- a server is not there
def recordings() -> bool:
    return any((ROOT / "deploy" / "recordings").glob("*.jsonl.gz"))


def test_a_server_that_is_down_is_seen_before_the_click(hall: Hall) -> None:
    with FakeThread() as thread, refused_port() as port:
        baseline = thread.start(FakeVLLM(model="base-m", script=QUICK))
        with running(App(baseline.url, f"http://127.0.0.1:{port}/v1"), ready=("baseline",)) as (app,):
            visitor = hall.enter(Stage(app, baseline, baseline, thread)).open()
            lamp = visitor.page.locator(".lamp.speculative")
            expect(lamp).to_contain_text("down")
            expect(visitor.page.locator("#engines")).to_contain_text("Speculative not available")
            expect(visitor.page.locator("#engines .speculative")).to_contain_text(re.compile("refused", re.IGNORECASE))
            expect(visitor.page.locator("#hint")).not_to_be_empty()
            assert visitor.page.locator("#run").inner_text() != "Race"
            assert baseline.posts == []
            if visitor.page.locator("#run.live").count():
                visitor.page.locator("#run").click()
                visitor.until_over()
                assert visitor.out("baseline") == "The other lane."
                expect(visitor.page.locator("#foot-speculative")).to_contain_text("start the server")


def test_a_server_that_comes_back_turns_the_page_live_by_itself(hall: Hall) -> None:
    with FakeThread() as thread:
        pair = [thread.start(FakeVLLM(model=model, script=QUICK)) for model in ("base-m", "spec-m")]
        with running(App(pair[0].url, pair[1].url)) as (app,):
            visitor = hall.enter(Stage(app, *pair, thread)).open()
            thread.stop(pair[1])
            expect(visitor.page.locator(".lamp.speculative")).to_contain_text("down", timeout=15_000)
            visitor.page.locator(".lamps").click()
            expect(visitor.page.locator("#servers")).to_be_visible()
            thread.start(pair[1])
            expect(visitor.page.locator(".lamp.speculative")).to_contain_text("ready", timeout=15_000)
            expect(visitor.page.locator("#run")).to_have_text("Race")
            expect(visitor.page.locator("#engines")).to_be_empty()
            expect(visitor.page.locator("#servers")).to_be_visible()
            visitor.page.keyboard.press("Escape")
            visitor.race().until_over()
            assert visitor.out("speculative") == "The other lane."


@pytest.fixture(scope="module")
def alone() -> Iterator[Stage]:
    """The app in front of nothing."""
    with FakeThread() as thread, refused_port() as first, refused_port() as second:
        nobody = FakeVLLM()
        with running(App(f"http://127.0.0.1:{first}/v1", f"http://127.0.0.1:{second}/v1"), ready=()) as (app,):
            yield Stage(app, nobody, nobody, thread)


def test_with_no_server_the_page_says_so_and_a_click_does_no_harm(hall: Hall, alone: Stage) -> None:
    visitor = hall.enter(alone).open("/?workload=your-prompt")
    for lane in LANES:
        expect(visitor.page.locator(f".lamp.{lane}")).to_contain_text("down")
    expect(visitor.page.locator("#hint")).to_have_text("Neither server answers.")
    visitor.page.locator("#prompt").fill("Say it.")
    visitor.page.locator("#run").click(force=True)
    visitor.page.locator("#run").focus()
    visitor.page.keyboard.press("Enter")
    visitor.wait(0.5)
    assert visitor.streams == []
    assert visitor.page.url.endswith("/?workload=your-prompt")
    assert visitor.refused == []


@pytest.mark.skipif(not recordings(), reason="deploy/recordings holds no recorded run yet")
def test_with_no_server_a_recorded_run_plays_by_itself_and_is_labelled(hall: Hall, alone: Stage) -> None:
    visitor = hall.enter(alone).open()
    band = visitor.page.locator("#band")
    expect(band).to_contain_text(re.compile("recorded", re.IGNORECASE))
    visitor.until_text("baseline", timeout_s=20)
    # a recording that plays keeps nobody from starting another one, or a race once the servers are there
    expect(visitor.page.locator("#run")).to_have_text("Play the recorded run")
    expect(visitor.page.locator("#run")).to_be_enabled()
    visitor.page.locator("#run").click()
    expect(band).to_contain_text(re.compile("recorded", re.IGNORECASE))
    expect(band).to_contain_text("vLLM")
    expect(band).to_contain_text(re.compile(r"\b20\d\d\b"))
    expect(band).to_be_in_viewport()
    for lane in LANES:
        visitor.until_text(lane, timeout_s=20)
    assert until(lambda: "n/a" not in visitor.words("#tps-baseline"), visitor.page, 10)
    visitor.page.keyboard.press("s")
    visitor.until_over()
    expect(band).to_contain_text(re.compile("recorded", re.IGNORECASE))
