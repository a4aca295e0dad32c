"""The guard in front of every route, as pure ASGI: other sites, large bodies, and headers on whatever goes out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import anyio
import pytest
import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from app.web.security import HEADERS, Guard

pytestmark = pytest.mark.anyio
LIMIT = 100


class Inner:
    """An app that reads its body and answers, or streams."""

    def __init__(self, *, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        self.bodies: list[bytes] = []
        self.messages: list[Message] = []
        self._headers = list(headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        if scope["type"] == "http":
            while True:
                message = await receive()
                self.messages.append(message)
                if message["type"] != "http.request":
                    break
                body += message.get("body", b"")
                if not message.get("more_body", False):
                    break
            self.bodies.append(body)
            await send({"type": "http.response.start", "status": 200, "headers": self._headers})
            await send({"type": "http.response.body", "body": b"one", "more_body": True})
            await send({"type": "http.response.body", "body": b"two"})


async def ask(
    inner: Inner,
    method: str = "POST",
    headers: dict[str, str] | None = None,
    body: Sequence[Message] | bytes = b"x",
    kind: str = "http",
    failed: Any = None,
) -> tuple[int | None, dict[str, str], bytes]:
    scope: Any = {
        "type": kind,
        "method": method,
        "path": "/races",
        "query_string": b"",
        "headers": [
            (k.lower().encode("latin-1"), v.encode("latin-1"))
            for k, v in ({"host": "race.example"} | (headers or {})).items()
        ],
    }
    parts = [{"type": "http.request", "body": body, "more_body": False}] if isinstance(body, bytes) else list(body)
    waiting = iter(parts)

    async def receive() -> Message:
        found = next(waiting, None)
        if found is None:
            await anyio.sleep_forever()
        assert found is not None
        return found

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    with anyio.fail_after(2):
        await Guard(inner, max_body_bytes=LIMIT, failed=failed)(scope, receive, send)
    if not sent:
        return None, {}, b""
    found = {k.decode(): v.decode() for k, v in sent[0]["headers"]}
    return sent[0]["status"], found, b"".join(m.get("body", b"") for m in sent[1:])


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://race.example.evil"},
        {"origin": "http://race.example:8001"},
        {"origin": ""},
        {"sec-fetch-site": "same-origin", "origin": "https://evil.example"},
        {"sec-fetch-site": "nonsense"},
    ],
)
async def test_what_another_site_sends_is_refused(method: str, headers: dict[str, str]) -> None:
    inner = Inner()
    status, found, body = await ask(inner, method, headers)
    assert status == 403
    assert inner.bodies == []
    assert found["content-type"] == "application/problem+json"
    assert json.loads(body)["field"] == "origin"


@pytest.mark.parametrize(
    "headers",
    [
        {},  # a script
        {"sec-fetch-site": "same-origin", "origin": "http://race.example"},
        {"sec-fetch-site": "none"},
        {"origin": "https://race.example"},  # behind a proxy that ends TLS
        {"host": "race.example:8000", "origin": "http://race.example:8000"},
        {"host": "[::1]:8000", "origin": "http://[::1]:8000"},
    ],
)
async def test_our_own_page_and_scripts_may_post(headers: dict[str, str]) -> None:
    inner = Inner()
    status, _, body = await ask(inner, "POST", headers)
    assert (status, body, inner.bodies) == (200, b"onetwo", [b"x"])


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_link_from_another_site_may_be_followed(method: str) -> None:
    status, _, _ = await ask(Inner(), method, {"sec-fetch-site": "cross-site", "origin": "https://evil.example"}, b"")
    assert status == 200


@pytest.mark.parametrize("length", [str(LIMIT + 1), "999999999999999999999", "abc", "1e3", ""])
async def test_a_body_that_says_it_is_too_long_is_not_read(length: str) -> None:
    inner = Inner()
    status, found, body = await ask(inner, "POST", {"content-length": length}, [])
    assert status == 413
    assert inner.bodies == []
    assert found["content-type"] == "application/problem+json"
    problem = json.loads(body)
    assert (problem["status"], problem["field"]) == (413, "body")
    assert problem["reason"]
    assert problem["remedy"]


async def test_a_body_that_does_not_say_its_length_is_refused_when_it_is_too_long() -> None:
    inner = Inner()
    parts: list[Message] = [{"type": "http.request", "body": b"x" * 40, "more_body": True} for _ in range(1000)]
    status, _, _ = await ask(inner, "POST", {}, parts)
    assert status == 413
    assert inner.bodies == []


async def test_a_body_that_lies_about_its_length_is_refused() -> None:
    status, _, _ = await ask(Inner(), "POST", {"content-length": "5"}, b"x" * (LIMIT + 1))
    assert status == 413


async def test_a_body_of_just_the_allowed_length_arrives_whole() -> None:
    inner = Inner()
    parts: list[Message] = [{"type": "http.request", "body": b"x" * 50, "more_body": n == 0} for n in range(2)]
    status, _, _ = await ask(inner, "POST", {"content-length": "100"}, parts)
    assert (status, inner.bodies) == (200, [b"x" * 100])


async def test_a_body_cut_off_by_its_sender_is_not_taken_for_a_whole_one() -> None:
    inner = Inner()
    parts: list[Message] = [
        {"type": "http.request", "body": b"prompt=Tell+me+ab", "more_body": True},
        {"type": "http.disconnect"},
    ]
    await ask(inner, "POST", {}, parts)
    assert inner.bodies in ([], [b""])


async def test_the_app_still_hears_that_its_client_left() -> None:
    class Waits(Inner):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await super().__call__(scope, receive, send)
            self.messages.append(await receive())

    inner = Waits()
    await ask(inner, "POST", {}, [{"type": "http.request", "body": b"x"}, {"type": "http.disconnect"}])
    assert inner.messages[-1] == {"type": "http.disconnect"}


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("GET", {}),
        ("POST", {}),
        ("POST", {"origin": "https://evil.example"}),
        ("POST", {"content-length": "999"}),
        ("OPTIONS", {}),
    ],
)
async def test_every_answer_carries_the_headers(method: str, headers: dict[str, str]) -> None:
    _, found, _ = await ask(Inner(), method, headers)
    assert {name: found.get(name.lower(), found.get(name)) for name in HEADERS} == HEADERS


async def test_an_answer_may_have_a_stricter_header_of_its_own() -> None:
    _, found, _ = await ask(Inner(headers=[(b"referrer-policy", b"no-referrer")]), "GET", {}, b"")
    assert found["referrer-policy"] == "no-referrer"


def test_the_policy_lets_nothing_in_from_elsewhere() -> None:
    policy = dict(part.strip().partition(" ")[::2] for part in HEADERS["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert policy["base-uri"] == "'none'"
    assert "unsafe" not in HEADERS["Content-Security-Policy"]
    assert "http:" not in HEADERS["Content-Security-Policy"]


class Broken(Inner):
    """An app that fails, before or in the middle of its answer."""

    def __init__(self, *, begun: bool) -> None:
        super().__init__()
        self._begun = begun

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("ours")


async def failed(_: Request) -> Response:
    return Response("sorry", 500)


async def test_what_nobody_foresaw_is_logged_and_answered_with_the_headers() -> None:
    with structlog.testing.capture_logs() as logged:
        status, found, body = await ask(Broken(begun=False), "GET", {}, b"", failed=failed)
    assert (status, body) == (500, b"sorry")
    assert {name: found.get(name.lower(), found.get(name)) for name in HEADERS} == HEADERS
    assert [entry["log_level"] for entry in logged] == ["error"]


async def test_an_answer_that_has_begun_is_not_answered_twice() -> None:
    with structlog.testing.capture_logs(), pytest.raises(RuntimeError):
        await ask(Broken(begun=True), "GET", {}, b"", failed=failed)


async def test_what_is_no_http_passes() -> None:
    assert await ask(Inner(), "GET", {}, b"", kind="lifespan") == (None, {}, b"")
