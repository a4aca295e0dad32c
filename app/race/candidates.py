"""How a server rates two tokens at one place: the question for /v1/completions, and its answer. Pure.

vLLM takes a prompt of token ids and, with ``logprob_token_ids`` (0.32), rates exactly the tokens that are named. A
server that does not know the field lists its best ones instead; a token outside that list has no log-probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from app.race.types import Candidate

TOP = 5
"""How many tokens any server is asked to list: what the OpenAI API allows."""
_MARK = "token_id:"


class _Logprobs(Struct):
    top_logprobs: list[dict[str, float] | None] | None = None


class _Choice(Struct):
    logprobs: _Logprobs | None = None


class _Answer(Struct):
    choices: list[_Choice]


_decoder = msgspec.json.Decoder(_Answer)


def question(model: str, context: Sequence[int], tokens: Sequence[int]) -> dict[str, Any]:
    """The body of a request for the log-probabilities of ``tokens`` as the next token after ``context`` (ids)."""
    return {
        "model": model,
        "prompt": list(context),
        "max_tokens": 1,
        "temperature": 0,
        "logprobs": TOP,
        "logprob_token_ids": list(tokens),
        "return_tokens_as_token_ids": True,
    }


def rated(body: bytes, tokens: Sequence[int]) -> tuple[Candidate, ...] | None:
    """The tokens with their log-probabilities; None when the answer names tokens by text, or is none."""
    try:
        listed = _decoder.decode(body).choices[0].logprobs
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, IndexError):
        return None
    top = listed.top_logprobs if listed is not None else None
    if not top or not top[0] or not all(name.startswith(_MARK) for name in top[0]):
        return None
    return tuple(Candidate(token_id=token, logprob=top[0].get(f"{_MARK}{token}")) for token in tokens)
