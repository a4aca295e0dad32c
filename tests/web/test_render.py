"""Every page and fragment in every state: strict names, escaped, complete."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import jinja2
import pytest

from app.errors import TooLong, UnknownRace
from app.race.summary import summarize
from app.web import board, deck
from app.web.render import ROOT, Renderer
from app.web.views import PageView
from tests.web.scenes import PAIRS, SCENES, WORKLOADS, fold, meta
from tests.web.test_frames import Balance

RENDER = Renderer()


def page(selected: str | None = None, *, pair: str = "ready", scene: str | None = None) -> PageView:
    arena = race = None
    if scene is not None:
        race, events = SCENES[scene]
        log, folded = fold(events)
        arena = board.arena(race, folded, upto=log.head, now_ms=folded.now_ms)
    return deck.page(
        WORKLOADS, selected, endpoints=PAIRS[pair], recordings=("json",), ticket="tick<et>", max_tokens=1024,
        max_chars=32_000, arena=arena, meta=race,
    )  # fmt: skip


def checked(text: str) -> str:
    """The text, after a look at what holds for all: closed tags, ids once, explanations that exist."""
    parsed = Balance()
    parsed.feed(text)
    assert parsed.open == []
    assert sorted(parsed.ids) == sorted(set(parsed.ids))
    for attribute in ("popovertarget", "aria-describedby", "aria-labelledby", "data-follow"):
        assert set(re.findall(rf'{attribute}="([\w-]+)"', text)) <= set(parsed.ids)
    return text


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("selected", [None, "sql", "creative", deck.OWN])
def test_the_page_at_rest(selected: str | None, pair: str) -> None:
    assert checked(RENDER.index(page(selected, pair=pair))).startswith("<!doctype html>")


@pytest.mark.parametrize("scene", SCENES)
def test_the_page_with_a_race_in_every_state(scene: str) -> None:
    text = checked(RENDER.index(page(scene=scene)))
    assert ('id="wire"' in text) == (scene in {"queued", "waiting", "turn", "streaming", "recorded", "replay"})


@pytest.mark.parametrize("scene", ["recorded", "recorded finished"])
def test_a_recorded_run_is_labelled(scene: str) -> None:
    text = RENDER.index(page(scene=scene))
    assert "<strong>Recorded</strong> <span>A real run on 2 cores, no GPU, vLLM 0.32.0, 30 Nov 2026" in text


def test_the_stream_element_keeps_the_contract_of_hx_sse() -> None:
    wire = re.findall(r'<div id="wire".*?>', RENDER.index(page(scene="streaming")))[0]
    assert 'hx-sse:connect="/races/abc/stream?after=12"' in wire
    assert 'hx-sse:close="done"' in wire
    assert 'hx-trigger="load, htmx:response:error delay:1s, htmx:error delay:1s"' in wire
    assert "sse.pauseOnBackground:false" in wire


def test_the_deck_is_a_part_of_the_page() -> None:
    view = page("creative")
    assert RENDER.deck(view).strip() in RENDER.index(view)


def test_a_started_race_brings_a_new_ticket_and_a_stop_button() -> None:
    race, events = SCENES["streaming"]
    log, folded = fold(events)
    text = RENDER.arena(board.arena(race, folded, upto=log.head, now_ms=folded.now_ms), ticket="n<ext>")
    assert 'name="ticket" value="n&lt;ext&gt;"' in text
    assert 'hx-post="/races/abc/stop"' in text


@pytest.mark.parametrize("pair", PAIRS)
def test_status_fragments(pair: str) -> None:
    view = deck.status(PAIRS[pair], workload="json", recordings=("json",))
    text = RENDER.status(view)
    parsed = Balance()
    parsed.feed(text)
    assert parsed.open == []
    assert f'hx-trigger="every {deck.EVERY_S}s"' in text
    assert ("Play the recorded run" in text) == (pair != "ready")


def test_p34_prompts_logs_and_names_are_never_html() -> None:
    text = RENDER.index(page(scene="own prompt"))
    assert "<b>mine</b>" not in text
    assert "&lt;b&gt;mine&lt;/b&gt;" in text
    assert "<two>" not in RENDER.index(page(pair="starting"))
    assert "&lt;this&gt;" in RENDER.index(page())


def test_problems() -> None:
    error = TooLong("<prompt>", "is longer than 32,000 characters", "Shorten it")
    fragment = RENDER.problem(error, fragment=True, ticket="next")
    assert "&lt;prompt&gt;: is longer than 32,000 characters." in fragment
    assert 'value="next"' in fragment
    assert "Shorten it" in checked(RENDER.problem(UnknownRace("race", "there is none", "Shorten it")))


def test_history() -> None:
    rows = [deck.row(summarize(race, fold(events)[1]), WORKLOADS) for race, events in SCENES.values()]
    text = checked(RENDER.history(rows))
    assert "slower here" in text
    assert "No race has been run yet" in checked(RENDER.history([]))


def test_without_scripts_a_running_race_reloads_itself() -> None:
    assert '<noscript><meta http-equiv="refresh"' in RENDER.index(page(scene="streaming"))
    assert '<noscript><meta http-equiv="refresh"' not in RENDER.index(page(scene="finished"))
    assert 'action="/races"' in RENDER.index(page())


def test_the_first_load_stays_under_60_kb_compressed() -> None:
    text = RENDER.index(page(scene="finished"))
    names = re.findall(r'(?:src|href)="/(static/[^"?]+)', text)
    assert len(names) == 6
    files = [Path(ROOT / name).read_bytes() for name in names]
    assert sum(len(gzip.compress(body)) for body in (text.encode(), *files)) < 60_000


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(jinja2.UndefinedError):
        RENDER._env.from_string("{{ page.nonsense }}").render(page=page())


def test_the_meta_of_a_scene_is_what_the_page_shows() -> None:
    assert meta().spec.prompt in page(scene="finished").prompt.text
