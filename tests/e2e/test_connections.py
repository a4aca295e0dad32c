"""One stream a page: what ends, breaks, sleeps or comes back loses, repeats and re-runs nothing (P25–P29, P32)."""

from __future__ import annotations

import contextlib
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Browser, expect

from tests.blackbox.app import LANES, App
from tests.e2e.proxy import Proxy
from tests.e2e.stage import QUICK, STREAM, Hall, Stage, Visitor, counted, numbered, staged, until
from tests.fakes.vllm import HANG, ROLE, TOK

ENDED_S = 20.0
HIDDEN_S = 20.0
ABANDONED_S = 15.0


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with staged({"SPECRACE_STALL_TIMEOUT": "60"}) as stage:
        yield stage


@dataclass
class Left:
    """Pages left to themselves while the other tests of this module run; looked at again by its last tests."""

    ended: Visitor
    again: Visitor
    hidden: Visitor
    back_at: float
    away: Visitor
    away_at: float
    began: float

    def after(self, seconds: float) -> None:
        """Wait until so long after the beginning."""
        self.ended.wait(max(0.0, self.began + seconds - time.monotonic()))


HIDE = """() => {
    for (const [name, value] of [['hidden', true], ['visibilityState', 'hidden']])
        Object.defineProperty(document, name, { configurable: true, get: () => value });
    document.dispatchEvent(new Event('visibilitychange'));
}"""
SHOW = """() => {
    delete document.hidden;
    delete document.visibilityState;
    document.dispatchEvent(new Event('visibilitychange'));
}"""


@pytest.fixture(scope="module", autouse=True)
def left(chromium: Browser, stage: Stage) -> Iterator[Left]:
    """P25, P26, P27, P32 and an abandoned race, all begun before the other tests of this module."""
    hall = Hall(chromium)
    stage.answer("ended", numbered(30, 0.02))
    stage.answer("hidden", numbered(1000, 0.025))
    stage.answer("away", [ROLE, TOK("one "), HANG])
    ended = hall.enter(stage).write("ended").race()
    hidden = hall.enter(stage).write("hidden", max_tokens=1000).race().until_text("baseline")
    away = hall.enter(stage).write("away").race().until_text("baseline", "one")
    away.page.locator(".tabs a").first.click()
    away_at = time.monotonic()
    hidden.page.evaluate(HIDE)
    ended.until_over()
    again = hall.enter(stage).open(f"/races/{ended.race_id}")
    began = time.monotonic()
    yield Left(ended, again, hidden, began + HIDDEN_S, away, away_at, began)
    assert hall.empty() == []


# ------------------------------------------------------------------------------------------- reload, come back
def test_reload_in_mid_run_goes_on_without_loss(hall: Hall, stage: Stage) -> None:
    name = stage.answer("reload", numbered(150, 0.02))
    visitor = hall.enter(stage).write(name).race()
    for at in ("20 ", "60 "):
        visitor.until_text("speculative", at)
        visitor.page.reload()
    expect(visitor.page.locator("#stop")).to_be_enabled()
    visitor.until_over()
    for lane in LANES:
        assert visitor.out(lane) == counted(150)
    assert stage.posts(name) == [1, 1]
    assert visitor.words("#head-baseline").endswith("length limit")


def test_back_and_forward_in_mid_run_lose_nothing(hall: Hall, stage: Stage) -> None:
    name = stage.answer("back", numbered(200, 0.02))
    visitor = hall.enter(stage).write(name).race().until_text("baseline", "20 ")
    url = visitor.page.url
    visitor.page.go_back()
    expect(visitor.page.locator("#out-baseline")).to_be_empty()
    assert until(lambda: visitor.open_streams == 0, visitor.page, 2), "the page that was left still streams"
    visitor.page.go_forward()
    assert visitor.page.url == url
    visitor.until_text("baseline", "40 ").until_over()
    for lane in LANES:
        assert visitor.out(lane) == counted(200)
    assert stage.posts(name) == [1, 1]


def test_a_race_from_a_page_that_was_gone_back_to_is_a_new_one(hall: Hall, stage: Stage) -> None:
    stage.default(QUICK, QUICK)
    visitor = hall.enter(stage).open().race().until_over()
    once = visitor.race_id
    visitor.page.go_back()
    expect(visitor.page.locator("#out-baseline")).to_be_empty()
    visitor.race().until_over()
    assert visitor.race_id != once
    assert visitor.out("baseline") == "The other lane."


def test_the_same_race_in_two_windows_is_one_race(hall: Hall, stage: Stage) -> None:
    name = stage.answer("shared", numbered(120, 0.02))
    one = hall.enter(stage).write(name).race().until_text("baseline", "10 ")
    two = hall.enter(stage).open(one.page.url)
    for visitor in (one, two):
        visitor.until_over()
        for lane in LANES:
            assert visitor.out(lane) == counted(120)
    assert stage.posts(name) == [1, 1]


# ------------------------------------------------------------------------------------------- cut connections
@pytest.fixture(scope="module")
def proxy(stage: Stage) -> Iterator[Proxy]:
    assert stage.app.port
    proxy = Proxy(stage.app.port)
    stage.thread.run(proxy.start())
    yield proxy
    stage.thread.run(proxy.stop())


@pytest.mark.parametrize("how", ["reset", "end"])
def test_a_stream_cut_in_a_message_and_refused_once_is_made_whole(
    hall: Hall, stage: Stage, proxy: Proxy, how: str
) -> None:
    name = stage.answer(f"cut-{how}", numbered(250, 0.02))
    visitor = hall.enter(stage, calm=False)
    visitor.open(f"{proxy.root}/?workload=your-prompt").write(name).race()
    streams = proxy.streams
    for at in ("20 ", "90 "):
        visitor.until_text("speculative", at)
        proxy.refuse = 1
        proxy.cut(how)
    visitor.until_over()
    assert proxy.streams - streams >= 4, "the stream was not cut"
    for lane in LANES:
        assert visitor.out(lane) == counted(250)
    assert stage.posts(name) == [1, 1]
    expect(visitor.page.locator("#offline")).to_be_hidden()
    visitor.page.reload()
    for lane in LANES:
        assert visitor.out(lane) == counted(250)


@pytest.mark.parametrize("how", ["refuse", "drop"])
def test_a_first_connect_that_fails_is_tried_again(hall: Hall, stage: Stage, proxy: Proxy, how: str) -> None:
    name = stage.answer(f"first-{how}", numbered(60, 0.02))
    visitor = hall.enter(stage, calm=False).open(f"{proxy.root}/?workload=your-prompt").write(name)
    setattr(proxy, how, 2)
    visitor.race().until_over()
    for lane in LANES:
        assert visitor.out(lane) == counted(60)
    assert stage.posts(name) == [1, 1]


# ------------------------------------------------------------------------------------------- tabs
def test_switching_tabs_leaves_no_stream_and_no_old_race(hall: Hall, stage: Stage) -> None:
    stage.default([ROLE, TOK("one "), HANG], [ROLE, TOK("one "), HANG])
    open_before, seen_before = stage.open_streams(), [len(fake.posts) for fake in stage.fakes]
    visitor = hall.enter(stage).open()
    most = 0
    for turn in range(15):
        tab = visitor.page.locator(".tabs a").nth((turn + 1) % 3)
        tab.click()
        expect(visitor.page.locator(f".tabs a:nth-of-type({(turn + 1) % 3 + 1})")).to_have_attribute(
            "aria-current", "page"
        )
        assert visitor.out("baseline") == "", "an old token stands in the new pane"
        visitor.race().until_text("baseline", "one")
        most = max(most, visitor.open_streams)
    assert len(visitor.streams) == 15
    assert most <= 2
    mine = [fake.posts[before:] for fake, before in zip(stage.fakes, seen_before, strict=True)]
    assert [len(posts) for posts in mine] == [15, 15]
    assert until(lambda: visitor.open_streams == 1, visitor.page, 2)
    assert until(lambda: all(sum(p.ended_at is None for p in posts) == 1 for posts in mine), visitor.page, 2), (
        "a server still works on a race that was replaced"
    )
    assert stage.open_streams() <= open_before + 1
    visitor.page.locator("#stop").click()
    visitor.until_over()
    assert until(lambda: all(p.ended_at for posts in mine for p in posts), visitor.page, 2)


def test_a_tab_left_in_mid_run_brings_no_token_into_the_new_pane(hall: Hall, stage: Stage) -> None:
    stage.default(numbered(200, 0.02), numbered(200, 0.02))
    visitor = hall.enter(stage).open().race().until_text("baseline", "20 ")
    visitor.page.locator(".tabs a").nth(1).click()
    expect(visitor.page.locator(".tabs [aria-current]")).to_have_text("Creative")
    for _ in range(10):
        visitor.wait(0.1)
        assert [visitor.out(lane) for lane in LANES] == ["", ""]
    assert visitor.open_streams == 0
    expect(visitor.page.locator("#run")).not_to_have_attribute("aria-disabled", "true")
    stage.default(QUICK, QUICK)
    visitor.race().until_over()
    assert [visitor.out(lane) for lane in LANES] == ["The other lane."] * 2


def test_a_fifth_tab_loads_and_stops_within_two_seconds(hall: Hall, stage: Stage) -> None:
    name = stage.answer("five", numbered(2000, 0.02))
    context = hall.context()
    tabs = [hall.enter(stage, context) for _ in range(4)]
    for tab in tabs:
        tab.write(name, max_tokens=2000).race().until_text("baseline")
    for tab in tabs[:-1]:
        tab.open(tabs[-1].page.url).until_text("baseline", "10 ")
    assert stage.open_streams() >= 4
    began = time.monotonic()
    fifth = hall.enter(stage, context).open(tabs[-1].page.url).until_text("baseline")
    loaded = time.monotonic()
    fifth.page.locator("#stop").click()
    fifth.until_over(4)
    stopped = time.monotonic()
    assert loaded - began < 2
    assert stopped - loaded < 2
    for tab in tabs:
        tab.until_over(2)
    assert until(lambda: stage.generating(name) == 0, fifth.page, 2)


# ------------------------------------------------------------------------------------------- restarts
class Restart:
    """The app is stopped or killed while a race runs, and started again at the same address."""

    def __init__(self, how: signal.Signals, stage: Stage, hall: Hall) -> None:
        stage.answer("restart", numbered(3000, 0.02))
        self.how = how
        self.stage = stage
        self.visitor = hall.enter(stage, calm=False).write("restart", max_tokens=3000).race()
        self.words = ""
        self.exit_s = 0.0
        self.streams: list[int] = []

    def end(self) -> None:
        self.visitor.until_text("baseline", "60 ").wait(1.2)  # what is older than a second is in the store
        process = self.stage.app.process
        assert process is not None
        began = time.monotonic()
        process.send_signal(self.how)
        assert until(lambda: process.poll() is not None, self.visitor.page, 10)
        self.exit_s = time.monotonic() - began

    def begin(self) -> None:
        self.words = self.visitor.words("body")
        old = self.stage.app
        self.stage.app = App(old.baseline, old.speculative, env=old.env, port=old.port).start()


@pytest.fixture(scope="module")
def restarts(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Restart]]:
    hall = Hall(chromium)
    with contextlib.ExitStack() as stack:
        found: dict[str, Restart] = {}
        for how in (signal.SIGTERM, signal.SIGKILL):
            database = str(tmp_path_factory.mktemp("restart") / "races.sqlite3")
            stage = stack.enter_context(staged({"SPECRACE_DATABASE": database, "SPECRACE_STALL_TIMEOUT": "60"}))
            found[how.name] = Restart(how, stage, hall)
        every = list(found.values())
        for one in every:
            one.end()
        every[0].visitor.wait(1.5)
        for one in every:
            one.begin()
            stack.callback(one.stage.app.stop)
        for one in every:  # however long the browser's own back-off takes on a busy machine
            expect(one.visitor.page.locator("#state")).to_contain_text("Interrupted", timeout=15_000)
        for pause_s in (0.5, 2.5):
            every[0].visitor.wait(pause_s)
            for one in every:
                one.streams.append(len(one.visitor.streams))
        yield found
    hall.empty()


@pytest.fixture(params=["SIGTERM", "SIGKILL"])
def restart(request: pytest.FixtureRequest, restarts: dict[str, Restart]) -> Restart:
    return restarts[request.param]


def test_a_restart_is_said_on_the_page(restart: Restart) -> None:
    assert re.search(r"interrupted|restart|No connection to Specrace", restart.words, re.IGNORECASE), restart.words
    assert restart.exit_s < 5


def test_after_a_restart_the_page_shows_the_race_as_interrupted(restart: Restart) -> None:
    expect(restart.visitor.page.locator("#state")).to_contain_text("Interrupted")
    expect(restart.visitor.page.locator("#head-baseline")).to_contain_text("interrupted")
    expect(restart.visitor.page.locator("#offline")).to_be_hidden()
    out = restart.visitor.out("baseline")
    assert out.startswith(counted(61))
    assert counted(3000).startswith(out), "text was lost or repeated"


def test_after_a_restart_the_page_does_not_ask_for_ever(restart: Restart) -> None:
    assert restart.streams[0] == restart.streams[1]
    assert restart.stage.posts("restart") == [1, 1], "the race was run again"


def test_after_a_restart_the_next_race_needs_no_reload(restart: Restart) -> None:
    restart.stage.answer("restart", QUICK)
    restart.visitor.race().until_over()
    assert restart.visitor.out("baseline") == "The other lane."
    assert restart.visitor.words("#state").startswith("Finished")


# ------------------------------------------------------------------------------------------- left to themselves
def test_p25_a_run_that_ended_is_not_started_again(left: Left, stage: Stage) -> None:
    left.after(ENDED_S)
    assert stage.posts("ended") == [1, 1]
    for lane in LANES:
        assert left.ended.out(lane) == counted(30)
    assert len(left.ended.streams) == 1, "the stream was opened again after its end"


def test_p27_a_finished_run_opened_again_is_shown_and_not_generated(left: Left, stage: Stage) -> None:
    left.after(ENDED_S)
    for lane in LANES:
        assert left.again.out(lane) == counted(30)
    assert len(left.again.streams) <= 1
    assert stage.posts("ended") == [1, 1]


def test_p27_the_stream_of_a_finished_run_opened_by_hand_generates_nothing(
    hall: Hall, left: Left, stage: Stage
) -> None:
    visitor = hall.enter(stage, calm=False)  # a stream names no icon, so the browser asks for one that is not there
    visitor.open(f"/races/{left.ended.race_id}/stream")
    assert "event: done" in visitor.words("body")
    assert stage.posts("ended") == [1, 1]


def test_p32_a_hidden_tab_comes_back_with_the_whole_text(left: Left, stage: Stage) -> None:
    left.hidden.wait(max(0.0, left.back_at - time.monotonic()))
    left.hidden.page.evaluate(SHOW)
    left.hidden.until_over(15)
    for lane in LANES:
        assert left.hidden.out(lane) == counted(1000)
    assert stage.posts("hidden") == [1, 1]
    race = stage.race_json(left.hidden.race_id)
    for lane in LANES:
        assert 24 <= race["lanes"][lane]["tpot_ms"] <= 26.5, "the timing shows that the tab was hidden"


def test_a_race_left_by_everybody_stops_within_15_s(left: Left, stage: Stage) -> None:
    left.away.wait(max(0.0, left.away_at + ABANDONED_S + 0.5 - time.monotonic()))
    assert stage.generating("away") == 0
    ends = [seen.ended_at for fake in stage.fakes for seen in fake.posts_with("[away]")]
    assert len(ends) == 2
    assert [request.url for request in left.away.requests if STREAM.search(request.url)]
    assert left.away.open_streams == 0
