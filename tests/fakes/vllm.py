"""A scriptable look-alike of a vLLM OpenAI server, for tests only.

    async with FakeVLLM(script=[ROLE, TOK("Hi"), FIN("stop"), USE(1), DONE]) as fake:
        ... fake.url ... fake.posts ... fake.live ...

    with FakeThread() as thread:                  # a loop of its own, for tests that are not async
        fake = thread.start(FakeVLLM(...))

    python -m tests.fakes.vllm --port 9001 --rate 200 --tokens-per-chunk 1,4,5 --speculative 4

The HTTP is written by hand on a socket, so that half frames, resets, silence without FIN, late headers and
byte-by-byte bodies are all possible. The words of a script are in tests/fakes/script.py.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import ssl
import struct
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Self, TypeVar

import uvloop

from tests.fakes.fixtures import HERE, recording
from tests.fakes.metrics import CONTENT_TYPE, Metrics
from tests.fakes.script import (
    CLOSE,
    DONE,
    END,
    ERR,
    FIN,
    HANG,
    NO_TEMPLATE,
    RAW,
    RESET,
    ROLE,
    SLEEP,
    TOK,
    USE,
    VERSION,
    Chunk,
    Move,
    Renderer,
    Reply,
    Script,
    Signal,
    Sleep,
    Step,
    Tok,
    Use,
    paced,
    spec_record,
)

__all__ = [
    "CLOSE",
    "DONE",
    "END",
    "ERR",
    "FIN",
    "HANG",
    "RAW",
    "RESET",
    "ROLE",
    "SLEEP",
    "TOK",
    "USE",
    "Chunk",
    "FakeThread",
    "FakeVLLM",
    "Metrics",
    "Move",
    "Reply",
    "Seen",
    "Tok",
    "Use",
    "full_backlog_port",
    "paced",
    "recording",
    "refused_port",
    "spec_record",
]

T = TypeVar("T")
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
DETOKENIZE = "/detokenize"
NEVER = float("inf")


@dataclass
class Seen:
    """One request as it arrived. Times are time.perf_counter(); ``sent`` has one for each chunk with tokens."""

    method: str
    path: str
    head: bytes
    headers: list[tuple[str, str]]
    body: bytes
    connection: int
    at: float
    ended_at: float | None = None
    peer_closed_at: float | None = None
    sent_steps: int = 0
    sent: list[float] = field(default_factory=list)
    sent_tokens: int = 0

    @property
    def ttft_ms(self) -> float:
        """First token after the request, as the server did it."""
        return (self.sent[0] - self.at) * 1000

    @property
    def e2e_ms(self) -> float:
        """Last token after the request, as the server did it."""
        return (self.sent[-1] - self.at) * 1000

    @property
    def tpot_ms(self) -> float:
        """Time per output token, as the server did it."""
        return (self.sent[-1] - self.sent[0]) * 1000 / (self.sent_tokens - 1)

    @property
    def rates(self) -> bool:
        """Whether this asks for the log-probabilities of given tokens, not for an answer."""
        return b'"logprob_token_ids"' in self.body

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.body)

    @property
    def prompt(self) -> str:
        body = self.json
        if "messages" in body:
            return str(body["messages"][-1]["content"])
        return str(body.get("prompt", ""))

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


Answer = Script | Reply
Chooser = Callable[[Seen], Answer]


class _Reader(asyncio.StreamReader):
    """Tells at once when the peer has gone, also while nobody reads."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=2**24, loop=loop)
        self.gone_at: float | None = None
        self.on_gone: Callable[[], object] | None = None

    def _gone(self) -> None:
        if self.gone_at is None:
            self.gone_at = time.perf_counter()
            if self.on_gone is not None:
                self.on_gone()

    def feed_eof(self) -> None:
        super().feed_eof()
        self._gone()

    def set_exception(self, exc: BaseException) -> None:
        super().set_exception(exc)
        self._gone()


def words_as_ids(text: str) -> list[int]:
    """An id for each word or sign: as many as real text has, roughly, and the same for the same text."""
    return [10 + zlib.crc32(piece.encode()) % 200_000 for piece in re.findall(r"\w+|[^\w\s]|\s+(?=\s)", text)]


@dataclass
class FakeVLLM:
    """One fake server. ``script`` answers every POST that neither ``then()`` nor ``on()`` claims.

    ``honour`` names what it does when asked: "token_ids", "usage", "continuous". ``extras`` False drops every
    field that only vLLM has (token_ids, stop_reason, ...), as other servers do. ``speculative`` is k.
    ``ratings`` are the log-probabilities of tokens at any place; None: the server was started without.
    ``loaded_from`` is the ``root`` of /v1/models (a path or a repository), ``tokenizer`` what /tokenize answers with.
    ``routes`` replaces the answer of any path; ``everything`` that of all of them.
    """

    script: Answer | Chooser = (ROLE, TOK("Hello"), TOK(" world"), FIN("stop"), USE(), DONE)
    model: str = "m"
    loaded_from: str | None = None
    tokenizer: Callable[[str], list[int]] = words_as_ids
    owned_by: str = "vllm"
    speculative: int | None = None
    honour: frozenset[str] | set[str] = frozenset({"token_ids", "usage", "continuous"})
    extras: bool = True
    api_key: str | None = None
    chat_template: bool = True
    prompt_tokens: int = 20
    max_model_len: int = 2048
    tls: bool = False
    host: str = "127.0.0.1"
    port: int = 0
    metrics: Metrics = field(default_factory=Metrics)
    fingerprint: str = f"vllm-{VERSION}-00c0ffee"
    fixed_id: str = ""
    fixed_created: int | None = None
    ratings: dict[int, float] | None = None
    names_ratings: bool = True
    """Whether it knows logprob_token_ids (vLLM 0.32); before, the best tokens are listed, whatever is asked for."""
    routes: dict[str, Reply] = field(default_factory=dict)
    everything: Reply | None = None

    requests: list[Seen] = field(default_factory=list)
    live: int = 0
    streaming: int = 0
    max_streaming: int = 0
    connections: int = 0
    closed_at: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._by_marker: list[tuple[str, Answer | Chooser]] = []
        self._queue: deque[Answer | Chooser] = deque()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.spelled: dict[int, str] = {}
        if self.metrics.model == "m":
            self.metrics.model = self.model
        if self.metrics.spec_k is None:
            self.metrics.spec_k = self.speculative

    # ------------------------------------------------------------------------------ what a test says
    def on(self, marker: str, answer: Answer | Chooser) -> None:
        """``answer`` for every POST whose prompt holds ``marker``; the newest wins."""
        self._by_marker.insert(0, (marker, answer))

    def then(self, *answers: Answer | Chooser) -> None:
        """One answer each for the next POSTs, before anything else."""
        self._queue.extend(answers)

    # ------------------------------------------------------------------------------ what a test reads
    @property
    def root(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return self.root + "/v1"

    @property
    def posts(self) -> list[Seen]:
        """Requests for an answer."""
        asked = [seen for seen in self.requests if seen.method == "POST" and seen.path.split("?")[0] != DETOKENIZE]
        return [seen for seen in asked if not seen.rates]

    @property
    def rated(self) -> list[Seen]:
        """Requests for the log-probabilities of tokens."""
        return [seen for seen in self.requests if seen.rates]

    def posts_with(self, marker: str) -> list[Seen]:
        return [seen for seen in self.posts if marker in seen.prompt]

    def gets(self, path: str) -> list[Seen]:
        return [seen for seen in self.requests if seen.method == "GET" and seen.path.split("?")[0] == path]

    def forget(self) -> None:
        self.requests.clear()
        self.max_streaming = self.streaming

    # ------------------------------------------------------------------------------ life
    async def start(self) -> FakeVLLM:
        loop = asyncio.get_running_loop()
        context = None
        if self.tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(HERE / "selfsigned.pem")

        def protocol() -> asyncio.StreamReaderProtocol:
            reader = _Reader(loop)
            return asyncio.StreamReaderProtocol(
                reader, lambda _, writer: self._spawn(self._connection(reader, writer)), loop=loop
            )

        self._server = await loop.create_server(
            protocol, self.host, self.port, ssl=context, backlog=512, reuse_address=True
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        """The process dies: nobody listens any more and every connection ends."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._server = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ------------------------------------------------------------------------------ HTTP
    async def _connection(self, reader: _Reader, writer: asyncio.StreamWriter) -> None:
        self.live += 1
        self.connections += 1
        number = self.connections
        task = asyncio.current_task()
        assert task is not None
        try:
            while (seen := await _read_request(reader, number)) is not None:
                self.requests.append(seen)
                reader.on_gone = task.cancel
                try:
                    keep = reader.gone_at is None and await self._answer(seen, writer)
                finally:
                    reader.on_gone = None
                    seen.ended_at = time.perf_counter()
                    seen.peer_closed_at = reader.gone_at
                if not keep:
                    break
        except asyncio.CancelledError:
            if reader.gone_at is None:  # the server stops
                _reset(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.live -= 1
            if reader.gone_at is not None:
                self.closed_at.append(reader.gone_at)
            with contextlib.suppress(Exception):
                writer.close()

    async def _answer(self, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        """True when the connection may serve another request."""
        reply = self._route(seen)
        if reply.headers_after_s == NEVER:
            await asyncio.Event().wait()
        if reply.headers_after_s:
            await asyncio.sleep(reply.headers_after_s)
        if reply.body is not None:
            return await self._plain(reply, writer)
        body = seen.json
        if not body.get("stream"):
            return await self._plain(self._whole(reply, seen), writer)
        self.streaming += 1
        self.max_streaming = max(self.max_streaming, self.streaming)
        try:
            return await self._stream(reply, seen, writer)
        finally:
            self.streaming -= 1

    async def _plain(self, reply: Reply, writer: asyncio.StreamWriter) -> bool:
        assert reply.body is not None
        kind = [("content-type", reply.content_type)] if reply.content_type else []
        writer.write(_head(reply, [("content-length", str(len(reply.body))), *kind]) + reply.body)
        await writer.drain()
        return True

    async def _stream(self, reply: Reply, seen: Seen, writer: asyncio.StreamWriter) -> bool:
        renderer = self._renderer(seen, reply)
        kind = [("content-type", reply.content_type)] if reply.content_type else []
        writer.write(_head(reply, [*kind, ("vary", "Origin"), ("transfer-encoding", "chunked")], vary=False))
        loop = asyncio.get_running_loop()
        due = loop.time()
        reason = "abort"
        try:
            for i, step in enumerate(reply.steps):
                seen.sent_steps = i
                if isinstance(step, Sleep):
                    due += step.s
                    await asyncio.sleep(max(0.0, due - loop.time()))
                elif isinstance(step, Signal):
                    if step is HANG:
                        await asyncio.Event().wait()
                    if step is RESET:
                        _reset(writer)
                    if step is not END:
                        return False
                    break
                elif isinstance(step, Move):
                    self.metrics.move(step)
                elif data := renderer.render(step):
                    await self._send(data, writer, reply)
                    if isinstance(step, Tok):
                        tokens = step.n if step.ids is None else len(step.ids)
                        if tokens:
                            seen.sent.append(time.perf_counter())
                            seen.sent_tokens += tokens
                        self.spelled.update(step.spelled())
                        self.metrics.step(tokens, first=renderer.tokens == tokens)
                        reason = step.finish or reason
                if i % 50 == 49:
                    await asyncio.sleep(0)
            seen.sent_steps = len(reply.steps)
            writer.write(b"0\r\n\r\n")
            await writer.drain()
            return True
        finally:
            self.metrics.request_done(len(renderer.prompt_ids), reason)

    async def _send(self, data: bytes, writer: asyncio.StreamWriter, reply: Reply) -> None:
        if not reply.byte_by_byte:
            writer.write(b"%x\r\n%b\r\n" % (len(data), data))
            await writer.drain()
            return
        for byte in data:
            writer.write(b"1\r\n%b\r\n" % bytes((byte,)))
            await asyncio.sleep(0)

    # ------------------------------------------------------------------------------ vLLM
    def _renderer(self, seen: Seen, reply: Reply) -> Renderer:
        body = seen.json
        options = body.get("stream_options") or {}
        honour = self.honour if reply.honour is None else reply.honour
        usage = bool(options.get("include_usage")) and "usage" in honour
        return Renderer(
            shape="chat" if seen.path.endswith(CHAT) else "completion",
            model=str(body.get("model")),
            prompt_ids=reply.prompt_ids if reply.prompt_ids is not None else range(2, 2 + self.prompt_tokens),
            want_ids=bool(body.get("return_token_ids")) and "token_ids" in honour,
            want_usage=usage,
            want_continuous=usage and bool(options.get("continuous_usage_stats")) and "continuous" in honour,
            extras=self.extras,
            spec_k=self.speculative,
            fingerprint=self.fingerprint,
            id=self.fixed_id,
            **({} if self.fixed_created is None else {"created": self.fixed_created}),
        )

    def _route(self, seen: Seen) -> Reply:
        path = seen.path.split("?")[0]
        if self.everything is not None:
            return self.everything
        if path in self.routes:
            return self.routes[path]
        wrong_key = self.api_key is not None and seen.header("authorization") != f"Bearer {self.api_key}"
        if wrong_key and path.startswith("/v1"):
            return Reply.json(401, {"error": "Unauthorized"}, headers=(("vary", ""),))
        if path == "/tokenize":
            return self._tokenize(seen)
        if path == DETOKENIZE and self.extras and seen.method == "POST":
            # as a tokenizer does: half a character has no text of its own
            texts = [self.spelled.get(token_id, "\ufffd") for token_id in seen.json["tokens"]]
            return Reply.json(200, {"prompt": "".join(texts)})
        if path not in (CHAT, COMPLETIONS):
            return self._get(path)
        if seen.method != "POST":
            return Reply.json(405, {"detail": "Method Not Allowed"}, headers=(("allow", "POST"),))
        return self._generate(seen, path)

    def _get(self, path: str) -> Reply:
        match path:
            case "/health" | "/ping":
                return Reply(body=b"", content_type="")
            case "/version":
                return Reply.json(200, {"version": VERSION})
            case "/load":
                return Reply.json(200, {"server_load": self.streaming})
            case "/v1/models":
                return Reply.json(200, self._models())
            case "/metrics":
                return self._metrics()
            case _:
                return Reply.json(404, {"detail": "Not Found"})

    def _tokenize(self, seen: Seen) -> Reply:
        if seen.method != "POST":
            return Reply.json(405, {"detail": "Method Not Allowed"}, headers=(("allow", "POST"),))
        body = seen.json
        if "prompt" not in body and "messages" not in body:
            given = f"'msg': 'Field required', 'input': '<dict of {len(body)} items>'"
            missing = [f"  {{'type': 'missing', 'loc': 'body.{name}', {given}}}" for name in ("prompt", "messages")]
            return Reply.error(400, "\n".join(["2 validation errors:", *missing]), "Bad Request", "body.prompt")
        if body.get("model") not in (None, self.model):
            text = f"The model `{body.get('model')}` does not exist. Valid aliases: {self.model}."
            return Reply.error(404, text, "NotFoundError", "model")
        if "prompt" not in body and not self.chat_template:
            return Reply.error(400, NO_TEMPLATE, "BadRequestError")
        text = body["prompt"] if "prompt" in body else "".join(message["content"] for message in body["messages"])
        tokens = [2, *self.tokenizer(text)]
        answer = {"count": len(tokens), "max_model_len": self.max_model_len, "tokens": tokens, "token_strs": None}
        return Reply.json(200, answer)

    def _generate(self, seen: Seen, path: str) -> Reply:
        try:
            body = json.loads(seen.body)
        except ValueError as error:
            detail = "'loc': 'body.0', 'msg': 'JSON decode error', 'input': '<dict of 0 items>'"
            detail = f"{{'type': 'json_invalid', {detail}, 'ctx': {{'error': '{error}'}}}}"
            return Reply.error(400, "1 validation error:\n  " + detail, "Bad Request", "body.0")
        missing = "messages" if path == CHAT else "prompt"
        if missing not in body:
            if path == CHAT:
                detail = f"'loc': 'body.messages', 'msg': 'Field required', 'input': '<dict of {len(body)} items>'"
                detail = f"{{'type': 'missing', {detail}}}"
                return Reply.error(400, "1 validation error:\n  " + detail, "Bad Request", "body.messages")
            text = "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)"
            return Reply.error(400, text, "BadRequestError", "prompt")
        limit = body.get("max_tokens")
        if limit is not None and limit < 1:
            text = f"max_tokens must be at least 1, got {limit}. (parameter=max_tokens, value={limit})"
            return Reply.error(400, text, "BadRequestError", "max_tokens")
        if body.get("model") != self.model:
            text = f"The model `{body.get('model')}` does not exist. Valid aliases: {self.model}."
            return Reply.error(404, text, "NotFoundError", "model")
        if path == CHAT and not self.chat_template:
            return Reply.error(400, NO_TEMPLATE, "BadRequestError")
        if seen.rates:
            return self._rating(body)
        answer: Answer | Chooser
        if self._queue:
            answer = self._queue.popleft()
        else:
            answer = next((a for marker, a in self._by_marker if marker in seen.prompt), self.script)
        if callable(answer):
            answer = answer(seen)
        return answer if isinstance(answer, Reply) else Reply(answer)

    def _rating(self, body: dict[str, Any]) -> Reply:
        """As vLLM 0.32.0 with the packaged Gemma answered, asked by hand."""
        if self.ratings is None:
            text = f"Requested sample logprobs of {body['logprobs']}, which is greater than max allowed: 0"
            return Reply.error(400, text, "BadRequestError", "logprobs")
        best = sorted(self.ratings, key=lambda token: -self.ratings[token])[: body["logprobs"]]  # type: ignore[index]
        listed = dict.fromkeys([best[0], *body["logprob_token_ids"]] if self.names_ratings else best)
        name = str if not body.get("return_tokens_as_token_ids") else lambda token: f"token_id:{token}"
        top = {name(token): self.ratings.get(token, -20.798355102539062) for token in listed}
        first = name(best[0])
        logprobs = {"text_offset": [0], "token_logprobs": [top[first]], "tokens": [first], "top_logprobs": [top]}
        choice = {"index": 0, "text": "2", "logprobs": logprobs, "finish_reason": "length", "stop_reason": None}
        choice |= {"token_ids": None, "prompt_logprobs": None, "prompt_token_ids": None, "routed_experts": None}
        return Reply.json(200, {"id": "cmpl-1", "object": "text_completion", "model": self.model, "choices": [choice]})

    def _whole(self, reply: Reply, seen: Seen) -> Reply:
        """The steps as one answer that is not streamed."""
        toks = [step for step in reply.steps if isinstance(step, Tok)]
        text = "".join(tok.text for tok in toks)
        ids = [token for tok in toks for token in tok.token_ids()]
        finish = next((tok.finish for tok in reversed(toks) if tok.finish), "stop")
        renderer = self._renderer(seen, reply)
        chat = renderer.shape == "chat"
        mine, prompted = (ids, list(renderer.prompt_ids)) if renderer.want_ids else (None, None)
        message = {"role": "assistant", "content": text, "refusal": None, "annotations": None, "audio": None}
        said = {"message": message | {"function_call": None, "reasoning": None}} if chat else {"text": text}
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": finish, "stop_reason": None}
        choice |= {"token_ids": mine} if chat else {"token_ids": mine, "prompt_logprobs": None}
        choice |= {"routed_experts": None} if chat else {"prompt_token_ids": prompted, "routed_experts": None}
        top = {"prompt_logprobs": None, "prompt_token_ids": prompted, "prompt_text": None} if chat else {}
        prompt = len(renderer.prompt_ids)
        return Reply.json(
            200,
            {
                "id": renderer.id,
                "object": "chat.completion" if chat else "text_completion",
                "created": renderer.created,
                "model": renderer.model,
                "choices": [choice],
                "service_tier": None,
                "system_fingerprint": self.fingerprint,
                "usage": {
                    "prompt_tokens": prompt,
                    "total_tokens": prompt + len(ids),
                    "completion_tokens": len(ids),
                    "prompt_tokens_details": None,
                    "completion_tokens_details": None,
                },
                **top,
                "kv_transfer_params": None,
                "ec_transfer_params": None,
                "metrics": None,
            },
        )

    def _models(self) -> dict[str, Any]:
        permission = {"id": "modelperm-00c0ffee00c0ffee", "object": "model_permission", "created": int(time.time())}
        permission |= {"allow_create_engine": False, "allow_sampling": True, "allow_logprobs": True}
        permission |= {"allow_search_indices": False, "allow_view": True, "allow_fine_tuning": False}
        permission |= {"organization": "*", "group": None, "is_blocking": False}
        model = {"id": self.model, "object": "model", "created": int(time.time()), "owned_by": self.owned_by}
        model |= {
            "root": self.loaded_from or self.model,
            "parent": None,
            "max_model_len": self.max_model_len,
            "permission": [permission],
        }
        return {"object": "list", "data": [model]}

    def _metrics(self) -> Reply:
        match self.metrics.mode:
            case "404":
                return Reply.json(404, {"detail": "Not Found"})
            case "401":
                return Reply.json(401, {"error": "Unauthorized"})
            case "500":
                return Reply(status=500, body=b"Internal Server Error", content_type="text/plain; charset=utf-8")
            case "html":
                return Reply(body=LOGIN_PAGE, content_type="text/html; charset=utf-8")
            case "hang":
                return Reply(headers_after_s=NEVER)
            case "ok":
                return Reply(
                    body=self.metrics.render().encode(),
                    content_type=CONTENT_TYPE,
                    headers_after_s=self.metrics.delay_s,
                )


LOGIN_PAGE = (
    b"<!doctype html><html><head><title>Conference Wi-Fi</title></head><body>"
    b"<h1>Please log in</h1><script>window.pwned=1</script></body></html>"
)


async def _read_request(reader: _Reader, connection: int) -> Seen | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    lines = head.decode("latin-1").split("\r\n")
    method, path, _ = lines[0].split(" ", 2)
    headers = [(k, v.strip()) for k, _, v in (line.partition(":") for line in lines[1:] if line)]
    lower = {k.lower(): v for k, v in headers}
    body = b""
    if "chunked" in lower.get("transfer-encoding", ""):
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readuntil(b"\r\n")
    elif length := int(lower.get("content-length", "0")):
        body = await reader.readexactly(length)
    return Seen(method, path, head, headers, body, connection, time.perf_counter())


def _head(reply: Reply, headers: Sequence[tuple[str, str]], *, vary: bool = True) -> bytes:
    own = {name for name, _ in reply.headers}
    lines = [f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}"]
    lines += [f"date: {formatdate(usegmt=True)}", "server: uvicorn"]
    lines += [f"{name}: {value}" for name, value in reply.headers if value]
    lines += [f"{name}: {value}" for name, value in headers]
    if vary and "vary" not in own:
        lines.append("vary: Origin")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


# ---------------------------------------------------------------------------------- ports that misbehave
@contextlib.contextmanager
def refused_port() -> Iterator[int]:
    """A port that nobody listens on, and that nobody else gets meanwhile."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


@contextlib.contextmanager
def full_backlog_port() -> Iterator[int]:
    """A port where connecting neither succeeds nor fails (its queue of connections is full)."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        port = server.getsockname()[1]
        for _ in range(4):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", port))
        yield port


class FakeThread:
    """An event loop in a thread of its own: the pace of the fakes does not depend on what the test does."""

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fakes", daemon=True)
        self._thread.start()
        self._fakes: list[FakeVLLM] = []
        return self

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def start(self, fake: FakeVLLM) -> FakeVLLM:
        self._fakes.append(fake)
        return self.run(fake.start())

    def stop(self, fake: FakeVLLM) -> None:
        self.run(fake.stop())

    def __exit__(self, *_: object) -> None:
        for fake in self._fakes:
            self.run(fake.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


# ---------------------------------------------------------------------------------- as a process
_TALE = (
    "The keeper lit the lamp and counted the boats that came home before the storm , one light for each , "
    "and wrote their names in the book as her mother had taught her to . Nothing was said for a long time . "
    "Then the wind turned and the water grew quiet .\n"
)
WORDS = _TALE.split(" ")


def spoken(tokens: int, *, rate: float, per_chunk: Sequence[int], ttft_s: float, spec: bool) -> list[Step]:
    """Readable words, one token each, in chunks of the sizes in ``per_chunk`` again and again."""
    steps: list[Step] = [ROLE, Sleep(ttft_s)]
    at = chunk = 0
    while at < tokens:
        size = 1 if at == 0 else per_chunk[chunk % len(per_chunk)]
        chunk += 1
        end = min(tokens, at + size)
        numbers = range(at, end)
        text = "".join((" " if i else "") + WORDS[i % len(WORDS)] for i in numbers)
        ids = tuple(5000 + i % len(WORDS) for i in numbers)
        steps.append(Tok(text, len(ids), ids=ids, finish="length" if end == tokens else None))
        at = end
        if at < tokens:
            steps.append(Sleep(1 / rate))
    return [*steps, Use(spec="auto" if spec else None), DONE]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fakes.vllm", description="A fake vLLM server, for tests.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 chooses a free one, printed on the first line")
    parser.add_argument("--model", default="fake-model")
    parser.add_argument("--rate", type=float, default=50.0, help="chunks a second")
    parser.add_argument("--ttft", type=float, default=0.1, help="seconds to the first token")
    parser.add_argument("--tokens", type=int, help="how many (default: the request's max_tokens)")
    parser.add_argument("--tokens-per-chunk", default="1", help="e.g. 4, or a pattern such as 1,4,3,5")
    parser.add_argument("--speculative", type=int, metavar="K", help="report speculation with k drafted tokens")
    parser.add_argument("--fixture", help="replay a recording, e.g. sse/json_together_speculative")
    parser.add_argument("--scale", type=float, default=1.0, help="pace of the recording: 0.5 is twice as fast")
    parser.add_argument("--api-key")
    parser.add_argument("--no-chat-template", action="store_true")
    parser.add_argument("--no-token-ids", action="store_true", help="ignore return_token_ids")
    parser.add_argument("--no-continuous-usage", action="store_true", help="ignore continuous_usage_stats")
    parser.add_argument("--no-usage", action="store_true", help="ignore include_usage")
    parser.add_argument("--metrics-lag", type=float, default=0.0)
    parser.add_argument("--tls", action="store_true", help="self-signed certificate")
    parser.add_argument("--silent-after", type=int, metavar="N", help="fall silent, without FIN, after N chunks")
    return parser.parse_args()


def from_arguments(args: argparse.Namespace) -> FakeVLLM:
    pattern = [int(part) for part in args.tokens_per_chunk.split(",")]

    def script(seen: Seen) -> Answer:
        if args.fixture:
            reply = recording(args.fixture).reply(args.scale)
            steps = list(reply.steps)
        else:
            tokens = args.tokens or int(seen.json.get("max_tokens") or 200)
            steps = spoken(
                tokens, rate=args.rate, per_chunk=pattern, ttft_s=args.ttft, spec=args.speculative is not None
            )
            reply = Reply(steps)
        if args.silent_after is not None:
            places = [i for i, step in enumerate(steps) if isinstance(step, Tok)]
            steps = [*steps[: places[min(args.silent_after, len(places)) - 1] + 1], HANG]
        return Reply(steps, prompt_ids=reply.prompt_ids)

    ignored = {
        name
        for name, off in (
            ("token_ids", args.no_token_ids),
            ("continuous", args.no_continuous_usage),
            ("usage", args.no_usage),
        )
        if off
    }
    return FakeVLLM(
        script=script,
        model=args.model,
        speculative=args.speculative,
        honour={"token_ids", "usage", "continuous"} - ignored,
        api_key=args.api_key,
        chat_template=not args.no_chat_template,
        tls=args.tls,
        host=args.host,
        port=args.port,
        metrics=Metrics(lag_s=args.metrics_lag),
    )


async def _serve(args: argparse.Namespace) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, stop.set)
    async with from_arguments(args) as fake:
        print(fake.root, flush=True)
        parent = os.getppid()
        while not stop.is_set() and os.getppid() == parent:  # a fake must not outlive its test
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), 1.0)


if __name__ == "__main__":
    uvloop.run(_serve(_arguments()))
