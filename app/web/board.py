"""A race, as it stands, turned into views: arena, scoreboard, what can be done. Pure; it computes no figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from app.race.scoreboard import LaneBoard, Scoreboard
from app.race.series import Series
from app.race.summary import RaceMeta
from app.race.types import LANES, Acceptance, Comparison, EndpointState, LaneName, LaneNumbers
from app.web import draft_words, ink, panes, spreads, words
from app.web import format as say
from app.web import insight as below
from app.web.conditions import why
from app.web.views import (
    AcceptanceView,
    ActionsView,
    ArenaView,
    BandView,
    BarView,
    ChipView,
    FigureView,
    LaneScoreView,
    ScoreView,
    TextView,
)

N = TypeVar("N", int, float)

WORTH_SAYING_MS = 500
"""A shorter wait in the queue is not worth a remark."""


def arena(meta: RaceMeta, board: Scoreboard, *, upto: int, now_ms: float, series: Series | None = None) -> ArenaView:
    """One race: what has happened up to event ``upto``, and where to go on reading. ``series`` is the one that the race
    belongs to, as it stands."""
    newest = series is not None and series.race_ids[-1:] == (meta.id,)
    return ArenaView(
        race=meta.id,
        status=board.status,
        stream=None if board.over else f"/races/{meta.id}/stream?after={upto}",
        band=band(meta),
        panes=(panes.pane(meta, board, "baseline", now_ms), panes.pane(meta, board, "speculative", now_ms)),
        texts=(ink.whole(board, "baseline"), ink.whole(board, "speculative")),
        score=score(meta, board, now_ms, series=series),
        actions=actions(meta, board, series),
        insight=below.insight(meta, board, now_ms, series=series),
        say=spoken(meta, board),
        # the page of an earlier race stays there; the one of the newest goes on to the next
        next_race=next_race(meta, series) if board.over and newest else None,
    )


def arena_at_rest(endpoints: Sequence[EndpointState], *, autoplay: str | None = None) -> ArenaView:
    """No race yet: who would run, and what will be measured."""
    known = {state.lane: state for state in endpoints}
    resting = [panes.at_rest(lane, known.get(lane)) for lane in LANES]
    nothing = LaneNumbers()
    return ArenaView(
        race=None,
        status=None,
        stream=None,
        band=None,
        panes=(resting[0], resting[1]),
        texts=(TextView(lane="baseline"), TextView(lane="speculative")),
        score=ScoreView(
            speedup=None,
            ended=False,
            verdict=None,
            headline="no race yet",
            decode=None,
            acceptance=_no_acceptance(),
            lanes=(_row("baseline", nothing, None, 0, 0), _row("speculative", nothing, None, 0, 0)),
            state="At rest.",
            chips=(),
            actions=ActionsView(),
        ),
        actions=ActionsView(),
        autoplay=autoplay,
    )


def band(meta: RaceMeta) -> BandView | None:
    """The label of whatever is not live."""
    if meta.recorded is not None:
        on = meta.recorded
        text = f"A real run on {on.on}, vLLM {on.vllm}, {say.moment(on.at)}, played at the pace it ran."
        return BandView(kind="recorded", label="Recorded", text=text)
    if meta.origin is not None:
        text = f"Replay of a race run on {say.moment(meta.created_at)}, at the pace it ran."
        return BandView(kind="replay", label="Replay", text=text)
    return None


# --- scoreboard -------------------------------------------------------------------------------------


def score(meta: RaceMeta, board: Scoreboard, now_ms: float, *, series: Series | None = None) -> ScoreView:
    """The scoreboard band at ``now_ms`` (race clock)."""
    compared = board.comparison(now_ms, greedy=meta.spec.sampling.temperature == 0)
    numbers = {lane: board.numbers(lane, now_ms) for lane in LANES}
    done = all(board.lanes[lane].ended for lane in LANES)
    complete = all(board.lanes[lane].status == "finished" for lane in LANES)
    written = [n.completion_tokens or 0 for n in numbers.values()]
    track = max(written) if complete else max(meta.spec.sampling.max_tokens, *written)
    longest = max(board.lanes[lane].elapsed_ms(now_ms) or 0.0 for lane in LANES)
    rows = [_row(lane, numbers[lane], board.lanes[lane], track, longest, now_ms) for lane in LANES]
    ended = board.over or done
    reason = why(board, compared)
    return ScoreView(
        speedup=None if compared.speedup is None else say.times(compared.speedup)[:-1],
        ended=ended,
        verdict=compared.verdict,
        headline=_headline(board, compared, ended=ended),
        decode=None if compared.decode_speedup is None else say.times(compared.decode_speedup),
        acceptance=_acceptance(board, numbers["speculative"].acceptance),
        lanes=(rows[0], rows[1]),
        state=spreads.place(series, meta.series_number) + _state_line(meta, board),
        chips=(*_of_series(series), *_chips(board, compared)),
        actions=actions(meta, board, series),
        why=None if reason is None else reason.short,
    )


def _headline(board: Scoreboard, compared: Comparison, *, ended: bool) -> str:
    """The verdict in words."""
    if compared.speedup is None:
        if not ended and not any(lane.error for lane in board.lanes.values()):
            return "in the queue" if board.status == "queued" else "no ratio yet"
        if any(lane.tokens_estimated and lane.chunks for lane in board.lanes.values()):
            return "no ratio: token counts are estimates"
        return "no ratio" + _why_no_ratio(board)
    number = say.times(compared.speedup)
    match compared.verdict:
        case "faster":
            return f"{number} faster"
        case "slower":
            return f"{number}: slower here"
        case "same":
            return f"{number}: about the same"
        case None if "prefix_cache_differs" in compared.caveats:
            return f"{number}, no verdict: one prompt was cached"
        case None:
            return "up to that moment" if ended else "at this instant"


def _why_no_ratio(board: Scoreboard) -> str:
    bad = [words.LANE_TITLES[lane].lower() for lane in LANES if board.lanes[lane].error is not None]
    if len(bad) == 2:
        return ": both lanes failed"
    if bad:
        return f": the {bad[0]} lane did not finish"
    if board.status != "finished":
        return ": the race did not run to its end"
    if any(lane.tokens == 1 for lane in board.lanes.values()):
        return " from a single token"
    return ": nothing to divide"


def _acceptance(board: Scoreboard, reading: Acceptance | None) -> AcceptanceView:
    it = board.lanes["speculative"]
    if it.speculating is False:
        return _no_acceptance("not speculating")
    if reading is None:
        return _no_acceptance(reason=_why_no_acceptance(board, it))
    if reading.doubt is not None:
        return _no_acceptance(reason=draft_words.COUNTER_DOUBTS[reading.doubt][0].lower())
    if reading.drafted == 0:
        return _no_acceptance("no drafts ran")
    return AcceptanceView(
        rate=None if reading.rate is None else say.percent(reading.rate),
        length=None if reading.mean_length is None else say.length(reading.mean_length),
        source=words.SOURCES[reading.source][0],
        about=f"source-{reading.source}",
        estimated=reading.source == "stream",
    )


def _why_no_acceptance(board: Scoreboard, it: LaneBoard) -> str | None:
    if not board.over:
        return "no draft accepted yet" if it.status == "streaming" and it.first_ms is not None else None
    if it.error is not None:
        return "no record: the lane did not finish"
    match board.status:
        case "stopped" | "interrupted":
            return f"no record: the race was {board.status}"
        case _:
            return "no record from the server"


def _no_acceptance(note: str | None = None, *, reason: str | None = None) -> AcceptanceView:
    return AcceptanceView(
        rate=None, length=None, source=None, about="acceptance", estimated=False, note=note, reason=reason
    )


def _row(
    lane: LaneName, n: LaneNumbers, it: LaneBoard | None, track: int, longest_ms: float, now_ms: float = 0.0
) -> LaneScoreView:
    ended = it is not None and (it.ended or it.closed)
    running = it is not None and it.status == "streaming" and not ended
    elapsed = None if it is None else it.elapsed_ms(now_ms)
    return LaneScoreView(
        lane=lane,
        title=words.LANE_TITLES[lane],
        figures=(
            _figure("tps", n.tokens_per_second, say.rate),
            _figure("ttft", n.ttft_ms, say.duration),
            _figure("tpot", n.tpot_ms, say.per_token),
            _figure("tokens", n.completion_tokens, say.count, estimated=n.tokens_estimated),
            _figure("elapsed", elapsed, say.clock if running else say.duration, since_ms=elapsed if running else None),
        ),
        bar=BarView(
            race=_share(n.completion_tokens or 0, track),
            wait=_share(n.ttft_ms if n.ttft_ms is not None else elapsed or 0.0, longest_ms),
            write=_share(0.0 if n.ttft_ms is None or elapsed is None else elapsed - n.ttft_ms, longest_ms),
            ended=ended,
            told=f"{words.LANE_TITLES[lane]}: {say.count(n.completion_tokens)} tokens, "
            f"{say.duration(n.ttft_ms)} until the first, {say.duration(n.e2e_ms)} in all",
        ),
    )


def _figure(
    key: str, value: N | None, to_text: Callable[[N], str], *, estimated: bool = False, since_ms: float | None = None
) -> FigureView:
    text = say.NA if value is None else to_text(value)
    return FigureView(key=key, text=text, none=value is None, estimated=estimated, since_ms=since_ms)


def _share(part: float, whole: float) -> int:
    """Thousandths of a track."""
    return 0 if whole <= 0 else min(max(round(1000 * part / whole), 0), 1000)


# --- what is said beside ----------------------------------------------------------------------------


def _state_line(meta: RaceMeta, board: Scoreboard) -> str:
    schedule = "together" if meta.spec.schedule == "together" else "in turn"
    match board.status:
        case "queued":
            place = "" if board.position is None else f": place {board.position}"
            return f"In the queue{place}. The wait counts in no figure."
        case "running":
            return f"Raced {schedule}." if band(meta) is not None else f"Racing {schedule}."
        case "finished":
            return f"Finished. Raced {schedule}."
        case "partial" if any(lane.status == "stopped" for lane in board.lanes.values()):
            return "Stopped by hand, after one lane had finished."
        case "partial":
            return "One lane finished, the other did not."
        case "failed":
            return "Neither lane finished."
        case "stopped":
            return "Stopped by hand. The figures are those up to the stop."
        case "interrupted":
            return "Interrupted: server restarting."


def _chips(board: Scoreboard, compared: Comparison) -> tuple[ChipView, ...]:
    chips: list[ChipView] = []
    if board.over:
        match compared.text:
            case "identical":
                chips.append(ChipView(text="texts identical", about="text"))
            case "diverged":
                at = compared.diverges_at_token
                where = "" if at is None else f" at token {say.count(at)}"
                chips.append(ChipView(text=f"texts diverged{where}", href="#insight-text"))
            case "not_comparable":
                chips.append(ChipView(text="texts not comparable", about="text"))
    if board.was_queued and board.queue_ms is not None and board.queue_ms >= WORTH_SAYING_MS:
        chips.append(ChipView(text=f"{say.duration(board.queue_ms)} in the queue, counted nowhere"))
    if board.in_flight is not None and board.in_flight > 1:
        chips.append(ChipView(text=f"{board.in_flight} races in flight", weight="doubt"))
    chips.extend(
        ChipView(
            text=words.CAVEATS[caveat][0],
            about=f"caveat-{caveat}",
            weight="doubt" if caveat in words.DOUBTS else "caveat",
        )
        for caveat in compared.caveats
        if caveat != "text_diverged"
    )
    return tuple(chips)


def _of_series(series: Series | None) -> tuple[ChipView, ...]:
    found = None if series is None else spreads.chip(series)
    return () if found is None else (found,)


def next_race(meta: RaceMeta, series: Series | None) -> str | None:
    """Where a page that has seen this race to its end asks for the next one of a series that goes on."""
    if series is None or not series.live:
        return None
    return f"/series/{series.id}/next?after={meta.id}"


def actions(meta: RaceMeta, board: Scoreboard, series: Series | None = None) -> ActionsView:
    """Stop while it runs, or its series does; afterwards replay and permalink (a recording has neither: it is not a
    race of ours)."""
    if series is not None and series.live:
        return ActionsView(stop=f"/series/{series.id}/stop")
    if not board.over:
        return ActionsView(stop=f"/races/{meta.id}/stop")
    if meta.recorded is not None:
        return ActionsView()
    stored = meta.origin or meta.id
    return ActionsView(replay=f"/races/{stored}/replay", permalink=f"/races/{stored}")


def spoken(meta: RaceMeta, board: Scoreboard) -> str:
    """The state of the race for the status line that is read out: started, finished, failed, once each."""
    shown = band(meta)
    match board.status:
        case "queued":
            return "" if board.position is None else f"In the queue: place {board.position}."
        case "running":
            failed = [words.LANE_TITLES[lane] for lane in LANES if board.lanes[lane].error is not None]
            if failed:
                return f"{' and '.join(failed)} failed."
            return "Race started." if shown is None else f"{shown.label} race started."
        case "interrupted":
            return "The race was interrupted."
        case "stopped":
            return "Race stopped."
        case _:
            compared = board.comparison(greedy=meta.spec.sampling.temperature == 0)
            told = _headline(board, compared, ended=True)
            return f"Race finished: {told}." if board.status == "finished" else f"Race over, {told}."
