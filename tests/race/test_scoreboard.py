"""Every figure of one lane and of the pair, worked by hand from metrics.md."""

from __future__ import annotations

from typing import Any

import pytest

from app.race.divergence import first_difference
from app.race.events import RaceQueued
from app.race.scoreboard import judge
from app.race.summary import summarize
from app.race.types import SpecRecord
from tests.race.helpers import (
    board,
    chunk,
    drafts,
    ended,
    exactly,
    meta,
    over,
    sent,
    started,
    streamed,
    usage,
)


def test_the_figures_of_one_lane_are_those_of_metrics_md() -> None:
    # sent at 1000; 5 tokens at 1250, 1270, 1300, 1340, 1410; N = 5
    times = (1250.0, 1270.0, 1300.0, 1340.0, 1410.0)
    events = [started(0), sent("baseline", 1000), *(chunk("baseline", t) for t in times), ended("baseline", 1500)]
    numbers = board(events).numbers("baseline")
    assert numbers.ttft_ms == 250  # 1250 - 1000
    assert numbers.e2e_ms == 410  # 1410 - 1000: the last token, not the end of the connection at 1500
    assert numbers.tpot_ms == 40  # (410 - 250) / (5 - 1)
    assert numbers.decode_tokens_per_second == 25  # 1000 / 40
    assert numbers.tokens_per_second == exactly(5 / 0.410)  # N / E2E = 12.195...
    assert (numbers.completion_tokens, numbers.chunks, numbers.status) == (5, 5, "finished")
    assert numbers.tokens_estimated is False


def test_p01_counting_chunks_would_call_the_faster_server_slower() -> None:
    # baseline: 80 chunks of 1 from 100 ms, every 50 ms: last at 100 + 79 * 50 = 4050
    # speculative: 20 chunks of 4 from 100 ms, every 100 ms: last at 100 + 19 * 100 = 2000
    base = streamed("baseline", first_ms=100, every_ms=50, chunks=80)
    fast = streamed("speculative", first_ms=100, every_ms=100, chunks=20, per_chunk=4)
    scores = board(started(), base, fast)
    b, s = scores.numbers("baseline"), scores.numbers("speculative")
    assert b.tpot_ms == 50  # 3950 / 79
    assert s.tpot_ms == exactly(1900 / 79)  # 24.05, not 100
    assert b.tokens_per_second == exactly(80 / 4.05)
    assert s.tokens_per_second == 40  # 80 / 2
    pair = scores.comparison(greedy=False)
    assert pair.speedup == exactly(4.05 / 2)  # (80/2) / (80/4.05) = 2.025, not 0.5
    assert pair.decode_speedup == exactly(3950 / 1900)  # 2.0789
    assert pair.verdict == "faster"


def test_p24_a_speedup_of_088_is_neither_clamped_nor_called_anything_but_slower() -> None:
    # 100 tokens each; baseline's last at 880 ms, speculative's at 1000 ms: 880 / 1000 = 0.88
    scores = board(
        started(),
        [sent("baseline"), chunk("baseline", 80, 1), chunk("baseline", 880, 99), ended("baseline", 881)],
        [sent("speculative"), chunk("speculative", 100, 1), chunk("speculative", 1000, 99), ended("speculative", 1001)],
    )
    pair = scores.comparison(greedy=False)
    assert pair.speedup == exactly(0.88)
    assert pair.decode_speedup == exactly(800 / 900)  # TPOT_b / TPOT_s = (800/99) / (900/99)
    assert pair.verdict == "slower"


@pytest.mark.parametrize(
    ("speedup", "verdict"),
    [(0.88, "slower"), (0.9799, "slower"), (0.9801, "same"), (1.0, "same"), (1.0199, "same"), (1.0201, "faster")],
)
def test_a_single_race_decides_nothing_within_two_percent(speedup: float, verdict: str) -> None:
    assert judge(speedup) == verdict


def test_no_speedup_has_no_verdict() -> None:
    assert judge(None) is None


def test_p43_different_lengths_are_compared_by_rate_not_by_time() -> None:
    # 400 tokens in 8 s against 200 in 4 s, one every 20 ms: both rates are 50/s
    scores = board(
        started(),
        streamed("baseline", first_ms=20, every_ms=20, chunks=400),
        streamed("speculative", first_ms=20, every_ms=20, chunks=200),
    )
    pair = scores.comparison(greedy=False)
    assert (pair.speedup, pair.decode_speedup, pair.verdict) == (1.0, 1.0, "same")
    assert "lengths_differ" in pair.caveats


def test_reasoning_ends_the_time_to_the_first_token_and_counts() -> None:
    scores = board(
        sent("baseline", 0),
        chunk("baseline", 300, 2, text="hm", reasoning=True),
        chunk("baseline", 700, 2, text="Yes"),
        ended("baseline", 701),
    )
    numbers = scores.numbers("baseline")
    assert (numbers.ttft_ms, numbers.e2e_ms, numbers.completion_tokens) == (300, 700, 4)
    assert (scores.lanes["baseline"].reasoning, scores.lanes["baseline"].text) == ("hm", "Yes")


def test_one_token_has_no_time_per_token() -> None:
    numbers = board(sent("baseline"), chunk("baseline", 100, 1), ended("baseline", 101)).numbers("baseline")
    assert (numbers.ttft_ms, numbers.e2e_ms, numbers.tokens_per_second) == (100, 100, 10)
    assert (numbers.tpot_ms, numbers.decode_tokens_per_second) == (None, None)


def test_a_whole_answer_in_one_chunk_has_no_time_per_token() -> None:
    numbers = board(sent("baseline"), chunk("baseline", 100, 50), ended("baseline", 101)).numbers("baseline")
    assert (numbers.tpot_ms, numbers.decode_tokens_per_second) == (None, None)
    assert numbers.tokens_per_second == 500


def test_no_token_at_all_gives_no_figure_at_all() -> None:
    numbers = board(sent("baseline"), usage("baseline", 10, 0), ended("baseline", 11)).numbers("baseline")
    assert numbers.completion_tokens == 0
    found = (numbers.ttft_ms, numbers.tpot_ms, numbers.e2e_ms, numbers.tokens_per_second, numbers.acceptance)
    assert found == (None, None, None, None, None)
    assert numbers.tokens_estimated is False


def test_the_servers_total_has_the_last_word_on_the_tokens() -> None:
    # P20: 60 tokens were seen in the stream, the server counts 64; nothing is missing and nothing negative
    scores = board(
        sent("baseline"),
        chunk("baseline", 100, 1),
        chunk("baseline", 730, 59),
        usage("baseline", 731, 64),
        ended("baseline", 732),
    )
    numbers = scores.numbers("baseline")
    assert numbers.completion_tokens == 64
    assert numbers.tpot_ms == 10  # (730 - 100) / 63
    assert numbers.tokens_per_second == exactly(64 / 0.730)


def test_a_total_without_completion_tokens_leaves_the_count_of_the_stream() -> None:
    scores = board(sent("baseline"), chunk("baseline", 100, 7), usage("baseline", 101, None, prompt_tokens=20))
    numbers = scores.numbers("baseline")
    assert (numbers.completion_tokens, numbers.prompt_tokens) == (7, 20)


def test_p04_chunks_without_any_count_are_no_tokens() -> None:
    numbers = board(streamed("baseline", first_ms=10, every_ms=10, chunks=9, per_chunk=None)).numbers("baseline")
    assert numbers.completion_tokens is None
    assert numbers.tokens_estimated is True
    assert (numbers.tokens_per_second, numbers.tpot_ms, numbers.decode_tokens_per_second) == (None, None, None)
    assert (numbers.ttft_ms, numbers.e2e_ms, numbers.chunks) == (10, 90, 9)


@pytest.mark.parametrize("blind", ["baseline", "speculative"])
def test_no_ratio_when_only_one_side_is_counted(blind: str) -> None:
    other = "speculative" if blind == "baseline" else "baseline"
    scores = board(
        started(),
        streamed(blind, first_ms=10, every_ms=10, chunks=9, per_chunk=None),  # type: ignore[arg-type]
        streamed(other, first_ms=10, every_ms=10, chunks=9),  # type: ignore[arg-type]
    )
    pair = scores.comparison(greedy=False)
    assert (pair.speedup, pair.decode_speedup, pair.verdict) == (None, None, None)
    assert "tokens_estimated" in pair.caveats


def test_p05_running_counts_that_contradict_themselves_are_an_estimate_until_the_total_comes() -> None:
    events = [sent("baseline"), chunk("baseline", 100, 5), chunk("baseline", 200, 0, tokens_exact=False)]
    live = board(events).numbers("baseline")
    assert (live.completion_tokens, live.tokens_estimated, live.tokens_per_second) == (5, True, None)
    final = board(events, usage("baseline", 300, 80), ended("baseline", 301)).numbers("baseline")
    assert (final.completion_tokens, final.tokens_estimated) == (80, False)
    assert final.tokens_per_second == 400  # 80 in 200 ms


@pytest.mark.parametrize("status", ["failed", "cut_off", "aborted"])
@pytest.mark.parametrize("lane", ["baseline", "speculative"])
def test_no_ratio_with_a_lane_in_trouble_but_its_tokens_stay(lane: str, status: str) -> None:
    other = "speculative" if lane == "baseline" else "baseline"
    scores = board(
        started(),
        streamed(lane, first_ms=10, every_ms=10, chunks=4, status=status),  # type: ignore[arg-type]
        streamed(other, first_ms=10, every_ms=10, chunks=9),  # type: ignore[arg-type]
    )
    pair = scores.comparison(greedy=True)
    assert (pair.speedup, pair.decode_speedup, pair.verdict, pair.text) == (None, None, None, "not_comparable")
    numbers = scores.numbers(lane)  # type: ignore[arg-type]
    assert (numbers.status, numbers.completion_tokens) == (status, 4)
    assert scores.lanes[lane].text == "xxxx"  # type: ignore[index]
    assert scores.lanes[lane].error is not None  # type: ignore[index]


def test_in_turn_each_lane_counts_from_its_own_request() -> None:
    # the second lane is sent 5 s later and is exactly as fast
    scores = board(
        started(),
        streamed("baseline", at_ms=0, first_ms=100, every_ms=10, chunks=11),
        streamed("speculative", at_ms=5000, first_ms=5100, every_ms=10, chunks=11),
    )
    b, s = scores.numbers("baseline"), scores.numbers("speculative")
    assert (b.ttft_ms, b.e2e_ms, b.tpot_ms) == (s.ttft_ms, s.e2e_ms, s.tpot_ms) == (100, 200, 10)
    assert scores.comparison(greedy=False).speedup == 1.0


def test_waiting_in_the_queue_is_in_no_figure() -> None:
    scores = board(
        RaceQueued(t_ms=0, position=3),
        started(60_000),
        streamed("baseline", at_ms=60_001, first_ms=60_101, every_ms=10, chunks=2),
    )
    assert scores.numbers("baseline").ttft_ms == 100
    assert scores.position is None
    assert scores.started_ms == 60_000


def test_a_lane_that_was_asked_again_begins_afresh() -> None:
    scores = board(
        sent("speculative", 0, num_speculative_tokens=4),
        chunk("speculative", 50, 5, text="old"),
        sent("speculative", 1000, retried=True),
        chunk("speculative", 1200, 1, text="new"),
        chunk("speculative", 1300, 2, text="er"),
        ended("speculative", 1301),
    )
    lane, numbers = scores.lanes["speculative"], scores.numbers("speculative")
    assert lane.text == "newer"
    assert (numbers.ttft_ms, numbers.e2e_ms, numbers.completion_tokens, numbers.chunks) == (200, 300, 3, 2)
    assert lane.token_ids == [0, 0, 1]
    assert numbers.acceptance is not None
    assert numbers.acceptance.accepted == 1  # of the second attempt alone
    assert scores.comparison(greedy=False).caveats == ("retried",)


def test_live_rates_run_to_now_and_a_finished_lane_keeps_its_own() -> None:
    # baseline finished: 10 tokens, last at 200 ms: 50/s for ever. speculative streams: 30 tokens so far
    events = [
        started(),
        sent("baseline"),
        chunk("baseline", 100, 1),
        chunk("baseline", 200, 9),
        ended("baseline", 201),
        sent("speculative"),
        chunk("speculative", 110, 10),
        chunk("speculative", 190, 20),
    ]
    scores = board(events)
    for now_ms, live in ((250.0, 120.0), (400.0, 75.0), (1000.0, 30.0)):  # 30 tokens / now
        assert scores.numbers("speculative", now_ms).tokens_per_second == exactly(live)
        assert scores.numbers("baseline", now_ms).tokens_per_second == 50
        pair = scores.comparison(now_ms, greedy=False)
        assert pair.speedup == exactly(live / 50)
        assert pair.verdict is None  # not before both have ended
    assert scores.numbers("speculative", 400).e2e_ms is None


def test_a_lane_without_its_first_token_has_no_live_ratio() -> None:
    scores = board(started(), sent("baseline"), sent("speculative"), chunk("speculative", 50, 4))
    assert scores.numbers("baseline", 500).tokens_per_second is None
    assert scores.comparison(500, greedy=False).speedup is None


def test_the_reading_at_the_end_is_the_one_that_the_end_will_show() -> None:
    events = [sent("baseline"), chunk("baseline", 100, 1), chunk("baseline", 200, 9)]
    ahead = board(events).numbers("baseline", 5000, ending="finished")
    then = board(events, ended("baseline", 5000)).numbers("baseline", 9000)
    assert ahead == then
    assert ahead.e2e_ms == 200


def test_p19_the_first_token_that_differs_is_named() -> None:
    same = [chunk("baseline", 10, 3), ended("baseline", 20), chunk("speculative", 10, 2, token_ids=(0, 1))]
    pair = board(
        sent("baseline"),
        sent("speculative"),
        same,
        chunk("speculative", 15, 1, token_ids=(7,)),
        ended("speculative", 20),
    ).comparison(greedy=True)
    assert (pair.text, pair.diverges_at_token) == ("diverged", 2)
    assert "text_diverged" in pair.caveats


def test_equal_tokens_are_identical_however_they_were_cut() -> None:
    pair = board(
        sent("baseline"),
        chunk("baseline", 10, 1, token_ids=(5,)),
        chunk("baseline", 20, 2, token_ids=(6, 7)),
        ended("baseline", 21),
        sent("speculative"),
        chunk("speculative", 10, 3, token_ids=(5, 6, 7)),
        ended("speculative", 11),
    ).comparison(greedy=True)
    assert (pair.text, pair.diverges_at_token) == ("identical", None)


def test_without_ids_the_text_is_compared() -> None:
    def pair(text: str) -> object:
        return board(
            sent("baseline"),
            chunk("baseline", 10, 1, text="ab", token_ids=None),
            ended("baseline", 11),
            sent("speculative"),
            chunk("speculative", 10, 1, text=text, token_ids=None),
            ended("speculative", 11),
        ).comparison(greedy=True)

    assert (pair("ab").text, pair("ab").diverges_at_token) == ("identical", None)  # type: ignore[attr-defined]
    assert (pair("ac").text, pair("ac").diverges_at_token) == ("diverged", None)  # type: ignore[attr-defined]


def test_sampled_text_is_never_compared() -> None:
    both = [
        *streamed("baseline", first_ms=1, every_ms=1, chunks=2),
        *streamed("speculative", first_ms=1, every_ms=1, chunks=2),
    ]
    assert board(both).comparison(greedy=False).text == "not_comparable"
    assert board(both).comparison(greedy=True).text == "identical"


def test_an_unfinished_lane_is_not_compared() -> None:
    live = [*streamed("baseline", first_ms=1, every_ms=1, chunks=2), sent("speculative"), chunk("speculative", 5, 2)]
    assert board(live).comparison(greedy=True).text == "not_comparable"
    assert board(live, ended("speculative", 9, "stopped")).comparison(greedy=True).text == "not_comparable"


@pytest.mark.parametrize(
    ("one", "other", "index"),
    [([], [], None), ([1], [1], None), ([1, 2], [1, 3], 1), ([1], [1, 2], 1), ([1, 2], [], 0), ([9], [8], 0)],
)
def test_first_difference(one: list[int], other: list[int], index: int | None) -> None:
    assert first_difference(one, other) == index


RECORD = SpecRecord(source="server", drafts=2, drafted=8, accepted=3)


@pytest.mark.parametrize(
    ("events", "caveat"),
    [
        ([usage("baseline", 5, 3, cached_tokens=512)], "cached_prompt"),
        ([chunk("baseline", 4, None)], "tokens_estimated"),
        ([chunk("baseline", 4, 1)], "lengths_differ"),
        (
            [drafts("speculative", 6, SpecRecord(source="server", drafts=1, drafted=4, accepted=1, exclusive=False))],
            "other_traffic",
        ),
        (
            [drafts("speculative", 6, SpecRecord(source="server", drafts=1, drafted=4, accepted=1, reset=True))],
            "counters_reset",
        ),
        ([drafts("speculative", 6, SpecRecord(source="request", drafts=0, drafted=0, accepted=0))], "no_drafts"),
        ([drafts("speculative", 6, RECORD)], None),
        ([usage("baseline", 5, 1), usage("speculative", 5, 1)], None),
    ],
)
def test_what_spoils_a_comparison_is_said(events: list, caveat: str | None) -> None:
    both = [
        *streamed("baseline", first_ms=1, every_ms=1, chunks=1),
        *streamed("speculative", first_ms=1, every_ms=1, chunks=1),
    ]
    caveats = board(started(), both, events).comparison(greedy=False).caveats
    assert (caveat in caveats) if caveat else caveats == ()


def test_p21_a_prefix_cache_on_one_side_only_is_said_at_the_end() -> None:
    def caveats(b: int | None, s: int | None) -> tuple[str, ...]:
        both = [
            *streamed("baseline", first_ms=1, every_ms=1, chunks=2),
            *streamed("speculative", first_ms=1, every_ms=1, chunks=2),
        ]
        counted = [usage("baseline", 3, 2, cached_tokens=b), usage("speculative", 3, 2, cached_tokens=s)]
        return board(started(), both, counted).comparison(greedy=False).caveats

    assert caveats(512, 0) == ("cached_prompt", "prefix_cache_differs")
    assert caveats(512, 512) == ("cached_prompt",)
    assert caveats(0, 0) == caveats(None, None) == ()


def test_a_lane_that_failed_says_nothing_about_lengths_and_caches() -> None:
    scores = board(
        started(),
        sent("baseline"),
        ended("baseline", 5, "failed"),
        streamed("speculative", first_ms=1, every_ms=1, chunks=4),
        usage("speculative", 4.5, 4, cached_tokens=512),
    )
    assert set(scores.comparison(greedy=True).caveats) <= {"cached_prompt"}


def test_conditions_known_before_the_race_are_among_the_caveats() -> None:
    scores = board(started(conditions=("cold_start", "shared_device")))
    assert scores.comparison(greedy=True).caveats == ("cold_start", "shared_device")


def test_the_end_of_the_race_is_its_last_word() -> None:
    scores = board(started(), sent("baseline"), over(10, "interrupted"))
    assert (scores.over, scores.status) == (True, "interrupted")


def test_a_baseline_never_shows_an_acceptance_guessed_from_its_chunks() -> None:
    # P16: two tokens in a chunk of a plain server mean a lagging HTTP layer, not a draft
    scores = board(sent("baseline"), chunk("baseline", 1, 1), chunk("baseline", 2, 4), ended("baseline", 3))
    assert scores.numbers("baseline").acceptance is None


def test_a_server_known_not_to_speculate_shows_no_acceptance() -> None:
    scores = board(sent("speculative", speculating=False), chunk("speculative", 1, 1), chunk("speculative", 2, 4))
    assert scores.numbers("speculative").acceptance is None


def test_the_servers_record_replaces_the_guess_from_chunk_sizes() -> None:
    events = [sent("speculative", num_speculative_tokens=4), chunk("speculative", 1, 1), chunk("speculative", 2, 3)]
    guess = board(events).numbers("speculative").acceptance
    assert guess is not None
    assert guess.source == "stream"
    found = board(events, drafts("speculative", 5, RECORD)).numbers("speculative").acceptance
    assert found is not None
    assert (found.source, found.rate, found.mean_length) == ("server", 0.375, 2.5)  # 3/8, 1 + 3/2


def test_p15_an_answer_of_one_token_is_no_speedup() -> None:
    # it would be a ratio of times to first token
    one = [sent("baseline"), chunk("baseline", 100, 1), ended("baseline", 101)]
    many = [sent("speculative"), chunk("speculative", 100, 1), chunk("speculative", 200, 9), ended("speculative", 201)]
    pair = board(started(), one, many).comparison(greedy=False)
    assert (pair.speedup, pair.decode_speedup, pair.verdict) == (None, None, None)


def test_a_lane_that_was_stopped_has_a_rate_but_no_verdict() -> None:
    # stopped at 10 tokens in 100 ms: 100/s; the other 20 in 100 ms
    stopped = [sent("baseline"), chunk("baseline", 50, 1), chunk("baseline", 100, 9), ended("baseline", 120, "stopped")]
    other = [sent("speculative"), chunk("speculative", 50, 1), chunk("speculative", 100, 19), ended("speculative", 101)]
    pair = board(started(), stopped, other, over(130, "partial")).comparison(greedy=False)
    assert (pair.speedup, pair.verdict) == (2.0, None)


def test_a_lane_that_was_interrupted_has_no_ratio() -> None:
    live = [started(), streamed("baseline", first_ms=10, every_ms=10, chunks=9), sent("speculative")]
    live += [chunk("speculative", 10, 1), chunk("speculative", 90, 8)]  # type: ignore[list-item]
    assert board(*live).comparison(greedy=False).speedup is not None
    assert board(*live, over(95, "interrupted")).comparison(greedy=False).speedup is None


def test_the_guess_from_chunk_sizes_ends_with_the_race() -> None:
    events = [sent("speculative", num_speculative_tokens=4), chunk("speculative", 1, 1), chunk("speculative", 2, 5)]
    finished = [*events, ended("speculative", 3)]
    assert board(finished).numbers("speculative").acceptance is not None  # the counters may still come
    assert board(finished, over(4)).numbers("speculative").acceptance is None


def test_an_interrupted_race_stands_still_and_streams_nothing_any_more() -> None:
    folded = board(started(), sent("baseline", 10), chunk("baseline", 110, 1), over(500, "interrupted"))
    assert folded.lanes["baseline"].elapsed_ms(99_999) == 100
    shown = summarize(meta("r"), folded, 99_999)
    assert shown.lanes["baseline"].status == "stopped"
    assert shown.lanes["speculative"].status == "waiting"
    assert shown.comparison.speedup is None


@pytest.mark.parametrize(("source", "told"), [("request", True), ("server", False)])
def test_a_lane_that_sends_its_own_record_speculates_whatever_its_counters_did_not_show(
    source: Any, told: bool
) -> None:
    record = SpecRecord(source=source, drafts=2, drafted=8, accepted=5)
    lane = board(sent("speculative", speculating=False), drafts("speculative", 5, record)).lanes["speculative"]
    assert lane.speculating is told
