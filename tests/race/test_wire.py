"""One message of a stream to a Chunk: every shape that servers send, and every shape of trouble."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.race.types import Chunk, Usage
from app.race.wire import BadFrame, ChunkDecoder, ErrorFrame, error_in

ENVELOPE: dict[str, Any] = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}


def chat(delta: Any = None, **choice: Any) -> dict[str, Any]:
    return ENVELOPE | {"choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None} | choice]}


def completion(text: str | None, **choice: Any) -> dict[str, Any]:
    return ENVELOPE | {"choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": None} | choice]}


def running(message: dict[str, Any], n: int | None) -> dict[str, Any]:
    return message | {"usage": {"prompt_tokens": 20, "completion_tokens": n, "total_tokens": 20}}


def decode(*messages: Any) -> list[Chunk | None]:
    decoder = ChunkDecoder()
    return [decoder.decode(json.dumps(m).encode() if not isinstance(m, bytes) else m, 7) for m in messages]


def one(message: Any) -> Chunk:
    (found,) = decode(message)
    assert found is not None
    return found


def test_a_chat_delta_with_ids() -> None:
    found = one(chat({"content": "Hi"}, token_ids=[5, 6]))
    assert (found.text, found.tokens, found.token_ids, found.at_ns) == ("Hi", 2, (5, 6), 7)
    assert found.tokens_exact


def test_a_completion_with_ids() -> None:
    found = one(completion("Hi", token_ids=[5], prompt_token_ids=[1, 2, 3]))
    assert (found.text, found.tokens, found.token_ids) == ("Hi", 1, (5,))


@pytest.mark.parametrize(
    "message",
    [
        chat({"role": "assistant", "content": ""}),
        chat({"role": "assistant"}),
        chat({}),
        chat(None),
        chat({"content": None}),
        chat({"content": ""}, token_ids=[]),
        completion(""),
        completion(None),
        ENVELOPE | {"choices": []},
        ENVELOPE | {"choices": None},
        ENVELOPE,
        {},
        {"choices": [{"index": 1, "delta": {"content": "of another answer"}}]},
        ENVELOPE | {"choices": [], "usage": None, "error": None},
    ],
)
def test_p02_p03_what_brings_no_token_is_no_chunk(message: Any) -> None:
    assert decode(message) == [None]


def test_p02_a_role_with_text_is_a_token() -> None:
    assert one(chat({"role": "assistant", "content": "Hi"}, token_ids=[1])).tokens == 1


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_is_read_under_both_names(name: str) -> None:
    found = one(chat({name: "hm", "content": None}, token_ids=[1, 2]))
    assert (found.reasoning, found.text, found.tokens) == ("hm", "", 2)


def test_reasoning_sent_under_both_names_is_there_once() -> None:
    assert one(chat({"reasoning": "hm", "reasoning_content": "hm"})).reasoning == "hm"


def test_a_refusal_is_text() -> None:
    assert one(chat({"refusal": "I can't."}, token_ids=[1])).text == "I can't."


def test_p07_a_tool_call_is_no_text_and_no_null() -> None:
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}
    found = one(chat({"content": None, "tool_calls": [call]}, token_ids=[1]))
    assert (found.tool_call, found.text, found.tokens) == (True, "", 1)
    assert one(chat({"function_call": {"name": "f"}})).tool_call
    assert decode(chat({"tool_calls": []})) == [None]


def test_p06_the_last_token_may_ride_in_the_finish_chunk() -> None:
    found = one(chat({"content": " end"}, finish_reason="length", token_ids=[9]))
    assert (found.text, found.finish_reason, found.tokens) == (" end", "length", 1)


def test_a_finish_chunk_without_text_counts_no_token() -> None:
    found = one(chat({"content": ""}, finish_reason="stop"))
    assert (found.text, found.finish_reason, found.tokens, found.tokens_exact) == ("", "stop", 0, True)
    assert found.token_ids == ()  # nothing, rather than unknown: the comparison by ids survives


def test_p18_empty_deltas_of_half_a_character_bring_tokens_by_their_ids() -> None:
    halves = [chat({"content": ""}, token_ids=[i]) for i in range(3)]
    found = decode(*halves, chat({"content": "🫠"}, token_ids=[3]))
    assert [c.tokens if c else None for c in found] == [1, 1, 1, 1]
    assert "".join(c.text for c in found if c) == "🫠"


def test_p18_empty_deltas_without_ids_bring_their_tokens_with_the_character() -> None:
    halves = [running(chat({"content": ""}), n) for n in (1, 2, 3)]
    found = decode(*halves, running(chat({"content": "🫠"}), 4), running(chat({"content": "龜"}), 5))
    assert [c.tokens if c else None for c in found] == [None, None, None, 4, 1]
    assert all(c.tokens_exact for c in found if c)


def test_a_held_back_text_comes_without_tokens() -> None:
    found = decode(completion("", token_ids=[1]), completion("ab", token_ids=[]))
    assert [c.tokens if c else None for c in found] == [1, 0]


def test_without_ids_and_without_usage_there_is_no_count() -> None:
    found = one(chat({"content": "Hi"}))
    assert (found.tokens, found.token_ids) == (None, None)
    assert one(chat({"content": "Hi"}, token_ids=None)).tokens is None


def test_running_usage_is_the_count_where_there_are_no_ids() -> None:
    found = decode(*(running(chat({"content": "x"}), n) for n in (1, 5, 6)))
    assert [c.tokens for c in found if c] == [1, 4, 1]
    assert [c.tokens_exact for c in found if c] == [True] * 3


def test_ids_win_over_running_usage() -> None:
    assert one(running(chat({"content": "x"}, token_ids=[1, 2, 3]), 99)).tokens == 3


def test_p05_running_usage_that_says_one_each_time_is_not_believed() -> None:
    found = decode(*(running(chat({"content": "x"}), 1) for _ in range(5)))
    assert [c.tokens for c in found if c] == [1, 0, 0, 0, 0]
    assert [c.tokens_exact for c in found if c] == [True, False, False, False, False]


def test_p05_running_usage_that_falls_never_takes_tokens_back() -> None:
    found = decode(*(running(chat({"content": "x"}), n) for n in (5, 9, 7, 12)))
    assert [c.tokens for c in found if c] == [5, 4, 0, 3]  # the highest so far: 5, 9, 9, 12
    assert [c.tokens_exact for c in found if c] == [True, True, False, True]


def test_p03_the_last_chunk_holds_the_totals_and_no_choices() -> None:
    found = one(
        ENVELOPE
        | {
            "choices": [],
            "usage": {"prompt_tokens": 20, "completion_tokens": 80, "prompt_tokens_details": {"cached_tokens": 16}},
        }
    )
    assert found.usage == Usage(prompt_tokens=20, completion_tokens=80, cached_tokens=16)
    assert (found.text, found.tokens, found.finish_reason) == ("", None, None)


def test_totals_without_details_leave_the_cache_unknown() -> None:
    found = one(ENVELOPE | {"choices": [], "usage": {"prompt_tokens": 2, "prompt_tokens_details": None}})
    assert found.usage == Usage(prompt_tokens=2)


def test_the_record_of_a_speculative_server_is_in_the_last_chunk() -> None:
    record = {
        "num_spec_steps": 2,
        "num_draft_tokens": 8,
        "num_accepted_draft_tokens": 5,
        "acceptance_histogram": [0, 0, 1, 1, 0],
    }
    found = one(
        ENVELOPE | {"choices": [], "usage": {"completion_tokens": 8}, "metrics": {"speculative_decoding": record}}
    )
    assert found.spec is not None
    assert (found.spec.drafts, found.spec.drafted, found.spec.accepted) == (2, 8, 5)
    assert found.spec.histogram == (0, 0, 1, 1, 0)


def test_of_several_answers_the_first_is_read() -> None:
    both = [{"index": 1, "text": "no", "token_ids": [1]}, {"index": 0, "text": "yes", "token_ids": [2]}]
    assert one(ENVELOPE | {"choices": both}).text == "yes"


# ------------------------------------------------------------------------------------------------ trouble
@pytest.mark.parametrize(
    ("message", "text", "kind", "code"),
    [
        (
            {"error": {"message": "EngineCore", "type": "InternalServerError", "param": None, "code": 500}},
            "EngineCore",
            "InternalServerError",
            500,
        ),
        ({"error": {"message": "no", "code": "overloaded"}}, "no", None, None),
        ({"error": "Unauthorized"}, "Unauthorized", None, None),
        ({"error": {}}, "no message", None, None),
        ({"error": {"detail": "gone"}}, "gone", None, None),
        ({"error": ["a", "b"]}, "['a', 'b']", None, None),
        (
            {"object": "error", "message": "too long", "type": "BadRequestError", "code": 400},
            "too long",
            "BadRequestError",
            400,
        ),
        ({"detail": "Not Found"}, "Not Found", None, None),
        ({"detail": [{"loc": ["body"], "msg": "x"}]}, "[{'loc': ['body'], 'msg': 'x'}]", None, None),
        ({"message": "no healthy upstream"}, "no healthy upstream", None, None),
        (chat({"content": "x"}) | {"error": {"message": "late"}}, "late", None, None),
        ({"error": {"message": "x"}, "choices": "wrong type"}, "x", None, None),
    ],
)
def test_p08_an_error_object_of_any_shape_is_an_error(message: Any, text: str, kind: Any, code: Any) -> None:
    with pytest.raises(ErrorFrame) as caught:
        decode(message)
    assert (caught.value.text, caught.value.kind, caught.value.code) == (text, kind, code)


def test_null_in_the_place_of_an_error_is_none() -> None:
    assert one(chat({"content": "x"}) | {"error": None}).text == "x"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"hello",
        b"<html>",
        b"[]",
        b"5",
        b"null",
        b'"x"',
        b"\xff\xfe",
        b'{"choices":[{"delta":{"content":"\xff"}}]}',
        b'{"choices":{}}',
        b'{"choices":[5]}',
        b'{"choices":[{"delta":5}]}',
        b'{"choices":[{"delta":{"content":5}}]}',
        b'{"choices":[{"index":0,"token_ids":["a"]}]}',
        b'{"choices":[],"usage":5}',
        b'{"choices":[],"usage":{"completion_tokens":"8"}}',
        b'{"choices":[],"usage":{"completion_tokens":1e999}}',
        b'{"choices":[{"finish_reason":5}]}',
        b"[DONE]",
        b"{}{}",
    ],
)
def test_what_is_no_chunk_is_named_and_not_guessed(data: bytes) -> None:
    with pytest.raises(BadFrame) as caught:
        decode(data)
    assert caught.value.reason


@given(st.binary(max_size=80))
def test_no_bytes_break_the_decoder_in_an_unforeseen_way(data: bytes) -> None:
    try:
        decode(data)
    except (BadFrame, ErrorFrame):
        return


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = [
    "choices",
    "usage",
    "metrics",
    "error",
    "object",
    "message",
    "detail",
    "delta",
    "text",
    "token_ids",
    "index",
    "finish_reason",
    "completion_tokens",
]


@given(
    st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=5),
    st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=5),
)
def test_no_json_breaks_the_decoder_in_an_unforeseen_way(message: dict[str, Any], choice: dict[str, Any]) -> None:
    for shape in (message, message | {"choices": [choice]}):
        try:
            (found,) = decode(shape)
        except (BadFrame, ErrorFrame):
            continue
        assert found is None or found.tokens is None or found.tokens >= 0


def test_a_message_nested_without_end_is_a_bad_frame() -> None:
    with pytest.raises(BadFrame):
        decode(b'{"choices":[],"metrics":' + b"[" * 100_000)


@pytest.mark.parametrize("n", [-1, -(10**30), 10**400])
def test_a_count_that_cannot_be_is_not_taken(n: int) -> None:
    body = b'{"choices":[],"usage":{"completion_tokens":%d}}' % n
    try:
        (found,) = decode(body)
    except BadFrame:
        return
    assert found is None or found.usage is None or found.usage.completion_tokens is None


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b"5", b"{}", b'{"choices":[],"message":"x"}', b'{"error":null}', b"\xff"]
)
def test_a_body_without_an_error_object_has_none(body: bytes) -> None:
    assert error_in(body) is None


# ---------------------------------------------------------------------------------------- the prompt as it was read
def test_the_ids_of_the_prompt_come_with_the_first_chunk_that_brings_something() -> None:
    """Chat sends them with the role, which is no chunk of its own."""
    role = chat({"role": "assistant", "content": ""}) | {"prompt_token_ids": [2, 9], "prompt_text": None}
    nothing, first, second = decode(role, chat({"content": "Hi"}, token_ids=[5]), chat({"content": "!"}, token_ids=[6]))
    assert nothing is None
    assert first is not None
    assert second is not None
    assert (first.prompt_token_ids, first.token_ids, second.prompt_token_ids) == ((2, 9), (5,), None)


def test_completions_send_the_ids_of_the_prompt_beside_the_text() -> None:
    first, second = decode(
        completion("Hi", token_ids=[5], prompt_token_ids=[1, 2, 3]),
        completion("!", token_ids=[6], prompt_token_ids=None),
    )
    assert first is not None
    assert second is not None
    assert (first.prompt_token_ids, second.prompt_token_ids) == ((1, 2, 3), None)


@pytest.mark.parametrize("found", [5, "ids", [[1, 2]], ["a"], {"ids": [1]}, [1.5], True])
def test_ids_of_the_prompt_in_another_shape_are_left_out(found: Any) -> None:
    assert one(completion("Hi", token_ids=[5], prompt_token_ids=found)).prompt_token_ids is None
