"""Acceptance from the growth of vLLM's counters: names, labels, engines, restarts, other traffic, lag."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.race import counters
from app.race.acceptance import from_record
from app.race.counters import parse
from app.race.growth import Growth, final, growth, record, settled, unknown
from tests.fakes.fixtures import read
from tests.race.helpers import exactly


def page(
    drafts: float = 0,
    drafted: float = 0,
    accepted: float = 0,
    positions: tuple[float, ...] = (),
    *,
    generated: float | None = None,
    engine: str = "0",
    suffix: str = "_total",
    created: float | None = None,
) -> str:
    """A /metrics page of one engine."""
    at = f'{{engine="{engine}",model_name="m"}}'
    names = {"num_drafts": drafts, "num_draft_tokens": drafted, "num_accepted_tokens": accepted}
    lines = [f"vllm:spec_decode_{name}{suffix}{at} {value}" for name, value in names.items()]
    if created is not None:
        lines += [f"vllm:spec_decode_{name}_created{at} {created}" for name in names]
    for i, value in enumerate(positions):
        label = f'{{engine="{engine}",model_name="m",position="{i}"}}'
        lines.append(f"vllm:spec_decode_num_accepted_tokens_per_pos{suffix}{label} {value}")
    if generated is not None:
        lines.append(f"vllm:generation_tokens{suffix}{at} {generated}")
    return "\n".join(lines) + "\n"


def odd(text: str, old: str, new: str) -> str:
    """The page with one value replaced, the first that reads ``old``."""
    assert f"{old}\n" in text
    return text.replace(f"{old}\n", f" {new}\n", 1)


def without(text: str, name: str) -> str:
    """The page without one of its counters."""
    return "".join(
        line for line in text.splitlines(keepends=True) if f"_{name}_" not in line and f"_{name}{{" not in line
    )


def grown(before: str, after: str) -> Growth:
    found = growth(parse(before), parse(after))
    assert found is not None
    return found


def test_the_growth_is_after_minus_before() -> None:
    found = grown(page(10, 40, 21, (8, 7, 6)), page(14, 56, 31, (12, 10, 9)))
    assert (found.drafts, found.drafted, found.accepted) == (4, 16, 10)
    assert found.accepted_at_least == (4, 3, 3)
    assert (found.reset, found.certain, found.generated) == (False, True, None)
    figures = from_record(record(found, 15, 4), 15)
    assert figures.source == "server"
    assert figures.rate == 0.625  # 10 / 16
    assert figures.mean_length == 3.5  # 1 + 10/4
    assert figures.per_position == (1.0, 0.75, 0.75)
    assert figures.conditional == (1.0, 0.75, 1.0)
    # 4 steps: 4 got to position 0, 3 to 1, 3 to 2: one accepted exactly 1 token and three exactly 3
    assert figures.histogram == (0, 1, 0, 3)
    assert figures.effective_tokens_per_pass == 3.5  # 14 tokens after the first, in 14 - 10 passes
    assert figures.share_of_output == exactly(10 / 15)


@pytest.mark.parametrize("suffix", ["_total", ""])
def test_p11_names_with_and_without_total_are_the_same_counter(suffix: str) -> None:
    found = grown(page(1, 4, 2, (1, 1, 0), suffix=suffix), page(3, 12, 7, (3, 3, 1), suffix=suffix))
    assert (found.drafts, found.drafted, found.accepted, found.accepted_at_least) == (2, 8, 5, (2, 2, 1))


def test_p11_a_server_that_was_updated_between_two_readings_does_not_count_twice() -> None:
    found = growth(parse(page(1, 4, 2, suffix="")), parse(page(3, 12, 7)))
    assert found is not None
    assert (found.drafts, found.drafted, found.accepted) == (2, 8, 5)


def test_p11_without_the_counters_there_is_nothing() -> None:
    plain = 'vllm:generation_tokens_total{engine="0"} 5\n'
    assert growth(parse(plain), parse(plain)) is None
    assert growth(parse(page(1, 2, 1)), parse(plain)) is None
    assert growth(parse(plain), parse(page(1, 2, 1))) is None
    assert parse(plain).speculating is False
    assert parse(page()).speculating is True


def test_p12_the_time_of_creation_is_never_taken_for_a_count() -> None:
    before = page(1, 300, 100, (60, 40), created=1.796e9)
    after = page(101, 600, 250, (160, 90), created=1.796e9)
    found = grown(before, after)
    assert (found.drafts, found.drafted, found.accepted) == (100, 300, 150)
    assert found.accepted_at_least == (100, 50)
    assert (found.reset, found.certain) == (False, True)
    figures = from_record(record(found, 251, 3), 251)
    assert figures.rate == 0.5


def test_p13_labels_with_spaces_braces_quotes_and_a_time_stamp() -> None:
    label = '{engine="0",model_name="Qwen 3 {x}, \\"v\\""}'
    text = f"vllm:spec_decode_num_draft_tokens_total{label} 300.0 1796004267813\n"
    found = parse(text)
    assert list(found.values.values()) == [300.0]
    ((name, labels),) = found.values
    assert name == counters.DRAFTED
    assert dict(labels)["model_name"] == 'Qwen 3 {x}, "v"'


def test_p14_two_engines_are_subtracted_apart_and_then_summed() -> None:
    # each engine: drafts 100, draft tokens 300, accepted 150, positions 80 / 50 / 20 within the run
    before = page(7, 21, 9, (5, 3, 1), engine="0") + page(1000, 3000, 10, (6, 3, 1), engine="1")
    after = page(107, 321, 159, (85, 53, 21), engine="0") + page(1100, 3300, 160, (86, 53, 21), engine="1")
    found = grown(before, after)
    assert (found.drafts, found.drafted, found.accepted) == (200, 600, 300)
    figures = from_record(record(found, None, 3), None)
    assert figures.rate == 0.5
    assert figures.mean_length == 2.5  # 1 + 300/200
    assert figures.per_position == (0.8, 0.5, 0.2)
    assert 1 + sum(figures.per_position) == exactly(2.5)


def test_p14_k_is_counted_in_positions_not_in_series() -> None:
    assert (
        parse(page(positions=(0, 0, 0), engine="0") + page(positions=(0, 0, 0), engine="1")).num_speculative_tokens == 3
    )
    assert parse(page()).num_speculative_tokens is None


def test_positions_are_ordered_as_numbers() -> None:
    found = grown(page(1, 1, 1, (0,) * 12), page(13, 145, 79, tuple(range(12, 0, -1))))
    assert found.accepted_at_least == tuple(range(12, 0, -1))


def test_a_reset_proved_by_a_newer_creation_time_uses_the_new_value() -> None:
    # the engine restarted and has counted beyond the old value since: only _created tells
    found = grown(page(10, 40, 20, created=100.0), page(12, 48, 30, created=200.0))
    assert (found.drafts, found.drafted, found.accepted) == (12, 48, 30)
    assert (found.reset, found.certain) == (True, True)
    assert record(found, None, 4).reset is True


def test_a_counter_that_fell_without_proof_gives_no_figure() -> None:
    found = grown(page(10, 40, 20), page(2, 8, 5))
    assert (found.reset, found.certain, found.doubt) == (True, False, "reset")
    made = record(found, 20, 4)
    assert (made.certain, made.reset, made.doubt) == (False, True, "reset")
    assert settled(found, None, 20)  # nothing to wait for
    assert from_record(made, 20).rate is None


def test_an_engine_that_is_gone_gives_no_figure() -> None:
    found = grown(page(10, 40, 20, engine="0") + page(10, 40, 20, engine="1"), page(12, 48, 25, engine="0"))
    assert (found.doubt, found.reset) == ("incomplete", False)


def test_an_engine_that_came_counts_from_nothing() -> None:
    found = grown(page(10, 40, 20, engine="0"), page(12, 48, 25, engine="0") + page(3, 12, 6, engine="1"))
    assert (found.drafts, found.drafted, found.accepted, found.certain) == (5, 20, 11, True)


@pytest.mark.parametrize(
    ("tokens", "generated", "exclusive"),
    [
        (45, None, True),  # 1 + 10 drafts + 34 accepted = 45: all ours
        (41, None, True),  # counted before truncation: up to k = 4 too many
        (40, None, False),  # 45 > 40 + 4: somebody else was there
        (200, None, True),  # steps without a draft are in no counter
        (45, 45, True),
        (45, 49, True),
        (45, 50, False),  # the server generated more than this lane can have
        (None, 50, True),  # nothing to judge by
    ],
)
def test_other_traffic_is_noticed(tokens: int | None, generated: int | None, exclusive: bool) -> None:
    found = Growth(10, 40, 34, (10, 9, 8, 7), generated)
    assert record(found, tokens, 4).exclusive is exclusive
    assert record(found, tokens, None).exclusive is exclusive  # k from the positions


def test_p17_counters_have_settled_when_they_hold_the_lanes_tokens_and_stand_still() -> None:
    late = Growth(0, 0, 0, (), 0)
    part = Growth(5, 20, 10, (), 16)
    whole = Growth(10, 40, 29, (), 40)
    assert not settled(late, None, 40)
    assert not settled(late, late, 40)
    assert not settled(part, late, 40)
    assert not settled(part, part, 40)
    assert not settled(whole, part, 40)
    assert settled(whole, whole, 40)


def test_p17_without_a_token_counter_two_equal_readings_that_account_for_all_tokens_have_to_do() -> None:
    still = Growth(0, 0, 0, (), None)
    moved = Growth(10, 40, 29, (), None)
    assert not settled(still, still, 40)
    assert not settled(moved, still, 40)
    assert settled(moved, moved, 40)
    assert settled(moved, moved, 44, 4)
    assert not settled(moved, moved, 45, 4)  # 1 + 10 + 29 = 40 < 45 - 4: the other half may be late
    assert not settled(moved, moved, None)  # nothing says how many there should be


def test_p17_when_the_time_is_up_counters_that_moved_count_as_they_stand() -> None:
    # steps without a draft are in no counter
    made = final(Growth(10, 40, 29, (), None), 100, 4)
    assert (made.certain, made.exclusive, made.drafted) == (True, True, 40)
    assert final(Growth(0, 0, 0, (), None), 100, 4).doubt == "late"
    assert final(Growth(10, 40, 29, (), 60), 100, 4).doubt == "late"  # the token counter knows
    assert final(Growth(10, 40, 29, (), None, doubt="incomplete"), 100, 4).doubt == "incomplete"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("vllm:spec_decode_num_drafts_total 1\n", True),
        ("vllm:generation_tokens_total 1\n", False),
        ("vllm:spec_decode_num_drafts_created 1\n", None),  # speculation under names that we cannot read
        ("sglang:num_running_reqs 1\n", None),
        ("llamacpp:tokens_predicted_total 1\n", None),
        ("", None),
    ],
)
def test_only_a_page_of_vllms_without_speculation_says_that_a_server_does_not_speculate(
    text: str, told: bool | None
) -> None:
    assert parse(text).told is told


@pytest.mark.parametrize(
    "text",
    ["<!doctype html>\n<html><body>Sign in</body></html>", '{"detail":"Not Found"}', "hello there", "x{a=", "# TYPE\n"],
)
def test_what_is_no_metrics_page_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever prometheus_client says
        parse(text)


def test_an_empty_page_has_no_counters() -> None:
    assert parse("").speculating is False


@given(st.text(max_size=60))
def test_no_page_breaks_the_reader_in_an_unforeseen_way(text: str) -> None:
    try:
        parse(text)
    except ValueError:
        return


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-8", "1e300"])
def test_a_counter_that_is_no_number_does_not_break_the_race(value: str) -> None:
    for before, after in (
        (page(1, 4, 2), odd(page(2, 8, 4), " 8", value)),
        (odd(page(1, 4, 2), " 4", value), page(2, 8, 4)),
    ):
        found = grown(before, after)
        assert (found.doubt, found.reset) == ("unreadable", False)
        made = from_record(record(found, 20, 4), 20)
        assert (made.rate, made.mean_length, made.per_position, made.doubt) == (None, None, None, "unreadable")


def test_the_real_pages_of_a_speculative_server() -> None:
    before, after = (
        parse(read("metrics/speculative_before.txt").decode()),
        parse(read("metrics/speculative_after.txt").decode()),
    )
    assert before.speculating
    assert before.num_speculative_tokens == 4
    found = growth(before, after)
    assert found is not None
    assert found.drafts == 1070  # 1192 - 122
    assert found.drafted == 4268  # 4756 - 488
    assert found.accepted == 2526  # 2820 - 294
    assert found.accepted_at_least == (800, 644, 572, 510)  # 894-94, 726-82, 642-70, 558-48
    assert found.generated == 7208  # 8016 - 808
    assert (found.reset, found.certain) == (False, True)
    figures = from_record(record(found, 7208, 4), 7208)
    assert figures.rate == exactly(2526 / 4268)
    assert figures.mean_length == exactly(1 + 2526 / 1070)
    assert figures.per_position is not None
    assert 1 + sum(figures.per_position) == exactly(1 + 2526 / 1070)
    assert figures.exclusive


def test_the_real_pages_of_a_plain_server_know_no_speculation() -> None:
    before, after = (parse(read(f"metrics/baseline_{when}.txt").decode()) for when in ("before", "after"))
    assert not before.speculating
    assert before.num_speculative_tokens is None
    assert growth(before, after) is None


# --------------------------------------------------------------- P11-P17: every way in which a counter can lie
@pytest.mark.parametrize("name", ["num_draft_tokens", "num_accepted_tokens"])
def test_p11_a_counter_that_is_missing_is_no_zero(name: str) -> None:
    # renamed in some version: what is left must not read as 0 % accepted
    found = grown(without(page(1, 4, 2), name), without(page(3, 12, 7), name))
    assert found.doubt == "incomplete"
    assert from_record(record(found, 8, 4), 8).rate is None


@pytest.mark.parametrize("name", ["num_draft_tokens", "num_accepted_tokens"])
def test_p11_a_counter_that_is_renamed_in_mid_race_is_no_zero(name: str) -> None:
    assert grown(page(1, 4, 2), without(page(3, 12, 7), name)).doubt == "incomplete"


def test_p11_without_the_number_of_drafts_there_is_a_rate_and_no_length() -> None:
    # vLLM's old engine counted tokens and no drafts
    found = grown(without(page(1, 4, 2), "num_drafts"), without(page(3, 12, 7), "num_drafts"))
    figures = from_record(record(found, 8, 4), 8)
    assert (figures.rate, figures.accepted, figures.drafted) == (0.625, 5, 8)
    assert (figures.drafts, figures.mean_length, figures.per_position, figures.histogram) == (None,) * 4
    assert figures.effective_tokens_per_pass == 3.5  # 7 / (7 - 5): needs no steps


def test_p11_both_names_of_one_counter_on_one_page_count_once() -> None:
    both = [page(*counts, suffix="_total") + page(*counts, suffix="") for counts in ((1, 4, 2), (3, 12, 7))]
    found = grown(*both)
    assert (found.drafts, found.drafted, found.accepted, found.doubt) == (2, 8, 5, None)


def test_a_series_that_comes_twice_with_two_values_is_unreadable() -> None:
    # two pages put together by a relay that drops the label that told them apart
    found = grown(page(1, 4, 2) + page(1, 4, 2), page(3, 12, 7) + page(2, 8, 4))
    assert found.doubt == "unreadable"
    assert grown(page(1, 4, 2) + page(1, 4, 2), page(3, 12, 7) + page(3, 12, 7)).doubt is None


def test_p14_every_engine_needs_both_counts() -> None:
    second = without(page(0, 0, 0, engine="1"), "num_accepted_tokens")
    found = grown(page(1, 4, 2) + second, page(3, 12, 7) + second.replace(" 0\n", " 8\n"))
    assert found.doubt == "incomplete"


def test_p14_one_engine_of_two_restarts_and_proves_it() -> None:
    before = page(100, 400, 200, engine="0", created=100.0) + page(50, 200, 100, engine="1", created=101.0)
    after = page(102, 408, 205, engine="0", created=100.0) + page(1, 4, 3, engine="1", created=500.0)
    found = grown(before, after)
    assert (found.drafts, found.drafted, found.accepted) == (3, 12, 8)  # 2 and 1, 8 and 4, 5 and 3
    assert (found.reset, found.doubt) == (True, None)


def test_p14_the_creation_time_of_one_engine_proves_nothing_for_the_other() -> None:
    before = page(100, 400, 200, engine="0", created=100.0) + page(50, 200, 100, engine="1")
    after = page(102, 408, 205, engine="0", created=100.0) + page(1, 4, 3, engine="1")
    assert grown(before, after).doubt == "reset"
    # nor does the restart of the one
    after = page(2, 8, 5, engine="0", created=500.0) + page(1, 4, 3, engine="1")
    assert grown(before, after).doubt == "reset"


def test_p14_an_engine_that_was_there_before_and_was_not_seen_is_no_growth() -> None:
    # the page of before came from one engine of two, as through a load balancer; the second is the older one
    before = page(100, 400, 200, engine="0", created=100.0)
    after = page(102, 408, 205, engine="0", created=100.0) + page(9000, 36000, 18000, engine="1", created=99.0)
    assert grown(before, after).doubt == "incomplete"
    later = page(102, 408, 205, engine="0", created=100.0) + page(3, 12, 6, engine="1", created=300.0)
    found = grown(before, later)
    assert (found.drafts, found.drafted, found.accepted, found.doubt) == (5, 20, 11, None)


@pytest.mark.parametrize(("drafts", "drafted", "accepted"), [(2, 8, 9), (9, 8, 5), (0, 8, 5)])
def test_counts_that_contradict_each_other_are_no_figure(drafts: int, drafted: int, accepted: int) -> None:
    found = grown(page(0, 0, 0), page(drafts, drafted, accepted))
    assert (found.doubt, found.reset) == ("contradictory", False)
    assert from_record(record(found, 20, 4), 20).rate is None
    assert not settled(found, found, 5)  # the next page may be whole


def positions(*labels: str, accepted: int = 5, counts: tuple[float, ...] = (2, 2, 1)) -> str:
    """A page of 2 drafts, 8 draft tokens, ``accepted`` accepted, with these labels of positions."""
    lines = [
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="m",position="{label}"}} {count}\n'
        for label, count in zip(labels, counts, strict=True)
    ]
    return page(2, 8, accepted) + "".join(lines)


@pytest.mark.parametrize(
    ("labels", "accepted", "counts", "read"),
    [
        (("0", "1", "2"), 5, (2, 2, 1), (2, 2, 1)),
        (("2", "0", "1"), 5, (1, 2, 2), (2, 2, 1)),
        (("0", "2", "3"), 5, (2, 2, 1), ()),  # sparse
        (("0", "1", "x"), 5, (2, 2, 1), ()),  # no number
        (("0", "1", ""), 5, (2, 2, 1), ()),
        (("0", "1", "-1"), 5, (2, 2, 1), ()),
        (("0", "1", "01"), 5, (2, 2, 1), ()),  # the same position by another name
        (("0", "1", "٢"), 5, (2, 2, 1), ()),
        (("0", "1", "9" * 5000), 5, (2, 2, 1), ()),
        (("0", "1", "2"), 6, (2, 2, 1), ()),  # short of what was accepted: an engine is missing in them
        (("0", "1", "2"), 5, (1, 2, 2), ()),  # no step reaches position 1 but through 0
        (("0", "1", "2"), 5, (3, 1, 1), ()),  # 3 of 2 steps
        (("0", "1", "2"), 5, (2, 2, float("nan")), ()),
        (("0", "1", "2"), 5, (2, 4, -1), ()),
    ],
)
def test_positions_that_cannot_be_read_cost_only_themselves(
    labels: tuple[str, ...], accepted: int, counts: tuple[float, ...], read: tuple[int, ...]
) -> None:
    zero = positions(*labels, counts=(0,) * len(labels))
    before = zero.replace(" 2\n", " 0\n").replace(" 8\n", " 0\n").replace(" 5\n", " 0\n")
    found = grown(before, positions(*labels, accepted=accepted, counts=counts))
    assert (found.accepted_at_least, found.doubt) == (read, None)
    figures = from_record(record(found, 8, None), 8)
    assert figures.rate == accepted / 8
    assert (figures.per_position is None) == (figures.histogram is None) == (read == ())
    assert parse(positions(*labels)).num_speculative_tokens in (3, None)


def test_k_is_not_counted_from_positions_with_holes() -> None:
    assert parse(positions("0", "1", "2")).num_speculative_tokens == 3
    assert parse(positions("0", "2", "3")).num_speculative_tokens is None


def test_positions_that_vanish_cost_only_themselves() -> None:
    found = grown(page(1, 4, 2, (1, 1)), page(3, 12, 7))
    assert (found.drafts, found.accepted, found.accepted_at_least, found.doubt) == (2, 5, (), None)


def test_other_traffic_leaves_no_figure_that_needs_our_own_tokens() -> None:
    found = Growth(100, 400, 200, (80, 60, 40, 20), 900)
    made = from_record(record(found, 45, 4), 45)
    assert (made.exclusive, made.rate, made.mean_length) == (False, 0.5, 3.0)
    assert (made.effective_tokens_per_pass, made.share_of_output) == (None, None)


def test_p17_a_busy_server_is_not_waited_for_until_it_stands_still() -> None:
    busy = Growth(100, 400, 200, (), 900)
    assert settled(busy, None, 45, 4)
    assert record(busy, 45, 4).exclusive is False
    # without the token counter drafts and accepted tell
    assert settled(Growth(100, 400, 200, (), None), None, 45, 4)
    assert not settled(Growth(10, 40, 20, (), None), None, 45, 4)


def test_p15_counters_that_stood_still_while_tokens_were_counted_mean_no_drafts() -> None:
    found = Growth(0, 0, 0, (), 40)
    assert settled(found, found, 40)
    made = from_record(record(found, 40, 4), 40)
    assert (made.drafts, made.drafted, made.accepted, made.doubt) == (0, 0, 0, None)
    assert (made.rate, made.mean_length, made.per_position, made.histogram, made.conditional) == (None,) * 5
    assert (made.effective_tokens_per_pass, made.share_of_output, made.alpha) == (None,) * 3


def test_p17_counters_that_came_too_late_are_named() -> None:
    made = from_record(unknown("late"), 40)
    assert (made.source, made.rate, made.drafted, made.doubt) == ("server", None, None, "late")


def test_alpha_from_counters_when_every_step_drafted_k() -> None:
    # 4 steps of 4 tokens, 1 of them accepted all: 3 rejections; 10 / (10 + 3)
    found = Growth(4, 16, 10, (4, 3, 2, 1), None)
    assert from_record(record(found, 15, 4), 15).alpha == exactly(10 / 13)
    # 15 drafted: one step was shorter, and which one is not known
    assert from_record(record(Growth(4, 15, 10, (4, 3, 2, 1), None), 15, 4), 15).alpha is None


# ------------------------------------------------------------------------------------------------ what is in hand
def test_requests_in_hand_are_summed_over_engines_and_matched_by_their_whole_name() -> None:
    read = counters.parse(
        '# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0"} 2.0\n'
        'vllm:num_requests_running{engine="1"} 3.0\n'
        'vllm:num_requests_waiting{engine="0"} 1.0\nvllm:num_requests_waiting{engine="1"} 0.0\n'
        'vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 7.0\n'
    )
    assert (read.running, read.waiting, read.generated) == (5, 1, None)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1"])
def test_a_count_that_is_none_is_no_number_of_requests(value: str) -> None:
    read = counters.parse(f'vllm:num_requests_running{{engine="0"}} {value}\nvllm:generation_tokens_total {value}\n')
    assert (read.running, read.waiting, read.generated) == (None, None, None)
