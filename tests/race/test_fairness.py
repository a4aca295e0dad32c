"""What could spoil a result: each condition where it holds, where it does not, and where nobody can tell."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from app.race.fairness import conditions, known_before, new_salt, scheduling_differs, with_own_salt
from app.race.summary import fold
from app.race.types import Condition, RaceSpec, Setting, SpecRecord
from tests.race.helpers import chunk, drafts, ended, over, sent, spec, started, usage

KNOWN = Setting(baseline_warm=True, speculative_warm=True, shared_device=False, scheduling_differs=False)


def written(lane: Any, n: int = 3, **rest: Any) -> list[Any]:
    return [sent(lane, **rest), chunk(lane, 10, 1), chunk(lane, 30, n - 1), ended(lane, 31)]


def stated(name: str, *events: Any, setting: Setting | None = KNOWN, asked: RaceSpec | None = None) -> Condition:
    """One condition of a race of both lanes in which ``events`` happened too."""
    both = [started(setting=setting), *written("baseline"), *written("speculative"), *events]
    last = {event.lane: event for event in events if hasattr(event, "lane") and hasattr(event, "model")}
    if last:  # what was sent says so itself
        both = [started(setting=setting), *(e for lane in last for e in [last[lane], *written(lane)[1:]])]
    board = fold(sorted([*both, over(40)], key=lambda event: event.t_ms))
    return {one.name: one for one in conditions(asked or spec(), board)}[name]  # type: ignore[index]


def test_a_race_of_two_warm_servers_of_their_own_has_nothing_against_it() -> None:
    both = [*written("baseline", requests_running=0, requests_waiting=0)]
    both += written("speculative", requests_running=0, requests_waiting=0)
    counted = [usage("baseline", 35, 3, cached_tokens=0), usage("speculative", 35, 3, cached_tokens=0)]
    board = fold(sorted([started(setting=KNOWN), *both, *counted, over(40)], key=lambda event: event.t_ms))
    found = conditions(spec(), board)
    assert [(one.name, one.holds, one.baseline, one.speculative) for one in found] == [
        ("cached_tokens", "no", 0, 0),
        ("cold_start", "no", False, False),
        ("shared_device", "no", None, None),
        ("other_requests", "no", 0, 0),
        ("lengths_differ", "no", 3, 3),
        ("scheduling_differs", "no", None, None),
        ("tokens_estimated", "no", False, False),
    ]
    assert board.comparison(greedy=False).caveats == ()


@pytest.mark.parametrize(
    ("baseline", "speculative", "holds"),
    [
        (0, 0, "no"),
        (0, 512, "yes"),
        (512, 512, "yes"),
        (None, 512, "yes"),
        (None, 0, "unknown"),
        (None, None, "unknown"),
    ],
)
def test_p21_cached_tokens_are_told_lane_by_lane(baseline: int | None, speculative: int | None, holds: str) -> None:
    counted = usage("baseline", 35, 3, cached_tokens=baseline), usage("speculative", 35, 3, cached_tokens=speculative)
    found = stated("cached_tokens", *counted)
    assert (found.holds, found.baseline, found.speculative) == (holds, baseline, speculative)


@pytest.mark.parametrize(
    ("base", "other", "holds", "cold"),
    [
        (True, True, "no", (False, False)),
        (False, True, "yes", (True, False)),
        (None, True, "unknown", (None, False)),
        (None, False, "yes", (None, True)),
        (None, None, "unknown", (None, None)),
    ],
)
def test_p22_a_cold_start_names_its_lane(base: Any, other: Any, holds: str, cold: tuple[Any, Any]) -> None:
    found = stated("cold_start", setting=structs.replace(KNOWN, baseline_warm=base, speculative_warm=other))
    assert (found.holds, (found.baseline, found.speculative)) == (holds, cold)


@pytest.mark.parametrize(
    ("schedule", "shared", "holds"),
    [
        ("together", True, "yes"),
        ("together", False, "no"),
        ("together", None, "unknown"),
        ("in_turn", True, "no"),
        ("in_turn", None, "no"),
    ],
)
def test_p43_a_shared_device_is_one_only_when_both_run_at_once(schedule: Any, shared: bool | None, holds: str) -> None:
    setting = structs.replace(KNOWN, shared_device=shared)
    assert stated("shared_device", setting=setting, asked=spec(schedule=schedule)).holds == holds


@pytest.mark.parametrize(
    ("running", "waiting", "holds", "seen"),
    [
        ((0, 0), (0, 0), "no", 0),
        ((2, 0), (1, 0), "yes", 3),
        ((None, 0), (None, 0), "unknown", None),
        ((0, 0), (2, 0), "yes", 2),
    ],
)
def test_requests_in_hand_before_the_race_are_told(running: Any, waiting: Any, holds: str, seen: int | None) -> None:
    lanes = zip(("baseline", "speculative"), running, waiting, strict=True)
    asked = [sent(lane, requests_running=r, requests_waiting=w) for lane, r, w in lanes]  # type: ignore[arg-type]
    found = stated("other_requests", *asked)
    assert (found.holds, found.baseline, found.speculative) == (holds, seen, 0)
    board = fold([started(), *asked])
    assert ("other_traffic" in board.comparison(greedy=False).caveats) is (holds == "yes")


def test_other_requests_hold_too_when_counters_or_races_of_ours_say_so() -> None:
    mixed = SpecRecord(source="server", drafts=2, drafted=8, accepted=3, exclusive=False)
    assert stated("other_requests", drafts("speculative", 35, mixed)).holds == "yes"
    crowd = structs.replace(started(setting=KNOWN), in_flight=2)
    board = fold([crowd, sent("baseline", requests_running=0), sent("speculative", requests_running=0)])
    assert {one.name: one.holds for one in conditions(spec(), board)}["other_requests"] == "yes"


def test_p43_lengths_are_compared_when_both_lanes_have_finished() -> None:
    found = stated("lengths_differ", usage("baseline", 35, 400), usage("speculative", 35, 200))
    assert (found.holds, found.baseline, found.speculative) == ("yes", 400, 200)
    running = fold([started(), *written("baseline"), sent("speculative"), chunk("speculative", 35, 2)])
    open_ = {one.name: one for one in conditions(spec(), running)}["lengths_differ"]
    assert (open_.holds, open_.baseline, open_.speculative) == ("unknown", None, None)


def test_estimated_tokens_name_their_lane() -> None:
    blind = [sent("baseline"), chunk("baseline", 10, None), ended("baseline", 31)]
    board = fold([started(), *blind, *written("speculative"), over(40)])
    found = {one.name: one for one in conditions(spec(), board)}["tokens_estimated"]
    assert (found.holds, found.baseline, found.speculative) == ("yes", True, False)


def test_a_salt_that_one_server_refused_is_told_only_where_one_was_asked_for() -> None:
    asked = structs.replace(spec(), cache_salt="s")
    both = sent("baseline", salted=True), sent("speculative", salted=False)
    found = stated("salt_refused", *both, asked=asked)
    assert (found.holds, found.baseline, found.speculative) == ("yes", False, True)
    taken = stated("salt_refused", sent("baseline", salted=True), sent("speculative", salted=True), asked=asked)
    assert taken.holds == "no"
    with pytest.raises(KeyError):
        stated("salt_refused", *both)


def test_a_race_kept_before_there_were_settings_claims_nothing_new() -> None:
    old = fold([started(conditions=("cold_start", "scheduling_differs")), *written("baseline"), over(40)])
    found = {one.name: one.holds for one in conditions(spec(), old)}
    assert (found["cold_start"], found["shared_device"], found["scheduling_differs"]) == ("unknown", "unknown", "yes")


@pytest.mark.parametrize(
    ("setting", "schedule", "caveats"),
    [
        (KNOWN, "together", ()),
        (structs.replace(KNOWN, baseline_warm=None), "together", ("cold_start",)),
        (structs.replace(KNOWN, speculative_warm=False), "in_turn", ("cold_start",)),
        (structs.replace(KNOWN, shared_device=True), "together", ("shared_device",)),
        (structs.replace(KNOWN, shared_device=True), "in_turn", ()),
        # two servers on one host may or may not share a device: better a remark too many
        (structs.replace(KNOWN, shared_device=None, same_host=True), "together", ("shared_device",)),
        (structs.replace(KNOWN, shared_device=False, same_host=True), "together", ()),
        (structs.replace(KNOWN, shared_device=None), "together", ()),
        (structs.replace(KNOWN, scheduling_differs=True), "in_turn", ("scheduling_differs",)),
        (structs.replace(KNOWN, scheduling_differs=None), "in_turn", ()),
    ],
)
def test_the_caveats_known_before_the_first_token(setting: Setting, schedule: Any, caveats: tuple[str, ...]) -> None:
    assert known_before(setting, schedule) == caveats


@pytest.mark.parametrize(
    ("method", "keeps", "differs"),
    [
        ("ngram", True, True),
        ("ngram", False, False),
        ("suffix", None, None),
        ("medusa", True, True),
        ("eagle3", True, False),
        ("draft_model", None, False),
        ("unknown", True, None),
        (None, True, None),
    ],
)
def test_scheduling_differs_where_the_method_loses_what_the_baseline_keeps(
    method: str | None, keeps: bool | None, differs: bool | None
) -> None:
    assert scheduling_differs(method, keeps) is differs


def test_every_race_that_wants_one_has_a_salt_of_its_own_that_vllm_takes() -> None:
    salts = {new_salt() for _ in range(50)}
    assert len(salts) == 50
    assert all(0 < len(salt) <= 128 and salt.isalnum() for salt in salts)
    one = structs.replace(spec(), cache_salt="a")
    again = with_own_salt(one)
    assert again.cache_salt not in (None, "a")
    assert structs.replace(again, cache_salt="a") == one
    assert with_own_salt(spec()).cache_salt is None
