"""Races and servers as the page words them."""

from __future__ import annotations

import msgspec
import pytest

from app.race.events import Event, LaneUsage, RaceQueued, RaceStarted
from app.race.summary import summarize
from app.race.types import LANES, LaneName
from app.web import board, deck, panes
from app.web.views import ArenaView, PaneView, StatusView
from tests.web.scenes import (
    ENDS,
    PAIRS,
    SCENES,
    WORKLOADS,
    begun,
    both_done,
    chunk,
    ended,
    failed,
    fold,
    meta,
    one_failed,
    over,
    ready,
    sent,
    slower,
    written,
)


def arena(name: str) -> ArenaView:
    race, events = SCENES[name]
    log, folded = fold(events)
    return board.arena(race, folded, upto=log.head, now_ms=folded.now_ms)


def pane(name: str, lane: LaneName = "baseline") -> PaneView:
    return arena(name).panes[0 if lane == "baseline" else 1]


def figures(view: ArenaView, lane: int) -> dict[str, str]:
    return {figure.key: figure.text for figure in view.score.lanes[lane].figures}


@pytest.mark.parametrize(
    ("scene", "state", "chip"),
    [
        ("queued", "queued", "in the queue"),
        ("waiting", "waiting", "waiting for the first token"),
        ("streaming", "streaming", "writing"),
        ("finished", "finished", "finished"),
        ("length", "length", "stopped at the length limit"),
        ("odd reason", "finished", "finished (<odd>)"),
        ("tool call", "tool", "tried to call a tool"),
        ("no answer", "silent", "no answer"),
        ("one failed", "failed", "failed"),
        ("cut off", "cut_off", "cut off"),
        ("stopped", "stopped", "stopped"),
        ("interrupted", "interrupted", "interrupted"),
        ("replay stopped", "stopped", "stopped"),
    ],
)
def test_every_way_to_wait_and_to_end_has_its_words(scene: str, state: str, chip: str) -> None:
    view = pane(scene)
    assert (view.state, view.chip) == (state, chip)


def test_aborted() -> None:
    assert pane("aborted", "speculative").chip == "aborted"


def test_in_turn_the_second_lane_waits_for_its_turn() -> None:
    assert pane("turn", "speculative").chip == "waits for its turn"


def test_waiting_for_the_first_token_carries_a_running_clock() -> None:
    _, folded = fold(begun())
    assert panes.pane(meta(), folded, "baseline", 2400.0).since_ms == 2400


def test_the_baseline_says_that_it_does_not_speculate() -> None:
    assert (pane("finished").method, pane("finished").k) == ("not speculative", None)
    speculative = pane("finished", "speculative")
    assert (speculative.model, speculative.method, speculative.k) == ("gemma", "n-gram lookup", "k = 4")


def test_a_failed_lane_keeps_its_text_and_prints_no_ratio() -> None:
    view = arena("one failed")
    assert view.texts[0].answer.startswith("b0 b1 ")
    assert view.panes[0].note is not None
    assert view.panes[0].note.title == "Stalled"
    assert view.panes[1].note is None
    assert (view.score.speedup, view.score.decode) == (None, None)
    assert view.score.headline == "no ratio: the baseline lane did not finish"


def test_p24_slower_is_called_slower_and_not_clamped() -> None:
    log, folded = fold(slower())
    view = board.arena(meta(), folded, upto=log.head, now_ms=folded.now_ms)
    assert (view.score.speedup, view.score.verdict, view.score.headline) == ("0.88", "slower", "0.88x: slower here")


def test_the_verdict_in_words() -> None:
    # 10 tokens in 280 ms against 10 tokens in 180 ms: 280 / 180 = 1.5555
    assert arena("finished").score.headline == "1.56x faster"


def test_while_it_runs_there_is_no_verdict() -> None:
    score = arena("streaming").score
    assert (score.verdict, score.headline, score.ended) == (None, "at this instant", False)


def test_the_source_of_the_acceptance_is_always_there() -> None:
    assert arena("finished").score.acceptance.source == "per-request record"
    assert arena("finished").score.acceptance.rate == "50.0%"
    assert arena("server counters").score.acceptance.source == "server counters"
    live = arena("streaming").score.acceptance
    assert (live.source, live.estimated) == ("live estimate from chunk sizes", True)


def test_p15_no_drafts_is_said_in_words_and_never_0_percent() -> None:
    acceptance = arena("no drafts").score.acceptance
    assert (acceptance.rate, acceptance.note) == (None, "no drafts ran")


def test_a_missing_acceptance_has_its_reason() -> None:
    def reason(events: list[Event]) -> str | None:
        return board.score(meta(), fold(events)[1], 100.0).acceptance.reason

    one = [*begun(), chunk("speculative", "s", 100)]
    assert reason(begun()) is None
    assert reason(one) == "no draft accepted yet"
    assert reason([*one, over(300, "stopped")]) == "no record: the race was stopped"
    assert reason([*one, over(300, "interrupted")]) == "no record: the race was interrupted"
    assert reason([*one, failed("speculative", 200), over(300, "failed")]) == "no record: the lane did not finish"
    assert reason([*one, *ENDS, over(300, "finished")]) == "no record from the server"
    assert arena("finished").score.acceptance.reason is None


def test_p16_a_server_that_does_not_speculate_is_not_0_percent() -> None:
    events: list[Event] = [RaceStarted(t_ms=0, queue_ms=0, in_flight=1), sent("baseline")]
    not_speculating = msgspec.structs.replace(sent("speculative"), speculating=False, method=None)
    _, folded = fold([*events, not_speculating, *written(until=4)])
    view = board.score(meta(), folded, 200.0)
    assert (view.acceptance.rate, view.acceptance.note) == (None, "not speculating")
    assert panes.pane(meta(), folded, "speculative", 200.0).method == "not speculating"


def test_numbers_that_do_not_exist_are_na_never_0_or_nan() -> None:
    printed = figures(arena("no answer"), 0)
    assert {printed[key] for key in ("tps", "ttft", "tpot", "elapsed")} == {"n/a"}
    for name in SCENES:
        texts = [figure.text for row in arena(name).score.lanes for figure in row.figures]
        assert not any("nan" in text or "inf" in text for text in texts)


def test_estimated_counts_are_marked_and_give_no_ratio() -> None:
    view = arena("estimated")
    assert next(f for f in view.score.lanes[0].figures if f.key == "tokens").estimated
    assert view.score.speedup is None
    assert view.score.headline == "no ratio: token counts are estimates"


def test_bars_stay_on_their_track() -> None:
    for name in SCENES:
        for row in arena(name).score.lanes:
            assert 0 <= row.bar.race <= 1000
            assert 0 <= row.bar.wait + row.bar.write <= 1001  # two roundings


def test_the_race_bar_is_the_share_of_the_tokens_asked_for() -> None:
    # 6 and 6 of 64 tokens
    assert [row.bar.race for row in arena("streaming").score.lanes] == [94, 94]
    assert [row.bar.race for row in arena("finished").score.lanes] == [1000, 1000]


def test_after_a_stop_the_race_bar_keeps_its_scale() -> None:
    # 10 and 10 of 64 tokens
    assert [row.bar.race for row in arena("stopped").score.lanes] == [156, 156]


@pytest.mark.parametrize("scene", ["interrupted", "replay stopped"])
def test_nothing_moves_in_a_race_that_is_over(scene: str) -> None:
    for row in arena(scene).score.lanes:
        assert row.bar.ended
        assert all(figure.since_ms is None for figure in row.figures)


def test_a_lane_held_to_its_length_finished() -> None:
    events = [
        *begun(),
        *(chunk(lane, "x", 9, tokens=64) for lane in LANES),
        *(ended(lane, 9, "length") for lane in LANES),
    ]
    _, folded = fold([*events, over(9, "finished")])
    view = panes.pane(meta(), folded, "baseline", 9.0)
    assert (view.state, view.chip) == ("finished", "finished")


def test_a_single_token_gives_no_ratio() -> None:
    events = [*begun(), *(chunk(lane, "x", 9) for lane in LANES), *(ended(lane, 9) for lane in LANES)]
    _, folded = fold([*events, over(9, "finished")])
    assert board.score(meta(), folded, 9.0).headline == "no ratio from a single token"


def test_what_plays_again_says_so() -> None:
    for name in ("recorded", "replay"):
        assert (arena(name).score.state, pane(name).chip) == ("Raced together.", "replaying")
    assert arena("recorded").say == "Recorded race started."


def test_time_bars_share_one_axis() -> None:
    # baseline 100 ms to the first token, 280 ms in all; speculative 100 ms and 180 ms
    baseline, speculative = arena("finished").score.lanes
    assert (baseline.bar.wait, baseline.bar.write) == (357, 643)
    assert (speculative.bar.wait, speculative.bar.write) == (357, 286)


def test_recorded_and_replayed_races_wear_a_band_all_the_time() -> None:
    for name in ("recorded", "recorded finished"):
        band = arena(name).band
        assert band is not None
        assert band.kind == "recorded"
        assert all(fact in band.text for fact in ("2 cores, no GPU", "vLLM 0.32.0", "30 Nov 2026"))
    replay = arena("replay").band
    assert replay is not None
    assert "Replay of a race run on 30 Nov 2026" in replay.text
    assert arena("finished").band is None


def test_p27_a_race_that_is_over_opens_no_stream() -> None:
    assert arena("finished").stream is None
    assert arena("streaming").stream == "/races/abc/stream?after=12"


def test_what_can_be_done() -> None:
    assert arena("streaming").actions.stop == "/races/abc/stop"
    finished = arena("finished").actions
    assert (finished.stop, finished.replay, finished.permalink) == (None, "/races/abc/replay", "/races/abc")
    assert arena("replay").actions.stop == "/races/abc/stop"
    assert arena("recorded finished").actions.permalink is None


def test_queue_time_is_shown_apart() -> None:
    queued = RaceQueued(t_ms=0, position=1)
    events: list[Event] = [queued, RaceStarted(t_ms=12_400, queue_ms=12_400, in_flight=2), *both_done()[1:]]
    _, folded = fold(events)
    chips = [chip.text for chip in board.score(meta(), folded, folded.now_ms).chips]
    assert "12.40 s in the queue, counted nowhere" in chips
    assert "2 races in flight" in chips
    assert "place 3" in arena("queued").score.state
    hurried = [queued, RaceStarted(t_ms=499, queue_ms=499, in_flight=1), *both_done()[1:]]
    _, folded = fold(hurried)
    assert not [chip for chip in board.score(meta(), folded, folded.now_ms).chips if "queue" in chip.text]


def test_only_what_makes_a_result_doubtful_is_amber() -> None:
    started = RaceStarted(t_ms=0, queue_ms=0, in_flight=1, conditions=("shared_device", "cold_start"))
    _, folded = fold([started, *both_done()[1:]])
    weights = {chip.text: chip.weight for chip in board.score(meta(), folded, folded.now_ms).chips}
    assert (weights["shared device"], weights["cold start"]) == ("caveat", "doubt")


def test_the_text_verdict_is_a_neutral_note() -> None:
    texts = [chip for chip in arena("finished").score.chips if chip.text.startswith("texts")]
    assert [(chip.text, chip.weight) for chip in texts] == [("texts diverged", "remark")]
    assert [chip.text for chip in arena("sampled").score.chips][:1] == ["texts not comparable"]
    same = [*begun(), *(chunk(lane, "x", 9) for lane in ("baseline", "speculative"))]
    _, folded = fold([*same, ended("baseline", 9), ended("speculative", 9), over(9, "finished")])
    assert board.score(meta(), folded, 9.0).chips[0].text == "texts identical"


def test_what_is_read_out() -> None:
    def said(events: list[Event]) -> str:
        return board.spoken(meta(), fold(events)[1])

    assert said(begun()) == "Race started."
    assert said(both_done()) == "Race finished: 1.56x faster."
    assert said(one_failed()[:-1]) == "Baseline failed."
    assert said(one_failed()) == "Race over, no ratio: the baseline lane did not finish."


# --- the page around it -----------------------------------------------------------------------------


def status(name: str, *, workload: str = "json", recordings: tuple[str, ...] = ("json",)) -> StatusView:
    return deck.status(PAIRS[name], workload=workload, recordings=recordings)


@pytest.mark.parametrize(
    ("name", "mode", "label"),
    [
        ("ready", "live", "Race"),
        ("starting", "recorded", "Play the recorded run"),
        ("cannot run", "recorded", "Play the recorded run"),
        ("both down", "recorded", "Play the recorded run"),
        ("restarting", "recorded", "Play the recorded run"),
    ],
)
def test_the_start_button_follows_the_servers(name: str, mode: str, label: str) -> None:
    start = status(name).start
    assert (start.mode, start.label) == (mode, label)
    assert start.action == ("/races" if mode == "live" else "/recordings/json/play")


def test_without_a_recording_the_button_says_why_it_rests() -> None:
    assert status("starting", recordings=()).start.mode == "blocked"
    assert status("both down", recordings=()).start.hint == "Neither server answers."
    one = status("one down", recordings=()).start
    assert (one.mode, one.label, one.hint) == ("live", "Race anyway", "The speculative server is down.")
    assert status("starting", workload=deck.OWN).start.mode == "blocked"


def test_the_page_asks_every_two_seconds_so_that_a_dead_server_is_seen_soon() -> None:
    assert (status("ready").every_s, status("starting").every_s) == (2, 2)
    assert status("ready").engines == ()


def test_the_headline_names_the_server_that_starts() -> None:
    assert status("starting").headline == "Both servers are starting; the page turns live by itself"
    one = deck.status([ready("baseline"), PAIRS["starting"][1]], workload="json", recordings=())
    assert one.headline == "The speculative server is starting; the page turns live by itself"
    assert one.start.hint == "The speculative server is still starting."
    again = status("restarting")
    assert again.headline == "The speculative server crashed and restarts by itself; the page turns live by itself"
    assert again.engines[1].words == "crashed; it restarts by itself (3 restarts)"
    other = deck.status([PAIRS["both down"][0], PAIRS["starting"][1]], workload="json", recordings=())
    assert other.headline == "The speculative server is starting; baseline not available"


def test_an_engine_on_its_way_shows_steps_time_and_log() -> None:
    engine = status("starting").engines[0]
    assert [step.state for step in engine.steps] == ["done", "done", "done", "now", "todo", "todo", "todo"]
    assert (engine.since_ms, engine.log[-1]) == (23_000, "<two>")


def test_an_engine_that_cannot_run_says_why() -> None:
    view = status("cannot run")
    assert view.headline == "The live pair cannot run on this machine"
    assert view.engines[0].detail == "Needs 10 GB of memory, has 4."
    assert view.lamps[0].words == "cannot run here"


def test_an_endpoint_that_is_down_is_seen_before_the_click() -> None:
    view = status("one down")
    assert [lamp.status for lamp in view.lamps] == ["ready", "down"]
    assert view.engines[1].detail == "Nothing listens there. Start it."


@pytest.mark.parametrize(
    ("selected", "name"), [(None, "json"), ("sql", "sql"), ("creative", "poem"), ("nonsense", "json"), (deck.OWN, None)]
)
def test_tabs_and_prompts_open_by_name(selected: str | None, name: str | None) -> None:
    view = deck.page(
        WORKLOADS, selected, endpoints=PAIRS["ready"], recordings=(), ticket="t", max_tokens=1024, max_chars=32_000
    )
    assert view.prompt.workload == name
    assert [tab.current for tab in view.tabs].count(True) == 1


def test_the_page_of_a_race_shows_what_was_sent() -> None:
    def page_of(workload: str | None, prompt: str) -> tuple[str | None, str]:
        view = deck.page(
            WORKLOADS, None, endpoints=PAIRS["ready"], recordings=(), ticket="t", max_tokens=1024, max_chars=32_000,
            meta=meta(workload=workload, prompt=prompt), schedule="together",
        )  # fmt: skip
        return view.prompt.workload, view.prompt.text

    assert page_of("json", "Continue <this>") == ("json", "Continue <this>")
    assert page_of(None, "mine") == (None, "mine")
    assert page_of("json", "the prompt before somebody edited it") == (None, "the prompt before somebody edited it")


def test_history_rows() -> None:
    race, events = SCENES["finished"]
    row = deck.row(summarize(race, fold(events)[1]), WORKLOADS)
    assert (row.url, row.title, row.speedup, row.acceptance) == ("/races/abc", "JSON", "1.56x", "50.0%")
    assert (row.verdict, row.source, row.recorded) == ("faster", "per-request record", False)


def test_pairs_are_found_by_lane_whatever_their_order() -> None:
    view = deck.status([ready("speculative"), ready("baseline")], workload="json", recordings=())
    assert [lamp.lane for lamp in view.lamps] == ["baseline", "speculative"]


def test_p21_a_prompt_cached_on_one_side_wins_nothing() -> None:
    cached = LaneUsage(t_ms=290, lane="speculative", completion_tokens=10, cached_tokens=512)
    uncached = LaneUsage(t_ms=290, lane="baseline", completion_tokens=10, cached_tokens=0)
    events = [*begun(), *written(), cached, uncached, *ENDS, over(300, "finished")]
    shown = board.score(meta(), fold(events)[1], 300)
    assert (shown.speedup, shown.verdict) == ("1.56", None)
    assert shown.headline == "1.56x, no verdict: one prompt was cached"
    row = deck.row(summarize(meta(), fold(events)[1]), WORKLOADS)
    assert (row.speedup, row.no_verdict) == ("1.56x", "one prompt was cached")


def test_a_ratio_in_the_list_of_past_races_says_when_it_is_that_of_a_stop() -> None:
    stopped = [ended(lane, 300, status="stopped") for lane in LANES]
    row = deck.row(summarize(meta(), fold([*begun(), *written(), *stopped, over(300, "stopped")])[1]), WORKLOADS)
    assert (row.status, row.verdict, row.no_verdict) == ("stopped", None, "up to the stop")
    done = deck.row(summarize(meta(), fold(both_done())[1]), WORKLOADS)
    assert done.no_verdict is None


def test_once_a_lane_has_failed_no_ratio_is_awaited_any_more() -> None:
    events = [*begun(), *written(), failed("speculative", 295)]
    assert board.score(meta(), fold(events)[1], 296).headline == "no ratio: the speculative lane did not finish"


def test_a_stop_after_one_lane_had_finished_is_still_a_stop() -> None:
    events = [*begun(), *written(), ended("speculative", 200), ended("baseline", 250, status="stopped")]
    shown = board.score(meta(), fold([*events, over(250, "partial")])[1], 250)
    assert shown.state == "Stopped by hand, after one lane had finished."
