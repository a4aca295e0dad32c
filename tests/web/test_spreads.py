"""A series in words and as a plot: places on the line worked by hand, and what is said in every state."""

from __future__ import annotations

import pytest
from msgspec import structs

from app.race.repeats import spread
from app.race.series import Series, SeriesStatus, asked_of, reading
from app.race.summary import RaceSummary
from app.race.types import Caveat
from app.web import board as boards
from app.web import format as say
from app.web import spreads
from app.web.render import Renderer
from app.web.words import CAVEATS
from tests.race.helpers import spec
from tests.race.test_series import THREE, made
from tests.web.scenes import both_done, fold, meta


def of(*races: RaceSummary, asked: int = 3, status: SeriesStatus = "finished", running: str | None = None) -> Series:
    return reading("s1", asked_of(spec(schedule="in_turn"), asked), races, status=status, running=running)


def row(series: Series, name: str, lane: str | None = None) -> spreads.SpreadView:
    return next(it for it in spreads.series_view(series).spreads if it.name == name and it.lane == lane)


# ------------------------------------------------------------------------------------------------ the plot
def test_a_mark_stands_where_its_race_measured() -> None:
    # the largest ratio is a decode speedup of 4: the line of both ratios goes from 0 to 4.16
    it = row(of(*THREE), "Decode speedup")
    assert [mark.at for mark in it.marks] == ["60.10%", "48.08%", "96.15%"]
    assert [mark.height for mark in it.marks] == ["25.00%", "50.00%", "75.00%"]
    assert [mark.told for mark in it.marks] == ["2.50x", "2.00x", "4.00x"]
    assert (it.low, it.median, it.high, it.even) == ("48.08%", "60.10%", "96.15%", "24.04%")
    assert (it.value, it.range) == ("2.50x", "[2.00–4.00x]")
    assert it.told == "Decode speedup, median 2.50x; races in order: 2.50x, 2.00x, 4.00x"


def test_both_lanes_of_a_figure_share_one_line() -> None:
    series = of(*THREE)
    base, other = (row(series, "TPOT", lane) for lane in ("baseline", "speculative"))
    # 10 ms is the largest: 10.4 ms is the whole line
    assert base.median == "96.15%"
    assert other.median == "38.46%"
    assert (base.lane_title, other.lane_title) == ("Baseline", "Speculative")
    assert base.even is None
    assert other.told == "Speculative TPOT, median 4.0 ms; races in order: 4.0 ms, 5.0 ms, 2.5 ms"


def test_acceptance_is_drawn_on_a_line_to_a_hundred_percent() -> None:
    assert row(of(*THREE), "Acceptance rate").median == "48.08%"  # 0.5 of 1.04


def test_a_figure_without_values_has_no_line_and_is_na_in_the_table() -> None:
    silent = [structs.replace(race, lanes=race.lanes | {"speculative": _no_record(race)}) for race in THREE]
    series = of(*silent)
    assert "Acceptance rate" not in [it.name for it in spreads.series_view(series).spreads]
    found = next(it for it in spreads.series_view(series).summary if it.name == "Acceptance rate")
    assert (found.median, found.low, found.high, found.races) == ("n/a", "n/a", "n/a", "0 of 3")


def _no_record(race: RaceSummary) -> object:
    return structs.replace(race.lanes["speculative"], acceptance=None)


@pytest.mark.parametrize(
    ("values", "form", "text"),
    [
        ((2.36, 2.41, 2.47), say.times, "[2.36–2.47x]"),
        ((118.0, 120.0), say.duration, "[118–120 ms]"),
        ((990.0, 1200.0), say.duration, "[990 ms–1.20 s]"),
        ((0.73, 0.752), say.percent, "[73.0–75.2%]"),
        ((33.3, 1033.3), say.rate, "[33.3–1,033.3]"),
        ((2.4,), say.times, ""),
    ],
)
def test_a_span_names_its_unit_once(values: tuple[float, ...], form: spreads.Form, text: str) -> None:
    found = spread(values)
    assert found is not None
    assert spreads.span(found, form) == text


# ------------------------------------------------------------------------------------------------ in words
@pytest.mark.parametrize(
    ("series", "state", "headline"),
    [
        (of(status="running", running="r1"), "Race 1 of 3 is on.", None),
        (of(THREE[0], status="running"), "Race 1 of 3 is over, the next one begins in a moment.", None),
        (
            of(*THREE[:2], status="running", running="r3"),
            "Race 3 of 3 is on.",
            "median of 2 so far: 2.00x [1.82–2.17x]",
        ),
        (of(*THREE), "All 3 races are over.", "median of 3: 2.17x [1.82–3.08x]"),
        (of(THREE[0], status="stopped"), "Stopped in race 1 of 3.", None),
        (of(made(1, status="failed"), status="failed"), "Ended with race 1 of 3: neither lane finished.", None),
        (of(*THREE[:2], status="interrupted"), "Interrupted after race 2 of 3.", "median of 2: 2.00x [1.82–2.17x]"),
    ],
)
def test_where_it_stands(series: Series, state: str, headline: str | None) -> None:
    view = spreads.series_view(series)
    assert (view.state, view.headline) == (state, headline)


def test_the_verdict_names_the_load_it_was_measured_at() -> None:
    view = spreads.series_view(of(*THREE))
    assert view.verdict == "Worth it at this load"
    assert view.why == (
        "The lowest decode speedup of 3 races is 2.00x. "
        "Measured with one request at a time on each server, the servers in turn."
    )


def test_without_a_verdict_it_says_why() -> None:
    view = spreads.series_view(of(*THREE[:2], asked=2))
    assert view.verdict == "No verdict"
    assert view.why == "A verdict needs 3 repeats: only 2 asked for."
    live = spreads.series_view(of(*THREE[:2], status="running", running="r3"))
    assert (live.verdict, live.why) == ("No verdict yet", "It comes with the last race.")


def with_caveat(race: RaceSummary, caveat: Caveat) -> RaceSummary:
    return structs.replace(race, comparison=structs.replace(race.comparison, caveats=(caveat,)))


def test_p22_a_cold_race_is_listed_as_left_out() -> None:
    view = spreads.series_view(of(with_caveat(THREE[0], "cold_start"), *THREE[1:]))
    assert view.counted == "2 of 3 counted, 1 cold race left out"
    assert view.headline == "median of 2: 2.45x [1.82–3.08x]"
    assert [(race.number, race.status, race.counted) for race in view.races] == [
        (1, "finished, cold", False),
        (2, "finished", True),
        (3, "finished", True),
    ]
    assert view.notes == ()


def test_a_median_of_one_race_was_promised_for_two() -> None:
    series = of(THREE[0], made(2, status="failed"), status="failed")
    assert spreads.series_view(series).headline is None
    assert spreads.chip(series) is None
    assert "<h1>3 races</h1>" in Renderer().series(spreads.series_view(series), fragment=False)


def test_marks_after_a_failed_race_had_the_number_of_another() -> None:
    series = of(THREE[0], made(2, status="failed"), THREE[2])
    assert [mark.race for mark in row(series, "Speedup").marks] == [1, 3]
    html = Renderer().series(spreads.series_view(series), fragment=False)
    assert "<title>race 3: 3.08x</title>" in html
    assert "<title>race 2: " not in html


def test_marks_after_a_race_without_the_figure_had_the_number_of_another() -> None:
    silent = structs.replace(THREE[0], lanes=THREE[0].lanes | {"speculative": _no_record(THREE[0])})
    series = of(silent, *THREE[1:])
    assert [mark.race for mark in row(series, "Acceptance rate").marks] == [2, 3]
    assert [mark.race for mark in row(series, "Speedup").marks] == [1, 2, 3]


def test_what_counts_and_what_could_spoil_it_is_counted() -> None:
    doubtful = with_caveat(THREE[0], "scheduling_differs")
    view = spreads.series_view(of(doubtful, THREE[1], made(3, status="partial")))
    assert view.counted == "2 of 3 counted"
    assert view.texts == "texts identical in 2 of 2"
    assert [chip.text for chip in view.notes] == [f"{CAVEATS['scheduling_differs'][0]} in 1 of 2"]
    assert [(race.number, race.first, race.status, race.counted) for race in view.races] == [
        (1, "Baseline", "finished", True),
        (2, "Speculative", "finished", True),
        (3, "Baseline", "partial", False),
    ]
    assert view.races[0].cells == (
        "2.17x",
        "2.50x",
        "91.0 / 197.8",
        "100 ms / 100 ms",
        "10.0 ms / 4.0 ms",
        "50.0%",
        "identical",
    )


# ------------------------------------------------------------------------------------------------ on the page
def arena(series: Series, race_id: str, number: int) -> boards.ArenaView:
    log, board = fold(both_done())
    return boards.arena(
        structs.replace(meta(race_id), series="s1", series_number=number, series_races=3),
        board,
        upto=log.head,
        now_ms=300,
        series=series,
    )


def test_the_first_screen_says_which_race_and_the_median_so_far() -> None:
    view = arena(of(*THREE[:2], status="running", running="race3"), "race2", 2)
    assert view.score.state == "Race 2 of 3. Finished. Raced together."
    assert (view.score.chips[0].text, view.score.chips[0].href) == (
        "median of 2 so far: 2.00x [1.82–2.17x]",
        "#insight-series",
    )


def test_stop_is_there_until_the_series_is_over() -> None:
    assert arena(of(THREE[0], status="running"), "race1", 1).actions.stop == "/series/s1/stop"
    done = arena(of(*THREE), "race3", 3)
    assert done.actions.stop is None
    assert done.actions.replay == "/races/race3/replay"


@pytest.mark.parametrize(
    ("series", "goes_on"),
    [
        (of(*THREE[:2], status="running"), True),  # the newest is over, the next one not there yet
        (of(*THREE[:2], status="running", running="race3"), False),  # somebody looks at an earlier one
        (of(*THREE[:2], status="stopped"), False),
    ],
)
def test_a_page_asks_for_the_next_race_from_the_newest_only(series: Series, goes_on: bool) -> None:
    assert arena(series, "race2", 2).next_race == ("/series/s1/next?after=race2" if goes_on else None)


def test_the_last_frame_of_a_race_asks_for_the_next_one_unless_there_is_none() -> None:
    renderer = Renderer()
    log, board = fold(both_done())
    for series, asks in ((of(THREE[0], status="running", running="race2"), True), (of(*THREE), False)):
        html = renderer.frame(meta("race1"), board, log, 0, log.head, scores=True, now_ms=300, series=series)
        assert ('hx-get="/series/s1/next?after=race1"' in html) is asks


def test_while_a_race_waits_in_the_queue_its_series_stays_in_sight() -> None:
    from tests.web.scenes import SCENES

    queued, events = SCENES["queued"]
    log, board = fold(events)
    series = of(THREE[0], status="running", running=queued.id)
    view = boards.arena(queued, board, upto=log.head, now_ms=5, series=series)
    assert view.insight is not None
    assert view.insight.series is not None
    assert boards.arena(queued, board, upto=log.head, now_ms=5).insight is None


def test_the_plot_has_its_numbers_in_words_and_in_tables() -> None:
    html = Renderer().series(spreads.series_view(of(*THREE)), fragment=False)
    assert 'aria-label="Decode speedup, median 2.50x; races in order: 2.50x, 2.00x, 4.00x"' in html
    assert html.count("<title>race ") == 9 * 3
    assert '<a href="/races/race2">2</a>' in html
    assert 'href="/api/series/s1.csv"' in html
    assert "every 2s" not in html, "it is over"
    live = Renderer().series(spreads.series_view(of(THREE[0], status="running", running="race2")), fragment=True)
    assert 'hx-get="/series/s1" hx-trigger="every 2s"' in live
