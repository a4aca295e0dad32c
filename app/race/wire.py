"""What vLLM and its look-alikes send in one message of a stream, decoded to a Chunk. Pure.

Covers chat (``delta``) and completions (``text``), reasoning under both names, tokens by id, by running usage
or not at all. Everything optional may be missing or null.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec
from msgspec import Struct, structs

from app.race.records import record_in
from app.race.types import Chunk, SpecRecord, Usage


class _Details(Struct):
    cached_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Delta(Struct):
    content: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Any] | None = None
    function_call: Any = None


class _Choice(Struct):
    index: int = 0
    delta: _Delta | None = None
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    prompt_token_ids: Any = None
    finish_reason: str | None = None
    meta_info: Any = None


class _Message(Struct):
    choices: list[_Choice] | None = None
    prompt_token_ids: Any = None
    usage: _Usage | None = None
    metrics: Any = None
    sglext: Any = None
    timings: Any = None
    error: Any = None
    object: str | None = None
    message: Any = None
    detail: Any = None


_decoder: msgspec.json.Decoder[_Message] = msgspec.json.Decoder(_Message)


class ErrorFrame(Exception):
    """The server reported an error inside the stream. ``text`` is its own message."""

    def __init__(self, text: str, kind: str | None = None, code: int | None = None) -> None:
        super().__init__(text)
        self.text, self.kind, self.code = text, kind, code


class BadFrame(Exception):
    """A message that is no chunk of ours. ``reason`` says what is wrong with it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ChunkDecoder:
    """Decodes the messages of one stream; remembers what running counts need.

    Tokens are counted by ``token_ids``, else by running usage (its highest value so far: it may be wrong until
    the end, P05), else not at all.
    """

    def __init__(self) -> None:
        self._counted = 0
        self._text_chunks = 0
        self._prompt: tuple[int, ...] | None = None

    def decode(self, data: bytes, at_ns: int) -> Chunk | None:
        """The chunk in ``data``, None when it brings nothing (role only, empty choices).

        Raises:
            ErrorFrame: the message is an error object, of whatever shape.
            BadFrame: the message is not JSON or has a field of the wrong type.
        """
        try:
            message = _decoder.decode(data)
        except msgspec.ValidationError as error:
            raise error_in(data) or BadFrame(f"a field of a chunk has the wrong type ({error})") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise BadFrame("a message of the stream is not JSON") from None
        if message.error is not None or message.object == "error":
            raise error_in(data) or ErrorFrame("unknown error")
        if message.choices is None and message.usage is None and (message.detail or message.message):
            raise error_in(data) or ErrorFrame("unknown error")
        choice = next((c for c in message.choices or () if c.index == 0), None)
        usage = _usage(message.usage)
        spec = record_in(message.metrics, message.sglext, message.timings, choice.meta_info if choice else None)
        prompt = message.prompt_token_ids or (choice.prompt_token_ids if choice else None)
        self._prompt = _ids(prompt) if prompt else self._prompt
        if choice is None:
            if usage is not None and usage.completion_tokens == 0 and self._text_chunks:
                usage = structs.replace(usage, completion_tokens=None)  # 0 of what we saw: a count that lies
            return None if usage is None and spec is None else Chunk(at_ns=at_ns, usage=usage, spec=spec)
        return self._chunk(choice, usage, spec, at_ns)

    def _chunk(self, choice: _Choice, usage: Usage | None, spec: SpecRecord | None, at_ns: int) -> Chunk | None:
        delta = choice.delta or _Delta()
        text = choice.text or delta.content or delta.refusal or ""
        reasoning = delta.reasoning or delta.reasoning_content or ""
        tool_call = bool(delta.tool_calls or delta.function_call)
        ids = choice.token_ids
        if not (text or reasoning or tool_call or ids or choice.finish_reason or spec):
            return None
        brings = bool(text or reasoning or tool_call or ids)
        tokens, exact = self._count(ids, usage) if brings else (0, True)
        prompt, self._prompt = self._prompt, None  # chat sends it with the role, which is no chunk of its own
        return Chunk(
            at_ns=at_ns,
            text=text,
            reasoning=reasoning,
            tokens=tokens,
            tokens_exact=exact,
            token_ids=ids if ids is not None or brings else (),
            tool_call=tool_call,
            finish_reason=choice.finish_reason,
            usage=self._total(usage, final=choice.finish_reason is not None),
            spec=spec,
            prompt_token_ids=prompt,
        )

    def _total(self, usage: Usage | None, *, final: bool) -> Usage | None:
        """``usage`` beside a choice. Its token count is running and already in ``tokens``; only with the finish reason
        may it be the total (some servers send no chunk without choices), and not when it is less than what came."""
        if usage is None:
            return None
        count = usage.completion_tokens
        if final and count is not None and count >= max(self._counted, self._text_chunks):
            return usage
        return structs.replace(usage, completion_tokens=None)

    def _count(self, ids: tuple[int, ...] | None, usage: Usage | None) -> tuple[int | None, bool]:
        """Tokens that this chunk brought, and whether that count can be trusted."""
        self._text_chunks += 1
        running = usage.completion_tokens if usage else None
        if ids is not None:
            self._counted += len(ids)
            return len(ids), True
        if running is None:
            return None, False
        tokens = max(0, running - self._counted)
        self._counted += tokens
        # every chunk with text holds at least a token: fewer tokens than chunks is a count that lies
        return tokens, self._counted >= self._text_chunks and running >= self._counted


def _ids(found: Any) -> tuple[int, ...] | None:
    """Token ids as a server sent them, None for anything else: they are a help, never a reason to fail."""
    try:
        return msgspec.convert(found, tuple[int, ...])
    except msgspec.ValidationError:
        return None


def _usage(usage: _Usage | None) -> Usage | None:
    if usage is None:
        return None
    details = usage.prompt_tokens_details
    return Usage(
        prompt_tokens=_possible(usage.prompt_tokens),
        completion_tokens=_possible(usage.completion_tokens),
        cached_tokens=_possible(details.cached_tokens) if details else None,
    )


def _possible(count: int | None) -> int | None:
    """A count that can be one: vLLM look-alikes have sent -1, and a number past 2**53 is no count of tokens."""
    return count if count is not None and 0 <= count < 2**53 else None


def error_in(data: bytes) -> ErrorFrame | None:
    """The error object in a JSON body or frame: ``{"error": {...}}``, ``{"error": "text"}``, the flat form with
    ``"object": "error"``, or ``{"detail": ...}``. None when there is none."""
    try:
        body = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(body, dict):
        return None
    fields = cast("dict[str, Any]", body)
    error = fields.get("error")
    if isinstance(error, dict):
        fields = cast("dict[str, Any]", error)
    elif error is not None:
        return ErrorFrame(str(error))
    elif fields.get("object") != "error" and not (
        "choices" not in fields and ("detail" in fields or "message" in fields)
    ):
        return None
    text = fields.get("message") or fields.get("detail") or "no message"
    kind, code = fields.get("type"), fields.get("code")
    return ErrorFrame(str(text), kind if isinstance(kind, str) else None, code if isinstance(code, int) else None)
