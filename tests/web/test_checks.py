"""The check on the page and for scripts: one at a time, shown to all, without a word on where the servers are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.ops.findings import SIGNS
from tests.fakes.script import DONE, FIN, HANG, ROLE, TOK, USE
from tests.fakes.vllm import FakeVLLM
from tests.web.site import TOKEN, Site, site

PRESENTER = {"Authorization": f"Bearer {TOKEN}"}
BUTTON = '<button class="run" type="submit">'


def again(here: Site) -> None:
    """As if the last check had ended long ago."""
    here.services.preflight._ended_ns = None


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    fakes = {"baseline": FakeVLLM(api_key="secret-of-a-server"), "speculative": FakeVLLM(speculative=4)}
    for lane, fake in fakes.items():
        spec = "auto" if lane == "speculative" else None
        fake.script = [ROLE, TOK("one two ", 2), TOK("three four", 2), FIN("length"), USE(cached=0, spec=spec), DONE]
    with site(tmp_path_factory.mktemp("check"), fakes, baseline_api_key="secret-of-a-server") as found:
        yield found


def test_looking_starts_no_check(here: Site) -> None:
    assert here.get("/api/check").text == "null"
    page = here.get("/check")
    assert page.status_code == 200
    assert "Not checked yet" in page.text
    assert BUTTON in page.text
    assert here.fakes["speculative"].posts == []
    assert here.services.preflight.doing is None


def test_only_the_presenter_may_check_through_the_api(here: Site) -> None:
    assert here.post("/api/check").status_code == 403
    assert here.post("/api/check", headers={"Authorization": "Bearer wrong"}).status_code == 403
    assert here.services.preflight.last is None


def test_another_site_may_not_start_one(here: Site) -> None:
    assert here.post("/check", headers={"Origin": "https://elsewhere.example"}).status_code == 403
    assert here.services.preflight.doing is None


def test_the_api_waits_for_the_findings_and_keeps_them_for_all(here: Site) -> None:
    again(here)
    answer = here.post("/api/check", headers=PRESENTER)
    assert answer.status_code == 200
    found = answer.json()
    assert found["ready"] is False  # the key is not sent there
    assert {"key", "lane", "level", "title", "detail", "remedy", "code"} <= found["findings"][0].keys()
    assert here.get("/api/check").json() == found
    refused = here.post("/api/check", headers=PRESENTER)
    assert (refused.status_code, refused.json()["reason"]) == (429, "the last one has just ended")
    assert 1 <= int(refused.headers["retry-after"]) <= 10


def test_the_page_lists_the_findings_with_remedies_to_copy(here: Site) -> None:
    again(here)
    started = here.post("/check", follow_redirects=False)
    assert (started.status_code, started.headers["location"]) == (303, "/check")
    here.until(lambda: here.services.preflight.doing is None, within_s=15)
    page = here.get("/check").text
    assert "<strong>Not ready</strong>" in page
    assert f'<span class="sign">{SIGNS["problem"]}</span>' in page
    assert '<code tabindex="0">SPECRACE_BASELINE_API_KEY</code>' in page
    assert page.index(">Baseline</h2>") < page.index(">Speculative</h2>")
    assert "has just ended" not in page
    refused = here.post("/check")
    assert refused.status_code == 429
    assert "The last one has just ended. Check again in 10 s." in refused.text


def test_neither_address_nor_key_is_shown_to_anybody(here: Site) -> None:
    told = here.get("/check").text + here.get("/api/check").text
    for fake in here.fakes.values():
        assert str(fake.port) not in told
    assert "secret-of-a-server" not in told
    assert "127.0.0.1" not in told


def test_a_refused_check_says_why_and_keeps_the_last_one(here: Site) -> None:
    again(here)
    here.fakes["speculative"].then([ROLE, TOK("a"), HANG])
    race = here.start(prompt="Still running.")
    here.until(lambda: here.services.hub.racing)
    refused = here.post("/check")
    assert refused.status_code == 429
    assert "A race is on the servers. Check again when it is over." in refused.text
    assert "<strong>Not ready</strong>" in refused.text
    here.post(f"/api/races/{race}/stop")
    here.until(lambda: not here.services.hub.racing)
    here.until(lambda: here.services.preflight.refusal() is None)


def test_a_page_that_looks_on_follows_the_check_that_runs(here: Site) -> None:
    again(here)
    here.fakes["speculative"].then([ROLE, TOK("a"), HANG])
    assert here.post("/check", follow_redirects=False).status_code == 303
    here.until(lambda: "short answers" in (here.services.preflight.doing or ""))
    part = here.get("/check", headers={"HX-Request": "true"}).text
    assert "<html" not in part
    assert '<hx-partial hx-target="#check" hx-swap="innerMorph">' in part
    assert 'hx-get="/check" hx-trigger="every 1s"' in part
    assert "Now asking both for short answers" in part
    assert BUTTON not in part
    # a race asked for meanwhile has its place behind the check
    race = here.start(prompt="Behind the check.")
    assert here.services.hub.get(race).board.status == "queued"  # type: ignore[union-attr]


def test_the_start_page_leads_to_the_check(here: Site) -> None:
    assert '<a class="quiet" href="/check">Check</a>' in here.get("/").text


def test_servers_that_are_down_are_findings_on_the_page_too(tmp_path: Path) -> None:
    with site(tmp_path, {}) as down:
        assert down.post("/api/check", headers=PRESENTER).json()["ready"] is False
        page = down.get("/check").text
        assert page.count("Nothing listens at the server&#39;s address.") == 2
