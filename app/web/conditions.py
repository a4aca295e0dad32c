"""What could spoil a result, and why it is not better, turned into sentences. Pure; it computes no figure."""

from __future__ import annotations

from app.race.cause import GAIN
from app.race.fairness import conditions as stated
from app.race.scoreboard import Scoreboard
from app.race.summary import RaceMeta
from app.race.types import Comparison, Condition, ConditionName
from app.web import format as say
from app.web import words
from app.web.views import ConditionsView, ConditionView, WhyView


def conditions(meta: RaceMeta, board: Scoreboard, now_ms: float) -> ConditionsView:
    """The checklist of one race at ``now_ms`` (race clock)."""
    rows = tuple(_row(condition) for condition in stated(meta.spec, board, now_ms))
    compared = board.comparison(now_ms, greedy=meta.spec.sampling.temperature == 0)
    found = why(board, compared)
    return ConditionsView(
        rows=rows,
        held=sum(row.holds == "yes" for row in rows),
        why=None if found is None else found.sentence,
    )


def _row(condition: Condition) -> ConditionView:
    title, answers = words.CONDITIONS[condition.name]
    both = (condition.baseline, condition.speculative)
    seen = both != (None, None)
    return ConditionView(
        key=condition.name,
        title=title,
        holds=condition.holds,
        answer=condition.holds,
        text=answers[condition.holds],
        baseline=_value(condition.name, condition.baseline) if seen else None,
        speculative=_value(condition.name, condition.speculative) if seen else None,
    )


def _value(name: ConditionName, value: int | bool | None) -> str:
    """What was seen of one lane: a count, or a word for yes and no."""
    if value is None:
        return say.NA
    if name in words.CONDITION_VALUES:
        return words.CONDITION_VALUES[name][0 if value else 1]
    return say.count(value)


def why(board: Scoreboard, compared: Comparison) -> WhyView | None:
    """One sentence when a finished race gained less than 5 %: the cause, or what is missing to name it."""
    if not board.over or compared.verdict is None or compared.speedup is None or compared.speedup >= GAIN:
        return None
    lead = {"faster": "Barely faster", "same": "No gain", "slower": "Slower here"}[compared.verdict]
    short, sentence = _reason(board, compared)
    return WhyView(short=short, sentence=f"{lead}: {sentence}")


def _reason(board: Scoreboard, compared: Comparison) -> tuple[str, str]:
    """The cause with its numbers: a few words, and a sentence."""
    if compared.cause is None:
        missing = _missing(board, compared)
        return f"cause unknown: {missing}", f"cause unknown: {missing}."
    lane = board.numbers("speculative", board.now_ms)
    rate = None if lane.acceptance is None else lane.acceptance.rate
    short, sentence = words.CAUSES[compared.cause]
    figures = {
        "tau": say.length(compared.tau),
        "cost": say.times(compared.step_cost),
        "decode": say.times(compared.decode_speedup),
        "rate": "" if rate is None else f" ({say.percent(rate)})",
        "ttft": say.duration(lane.ttft_ms),
        "e2e": say.duration(lane.e2e_ms),
    }
    return short.format(**figures), sentence.format(**figures)


def _missing(board: Scoreboard, compared: Comparison) -> str:
    if compared.decode_speedup is not None and compared.decode_speedup >= GAIN:
        cold = "cold_start" in compared.caveats
        return "a cold start may have delayed the first token" if cold else "one prompt came from the prefix cache"
    lane = board.lanes["speculative"]
    reading = lane.acceptance
    if lane.speculating is False:
        return "this server does not speculate"
    if lane.record is None or reading is None:
        return "no acceptance record"
    if reading.drafted == 0:
        return "no drafts ran"
    return "other traffic is in the counters" if not reading.exclusive else "tokens per pass are not known"
