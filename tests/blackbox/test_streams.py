"""What a server may stream, and what the race makes of it: P03-P10, P18, P20 and the equal requests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.blackbox.app import LANES, Run
from tests.blackbox.batch import OTHER_TEXT, Batch, Case, batch, ignoring
from tests.fakes.vllm import (
    CLOSE,
    DONE,
    END,
    ERR,
    FIN,
    RAW,
    ROLE,
    SLEEP,
    TOK,
    USE,
    Chunk,
    FakeVLLM,
    Reply,
    recording,
)

WORDS = ("one ", "two ", "three ", "four ", "five ", "six ", "seven ", "eight ", "nine ", "ten ")
TEN = tuple(step for word in WORDS for step in (TOK(word), SLEEP(0.01)))
TEN_TEXT = "".join(WORDS)
CHOICE = {"index": 0, "logprobs": None, "finish_reason": None}


def choice(delta: object) -> Chunk:
    return Chunk({"choices": [{**CHOICE, "delta": delta}]})


REASONS = ("stop", "length", "content_filter", "function_call", "tool_calls", "repetition", "eos_token", "<b>x</b>", "")
BIG = [TOK("abcd" * 4, 4), SLEEP(0.02)] * 20  # 80 tokens in 20 chunks
TOOL = {"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}]}
OLD_ERROR = b'data: {"object":"error","message":"CUDA error","type":"InternalServerError","param":null,"code":500}\n\n'
TYPED_ERROR = ERR(
    {"error": {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "code": 500}}
)

BAD_USAGE = {
    "p05-per-chunk": [TOK("ab ", 2, usage=1) for _ in range(40)],
    "p05-up-and-down": [TOK("abc ", 3, usage=n) for n in (5, 9, 7, 12)],
    "p05-falls-to-zero": [TOK("abc ", 3, usage=n) for n in (3, 6, 0, 0, 9)],
}

CASES: dict[str, Case] = {
    # P03
    "p03-usage-last": Case([ROLE, *BIG, FIN("stop"), USE(80), DONE]),
    "p03-choices-null": Case([ROLE, *BIG[:20], Chunk({"choices": None}), *BIG[20:], FIN("stop"), USE(80), DONE]),
    "p03-empty-first": Case([Chunk({"choices": []}), ROLE, *BIG, FIN("stop"), USE(80), DONE]),
    "p03-choices-missing": Case([ROLE, *BIG[:20], Chunk({}), *BIG[20:], FIN("stop"), USE(80), DONE]),
    "p03-usage-null": Case([ROLE, Chunk({"choices": [], "usage": None}), *BIG, FIN("stop"), USE(80), DONE]),
    "p03-no-extras": Case(ignoring(ROLE, *BIG, FIN("stop"), USE(80), DONE)),
    # P04
    "p04-one-side": Case(ignoring(ROLE, *BIG, FIN("stop"), DONE, honour=())),
    "p04-both-sides": Case(
        ignoring(ROLE, *BIG, FIN("stop"), DONE, honour=()), ignoring(ROLE, *TEN, FIN("stop"), DONE, honour=())
    ),
    "p04-uneven-chunks": Case(ignoring(ROLE, *[TOK("x " * n, n) for n in (1, 5, 2, 3)], FIN(), DONE, honour=())),
    "p04-ids-without-usage": Case(ignoring(ROLE, *BIG, FIN("stop"), DONE, honour=("token_ids",))),
    "p04-running-usage-only": Case(
        ignoring(ROLE, *[TOK("abcd", 4, usage=4 * i) for i in range(1, 21)], FIN("stop"), DONE, honour=("usage",))
    ),
    # P05
    "p05-ids-are-better": Case([ROLE, *[TOK("ab ", 2, usage=1) for _ in range(40)], FIN("stop"), USE(80), DONE]),
    **{name: Case(ignoring(ROLE, *steps, FIN("stop"), USE(80), DONE)) for name, steps in BAD_USAGE.items()},
    # P06
    "p06-length": Case([ROLE, *TEN, TOK("end", finish="length"), USE(), DONE]),
    "p06-stop": Case([ROLE, *TEN, TOK("end", finish="stop"), USE(), DONE]),
    "p06-without-done": Case([ROLE, *TEN, TOK("end", finish="length"), USE(), END]),
    # P07
    "p07-null-reason": Case([ROLE, *TEN, FIN(None), USE(80), DONE]),
    "p07-tool-call": Case([ROLE, TOK(delta={"content": None} | TOOL), FIN("tool_calls"), USE(12), DONE]),
    "p07-text-then-tool-call": Case([ROLE, TOK("Let me see. "), TOK(delta=TOOL), FIN("tool_calls"), USE(12), DONE]),
    "p07-content-null": Case([ROLE, choice({"content": None}), *TEN, choice({"content": None}), FIN(), USE(10), DONE]),
    "p07-content-missing": Case([ROLE, choice({}), *TEN, choice({}), FIN(), USE(10), DONE]),
    "p07-delta-null": Case([ROLE, choice(None), *TEN, FIN(), USE(10), DONE]),
    "p07-role-null": Case([choice({"role": None, "content": None}), *TEN, FIN(), USE(10), DONE]),
    "p07-reasoning": Case([ROLE, TOK(reasoning="Hm, "), TOK(reasoning="so."), *TEN, FIN(), USE(12), DONE]),
    "p07-reasoning-content": Case(
        [
            ROLE,
            *[TOK(reasoning=r, reasoning_field="reasoning_content") for r in ("Hm, ", "so.")],
            *TEN,
            FIN(),
            USE(),
            DONE,
        ]
    ),
    # every reason, known to vLLM or not
    **{f"ends-{reason or 'empty'}": Case([ROLE, *TEN, FIN(reason), USE(10), DONE]) for reason in REASONS},
    "ends-error": Case([ROLE, *TEN, FIN("error"), USE(10), DONE]),
    "ends-abort": Case([ROLE, *TEN, FIN("abort"), USE(10), DONE]),
    "ends-twice": Case([ROLE, *TEN, FIN("stop"), FIN("length"), USE(10), DONE]),
    "ends-with-no-text-but-counts": Case([ROLE, FIN("stop"), USE(0), DONE]),
    # P08
    "p08-error-frame": Case([ROLE, *TEN, TYPED_ERROR, DONE]),
    "p08-real-vllm": Case([ROLE, *TEN, ERR(), DONE]),
    "p08-in-baseline": Case(baseline=[ROLE, *TEN, TYPED_ERROR, DONE]),
    "p08-error-is-a-string": Case([ROLE, *TEN, ERR({"error": "engine died"}), DONE]),
    "p08-old-shape": Case([ROLE, *TEN, RAW(OLD_ERROR), DONE]),
    "p08-no-done": Case([ROLE, *TEN, TYPED_ERROR, CLOSE]),
    "p08-then-more": Case([ROLE, *TEN, TYPED_ERROR, TOK("ghost"), FIN(), USE(11), DONE]),
    "p08-error-event": Case([ROLE, *TEN, RAW('event: error\ndata: {"message":"overloaded"}\n\n'), DONE]),
    "p08-in-both": Case([ROLE, *TEN, ERR(), DONE], [ROLE, *TEN, ERR(), DONE]),
    # P09
    "p09-only-done": Case([DONE]),
    "p09-in-both": Case([DONE], [DONE]),
    "p09-empty-body": Case([END]),
    "p09-comments-only": Case([RAW(": ping\n\n"), DONE]),
    "p09-role-and-done": Case([ROLE, DONE]),
    "p09-error-first": Case([ERR(), DONE]),
    # P10
    "p10-retry": Case([RAW("retry: 3000\n\n"), ROLE, *TEN, FIN(), USE(), DONE]),
    "p10-event-ping": Case([RAW("event: ping\ndata:\n\n"), ROLE, *TEN, FIN(), USE(), DONE]),
    "p10-event-ping-space": Case([RAW("event: ping\ndata: \n\n"), ROLE, *TEN, FIN(), USE(), DONE]),
    "p10-comment": Case([RAW(": ping - 2026-11-30\n\n"), ROLE, *TEN, FIN(), USE(), DONE]),
    "p10-in-the-middle": Case(
        [
            ROLE,
            *TEN[:10],
            RAW("retry: 3000\n\n"),
            RAW("event: ping\ndata:\n\n"),
            RAW(": p\n\n"),
            *TEN[10:],
            FIN(),
            USE(),
            DONE,
        ]
    ),
    "p10-ping-with-json": Case([RAW('event: ping\ndata: {"type":"ping"}\n\n'), ROLE, *TEN, FIN(), USE(), DONE]),
    "p10-crlf": Case([ROLE, *TEN, RAW(b": crlf follows\r\n\r\n"), FIN(), USE(), RAW(b"data: [DONE]\r\n\r\n")]),
    "p10-id-lines": Case([RAW("id: 7\nevent: ping\n\n"), ROLE, *TEN, FIN(), USE(), DONE]),
    "p10-bom": Case([RAW("\ufeff: hello\n\n"), ROLE, *TEN, FIN(), USE(), DONE]),
    "p10-garbage": Case([ROLE, *TEN, RAW("data: {this is no json\n\n"), DONE]),
    "p10-not-an-object": Case([ROLE, *TEN, RAW("data: 17\n\n"), DONE]),
    # P18
    "p18-emoji": Case([ROLE, TOK(""), TOK(""), TOK(""), TOK("🫠"), TOK("龜"), FIN(), USE(5), DONE]),
    "p18-byte-by-byte": Case(
        Reply([ROLE, TOK(""), TOK(""), TOK(""), TOK("🫠"), TOK("龜"), FIN(), USE(5), DONE], byte_by_byte=True)
    ),
    "p18-escaped": Case(
        [ROLE, RAW(b'data: {"choices":[{"index":0,"delta":{"content":"\\ud83e\\udee0"}}]}\n\n'), FIN(), USE(1), DONE]
    ),
    "p18-zwj-and-combining": Case(
        Reply(
            [ROLE, TOK("👩‍"), TOK("🚀"), TOK("e"), TOK("\u0301"), TOK("العربية"), FIN(), USE(9), DONE],
            byte_by_byte=True,
        )
    ),
    "p18-cut-in-a-character": Case([ROLE, RAW("data: 龜"[:6].encode() + "龜".encode()[:2]), CLOSE]),
    # P20
    "p20-stop-string": Case([ROLE, *[TOK("abcd " * 4, 4)] * 15, FIN("stop"), USE(64), DONE]),
    "p20-ids-say-more": Case(
        [ROLE, *[TOK("abcd " * 4, 4)] * 15, TOK("", 4, finish="stop", stop_reason="###"), USE(64), DONE]
    ),
    # the recordings of a real pair, at four times their pace
    "real-json": Case(
        recording("sse/json_together_speculative").reply(0.25), recording("sse/json_together_baseline").reply(0.25)
    ),
    "real-poem": Case(
        recording("sse/poem_together_speculative").reply(0.25), recording("sse/poem_together_baseline").reply(0.25)
    ),
}


@pytest.fixture(scope="module")
def runs() -> Iterator[Batch]:
    with batch(CASES, at_once=8) as result:
        yield result


def other_lane_is_fine(run: Run, lane: str = "baseline") -> None:
    other = run.race["lanes"][lane]
    assert other["status"] == "finished", other
    assert other["text"] == OTHER_TEXT
    assert other["completion_tokens"] == 3


# ------------------------------------------------------------------------------------------------ P03
@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("p03")])
def test_p03_a_chunk_without_choices_is_no_crash_and_no_token(runs: Batch, name: str) -> None:
    run = runs[name]
    lane = run.speculative
    assert lane["status"] == "finished", lane["error"]
    assert lane["completion_tokens"] == 80
    assert lane["tokens_estimated"] is False
    assert lane["text"] == "abcd" * 80
    assert lane["prompt_tokens"] == 20
    assert all(e["text"] or e["tokens"] for e in run.of("lane.chunk", "speculative")), "a blank token"
    assert run.comparison["speedup"] is not None


# ------------------------------------------------------------------------------------------------ P04
@pytest.mark.parametrize("name", ["p04-one-side", "p04-both-sides", "p04-uneven-chunks"])
def test_p04_chunks_are_never_shown_as_tokens_when_usage_never_arrives(runs: Batch, name: str) -> None:
    run = runs[name]
    lane = run.speculative
    assert lane["status"] == "finished"
    assert lane["tokens_estimated"] is True
    assert lane["completion_tokens"] is None
    assert lane["tpot_ms"] is None
    assert lane["tokens_per_second"] is None
    assert lane["ttft_ms"] is not None, "the time to the first token needs no count"
    assert run.comparison["speedup"] is None
    assert run.comparison["decode_speedup"] is None
    assert run.comparison["verdict"] is None
    assert "tokens_estimated" in run.comparison["caveats"]
    assert all(e["speedup"] is None for e in run.of("comparison"))


@pytest.mark.parametrize("name", ["p04-ids-without-usage", "p04-running-usage-only"])
def test_p04_token_ids_or_running_usage_are_real_counts(runs: Batch, name: str) -> None:
    run = runs[name]
    assert run.speculative["completion_tokens"] == 80
    assert run.speculative["tokens_estimated"] is False
    assert run.comparison["speedup"] is not None


def test_p04_the_page_says_estimated(runs: Batch) -> None:
    page = runs.app.page(runs["p04-one-side"]) + runs.app.stream(runs["p04-one-side"])
    assert "estimate" in page.lower()
    assert "NaN" not in page
    assert "Infinity" not in page


# ------------------------------------------------------------------------------------------------ P05
@pytest.mark.parametrize("name", [*BAD_USAGE, "p05-ids-are-better"])
def test_p05_running_usage_that_is_wrong_never_lowers_the_counter(runs: Batch, name: str) -> None:
    run = runs[name]  # check_run: the live counter never goes down
    lane = run.speculative
    assert lane["status"] == "finished"
    assert lane["completion_tokens"] == 80
    assert lane["tokens_estimated"] is False, "the final usage is the last word"
    brought = [e["tokens"] for e in run.of("lane.chunk", "speculative")]
    assert all(n is None or n >= 0 for n in brought), brought


# ------------------------------------------------------------------------------------------------ P06
@pytest.mark.parametrize("name", ["p06-length", "p06-stop", "p06-without-done"])
def test_p06_the_last_token_rides_in_the_finish_chunk(runs: Batch, name: str) -> None:
    run = runs[name]
    assert run.speculative["status"] == "finished"
    assert run.speculative["text"] == TEN_TEXT + "end"
    assert run.speculative["finish_reason"] == ("stop" if name == "p06-stop" else "length")
    assert run.speculative["completion_tokens"] == 11


def test_p06_the_pane_says_that_it_stopped_at_the_limit(runs: Batch) -> None:
    limited, stopped = (runs.app.stream(runs[name]).lower() for name in ("p06-length", "p06-stop"))
    assert "limit" in limited
    assert limited.count("limit") > stopped.count("limit"), "nothing tells the length limit from an ordinary end"


# ------------------------------------------------------------------------------------------------ P07
P07_TEXT = [n for n in CASES if n.startswith("p07") and "tool" not in n]


@pytest.mark.parametrize("name", P07_TEXT)
def test_p07_null_fields_are_neither_text_nor_a_crash(runs: Batch, name: str) -> None:
    run = runs[name]
    assert run.speculative["status"] == "finished", run.speculative["error"]
    assert run.speculative["text"] == TEN_TEXT
    assert run.speculative["reasoning"] in ("", None) or "reasoning" in name
    assert run.speculative["finish_reason"] == (None if name == "p07-null-reason" else "stop")


@pytest.mark.parametrize("name", ["p07-reasoning", "p07-reasoning-content"])
def test_p07_reasoning_is_kept_apart_and_its_tokens_count(runs: Batch, name: str) -> None:
    lane = runs[name].speculative
    assert lane["reasoning"] == "Hm, so."
    assert lane["completion_tokens"] == 12
    first = runs[name].of("lane.chunk", "speculative")[0]
    assert first["reasoning"] is True, "the first reasoning token ends the TTFT"


@pytest.mark.parametrize("name", ["p07-tool-call", "p07-text-then-tool-call"])
def test_p07_a_tool_call_is_named_as_such(runs: Batch, name: str) -> None:
    run = runs[name]
    assert run.speculative["status"] == "finished"
    assert run.speculative["finish_reason"] == "tool_calls"
    assert run.speculative["text"] == ("" if name == "p07-tool-call" else "Let me see. ")
    assert "tool" in runs.app.stream(run).lower(), "the pane does not say that the model tried to call a tool"


@pytest.mark.parametrize("name", [n for n in CASES if n.startswith("p07")])
def test_p07_no_none_or_null_on_screen(runs: Batch, name: str) -> None:
    stream = runs.app.stream(runs[name])
    for word in (">None<", ">null<", ">undefined<", "NaN"):
        assert word not in stream


# ------------------------------------------------------------------------------------- reasons to end
@pytest.mark.parametrize("reason", REASONS)
def test_a_lane_that_ends_by_itself_finished_whatever_it_calls_the_reason(runs: Batch, reason: str) -> None:
    run = runs[f"ends-{reason or 'empty'}"]
    assert run.status == "finished"
    assert run.speculative["finish_reason"] == (reason or None)
    assert run.speculative["completion_tokens"] == 10
    assert run.speculative["text"] == TEN_TEXT
    assert run.comparison["speedup"] is not None
    assert "<b>x</b>" not in runs.app.page(run)


@pytest.mark.parametrize(
    ("reason", "status", "kind"), [("error", "failed", "stream_error"), ("abort",) + ("aborted",) * 2]
)
def test_a_lane_that_the_server_gave_up_did_not_finish(runs: Batch, reason: str, status: str, kind: str) -> None:
    run = runs[f"ends-{reason}"]
    assert run.status == "partial"
    assert (run.speculative["status"], run.speculative["error"]["kind"]) == (status, kind)
    assert run.speculative["text"] == TEN_TEXT
    other_lane_is_fine(run)


def test_the_last_reason_is_the_reason(runs: Batch) -> None:
    assert runs["ends-twice"].speculative["finish_reason"] == "length"


def test_a_lane_without_a_token_has_no_figure_and_is_no_success_to_look_at(runs: Batch) -> None:
    lane = runs["ends-with-no-text-but-counts"].speculative
    assert [lane[name] for name in ("ttft_ms", "tpot_ms", "e2e_ms", "tokens_per_second")] == [None] * 4
    assert "no answer" in runs.app.page(runs["ends-with-no-text-but-counts"])


# ------------------------------------------------------------------------------------------------ P08
P08 = [n for n in CASES if n.startswith("p08") and n not in ("p08-in-baseline", "p08-in-both")]


@pytest.mark.parametrize("name", P08)
def test_p08_an_error_after_good_tokens_keeps_them_and_spares_the_other_lane(runs: Batch, name: str) -> None:
    run = runs[name]
    assert run.status == "partial"
    assert run.speculative["status"] == "failed"
    assert run.speculative["error"]["kind"] == "stream_error"
    assert run.speculative["error"]["message"].strip()
    assert run.speculative["text"] == TEN_TEXT, "the ten tokens must stay, and nothing after the error"
    other_lane_is_fine(run)


def test_p08_the_servers_words_reach_the_pane(runs: Batch) -> None:
    run = runs["p08-real-vllm"]
    assert "EngineCore encountered an issue" in run.speculative["error"]["message"]
    assert "EngineCore encountered an issue" in runs.app.stream(run)


def test_p08_the_baseline_may_fail_as_well(runs: Batch) -> None:
    run = runs["p08-in-baseline"]
    assert run.status == "partial"
    assert run.baseline["status"] == "failed"
    assert run.baseline["text"] == TEN_TEXT
    other_lane_is_fine(run, "speculative")


def test_p08_both_may_fail(runs: Batch) -> None:
    assert runs["p08-in-both"].status == "failed"


def test_p08_the_next_run_works(runs: Batch) -> None:
    for fake in runs.fakes.values():
        fake.then([ROLE, TOK("fine"), FIN(), USE(), DONE])
    again = runs.app.race("after the error")
    assert again.status == "finished"
    assert again.speculative["text"] == "fine"


# ------------------------------------------------------------------------------------------------ P09
P09 = [n for n in CASES if n.startswith("p09")]


@pytest.mark.parametrize("name", P09)
def test_p09_no_answer_is_a_state_of_its_own_and_no_number(runs: Batch, name: str) -> None:
    run = runs[name]
    lane = run.speculative
    assert lane["status"] != "finished"
    assert lane["text"] == ""
    for figure in ("ttft_ms", "tpot_ms", "e2e_ms", "tokens_per_second", "decode_tokens_per_second"):
        assert lane[figure] is None, f"{figure} is {lane[figure]} without a single token"
    assert lane["completion_tokens"] in (None, 0)
    assert lane["error"]["message"].strip()
    assert run.status == ("failed" if name == "p09-in-both" else "partial")
    if name != "p09-in-both":
        other_lane_is_fine(run)


def test_p09_a_bare_done_is_a_bad_stream(runs: Batch) -> None:
    assert runs["p09-only-done"].speculative["status"] == "failed"
    assert runs["p09-only-done"].speculative["error"]["kind"] == "bad_stream"
    assert runs["p09-empty-body"].speculative["error"]["kind"] in ("bad_stream", "cut_off")
    assert runs["p09-error-first"].speculative["error"]["kind"] == "stream_error"


@pytest.mark.parametrize("name", P09)
def test_p09_the_page_shows_no_zero_seconds(runs: Batch, name: str) -> None:
    stream = runs.app.stream(runs[name])
    for word in ("NaN", "Infinity", "inf ", ">0.0 s<", ">0.0<", ">0 ms<"):
        assert word not in stream, word


# ------------------------------------------------------------------------------------------------ P10
P10_TOLERATED = [n for n in CASES if n.startswith("p10") and n not in ("p10-garbage", "p10-not-an-object")]


@pytest.mark.parametrize("name", P10_TOLERATED)
def test_p10_keep_alive_frames_are_nothing(runs: Batch, name: str) -> None:
    run = runs[name]
    assert run.speculative["status"] == "finished", run.speculative["error"]
    assert run.speculative["text"] == TEN_TEXT
    assert run.speculative["completion_tokens"] == 10
    other_lane_is_fine(run)


@pytest.mark.parametrize("name", ["p10-garbage", "p10-not-an-object"])
def test_p10_garbage_is_an_upstream_error_in_that_pane_only(runs: Batch, name: str) -> None:
    run = runs[name]
    assert run.speculative["status"] == "failed"
    assert run.speculative["error"]["kind"] == "bad_stream"
    assert "Traceback" not in run.raw_race
    assert "Error(" not in run.speculative["error"]["message"]
    assert run.speculative["text"] == TEN_TEXT
    other_lane_is_fine(run)


# ------------------------------------------------------------------------------------------------ P18
@pytest.mark.parametrize(
    ("name", "text", "tokens"),
    [
        ("p18-emoji", "🫠龜", 5),
        ("p18-byte-by-byte", "🫠龜", 5),
        ("p18-escaped", "🫠", 1),
        ("p18-zwj-and-combining", "👩‍🚀e\u0301العربية", 9),
    ],
)
def test_p18_whole_characters_whatever_the_packets(runs: Batch, name: str, text: str, tokens: int) -> None:
    run = runs[name]
    assert run.speculative["status"] == "finished", run.speculative["error"]
    assert run.speculative["text"] == text
    assert run.speculative["completion_tokens"] == tokens
    for seen in (run.raw_events, run.raw_race, runs.app.stream(run)):
        assert "\ufffd" not in seen
    assert all(e["text"] or e["tokens"] for e in run.of("lane.chunk", "speculative")), "a blank flash"


def test_p18_a_stream_cut_inside_a_character_shows_no_replacement(runs: Batch) -> None:
    run = runs["p18-cut-in-a-character"]
    assert run.speculative["status"] == "cut_off"
    assert "\ufffd" not in run.raw_events + run.raw_race + runs.app.stream(run)


# ------------------------------------------------------------------------------------------------ P20
@pytest.mark.parametrize("name", ["p20-stop-string", "p20-ids-say-more"])
def test_p20_a_stop_string_inside_a_batch_leaves_text_and_count_alone(runs: Batch, name: str) -> None:
    run = runs[name]
    assert run.speculative["status"] == "finished"
    assert run.speculative["text"] == "abcd " * 60
    assert run.speculative["completion_tokens"] == 64
    assert run.speculative["finish_reason"] == "stop"
    assert all((e["tokens"] or 0) >= 0 for e in run.of("lane.chunk", "speculative")), "negative tokens"


# ------------------------------------------------------------------------------------------------ always
@pytest.mark.parametrize("name", list(CASES))
def test_p43_both_servers_are_asked_for_the_same_once(runs: Batch, name: str) -> None:
    bodies = []
    for lane in LANES:
        posts = runs.posts(name, lane)
        assert len(posts) == 1, f"{len(posts)} POSTs to the {lane} server"
        bodies.append(posts[0].json)
    assert [body.pop("model") for body in bodies] == ["base-m", "spec-m"]
    assert bodies[0] == bodies[1]
    assert {"temperature", "top_p", "seed", "max_tokens"} <= bodies[0].keys()


@pytest.mark.parametrize("name", ["real-json", "real-poem"])
def test_real_recordings_come_through_whole(runs: Batch, name: str) -> None:
    run = runs[name]
    kind = name.removeprefix("real-")
    for lane in LANES:
        tape = recording(f"sse/{kind}_together_{lane}")
        assert run.race["lanes"][lane]["text"] == tape.text()
        assert run.race["lanes"][lane]["completion_tokens"] == 200
        assert run.race["lanes"][lane]["finish_reason"] == "length"
    assert run.comparison["verdict"] == ("faster" if kind == "json" else "slower")


def test_real_acceptance_is_the_servers_own(runs: Batch) -> None:
    acceptance = runs["real-json"].speculative["acceptance"]
    assert acceptance["source"] == "request"
    assert acceptance["rate"] == pytest.approx(0.75, abs=0.005)
    assert acceptance["mean_length"] == pytest.approx(4.0, abs=0.05)
    assert runs["real-json"].baseline["acceptance"] is None


def test_a_model_without_chat_template_races_through_completions() -> None:
    cases = {"first": Case(), "second": Case()}
    with batch(cases, at_once=1, speculative={"chat_template": False}) as runs:
        for name in cases:
            run = runs[name]
            assert run.speculative["status"] == "finished", run.speculative["error"]
            assert run.speculative["text"] == OTHER_TEXT
            assert run.speculative["completion_tokens"] == 3
        paths = [post.path for post in runs.fakes["speculative"].posts]
        assert paths == ["/v1/chat/completions", "/v1/completions", "/v1/completions"], "the fallback is remembered"
        ttft = [runs[name].speculative["ttft_ms"] for name in cases]
        assert all(20 <= t < 120 for t in ttft), "the refused request is in no TTFT"


def test_no_generation_is_asked_for_before_the_first_race() -> None:
    with batch({}) as runs:
        fakes: list[FakeVLLM] = list(runs.fakes.values())
        assert [fake.posts for fake in fakes] == [[], []]
        assert all(fake.requests for fake in fakes), "the servers were looked at, with GETs"
