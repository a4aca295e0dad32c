"""Fair or said to be unfair: P21, P22, P23, P43.1-3. One app; times are scaled, ratios are not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.blackbox.app import App, Run, check_run, running
from tests.fakes.vllm import DONE, FIN, ROLE, SLEEP, TOK, USE, FakeThread, FakeVLLM, Reply, Seen

Pair = tuple[App, FakeVLLM, FakeVLLM]


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with FakeThread() as thread:
        baseline, speculative = thread.start(FakeVLLM(model="b")), thread.start(FakeVLLM(model="s", speculative=4))
        for fake in (baseline, speculative):
            fake.metrics.text = "# TYPE vllm:generation_tokens_total counter\nvllm:generation_tokens_total 0\n"
        with running(App(baseline.url, speculative.url)) as (app,):
            yield app, baseline, speculative


def answer(tokens: int = 20, *, ttft_s: float = 0.03, every_s: float = 0.01, cached: int | None = None) -> list[Any]:
    steps = [step for _ in range(tokens) for step in (TOK("word "), SLEEP(every_s))]
    return [ROLE, SLEEP(ttft_s), *steps[:-1], FIN("stop"), USE(tokens, cached=cached), DONE]


def race(pair: Pair, baseline: Any, speculative: Any, **body: Any) -> Run:
    app, *fakes = pair
    for fake, script in zip(fakes, (baseline, speculative), strict=True):
        fake.then(script)
    run = app.race("on your marks", **body)
    check_run(run)
    return run


def stated(run: Run) -> dict[str, Any]:
    return {one["name"]: one for one in run.race["conditions"]}


def lanes(condition: dict[str, Any]) -> tuple[str, Any, Any]:
    return condition["holds"], condition["baseline"], condition["speculative"]


# ------------------------------------------------------------------------------------------------ P22
def test_p22_a_cold_first_run_is_flagged_and_the_next_one_is_not(pair: Pair) -> None:
    """First of all in this module: neither server has generated anything yet."""
    run = race(pair, answer(), answer(ttft_s=1.4, every_s=0.004))
    assert run.speculative["ttft_ms"] > 1300
    assert "cold_start" in run.comparison["caveats"]
    assert lanes(stated(run)["cold_start"]) == ("yes", True, True)
    assert run.comparison["decode_speedup"] > 1.05
    assert run.comparison["cause"] is None, "a first kernel is no fault of speculation"
    page = pair[0].page(run)
    assert "cold start" in page
    assert "a cold start may have delayed the first token" in page
    again = race(pair, answer(), answer())
    assert "cold_start" not in again.comparison["caveats"]
    assert lanes(stated(again)["cold_start"]) == ("no", False, False)


# ------------------------------------------------------------------------------------------------ P21
@pytest.mark.parametrize(
    ("baseline", "speculative"), [((0, 512), (0, 0)), ((0, 0), (0, 512)), ((0, 512), (None, None))]
)
def test_p21_a_second_run_from_one_prefix_cache_is_said_to_be_one(
    pair: Pair, baseline: tuple[int, int], speculative: tuple[int | None, int | None]
) -> None:
    """0.45 s and then 0.03 s where the cache is, 0.45 s both times where it is not (scaled from 900 and 60 ms)."""
    runs: list[Run] = []
    for i in (0, 1):
        times = [0.03 if cached[i] else 0.45 for cached in (baseline, speculative)]
        scripts = [answer(ttft_s=t, cached=c[i]) for t, c in zip(times, (baseline, speculative), strict=True)]
        runs.append(race(pair, *scripts))
    first, second = runs
    assert not {"cached_prompt", "prefix_cache_differs"} & {*first.comparison["caveats"]}
    assert {"cached_prompt", "prefix_cache_differs"} <= {*second.comparison["caveats"]}
    assert lanes(stated(second)["cached_tokens"]) == ("yes", baseline[1], speculative[1])
    assert second.comparison["cause"] is None, "the cache of one lane is no property of speculation"
    for html in (pair[0].page(second), pair[0].stream(second)):
        assert "prefix cache differs" in html
        line = html.split('id="condition-cached_tokens"')[1].split('role="row"')[0]
        shown = ["n/a" if seen is None else str(seen) for seen in (baseline[1], speculative[1])]
        assert re.findall(r'class="value num \w+">([^<]*)<', line) == shown


def test_p21_a_fresh_cache_is_asked_of_both_and_read_anew(pair: Pair) -> None:
    """Servers with vLLM's rule: a prompt is only found again under the same salt."""
    kept: dict[str, set[tuple[Any, str]]] = {"b": set(), "s": set()}

    def caching(seen: Seen) -> Any:
        key = (seen.json.get("cache_salt"), seen.prompt)
        hit = key in kept[seen.json["model"]]
        kept[seen.json["model"]].add(key)
        return answer(ttft_s=0.02 if hit else 0.2, cached=512 if hit else 0)

    fresh = [race(pair, caching, caching, fresh_cache=True) for _ in (0, 1)]
    plain = [race(pair, caching, caching) for _ in (0, 1)]
    assert [lanes(stated(run)["cached_tokens"]) for run in (*fresh, *plain)] == [
        ("no", 0, 0),
        ("no", 0, 0),
        ("no", 0, 0),
        ("yes", 512, 512),
    ]
    assert [run.race["fresh_cache"] for run in (*fresh, *plain)] == [True, True, False, False]
    assert lanes(stated(fresh[1])["salt_refused"]) == ("no", False, False)


# ------------------------------------------------------------------------------------------------ P23
def test_p23_a_server_that_sleeps_is_said_in_its_lane_and_the_other_runs_on(pair: Pair) -> None:
    asleep = Reply.error(503, "The model is asleep", "ServiceUnavailableError")
    run = race(pair, answer(), asleep)
    assert (run.status, run.speculative["error"]["kind"]) == ("partial", "unavailable")
    assert (run.baseline["status"], run.baseline["completion_tokens"]) == ("finished", 20)
    assert (run.comparison["speedup"], run.comparison["cause"]) == (None, None)
    assert lanes(stated(run)["lengths_differ"]) == ("unknown", None, None)


# ------------------------------------------------------------------------------------------------ P43
def test_p43_two_servers_on_one_host_are_said_to_be_together_and_in_turn_is_offered(pair: Pair) -> None:
    together, in_turn = race(pair, answer(), answer()), race(pair, answer(), answer(), schedule="in_turn")
    assert "shared_device" in together.comparison["caveats"]
    assert stated(together)["shared_device"]["holds"] == "unknown", "one host may have two devices"
    assert "shared_device" not in in_turn.comparison["caveats"]
    assert stated(in_turn)["shared_device"]["holds"] == "no"
    assert (together.race["schedule"], in_turn.race["schedule"]) == ("together", "in_turn")
    assert 'value="in_turn"' in pair[0].get("/").text
    starts = [in_turn.of("lane.started", lane)[0]["t_ms"] for lane in ("baseline", "speculative")]
    assert starts[1] > starts[0] + in_turn.baseline["e2e_ms"], "the lanes overlap"


def test_p43_costly_steps_while_both_run_at_once_are_laid_to_the_shared_device(pair: Pair) -> None:
    """Twice as slow when both run, as on one GPU: 2 tokens a pass, each at more than twice a plain step."""
    record = {
        "num_spec_steps": 19,
        "num_accepted_draft_tokens": 19,
        "num_draft_tokens": 76,
        "num_spec_tokens": 4,
    }
    steps = [step for _ in range(20) for step in (TOK("ab ", 2), SLEEP(0.025))]
    slowed = [ROLE, SLEEP(0.03), *steps[:-1], FIN("stop"), USE(40, spec=record), DONE]
    run = race(pair, answer(40, every_s=0.01), slowed)
    assert run.comparison["tau"] == pytest.approx(39 / 20)  # (40 - 1) / (40 - 1 - 19)
    assert run.comparison["step_cost"] == pytest.approx(run.comparison["tau"] / run.comparison["decode_speedup"])
    assert run.comparison["step_cost"] > 2
    assert run.comparison["cause"] == "shared_device"
    assert "Race them in turn to see each alone" in pair[0].page(run)
    alone = race(pair, answer(40, every_s=0.01), slowed, schedule="in_turn")
    assert alone.comparison["cause"] == "costly_steps"


def test_p43_half_the_tokens_in_half_the_time_is_no_gain(pair: Pair) -> None:
    """400 tokens in 8 s against 200 in 4 s, scaled to 80 and 40 at 20 ms each."""
    run = race(pair, answer(80, ttft_s=0.02, every_s=0.02), answer(40, ttft_s=0.02, every_s=0.02))
    assert run.comparison["decode_speedup"] == pytest.approx(1.0, rel=0.05)
    assert run.comparison["speedup"] == pytest.approx(1.0, rel=0.08)
    assert "lengths_differ" in run.comparison["caveats"]
    assert lanes(stated(run)["lengths_differ"]) == ("yes", 80, 40)


@pytest.mark.parametrize("body", [{}, {"fresh_cache": True}, {"ignore_eos": True, "temperature": 0.7, "top_p": 0.9}])
def test_p43_both_bodies_are_byte_equal_apart_from_the_model_and_leave_nothing_to_defaults(
    pair: Pair, body: dict[str, Any]
) -> None:
    _, *fakes = pair
    race(pair, answer(), answer(), seed=42, max_tokens=64, **body)
    posts = [[post for post in fake.posts if post.path.endswith("chat/completions")][-1] for fake in fakes]
    one, other = (post.body.decode() for post in posts)
    assert one.replace('"model":"b"', '"model":""') == other.replace('"model":"s"', '"model":""')
    sent = json.loads(one)
    assert {"temperature", "top_p", "seed", "max_tokens", "stream"} <= {*sent}
    assert (sent["seed"], sent["max_tokens"]) == (42, 64)
    assert bool(sent.get("cache_salt")) is bool(body.get("fresh_cache"))
