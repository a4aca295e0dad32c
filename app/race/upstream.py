"""vLLM to Chunks: one streamed request of one lane, raw bytes stamped on arrival and then decoded.

openai-python makes the request (auth, headers, errors); the body is read raw, since its typed stream costs
twenty times as much a chunk and stamps after parsing. ``async with`` always: leaving a stream any other way lets the
server generate on for nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any

import anyio
import httpx2
import openai
from msgspec import Struct, structs
from openai import AsyncAPIResponse, AsyncOpenAI

from app.race.clock import MonotonicNs, monotonic_ns
from app.race.endpoint import CONNECTIONS, Endpoint, is_local, make_client, make_http, on_send, proxy_of_environment
from app.race.failures import UpstreamError, from_exception, from_frame, from_status
from app.race.sse_lines import SseLines, SseMessage
from app.race.types import Chunk, RaceSpec
from app.race.wire import BadFrame, ChunkDecoder, ErrorFrame, error_in

Sent = Callable[[int, bool], None]
"""Called with the stamp (ns) of a request going out, and whether it is a second attempt."""
Receive = Callable[[Chunk], None]
"""Called with every chunk, in order, on the event loop."""


LOOK_EVERY_S = 0.25
"""How late a time limit may be noticed."""


class Timeouts(Struct, frozen=True, kw_only=True):
    """Limits in seconds: connecting, from sending to the first token, between two chunks afterwards."""

    connect_s: float = 3.0
    first_token_s: float = 120.0
    stall_s: float = 10.0


class Dialect(Struct, frozen=True, kw_only=True):
    """What a server takes. Starts with everything vLLM has; a server that refuses a field loses it, once."""

    chat: bool = True
    token_ids: bool = True
    continuous_usage: bool = True
    spec_details: bool = True
    ignore_eos: bool = True
    cache_salt: bool = True

    def after_refusal(self, message: str) -> Dialect | None:
        """The dialect to try after a 400 with ``message``, None when the refusal is about something else."""
        text = message.lower()
        if self.chat and ("chat template" in text or "chat_template" in text):
            return structs.replace(self, chat=False)
        for field, name in (
            ("token_ids", "return_token_ids"),
            ("continuous_usage", "continuous_usage_stats"),
            ("spec_details", "return_spec_tokens_details"),
            ("ignore_eos", "ignore_eos"),
            ("cache_salt", "cache_salt"),
        ):
            if getattr(self, field) and name in text:
                return structs.replace(self, **{field: False})
        return None


def request_body(spec: RaceSpec, model: str, dialect: Dialect) -> dict[str, Any]:
    """The keyword arguments of the SDK's create(): equal for both lanes but for ``model`` (P43.3)."""
    options: dict[str, Any] = {"include_usage": True}
    if dialect.continuous_usage:
        options["continuous_usage_stats"] = True
    extra: dict[str, Any] = {}
    if dialect.token_ids:
        extra["return_token_ids"] = True
    if dialect.spec_details:
        extra["return_spec_tokens_details"] = True  # SGLang's record of drafts; vLLM and llama.cpp do not look at it
    if dialect.ignore_eos and spec.sampling.ignore_eos:
        extra["ignore_eos"] = True
    if dialect.cache_salt and spec.cache_salt is not None:
        extra["cache_salt"] = spec.cache_salt
    body: dict[str, Any] = {
        "model": model,
        "temperature": spec.sampling.temperature,
        "top_p": spec.sampling.top_p,
        "seed": spec.sampling.seed,
        "max_tokens": spec.sampling.max_tokens,
        "stream": True,
        "stream_options": options,
        "extra_body": extra,
    }
    if dialect.chat:
        system = [{"role": "system", "content": spec.system}] if spec.system else []
        body["messages"] = [*system, {"role": "user", "content": spec.prompt}]
    else:
        body["prompt"] = f"{spec.system}\n\n{spec.prompt}" if spec.system else spec.prompt
    return body


class Upstream:
    """One lane's server. ``dialect`` is what it has been found to take."""

    def __init__(
        self,
        endpoint: Endpoint,
        timeouts: Timeouts,
        clock: MonotonicNs = monotonic_ns,
        *,
        connections: int = CONNECTIONS,
    ) -> None:
        self.endpoint = endpoint
        self.dialect = Dialect()
        self._timeouts = timeouts
        self._clock = clock
        self._http = make_http(endpoint, connect_timeout_s=timeouts.connect_s, connections=connections)
        self._client: AsyncOpenAI = make_client(endpoint, self._http)
        self._proxied = not is_local(endpoint.host) and proxy_of_environment(endpoint.root) is not None

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def get(self, path: str, *, timeout_s: float) -> httpx2.Response:
        """GET below the server root (or the metrics address), whatever the status.

        Raises:
            UpstreamError: no answer.
        """
        url = self.endpoint.metrics_url if path == "/metrics" else f"{self.endpoint.root}{path}"
        return await self._ask("GET", url, None, timeout_s)

    async def post(self, path: str, body: dict[str, Any], *, timeout_s: float) -> httpx2.Response:
        """POST ``body`` as JSON below the server root, whatever the status. Never for a race: nothing is stamped.

        Raises:
            UpstreamError: no answer.
        """
        return await self._ask("POST", f"{self.endpoint.root}{path}", body, timeout_s)

    async def _ask(self, method: str, url: str, body: dict[str, Any] | None, timeout_s: float) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {self.endpoint.api_key}"} if self.endpoint.api_key else {}
        try:
            with anyio.fail_after(timeout_s):
                return await self._http.request(method, url, json=body, headers=headers)
        except TimeoutError:
            raise UpstreamError("connect_timeout", "No answer in time") from None
        except httpx2.HTTPError as error:
            raise from_exception(error, proxied=self._proxied) from None

    async def run(self, spec: RaceSpec, model: str, sent: Sent, receive: Receive) -> None:
        """Send the request and hand each chunk to ``receive`` as it comes; returns at the proper end of the answer.

        ``sent(at_ns, again)`` is called when a request goes out. A server without a chat template gets the prompt as a
        completion, and a field that it refuses is left out; both are remembered, and no generation is lost since the
        refusal comes first.

        Raises:
            UpstreamError: the lane cannot go on; chunks already handed over stand.
        """
        for again in (False, True, True, True, True, True, True):
            try:
                return await self._attempt(spec, model, again, sent, receive)
            except openai.BadRequestError as error:
                failure = from_exception(error, proxied=self._proxied)
                dialect = self.dialect.after_refusal(f"{error.message} {failure.raw}")
                if dialect is None:
                    raise failure from None
                self.dialect = dialect
        raise UpstreamError("bad_request", "The server refuses every form of the request")

    async def _attempt(self, spec: RaceSpec, model: str, again: bool, sent: Sent, receive: Receive) -> None:
        progress = _Progress(receive)
        with anyio.CancelScope() as scope, _watchdog(scope, progress, self._timeouts):
            token = on_send.set(lambda: sent(self._clock(), again))
            try:
                async with self._request(spec, model) as response:
                    await _check_is_stream(response)
                    await self._read(response, progress)
            except openai.BadRequestError:
                raise
            except (openai.OpenAIError, httpx2.HTTPError, OSError) as error:
                raise from_exception(error, proxied=self._proxied) from None
            finally:
                on_send.reset(token)
        if scope.cancelled_caught:
            raise self._timed_out(progress.tokens)

    def _timed_out(self, began: bool) -> UpstreamError:
        if not began:
            return UpstreamError("first_token_timeout", f"No token within {self._timeouts.first_token_s:g} s")
        return UpstreamError("stalled", f"Nothing came for {self._timeouts.stall_s:g} s")

    def _request(self, spec: RaceSpec, model: str) -> AbstractAsyncContextManager[AsyncAPIResponse[Any]]:
        body = request_body(spec, model, self.dialect)
        resource = self._client.chat.completions if self.dialect.chat else self._client.completions
        create: Any = resource.with_streaming_response.create
        return create(**body)

    async def _read(self, response: AsyncAPIResponse[Any], progress: _Progress) -> None:
        """Read until [DONE] or the end of the body; raises UpstreamError for an end that is none."""
        lines, decoder = SseLines(), ChunkDecoder()
        async for received in response.http_response.aiter_bytes():
            at_ns = self._clock()
            try:
                messages = lines.feed(received)
            except OverflowError as error:
                raise UpstreamError("bad_stream", str(error)) from None
            for message in messages:
                if message.data == b"[DONE]":
                    if not progress.anything:
                        raise UpstreamError(
                            "bad_stream", "No answer: the server ended the stream without sending anything"
                        )
                    return
                chunk = _decode(decoder, message, at_ns)
                if chunk is not None:
                    progress.take(chunk)
        if not progress.finished:
            raise UpstreamError(
                "cut_off",
                "The stream ended in the middle of the answer"
                if progress.anything
                else "The server closed the stream without an answer",
            )


class _Progress:
    """How far one attempt has come, for its time limits and for judging its end."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.anything = self.tokens = self.finished = False
        self.chunks = 0

    def take(self, chunk: Chunk) -> None:
        """Note the chunk and hand it on."""
        self.anything = True
        self.chunks += 1
        self.tokens = self.tokens or bool(chunk.text or chunk.reasoning or chunk.token_ids or chunk.tool_call)
        self.finished = self.finished or chunk.finish_reason is not None
        self._receive(chunk)


@contextmanager
def _watchdog(scope: anyio.CancelScope, progress: _Progress, limits: Timeouts) -> Generator[None]:
    """Cancel ``scope`` when no token comes for too long. One timer that looks again when it is due: moving a deadline
    at every chunk would cost more than decoding the chunk."""
    loop = asyncio.get_running_loop()
    # chunks seen so far, and until when the next one has to come
    seen, until = 0, loop.time() + limits.first_token_s
    timer: asyncio.TimerHandle | None = None

    def look() -> None:
        nonlocal seen, until, timer
        now = loop.time()
        if progress.tokens and progress.chunks != seen:
            seen, until = progress.chunks, now + limits.stall_s
        if now >= until:
            scope.cancel()
            return
        timer = loop.call_later(min(until - now, LOOK_EVERY_S), look)

    look()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()


def _decode(decoder: ChunkDecoder, message: SseMessage, at_ns: int) -> Chunk | None:
    """One message as a Chunk; keep-alive frames of gateways are nothing (P10)."""
    if not message.data.strip():
        return None
    try:
        return decoder.decode(message.data, at_ns)
    except ErrorFrame as frame:
        raise from_frame(frame) from None
    except BadFrame as bad:
        if message.event not in ("", "message", "error"):
            return None
        raise UpstreamError("bad_stream", f"The answer cannot be read: {bad.reason}") from None


async def _check_is_stream(response: AsyncAPIResponse[Any]) -> None:
    """HTTP 200 is not enough: a login page is 200 too (P41).

    Raises:
        UpstreamError: the body is no event stream.
    """
    kind = response.http_response.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind == "text/event-stream":
        return
    body = await response.read()
    frame = error_in(body[:100_000])
    if frame is not None:
        raise from_status(frame.code, body) if frame.code and frame.code >= 400 else from_frame(frame)
    name = {"text/html": "HTML", "": "no content type"}.get(kind, kind[:60])
    raise UpstreamError("not_a_model_server", f"Not a model server ({name} instead of a token stream)")
