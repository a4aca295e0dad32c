"""One SSE message: exactly the new text, escaped, and the partials of the page."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.race.events import Event
from app.web import board as boards
from app.web.render import Renderer
from tests.web.scenes import SCENES, begun, both_done, chunk, failed, fold, meta, one_failed, sent, written

RENDER = Renderer()
PARTIAL = re.compile(r'<hx-partial hx-target="#([\w-]+)" hx-swap="(\w+)">(.*?)</hx-partial>', re.DOTALL)


def partials(after: int, upto: int, events: list[Event], *, scores: bool = False) -> dict[str, tuple[str, str]]:
    """Target -> (swap, inner HTML) of one frame over a fresh fold of ``events[:upto]``."""
    log, board = fold(events[:upto])
    text = RENDER.frame(meta(), board, log, after, upto, scores=scores, now_ms=board.now_ms)
    return {target: (swap, inner) for target, swap, inner in PARTIAL.findall(text)}


def text_of(inner: str) -> str:
    """What a browser makes of a span of text."""
    spans = re.findall(r"<span(?: [^>]*)?>(.*?)</span>", inner, re.DOTALL)
    assert spans, inner
    return html.unescape(re.sub(r"</?u(?: class=\"mixed\")?>", "", "".join(spans)))


def shown(events: list[Event], cuts: list[int], target: str = "out-baseline") -> str:
    """The pane's text after frames that end at ``cuts``."""
    text, after = "", 0
    for upto in cuts:
        found = partials(after, upto, events)
        if target in found:
            swap, inner = found[target]
            text = ("" if swap == "innerHTML" else text) + (text_of(inner) if inner else "")
        after = upto
    return text


def test_new_text_is_appended_and_nothing_else_comes() -> None:
    found = partials(4, 5, [*begun(), chunk("baseline", "a", 1), chunk("baseline", " b", 2)])
    assert found == {"out-baseline": ("beforeend", "<span> b</span>")}


def test_both_panes_come_in_one_frame_under_one_id() -> None:
    found = partials(3, 7, [*begun(), *written()])
    assert text_of(found["out-baseline"][1]) == "b0 b1 "
    assert text_of(found["out-speculative"][1]) == "s0 s1 "


def test_p34_model_text_is_never_html() -> None:
    events = [*begun(), chunk("baseline", "<im", 1), chunk("baseline", "g src=x onerror=window.pwned=1>", 2)]
    inner = partials(3, 5, events)["out-baseline"][1]
    assert "<img" not in inner
    assert shown(events, [4, 5]) == "<img src=x onerror=window.pwned=1>"


def test_p34_a_text_cannot_close_the_partial_or_open_another() -> None:
    evil = '</span></hx-partial><hx-partial hx-target="#score" hx-swap="innerHTML">0.1x</hx-partial>'
    found = partials(3, 4, [*begun(), chunk("baseline", evil, 1)])
    assert found.keys() == {"out-baseline"}
    assert text_of(found["out-baseline"][1]) == evil


def test_p35_brackets_and_entities_survive() -> None:
    pieces = ["List<Str", "ing> & ", "&l", "t; <think>"]
    events = [*begun(), *(chunk("baseline", piece, i) for i, piece in enumerate(pieces))]
    assert shown(events, [4, 5, 6, 7]) == "List<String> & &lt; <think>"


@pytest.mark.parametrize("cuts", [[10], [4, 5, 6, 7, 8, 9, 10], [8, 10], [7, 9, 10]])
def test_p36_line_breaks_and_indentation_survive(cuts: list[int]) -> None:
    pieces = ["{", "\n", "  ", '"a": 1', "\r", "\n", "}\u2028\u0085"]
    events: list[Event] = [*begun(), *(chunk("baseline", piece, i) for i, piece in enumerate(pieces))]
    assert shown(events, cuts) == '{\n  "a": 1\n}\u2028\u0085'


def test_p36_a_line_feed_of_the_other_lane_or_of_the_reasoning_stays() -> None:
    events = [
        *begun(),
        chunk("speculative", "\r", 1),
        chunk("baseline", "\r", 2, reasoning=True),
        chunk("baseline", "\n", 3),
    ]
    assert shown(events, [5, 6]) == "\n"


@given(st.lists(st.text(alphabet="a \r\n<&", max_size=3), max_size=12), st.sets(st.integers(4, 15)))
def test_p36_however_frames_are_cut_the_text_is_the_same(pieces: list[str], cuts: set[int]) -> None:
    events: list[Event] = [*begun(), *(chunk("baseline", piece, i) for i, piece in enumerate(pieces))]
    ends = sorted({cut for cut in cuts if cut < len(events)} | {len(events)})
    assert shown(events, ends) == "".join(pieces).replace("\r\n", "\n").replace("\r", "\n")


def test_p18_chunks_without_text_bring_no_frame_of_text() -> None:
    assert partials(3, 4, [*begun(), chunk("baseline", "", 1)]) == {}


def test_white_space_alone_survives_in_a_span() -> None:
    assert partials(3, 4, [*begun(), chunk("baseline", "\n  ", 1)])["out-baseline"][1] == "<span>\n  </span>"


def test_reasoning_goes_to_its_own_area() -> None:
    found = partials(3, 5, [*begun(), chunk("baseline", "hm", 1, reasoning=True), chunk("baseline", "yes", 2)])
    assert text_of(found["think-baseline"][1]) == "hm"
    assert text_of(found["out-baseline"][1]) == "yes"


def test_a_lane_that_is_asked_again_begins_with_an_empty_pane() -> None:
    events = [*begun(), chunk("baseline", "old", 1), sent("baseline", 2, retried=True), chunk("baseline", "new", 3)]
    assert shown(events, [4, 6]) == "new"
    assert partials(4, 5, events)["out-baseline"] == ("innerHTML", "")


def test_scores_come_when_asked_for_and_when_a_state_changed() -> None:
    events = [*begun(), *written(), failed("baseline", 300)]
    assert "score" not in partials(4, 6, events)
    assert partials(4, 6, events, scores=True).keys() >= {"score", "head-baseline", "foot-baseline"}
    assert partials(4, len(events), events).keys() >= {"score", "head-baseline", "foot-baseline", "say"}


def test_the_last_frame_carries_the_final_state() -> None:
    events = both_done()
    found = partials(len(events) - 1, len(events), events)
    assert "faster" in found["score"][1]
    assert "/races/abc/replay" in found["score"][1]
    assert 'href="/races/abc"' in found["score"][1]
    assert "disabled" in found["stop"][1]
    assert found["say"][1].startswith("Race finished: ")


def test_the_failed_lane_says_why_and_what_to_do() -> None:
    events = one_failed()
    foot = partials(0, len(events), events)["foot-baseline"][1]
    assert "Stalled" in foot
    assert "then race again" in foot
    assert "&lt;log&gt;" in foot


def test_started_and_finished_are_said_once_each() -> None:
    events = both_done()
    said: list[str] = []
    for upto in range(1, len(events) + 1):
        found = partials(upto - 1, upto, events)
        if "say" in found:
            said.append(found["say"][1])
    assert said == ["Race started.", said[-1]]


def test_a_catch_up_frame_equals_the_frames_it_replaces() -> None:
    events = both_done()
    upto = len(events)
    assert shown(events, [upto]) == shown(events, list(range(1, upto + 1)))
    assert shown(events, [5, upto]) == shown(events, [upto])


def test_an_empty_frame_is_harmless() -> None:
    assert partials(4, 4, [*begun(), chunk("baseline", "a", 1)]) == {}


class Balance(HTMLParser):
    """Whether tags close in the order in which they opened."""

    VOID = frozenset({"input", "br", "hr", "meta", "link", "path", "circle", "rect"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


@pytest.mark.parametrize("name", SCENES)
def test_frames_of_every_state_are_well_formed_and_hit_ids_of_the_page(name: str) -> None:
    race, events = SCENES[name]
    log, board = fold(events)
    arena = boards.arena(race, board, upto=log.head, now_ms=board.now_ms)
    page = Balance()
    page.feed(RENDER.arena(arena, ticket="t") + '<p id="say"></p><p id="ticket"></p><div id="notice"></div>')
    text = RENDER.frame(race, board, log, 0, log.head, scores=True, now_ms=board.now_ms)
    frame = Balance()
    frame.feed(text)
    assert (page.open, frame.open) == ([], [])
    assert set(re.findall(r'hx-target="#([\w-]+)"', text.replace("#arena", ""))) <= set(page.ids)
