"""A race asked for several times: what starts when, who goes first, and every way in which a series ends."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec import structs

from app.errors import Busy
from app.race import series_files
from app.race.hub import Hub
from app.race.repeater import Pace, Repeater
from app.race.run import Run
from app.race.series import Series, asked_of, ended_as, reading, rebuilt, summarize_series, who_goes_first
from app.race.store import Store
from app.race.summary import RaceSummary, summarize
from app.race.types import RaceStatus, SpecRecord
from tests.race.helpers import (
    FIN,
    Clock,
    FakeRunner,
    Memory,
    board,
    drafts,
    end_of,
    exactly,
    hub_of,
    meta,
    over,
    spec,
    started,
    streamed,
    tok,
    total,
    until,
    usage,
)

PACE = Pace(pause_s=0, again_s=0.01)
RECORD = SpecRecord(source="request", drafts=30, drafted=120, accepted=60)


def quick() -> FakeRunner:
    return FakeRunner(tok(), tok(), FIN, total(2))


def stage(*runners: FakeRunner, pace: Pace = PACE, keeper: Any = None, **rest: Any) -> tuple[Hub, Repeater]:
    clock = rest.get("clock")
    hub = hub_of(*(runners or (quick(), quick())), keeper, **rest)  # type: ignore[arg-type]
    return hub, Repeater(hub, pace, **({} if clock is None else {"clock": clock}))


def look(repeater: Repeater, run: Run) -> Series:
    found = repeater.get(run.meta.series)
    assert found is not None
    return found


async def to_the_end(repeater: Repeater, run: Run) -> Series:
    await until(lambda: not look(repeater, run).live)
    return look(repeater, run)


def held() -> tuple[FakeRunner, FakeRunner, anyio.Event]:
    """Two servers that write a token and then wait for the event."""
    go = anyio.Event()
    return FakeRunner(tok(), go, tok(), FIN, total(2)), FakeRunner(tok(), go, tok(), FIN, total(2)), go


# ------------------------------------------------------------------------------------------------ to the end
async def test_races_run_one_after_the_other_and_alternate_who_goes_first() -> None:
    hub, repeater = stage()
    run = repeater.start(spec(schedule="in_turn"), 4)
    assert (run.meta.series_number, run.meta.series_races) == (1, 4)
    series = await to_the_end(repeater, run)
    assert series.status == "finished"
    assert [race.first for race in series.over] == ["baseline", "speculative", "baseline", "speculative"]
    assert [race.series_number for race in series.over] == [1, 2, 3, 4]
    assert {race.series for race in series.over} == {series.id}
    assert series.repeats.counted == 4
    assert series.race_ids == tuple(race.id for race in series.over)
    assert not hub.racing


def test_whoever_is_named_begins_and_then_they_alternate() -> None:
    assert [who_goes_first("speculative", n) for n in (1, 2, 3)] == ["speculative", "baseline", "speculative"]


async def test_every_race_has_a_salt_of_its_own_when_a_fresh_cache_is_asked_for() -> None:
    keeper = Memory()
    _, repeater = stage(keeper=keeper)
    salted = structs.replace(spec(), cache_salt="one")
    series = await to_the_end(repeater, repeater.start(salted, 3))
    salts = [kept.spec.cache_salt for kept in keeper.metas.values()]
    assert len({"one", *salts}) == 4
    assert None not in salts
    assert series.asked.fresh_cache


async def test_each_race_asks_for_its_own_place_so_that_others_get_their_turn() -> None:
    base, other, go = held()
    hub, repeater = stage(base, other)
    first = repeater.start(spec("Again."), 3)
    stranger = hub.start(spec("Mine."))
    assert stranger.board.position == 1
    go.set()
    await end_of(stranger)
    assert base.prompts[:2] == ["Again.", "Mine."]
    series = await to_the_end(repeater, first)
    assert base.prompts == ["Again.", "Mine.", "Again.", "Again."]
    assert series.repeats.counted == 3


async def test_a_full_queue_is_asked_again_until_there_is_a_place() -> None:
    go, on = anyio.Event(), anyio.Event()
    base, other = quick(), quick()

    async def gate() -> None:
        await (go if base.prompts[-1] == "Again." else on).wait()

    base.steps = other.steps = (tok(), gate, tok(), FIN, total(2))
    hub, repeater = stage(base, other, pace=Pace(pause_s=0.2, again_s=0.01), queue_limit=1)
    first = repeater.start(spec("Again."), 2, owner="me")
    waiting = hub.start(spec("Mine."))
    go.set()
    await end_of(first)
    await until(lambda: waiting.board.status == "running")
    hub.start(spec("Mine too."))
    with pytest.raises(Busy):
        hub.start(spec("And mine."))
    await anyio.sleep(0.3)
    assert look(repeater, first).live
    assert look(repeater, first).running is None
    on.set()
    assert (await to_the_end(repeater, first)).status == "finished"
    assert base.prompts == ["Again.", "Mine.", "Mine too.", "Again."]


# ------------------------------------------------------------------------------------------------ before the end
async def test_stop_ends_the_race_that_runs_and_starts_no_more() -> None:
    base, other, _ = held()
    _, repeater = stage(base, other)
    run = repeater.start(spec(), 5)
    await until(lambda: run.board.status == "running")
    assert repeater.stop(run.meta.series)
    await end_of(run)
    await anyio.sleep(0.02)
    series = look(repeater, run)
    assert (series.status, [race.status for race in series.over], base.runs) == ("stopped", ["stopped"], 1)
    assert series.repeats.counted == 0


async def test_stop_between_two_races_is_a_stop_too() -> None:
    base, other = quick(), quick()
    _, repeater = stage(base, other, pace=Pace(pause_s=60))
    run = repeater.start(spec(), 3, owner="me")
    await end_of(run)
    assert look(repeater, run).live
    repeater.stop(run.meta.series)
    series = look(repeater, run)
    assert (series.status, series.repeats.counted, base.runs) == ("stopped", 1, 1)
    await repeater.close()


async def test_stop_once_both_lanes_have_ended_still_stops_the_series() -> None:
    # a race that is waiting for its counters finishes, and must not be followed by the next one
    base, other = quick(), quick()
    hub, repeater = stage(base, other)
    run = repeater.start(spec(), 3)
    await end_of(run)
    repeater.stop(run.meta.series)
    await until(lambda: not hub.racing)
    assert look(repeater, run).status == "stopped"
    assert look(repeater, run).repeats.counted >= 1


@pytest.mark.parametrize(
    ("endings", "status"),
    [
        (["finished"], None),
        (["finished", "partial"], None),
        (["finished", "partial", "finished"], "finished"),
        (["finished", "failed"], "failed"),
        (["finished", "finished", "failed"], "finished"),
        (["stopped"], "stopped"),
        (["finished", "finished", "stopped"], "stopped"),
        (["finished", "interrupted"], "interrupted"),
        ([], None),
    ],
)
def test_how_a_series_of_three_ends(endings: list[RaceStatus], status: str | None) -> None:
    over_ = [made(i, status=one) for i, one in enumerate(endings, start=1)]
    assert ended_as(over_, 3) == status


def lane_stopped(race: RaceSummary) -> RaceSummary:
    """Stopped by hand when the speculative lane had finished."""
    return structs.replace(
        race, lanes=race.lanes | {"baseline": structs.replace(race.lanes["baseline"], status="stopped")}
    )


@pytest.mark.parametrize("number", [2, 3])
def test_a_stop_when_one_lane_had_finished_was_rebuilt_as_interrupted_or_finished(number: int) -> None:
    over_ = [*THREE[: number - 1], lane_stopped(made(number, status="partial"))]
    assert ended_as(over_, 3) == "stopped"
    series = rebuilt("s1", over_)
    assert series is not None
    assert series.status == "stopped"
    assert f"stopped with {number} of 3 races" in series_files.as_markdown(series)


def test_a_lane_that_a_killed_app_left_open_is_no_stop_by_hand() -> None:
    assert ended_as([lane_stopped(made(1, status="interrupted"))], 3) == "interrupted"


async def test_a_stop_of_the_race_alone_when_one_lane_had_finished_ends_its_series() -> None:
    base, other = FakeRunner(tok(), anyio.Event(), FIN), quick()
    hub, repeater = stage(base, other)
    run = repeater.start(spec(), 3)
    await until(lambda: run.board.lanes["speculative"].status == "finished")
    hub.stop(run.meta.id)
    series = await to_the_end(repeater, run)
    assert (series.status, [race.status for race in series.over]) == ("stopped", ["partial"])


async def test_a_race_in_which_neither_lane_finished_is_the_last() -> None:
    broken = FakeRunner(tok(), RuntimeError("broken"))
    _, repeater = stage(broken, broken)
    series = await to_the_end(repeater, repeater.start(spec(), 5))
    assert (series.status, broken.runs) == ("failed", 2)


async def test_an_app_that_goes_down_interrupts_a_series() -> None:
    base, other, _ = held()
    hub, repeater = stage(base, other)
    run = repeater.start(spec(), 5)
    await until(lambda: run.board.status == "running")
    hub.leave()
    await end_of(run)
    assert (await to_the_end(repeater, run)).status == "interrupted"
    await repeater.close()
    await hub.close()


# ------------------------------------------------------------------------------------------------ one a visitor
async def test_a_visitors_new_series_ends_the_one_before() -> None:
    base, other, _ = held()
    _, repeater = stage(base, other, pace=Pace(pause_s=0))
    first = repeater.start(spec(), 3, owner="me")
    theirs = repeater.start(spec(), 3, owner="you")
    second = repeater.start(spec(), 3, owner="me")
    await end_of(first)
    assert look(repeater, first).status == "stopped"
    assert look(repeater, second).live
    assert look(repeater, theirs).live
    for run in (theirs, second):
        repeater.stop(run.meta.series)
        await end_of(run)


async def test_a_visitors_single_race_ends_their_series_even_in_the_pause() -> None:
    hub, repeater = stage(pace=Pace(pause_s=60))
    run = repeater.start(spec(), 3, owner="me")
    await end_of(run)
    single = hub.start(spec(), owner="me")
    repeater.make_way("me", single)
    assert look(repeater, run).status == "stopped"
    assert (await end_of(single)).board.status == "finished"
    await repeater.close()


async def test_the_same_click_twice_is_one_series() -> None:
    base, other, go = held()
    _, repeater = stage(base, other)
    once = repeater.start(spec(), 2, owner="me", ticket="t")
    twice = repeater.start(spec(), 2, owner="me", ticket="t")
    assert once is twice
    go.set()
    assert (await to_the_end(repeater, once)).status == "finished"
    assert base.runs == 2


# ------------------------------------------------------------------------------------------------ nobody looks
async def test_a_page_that_is_gone_ends_its_series_though_every_race_is_short() -> None:
    clock = Clock()
    base, other = (FakeRunner(lambda: clock.move_ms(7_000), tok(), FIN, total(1), clock=clock) for _ in range(2))
    _, repeater = stage(base, other, clock=clock)
    series = await to_the_end(repeater, repeater.start(spec(), 5, owner="me"))
    # 14 s a race, both lanes in it: longer than anybody may be away
    assert (series.status, len(series.over)) == ("stopped", 1)
    await repeater.close()


async def test_a_series_of_a_script_needs_nobody() -> None:
    clock = Clock()
    base, other = (FakeRunner(lambda: clock.move_ms(7_000), tok(), FIN, total(1), clock=clock) for _ in range(2))
    _, repeater = stage(base, other, clock=clock)
    assert (await to_the_end(repeater, repeater.start(spec(), 3))).status == "finished"


async def test_being_away_adds_up_over_the_races_and_the_pause_is_no_leaving() -> None:
    clock = Clock()
    base, other, go = held()
    hub, repeater = stage(base, other, clock=clock)
    first = repeater.start(spec(), 3, owner="me")
    with first.watched():
        await until(lambda: first.board.status == "running")
        clock.move_ms(60_000)
        go.set()
        await end_of(first)
    await until(lambda: look(repeater, first).running is not None or not look(repeater, first).live)
    second = hub.get(look(repeater, first).running or "")
    if second is not None:
        assert second.last_seen_ns() == clock.ns, "the minute in which somebody watched does not count"
    assert (await to_the_end(repeater, first)).status == "finished"


async def test_a_page_that_asks_for_the_next_race_is_there() -> None:
    clock = Clock()
    _, repeater = stage(clock=clock, pace=Pace(pause_s=0.05))
    run = repeater.start(spec(), 2, owner="me")
    await end_of(run)
    clock.move_ms(13_000)
    repeater.seen(run.meta.series or "")
    assert (await to_the_end(repeater, run)).status == "finished"


# ------------------------------------------------------------------------------------------------ its figures
def made(number: int, *, every_ms: float = 5.0, status: RaceStatus = "finished", races: int = 3) -> RaceSummary:
    """91 tokens a lane, first at 100 ms: the baseline one every 10 ms, the other one every ``every_ms``."""
    folded = board(
        started(),
        streamed("baseline", first_ms=100, every_ms=10, chunks=91),
        usage("baseline", 1000.5, 91),
        streamed("speculative", first_ms=100, every_ms=every_ms, chunks=91),
        usage("speculative", 1000.5, 91),
        drafts("speculative", 1000.6, RECORD),
        over(1100, status),
    )
    first = who_goes_first("baseline", number)
    asked = structs.replace(spec(schedule="in_turn"), first=first)
    place = {"series": "s1", "series_number": number, "series_races": races}
    return summarize(meta(f"race{number}", spec=asked, **place), folded)


THREE = [made(1, every_ms=4.0), made(2, every_ms=5.0), made(3, every_ms=2.5)]
"""Decode speedups 2.5, 2, 4; end to end 1000 ms against 460, 550 and 325."""


def test_the_medians_are_those_worked_by_hand() -> None:
    found = reading("s1", asked_of(spec(), 3), THREE, status="finished").repeats
    assert found.decode_speedup is not None
    assert (found.decode_speedup.median, found.decode_speedup.low, found.decode_speedup.high) == (
        exactly(2.5),
        exactly(2.0),
        exactly(4.0),
    )
    assert found.speedup is not None
    assert (found.speedup.median, found.speedup.low, found.speedup.high) == (
        exactly(1000 / 460),
        exactly(1000 / 550),
        exactly(1000 / 325),
    )
    assert found.verdict == "worth_it"
    assert (found.counted, found.identical) == (3, 3)


def test_a_race_that_was_stopped_is_listed_and_does_not_count() -> None:
    series = rebuilt("s1", [*THREE[:2], made(3, status="stopped")])
    assert series is not None
    assert (series.status, series.repeats.counted, len(series.over)) == ("stopped", 2, 3)


def test_json_csv_and_markdown_say_the_same() -> None:
    series = rebuilt("s1", THREE)
    assert series is not None
    told = summarize_series(series)
    assert (told.id, told.url, told.status, told.asked) == ("s1", "/series/s1", "finished", 3)
    assert told.races == ("race1", "race2", "race3")
    assert b'"median": 2.5,' in series_files.as_json(series)
    lines = series_files.as_csv(series).decode().splitlines()
    assert len(lines) == 1 + 3 * 2
    assert [line.split(",")[lines[0].split(",").index("first")] for line in lines[1::2]] == [
        "baseline",
        "speculative",
        "baseline",
    ]
    table = series_files.as_markdown(series)
    assert "2.50x [2.00x–4.00x]" in table
    assert "3 of 3" in table
    assert "ended early" not in table


def test_a_series_that_was_cut_short_says_so_in_its_table() -> None:
    series = rebuilt("s1", THREE[:2])
    assert series is not None
    assert "interrupted with 2 of 3 races" in series_files.as_markdown(series)


# ------------------------------------------------------------------------------------------------ for good
def put(store: Store, *races: RaceSummary) -> None:
    for race in races:
        place = {"series": race.series, "series_number": race.series_number, "series_races": race.series_races}
        store.begin(meta(race.id, **place))
        store.finish(race)


async def test_a_series_is_rebuilt_from_its_stored_races(tmp_path: Path) -> None:
    store = Store(tmp_path / "races.sqlite3")
    store.open()
    store.begin(meta("alone"))
    put(store, *THREE)
    await store.written()
    found = rebuilt("s1", await store.series("s1"))
    assert found == rebuilt("s1", THREE)
    assert found is not None
    assert found.status == "finished"
    assert await store.series("s2") == []
    assert rebuilt("s2", []) is None
    store.close()


async def test_a_series_that_a_killed_app_left_open_is_an_interrupted_one(tmp_path: Path) -> None:
    store = Store(tmp_path / "races.sqlite3")
    store.open()
    put(store, *THREE[:2])
    store.begin(meta("race3", series="s1", series_number=3, series_races=5))
    store.keep("race3", 1, started())
    await store.written()
    store.close()
    again = Store(tmp_path / "races.sqlite3")
    again.open()
    found = rebuilt("s1", await again.series("s1"))
    assert found is not None
    assert (found.status, [race.status for race in found.over]) == (
        "interrupted",
        ["finished", "finished", "interrupted"],
    )
    assert found.repeats.counted == 2
    again.close()


def test_the_races_of_a_series_are_found_by_an_index(tmp_path: Path) -> None:
    store = Store(tmp_path / "races.sqlite3")
    store.open()
    store.close()
    db = sqlite3.connect(tmp_path / "races.sqlite3")
    query = "EXPLAIN QUERY PLAN SELECT summary FROM races WHERE json_extract(meta, '$.series') = ? ORDER BY seq"
    plan = " ".join(str(row) for row in db.execute(query, ("s1",)).fetchall())
    db.close()
    assert "races_of_series" in plan


async def test_a_deleted_race_leaves_the_others(tmp_path: Path) -> None:
    store = Store(tmp_path / "races.sqlite3")
    store.open()
    put(store, *THREE)
    store.delete("race2")
    await store.written()
    found = rebuilt("s1", await store.series("s1"))
    assert found is not None
    assert (found.status, found.repeats.counted, found.asked.races) == ("finished", 2, 3)
    store.close()
