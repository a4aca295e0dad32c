"""What could spoil a result: whether it holds in this race, and what was seen of it in each lane. Pure.

    cached_tokens        prompt tokens that a server took from its prefix cache
    salt_refused         a lane's server did not take the salt (listed only when a fresh cache was asked for)
    cold_start           the server had not generated anything since its start
    shared_device        both lanes at once on one device
    other_requests       requests that a server had in hand just before the race, or that its counters hold besides ours
    lengths_differ       completion tokens
    scheduling_differs   the method loses vLLM's async scheduling and the baseline keeps it
    tokens_estimated     a token count that is no server's

"unknown" is an answer: what a server does not tell is never taken for a no.
"""

from __future__ import annotations

import secrets

from msgspec import structs

from app.race.scoreboard import Scoreboard
from app.race.types import LANES, Caveat, Condition, ConditionName, Holds, RaceSpec, Schedule, Setting

LOSES_ASYNC = frozenset(("ngram", "suffix", "medusa", "mlp_speculator"))
"""Methods for which vLLM switches asynchronous scheduling off."""


def scheduling_differs(method: str | None, baseline_keeps: bool | None) -> bool | None:
    """Whether speculation costs this pair vLLM's async scheduling on one side; None where it cannot be known.
    ``baseline_keeps``: whether the baseline runs with it, None when its flags are not ours."""
    if method in LOSES_ASYNC:
        return baseline_keeps
    return None if method in (None, "unknown") else False


def new_salt() -> str:
    """A salt for vLLM's ``cache_salt``: one a race, sent to both servers (at most 128 characters, no / or @)."""
    return secrets.token_hex(16)


def with_own_salt(spec: RaceSpec) -> RaceSpec:
    """The same race; where a fresh cache is asked for, with a salt that no other race has (a series repeats one)."""
    return spec if spec.cache_salt is None else structs.replace(spec, cache_salt=new_salt())


def known_before(setting: Setting, schedule: Schedule) -> tuple[Caveat, ...]:
    """The caveats that hold before the first token. What cannot be known of a cold start or of two servers on one
    host is a caveat too: better a remark too many."""
    found: list[Caveat] = []
    if not (setting.baseline_warm and setting.speculative_warm):
        found.append("cold_start")
    if schedule == "together" and (setting.same_host if setting.shared_device is None else setting.shared_device):
        found.append("shared_device")
    if setting.scheduling_differs:
        found.append("scheduling_differs")
    return tuple(found)


def conditions(spec: RaceSpec, board: Scoreboard, now_ms: float | None = None) -> tuple[Condition, ...]:
    """All of them at ``now_ms`` (race clock), in a fixed order. What only an end can tell is unknown until then."""
    b, s = board.lanes["baseline"], board.lanes["speculative"]
    numbers = [board.numbers(lane, now_ms) for lane in LANES]
    setting = board.setting
    warm = (None, None) if setting is None else (setting.baseline_warm, setting.speculative_warm)
    finished = b.status == s.status == "finished"
    counts = [n.completion_tokens if finished else None for n in numbers]
    differ = ("scheduling_differs" in board.known or None) if setting is None else setting.scheduling_differs
    found = [
        _of("cached_tokens", b.usage.cached_tokens, s.usage.cached_tokens),
        _of("cold_start", *(None if one is None else not one for one in warm)),
        Condition(name="shared_device", holds=_shared(spec, board)),
        _others(board),
        _lengths(*counts),
        Condition(name="scheduling_differs", holds=_answer(differ)),
        _of("tokens_estimated", *(n.tokens_estimated if n.chunks else None for n in numbers)),
    ]
    if spec.cache_salt is not None:
        refused = [None if lane.sent_ms is None else not lane.salted for lane in (b, s)]
        found.insert(1, _of("salt_refused", *refused))
    return tuple(found)


def _answer(holds: bool | None) -> Holds:
    return "unknown" if holds is None else "yes" if holds else "no"


def _of(name: ConditionName, baseline: int | bool | None, speculative: int | bool | None) -> Condition:
    """A condition that holds when it does so for one of the lanes, and does not when it does so for neither."""
    both = (baseline, speculative)
    holds = True if any(both) else None if None in both else False
    return Condition(name=name, holds=_answer(holds), baseline=baseline, speculative=speculative)


def _shared(spec: RaceSpec, board: Scoreboard) -> Holds:
    """One lane after the other never shares anything. One host alone does not tell: it may have two devices."""
    if spec.schedule == "in_turn":
        return "no"
    if board.setting is None:  # a race of before: what it said then
        return "yes" if "shared_device" in board.known else "unknown"
    return _answer(board.setting.shared_device)


def _others(board: Scoreboard) -> Condition:
    """Requests in hand before the race. Other races of ours on the pair, and counters with more in them, count too."""
    lanes = [board.lanes[lane] for lane in LANES]
    seen = _of("other_requests", *(lane.others for lane in lanes))
    mixed = any(lane.record is not None and not lane.record.exclusive for lane in lanes)
    return structs.replace(seen, holds="yes") if mixed or (board.in_flight or 0) > 1 else seen


def _lengths(baseline: int | None, speculative: int | None) -> Condition:
    differ = None if baseline is None or speculative is None else baseline != speculative
    return Condition(name="lengths_differ", holds=_answer(differ), baseline=baseline, speculative=speculative)
