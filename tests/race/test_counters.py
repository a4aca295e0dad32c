"""Acceptance from the growth of vLLM's counters: names, labels, engines, restarts, other traffic, lag."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.race import counters
from app.race.acceptance import from_record
from app.race.counters import Growth, growth, parse, record, settled
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


def grown(before: str, after: str) -> Growth:
    found = growth(parse(before), parse(after))
    assert found is not None
    return found


def test_the_growth_is_after_minus_before() -> None:
    found = grown(page(10, 40, 21, (8, 7, 6)), page(14, 56, 31, (12, 10, 9)))
    assert (found.drafts, found.drafted, found.accepted) == (4, 16, 10)
    assert found.accepted_at_least == (4, 3, 3)
    assert (found.reset, found.certain, found.generated) == (False, True, None)
    figures = from_record(record(found, 15, 4))
    assert figures.source == "server"
    assert figures.rate == 0.625  # 10 / 16
    assert figures.mean_length == 3.5  # 1 + 10/4
    assert figures.per_position == (1.0, 0.75, 0.75)
    assert figures.histogram is None


@pytest.mark.parametrize("suffix", ["_total", ""])
def test_p11_names_with_and_without_total_are_the_same_counter(suffix: str) -> None:
    found = grown(page(1, 4, 2, (1, 1), suffix=suffix), page(3, 12, 7, (3, 3), suffix=suffix))
    assert (found.drafts, found.drafted, found.accepted, found.accepted_at_least) == (2, 8, 5, (2, 2))


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
    figures = from_record(record(found, 251, 3))
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
    figures = from_record(record(found, None, 3))
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
    found = grown(page(1, 1, 1, (0,) * 12), page(2, 2, 2, tuple(range(12, 0, -1))))
    assert found.accepted_at_least == tuple(range(12, 0, -1))


def test_a_reset_proved_by_a_newer_creation_time_uses_the_new_value() -> None:
    # the engine restarted and has counted beyond the old value since: only _created tells
    found = grown(page(10, 40, 20, created=100.0), page(12, 48, 30, created=200.0))
    assert (found.drafts, found.drafted, found.accepted) == (12, 48, 30)
    assert (found.reset, found.certain) == (True, True)
    assert record(found, None, 4).reset is True


def test_a_counter_that_fell_without_proof_gives_no_figure() -> None:
    found = grown(page(10, 40, 20), page(2, 8, 5))
    assert (found.reset, found.certain) == (True, False)
    made = record(found, 20, 4)
    assert (made.certain, made.reset) == (False, True)
    assert from_record(made).rate is None


def test_an_engine_that_is_gone_gives_no_figure() -> None:
    found = grown(page(10, 40, 20, engine="0") + page(10, 40, 20, engine="1"), page(12, 48, 25, engine="0"))
    assert found.certain is False


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
    found = Growth(10, 40, 34, (10, 9, 8, 7), generated, reset=False, certain=True)
    assert record(found, tokens, 4).exclusive is exclusive
    assert record(found, tokens, None).exclusive is exclusive  # k from the positions


def test_p17_counters_have_settled_when_they_hold_the_lanes_tokens_and_stand_still() -> None:
    late = Growth(0, 0, 0, (), 0, reset=False, certain=True)
    part = Growth(5, 20, 10, (), 16, reset=False, certain=True)
    whole = Growth(10, 40, 29, (), 40, reset=False, certain=True)
    assert not settled(late, None, 40)
    assert not settled(late, late, 40)
    assert not settled(part, late, 40)
    assert not settled(part, part, 40)
    assert not settled(whole, part, 40)
    assert settled(whole, whole, 40)


def test_p17_without_a_token_counter_two_equal_readings_after_movement_have_to_do() -> None:
    still = Growth(0, 0, 0, (), None, reset=False, certain=True)
    moved = Growth(10, 40, 29, (), None, reset=False, certain=True)
    assert not settled(still, still, 40)
    assert not settled(moved, still, 40)
    assert settled(moved, moved, 40)
    assert settled(moved, moved, None)


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


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf"])
def test_a_counter_that_is_no_number_does_not_break_the_race(value: str) -> None:
    found = growth(parse(page(1, 4, 2)), parse(page(2, 8, 4).replace(" 8\n", f" {value}\n")))
    assert found is None or not found.certain


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
    figures = from_record(record(found, 7208, 4))
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
