"""The acceptance panel below the first screen: every figure to the last digit shown, and why there is none."""

from __future__ import annotations

import re
from typing import Any

import pytest

from app.race.events import Event, LaneDrafts, LaneStarted
from app.race.types import CounterDoubt, SpecRecord
from app.web import draft_words, words
from app.web.drafts import drafts
from app.web.frames import frame
from app.web.render import Renderer
from app.web.views import DraftsView
from tests.web.scenes import ENDS, SCENES, begun, chunk, closed, fold, meta, over, written

# 3 steps of up to 4: 3 of 4, 4 of 4, 0 of 2
DETAILED = SpecRecord(
    source="request",
    drafts=3,
    drafted=10,
    accepted=7,
    histogram=(1, 0, 0, 1, 1),
    per_step_accepted=(3, 4, 0),
    per_step_drafted=(4, 4, 2),
)


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer()


def told(record: SpecRecord) -> LaneDrafts:
    return LaneDrafts(t_ms=290, lane="speculative", record=record)


def answered(tokens: int = 12, *more: Event) -> list[Event]:
    """A whole race; the speculative lane wrote ``tokens`` tokens in two chunks."""
    chunks = [chunk("speculative", "a", 100, tokens=1), chunk("speculative", "b", 200, tokens=tokens - 1)]
    return [*begun(), chunk("baseline", "a", 100), *chunks, *more, *ENDS, over(300, "finished")]


def panel(events: list[Event]) -> DraftsView:
    _, board = fold(events)
    return drafts(board, board.now_ms)


def html(renderer: Renderer, events: list[Event]) -> str:
    log, board = fold(events)
    page = renderer.frame(meta(), board, log, 0, log.head, scores=True, now_ms=board.now_ms)
    found = re.search(r'<section class="drafts.*?</section>', page, re.DOTALL)
    assert found is not None
    return found[0]


def test_every_figure_to_the_last_digit_shown() -> None:
    view = panel(answered(12, told(DETAILED)))
    shown = {figure.key: figure.text for figure in view.figures}
    assert shown == {
        "acceptance": "70.0%",  # 7 / 10
        "length": "3.33",  # 1 + 7/3
        "effective": "2.75",  # 11 / 4
        "share": "58.3%",  # 7 / 12
        "alpha": "0.78",  # 7 / 9
        "steps": "3",
        "drafted": "10",
        "accepted": "7",
    }
    assert view.per_position is not None
    assert [(bar.name, bar.text, bar.length) for bar in view.per_position.bars] == [
        ("1", "66.7%", 667),
        ("2", "66.7%", 667),
        ("3", "66.7%", 667),
        ("4", "33.3%", 333),
    ]
    assert view.conditional is not None
    assert [bar.text for bar in view.conditional.bars] == ["66.7%", "100.0%", "100.0%", "50.0%"]
    assert view.histogram is not None
    assert [(bar.name, bar.text, bar.length) for bar in view.histogram.bars] == [
        ("0", "1", 1000),
        ("1", "0", 0),
        ("2", "0", 0),
        ("3", "1", 1000),
        ("4", "1", 1000),
    ]
    assert (view.source, view.about, view.estimated, view.mixture) == (
        "per-request record",
        "source-request",
        False,
        None,
    )


def test_each_figure_has_its_formula_and_its_explanation_at_hand(renderer: Renderer) -> None:
    page = html(renderer, answered(12, told(DETAILED)))
    known = {about.key: about for about in words.ABOUT}
    assert set(draft_words.TITLES) <= set(known)
    for key in (*draft_words.TITLES, "position", "conditional", "histogram"):
        assert f'popovertarget="about-{key}"' in page
        assert known[key].formula
    for key in draft_words.TITLES:
        assert known[key].formula in page
    assert 'popovertarget="about-source-request"' in page


def test_the_bars_have_names_that_can_be_read_out(renderer: Renderer) -> None:
    page = html(renderer, answered(12, told(DETAILED)))
    assert 'aria-label="position 4: accepted in 33.3% of all steps with a draft"' in page
    assert 'aria-label="position 4: accepted in 50.0% of the steps that accepted all before it"' in page
    assert 'aria-label="exactly 3 accepted: 1 step"' in page
    assert 'aria-label="exactly 1 accepted: 0 steps"' in page
    assert page.count('role="img"') == 4 + 4 + 5


def test_unconditional_is_shown_first_and_the_other_on_demand_without_a_script(renderer: Renderer) -> None:
    page = html(renderer, answered(12, told(DETAILED)))
    radios = re.findall(r'<input type="radio"[^>]*>', page)
    assert [("checked" in radio, re.search(r'value="(\w+)"', radio)[1]) for radio in radios] == [  # type: ignore[index]
        (True, "unconditional"),
        (False, "conditional"),
    ]
    assert "<script" not in page
    assert "style=" not in page


def test_a_position_that_no_step_reached_is_no_zero() -> None:
    record = SpecRecord(source="request", drafts=2, drafted=6, accepted=1, histogram=(1, 1, 0, 0))
    view = panel(answered(12, told(record)))
    assert view.conditional is not None
    assert [(bar.text, bar.none) for bar in view.conditional.bars] == [("50.0%", False), ("0.0%", False), ("n/a", True)]
    assert view.conditional.bars[2].told == "position 3: no step got this far"


def test_llama_cpp_has_figures_and_no_bars(renderer: Renderer) -> None:
    events = answered(12, told(SpecRecord(source="request", drafts=None, drafted=10, accepted=7)))
    view = panel(events)
    shown = {figure.key: (figure.text, figure.none) for figure in view.figures}
    assert shown["acceptance"] == ("70.0%", False)
    assert shown["effective"] == ("2.75", False)
    assert [shown[key] for key in ("length", "alpha", "steps")] == [("n/a", True)] * 3
    assert (view.per_position, view.conditional, view.histogram) == (None, None, None)
    assert "no bars" in html(renderer, events)


def test_counters_with_other_traffic_are_a_mixture_and_say_so(renderer: Renderer) -> None:
    record = SpecRecord(source="server", drafts=30, drafted=100, accepted=70, exclusive=False)
    events = answered(12, told(record))
    view = panel(events)
    shown = {figure.key: figure.text for figure in view.figures}
    assert (shown["acceptance"], shown["effective"], shown["share"]) == ("70.0%", "n/a", "n/a")
    assert view.mixture == words.CAVEATS["other_traffic"][1]
    assert 'id="drafts-mixture"' in html(renderer, events)
    assert view.source == "server counters"


# --------------------------------------------------------------------------------------- nothing to show
NO_DRAFTS = SpecRecord(source="request", drafts=0, drafted=0, accepted=0)


def not_speculating() -> list[Event]:
    plain = LaneStarted(t_ms=0, lane="speculative", model="m", speculating=False)
    return [*begun()[:-1], plain, *written(), *ENDS, over(300, "finished")]


@pytest.mark.parametrize(
    ("events", "title"),
    [
        (begun(), "Nothing to show yet"),
        ([*begun(), chunk("speculative", "a", 100), chunk("speculative", "b", 120)], "No draft accepted yet"),
        (answered(), "No record from the server"),
        (answered(12, told(NO_DRAFTS)), "No drafts ran"),
        (not_speculating(), "This server is not speculating"),
        (SCENES["aborted"][1], "No record"),
        (SCENES["stopped"][1], "No record"),
        (SCENES["interrupted"][1], "No record"),
        (SCENES["both failed"][1], "No record"),
    ],
)
def test_what_there_is_instead_of_acceptance(renderer: Renderer, events: list[Event], title: str) -> None:
    view = panel(events)
    assert view.note is not None
    assert view.note.title == title
    assert (view.figures, view.per_position, view.histogram) == ((), None, None)
    page = html(renderer, events)
    assert f"<strong>{title}.</strong>" in page
    assert "0.0%" not in page


@pytest.mark.parametrize("doubt", list(draft_words.COUNTER_DOUBTS))
def test_counters_that_say_nothing_have_their_reason_here_and_in_the_scoreboard(
    renderer: Renderer, doubt: CounterDoubt
) -> None:
    record = SpecRecord(source="server", drafts=None, drafted=0, accepted=0, certain=False, doubt=doubt)
    events = answered(12, told(record))
    view = panel(events)
    assert view.note is not None
    assert (view.note.title, view.note.text) == draft_words.COUNTER_DOUBTS[doubt]
    log, board = fold(events)
    page = renderer.frame(meta(), board, log, 0, log.head, scores=True, now_ms=board.now_ms)
    assert f'<span id="no-acceptance">{draft_words.COUNTER_DOUBTS[doubt][0].lower()}</span>' in page
    assert 'id="source"' not in page


def test_every_doubt_has_words() -> None:
    from typing import get_args

    assert set(get_args(CounterDoubt)) == set(draft_words.COUNTER_DOUBTS)


@pytest.mark.parametrize("scene", SCENES)
def test_every_race_has_the_panel_once_it_has_begun(renderer: Renderer, scene: str) -> None:
    events = SCENES[scene][1]
    if scene == "queued":
        return
    page = html(renderer, events)
    assert "Acceptance, position by position" in page
    assert "None" not in page
    assert "nan" not in page


# ------------------------------------------------------------------------------------------------- live
LIVE = [
    *begun(),
    chunk("speculative", "a", 100, tokens=1),
    chunk("speculative", "b", 400, tokens=5),
    chunk("speculative", "c", 900, tokens=3),
    chunk("speculative", "d", 1100, tokens=1),
]


def test_while_it_runs_the_panel_is_an_estimate_and_looks_like_one(renderer: Renderer) -> None:
    view = panel(LIVE)
    shown = {figure.key: figure.text for figure in view.figures}
    # k = 4, 3 steps: 4 + 2 + 0 accepted
    assert (shown["acceptance"], shown["length"], shown["accepted"]) == ("50.0%", "3.00", "6")
    assert (shown["steps"], shown["drafted"], shown["alpha"]) == ("n/a", "n/a", "n/a")
    assert view.histogram is not None
    assert [bar.text for bar in view.histogram.bars] == ["1", "0", "1", "0", "1"]
    assert (view.estimated, view.about) == (True, "source-stream")
    page = html(renderer, LIVE)
    assert 'class="draftgrid guess"' in page
    assert page.count('class="num estimated') == 8


def test_the_estimate_is_gone_when_the_record_comes_and_when_none_does() -> None:
    assert panel([*LIVE, told(DETAILED), *ENDS, over(1300, "finished")]).estimated is False
    gone = panel([*LIVE, *ENDS, over(1300, "finished")])
    assert gone.note is not None
    assert gone.note.title == "No record from the server"


def frames_of(events: list[Event], after: int, upto: int) -> Any:
    log, board = fold(events[:upto])
    return frame(meta(), board, log, after, upto, scores=False, now_ms=board.now_ms)


def test_the_live_panel_is_drawn_once_a_second_and_not_with_every_chunk() -> None:
    begin = len(begun())
    assert frames_of(LIVE, begin, begin + 2).drafts is None  # 100 to 400 ms
    crossing = frames_of(LIVE, begin + 1, begin + 4)  # 400 to 1100 ms
    assert crossing.insight is None
    assert crossing.drafts is not None
    assert crossing.drafts.estimated is True


def test_a_frame_with_the_live_panel_replaces_that_panel_alone(renderer: Renderer) -> None:
    log, board = fold(LIVE)
    begin = len(begun())
    page = renderer.frame(meta(), board, log, begin + 1, log.head, scores=False, now_ms=board.now_ms)
    assert '<hx-partial hx-target="#drafts" hx-swap="innerMorph">' in page
    assert 'hx-target="#insight"' not in page
    assert "Acceptance, position by position" in page


def test_a_change_of_state_brings_the_panel_with_everything_else_and_not_twice() -> None:
    events = [*LIVE, *ENDS, over(1300, "finished")]
    view = frames_of(events, len(begun()), len(events))
    assert view.insight is not None
    assert view.insight.drafts is not None
    assert view.drafts is None


def test_a_stored_race_of_before_still_has_its_panel() -> None:
    # a record without the fields that came later
    record = SpecRecord(source="request", drafts=10, drafted=40, accepted=20, accepted_at_least=(8, 6, 4, 2))
    view = panel(closed(told(record), *ENDS))
    assert view.per_position is not None
    assert [bar.text for bar in view.per_position.bars] == ["80.0%", "60.0%", "40.0%", "20.0%"]
    assert view.histogram is not None
    assert [bar.text for bar in view.histogram.bars] == ["2", "2", "2", "2", "2"]
