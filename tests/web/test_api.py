"""The contract over HTTP: a real uvicorn, two fake servers, and a client that reads every byte."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2
import pytest
import structlog

from app.web.security import HEADERS
from tests.fakes.script import DONE, FIN, ROLE, SLEEP, TOK, USE
from tests.fakes.vllm import HANG, FakeVLLM, paced
from tests.web.site import TOKEN, Message, Site, messages, site

HANGS = "hang around"
SLOW = "slowly now"
HTMX = {"hx-request": "true"}
PRESENTER = {"authorization": f"Bearer {TOKEN}"}


def fake(**rest: Any) -> FakeVLLM:
    found = FakeVLLM((ROLE, TOK("Hel", 1), TOK("lo\n", 2), FIN("stop"), USE(3, spec="auto"), DONE), **rest)
    found.on(HANGS, (ROLE, TOK("a"), HANG))
    found.on(SLOW, paced(10, every_s=0.03, spec=True))
    return found


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    fakes: Any = {"baseline": fake(), "speculative": fake(speculative=4)}
    with site(tmp_path_factory.mktemp("site"), fakes, max_prompt_chars=500, max_tokens=64, queue_limit=4) as found:
        yield found


@pytest.fixture(autouse=True)
def _nothing_left(here: Site) -> Iterator[None]:
    """No test finds a race of another on the pair."""
    yield
    for run in list(here.services.hub._runs.values()):
        if not run.log.closed:
            here.call(lambda run=run: here.services.hub.stop(run.meta.id))
    here.until(lambda: not here.services.hub.racing and not here.services.hub.waiting)


def problem(answer: httpx2.Response, status: int, field: str | None = None) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = answer.json()
    assert set(found) >= {"type", "status", "field", "reason", "remedy"}
    assert found["status"] == status
    assert found["reason"]
    assert found["remedy"]
    assert field is None or found["field"] == field
    assert "Traceback" not in answer.text
    return found


# ------------------------------------------------------------------------------------------------ a race
def test_a_race_from_start_to_end(here: Site) -> None:
    answer = here.post("/api/races", json={"prompt": "Count.", "seed": 5, "max_tokens": 9})
    assert answer.status_code == 201
    started = answer.json()
    race = started["id"]
    assert started == {"id": race, "url": f"/races/{race}", "events_url": f"/api/races/{race}/events"}
    assert answer.headers["location"] == f"/api/races/{race}"
    stream = here.get(started["events_url"])
    assert stream.status_code == 200
    assert stream.headers["content-type"].startswith("text/event-stream")
    assert "no-store" in stream.headers["cache-control"]
    *events, end = messages(stream.text)
    assert [int(one["id"]) for one in events] == list(range(1, len(events) + 1))
    assert end == {"event": "done", "data": '{"status":"finished"}'}
    assert events[-1].json["type"] == "race.finished"
    assert all("t_ms" in one.json for one in events)
    found = here.get(f"/api/races/{race}").json()
    assert (found["status"], found["sampling"]["seed"], found["sampling"]["max_tokens"]) == ("finished", 5, 9)
    for lane in found["lanes"].values():
        assert (lane["text"], lane["completion_tokens"], lane["status"]) == ("Hello\n", 3, "finished")


@pytest.mark.parametrize("how", ["header", "query", "both"])
def test_events_go_on_after_a_cursor(here: Site, how: str) -> None:
    race = here.finished()["id"]
    whole = here.events(race)
    after = {
        "header": {"headers": {"last-event-id": "3"}},
        "query": {"params": {"after": "3"}},
        "both": {"headers": {"last-event-id": "3"}, "params": {"after": "1"}},  # the browser's word is the newer one
    }[how]
    assert here.events(race, **after) == whole[3:]  # type: ignore[arg-type]


@pytest.mark.parametrize("after", ["-1", "x", "1.5", "", "9" * 30, "\u0663", "1 2"])
def test_a_cursor_that_is_none_is_the_beginning(here: Site, after: str) -> None:
    race = here.finished()["id"]
    assert here.events(race, params={"after": after})[0]["id"] == "1"


def test_a_cursor_beyond_the_end_is_only_the_end(here: Site) -> None:
    race = here.finished()["id"]
    assert here.events(race, params={"after": "500"}) == [{"event": "done", "data": '{"status":"finished"}'}]


def test_both_servers_get_the_same_request_once(here: Site) -> None:
    prompt = "Only once, please."
    here.finished(prompt=prompt)
    bodies = []
    for one in here.fakes.values():
        (seen,) = one.posts_with(prompt)
        bodies.append(seen.json)
    assert bodies[0] == bodies[1]


def test_stop_ends_a_race_and_keeps_its_tokens(here: Site) -> None:
    race = here.start(prompt=HANGS)
    here.until(lambda: here.get(f"/api/races/{race}").json()["lanes"]["baseline"]["text"] == "a")
    answer = here.post(f"/api/races/{race}/stop")
    assert answer.status_code == 202
    here.until(lambda: here.get(f"/api/races/{race}").json()["status"] == "stopped")
    found = here.get(f"/api/races/{race}").json()
    assert {lane["status"] for lane in found["lanes"].values()} == {"stopped"}
    assert {lane["text"] for lane in found["lanes"].values()} == {"a"}
    assert here.post(f"/api/races/{race}/stop").status_code == 202  # again: nothing changes
    here.until(lambda: not any(one.streaming for one in here.fakes.values()))


def test_a_race_of_the_api_needs_no_viewer(here: Site) -> None:
    race = here.start(prompt=SLOW)
    here.until(lambda: here.get(f"/api/races/{race}").json()["status"] == "finished")


def test_a_race_in_the_queue_says_so(here: Site) -> None:
    here.start(prompt=HANGS)
    second = here.start()
    here.until(lambda: here.get(f"/api/races/{second}").json()["status"] == "queued")
    seen: list[Message] = []

    def follow() -> None:
        seen.extend(here.events(second))

    reader = threading.Thread(target=follow)
    reader.start()
    here.until(lambda: here.services.hub.viewers == 1)
    here.post(f"/api/races/{second}/stop")
    reader.join(5)
    assert seen[0].json == {"type": "race.queued", "t_ms": seen[0].json["t_ms"], "position": 1}
    assert seen[-1] == {"event": "done", "data": '{"status":"stopped"}'}


# ------------------------------------------------------------------------------------------------ refusals
@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"prompt": ""}, "prompt"),
        ({}, "prompt"),
        ({"workload": "none"}, "workload"),
        ({"prompt": "x", "temperature": 3}, "temperature"),
        ({"prompt": "x", "max_tokens": 65}, "max_tokens"),
        ({"prompt": "x", "seed": "1"}, "seed"),
        ({"prompt": "x", "base_url": "http://evil.example"}, "base_url"),
        ({"prompt": "x", "schedule": "sideways"}, "schedule"),
    ],
)
def test_422_names_the_field_the_reason_and_the_remedy(here: Site, body: dict[str, Any], field: str) -> None:
    problem(here.post("/api/races", json=body), 422, field)


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"prompt=x", b"[" * 50_000, b"null"])
def test_422_for_a_body_that_is_none(here: Site, body: bytes) -> None:
    problem(here.post("/api/races", content=body), 422, "body")


def test_413_for_a_prompt_and_for_a_body_that_is_too_long(here: Site) -> None:
    problem(here.post("/api/races", json={"prompt": "x" * 501}), 413, "prompt")
    problem(here.post("/api/races", json={"prompt": "x" * 100_000}), 413)

    def chunks() -> Iterator[bytes]:
        for _ in range(100):
            yield b"x" * 10_000

    problem(here.post("/api/races", content=chunks()), 413)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/races/none"),
        ("GET", "/api/races/none/events"),
        ("POST", "/api/races/none/stop"),
        ("GET", "/api/nothing"),
        ("GET", "/api/"),
        ("POST", "/api/none"),
        ("GET", "/api/races/%00"),
        ("GET", "/api/races/a%2Fb"),
        ("GET", "/api/races/" + "x" * 3000),
    ],
)
def test_404_is_a_problem_too(here: Site, method: str, path: str) -> None:
    problem(here.ask(method, path), 404)


@pytest.mark.parametrize(
    "path", ["/nothing", "/races/none", "/static/none.css", "/static/../app/main.py", "/static/%2e%2e/app/main.py"]
)
def test_404_is_a_readable_page_elsewhere(here: Site, path: str) -> None:
    answer = here.get(path)
    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize(
    ("method", "path"), [("PUT", "/races"), ("DELETE", "/"), ("POST", "/healthz"), ("POST", "/status")]
)
def test_405_is_no_5xx(here: Site, method: str, path: str) -> None:
    answer = here.ask(method, path)
    assert answer.status_code == 405
    assert answer.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize(
    ("method", "path"), [("PUT", "/api/races"), ("PATCH", "/api/races/x"), ("POST", "/api/endpoints")]
)
def test_a_method_that_a_path_of_the_api_does_not_take_is_the_callers_fault(here: Site, method: str, path: str) -> None:
    answer = here.ask(method, path)
    assert answer.status_code in (404, 405)
    problem(answer, answer.status_code)


def test_429_when_the_queue_is_full_says_when_to_come_back(here: Site) -> None:
    for _ in range(5):  # one on the pair, four in the queue
        here.start(prompt=HANGS)
    answer = here.post("/api/races", json={"prompt": "x"})
    problem(answer, 429)
    assert int(answer.headers["retry-after"]) > 0


def test_503_when_no_server_answers(tmp_path: Path) -> None:
    with site(tmp_path, {}) as down:
        found = problem(down.post("/api/races", json={"prompt": "x"}), 503)
        assert "127.0.0.1" not in found["reason"]
        assert down.post("/races", data={"prompt": "x"}).status_code == 503
        ready = down.get("/readyz")
        assert ready.status_code == 503
        assert set(ready.json()["reasons"]) == {"baseline", "speculative"}
        assert down.get("/healthz").status_code == 200
        assert {state["status"] for state in down.get("/api/endpoints").json().values()} == {"down"}
        assert down.get("/").status_code == 200  # the page is there


def test_500_tells_nothing_of_the_inside(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("secret of the house")

    monkeypatch.setattr(type(here.services.store), "summaries", broken)
    with structlog.testing.capture_logs() as logged:
        for path in ("/api/races", "/races"):
            answer = here.get(path)
            assert answer.status_code == 500
            assert "secret" not in answer.text
            assert "Traceback" not in answer.text
            assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
        problem(here.get("/api/races"), 500)
    assert [entry["log_level"] for entry in logged] == ["error"] * 3


def test_an_unexpected_error_does_not_end_the_connection(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(here.services.store), "summaries", None)
    with structlog.testing.capture_logs(), httpx2.Client(base_url=here.root, trust_env=False, verify=False) as client:
        for _ in range(5):
            assert client.get("/api/races").status_code == 500
            assert client.get("/healthz").status_code == 200


# ------------------------------------------------------------------------------------------------ the presenter
@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer wrong",
        f"Basic {TOKEN}",
        TOKEN,
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        "Bearer \u00e9",
    ],
)
def test_delete_needs_the_presenters_token(here: Site, authorization: str | None) -> None:
    race = here.finished()["id"]
    headers = {} if authorization is None else {"authorization": authorization.encode("utf-8")}
    problem(here.ask("DELETE", f"/api/races/{race}", headers=headers), 403)
    assert here.get(f"/api/races/{race}").status_code == 200


def test_delete_forgets_a_race_everywhere(here: Site) -> None:
    race, other = here.finished()["id"], here.finished()["id"]
    answer = here.ask("DELETE", f"/api/races/{race}", headers={"authorization": f"bearer {TOKEN}"})
    assert (answer.status_code, answer.content) == (204, b"")
    problem(here.get(f"/api/races/{race}"), 404)
    assert here.get(f"/races/{race}").status_code == 404
    kept = [one["id"] for one in here.get("/api/races").json()["races"]]
    assert race not in kept
    assert other in kept
    problem(here.ask("DELETE", f"/api/races/{race}", headers=PRESENTER), 404)


def test_delete_of_a_running_race_stops_it_first(here: Site) -> None:
    race = here.start(prompt=HANGS)
    here.until(lambda: all(one.streaming for one in here.fakes.values()))
    assert here.ask("DELETE", f"/api/races/{race}", headers=PRESENTER).status_code == 204
    here.until(lambda: not any(one.streaming for one in here.fakes.values()))
    problem(here.get(f"/api/races/{race}"), 404)
    assert here.finished()["status"] == "finished"


# ------------------------------------------------------------------------------------------------ the list
def test_the_list_pages_back_to_the_first_race(here: Site) -> None:
    made = [here.finished()["id"] for _ in range(5)]
    here.until(lambda: made[-1] in [one["id"] for one in here.get("/api/races").json()["races"]])
    seen: list[str] = []
    while page := here.get("/api/races", params={"limit": 2} | ({"before": seen[-1]} if seen else {})).json()["races"]:
        assert len(page) <= 2
        seen += [one["id"] for one in page]
    assert seen[:5] == made[::-1]
    assert len(seen) == len(set(seen)) >= 5


@pytest.mark.parametrize(
    "limit",
    [
        "0",
        "501",
        "-1",
        "x",
        "",
        "1.5",
        "\u00b2",
        "9" * 30,
        "0000005009999",
        "000000001" + "9" * 20,
        "000000001" + "9" * 5000,
    ],
)
def test_a_limit_out_of_range_is_refused(here: Site, limit: str) -> None:
    problem(here.get("/api/races", params={"limit": limit}), 422, "limit")


def test_a_page_after_a_race_that_was_deleted_was_page_one_again(here: Site) -> None:
    here.finished()
    for before in ("gone", "", "x" * 5000):
        error = problem(here.get("/api/races", params={"before": before}), 422, "before")
        assert "leave it out" in str(error)


def test_the_list_has_whole_races(here: Site) -> None:
    race = here.finished()
    here.until(lambda: race["id"] in [one["id"] for one in here.get("/api/races").json()["races"]])
    assert here.get("/api/races").json()["races"][0] == race


def test_a_race_reads_the_same_from_memory_and_from_disk(here: Site) -> None:
    live = here.finished()
    here.until(lambda: live["id"] in [one["id"] for one in here.get("/api/races").json()["races"]])
    here.call(lambda: here.services.hub._runs.pop(live["id"]))
    here.until(lambda: here.services.hub.get(live["id"]) is None)
    assert here.get(f"/api/races/{live['id']}").json() == live
    assert here.events(live["id"])[-1]["event"] == "done"


# ------------------------------------------------------------------------------------------------ about the app
def test_workloads_and_endpoints(here: Site) -> None:
    found = here.get("/api/workloads").json()
    assert {tab["name"] for tab in found["tabs"]} == {"structured", "creative", "long"}
    assert all(one["prompt"] for one in found["workloads"])
    states = here.get("/api/endpoints").json()
    assert {lane: state["status"] for lane, state in states.items()} == {"baseline": "ready", "speculative": "ready"}
    assert "127.0.0.1" not in json.dumps(states)
    assert states["speculative"]["identity"]["num_speculative_tokens"] == 4
    assert (states["baseline"]["speculating"], states["speculative"]["speculating"]) == (False, True)


def test_health(here: Site) -> None:
    assert here.get("/healthz").json() == {"status": "ok"}
    assert here.get("/readyz").json() == {"status": "ready", "reasons": {}}
    here.finished()
    text = here.get("/metrics").text
    assert 'specrace_races_total{status="finished"}' in text
    assert 'specrace_endpoint_ready{lane="baseline"} 1.0' in text
    assert "specrace_races_waiting 0.0" in text


# ------------------------------------------------------------------------------------------------ headers
@pytest.mark.parametrize(
    ("method", "path", "rest"),
    [
        ("GET", "/", {}),
        ("GET", "/races", {}),
        ("GET", "/healthz", {}),
        ("GET", "/static/app.css", {}),
        ("GET", "/nothing", {}),
        ("GET", "/api/nothing", {}),
        ("PUT", "/races", {}),
        ("POST", "/api/races", {"json": {}}),
        ("POST", "/api/races", {"content": b"x" * 200_000}),
        ("POST", "/races", {"headers": {"origin": "https://evil.example"}}),
        ("GET", "/races/none/stream", {}),
        ("GET", "/api/races/none/events", {}),
    ],
)
def test_every_answer_carries_the_security_headers(here: Site, method: str, path: str, rest: dict[str, Any]) -> None:
    answer = here.ask(method, path, **rest)
    assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
    assert "server" not in answer.headers


def test_another_site_starts_nothing(here: Site) -> None:
    before = sum(len(one.posts) for one in here.fakes.values())
    for path, rest in (("/races", {"data": {"prompt": "x"}}), ("/api/races", {"json": {"prompt": "x"}})):
        answer = here.post(path, headers={"sec-fetch-site": "cross-site", "origin": "https://evil.example"}, **rest)
        assert answer.status_code == 403
    assert sum(len(one.posts) for one in here.fakes.values()) == before


# ------------------------------------------------------------------------------------------------ the page's buttons
def test_a_form_without_javascript_leads_to_the_race(here: Site) -> None:
    answer = here.post("/races", data={"prompt": "Count."})
    assert answer.status_code == 303
    race = answer.headers["location"].removeprefix("/races/")
    assert here.get(answer.headers["location"]).status_code == 200
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    here.until(lambda: here.get(f"/api/races/{race}").json()["status"] == "finished")


def test_a_form_with_htmx_gets_the_arena_and_the_address(here: Site) -> None:
    answer = here.post("/races", data={"prompt": "<b>Count</b>"}, headers=HTMX)
    assert answer.status_code == 200
    assert answer.headers["hx-push-url"].startswith("/races/")
    assert "<b>Count</b>" not in answer.text
    assert "<html" not in answer.text


def test_a_visitor_who_is_known_gets_no_second_name(here: Site) -> None:
    answer = here.post("/races", data={"prompt": "x"}, headers={"cookie": "specrace_visitor=ann"})
    assert "set-cookie" not in answer.headers


def test_a_double_click_starts_one_race(here: Site) -> None:
    form = {"prompt": HANGS, "ticket": "ticket-1"}
    first, second = (here.post("/races", data=form, headers={"cookie": "specrace_visitor=ann"}) for _ in range(2))
    assert first.headers["location"] == second.headers["location"]
    here.until(lambda: all(one.streaming == 1 for one in here.fakes.values()))


@pytest.mark.parametrize(
    "form", [{}, {"prompt": ""}, {"prompt": "x", "temperature": "hot"}, {"prompt": "x", "schedule": "sideways"}]
)
def test_a_wrong_form_is_told_in_words(here: Site, form: dict[str, str]) -> None:
    answer = here.post("/races", data=form, headers=HTMX)
    assert answer.status_code == 422
    assert answer.headers["content-type"].startswith("text/html")
    assert "<html" not in answer.text  # a notice, not a page in the page


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("multipart/form-data", b"x"),
        ("multipart/form-data; boundary=b", b"--b\r\nnonsense"),
        (
            "multipart/form-data; boundary=b",
            b'--b\r\nContent-Disposition: form-data; name="prompt"; filename="f"\r\n\r\nx\r\n--b--\r\n',
        ),
        ("application/x-www-form-urlencoded", b"prompt=%ED%A0%80%00&=&&%"),
        ("text/plain", b"prompt=x"),
        ("application/json", b'{"prompt":"x"}'),
        ("nonsense", b"\x00\xff"),
    ],
)
def test_a_broken_form_is_no_5xx(here: Site, kind: str, body: bytes) -> None:
    assert here.post("/races", content=body, headers={"content-type": kind}).status_code < 500


def test_a_form_with_half_a_character_does_not_end_the_keeping_of_races(here: Site) -> None:
    body = b'--b\r\nContent-Disposition: form-data; name="prompt"\r\n\r\na+2AA-b\r\n--b--\r\n'
    answer = here.post(
        "/races", content=body, headers={"content-type": "multipart/form-data; boundary=b; charset=utf-7"}
    )
    assert answer.status_code < 500
    race = here.finished()["id"]
    here.until(lambda: race in [one["id"] for one in here.get("/api/races").json()["races"]], within_s=3)
    assert here.services.store._thread.is_alive()


def test_a_replay_plays_a_race_that_is_over_and_no_other(here: Site) -> None:
    race = here.finished(prompt=SLOW)["id"]
    posts = sum(len(one.posts) for one in here.fakes.values())
    answer = here.post(f"/races/{race}/replay", headers=HTMX)
    assert answer.status_code == 200
    assert "hx-push-url" not in answer.headers
    running = here.start(prompt=HANGS)
    here.until(lambda: here.services.hub.racing)
    assert here.post(f"/races/{running}/replay").status_code == 422
    assert here.post("/races/none/replay").status_code == 404
    assert here.post("/recordings/none/play").status_code == 404
    assert sum(len(one.posts) for one in here.fakes.values()) <= posts + 2  # the running one alone


# ------------------------------------------------------------------------------------------------ the page's stream
def test_the_pages_stream_shows_the_race_and_ends(here: Site) -> None:
    race = here.start(prompt=SLOW)
    stream = here.get(f"/races/{race}/stream")
    assert stream.status_code == 200
    assert stream.headers["content-type"].startswith("text/event-stream")
    *frames, end = messages(stream.text)
    assert end == {"event": "done", "data": '{"status":"finished"}'}
    ids = [int(one["id"]) for one in frames]
    assert ids == sorted(ids)
    assert all("event" not in one and "<hx-partial" in one["data"] for one in frames)
    assert "out-baseline" in stream.text
    assert "out-speculative" in stream.text


def test_p27_a_stream_opened_again_after_the_end_is_short_and_starts_nothing(here: Site) -> None:
    race = here.finished()["id"]
    posts = sum(len(one.posts) for one in here.fakes.values())
    for rest in ({}, {"headers": {"last-event-id": "99999"}}):
        found = messages(here.get(f"/races/{race}/stream", **rest).text)
        assert found[-1]["event"] == "done"
        assert len(found) == 2
    assert sum(len(one.posts) for one in here.fakes.values()) == posts


def test_the_stream_of_an_unknown_race_is_200_says_so_and_ends(here: Site) -> None:
    answer = here.get("/races/none/stream")
    assert answer.status_code == 200
    *said, end = messages(answer.text)
    assert end["event"] == "done"
    assert end["data"]
    assert len(said) == 1


def test_a_viewer_who_leaves_is_not_counted_any_more(here: Site) -> None:
    race = here.start(prompt=HANGS)
    with (
        httpx2.Client(base_url=here.root, trust_env=False, verify=False) as client,
        client.stream("GET", f"/races/{race}/stream") as answer,
    ):
        next(answer.iter_bytes())
        here.until(lambda: here.services.hub.viewers == 1)
    here.until(lambda: here.services.hub.viewers == 0)


def test_a_race_of_the_page_left_by_all_is_stopped(here: Site) -> None:
    answer = here.post("/races", data={"prompt": HANGS})
    race = answer.headers["location"].removeprefix("/races/")
    here.until(lambda: all(one.streaming for one in here.fakes.values()))
    run = here.services.hub.get(race)
    assert run is not None

    def long_ago() -> None:
        run.seen_ns -= 13 * 10**9

    here.call(long_ago)
    here.until(lambda: here.get(f"/api/races/{race}").json()["status"] == "stopped", within_s=3)
    here.until(lambda: not any(one.streaming for one in here.fakes.values()))


def test_p37_the_app_stops_soon_with_streams_open_and_says_why(tmp_path: Path) -> None:
    fakes: Any = {"baseline": fake(), "speculative": fake()}
    said: list[Message] = []
    with site(tmp_path, fakes) as leaving:
        race = leaving.start(prompt=HANGS)
        leaving.until(lambda: all(one.streaming for one in fakes.values()))

        root = leaving.root

        def follow() -> None:
            with httpx2.Client(timeout=20, trust_env=False, verify=False) as client:
                said.extend(messages(client.get(f"{root}/api/races/{race}/events").text))

        reader = threading.Thread(target=follow)
        reader.start()
        leaving.until(lambda: leaving.services.hub.viewers == 1)
        began = time.monotonic()
    assert time.monotonic() - began < 5
    reader.join(5)
    assert said[-1] == {"event": "done", "data": '{"status":"interrupted"}'}
    assert not any(one.streaming for one in fakes.values())
    with site(tmp_path, {"baseline": fake(), "speculative": fake()}) as again:  # type: ignore[dict-item]
        assert again.get(f"/api/races/{race}").json()["status"] == "interrupted"


def test_p38_a_silent_server_does_not_slow_the_app(here: Site) -> None:
    for one in here.fakes.values():
        one.on("steady", (ROLE, *(step for _ in range(40) for step in (SLEEP(0.01), TOK("x"))), FIN("stop"), DONE))
    here.fakes["baseline"].on("steady", (ROLE, TOK("a"), SLEEP(0.6), FIN("stop"), DONE))
    race = here.start(prompt="steady")
    here.until(lambda: here.services.hub.racing)
    worst = 0.0
    while here.services.hub.racing:
        began = time.monotonic()
        assert here.get("/healthz").status_code == 200
        worst = max(worst, time.monotonic() - began)
    assert worst < 0.5
    arrived = [
        one.json["t_ms"]
        for one in here.events(race)
        if "id" in one and one.json.get("lane") == "speculative" and one.json["type"] == "lane.chunk"
    ]
    assert max(b - a for a, b in pairwise(arrived)) < 300


# ------------------------------------------------------------------------------------------------ over the wire
def test_the_first_load_is_compressed_on_the_wire_and_no_more_than_60_kb(here: Site) -> None:
    """The bytes as they come, not as a test compresses them."""
    page = here.get("/").text
    paths = {"/", *re.findall(r'(?:src|href)="(/static/[^"]+)"', page)}
    assert len(paths) >= 6
    total = 0
    with httpx2.Client(base_url=here.root, trust_env=False, verify=False) as client:
        for path in paths:
            with client.stream("GET", path, headers={"Accept-Encoding": "gzip"}) as answer:
                total += sum(len(piece) for piece in answer.iter_raw())
                big = int(answer.headers.get("content-length", "0")) > 600
                assert not big or answer.headers.get("content-encoding") == "gzip", path
    assert total <= 60_000


def test_a_stream_is_never_compressed(here: Site) -> None:
    race = here.finished()
    for path in (f"/races/{race['id']}/stream", f"/api/races/{race['id']}/events"):
        answer = here.get(path, headers={"Accept-Encoding": "gzip, br, zstd"})
        assert "content-encoding" not in answer.headers
        assert answer.headers["content-type"].startswith("text/event-stream")
