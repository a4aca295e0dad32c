"""A series as a script asks for it: alternating lanes, medians worked by hand, files, and what a restart leaves."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import httpx2 as httpx
import pytest

from tests.blackbox.app import App, command, running
from tests.fakes.vllm import DONE, HANG, ROLE, SLEEP, TOK, USE, FakeThread, FakeVLLM, Seen

PROMPT = "Count to a hundred, again and again."
HANGS = "Never end."


def answer(size: int, every_s: float, *, spec: bool = False) -> list[Any]:
    """101 tokens: the first alone, then ``size`` at a time: of 4 drafted ones a step, size - 1 are accepted."""
    steps: list[Any] = [ROLE, SLEEP(0.02), TOK("w", 1)]
    left = 100 // size
    for i in range(left):
        steps += [SLEEP(every_s), TOK("w" * size, size, finish="length" if i == left - 1 else None)]
    return [*steps, USE(spec="auto" if spec else None), DONE]


@dataclass
class Measured:
    series: dict[str, Any]
    races: list[dict[str, Any]]
    starts: list[str]
    salts: list[set[str]]
    csv: str
    markdown: str
    exported: dict[str, str]
    rebuilt: dict[str, Any]
    history: list[dict[str, Any]]
    cut_short: dict[str, Any]


def ask(app: App, **body: Any) -> str:
    answer = httpx.post(f"{app.root}/api/series", json={"max_tokens": 200} | body, timeout=10)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def read(app: App, series: str) -> dict[str, Any]:
    answer = app.get(f"/api/series/{series}")
    assert answer.status_code == 200, answer.text
    return dict(json.loads(answer.text))


def until_over(app: App, series: str, limit_s: float = 30) -> dict[str, Any]:
    limit = time.monotonic() + limit_s
    while (found := read(app, series))["status"] == "running":
        assert time.monotonic() < limit, found
        time.sleep(0.05)
    return found


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    """Three races with 4, 2 and 5 tokens a step; then another series, and the app goes down in the middle of it."""
    database = str(tmp_path_factory.mktemp("series") / "races.sqlite3")
    env = {"SPECRACE_DATABASE": database}
    with FakeThread() as thread:
        baseline = thread.start(FakeVLLM(script=answer(1, 0.003), model="gemma"))
        speculative = thread.start(FakeVLLM(model="gemma", speculative=4))
        sizes = [4, 2, 5]
        speculative.on(PROMPT, lambda _: answer(sizes.pop(0), 0.004, spec=True))
        for fake in (baseline, speculative):
            fake.on(HANGS, [ROLE, TOK("a"), HANG])
        with running(App(baseline.url, speculative.url, env=env)) as (app,):
            series = ask(app, prompt=PROMPT, repeats=3, schedule="in_turn", fresh_cache=True)
            found = until_over(app, series)
            races = [app.get(f"/api/races/{race}").json() for race in found["races"]]
            files = [app.get(f"/api/series/{series}.{kind}").text for kind in ("csv", "md")]
            hung = ask(app, prompt=HANGS, repeats=5)
            while not speculative.posts_with(HANGS):
                time.sleep(0.02)
        posts = {"baseline": baseline.posts_with(PROMPT), "speculative": speculative.posts_with(PROMPT)}
        exported = {
            kind: command("export", series, "--format", kind, "--database", database).stdout for kind in ("json", "md")
        }
        with running(App(baseline.url, speculative.url, env=env)) as (app,):
            yield Measured(
                series=found,
                races=races,
                starts=[lane for _, lane in sorted((seen.at, lane) for lane, seen_ in posts.items() for seen in seen_)],
                salts=[salts_of(seen) for seen in posts.values()],
                csv=files[0],
                markdown=files[1],
                exported=exported,
                rebuilt=read(app, series),
                history=app.get("/api/races").json()["races"],
                cut_short=read(app, hung),
            )


def salts_of(posts: list[Seen]) -> set[str]:
    return {seen.json["cache_salt"] for seen in posts}


def test_the_lanes_take_turns_and_alternate_who_goes_first(measured: Measured) -> None:
    b, s = "baseline", "speculative"
    assert measured.starts == [b, s, s, b, b, s]
    assert [race["first"] for race in measured.races] == [b, s, b]
    assert [race["series_number"] for race in measured.races] == [1, 2, 3]


def test_every_race_has_its_own_salt_on_both_servers(measured: Measured) -> None:
    assert measured.salts[0] == measured.salts[1]
    assert len(measured.salts[0]) == 3


def test_the_medians_are_those_worked_by_hand(measured: Measured) -> None:
    found = measured.series["repeats"]
    assert (measured.series["status"], measured.series["asked"], found["counted"]) == ("finished", 3, 3)
    # accepted of 4 drafted a step: 3, 1 and 4; 1 + accepted a step: 4, 2 and 5
    assert found["acceptance_rate"] == {"median": 0.75, "low": 0.25, "high": 1.0, "values": [0.75, 0.25, 1.0]}
    assert found["mean_length"] == {"median": 4.0, "low": 2.0, "high": 5.0, "values": [4.0, 2.0, 5.0]}
    assert found["lanes"]["speculative"]["completion_tokens"]["values"] == [101, 101, 101]
    assert found["identical"] == 3


def test_every_other_figure_is_the_median_of_the_races_own(measured: Measured) -> None:
    found = measured.series["repeats"]
    for name in ("speedup", "decode_speedup"):
        values = [race["comparison"][name] for race in measured.races]
        assert found[name]["values"] == pytest.approx(values, rel=1e-12)
        assert found[name]["median"] == pytest.approx(median(values), rel=1e-12)
        assert (found[name]["low"], found[name]["high"]) == pytest.approx((min(values), max(values)), rel=1e-12)
    for lane in ("baseline", "speculative"):
        for name in ("ttft_ms", "tpot_ms", "e2e_ms", "tokens_per_second"):
            assert found["lanes"][lane][name]["values"] == [race["lanes"][lane][name] for race in measured.races]


def test_the_files_of_the_page_and_of_the_command_line_are_the_same(measured: Measured) -> None:
    rows = list(csv.DictReader(io.StringIO(measured.csv)))
    assert [row["race"] for row in rows if row["lane"] == "speculative"] == measured.series["races"]
    assert "75.0% [25.0%–100.0%]" in measured.markdown
    assert "3 repeats, lanes in turn" in measured.markdown
    assert measured.exported["md"] == measured.markdown
    assert json.loads(measured.exported["json"]) == measured.series


def test_a_series_outlives_the_app(measured: Measured) -> None:
    assert measured.rebuilt == measured.series
    listed = {race["id"]: race["series"] for race in measured.history}
    assert [listed[race] for race in measured.series["races"]] == [measured.series["id"]] * 3


def test_one_that_ran_when_the_app_went_down_is_an_interrupted_one(measured: Measured) -> None:
    assert (measured.cut_short["status"], measured.cut_short["asked"]) == ("interrupted", 5)
    assert len(measured.cut_short["races"]) == 1
    assert measured.cut_short["repeats"]["counted"] == 0
