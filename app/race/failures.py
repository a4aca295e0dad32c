"""Whatever goes wrong upstream, as a LaneError that names the cause and what to do. One place for the words.

No address, key or header of a server ever gets into a message: people on the other side of the room read it.
"""

from __future__ import annotations

import re
import socket
import ssl

import aiohttp
import httpx2
import openai

from app.race.types import ErrorKind, LaneError
from app.race.wire import ErrorFrame, error_in

_ADDRESS = re.compile(
    r"\b[a-z][a-z0-9+.-]*://\S+"  # a URL
    r"|\b(?:\d{1,3}\.){3}\d{1,3}(?::\d+)?\b"  # IPv4
    r"|\[[0-9a-f:.]*:[0-9a-f:.]*\](?::\d+)?"  # IPv6 in brackets
    r"|(?<![\w:])(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4}(?![\w:])"  # IPv6
    r"|\b[\w-]+(?:\.[\w-]+)+:\d{2,5}\b|\b[a-z][\w-]*:\d{4,5}\b",  # host:port
    re.IGNORECASE,
)
_SECRET = re.compile(r"\b(sk|hf|key|token)[-_][\w-]{6,}|Bearer\s+\S+", re.IGNORECASE)

_TLS_REASON = re.compile(
    r"(self[- ]signed certificate|certificate has expired|hostname mismatch|unable to get [\w ]+)", re.IGNORECASE
)

_TLS_TEXT = re.compile(r"certificate_verify|\bssl\b|\btls\b|record layer")

REMEDY: dict[ErrorKind, str] = {
    "connection_refused": "Start it, wait until it is up again, or correct its address.",
    "connect_timeout": "The server cannot be reached: check that it runs, the tunnel and the network.",
    "first_token_timeout": "It may be loading, compiling or busy: wait until it is ready, then race again.",
    "stalled": "The server or the connection to it hangs: check both, then race again.",
    "unauthorized": "Set the API key of this server (SPECRACE_BASELINE_API_KEY or SPECRACE_SPECULATIVE_API_KEY).",
    "model_not_found": "Name a model that this server serves (SPECRACE_BASELINE_MODEL or SPECRACE_SPECULATIVE_MODEL).",
    "bad_request": "The server does not take this request: change the prompt or the settings it names.",
    "rate_limited": "The server asks for fewer requests: wait a little, then race again.",
    "unavailable": "The server is starting, asleep or overloaded: wait until it is ready.",
    "server_error": "Look into the server's log, and restart it if it is gone.",
    "not_a_model_server": "Check the address: it must be an OpenAI-compatible server (vLLM), no login page.",
    "bad_stream": "Check what stands between the app and the server, and the server's log.",
    "stream_error": "Look into the server's log; the other lane is not affected.",
    "cut_off": "The server may have died: look into its log, then race again.",
    "aborted": "The server gave this request up: look into its log for the reason.",
    "tls": "Use a certificate that this machine trusts (SSL_CERT_FILE names a CA file), or plain http://.",
}


class UpstreamError(Exception):
    """A lane cannot go on. ``error`` is what people are told."""

    def __init__(self, kind: ErrorKind, what: str) -> None:
        what = clean(what)
        super().__init__(f"{kind}: {what}")
        self.error = LaneError(kind=kind, message=f"{what} {REMEDY[kind]}")
        self.raw = what


def clean(text: str, limit: int = 300) -> str:
    """``text`` on one line, without addresses and secrets, cut at ``limit`` characters."""
    flat = " ".join(_SECRET.sub("[key]", _ADDRESS.sub("[address]", text)).split())
    flat = flat if len(flat) <= limit else flat[: limit - 1] + "…"
    return flat if flat.endswith((".", "!", "?", "…")) else f"{flat}."


def from_status(status: int, body: bytes) -> UpstreamError:
    """An HTTP answer that is no success."""
    frame = error_in(body)
    said = frame.text if frame else ""
    quote = f": {said}" if said else ""
    if status in (401, 403):
        return UpstreamError("unauthorized", f"The server refused the key (HTTP {status})")
    if status == 404 and frame and ("model" in said.lower() or frame.kind == "NotFoundError"):
        return UpstreamError("model_not_found", f"The server does not have this model{quote}")
    if status in (404, 405):
        return UpstreamError("not_a_model_server", f"There is no model API at this address (HTTP {status})")
    if status == 429:
        return UpstreamError("rate_limited", f"Too many requests (HTTP 429){quote}")
    if status in (502, 503, 504):
        return UpstreamError("unavailable", f"The server is not available (HTTP {status}){quote}")
    if status >= 500:
        return UpstreamError("server_error", f"The server failed (HTTP {status}){quote}")
    if 300 <= status < 400:
        return UpstreamError("not_a_model_server", f"The address answers with a redirect (HTTP {status})")
    return UpstreamError("bad_request", f"The server refused the request (HTTP {status}){quote}")


def from_frame(frame: ErrorFrame) -> UpstreamError:
    """An error object inside a stream."""
    return UpstreamError("stream_error", f"The server reported an error: {frame.text}")


def from_exception(error: BaseException, *, proxied: bool = False) -> UpstreamError:
    """An exception of the SDK or the HTTP client."""
    if isinstance(error, UpstreamError):
        return error
    if isinstance(error, openai.APIStatusError):
        return from_status(error.status_code, error.response.content)
    chain = _chain(error)
    through = " through the proxy of the environment (HTTP_PROXY, HTTPS_PROXY)" if proxied else ""
    # aiohttp names its ssl setting in every message about a connection
    text = re.sub(r"\bssl:\S+", "", " ".join(str(e) for e in chain).lower())
    if _has(chain, ssl.SSLError, ssl.CertificateError, aiohttp.ClientSSLError) or _TLS_TEXT.search(text):
        if "certificate" in text:
            return UpstreamError("tls", f"The server's certificate cannot be trusted ({_tls_reason(text)})")
        return UpstreamError("tls", "The server does not speak TLS as expected")
    if _has(chain, aiohttp.ClientProxyConnectionError, aiohttp.ClientHttpProxyError, httpx2.ProxyError):
        return UpstreamError("connection_refused", f"The proxy of the environment does not connect{through}")
    if _has(chain, aiohttp.ServerDisconnectedError, aiohttp.ClientPayloadError, ConnectionResetError, BrokenPipeError):
        return UpstreamError("cut_off", f"The connection broke before the answer was complete{through}")
    if _has(chain, aiohttp.ClientConnectorError, httpx2.ConnectError, ConnectionRefusedError):
        name = _has(chain, aiohttp.ClientConnectorDNSError, socket.gaierror) or "name resolution" in text
        name = name or "name or service" in text or "nodename" in text
        return UpstreamError(
            "connection_refused",
            "The host name is unknown" if name else f"Nothing listens at the server's address{through}",
        )
    if _has(chain, TimeoutError, httpx2.TimeoutException, openai.APITimeoutError):
        return UpstreamError("connect_timeout", f"No connection in time{through}")
    return UpstreamError("cut_off", f"The connection broke before the answer was complete{through}")


def _has(chain: list[BaseException], *kinds: type[BaseException]) -> bool:
    return any(isinstance(error, kinds) for error in chain)


def _tls_reason(text: str) -> str:
    match = _TLS_REASON.search(text)
    return match.group(1) if match else "verification failed"


def _chain(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found
