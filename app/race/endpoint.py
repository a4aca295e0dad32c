"""One model server: where it is, and the HTTP client that talks to nothing else.

Every lane has its own client, so that one lane's trouble never sits in the other's connection pool. The
environment's OPENAI_* variables belong to somebody else's account: they are hidden while the client is made.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx2
from msgspec import Struct
from openai import AsyncOpenAI, DefaultAioHttpClient

from app.errors import SettingsError


class Endpoint(Struct, frozen=True, kw_only=True):
    """Address of a server. ``root`` has no trailing slash and no ``/v1``; ``model`` None means: ask the server."""

    root: str
    metrics_url: str
    api_key: str | None = None
    model: str | None = None

    @property
    def api(self) -> str:
        """Base URL of the OpenAI API."""
        return f"{self.root}/v1"

    @property
    def host(self) -> str:
        """Host name, to tell whether two servers share a machine. Never shown."""
        return urlsplit(self.root).hostname or ""


def parse_endpoint(
    field: str, url: str, *, api_key: str | None = None, model: str | None = None, metrics_url: str | None = None
) -> Endpoint:
    """An Endpoint from what a person typed: with or without /v1, with or without a trailing slash.

    Raises:
        SettingsError: it is no http(s) URL of a server; names ``field`` and what is wrong.
    """
    url, metrics_url = url.strip(), metrics_url.strip() if metrics_url else None
    _check_url(field, url)
    if metrics_url is not None:
        _check_url(f"{field} (metrics)", metrics_url)
    root = url.rstrip("/")
    root = root.removesuffix("/v1").rstrip("/")
    return Endpoint(
        root=root, metrics_url=metrics_url or f"{root}/metrics", api_key=api_key or None, model=model or None
    )


def _check_url(field: str, url: str) -> None:
    remedy = "Give the server's address, such as http://127.0.0.1:8101"
    shown = url if len(url) < 100 else url[:97] + "..."
    if any(char.isspace() or not char.isprintable() for char in url):
        raise SettingsError(field, f"{shown!r} has a space or control character in it", remedy)
    try:
        parts = urlsplit(url)
        port_ok = parts.port is None or parts.port > 0
    except ValueError as error:
        raise SettingsError(field, f"it is not a URL ({error})", remedy) from None
    if "@" in parts.netloc:
        # said without repeating it: it goes to a log or a screen
        raise SettingsError(field, "the URL holds a user name or password", "Put the key in SPECRACE_*_API_KEY instead")
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_ok:
        raise SettingsError(field, f"{shown!r} is not an http:// or https:// URL with a host", remedy)
    if parts.query or parts.fragment:
        raise SettingsError(field, f"{shown!r} has a query or fragment", remedy)


def is_local(host: str) -> bool:
    """Whether ``host`` is this machine or a private network: proxies of the environment are bypassed there."""
    if host in ("localhost", "") or host.endswith((".localhost", ".local", ".internal")) or "." not in host.strip("[]"):
        try:
            return not ipaddress.ip_address(host.strip("[]")).is_global
        except ValueError:
            return True
    try:
        return not ipaddress.ip_address(host).is_global
    except ValueError:
        return False


on_send: ContextVar[Callable[[], None] | None] = ContextVar("on_send", default=None)
"""Called at the moment a request goes out: t=0 of a lane."""


@contextmanager
def _without_openai_variables() -> Generator[None]:
    hidden = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("OPENAI_")}
    try:
        yield
    finally:
        os.environ.update(hidden)


CONNECTIONS = 64
"""To one server at once, unless somebody asks for more (a load of ``specrace bench``)."""


def make_http(endpoint: Endpoint, *, connect_timeout_s: float, connections: int = CONNECTIONS) -> httpx2.AsyncClient:
    """The lane's own connections, on aiohttp: its parser reads a chunk at half the cost of httpx's own transport, and
    the SDK brings the adapter. Only connecting has a time limit here: how long to wait for a first token and how
    long between two chunks is the reader's business (app.race.upstream).

    Raises:
        SettingsError: the environment names a proxy or a CA file that cannot be used.
    """
    timeout = httpx2.Timeout(None, connect=connect_timeout_s, pool=connect_timeout_s)
    proxy = None if is_local(endpoint.host) else proxy_of_environment(endpoint.root)
    authorities = os.environ.get("SSL_CERT_FILE") or None
    try:
        trusted = ssl.create_default_context(cafile=authorities)
    except OSError as error:
        raise SettingsError(
            "SSL_CERT_FILE", f"it cannot be read ({error.strerror or error})", "Name a file of CA certificates"
        ) from None

    async def before_sending(request: httpx2.Request) -> None:
        if not endpoint.api_key:
            # the SDK makes one up
            request.headers.pop("authorization", None)
        stamp = on_send.get()
        if stamp is not None:
            stamp()

    settings: dict[str, Any] = {
        "verify": trusted,
        "timeout": timeout,
        "limits": httpx2.Limits(max_connections=connections, max_keepalive_connections=8, keepalive_expiry=4),
        "trust_env": False,
        "follow_redirects": False,
        "event_hooks": {"request": [before_sending]},
    }
    if proxy is None:
        return DefaultAioHttpClient(**settings)
    try:
        # the SDK's adapter to aiohttp drops the proxy: httpx's own transport, then
        return httpx2.AsyncClient(**settings, proxy=proxy)
    except (ValueError, ImportError):
        reason = "the proxy of the environment is none that can be used"
        raise SettingsError(
            "HTTP_PROXY, HTTPS_PROXY, ALL_PROXY", reason, "Give an http:// proxy, or set NO_PROXY"
        ) from None


def make_client(endpoint: Endpoint, http: httpx2.AsyncClient) -> AsyncOpenAI:
    """The SDK over ``http``: no retries (they would inflate TTFT unseen), no keys of the environment."""
    with _without_openai_variables():
        return AsyncOpenAI(
            base_url=endpoint.api,
            api_key=endpoint.api_key or "none",
            max_retries=0,
            timeout=http.timeout,
            default_headers={"Accept-Encoding": "identity"},
            http_client=http,
        )


def proxy_of_environment(url: str) -> str | None:
    """The proxy that the environment names for ``url`` (HTTP_PROXY, HTTPS_PROXY, NO_PROXY), None without one."""
    parts = urlsplit(url)
    proxies = getproxies()
    if proxy_bypass(parts.netloc):
        return None
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    # as curl does: a proxy without a scheme is an HTTP proxy
    return f"http://{proxy}" if proxy and "://" not in proxy else proxy
