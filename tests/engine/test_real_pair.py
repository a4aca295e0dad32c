"""The app in front of the real pair: its numbers against what the servers themselves say."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from app.race import counters, growth
from tests.blackbox.app import App, Run, running
from tests.engine.conftest import RealPair

JSON = """Continue this list of JSON records, one per line, with the same keys and new values:
{"id": 1, "name": "Alice", "city": "Paris", "active": true, "role": "member"}
{"id": 2, "name": "Bob", "city": "London", "active": true, "role": "member"}
{"id": 3, "name": "Carol", "city": "Berlin", "active": true, "role": "member"}
"""
POEM = "Write a strange and beautiful poem about a city at the bottom of the sea.\n\n"
FIELDS = ("drafts", "drafted", "accepted")


@pytest.fixture(scope="module")
def app(real_pair: RealPair) -> Iterator[App]:
    with running(App(real_pair.baseline, real_pair.speculative)) as (one,):
        yield one


@pytest.fixture(scope="module")
def structured(app: App) -> Run:
    app.race(JSON, max_tokens=16)  # nothing is read off the first answer of a server
    return app.race(JSON, max_tokens=120, ignore_eos=True, schedule="in_turn")


def metrics(root: str) -> counters.Counters:
    return counters.parse(httpx2.get(f"{root}/metrics", timeout=20, trust_env=False).text)


def raw_record(root: str, **asked: Any) -> dict[str, Any]:
    """What the server itself says of the same request, asked without the app."""
    body = {
        "model": "gemma",
        "messages": [{"role": "user", "content": JSON}],
        "temperature": 0,
        "top_p": 1,
        "seed": 0,
        "max_tokens": 120,
        "ignore_eos": True,
    }
    answer = httpx2.post(f"{root}/v1/chat/completions", json=body | asked, timeout=120, trust_env=False)
    return dict(answer.raise_for_status().json()["metrics"]["speculative_decoding"])


def test_record_counters_and_page_agree_on_an_idle_pair(app: App, structured: Run, real_pair: RealPair) -> None:
    del structured  # both servers are warm
    before = metrics(real_pair.speculative)
    run = app.race(JSON, max_tokens=120, ignore_eos=True, schedule="in_turn")
    shown = run.speculative["acceptance"]
    assert shown["source"] == "request"
    grown = None
    for _ in range(40):  # the counters may lag by two seconds
        grown = growth.growth(before, metrics(real_pair.speculative))
        if grown is not None and grown.generated == 120:
            break
        time.sleep(0.1)
    assert grown is not None
    assert [shown[name] for name in FIELDS] == [grown.drafts, grown.drafted, grown.accepted]
    assert shown["per_position"] == pytest.approx([n / grown.drafts for n in grown.accepted_at_least])
    own = raw_record(real_pair.speculative)
    assert [own["num_spec_steps"], own["num_draft_tokens"], own["num_accepted_draft_tokens"]] == [
        shown[name] for name in FIELDS
    ]
    assert shown["rate"] == pytest.approx(own["draft_acceptance_rate"])
    assert shown["mean_length"] == pytest.approx(own["mean_acceptance_length"])
    assert list(shown["histogram"]) == own["acceptance_histogram"]
    page = app.page(run)
    assert f"{100 * shown['rate']:.1f}" in page
    assert "per-request record" in page


def test_structured_text_is_faster_with_speculation(structured: Run) -> None:
    assert structured.status == "finished", structured.race
    assert structured.comparison["verdict"] == "faster"
    assert structured.comparison["speedup"] > 1.1
    assert structured.baseline["acceptance"] is None
    assert structured.baseline["speculating"] is False
    for lane in (structured.baseline, structured.speculative):
        assert lane["completion_tokens"] == 120
        assert not lane["tokens_estimated"]
        assert lane["finish_reason"] == "length"
        assert lane["tpot_ms"] == pytest.approx((lane["e2e_ms"] - lane["ttft_ms"]) / 119)
    # n-gram answers of several tokens come in fewer chunks: whoever counts chunks sees the faster server lose
    assert structured.speculative["chunks"] < structured.baseline["chunks"] == 120
    assert structured.comparison["text"] in ("identical", "diverged")


def test_creative_text_shows_what_happened(app: App) -> None:
    run = app.race(POEM, temperature=1.0, max_tokens=80, ignore_eos=True)
    assert run.status == "finished", run.race
    rates = [lane["completion_tokens"] / lane["e2e_ms"] for lane in (run.baseline, run.speculative)]
    assert run.comparison["speedup"] == pytest.approx(rates[1] / rates[0])
    assert run.comparison["text"] == "not_comparable"
    assert f"{run.comparison['speedup']:.2f}" in app.page(run)
    acceptance = run.speculative["acceptance"]
    assert acceptance["rate"] is None or 0 <= acceptance["rate"] <= 1


def test_endpoints_tell_what_runs_there(app: App) -> None:
    base, spec = app.endpoint("baseline"), app.endpoint("speculative")
    assert (base["speculating"], spec["speculating"]) == (False, True)
    assert spec["identity"]["num_speculative_tokens"] == 4
    assert base["max_model_len"] == spec["max_model_len"] == 2048
    assert base["version"].startswith("0.32")


def test_a_server_killed_in_mid_race_loses_its_lane_only_and_comes_back(app: App, real_pair: RealPair) -> None:
    killed: list[int] = []

    def kill(run: Run) -> None:
        if not killed and len(run.of("lane.chunk", "speculative")) >= 5:
            killed.extend(engine_pids(real_pair.speculative))
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    run = anyio.run(app.race_async, POEM, {"max_tokens": 150, "temperature": 1.0, "ignore_eos": True}, kill)
    assert killed
    assert run.status == "partial", run.race
    assert run.baseline["status"] == "finished"
    assert run.baseline["completion_tokens"] == 150
    assert run.speculative["error"]["kind"] in ("cut_off", "stream_error")
    assert run.speculative["text"]
    assert run.comparison["speedup"] is None
    end = time.monotonic() + 240
    while app.endpoint("speculative")["status"] == "ready" and time.monotonic() < end - 200:
        time.sleep(0.2)
    while real_pair.pair.progress("speculative").phase != "ready" or app.endpoint("speculative")["status"] != "ready":
        assert time.monotonic() < end, real_pair.pair.progress("speculative")
        time.sleep(0.5)
    assert app.race(JSON, max_tokens=16, ignore_eos=True).status == "finished"


def engine_pids(root: str) -> list[int]:
    """Processes of the server that listens at ``root``: those with its port among their arguments."""
    port = root.rsplit(":", 1)[1].encode()
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"serve" in arguments and port in arguments and not any(b"keeper" in a for a in arguments):
            found.append(int(folder.name))
    return found
