"""What every response carries and what no request may do, as pure ASGI (a BaseHTTPMiddleware would sit in streams)."""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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


class Guard:
    """Security headers on everything; no POST from another site; no body over ``max_body_bytes``."""

    def __init__(self, app: ASGIApp, *, max_body_bytes: int) -> None:
        self._app = app
        self._max = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

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
        body = await _read(receive, self._max)
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
            return body
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
        {"type": "about:blank", "status": status, "field": field, "reason": reason, "remedy": remedy}
    )
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(b"content-type", b"application/problem+json"), (b"content-length", str(len(body)).encode())],
        }
    )
    await send({"type": "http.response.body", "body": body})
