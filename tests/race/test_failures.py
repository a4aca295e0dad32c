"""What people are told when a lane cannot go on: the cause, the remedy, and never an address or a key."""

from __future__ import annotations

import ssl
from typing import Any, get_args

import httpx2
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.race.failures import REMEDY, UpstreamError, clean, from_exception, from_frame, from_status
from app.race.types import ErrorKind
from app.race.wire import ErrorFrame
from tests.fakes.fixtures import HERE, http_body

REQUEST = httpx2.Request("POST", "http://10.1.2.3:8101/v1/chat/completions")


def test_every_kind_of_trouble_has_a_remedy() -> None:
    assert set(REMEDY) == set(get_args(ErrorKind))
    for kind in get_args(ErrorKind):
        message = UpstreamError(kind, "It happened").error.message
        assert message.startswith("It happened.")
        assert message.endswith(REMEDY[kind])


def error(message: str, **rest: Any) -> bytes:
    import json

    return json.dumps({"error": {"message": message} | rest}).encode()


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, error("bad temperature"), "bad_request"),
        (401, b'{"error":"Unauthorized"}', "unauthorized"),
        (403, b"", "unauthorized"),
        (404, error("The model `x` does not exist.", type="NotFoundError", code=404), "model_not_found"),
        (404, b'{"detail":"Not Found"}', "not_a_model_server"),
        (404, b"<html>nginx</html>", "not_a_model_server"),
        (405, b"", "not_a_model_server"),
        (307, b"", "not_a_model_server"),
        (408, b"", "bad_request"),
        (413, b"", "bad_request"),
        (422, b'{"detail":[{"msg":"x"}]}', "bad_request"),
        (429, error("slow down"), "rate_limited"),
        (500, error("EngineCore"), "server_error"),
        (501, b"", "server_error"),
        (502, b"<html>Bad Gateway</html>", "unavailable"),
        (503, error("asleep"), "unavailable"),
        (504, b"", "unavailable"),
    ],
)
def test_a_status_has_a_kind(status: int, body: bytes, kind: str) -> None:
    found = from_status(status, body)
    assert found.error.kind == kind
    assert "<" not in found.error.message  # no markup of a gateway's page


def test_the_servers_own_words_are_quoted_where_they_help() -> None:
    assert "maximum context length is 2048" in from_status(400, error("maximum context length is 2048")).error.message
    assert "slow down" in from_status(429, error("slow down")).error.message
    assert "secret" not in from_status(401, error("key secret is wrong")).error.message


def test_an_error_in_the_stream_is_quoted() -> None:
    found = from_frame(ErrorFrame("EngineCore encountered an issue"))
    assert found.error.kind == "stream_error"
    assert "EngineCore encountered an issue" in found.error.message


REFUSED = sorted(p.name for p in (HERE / "errors").glob("*.json") if http_body(f"errors/{p.name}")[0] != 200)


@pytest.mark.parametrize("name", REFUSED)
def test_the_answers_of_real_servers(name: str) -> None:
    found = from_status(*http_body(f"errors/{name}"))
    expected = {
        "unknown_model.json": "model_not_found",
        "unknown_model_stream.json": "model_not_found",
        "unknown_route.json": "not_a_model_server",
    }
    assert found.error.kind == expected.get(name, "bad_request")


def caused(outer: Exception, inner: BaseException) -> Exception:
    outer.__cause__ = inner
    return outer


def connection(inner: BaseException) -> Exception:
    return caused(openai.APIConnectionError(request=REQUEST), inner)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (connection(httpx2.ConnectError("All connection attempts failed")), "connection_refused"),
        (connection(caused(httpx2.ConnectError("x"), ConnectionRefusedError(111, "refused"))), "connection_refused"),
        (connection(httpx2.ConnectError("[Errno -2] Name or service not known")), "connection_refused"),
        (connection(httpx2.ConnectTimeout("")), "connect_timeout"),
        (connection(httpx2.PoolTimeout("")), "connect_timeout"),
        (openai.APITimeoutError(request=REQUEST), "connect_timeout"),  # type: ignore[arg-type]
        (
            connection(httpx2.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed certificate (_ssl.c:1006)")),
            "tls",
        ),
        (connection(caused(httpx2.ConnectError("x"), ssl.SSLCertVerificationError("certificate has expired"))), "tls"),
        (connection(httpx2.ConnectError("[SSL: WRONG_VERSION_NUMBER] record layer failure")), "tls"),
        (connection(httpx2.ProxyError("502")), "connection_refused"),
        (connection(httpx2.ReadError("")), "cut_off"),
        (
            connection(httpx2.RemoteProtocolError("peer closed connection without sending complete message body")),
            "cut_off",
        ),
        (httpx2.ReadError("reset"), "cut_off"),
        (ConnectionResetError(104, "reset"), "cut_off"),
        (OSError("x"), "cut_off"),
    ],
)
def test_an_exception_has_a_kind(error: Exception, kind: str) -> None:
    assert from_exception(error).error.kind == kind


def test_an_unknown_host_and_a_bad_certificate_are_named() -> None:
    unknown = connection(httpx2.ConnectError("[Errno -2] Name or service not known"))
    assert "host name is unknown" in from_exception(unknown).error.message
    selfsigned = connection(
        httpx2.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate")
    )
    assert "self-signed certificate" in from_exception(selfsigned).error.message


def test_p39_the_proxy_is_named_when_there_is_one() -> None:
    error = connection(httpx2.ConnectError("All connection attempts failed"))
    assert "HTTP_PROXY" in from_exception(error, proxied=True).error.message
    assert "HTTP_PROXY" not in from_exception(error).error.message


def test_a_loop_of_causes_ends() -> None:
    one, other = httpx2.ReadError("a"), httpx2.ReadError("b")
    one.__cause__, other.__cause__ = other, one
    assert from_exception(one).error.kind == "cut_off"


def test_an_upstream_error_stays_what_it_is() -> None:
    error = UpstreamError("stalled", "x")
    assert from_exception(error) is error


# ------------------------------------------------------------------------------------------------ secrets
SECRETS = [
    "http://10.1.2.3:8101/v1",
    "https://models.example.com/v1?key=abc",
    "10.1.2.3",
    "10.1.2.3:8101",
    "gpu7.example.com:8000",
    "localhost:8101",
    "[::1]:8101",
    "[fd12:3456::1]:8000",
    "fd12:3456::1",
    "sk-proj-abcdefgh12345678",
    "hf_abcdefghijklmnop",
    "Bearer abc.def.ghi",
    "key-1234567890",
    "token-1234567890",
]


AROUND = ["{}", "Cannot connect to {} now", "at ({}), or", "host='{}'", "x={}&y", '"{}"', "{}."]


@pytest.mark.parametrize("secret", SECRETS)
def test_no_address_and_no_key_gets_into_a_message(secret: str) -> None:
    for said in (around.format(secret) for around in AROUND):
        for found in (from_status(400, error(said)), from_status(502, error(said)), from_frame(ErrorFrame(said))):
            assert secret not in found.error.message
            assert secret not in found.raw
            assert secret not in str(found)


@pytest.mark.parametrize(
    "text",
    [
        "8.5 of 10 tokens",
        "max_tokens must be at least 1, got 0.",
        "version 0.32.0: ngram",
        "return_token_ids is unknown",
        "a 3:1 ratio at 10:30",
    ],
)
def test_ordinary_words_stay(text: str) -> None:
    assert clean(text).removesuffix(".") == text.removesuffix(".")


@given(st.text(max_size=500))
def test_a_message_is_one_line_of_bounded_length_that_ends(text: str) -> None:
    found = clean(text)
    assert len(found) <= 301
    assert len(found.splitlines()) <= 1
    assert found.endswith((".", "!", "?", "…"))
