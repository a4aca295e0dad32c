"""What every response carries and what no request may do, as pure ASGI (a BaseHTTPMiddleware would sit in streams)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import msgspec
import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_log = structlog.get_logger()

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; manifest-src 'self'"
)
HEADERS = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}


Failed = Callable[[Request], Awaitable[Response]]
"""Makes the answer to a request that failed unexpectedly."""


class Guard:
    """Security headers on everything; no POST from another site; no body over ``max_body_bytes``; and what nobody
    foresaw goes to the log and is answered by ``failed``."""

    def __init__(self, app: ASGIApp, *, max_body_bytes: int, failed: Failed | None = None) -> None:
        self._app = app
        self._max = max_body_bytes
        self._failed = failed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        answered = False

        async def with_headers(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                answered = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._guarded(scope, receive, with_headers)
        except Exception:
            # left to the server it would end the connection, and somebody's next request with it
            _log.exception("request failed unexpectedly", path=scope["path"])
            if answered or self._failed is None:
                raise
            response = await self._failed(Request(scope))
            await response(scope, receive, with_headers)

    async def _guarded(self, scope: Scope, receive: Receive, with_headers: Send) -> None:
        headers = Headers(scope=scope)
        if scope["method"] not in ("GET", "HEAD", "OPTIONS") and _from_elsewhere(headers):
            await _refuse(
                with_headers, 403, "origin", "the request comes from another site", "Use the page of this server"
            )
            return
        try:
            length = int(headers.get("content-length", "0"))
        except ValueError:
            length = self._max + 1
        if length > self._max:
            await self._too_large(with_headers)
            return
        if scope["method"] in ("GET", "HEAD"):
            await self._app(scope, receive, with_headers)
            return
        try:
            body = await _read(receive, self._max)
        except ClientDisconnect:
            # half a form is not a form, and nobody waits for an answer
            return
        if body is None:
            await self._too_large(with_headers)
            return
        await self._app(scope, _replay(body, receive), with_headers)

    async def _too_large(self, send: Send) -> None:
        await _refuse(send, 413, "body", f"longer than {self._max} bytes", "Send a shorter prompt")


async def _read(receive: Receive, limit: int) -> bytes | None:
    """The whole body, None when it is longer than ``limit`` (a chunked one names no length)."""
    body = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientDisconnect
        body += message.get("body", b"")
        if len(body) > limit:
            return None
        if not message.get("more_body", False):
            return body


def _replay(body: bytes, receive: Receive) -> Receive:
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _from_elsewhere(headers: Headers) -> bool:
    """Whether a browser says that another site made this request. Scripts send neither header and may pass."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return True
    origin = headers.get("origin")
    return origin is not None and urlsplit(origin).netloc != headers.get("host", "")


async def _refuse(send: Send, status: int, field: str, reason: str, remedy: str) -> None:
    body = msgspec.json.encode(
        {
            "type": "about:blank",
            "title": reason.capitalize(),
            "status": status,
            "field": field,
            "reason": reason,
            "remedy": remedy,
        }
    )
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(b"content-type", b"application/problem+json"), (b"content-length", str(len(body)).encode())],
        }
    )
    await send({"type": "http.response.body", "body": body})
