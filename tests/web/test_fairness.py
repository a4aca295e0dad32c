"""Fair runs over HTTP and on the page: fresh cache, warm-up, what could spoil a result, why it is not better."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from app.race.types import EndpointState, LaneName, RaceSpec, Setting
from app.run import setting_of
from app.web import board as boards
from app.web import deck
from app.web.render import Renderer
from tests.fakes.script import DONE, FIN, ROLE, TOK, USE
from tests.fakes.vllm import FakeVLLM
from tests.web import scenes
from tests.web.site import TOKEN, Site, site

PRESENTER = {"authorization": f"Bearer {TOKEN}"}
COLD = "# TYPE vllm:generation_tokens_total counter\nvllm:generation_tokens_total 0\n"
BUSY = "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 3\nvllm:num_requests_waiting 1\n"


def fakes() -> dict[LaneName, FakeVLLM]:
    """Two servers that have generated nothing yet; the speculative one works for others."""
    script = (ROLE, TOK("Hel", 1), TOK("lo", 2), FIN("stop"), USE(3, cached=0), DONE)
    base, other = FakeVLLM(script), FakeVLLM(script, speculative=4)
    base.metrics.text, other.metrics.text = COLD, COLD + BUSY
    return {"baseline": base, "speculative": other}


@pytest.fixture
def cold(tmp_path: Any) -> Iterator[Site]:
    with site(tmp_path, fakes()) as found:
        yield found


def chats(at: Site, lane: LaneName = "baseline") -> list[dict[str, Any]]:
    """What a lane's server was asked to write."""
    return [post.json for post in at.fakes[lane].posts if post.path == "/v1/chat/completions"]


def stated(race: dict[str, Any]) -> dict[str, Any]:
    return {one["name"]: one for one in race["conditions"]}


def test_p22_the_first_race_is_flagged_cold_and_the_second_is_not(cold: Site) -> None:
    first, second = cold.finished(), cold.finished()
    assert "cold_start" in first["comparison"]["caveats"]
    assert stated(first)["cold_start"] == {
        "name": "cold_start",
        "holds": "yes",
        "baseline": True,
        "speculative": True,
    }
    assert "cold_start" not in second["comparison"]["caveats"]
    assert stated(second)["cold_start"]["holds"] == "no"


def test_p22_a_warm_up_takes_the_caveat_away_and_counts_nowhere(cold: Site) -> None:
    assert cold.get("/api/endpoints").json()["baseline"]["warm"] is False
    answer = cold.post("/api/warm-up", headers=PRESENTER)
    assert answer.status_code == 202
    assert answer.json()["position"] is None
    cold.until(lambda: all(state["warm"] for state in cold.get("/api/endpoints").json().values()))
    assert cold.get("/api/races").json() == {"races": []}
    race = cold.finished()
    assert "cold_start" not in race["comparison"]["caveats"]
    assert stated(race)["cold_start"]["holds"] == "no"
    for lane in cold.fakes:
        asked = [body["max_tokens"] for body in chats(cold, lane)]
        assert len(asked) == 2  # the warm-up and the race
        assert asked[0] <= 16


def test_the_page_offers_a_warm_up_while_a_server_is_cold_and_only_then(cold: Site) -> None:
    assert 'id="warm-up"' in cold.get("/").text
    htmx = {"hx-request": "true", "origin": cold.root}
    assert cold.post("/warm-up", headers=htmx).status_code == 204
    cold.until(lambda: 'id="warm-up"' not in cold.get("/status").text)
    cold.until(lambda: not cold.services.hub.warming)
    posts = len(chats(cold))
    assert cold.post("/warm-up", headers=htmx).status_code == 204  # nobody keeps warm servers busy from the page
    assert cold.post("/warm-up", follow_redirects=False).status_code == 303
    cold.finished()
    assert len(chats(cold)) == posts + 1


def test_a_warm_up_of_scripts_is_the_presenters_and_of_pages_this_sites(cold: Site) -> None:
    assert cold.post("/api/warm-up").status_code in (401, 403)
    assert cold.post("/warm-up", headers={"origin": "http://elsewhere.example"}).status_code == 403
    assert cold.post("/warm-up", headers={"sec-fetch-site": "cross-site"}).status_code == 403
    assert not any(fake.posts for fake in cold.fakes.values())


def test_a_fresh_cache_is_the_same_salt_in_both_requests_and_another_one_each_race(cold: Site) -> None:
    races = [cold.finished(fresh_cache=True), cold.finished(fresh_cache=True), cold.finished()]
    assert [race["fresh_cache"] for race in races] == [True, True, False]
    bodies = [chats(cold, lane) for lane in cold.fakes]
    for one, other in zip(*bodies, strict=True):
        assert json.dumps({**one, "model": ""}) == json.dumps({**other, "model": ""})
    salts = [body.get("cache_salt") for body in bodies[0]]
    assert len({*salts}) == 3
    assert salts[2] is None
    assert all(salts[:2])
    assert not any(str(salts[0]) in json.dumps(race) for race in races)
    assert stated(races[0])["salt_refused"]["holds"] == "no"
    assert "salt_refused" not in stated(races[2])
    page = cold.get(f"/races/{races[0]['id']}").text
    assert re.search(r'name="fresh_cache"[^>]* checked', page)
    assert not re.search(r'name="fresh_cache"[^>]* checked', cold.get("/").text)


def test_requests_of_others_are_told_before_the_race_and_beside_it(cold: Site) -> None:
    race = cold.finished()
    told = stated(race)["other_requests"]
    assert (told["holds"], told["baseline"], told["speculative"]) == ("yes", None, 4)
    assert "other_traffic" in race["comparison"]["caveats"]
    assert stated(cold.get(f"/api/races/{race['id']}").json()) == stated(race)


def test_each_condition_has_a_line_with_its_answer_and_the_value_of_each_lane(cold: Site) -> None:
    race = cold.finished()
    page = cold.get(f"/races/{race['id']}").text
    for condition in race["conditions"]:
        line = page.split(f'id="condition-{condition["name"]}"')[1].split('role="row"')[0]
        assert f"</svg>{condition['holds']}</span>" in line
    line = page.split('id="condition-cached_tokens"')[1].split('role="row"')[0]
    assert re.findall(r'class="value num \w+">([^<]*)<', line) == ["0", "0"]
    line = page.split('id="condition-cold_start"')[1].split('role="row"')[0]
    assert re.findall(r'class="value num \w+">([^<]*)<', line) == ["cold", "cold"]
    line = page.split('id="condition-other_requests"')[1].split('role="row"')[0]
    assert re.findall(r'class="value num \w+">([^<]*)<', line) == ["n/a", "4"]


# ------------------------------------------------------------------------------------------------ views
def shown(events: list[Any]) -> tuple[str, Any]:
    """The score and everything below it, of a race that is over."""
    log, board = scenes.fold(events)
    view = boards.arena(scenes.meta(), board, upto=log.head, now_ms=board.now_ms)
    return Renderer().arena(view, ticket="t"), view


def test_p24_a_race_that_is_slower_without_a_record_says_that_the_cause_is_unknown() -> None:
    html, view = shown(scenes.slower())
    assert view.score.why == "cause unknown: no acceptance record"
    assert view.insight.conditions.why == "Slower here: cause unknown: no acceptance record."
    assert 'id="why"' in html
    assert 'id="because"' in html


def test_p24_a_race_that_is_slower_says_why_in_numbers() -> None:
    # 11 tokens at 40 and at 500/11 ms: decode 0.88; one of 15 drafts accepted in 5 steps: 10 / 9 tokens a pass
    record = scenes.LaneDrafts(
        t_ms=499,
        lane="speculative",
        record=scenes.SpecRecord(source="request", drafts=5, drafted=15, accepted=1),
    )
    events = scenes.slower()
    html, view = shown([*events[:-3], record, *events[-3:]])
    assert view.score.why == "1.11 tokens a pass for 1.26x a step: drafts rarely accepted"  # (10/9) / 0.88
    assert view.insight.conditions.why.startswith(
        "Slower here: 1.11 tokens per pass cost 1.26x a plain step; drafts are rarely accepted (6.7%)."
    )
    assert "1.26x a plain step" in html


def test_a_race_that_gained_says_no_cause_and_a_running_one_none_yet() -> None:
    for events in (scenes.both_done(), scenes.STREAMING):
        html, view = shown(events)
        assert (view.score.why, view.insight.conditions.why) == (None, None)
        assert 'id="why"' not in html


@pytest.mark.parametrize(
    ("warm", "warming", "text", "offered"),
    [
        ((True, True), False, None, None),
        ((False, False), False, "Both servers are cold", True),
        ((True, False), False, "Speculative is cold", True),
        ((True, None), False, "A server may be cold", True),
        ((False, False), True, "Warming up", False),
    ],
)
def test_the_offer_to_warm_up(warm: tuple[Any, Any], warming: bool, text: str | None, offered: bool | None) -> None:
    states = [
        EndpointState(lane=lane, status="ready", warm=is_warm)
        for lane, is_warm in zip(("baseline", "speculative"), warm, strict=True)
    ]
    view = deck.status(states, workload="json", recordings=(), warming=warming).warm_up
    if text is None:
        assert view is None
        return
    assert view is not None
    assert view.text.startswith(text)
    assert view.offered is offered


def test_servers_that_are_not_ready_cannot_be_warmed_up() -> None:
    states = [EndpointState(lane="baseline", status="ready"), EndpointState(lane="speculative", status="starting")]
    assert deck.status(states, workload="json", recordings=()).warm_up is None


# ------------------------------------------------------------------------------------------------ our own pairs
@pytest.mark.parametrize(("name", "differs"), [("cpu", False), ("gpu-ngram", True), ("gpu-eagle3", False)])
def test_our_own_profiles_know_their_device_and_their_scheduling(name: str, differs: bool) -> None:
    from app.ops.profiles import load_profile

    setting = setting_of(load_profile(name))
    assert setting == Setting(shared_device=True, same_host=True, scheduling_differs=differs)


def test_a_baseline_started_without_async_scheduling_has_no_advantage() -> None:
    from msgspec import structs

    from app.ops.profiles import load_profile

    profile = load_profile("gpu-ngram")
    plain = structs.replace(profile.baseline, args=("--no-async-scheduling",))
    assert setting_of(structs.replace(profile, baseline=plain)).scheduling_differs is False


def test_a_race_of_before_keeps_its_shape() -> None:
    import msgspec

    old = {
        "workload": None,
        "prompt": "Hi",
        "system": None,
        "sampling": {"temperature": 0.0, "top_p": 1.0, "seed": 0, "max_tokens": 5, "ignore_eos": False},
        "schedule": "together",
    }
    assert msgspec.convert(old, RaceSpec).cache_salt is None
