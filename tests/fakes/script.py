"""What a fake vLLM server says: a list of steps, and how each becomes bytes in vLLM 0.32's shape.

The key order and spacing are those of shared recordings (tests/fixtures); tests/fakes/test_fake_vllm.py
holds the two together byte for byte.
"""

from __future__ import annotations

import json
import secrets
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

Shape = Literal["chat", "completion"]
VERSION = "0.32.0"
NO_TEMPLATE = (
    "As of transformers v4.44, default chat template is no longer allowed, so you must provide a chat template "
    "if the tokenizer does not define one."
)


# ---------------------------------------------------------------------------------------------- steps
@dataclass(frozen=True)
class Role:
    """vLLM's first chat chunk: the role and an empty content. Nothing is sent in the completions shape."""


@dataclass(frozen=True)
class Tok:
    """One engine step: ``text`` and the ``n`` tokens it brought (``ids`` names them)."""

    text: str = ""
    n: int = 1
    ids: tuple[int, ...] | None = None
    finish: str | None = None
    stop_reason: str | int | None = None
    reasoning: str | None = None
    reasoning_field: str = "reasoning"
    delta: dict[str, Any] | None = None
    usage: int | None = None

    def token_ids(self) -> list[int]:
        return list(self.ids) if self.ids is not None else split_ids(self.text or self.reasoning or "", self.n)

    def spelled(self) -> dict[int, str]:
        """The texts of its tokens, by id."""
        texts = split_text(self.text or self.reasoning or "", len(self.token_ids()))
        return dict(zip(self.token_ids(), texts, strict=True))


@dataclass(frozen=True)
class Use:
    """The last chunk: usage without choices, and the speculative record where there is one.

    ``n`` None counts the stream's own tokens; ``spec`` is the whole record, or "auto" for one made of
    the stream's chunks, or None.
    """

    n: int | None = None
    prompt: int | None = None
    cached: int | None = None
    spec: dict[str, Any] | Literal["auto"] | None = None


@dataclass(frozen=True)
class Chunk:
    """An envelope with exactly these further fields, e.g. ``Chunk({"choices": None})``."""

    fields: dict[str, Any]


@dataclass(frozen=True)
class Err:
    """An error frame in the stream, spaced as vLLM spaces it."""

    obj: dict[str, Any] = field(
        default_factory=lambda: {
            "error": {
                "message": "EngineCore encountered an issue. See stack trace (above) for the root cause.",
                "type": "InternalServerError",
                "param": None,
                "code": 500,
            }
        }
    )


@dataclass(frozen=True)
class Raw:
    """These bytes, as one HTTP chunk."""

    data: bytes


@dataclass(frozen=True)
class Sleep:
    """Wait. Sleeps add up on one schedule, so that many short ones do not drift."""

    s: float


@dataclass(frozen=True)
class Move:
    """Let the server-wide counters of one engine grow (see tests/fakes/metrics.py)."""

    drafts: int = 0
    draft_tokens: int = 0
    accepted: int = 0
    per_pos: tuple[int, ...] = ()
    engine: str = "0"
    generated: int = 0


@dataclass(frozen=True)
class Signal:
    """RESET: a TCP reset. HANG: silence without FIN. CLOSE: FIN without the end of the chunked body.
    END: the end of the body, the connection stays usable (every list of steps ends like this by itself)."""

    name: str


ROLE = Role()
RESET, HANG, CLOSE, END = Signal("RESET"), Signal("HANG"), Signal("CLOSE"), Signal("END")
DONE = Raw(b"data: [DONE]\n\n")
Step = Role | Tok | Use | Chunk | Err | Raw | Sleep | Move | Signal
Script = Sequence[Step]


def TOK(text: str = "", n: int = 1, **rest: Any) -> Tok:  # noqa: N802 - the vocabulary of failures.md
    return Tok(text, n, **rest)


def FIN(reason: str | None = "stop", n: int = 0) -> Tok:  # noqa: N802
    """An empty delta with a finish reason; ``n`` 1 when the end-of-text token is counted."""
    return Tok("", n, finish=reason)


def USE(n: int | None = None, **rest: Any) -> Use:  # noqa: N802
    return Use(n, **rest)


def RAW(data: bytes | str) -> Raw:  # noqa: N802
    return Raw(data.encode() if isinstance(data, str) else data)


def SLEEP(s: float) -> Sleep:  # noqa: N802
    return Sleep(s)


def ERR(obj: dict[str, Any] | None = None) -> Err:  # noqa: N802
    return Err() if obj is None else Err(obj)


@dataclass(frozen=True)
class Reply:
    """A whole answer to one POST: the steps, or a plain ``body`` when there is one.

    ``honour`` says for this answer alone which requests for more fields are honoured (FakeVLLM.honour).
    """

    steps: Script = ()
    status: int = 200
    body: bytes | None = None
    content_type: str = "text/event-stream; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()
    headers_after_s: float = 0.0
    byte_by_byte: bool = False
    prompt_ids: tuple[int, ...] | None = None
    honour: frozenset[str] | None = None

    @staticmethod
    def json(status: int, obj: object, **rest: Any) -> Reply:
        return Reply(status=status, body=compact(obj), content_type="application/json", **rest)

    @staticmethod
    def error(status: int, message: str, kind: str, param: str | None = None, **rest: Any) -> Reply:
        return Reply.json(status, {"error": {"message": message, "type": kind, "param": param, "code": status}}, **rest)


def paced(
    tokens: int,
    *,
    every_s: float,
    per_chunk: int = 1,
    ttft_s: float = 0.0,
    word: str = "word ",
    spec: bool = False,
    finish: str = "length",
    use: bool = True,
) -> list[Step]:
    """``tokens`` tokens in chunks of ``per_chunk``, one chunk every ``every_s``; then usage and [DONE]."""
    steps: list[Step] = [ROLE, Sleep(ttft_s)]
    left = tokens
    while left > 0:
        m = min(per_chunk, left)
        left -= m
        steps.append(Tok(word * m, m, finish=finish if left == 0 else None))
        if left:
            steps.append(Sleep(every_s))
    return [*steps, *([Use(spec="auto" if spec else None)] if use else []), DONE]


# ---------------------------------------------------------------------------------------------- bytes
def compact(obj: object) -> bytes:
    """JSON as pydantic writes it: no spaces, real UTF-8."""
    return msgspec.json.encode(obj)


def frame(obj: object) -> bytes:
    return b"data: " + compact(obj) + b"\n\n"


def split_text(text: str, n: int) -> list[str]:
    """``text`` as ``n`` tokens of nearly the same length."""
    if n <= 0:
        return []
    size, rest = divmod(len(text), n)
    ends = [size * (i + 1) + min(i + 1, rest) for i in range(n)]
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def split_ids(text: str, n: int) -> list[int]:
    """``n`` ids that follow from the text alone: the same text in other chunks gives the same ids as long
    as every token is equally long."""
    return [1000 + zlib.crc32(part.encode("utf-8", "replace")) % 200_000 for part in split_text(text, n)]


def spec_record(accepted: Sequence[int], drafted: Sequence[int], k: int, *, detailed: bool = True) -> dict[str, Any]:
    """``metrics.speculative_decoding`` as vLLM derives it from the steps that had a draft."""
    steps = len(accepted)
    histogram = [0] * (k + 1)
    for a in accepted:
        histogram[a] += 1
    record: dict[str, Any] = {
        "mean_acceptance_length": 1 + sum(accepted) / steps if steps else 1.0,
        "draft_acceptance_rate": sum(accepted) / sum(drafted) if sum(drafted) else 0.0,
        "acceptance_histogram": histogram,
        "num_spec_steps": steps,
        "num_accepted_draft_tokens": sum(accepted),
        "num_draft_tokens": sum(drafted),
        "num_spec_tokens": k,
    }
    if detailed:
        record |= {"per_step_accepted": list(accepted), "per_step_drafted": list(drafted)}
    return record


@dataclass
class Renderer:
    """The bytes of one stream: what the client asked for, what this server honours, and the counts so far."""

    shape: Shape
    model: str = "m"
    prompt_ids: Sequence[int] = ()
    want_ids: bool = False
    want_usage: bool = False
    want_continuous: bool = False
    extras: bool = True
    spec_k: int | None = None
    fingerprint: str | None = f"vllm-{VERSION}-00c0ffee"
    id: str = ""
    created: int = field(default_factory=lambda: int(time.time()))
    tokens: int = 0
    chunks: int = 0
    accepted: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.id = self.id or ("chatcmpl-" if self.shape == "chat" else "cmpl-") + secrets.token_hex(8)

    def _envelope(self, fields: dict[str, Any]) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.shape == "chat" else "text_completion"
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model} | fields

    def _usage(self, n: int, prompt: int, *, running: bool) -> dict[str, Any]:
        usage: dict[str, Any] = {"prompt_tokens": prompt, "total_tokens": prompt + n, "completion_tokens": n}
        if running and self.shape == "chat" and self.extras:
            usage["completion_tokens_details"] = None
        return usage

    def _ids(self, ids: Sequence[int]) -> list[int] | None:
        return list(ids) if self.want_ids else None

    def role(self) -> bytes:
        if self.shape == "completion":
            return b""
        delta = {"role": "assistant", "content": ""}
        obj = self._envelope({"choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}]})
        if self.want_continuous:
            obj["usage"] = self._usage(0, len(self.prompt_ids), running=True)
        if self.extras:
            obj |= {"prompt_token_ids": self._ids(self.prompt_ids), "prompt_text": None}
        return frame(obj)

    def tok(self, t: Tok) -> bytes:
        ids = t.token_ids()
        first = self.tokens == 0 and self.chunks == 0
        if self.tokens and self.spec_k and ids:
            self.accepted.append(min(len(ids) - 1, self.spec_k))
        self.tokens += len(ids)
        self.chunks += 1
        choice = self._chat_choice(t, ids) if self.shape == "chat" else self._completion_choice(t, ids, first)
        obj = self._envelope({"choices": [choice]})
        if t.usage is not None:
            obj["usage"] = self._usage(t.usage, len(self.prompt_ids), running=True)
        elif self.want_continuous:
            obj["usage"] = self._usage(self.tokens, len(self.prompt_ids), running=True)
        if t.finish is not None and not self.want_usage and self.extras:
            obj["system_fingerprint"] = self.fingerprint
        return frame(obj)

    def _chat_choice(self, t: Tok, ids: list[int]) -> dict[str, Any]:
        delta = t.delta
        if delta is None:
            delta = {"content": t.text} if t.reasoning is None else {t.reasoning_field: t.reasoning}
        choice: dict[str, Any] = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": t.finish}
        if self.extras:
            if t.finish is not None:
                choice["stop_reason"] = t.stop_reason
            choice["token_ids"] = self._ids(ids)
        return choice

    def _completion_choice(self, t: Tok, ids: list[int], first: bool) -> dict[str, Any]:
        text = t.text if t.delta is None else str(t.delta.get("content") or "")
        choice: dict[str, Any] = {"index": 0, "text": text, "logprobs": None, "finish_reason": t.finish}
        if self.extras:
            choice |= {
                "stop_reason": t.stop_reason,
                "prompt_token_ids": self._ids(self.prompt_ids) if first else None,
                "token_ids": self._ids(ids),
            }
        return choice

    def use(self, u: Use) -> bytes:
        if not self.want_usage:
            return b""
        prompt = len(self.prompt_ids) if u.prompt is None else u.prompt
        usage = self._usage(self.tokens if u.n is None else u.n, prompt, running=False)
        if u.cached is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": u.cached}
        obj = self._envelope({"choices": [], "usage": usage})
        if self.extras:
            obj["system_fingerprint"] = self.fingerprint
        record = u.spec
        if record == "auto":
            k = self.spec_k or 0
            record = spec_record(self.accepted, [k] * len(self.accepted), k) if k else None
        if record is not None:
            obj["metrics"] = {"speculative_decoding": record}
        return frame(obj)

    def render(self, step: Step) -> bytes:
        """The bytes of one step; b"" for steps that send nothing."""
        match step:
            case Tok():
                return self.tok(step)
            case Raw():
                return step.data
            case Role():
                return self.role()
            case Use():
                return self.use(step)
            case Chunk():
                return frame(self._envelope(step.fields))
            case Err():
                return b"data: " + json.dumps(step.obj).encode() + b"\n\n"
            case _:
                return b""
