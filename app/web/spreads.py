"""A series of races turned into views: the plot with a mark for every race, the tables, the verdict in words. Pure.

Every median, lowest and highest comes from app/race/repeats.py; here they become text and places on a line. A line
begins at zero, so that a small spread looks small.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from urllib.parse import quote

from msgspec import Struct

from app.race.repeats import Spread, Worth, cold_left_out
from app.race.series import Series, that_count
from app.race.summary import RaceSummary
from app.race.types import LANES, LaneName
from app.web import format as say
from app.web import words
from app.web.views import ChipView, MarkView, RepeatRow, SeriesView, SpreadView, SummaryRow

Form = Callable[[float], str]

ROOM_BESIDE = 1.04
"""How far a line goes on beyond its largest value."""

VERDICTS: dict[Worth, str] = {
    "worth_it": "Worth it at this load",
    "marginal": "Marginal at this load",
    "hurts": "Hurts at this load",
}


class Figure(Struct, frozen=True, kw_only=True):
    """One figure of the pair (``lane`` None) or of one lane, over the counted races."""

    name: str
    spread: Spread | None
    form: Form
    about: str | None = None
    lane: LaneName | None = None
    ratio: bool = False
    drawn: bool = True


def tokens(value: float) -> str:
    """A median of token counts: "96", "96.5"."""
    return f"{value:,g}"


def series_view(series: Series) -> SeriesView:
    """Everything that is said of a series."""
    figures = list(figures_of(series))
    those = that_count(series.over)
    numbers = [race.series_number or series.over.index(race) + 1 for race in those]
    return SeriesView(
        id=series.id,
        url=f"/series/{quote(series.id, safe='')}",
        live=series.live,
        title=f"{series.asked.races} races",
        of=_of(series),
        state=state(series),
        counted=_counted(series),
        headline=headline(series),
        texts=_texts(series),
        verdict=_verdict(series),
        why=_why(series),
        spreads=tuple(_spreads(figures, numbers)),
        summary=tuple(_summary_row(figure, series.repeats.counted) for figure in figures),
        heads=HEADS,
        races=tuple(_race_row(race, number, race in those) for number, race in enumerate(series.over, start=1)),
        notes=_notes(series),
    )


def _of(series: Series) -> str:
    """What was raced, in a line: prompt, temperature, schedule, model, method and k as far as the first race knew."""
    asked = series.asked
    parts = [asked.workload or "own prompt", f"temperature {asked.sampling.temperature:g}"]
    parts.append(words.SCHEDULES[asked.schedule][0].lower())
    if series.over:
        lane = series.over[0].lanes["speculative"]
        parts += [lane.model] if lane.model else []
        parts += [words.METHODS.get(lane.method, lane.method)] if lane.method else []
        parts += [f"k = {lane.num_speculative_tokens}"] if lane.num_speculative_tokens else []
    return " · ".join(parts)


def figures_of(series: Series) -> Iterator[Figure]:
    """All figures of a series, in the order of the page."""
    it, (b, s) = series.repeats, (series.repeats.lanes[lane] for lane in LANES)
    yield Figure(name="Speedup", about="speedup", spread=it.speedup, form=say.times, ratio=True)
    yield Figure(name="Decode speedup", about="decode", spread=it.decode_speedup, form=say.times, ratio=True)
    for lane, of in zip(LANES, (b, s), strict=True):
        yield Figure(name="Tokens/s", about="tps", lane=lane, spread=of.tokens_per_second, form=say.rate)
    for lane, of in zip(LANES, (b, s), strict=True):
        yield Figure(name="TTFT", about="ttft", lane=lane, spread=of.ttft_ms, form=say.duration)
    for lane, of in zip(LANES, (b, s), strict=True):
        yield Figure(name="TPOT", about="tpot", lane=lane, spread=of.tpot_ms, form=say.per_token)
    yield Figure(name="Acceptance rate", about="acceptance", spread=it.acceptance_rate, form=say.percent)
    yield Figure(name="Mean acceptance length", about="length", spread=it.mean_length, form=say.length, drawn=False)
    yield Figure(name="Effective tokens per pass", spread=it.effective_tokens_per_pass, form=say.length, drawn=False)
    yield Figure(name="Step cost r", spread=it.step_cost, form=say.length, drawn=False)
    for lane, of in zip(LANES, (b, s), strict=True):
        yield Figure(name="E2E", about="elapsed", lane=lane, spread=of.e2e_ms, form=say.duration, drawn=False)
        yield Figure(name="Tokens", about="tokens", lane=lane, spread=of.completion_tokens, form=tokens, drawn=False)


# --- in words ---------------------------------------------------------------------------------------


def place(series: Series | None, number: int | None) -> str:
    """Which race of the series the page shows, in front of its state: "Race 2 of 5. "."""
    return "" if series is None or number is None else f"Race {number} of {series.asked.races}. "


def state(series: Series) -> str:
    """Where the series stands."""
    begun, asked = len(series.race_ids), series.asked.races
    match series.status:
        case "running" if series.running is not None:
            return f"Race {begun} of {asked} is on."
        case "running":
            return f"Race {begun} of {asked} is over, the next one begins in a moment."
        case "finished":
            return f"All {asked} races are over."
        case "stopped":
            return f"Stopped in race {begun} of {asked}."
        case "failed":
            return f"Ended with race {begun} of {asked}: neither lane finished."
        case "interrupted":
            return f"Interrupted after race {begun} of {asked}."


def headline(series: Series) -> str | None:
    """The result in a line: "median of 5: 2.41x [2.36–2.47x]"; None before two races have one: one race
    has no median."""
    found = series.repeats.speedup
    if found is None or len(found.values) < 2:
        return None
    so_far = " so far" if series.live else ""
    return f"median of {len(found.values)}{so_far}: {say.times(found.median)} {span(found, say.times)}".rstrip()


def chip(series: Series) -> ChipView | None:
    """The headline for the first screen, leading to the plot."""
    told = headline(series)
    return None if told is None else ChipView(text=told, href="#insight-series")


def span(found: Spread, form: Form) -> str:
    """ "[2.36–2.47x]": lowest to highest, the unit once; nothing for a single value."""
    if len(found.values) < 2:
        return ""
    low, high = form(found.low), form(found.high)
    bare = re.match(r"[\d.,]*", low)
    number = "" if bare is None else bare[0]
    same_unit = low.removeprefix(number) == re.sub(r"^[\d.,]*", "", high)
    return f"[{number if same_unit else low}–{high}]"


def _counted(series: Series) -> str:
    it = series.repeats
    cold = f", {cold_left_out(it.cold)}" if it.cold else ""
    return f"{it.counted} of {series.asked.races} counted{cold}"


def _texts(series: Series) -> str | None:
    it = series.repeats
    if it.counted == 0:
        return None
    if it.not_comparable == it.counted:
        return "texts not comparable"
    return f"texts identical in {it.identical} of {it.identical + it.diverged}"


def _verdict(series: Series) -> str:
    if series.live:
        return "No verdict yet"
    return "No verdict" if series.repeats.verdict is None else VERDICTS[series.repeats.verdict]


def _why(series: Series) -> str:
    it, lowest = series.repeats, series.repeats.decode_speedup
    if series.live:
        return "It comes with the last race."
    if it.verdict is None or lowest is None:
        told = it.why_no_verdict or "there is nothing to judge"
        return f"{told[:1].upper()}{told[1:]}."
    of = f"{len(lowest.values)} races"
    return f"The lowest decode speedup of {of} is {say.times(lowest.low)}. Measured with {load(series)}."


def load(series: Series) -> str:
    """What the servers had to do while this was measured."""
    how = "both servers answering at once" if series.asked.schedule == "together" else "the servers in turn"
    shared = ", on one device" if "shared_device" in series.repeats.caveats else ""
    fresh = ", prefix cache defeated" if series.asked.fresh_cache else ""
    return f"one request at a time on each server, {how}{shared}{fresh}"


def _notes(series: Series) -> tuple[ChipView, ...]:
    """What held in how many of the counted races."""
    return tuple(
        ChipView(
            text=f"{words.CAVEATS[caveat][0]} in {count} of {series.repeats.counted}",
            about=f"caveat-{caveat}",
            weight="doubt" if caveat in words.DOUBTS else "caveat",
        )
        for caveat, count in series.repeats.caveats.items()
        if caveat != "text_diverged"
    )


# --- the plot ---------------------------------------------------------------------------------------


def _spreads(figures: list[Figure], numbers: list[int]) -> Iterator[SpreadView]:
    """``numbers`` are those of the counted races, of which some may lack a figure."""
    drawn = [figure for figure in figures if figure.drawn]
    for figure in drawn:
        if figure.spread is not None:
            same = [other.spread.high for other in drawn if other.spread is not None and _axis(other) == _axis(figure)]
            of = [numbers[i] for i in figure.spread.places] or numbers
            yield _spread(figure, figure.spread, ROOM_BESIDE * max(*same, _least(figure)), of)


def _axis(figure: Figure) -> str:
    """Figures with the same axis can be compared by eye: both lanes of one, and the two ratios."""
    return "ratio" if figure.ratio else figure.name


def _least(figure: Figure) -> float:
    return 1.0 if figure.ratio or figure.name == "Acceptance rate" else 0.0


def _spread(figure: Figure, found: Spread, top: float, numbers: list[int]) -> SpreadView:
    title = "" if figure.lane is None else words.LANE_TITLES[figure.lane]
    text = figure.form(found.median)
    values = ", ".join(figure.form(value) for value in found.values)
    return SpreadView(
        name=figure.name,
        about=figure.about,
        lane=figure.lane,
        lane_title=title,
        marks=tuple(
            MarkView(
                race=number,
                at=_percent(value, top),
                height=_percent(i + 1, len(found.values) + 1),
                told=figure.form(value),
            )
            for i, (number, value) in enumerate(zip(numbers, found.values, strict=True))
        ),
        low=_percent(found.low, top),
        median=_percent(found.median, top),
        high=_percent(found.high, top),
        even=_percent(1.0, top) if figure.ratio else None,
        value=text,
        range=span(found, figure.form),
        told=f"{title} {figure.name}".strip() + f", median {text}; races in order: {values}",
    )


def _percent(part: float, whole: float) -> str:
    return "0%" if whole <= 0 else f"{100 * part / whole:.2f}%"


# --- the tables -------------------------------------------------------------------------------------

HEADS = ("Speedup", "Decode", "Tokens/s", "TTFT", "TPOT", "Acceptance", "Text")
"""Figures of one race; those of a lane are given as baseline / speculative."""


def _summary_row(figure: Figure, counted: int) -> SummaryRow:
    found, form = figure.spread, figure.form
    return SummaryRow(
        name=figure.name,
        lane=figure.lane,
        lane_title="" if figure.lane is None else words.LANE_TITLES[figure.lane],
        median=say.NA if found is None else form(found.median),
        low=say.NA if found is None else form(found.low),
        high=say.NA if found is None else form(found.high),
        races=f"{0 if found is None else len(found.values)} of {counted}",
    )


def _race_row(race: RaceSummary, number: int, counted: bool) -> RepeatRow:
    b, s, compared = race.lanes["baseline"], race.lanes["speculative"], race.comparison
    took = s.acceptance
    return RepeatRow(
        number=race.series_number or number,
        url=f"/races/{quote(race.id, safe='')}",
        first=words.LANE_TITLES[race.first],
        status=f"{race.status}, cold" if race.status == "finished" and not counted else race.status,
        counted=counted,
        cells=(
            say.times(compared.speedup),
            say.times(compared.decode_speedup),
            f"{say.rate(b.tokens_per_second)} / {say.rate(s.tokens_per_second)}",
            f"{say.duration(b.ttft_ms)} / {say.duration(s.ttft_ms)}",
            f"{say.per_token(b.tpot_ms)} / {say.per_token(s.tpot_ms)}",
            say.percent(None if took is None else took.rate),
            compared.text.replace("_", " "),
        ),
    )
