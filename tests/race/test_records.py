"""What SGLang and llama.cpp say about drafts in a stream, byte for byte through the decoder; figures worked by hand.

No such server ran here. The shapes are those that their sources write: SGLang main of August 2026 (pull request 33518,
python/sglang/srt/entrypoints/openai: serving_chat.py, utils.py, protocol.py) and llama-server b9251 (tools/server,
the chunk of ``include_usage``). The numbers are ours.
"""

from __future__ import annotations

from typing import Any

import pytest

from app.race import acceptance
from app.race.acceptance import from_record
from app.race.records import MOST_POSITIONS, record_from_meta_info, record_from_metrics, record_from_timings, record_in
from app.race.types import Chunk
from app.race.wire import ChunkDecoder
from tests.race.helpers import exactly

SGLANG = (
    b'{"id":"4f099bcb459f4f429fd04900425deb00","object":"chat.completion.chunk","created":1787039767,"model":"default",'
    b'"choices":[],"usage":null,"sglext":{"spec_tokens_details":{"spec_accept_rate":0.5333333333333333,'
    b'"spec_accept_length":2.6666666666666665,"spec_cap_length":0.0,"spec_block_accept_length":0.0,'
    b'"spec_num_correct_drafts":40,"spec_num_proposed_drafts":75,"spec_verify_ct":25,'
    b'"spec_correct_drafts_histogram":[5,8,4,8],"spec_cap_lens_histogram":[]}}}'
)
SGLANG_USAGE = (
    b'{"id":"4f099bcb459f4f429fd04900425deb00","object":"chat.completion.chunk","created":1787039767,"model":"default",'
    b'"choices":[],"usage":{"prompt_tokens":18,"total_tokens":84,"completion_tokens":66,"prompt_tokens_details":null,'
    b'"reasoning_tokens":0}}'
)
LLAMA = (
    b'{"choices":[],"created":1779349198,"id":"chatcmpl-nFCxRKKHfmmnVXEHbeKtPcEqHXBZvQCr","model":"model.gguf",'
    b'"system_fingerprint":"b9251-e2b129e1b","object":"chat.completion.chunk","usage":{"completion_tokens":50,'
    b'"prompt_tokens":808,"total_tokens":858,"prompt_tokens_details":{"cached_tokens":804}},"timings":{"cache_n":804,'
    b'"prompt_n":4,"prompt_ms":128.301,"prompt_per_token_ms":32.07525,"prompt_per_second":31.17668607415375,'
    b'"predicted_n":50,"predicted_ms":1200.5,"predicted_per_token_ms":24.01,"predicted_per_second":41.6493128,'
    b'"draft_n":48,"draft_n_accepted":31}}'
)
LLAMA_PLAIN = LLAMA.replace(b',"draft_n":48,"draft_n_accepted":31', b"")  # nothing was drafted: the two are left out


def decoded(data: bytes) -> Chunk | None:
    return ChunkDecoder().decode(data, 1)


def test_the_record_of_sglang() -> None:
    chunk = decoded(SGLANG)
    assert chunk is not None
    assert (chunk.usage, chunk.text, chunk.tokens) == (None, "", None)
    assert chunk.spec is not None
    figures = from_record(chunk.spec, 66)
    assert (figures.source, figures.drafts, figures.drafted, figures.accepted) == ("request", 25, 75, 40)
    assert figures.rate == exactly(40 / 75)
    assert figures.mean_length == 2.6  # 1 + 40/25; its own spec_accept_length is 66/25, another number
    assert figures.histogram == (5, 8, 4, 8)
    assert figures.per_position == (0.8, 0.48, 0.32)  # 20, 12, 8 of 25
    assert figures.effective_tokens_per_pass == 2.6  # 65 / (65 - 40)
    assert figures.share_of_output == exactly(40 / 66)
    assert figures.alpha == exactly(40 / 57)  # 75 = 25 x 3; 17 of 25 steps turned one down


def test_the_usage_after_it_brings_no_record() -> None:
    chunk = decoded(SGLANG_USAGE)
    assert chunk is not None
    assert chunk.usage is not None
    assert (chunk.usage.completion_tokens, chunk.spec) == (66, None)


def test_the_record_of_llama_cpp_has_no_steps() -> None:
    chunk = decoded(LLAMA)
    assert chunk is not None
    assert chunk.usage is not None
    assert (chunk.usage.completion_tokens, chunk.usage.cached_tokens) == (50, 804)
    assert chunk.spec is not None
    figures = from_record(chunk.spec, 50)
    assert (figures.source, figures.drafts, figures.drafted, figures.accepted) == ("request", None, 48, 31)
    assert figures.rate == exactly(31 / 48)
    assert (figures.mean_length, figures.per_position, figures.histogram, figures.alpha) == (None,) * 4
    assert figures.effective_tokens_per_pass == exactly(49 / 18)
    assert figures.share_of_output == 0.62


def test_llama_cpp_without_drafts_has_no_record() -> None:
    chunk = decoded(LLAMA_PLAIN)
    assert chunk is not None
    assert chunk.spec is None


@pytest.mark.parametrize(
    "names",
    [
        ("spec_num_correct_drafts", "spec_num_proposed_drafts", "spec_correct_drafts_histogram"),
        ("spec_accepted_drafts", "spec_proposed_drafts", "spec_accept_histogram"),
        ("spec_accept_token_num", "spec_draft_token_num", "spec_accept_histogram"),
    ],
)
def test_sglang_under_its_older_names_in_a_choice(names: tuple[str, str, str]) -> None:
    accepted, drafted, histogram = names
    data = (
        '{"id":"1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,'
        '"delta":{"content":" end"},"finish_reason":"length","matched_stop":null,'
        '"meta_info":{"id":"1","completion_tokens":66,"spec_verify_ct":25,'
        f'"{accepted}":40,"{drafted}":75,"{histogram}":[5,8,4,8]}}}}]}}'
    )
    chunk = decoded(data.encode())
    assert chunk is not None
    assert (chunk.text, chunk.finish_reason) == (" end", "length")
    assert chunk.spec == record_from_meta_info(
        {"spec_verify_ct": 25, accepted: 40, drafted: 75, histogram: [5, 8, 4, 8]}
    )
    assert chunk.spec is not None
    assert (chunk.spec.drafts, chunk.spec.histogram) == (25, (5, 8, 4, 8))


def test_sglang_adaptive_steps_without_a_draft_are_no_speculative_steps() -> None:
    # it counts every pass as verified, also those in which it had switched drafting off
    found = record_from_meta_info({"spec_verify_ct": 25, "spec_num_correct_drafts": 4, "spec_num_proposed_drafts": 9})
    assert found is not None
    assert (found.drafts, found.drafted, found.accepted) == (None, 9, 4)


def test_a_list_of_several_answers_is_read_for_the_first() -> None:
    one: dict[str, Any] = {"spec_verify_ct": 2, "spec_num_correct_drafts": 3, "spec_num_proposed_drafts": 6}
    other = one | {"spec_num_correct_drafts": 1}
    found = record_in(sglext={"spec_tokens_details": [one, other]})
    assert found is not None
    assert found.accepted == 3


def test_a_server_that_proposed_nothing_says_so() -> None:
    details = {"spec_verify_ct": 0, "spec_num_correct_drafts": 0, "spec_num_proposed_drafts": 0}
    found = record_in(sglext={"spec_tokens_details": details | {"spec_correct_drafts_histogram": []}})
    assert found is not None
    figures = from_record(found, 20)
    assert (figures.drafted, figures.rate, figures.mean_length, figures.effective_tokens_per_pass) == (
        0,
        None,
        None,
        None,
    )


ODD: list[Any] = [None, {}, [], "x", 7, True, {"spec_tokens_details": None}, {"spec_tokens_details": []}]
LIES: list[Any] = [None, "48", True, -1, 1.5, float("nan"), float("inf"), 2**53, [48], {}]


@pytest.mark.parametrize("value", ODD)
def test_what_is_no_record_is_absent(value: object) -> None:
    assert record_in(value, value, value, value) is None
    assert record_in(sglext={"spec_tokens_details": [value]}) is None


@pytest.mark.parametrize("lie", LIES)
def test_a_count_that_is_none_is_not_repaired(lie: object) -> None:
    assert record_from_timings({"draft_n": lie, "draft_n_accepted": 31}) is None
    assert record_from_timings({"draft_n": 48, "draft_n_accepted": lie}) is None
    assert record_from_meta_info({"spec_num_correct_drafts": lie, "spec_num_proposed_drafts": 48}) is None


def test_more_accepted_than_drafted_is_no_record() -> None:
    assert record_from_timings({"draft_n": 31, "draft_n_accepted": 48}) is None
    spec = {"num_spec_steps": 2, "num_draft_tokens": 8, "num_accepted_draft_tokens": 9}
    assert record_from_metrics({"speculative_decoding": spec}) is None


@pytest.mark.parametrize("steps", [9, 0])
def test_vllm_with_an_impossible_number_of_steps_has_no_record(steps: int) -> None:
    # 8 tokens were drafted: in 9 steps not one each, in none at all not a single one
    spec = {"num_spec_steps": steps, "num_draft_tokens": 8, "num_accepted_draft_tokens": 5}
    assert record_from_metrics({"speculative_decoding": spec}) is None


@pytest.mark.parametrize("field", ["sglext", "timings"])
@pytest.mark.parametrize("value", [b"null", b"7", b'"x"', b"[]", b'{"draft_n":"many"}'])
def test_an_odd_field_never_breaks_the_stream(field: str, value: bytes) -> None:
    data = b'{"choices":[{"index":0,"delta":{"content":"a"}}],"' + field.encode() + b'":' + value + b"}"
    chunk = decoded(data)
    assert chunk is not None
    assert (chunk.text, chunk.spec) == ("a", None)


@pytest.mark.parametrize(("k", "length", "kept"), [(4, 5, True), (4, 6, False), (None, 129, True), (None, 130, False)])
def test_a_histogram_longer_than_a_draft_can_be_is_dropped(k: int | None, length: int, kept: bool) -> None:
    histogram = [5, 2, *[0] * (length - 2)]
    sent = {"num_spec_steps": 7, "num_draft_tokens": 28, "num_accepted_draft_tokens": 2, "num_spec_tokens": k}
    made = record_from_metrics({"speculative_decoding": sent | {"acceptance_histogram": histogram}})
    assert made is not None
    assert (made.accepted, made.histogram) == (2, tuple(histogram) if kept else None)


def test_the_longest_draft_that_is_read_is_the_longest_that_is_shown() -> None:
    assert MOST_POSITIONS == acceptance.MOST_POSITIONS


def test_single_steps_longer_than_a_draft_can_be_are_dropped() -> None:
    sent = {"num_spec_steps": 2, "num_draft_tokens": 7, "num_accepted_draft_tokens": 6, "num_spec_tokens": 4}
    made = record_from_metrics(
        {"speculative_decoding": sent | {"per_step_accepted": [5, 1], "per_step_drafted": [5, 2]}}
    )
    assert made is not None
    assert (made.per_step_accepted, made.per_step_drafted, made.accepted) == (None, None, 6)
