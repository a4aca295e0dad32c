"""Repeats over HTTP: what the page and a script may ask for, where the page goes on, and how a series is stopped."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.fakes.script import DONE, FIN, ROLE, TOK, USE
from tests.fakes.vllm import HANG, FakeVLLM
from tests.web.site import Site, site

HTMX = {"hx-request": "true"}
HANGS = "hang around"


def fake(**rest: Any) -> FakeVLLM:
    found = FakeVLLM((ROLE, TOK("Hel", 1), TOK("lo\n", 2), FIN("stop"), USE(3, spec="auto"), DONE), **rest)
    found.on(HANGS, (ROLE, TOK("a"), HANG))
    return found


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    fakes: Any = {"baseline": fake(), "speculative": fake(speculative=4)}
    with site(tmp_path_factory.mktemp("site"), fakes, max_tokens=64) as found:
        yield found


@pytest.fixture(autouse=True)
def _nothing_left(here: Site) -> Iterator[None]:
    yield
    for run in list(here.services.hub._runs.values()):
        if not run.log.closed:
            here.call(lambda run=run: here.services.repeater.stop(run.meta.series))
            here.call(lambda run=run: here.services.hub.stop(run.meta.id))
    here.until(lambda: not here.services.hub.racing and not here.services.hub.waiting)


def begun(here: Site, **body: Any) -> dict[str, Any]:
    answer = here.post("/api/series", json={"prompt": "Count.", "repeats": 2} | body)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def state(here: Site, series: str) -> dict[str, Any]:
    return dict(here.get(f"/api/series/{series}").json())


def whole(here: Site, **body: Any) -> dict[str, Any]:
    series = begun(here, **body)["id"]
    here.until(lambda: state(here, series)["status"] != "running")
    return state(here, series)


def by_page(here: Site, **form: str) -> httpx2.Response:
    return here.post("/races", data={"prompt": "Count.", "repeats": "3"} | form, headers=HTMX)


def pushed(answer: httpx2.Response) -> str:
    found = re.fullmatch(r"/series/(\w+)/live", answer.headers["hx-push-url"])
    assert found is not None, answer.headers
    return found[1]


# ------------------------------------------------------------------------------------------------ a script
def test_a_series_from_start_to_end(here: Site) -> None:
    answer = here.post("/api/series", json={"prompt": "Count.", "repeats": 3, "seed": 5})
    assert answer.status_code == 201
    told = answer.json()
    series = told["id"]
    assert told == {"id": series, "url": f"/series/{series}", "races": told["races"]}
    assert len(told["races"]) == 1
    assert answer.headers["location"] == f"/api/series/{series}"
    here.until(lambda: state(here, series)["status"] == "finished")
    found = state(here, series)
    assert found["races"][0] == told["races"][0]
    assert (len(found["races"]), found["repeats"]["counted"], found["sampling"]["seed"]) == (3, 3, 5)
    race = here.get(f"/api/races/{found['races'][1]}").json()
    assert (race["series"], race["series_number"], race["series_races"], race["first"]) == (series, 2, 3, "speculative")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "repeats"),
        ({"repeats": 1}, "repeats"),
        ({"repeats": 51}, "repeats"),
        ({"repeats": "5"}, "repeats"),
        ({"repeats": None}, "repeats"),
        ({"repeats": 3, "times": 2}, "times"),
        ({"repeats": 3, "temperature": 9}, "temperature"),
    ],
)
def test_a_series_that_cannot_be_run_names_field_reason_and_remedy(
    here: Site, body: dict[str, Any], field: str
) -> None:
    answer = here.post("/api/series", json={"prompt": "Count."} | body)
    assert answer.status_code == 422
    told = answer.json()
    assert told["field"] == field
    assert told["reason"]
    assert told["remedy"]


@pytest.mark.parametrize("path", ["", ".csv", ".md", "/stop"])
def test_a_series_that_is_none_is_not_found(here: Site, path: str) -> None:
    answer = here.ask("POST" if path == "/stop" else "GET", f"/api/series/nothing{path}")
    assert (answer.status_code, answer.json()["field"]) == (404, "series")


def test_the_files_say_what_they_are(here: Site) -> None:
    series = whole(here)["id"]
    table, text = here.get(f"/api/series/{series}.csv"), here.get(f"/api/series/{series}.md")
    assert table.headers["content-type"].startswith("text/csv")
    assert f"specrace-series-{series}.csv" in table.headers["content-disposition"]
    assert len(table.text.splitlines()) == 1 + 2 * 2
    assert text.headers["content-type"] == "text/markdown; charset=utf-8"
    assert "| 2 of 2" in text.text


def test_stop_by_a_script_stops_race_and_series(here: Site) -> None:
    series = begun(here, prompt=HANGS, repeats=5)["id"]
    here.until(lambda: all(one.streaming for one in here.fakes.values()))
    answer = here.post(f"/api/series/{series}/stop")
    assert (answer.status_code, answer.json()) == (202, {"id": series, "status": "stopped"})
    here.until(lambda: not any(one.streaming for one in here.fakes.values()))
    assert [state(here, series)["status"], len(state(here, series)["races"])] == ["stopped", 1]


def test_stop_of_the_race_stops_its_series(here: Site) -> None:
    told = begun(here, prompt=HANGS, repeats=5)
    assert here.post(f"/api/races/{told['races'][0]}/stop").status_code == 202
    here.until(lambda: state(here, told["id"])["status"] == "stopped")


def test_stop_of_a_race_that_is_over_leaves_its_series_alone(here: Site) -> None:
    told = begun(here, repeats=2, prompt="Count.")
    here.until(lambda: state(here, told["id"])["status"] == "finished")
    again = begun(here, repeats=9)
    here.until(lambda: len(state(here, again["id"])["races"]) > 1)
    here.post(f"/api/races/{again['races'][0]}/stop")
    here.until(lambda: state(here, again["id"])["status"] != "running", within_s=20)
    assert state(here, again["id"])["status"] == "finished"


# ------------------------------------------------------------------------------------------------ the page
def test_the_page_goes_to_the_series_and_a_browser_without_javascript_too(here: Site) -> None:
    series = pushed(by_page(here, prompt=HANGS))
    assert state(here, series)["asked"] == 3
    answer = here.post("/races", data={"prompt": HANGS, "repeats": "3"})
    assert answer.status_code == 303
    assert re.fullmatch(r"/series/\w+/live", answer.headers["location"])


def test_once_is_an_ordinary_race(here: Site) -> None:
    answer = by_page(here, repeats="1")
    assert answer.headers["hx-push-url"].startswith("/races/")
    race = answer.headers["hx-push-url"].removeprefix("/races/")
    assert here.get(f"/api/races/{race}").json()["series"] is None


@pytest.mark.parametrize("repeats", ["0", "11", "-1", "2.5", "many", "1e1", "\u0663", "9999999999"])
def test_a_number_of_races_that_is_none_is_said_and_nothing_starts(here: Site, repeats: str) -> None:
    before = len(here.fakes["baseline"].posts)
    answer = by_page(here, repeats=repeats)
    assert answer.status_code == 422
    assert "repeats:" in answer.text
    assert "Use 1 to 10" in answer.text
    assert len(here.fakes["baseline"].posts) == before


def test_the_live_address_shows_the_race_that_runs(here: Site) -> None:
    series = pushed(by_page(here, prompt=HANGS))
    race = state(here, series)["races"][-1]
    html = here.get(f"/series/{series}/live").text
    assert f"/races/{race}/stream" in html
    assert "Race 1 of 3." in html
    assert f'formaction="/series/{series}/stop"' in html
    assert '<option value="3" selected>' in html


def test_after_a_race_the_page_gets_the_next_one(here: Site) -> None:
    series = begun(here, repeats=9, prompt="Count.")["id"]
    first = state(here, series)["races"][0]
    here.until(lambda: len(state(here, series)["races"]) > 1)
    answer = here.get(f"/series/{series}/next", params={"after": first}, headers=HTMX)
    assert answer.status_code == 200
    assert answer.headers["hx-replace-url"] == f"/series/{series}/live"
    assert re.search(r"Race [2-9] of 9\.", answer.text)
    here.until(lambda: state(here, series)["status"] == "finished", within_s=20)


def test_while_there_is_no_next_race_the_page_asks_again_and_a_series_that_is_over_ends_that(here: Site) -> None:
    series = pushed(by_page(here))
    first = state(here, series)["races"][0]
    here.until(lambda: here.get(f"/api/races/{first}").json()["status"] == "finished")
    # the pause in which people read the result
    answer = here.get(f"/series/{series}/next", params={"after": first}, headers=HTMX)
    assert (answer.status_code, answer.text) == (204, "")
    assert 'hx-get="/series/' in here.get(f"/series/{series}/live").text
    here.post(f"/series/{series}/stop", headers=HTMX)
    answer = here.get(f"/series/{series}/next", params={"after": first}, headers=HTMX)
    assert answer.status_code == 200
    assert f'hx-get="/series/{series}/next' not in answer.text
    assert "Race 1 of 3. Finished." in answer.text


def test_a_next_race_that_cannot_be_ends_the_asking_too(here: Site) -> None:
    answer = here.get("/series/nothing/next", params={"after": "nothing"}, headers=HTMX)
    assert answer.status_code == 200
    assert answer.headers["hx-reswap"] == "none"
    assert '<div id="next" hidden></div>' in answer.text


def test_stop_of_the_page_stops_both(here: Site) -> None:
    series = pushed(by_page(here, prompt=HANGS))
    assert here.post(f"/series/{series}/stop", headers=HTMX).status_code == 204
    here.until(lambda: state(here, series)["status"] == "stopped")
    here.until(lambda: not any(one.streaming for one in here.fakes.values()))


def test_the_series_has_a_page_of_its_own_and_past_races_lead_to_it(here: Site) -> None:
    found = whole(here)
    html = here.get(f"/series/{found['id']}").text
    assert "2 races, one after the other" in html
    for race in found["races"]:
        assert f'href="/races/{race}"' in html
    assert "every 2s" not in html
    fragment = here.get(f"/series/{found['id']}", headers=HTMX).text
    assert "<html" not in fragment
    assert "2 of 2 counted" in fragment
    link = f'<a class="line" href="/series/{found["id"]}">race 2 of 2</a>'
    here.until(lambda: link in here.get("/races").text)


def test_a_stored_race_shows_the_series_it_belongs_to(here: Site) -> None:
    found = whole(here)
    first = found["races"][0]
    here.until(lambda: first in here.get("/api/races").text)
    here.call(lambda: here.services.hub._runs.pop(first))
    here.until(lambda: here.services.hub.get(first) is None)
    html = here.get(f"/races/{first}").text
    assert "Race 1 of 2. Finished." in html
    assert 'id="insight-series"' in html
    assert "median of 2:" in html


def test_a_visitors_next_race_ends_their_series(here: Site) -> None:
    started = here._client.post("/races", data={"prompt": HANGS, "repeats": "3"}, headers=HTMX)
    series = pushed(started)
    here._client.post("/races", data={"prompt": "Count.", "repeats": "1"}, headers=HTMX)
    here._client.cookies.clear()
    here.until(lambda: state(here, series)["status"] == "stopped")


def test_a_series_of_the_page_left_by_all_is_stopped(here: Site) -> None:
    series = pushed(by_page(here, prompt=HANGS))
    run = here.services.hub.get(state(here, series)["races"][0])
    assert run is not None

    def long_ago() -> None:
        run.seen_ns -= 13 * 10**9

    here.call(long_ago)
    here.until(lambda: state(here, series)["status"] == "stopped", within_s=3)
