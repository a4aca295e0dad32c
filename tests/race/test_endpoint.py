"""Addresses as people type them, proxies, and a client that takes nothing from the environment."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import anyio
import httpx2
import pytest

from app.errors import SettingsError
from app.race import endpoint as room
from app.race.endpoint import Endpoint, is_local, make_client, make_http, parse_endpoint, proxy_of_environment
from tests.fakes.vllm import FakeVLLM


@pytest.mark.parametrize(
    ("typed", "root"),
    [
        ("http://127.0.0.1:8101", "http://127.0.0.1:8101"),
        ("http://127.0.0.1:8101/", "http://127.0.0.1:8101"),
        ("http://127.0.0.1:8101/v1", "http://127.0.0.1:8101"),
        ("http://127.0.0.1:8101/v1/", "http://127.0.0.1:8101"),
        ("http://127.0.0.1:8101//v1//", "http://127.0.0.1:8101"),
        ("  http://127.0.0.1:8101/v1 ", "http://127.0.0.1:8101"),
        ("https://models.example.com", "https://models.example.com"),
        ("http://gateway.example.com/team/v1", "http://gateway.example.com/team"),
        ("http://[::1]:8101/v1", "http://[::1]:8101"),
        ("http://box", "http://box"),
        ("HTTP://127.0.0.1:8101", "HTTP://127.0.0.1:8101"),
        ("http://host/v11", "http://host/v11"),
    ],
)
def test_p39_every_form_of_an_address_leads_to_the_same_server(typed: str, root: str) -> None:
    found = parse_endpoint("F", typed)
    assert found == Endpoint(root=root, metrics_url=f"{root}/metrics")
    assert found.api == f"{root}/v1"


@pytest.mark.parametrize(
    "typed",
    [
        "",
        "   ",
        "foo",
        "localhost:8000",
        "127.0.0.1:8101",
        "ftp://host",
        "http://",
        "http:///v1",
        "//host",
        "http://host:0",
        "http://host:99999",
        "http://host:abc",
        "http://[::1",
        "http://[nonsense]",
        "http://u:p@host",
        "http://u@host",
        "http://:p@host",
        "http://@host",
        "http://host?x=1",
        "http://host/v1?key=abc",
        "http://host#x",
        "http://ho st:1",
        "http://a\tb:1",
        "http://a\nb:1",
        "http://host/\x00",
        "file:///etc/passwd",
        "unix:///socket",
    ],
)
def test_p39_what_is_no_address_is_one_clear_line(typed: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_endpoint("SPECRACE_BASELINE_URL", typed)
    assert caught.value.field == "SPECRACE_BASELINE_URL"
    assert caught.value.reason
    assert caught.value.remedy
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("typed", ["http://ann:hunter2@host", "ftp://ann:hunter2@host", "http://ann:hunter2@host:0"])
def test_a_password_in_an_address_is_not_repeated(typed: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_endpoint("F", typed)
    assert "hunter2" not in str(caught.value)


def test_a_very_long_address_is_not_printed_whole() -> None:
    with pytest.raises(SettingsError) as caught:
        parse_endpoint("F", "x" * 10_000)
    assert len(str(caught.value)) < 400


def test_the_address_of_the_metrics_can_be_another_one() -> None:
    found = parse_endpoint("F", "http://host/v1", metrics_url="http://host:9090/m")
    assert found.metrics_url == "http://host:9090/m"
    assert parse_endpoint("F", "http://host", metrics_url="  http://host:9090/m\n").metrics_url == "http://host:9090/m"
    with pytest.raises(SettingsError) as caught:
        parse_endpoint("F", "http://host", metrics_url="nonsense")
    assert "metrics" in caught.value.field


def test_an_empty_key_or_model_is_none() -> None:
    found = parse_endpoint("F", "http://host", api_key="", model="")
    assert (found.api_key, found.model) == (None, None)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("http://box:1", "http://box:2", True),
        ("http://BOX:1", "http://box:1", True),
        ("http://127.0.0.1:1", "http://10.0.0.1:1", False),
    ],
)
def test_servers_on_one_host_are_known_by_its_name(one: str, other: str, same: bool) -> None:
    assert (parse_endpoint("F", one).host == parse_endpoint("F", other).host) is same


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("localhost", True),
        ("sub.localhost", True),
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("[::1]", True),
        ("10.1.2.3", True),
        ("172.16.0.1", True),
        ("192.168.1.1", True),
        ("169.254.1.1", True),
        ("fd00::1", True),
        ("fe80::1", True),
        ("box", True),
        ("gpu.local", True),
        ("gpu.internal", True),
        ("0.0.0.0", True),
        ("8.8.8.8", False),
        ("2001:4860:4860::8888", False),
        ("models.example.com", False),
        ("127.0.0.1.example.com", False),
        ("localhost.example.com", False),
        ("notlocal", True),
        ("my.locale", False),
    ],
)
def test_p39_private_hosts_are_told_from_public_ones(host: str, local: bool) -> None:
    assert is_local(host) is local


@pytest.mark.parametrize(
    ("environment", "url", "proxy"),
    [
        ({}, "http://models.example.com", None),
        ({"HTTP_PROXY": "http://p:1"}, "http://models.example.com", "http://p:1"),
        ({"http_proxy": "http://p:1"}, "http://models.example.com:8000", "http://p:1"),
        ({"HTTP_PROXY": "http://p:1"}, "https://models.example.com", None),
        ({"HTTPS_PROXY": "http://p:1"}, "https://models.example.com", "http://p:1"),
        ({"ALL_PROXY": "http://p:1"}, "http://models.example.com", "http://p:1"),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "example.com"}, "http://models.example.com", None),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "*"}, "http://models.example.com", None),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "models.example.com:8000"}, "http://models.example.com:8000", None),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "other.com"}, "http://models.example.com", "http://p:1"),
    ],
)
def test_p39_the_proxy_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], url: str, proxy: str | None
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert proxy_of_environment(url) == proxy


def used_proxy(monkeypatch: pytest.MonkeyPatch, url: str) -> Any:
    """The proxy that requests to ``url`` go through, None when they go straight there."""
    found: list[Any] = []

    def with_proxy(*, proxy: str, **_: Any) -> None:
        found.append(proxy)

    def straight(**_: Any) -> None:
        found.append(None)

    monkeypatch.setattr(
        room, "httpx2", SimpleNamespace(AsyncClient=with_proxy, Timeout=httpx2.Timeout, Limits=httpx2.Limits)
    )
    monkeypatch.setattr(room, "DefaultAioHttpClient", straight)
    make_http(parse_endpoint("F", url), connect_timeout_s=1)
    return found[0]


def test_p39_local_hosts_never_go_through_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    for url in ("http://127.0.0.1:1", "http://[::1]:1", "http://localhost:1", "http://10.0.0.1:1", "http://box:1"):
        assert used_proxy(monkeypatch, url) is None
    assert used_proxy(monkeypatch, "http://models.example.com") == "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ALL_PROXY", "socks5://127.0.0.1:9"),
        ("HTTP_PROXY", "nonsense://x"),
        ("SSL_CERT_FILE", "none.pem"),
    ],
)
def test_an_environment_that_cannot_be_used_is_one_clear_line(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as caught:
        make_http(parse_endpoint("F", "http://models.example.com"), connect_timeout_s=1)
    assert name in str(caught.value) or "proxy" in str(caught.value).lower()
    assert "\n" not in str(caught.value)


class anyio_closed:  # noqa: N801 - reads as a word
    """Closes clients made outside of a loop."""

    def __enter__(self) -> Any:
        self.found: list[Any] = []
        return self.found.append

    def __exit__(self, *_: object) -> None:
        async def close() -> None:
            for client in self.found:
                await client.aclose()

        anyio.run(close)


@pytest.mark.anyio
@pytest.mark.parametrize("key", [None, "key-of-the-lane"])
async def test_p39_the_keys_and_addresses_of_the_environment_are_neither_sent_nor_changed(
    monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    given = {
        "OPENAI_API_KEY": "sk-of-somebody-else",
        "OPENAI_BASE_URL": "http://127.0.0.1:9/v1",
        "OPENAI_ORG_ID": "org",
        "OPENAI_PROJECT_ID": "project",
        "OPENAI_CUSTOM_HEADERS": "x-custom: 1",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    async with FakeVLLM() as fake:
        endpoint = parse_endpoint("F", fake.url, api_key=key)
        async with make_http(endpoint, connect_timeout_s=1) as http:
            client = make_client(endpoint, http)
            assert client.max_retries == 0
            stream = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "x"}], stream=True
            )
            async for _ in stream:
                pass
        (seen,) = fake.posts
    assert {name: os.environ.get(name) for name in given} == given
    head = seen.head.decode().lower()
    assert "somebody-else" not in head
    assert "openai-organization" not in head
    assert "openai-project" not in head
    assert "x-custom" not in head
    assert seen.header("authorization") == (f"Bearer {key}" if key else None)


@pytest.mark.anyio
async def test_no_redirect_is_followed_with_the_key() -> None:
    from tests.fakes.script import Reply

    async with FakeVLLM() as other, FakeVLLM() as fake:
        fake.everything = Reply(status=307, body=b"", headers=(("location", other.url + "/chat/completions"),))
        endpoint = parse_endpoint("F", fake.url, api_key="key-of-the-lane")
        async with make_http(endpoint, connect_timeout_s=1) as http:
            answer = await http.get(f"{fake.url}/models")
        assert answer.status_code == 307
        assert other.requests == []


def test_a_client_reads_no_key_from_the_environment_at_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-somebody-else")
    endpoint = parse_endpoint("F", "http://127.0.0.1:1")
    with anyio_closed() as close:
        http = make_http(endpoint, connect_timeout_s=1)
        close(http)
        assert "somebody-else" not in repr(make_client(endpoint, http).__dict__)
