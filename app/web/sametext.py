"""The same text? Whether both answers agree, and where they part, in words. Pure; it computes no figure."""

from __future__ import annotations

from app.race.divergence import Continuation, Divergence, Margin, TextReading, closeness, probability
from app.race.scoreboard import Scoreboard
from app.race.summary import RaceMeta
from app.race.types import LANES, LaneName
from app.web import format as say
from app.web import words
from app.web.views import SameTextView, SideView

WHY_DIFFERENT = (
    "Neither text is wrong. Speculation keeps the distribution, not every draw: other batch shapes round differently, "
    "and where two tokens are almost equally likely that can turn the choice. The texts go their own ways from there."
)
WHY_SAMPLED = (
    "At a temperature above 0 each server draws its own tokens: the texts are expected to differ, equal seeds or not. "
    "Whether both draw from the same distribution is what specrace check --lossless looks at."
)


def same_text(meta: RaceMeta, board: Scoreboard) -> SameTextView | None:
    """What is known of both texts; None while a lane still writes."""
    if not board.over and not all(board.lanes[lane].ended for lane in LANES):
        return None
    reading = board.same_text(greedy=meta.spec.sampling.temperature == 0)
    if reading.divergence is not None:
        return _parted(reading.divergence)
    if reading.verdict == "identical":
        return SameTextView(verdict="identical", headline=_identical(reading), text=_compared_by(reading))
    return _not_compared(meta, reading)


def _not_compared(meta: RaceMeta, reading: TextReading) -> SameTextView:
    if reading.reason == "sampled":
        hot = say.temperature(meta.spec.sampling.temperature)
        return SameTextView(
            verdict="not_comparable", headline=f"Expected to differ: sampled at temperature {hot}.", text=WHY_SAMPLED
        )
    if reading.reason == "no_answer":
        return SameTextView(
            verdict="not_comparable",
            headline="Not compared: a lane wrote nothing.",
            text="There is no text to compare.",
        )
    return SameTextView(
        verdict="not_comparable",
        headline="Not compared: a lane did not finish.",
        text="An answer that was stopped, or broke off, says nothing about the rest of it.",
    )


def _identical(reading: TextReading) -> str:
    if reading.tokens is None:
        return "Identical, to the letter."
    return f"Identical: the same {say.count(reading.tokens)} {'token' if reading.tokens == 1 else 'tokens'}."


def _compared_by(reading: TextReading) -> str:
    if reading.basis == "token_ids":
        return "Compared token by token, by the ids that both servers sent. This answer was the same, this time."
    return "A server sent no token ids, so the letters were compared. This answer was the same, this time."


def _parted(found: Divergence) -> SameTextView:
    return SameTextView(
        verdict="diverged",
        headline=_where(found),
        text=WHY_DIFFERENT,
        before=say.displayed(found.before),
        before_cut=found.character > len(found.before),
        sides=(_side("baseline", found.baseline), _side("speculative", found.speculative)),
        margin=None if found.margin is None else _margin(found, found.margin),
        note=_note(found),
    )


def _where(found: Divergence) -> str:
    if found.token is None:
        at = found.character
        return (
            f"They part after {say.count(at)} equal characters." if at else "They differ from the first character on."
        )
    if found.token == 0:
        return "They differ from the first token on."
    equal = "1 equal token" if found.token == 1 else f"{say.count(found.token)} equal tokens"
    return f"They part at token {say.count(found.token)}, after {equal}."


def _side(lane: LaneName, it: Continuation) -> SideView:
    first = say.displayed(it.first)
    if not first and it.token_id is not None and not it.ended:
        first = f"[token {it.token_id}, no text of its own]"
    return SideView(
        lane=lane,
        title=words.LANE_TITLES[lane],
        first=first if first.strip() else first.replace(" ", "␣").replace("\t", "⇥").replace("\n", "⏎\n"),
        rest=say.displayed(it.rest),
        cut=it.cut,
        ended=it.ended,
    )


def _note(found: Divergence) -> str | None:
    if found.basis == "text":
        return "A server sent no token ids, so the letters were compared; the first differing word is marked."
    if found.approximate:
        return "The mark is approximate: a chunk of several tokens does not say which letters belong to which token."
    return None


def _margin(found: Divergence, margin: Margin) -> str:
    """How close it was, as the target sees it."""
    base, spec = _quoted(found.baseline), _quoted(found.speculative)
    if found.approximate:
        base, spec = "the baseline's token", "the speculative one"
    one, other = probability(margin.baseline), probability(margin.speculative)
    if margin.difference is None:
        rated, likely = (base, one) if one is not None else (spec, other)
        if likely is None:
            return "Asked again after the race, the target lists neither of the two among its likeliest tokens."
        return (
            f"Asked again after the race, the target gives {rated} {say.percent(likely)}; the other one is not among "
            "the tokens that it lists."
        )
    told = (
        f"Asked again after the race, the target gives {base} {say.percent(one)} and {spec} {say.percent(other)}: "
        f"{say.logprob(abs(margin.difference))} apart in log-probability, "
    )
    match closeness(margin):
        case "tie":
            return told + "a tie that rounding decides."
        case "near":
            return told + "a near-tie that rounding can decide."
        case _:
            return (
                told
                + "more than rounding usually turns over. Compare dtype, quantization and attention backend of the "
                "two servers."
            )


def _quoted(side: Continuation) -> str:
    text = side.first.strip()
    return f"“{text}”" if text else f"token {side.token_id}"
