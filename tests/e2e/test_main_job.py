"""The main job, from an empty page to a race that is listed and played again."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.e2e.stage import LANES, Hall, Stage, Visitor, counted, numbered, staged, until

TOKENS = 120
LIMIT_BYTES = 60_000
PAIR = numbered(TOKENS, 0.02), numbered(TOKENS, 0.04, chunk=4, spec=True)


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with staged() as stage:
        stage.default(*PAIR)
        yield stage


@pytest.fixture(scope="module")
def first(chromium: Browser, stage: Stage) -> Iterator[Visitor]:
    """Somebody opens the page on a machine that reaches nothing but itself, and runs a race from it."""
    hall = Hall(chromium)
    context = hall.context()
    context.route(re.compile(r"^https?://(?!127\.0\.0\.1[:/])"), lambda route: route.abort())
    visitor = hall.enter(stage, context)
    visitor.open()
    yield visitor
    assert hall.empty() == []


def test_first_load_is_small(first: Visitor) -> None:
    first.page.wait_for_load_state("networkidle")
    sizes = {response.url: len(gzip.compress(response.body(), 6)) for response in first.responses}
    assert len(sizes) >= 5
    assert sum(sizes.values()) <= LIMIT_BYTES, sizes


def test_both_lamps_are_ready_before_the_click(first: Visitor) -> None:
    lamps = first.page.locator(".lamps .lamp")
    expect(lamps).to_have_count(2)
    for lane, lamp in zip(LANES, lamps.all(), strict=True):
        expect(lamp).to_have_class(re.compile(rf"\b{lane} ready\b"))
        expect(lamp).to_contain_text("ready")
    expect(first.page.locator("#run")).to_have_text("Race")
    expect(first.page.locator("#run")).not_to_have_attribute("aria-disabled", "true")
    assert first.stage.posts() == [0, 0], "something was generated before anybody asked"


def test_every_tab_holds_three_ready_prompts(first: Visitor) -> None:
    tabs = first.page.locator(".tabs a")
    names = tabs.all_inner_texts()
    assert names == ["Structured", "Creative", "Long context", "Your prompt"]
    for name in names[:3]:
        tabs.get_by_text(name, exact=True).click()
        expect(first.page.locator(".tabs [aria-current]")).to_have_text(name)
        assert first.page.locator(".picks a").count() >= 3
        first.page.locator(".picks a").nth(1).click()
        expect(first.page.locator(".picks a").nth(1)).to_have_attribute("aria-current", "true")
    tabs.first.click()
    expect(first.page.locator(".tabs [aria-current]")).to_have_text("Structured")


@pytest.fixture(scope="module")
def raced(first: Visitor) -> Visitor:
    """The race itself; what was seen in the middle is kept on the way."""
    first.race()
    for lane in LANES:
        first.until_text(lane)
    return first


def test_the_address_bar_holds_the_permalink_at_once(raced: Visitor) -> None:
    assert re.fullmatch(r"/races/\w{12}", raced.page.url.removeprefix(raced.stage.root)), raced.page.url


def test_both_panes_stream_and_the_scoreboard_moves(raced: Visitor) -> None:
    lengths: set[tuple[int, int]] = set()
    scores: set[str] = set()
    assert until(
        lambda: (
            lengths.add((len(raced.out("baseline")), len(raced.out("speculative"))))
            or scores.add(raced.words("#score"))
            or (len(lengths) > 8 and len(scores) > 5)
        ),
        raced.page,
        4,
    ), (lengths, len(scores))
    assert max(base for base, _ in lengths) < len(counted(TOKENS)), "the pane was not seen on its way"
    assert any(spec > base for base, spec in lengths), "the faster lane is not ahead"


def test_the_verdict_is_said_in_words(raced: Visitor) -> None:
    raced.until_over()
    race = raced.stage.race_json(raced.race_id)
    shown = raced.words("#speedup")
    assert shown == f"{race['comparison']['speedup']:.2f}x"
    assert 1.8 < float(shown[:-1]) < 2.2
    assert re.fullmatch(r"[\d.]+x faster", raced.words("#verdict"))
    for lane in LANES:
        numbers = race["lanes"][lane]
        assert raced.words(f"#tps-{lane}") == f"{numbers['tokens_per_second']:,.1f}"
        assert raced.words(f"#tpot-{lane}") == f"{numbers['tpot_ms']:.1f} ms"
        assert raced.words(f"#tokens-{lane}") == str(TOKENS)
        assert raced.words(f"#ttft-{lane}") == f"{numbers['ttft_ms']:.0f} ms"


def test_acceptance_is_shown_with_its_source(raced: Visitor) -> None:
    raced.until_over()
    assert raced.words("#acceptance") == "75.0%"
    assert raced.words("#source") == "per-request record"
    raced.page.locator("#source").click()
    expect(raced.page.locator("#about-source-request")).to_be_visible()
    raced.page.keyboard.press("Escape")
    expect(raced.page.locator("#about-source-request")).to_be_hidden()


def test_what_a_number_means_is_a_hover_or_a_tap_away(raced: Visitor) -> None:
    raced.until_over()
    term = raced.page.get_by_role("button", name="TPOT")
    term.hover()
    expect(raced.page.locator("#about-tpot")).to_be_visible()
    raced.page.mouse.move(5, 400)
    expect(raced.page.locator("#about-tpot")).to_be_hidden()
    term.click()
    expect(raced.page.locator("#about-tpot")).to_contain_text("N − 1")
    raced.page.keyboard.press("Escape")


def test_the_panes_name_model_method_and_k(raced: Visitor) -> None:
    assert "base-m" in raced.words("#head-baseline")
    assert "not speculative" in raced.words("#head-baseline")
    assert "spec-m" in raced.words("#head-speculative")
    assert "k = 4" in raced.words("#head-speculative")


def test_both_texts_are_whole(raced: Visitor) -> None:
    raced.until_over()
    for lane in LANES:
        assert raced.out(lane) == counted(TOKENS)


def test_one_click_asked_each_server_once(raced: Visitor) -> None:
    raced.until_over()
    assert raced.stage.posts() == [1, 1]


def test_a_race_on_an_idle_pair_does_not_speak_of_a_queue(raced: Visitor) -> None:
    raced.until_over()
    assert "queue" not in raced.words("#score")


def test_a_reload_of_the_permalink_shows_the_result(raced: Visitor) -> None:
    raced.until_over()
    verdict = raced.words("#verdict")
    figures = raced.words(".figures")
    raced.page.reload()
    for lane in LANES:
        assert raced.out(lane) == counted(TOKENS)
    assert raced.words("#verdict") == verdict
    assert raced.words(".figures") == figures
    assert raced.stage.posts() == [1, 1]


def test_the_link_to_the_race_leads_to_the_race(raced: Visitor) -> None:
    raced.until_over()
    race_id = raced.race_id
    raced.open()
    assert raced.out("baseline") == ""
    raced.open(f"/races/{race_id}")
    raced.page.locator("#permalink").click()
    assert raced.race_id == race_id
    expect(raced.page.locator("#verdict")).to_contain_text("faster")


def test_history_lists_the_race_and_leads_to_it(raced: Visitor) -> None:
    raced.until_over()
    race_id = raced.race_id
    raced.page.get_by_role("link", name="Past races").click()
    row = raced.page.locator("tbody tr").first
    expect(row).to_contain_text("JSON records")
    expect(row).to_contain_text("faster")
    expect(row).to_contain_text("75.0%")
    row.get_by_role("link").click()
    assert raced.race_id == race_id
    raced.until_text("baseline", counted(TOKENS).strip())


def test_replay_plays_the_race_at_its_pace_and_asks_no_server(raced: Visitor) -> None:
    raced.until_over()
    url = raced.page.url
    raced.page.get_by_role("button", name="Replay").click()
    expect(raced.page.locator("#band")).to_contain_text("Replay")
    raced.until_text("baseline")
    assert len(raced.out("baseline")) < len(counted(TOKENS)), "it is all there at once"
    assert raced.page.url == url, "the address is that of the race it plays"
    expect(raced.page.locator("#state")).to_have_text(re.compile("Finished"), timeout=10_000)
    for lane in LANES:
        assert raced.out(lane) == counted(TOKENS)
    assert "75.0%" in raced.words("#acceptance")
    grew = raced.watched()["grew"]["baseline"]
    assert grew[-1] - grew[0] > 2000, "faster than it was recorded"
    assert raced.stage.posts() == [1, 1]


def test_a_second_race_needs_no_reload(raced: Visitor, stage: Stage) -> None:
    raced.page.locator(".tabs a").nth(1).click()
    expect(raced.page.locator(".tabs [aria-current]")).to_have_text("Creative")
    for lane in LANES:
        assert raced.out(lane) == "", "an old text stands in the new tab"
    raced.race().until_over()
    once = raced.race_id
    raced.race()
    assert raced.race_id != once
    raced.until_over()
    assert stage.posts() == [3, 3]


def test_nothing_was_missing_and_nobody_else_was_asked(raced: Visitor) -> None:
    assert raced.other_hosts == []
    assert raced.refused == []
    assert raced.complaints == []


# ------------------------------------------------------------------------------------------- ways to start
@pytest.mark.parametrize("how", ["Enter", "Space", "focused Enter", "double click"])
def test_every_way_to_start_starts_one_race(hall: Hall, stage: Stage, how: str) -> None:
    visitor = hall.enter(stage).open()
    before = stage.posts()
    match how.split():
        case ["focused", key]:
            visitor.page.locator("#run").focus()
            visitor.page.keyboard.press(key)
        case ["double", _]:
            visitor.page.locator("#run").dblclick(delay=5)
        case [key]:
            visitor.page.keyboard.press(key)
            visitor.page.keyboard.press(key)
    visitor.until_text("speculative").wait(0.5)
    assert stage.posts() == [before[0] + 1, before[1] + 1]
    assert len(visitor.streams) == 1
    visitor.page.keyboard.press("s")
    visitor.until_over()
    assert visitor.words("#state").startswith("Stopped")


def test_stop_ends_both_servers_work_and_keeps_the_text(hall: Hall, stage: Stage) -> None:
    name = stage.answer("stop", numbered(2000, 0.02))
    visitor = hall.enter(stage).write(name, max_tokens=2000).race()
    for lane in LANES:
        visitor.until_text(lane, "5 ")
    visitor.page.locator("#stop").click()
    visitor.until_over(2)
    assert until(lambda: stage.generating(name) == 0, visitor.page, 2)
    for lane in LANES:
        assert counted(2000).startswith(visitor.out(lane))
        assert visitor.out(lane).startswith("0 1 2 3 4 5 ")
    expect(visitor.page.locator("#stop")).to_be_disabled()
    expect(visitor.page.locator("#run")).not_to_have_attribute("aria-disabled", "true")
    speedup = stage.race_json(visitor.race_id)["comparison"]["speedup"]
    assert visitor.words("#speedup") == ("n/a" if speedup is None else f"{speedup:.2f}x")


def test_in_turn_runs_one_after_the_other_and_says_so(hall: Hall, stage: Stage) -> None:
    name = stage.answer("in-turn", numbered(40, 0.02))
    visitor = hall.enter(stage).write(name)
    visitor.page.get_by_role("radio", name="In turn").check()
    expect(visitor.page.locator("#schedule-note")).to_contain_text("One after the other")
    visitor.race().until_text("baseline")
    expect(visitor.page.locator("#head-speculative")).to_contain_text("waits for its turn")
    assert visitor.out("speculative") == ""
    visitor.until_over()
    assert "in turn" in visitor.words("#state")
    first, second = (fake.posts_with("[in-turn]")[0] for fake in stage.fakes)
    assert second.at >= (first.ended_at or 0)


def test_an_empty_prompt_is_refused_in_words_and_the_page_goes_on(hall: Hall, stage: Stage) -> None:
    name = stage.answer("after-empty")
    visitor = hall.enter(stage, calm=False).open("/?workload=your-prompt")
    visitor.page.locator("#prompt").fill("   \n ")
    visitor.page.locator("#run").click()
    expect(visitor.page.locator("#notice")).to_contain_text("empty")
    expect(visitor.page.locator("#run")).not_to_have_attribute("aria-disabled", "true")
    visitor.write(name).race().until_over()
    expect(visitor.page.locator("#notice")).to_be_empty()
    assert visitor.out("baseline") == "The other lane."


def test_typed_words_survive_the_race_and_the_polls(hall: Hall, stage: Stage) -> None:
    name = stage.answer("typed", numbered(60, 0.02))
    visitor = hall.enter(stage).write(name, "Tell me of <b>lamps</b> & boats.")
    visitor.race().until_over()
    assert visitor.page.locator("#prompt").input_value() == "[typed] Tell me of <b>lamps</b> & boats."
    visitor.page.reload()
    assert visitor.page.locator("#prompt").input_value() == "[typed] Tell me of <b>lamps</b> & boats."


# ------------------------------------------------------------------------------------------- without scripts
def test_without_javascript_the_forms_lead_to_a_readable_result(hall: Hall, stage: Stage) -> None:
    name = stage.answer("plain", numbered(20, 0.02), numbered(20, 0.04, chunk=4, spec=True))
    visitor = hall.enter(stage, java_script_enabled=False).open("/?workload=your-prompt")
    visitor.page.locator("#prompt").fill(f"[{name}] Say it.")
    visitor.page.locator("#run").click()
    assert re.fullmatch(r"\w{12}", visitor.race_id), visitor.page.url
    expect(visitor.page.locator("#state")).to_have_text(re.compile("Finished"), timeout=10_000)
    for lane in LANES:
        assert visitor.out(lane) == counted(20)
    expect(visitor.page.locator("#verdict")).to_contain_text("x")
    assert stage.posts(name) == [1, 1]
    visitor.page.get_by_role("button", name="Replay").click()
    expect(visitor.page.locator("#band")).to_contain_text("Replay")
    visitor.open("/races")
    expect(visitor.page.locator("tbody tr").first).to_contain_text("Own prompt")


def test_without_javascript_a_running_race_can_be_stopped(hall: Hall, stage: Stage) -> None:
    name = stage.answer("plain-stop", numbered(2000, 0.02))
    visitor = hall.enter(stage, java_script_enabled=False).open("/?workload=your-prompt")
    visitor.page.locator("#prompt").fill(f"[{name}] Say it.")
    visitor.page.locator("#run").click()
    visitor.page.locator("#stop").click()
    expect(visitor.page.locator("#state")).to_have_text(re.compile("Stopped"), timeout=10_000)
    assert until(lambda: stage.generating(name) == 0, visitor.page, 2)


def test_the_same_form_sent_twice_is_one_race(hall: Hall, stage: Stage) -> None:
    """Whatever a browser does with an impatient click: the ticket in the form is good for one race."""
    name = stage.answer("twice", numbered(20, 0.02))
    visitor = hall.enter(stage).open("/?workload=your-prompt")
    ticket = visitor.page.locator("#ticket").input_value()
    form = {"ticket": ticket, "prompt": f"[{name}] Say it.", "temperature": "0", "max_tokens": "64"}
    answers = [visitor.page.request.post(f"{stage.root}/races", form=form) for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 200]
    assert answers[0].url == answers[1].url
    visitor.open(answers[0].url).until_over()
    assert stage.posts(name) == [1, 1]
