"""Servers that are set up wrong, somewhere else, or not there: P39, P41, and every way to lose one mid-stream."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx2 as httpx
import pytest

from tests.blackbox.app import App, Run, check_run, command, running
from tests.blackbox.batch import OTHER_TEXT, Batch, Case, batch
from tests.fakes.fixtures import HERE
from tests.fakes.vllm import (
    CLOSE,
    DONE,
    FIN,
    HANG,
    LOGIN_PAGE,
    NEVER,
    RAW,
    RESET,
    ROLE,
    SLEEP,
    TOK,
    USE,
    FakeThread,
    FakeVLLM,
    Reply,
    Tok,
    full_backlog_port,
    refused_port,
)

GLOBAL_KEY = "sk-proj-0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass
class Setup:
    """One app with a pair of servers of its own. ``note`` is what a test needs to know besides."""

    app: App
    fakes: dict[str, FakeVLLM] = field(default_factory=dict)
    ready: tuple[str, ...] = ("baseline", "speculative")

    def race(self) -> Run:
        return self.app.race("Say it.")


def setups(thread: FakeThread, stack: contextlib.ExitStack) -> dict[str, Setup]:
    def pair(**rest: Any) -> dict[str, FakeVLLM]:
        return {lane: thread.start(FakeVLLM(model=lane[0], speculative=k, **rest)) for lane, k in LANE_K.items()}

    def one(baseline: str, speculative: str, env: dict[str, str] | None = None, **rest: Any) -> Setup:
        fakes = pair(**rest)
        urls = {"b": fakes["baseline"].root, "s": fakes["speculative"].root}
        env = {name: value.format(**urls) for name, value in (env or {}).items()}
        return Setup(App(baseline.format(**urls), speculative.format(**urls), env=env), fakes)

    dead, full = stack.enter_context(refused_port()), stack.enter_context(full_backlog_port())
    proxy = f"http://127.0.0.1:{dead}"
    proxies = {name: proxy for n in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY") for name in (n, n.lower())}
    openai = {
        "OPENAI_API_KEY": GLOBAL_KEY,
        "OPENAI_BASE_URL": proxy + "/v1",
        "OPENAI_ORG_ID": "org-private",
        "OPENAI_PROJECT_ID": "proj-private",
        "OPENAI_ADMIN_KEY": GLOBAL_KEY + "-admin",
        "OPENAI_WEBHOOK_SECRET": GLOBAL_KEY + "-hook",
    }
    keys = {"SPECRACE_BASELINE_API_KEY": "key-of-both", "SPECRACE_SPECULATIVE_API_KEY": "key-that-is-wrong"}
    trust = {"SSL_CERT_FILE": str(HERE / "selfsigned.pem")}
    made = {
        "bare and v1": one("{b}", "{s}/v1", openai),
        "slash and v1 slash": one("{b}/", "{s}/v1/", proxies),
        "keys": one("{b}", "{s}", keys | openai | trust, api_key="key-of-both", tls=True),
        "tls": one("{b}", "{s}", tls=True),
        "one refused": one("{b}", f"http://127.0.0.1:{dead}", {"SPECRACE_BASELINE_METRICS_URL": "{s}/metrics"}),
        "both down": one(
            f"http://127.0.0.1:{dead}/v1", f"http://127.0.0.1:{full}", {"SPECRACE_CONNECT_TIMEOUT": "0.5"}
        ),
        "login page": one("{b}", "{s}"),
    }
    made["login page"].fakes["speculative"].everything = Reply(body=LOGIN_PAGE, content_type="text/html")
    for name, ready in (
        ("keys", ("baseline",)),
        ("tls", ()),
        ("one refused", ("baseline",)),
        ("both down", ()),
        ("login page", ("baseline",)),
    ):
        made[name].ready = ready
    return made


LANE_K = {"baseline": None, "speculative": 4}


@pytest.fixture(scope="module")
def made() -> Iterator[dict[str, Setup]]:
    with FakeThread() as thread, contextlib.ExitStack() as stack:
        everything = setups(thread, stack)
        with running(*(s.app for s in everything.values()), ready=()):
            for setup in everything.values():
                setup.app.wait(setup.ready)
            yield everything


# ------------------------------------------------------------------------------------------------ P39
@pytest.mark.parametrize("name", ["bare and v1", "slash and v1 slash"])
def test_p39_every_form_of_a_url_works_and_metrics_are_found(made: dict[str, Setup], name: str) -> None:
    setup = made[name]
    run = setup.race()
    check_run(run)
    assert run.status == "finished"
    for lane, fake in setup.fakes.items():
        assert {post.path for post in fake.posts} == {"/v1/chat/completions"}
        assert fake.gets("/metrics"), "metrics are at the root"
        assert setup.app.endpoint(lane)["speculating"] is (lane == "speculative")
        asked = {seen.path.split("?")[0] for seen in fake.requests}
        assert not [path for path in asked if "//" in path or "/v1/v1" in path or path == "/v1/metrics"], asked


def test_p39_metrics_may_be_elsewhere(made: dict[str, Setup]) -> None:
    setup = made["one refused"]
    assert setup.fakes["speculative"].gets("/metrics"), "SPECRACE_BASELINE_METRICS_URL is not asked"
    assert not setup.fakes["baseline"].gets("/metrics")
    assert setup.app.endpoint("baseline")["speculating"] is True


BAD_URLS = [
    "",
    "localhost:8000",
    "ftp://127.0.0.1:8000",
    "http://",
    "http://127.0.0.1:99999",
    "http://127.0.0.1:8000/v1?key=1",
    "http://user:secret-word@127.0.0.1:8000",
]


@pytest.fixture(scope="module")
def refusals() -> dict[str, Any]:
    def ask(url: str) -> Any:
        return command("serve", "--baseline", url, "--speculative", "http://127.0.0.1:1", "--port", "1")

    with ThreadPoolExecutor(3) as pool:
        found = dict(zip(BAD_URLS, pool.map(ask, BAD_URLS), strict=True))
        found["missing"] = command("serve", "--port", "1")
        env = {"SPECRACE_SPECULATIVE_URL": "nonsense", "SPECRACE_BASELINE_URL": "http://127.0.0.1:1"}
        found["environment"] = command("serve", "--port", "1", env=env)
        good = ("serve", "--baseline", "http://127.0.0.1:1", "--speculative", "http://127.0.0.1:1")
        found["option"] = command(*good, "--nonsense")
        found["number"] = command(*good, env={"SPECRACE_STALL_TIMEOUT": "soon"})
        found["folder"] = command(*good, env={"SPECRACE_DATABASE": str(HERE)})
        with refused_port() as port:
            found["port"] = command(*good, "--port", str(port))
        return found


@pytest.mark.parametrize("url", [*BAD_URLS, "missing", "environment"])
def test_p39_a_bad_url_is_refused_at_start_with_one_clear_line(refusals: dict[str, Any], url: str) -> None:
    ended = refusals[url]
    assert ended.returncode == 2, ended
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "speculative" in lines[0].lower() if url == "environment" else "baseline" in lines[0].lower()
    assert "secret-word" not in ended.stderr


@pytest.mark.parametrize(
    ("what", "named"),
    [("option", "--nonsense"), ("number", "STALL_TIMEOUT"), ("folder", "DATABASE"), ("port", "port")],
)
def test_a_wrong_option_or_setting_ends_with_one_clear_line(refusals: dict[str, Any], what: str, named: str) -> None:
    ended = refusals[what]
    assert ended.returncode == 2, ended
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, ended.stderr
    assert named.lower() in lines[0].lower()


@pytest.mark.parametrize("name", ["bare and v1", "slash and v1 slash"])
def test_p39_starts_and_races_without_a_key(made: dict[str, Setup], name: str) -> None:
    setup = made[name]
    check_run(setup.race())
    for fake in setup.fakes.values():
        for seen in fake.requests:
            assert seen.header("authorization") in (None, "Bearer none", "Bearer EMPTY"), "a key out of nowhere"


@pytest.mark.parametrize("name", ["bare and v1", "keys"])
def test_p39_the_global_key_goes_to_no_model_server(made: dict[str, Setup], name: str) -> None:
    setup = made[name]
    run = setup.race()
    for fake in setup.fakes.values():
        assert fake.requests
        for seen in fake.requests:
            everything = seen.head + seen.body
            for secret in (GLOBAL_KEY, "org-private", "proj-private"):
                assert secret.encode() not in everything, f"{secret} was sent to a model server"
    if name != "keys":
        check_run(run)
        assert run.status == "finished", "OPENAI_BASE_URL is somebody else's"


def test_p39_each_server_gets_its_own_key(made: dict[str, Setup]) -> None:
    setup = made["keys"]
    run = setup.race()
    check_run(run)
    assert run.baseline["status"] == "finished"
    assert run.speculative["error"]["kind"] == "unauthorized"
    for lane, key in (("baseline", "key-of-both"), ("speculative", "key-that-is-wrong")):
        sent = {seen.header("authorization") for seen in setup.fakes[lane].requests if seen.path.startswith("/v1")}
        assert sent == {f"Bearer {key}"}


def test_p39_keys_and_addresses_are_shown_nowhere(made: dict[str, Setup]) -> None:
    setup = made["keys"]
    run = setup.race()
    port = str(setup.fakes["speculative"].port)
    seen = [run.raw_race, run.raw_events, setup.app.page(run), setup.app.stream(run), setup.app.get("/").text]
    seen += [setup.app.get("/api/endpoints").text, setup.app.get("/metrics").text]
    for text in seen:
        for secret in ("key-of-both", "key-that-is-wrong", GLOBAL_KEY):
            assert secret not in text
    assert f"127.0.0.1:{port}" not in seen[1] + seen[2] + seen[3] + seen[5]
    for secret in ("key-of-both", "key-that-is-wrong", GLOBAL_KEY):
        assert secret not in setup.app.log


def test_p39_a_self_signed_certificate_is_named(made: dict[str, Setup]) -> None:
    setup = made["tls"]
    error = setup.app.endpoint("baseline")["error"]
    assert error["kind"] == "tls"
    assert "certificate" in error["message"].lower()
    answer = setup.race().created
    assert answer.status_code == 503
    assert answer.headers["content-type"].startswith("application/problem+json")


def test_p39_a_certificate_that_is_trusted_works(made: dict[str, Setup]) -> None:
    run = made["keys"].race()
    check_run(run)
    assert run.baseline["status"] == "finished"
    assert run.baseline["text"] == "Hello world"


def test_p39_local_hosts_bypass_the_proxy_of_the_environment(made: dict[str, Setup]) -> None:
    run = made["slash and v1 slash"].race()
    check_run(run)
    assert run.status == "finished"


# ------------------------------------------------------------------------------------------------ not there
def test_one_server_down_is_seen_before_the_race_and_spares_the_other_lane(made: dict[str, Setup]) -> None:
    setup = made["one refused"]
    state = setup.app.endpoint("speculative")
    assert state["status"] == "down"
    assert state["error"]["kind"] == "connection_refused"
    assert state["error"]["message"].strip()
    run = setup.race()
    check_run(run)
    assert run.status == "partial"
    assert run.speculative["error"]["kind"] == "connection_refused"
    assert run.baseline["status"] == "finished"
    assert run.baseline["completion_tokens"] == 2


@pytest.mark.parametrize(("lane", "kind"), [("baseline", "connection_refused"), ("speculative", "connect_timeout")])
def test_what_is_wrong_with_a_server_is_named(made: dict[str, Setup], lane: str, kind: str) -> None:
    state = made["both down"].app.endpoint(lane)
    assert state["status"] == "down"
    assert state["error"]["kind"] == kind


def test_both_servers_down_is_a_503_with_a_remedy(made: dict[str, Setup]) -> None:
    answer = made["both down"].race().created
    assert answer.status_code == 503
    assert answer.headers["content-type"].startswith("application/problem+json")
    assert {"field", "reason", "remedy"} <= answer.json().keys()
    page = httpx.get(made["both down"].app.root + "/", timeout=5)
    assert page.status_code == 200, "the page is there all the same"


def test_a_server_that_comes_up_later_is_seen_without_a_restart() -> None:
    with FakeThread() as thread:
        baseline = thread.start(FakeVLLM(model="b"))
        late = thread.start(FakeVLLM(model="s", speculative=4))
        thread.stop(late)
        with running(App(baseline.url, late.url), ready=("baseline",)) as (app,):
            assert app.endpoint("speculative")["status"] == "down"
            thread.start(late)
            app.wait()
            run = app.race("now")
            check_run(run)
            assert run.status == "finished"


# ------------------------------------------------------------------------------------------------ P41
def test_p41_a_login_page_instead_of_the_server_is_seen_before_the_click(made: dict[str, Setup]) -> None:
    setup = made["login page"]
    state = setup.app.endpoint("speculative")
    assert state["status"] != "ready"
    assert state["error"]["kind"] == "not_a_model_server"
    assert "html" in state["error"]["message"].lower()
    run = setup.race()
    check_run(run)
    assert run.status == "partial"
    assert run.speculative["error"]["kind"] == "not_a_model_server"
    assert run.baseline["status"] == "finished"


TEN = [step for _ in range(10) for step in (TOK("word "), SLEEP(0.01))]
TEN_TEXT = "word " * 10
HTML_IN_SSE = Reply([RAW(LOGIN_PAGE)], content_type="text/html")
NOT_A_STREAM = {
    "p41-html": Reply(body=LOGIN_PAGE, content_type="text/html; charset=utf-8"),
    "p41-html-chunked": HTML_IN_SSE,
    "p41-html-as-event-stream": Reply(body=LOGIN_PAGE, content_type="text/event-stream"),
    "p41-json-error": Reply.json(200, {"error": {"message": "quota exceeded", "type": "x", "code": 429}}),
    "p41-json-error-string": Reply.json(200, {"error": "no such route"}),
    "p41-json": Reply.json(200, {"hello": "world"}),
    "p41-plain": Reply(body=b"It works!", content_type="text/plain"),
    "p41-no-type": Reply(body=b"It works!", content_type=""),
    "p41-empty": Reply(body=b"", content_type="text/html"),
    "p41-redirect": Reply(status=302, body=b"", headers=(("location", "http://portal.invalid/login"),)),
    "p41-404-html": Reply(status=404, body=LOGIN_PAGE, content_type="text/html"),
    "p41-511": Reply(status=511, body=LOGIN_PAGE, content_type="text/html"),
}
STATUSES = {
    "http-400": (
        Reply.error(400, "This model's maximum context length is 2048 tokens.", "BadRequestError"),
        "bad_request",
    ),
    "http-401": (Reply.json(401, {"error": "Unauthorized"}), "unauthorized"),
    "http-403": (Reply.json(403, {"detail": "Forbidden"}), "unauthorized"),
    "http-404-model": (Reply.error(404, "The model `x` does not exist.", "NotFoundError", "model"), "model_not_found"),
    "http-429": (
        Reply.error(429, "Too many requests", "RateLimitError", headers=(("retry-after", "7"),)),
        "rate_limited",
    ),
    "http-500": (Reply(status=500, body=b"Internal Server Error", content_type="text/plain"), "server_error"),
    "http-503": (Reply.error(503, "The model is asleep", "ServiceUnavailableError"), "unavailable"),
    "http-502-html": (Reply(status=502, body=b"<html>Bad gateway</html>", content_type="text/html"), "unavailable"),
}
HALF = '{"choices":[{"index":0,"delta":{"content":"wo'
LOST = {
    "lost-reset": ([ROLE, *TEN, RESET], "cut_off", "cut_off"),
    "lost-close": ([ROLE, *TEN, CLOSE], "cut_off", "cut_off"),
    "lost-half-frame": ([ROLE, *TEN, RAW("data: " + HALF), CLOSE], "cut_off", "cut_off"),
    "lost-clean-end": ([ROLE, *TEN], "cut_off", "cut_off"),
    "lost-clean-end-half-frame": ([ROLE, *TEN, RAW("data: " + HALF)], "cut_off", "cut_off"),
    "lost-abort": ([ROLE, *TEN, FIN("abort"), USE(10), DONE], "aborted", "aborted"),
    "lost-silence": ([ROLE, *TEN, HANG], "failed", "stalled"),
    "lost-pings-only": ([ROLE, *TEN, *[RAW(": ping\n\n"), SLEEP(0.4)] * 12, HANG], None, "stalled"),
    "late-headers": (Reply(headers_after_s=NEVER), "failed", "first_token_timeout"),
    "late-first-token": ([ROLE, HANG], "failed", "first_token_timeout"),
    "late-role": ([HANG], "failed", "first_token_timeout"),
    "reset-at-once": ([RESET], None, "cut_off"),
}


@pytest.fixture(scope="module")
def runs() -> Iterator[Batch]:
    cases = {name: Case(reply) for name, reply in NOT_A_STREAM.items()}
    cases |= {name: Case(reply) for name, (reply, _) in STATUSES.items()}
    cases |= {name: Case(script) for name, (script, _, _) in LOST.items()}
    cases["http-503-baseline"] = Case(baseline=STATUSES["http-503"][0])
    cases["slow-but-fine"] = Case([ROLE, SLEEP(1.0), TOK("a"), SLEEP(1.0), TOK("b"), FIN(), USE(), DONE])
    env = {"SPECRACE_STALL_TIMEOUT": "1.5", "SPECRACE_FIRST_TOKEN_TIMEOUT": "1.5"}
    with batch(cases, at_once=10, env=env) as result:
        yield result


def spares_the_other(run: Run) -> None:
    assert run.status == "partial"
    assert run.baseline["status"] == "finished"
    assert run.baseline["text"] == OTHER_TEXT


@pytest.mark.parametrize("name", list(NOT_A_STREAM))
def test_p41_200_that_is_no_stream_is_no_success(runs: Batch, name: str) -> None:
    run = runs[name]
    lane = run.speculative
    assert lane["status"] == "failed" or "event-stream" in name
    allowed = {"not_a_model_server", "bad_stream", "cut_off"} if "event-stream" in name else {"not_a_model_server"}
    if "json-error" in name:
        allowed |= {"stream_error", "rate_limited", "bad_stream", "server_error"}
    if name == "p41-511":
        allowed |= {"server_error"}
    assert lane["error"]["kind"] in allowed, lane["error"]
    assert lane["text"] == ""
    assert lane["ttft_ms"] is None
    spares_the_other(run)


@pytest.mark.parametrize("name", list(NOT_A_STREAM))
def test_p41_the_foreign_page_is_not_injected(runs: Batch, name: str) -> None:
    run = runs[name]
    for text in (run.raw_race, run.raw_events, runs.app.page(run), runs.app.stream(run)):
        assert "window.pwned" not in text
        assert "Please log in" not in text
        assert "portal.invalid" not in text


def test_p41_html_is_named(runs: Batch) -> None:
    for name in ("p41-html", "p41-html-chunked"):
        assert "HTML" in runs[name].speculative["error"]["message"]
        assert "model server" in runs[name].speculative["error"]["message"].lower()
    assert "quota exceeded" in runs["p41-json-error"].speculative["error"]["message"]


@pytest.mark.parametrize("name", list(STATUSES))
def test_an_error_status_is_named_and_not_repeated(runs: Batch, name: str) -> None:
    run = runs[name]
    assert run.speculative["status"] == "failed"
    assert run.speculative["error"]["kind"] == STATUSES[name][1]
    assert len(runs.posts(name, "speculative")) == 1, "a retry inflates the time to the first token"
    spares_the_other(run)


def test_an_error_status_of_the_baseline_spares_the_speculative_lane(runs: Batch) -> None:
    run = runs["http-503-baseline"]
    assert run.status == "partial"
    assert run.baseline["error"]["kind"] == "unavailable"
    assert "asleep" in run.baseline["error"]["message"]
    assert run.speculative["text"] == OTHER_TEXT


@pytest.mark.parametrize("name", list(LOST))
def test_a_lost_stream_keeps_its_tokens_and_says_how_it_was_lost(runs: Batch, name: str) -> None:
    run = runs[name]
    script, status, kind = LOST[name]
    lane = run.speculative
    assert lane["error"]["kind"] == kind, lane["error"]
    assert status is None or lane["status"] == status
    steps = script.steps if isinstance(script, Reply) else script
    assert lane["text"] == "".join(step.text for step in steps if isinstance(step, Tok))
    assert len(runs.posts(name, "speculative")) == 1
    spares_the_other(run)


@pytest.mark.parametrize("name", ["lost-silence", "late-headers", "late-first-token", "late-role"])
def test_a_time_limit_ends_the_lane_and_the_upstream_request(runs: Batch, name: str) -> None:
    run = runs[name]
    ended = run.of("lane.failed", "speculative")[0]["t_ms"]
    began = [e["t_ms"] for e in run.of("lane.started", "speculative") + run.of("lane.chunk", "speculative")][-1]
    assert 1450 <= ended - began <= 2600
    post = runs.posts(name, "speculative")[0]
    assert post.peer_closed_at is not None, "the server is left generating"
    assert post.peer_closed_at - (post.sent[-1] if post.sent else post.at) < 2.6


def test_pauses_within_the_limits_are_no_failure(runs: Batch) -> None:
    run = runs["slow-but-fine"]
    assert run.status == "finished"
    assert run.speculative["ttft_ms"] == pytest.approx(runs.posts("slow-but-fine", "speculative")[0].ttft_ms, abs=150)


def test_every_error_says_what_to_do(runs: Batch) -> None:
    for name in [*NOT_A_STREAM, *STATUSES, *LOST]:
        message = runs[name].speculative["error"]["message"]
        assert len(message.split(". ")) >= 2 or ":" in message, message
        assert str(runs.fakes["speculative"].port) not in message, "an address on the screen"
        shown = runs.app.stream(runs[name])
        assert 'class="' in shown
