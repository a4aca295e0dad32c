"""Numbers as people read them."""

from __future__ import annotations

import pytest

from app.web import format as say


@pytest.mark.parametrize(
    "to_text", [say.times, say.duration, say.per_token, say.rate, say.percent, say.length, say.count]
)
def test_what_does_not_exist_is_na(to_text: object) -> None:
    assert callable(to_text)
    assert to_text(None) == "n/a"


def test_a_loss_is_never_rounded_into_a_win() -> None:
    assert say.times(0.88) == "0.88x"
    assert say.times(0.994) == "0.99x"
    assert say.times(2.384) == "2.38x"


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0 ms"), (117.6, "118 ms"), (999.4, "999 ms"), (999.6, "1.00 s"), (2518.3, "2.52 s"), (65_000, "1 min 05 s")],
)
def test_durations(ms: float, text: str) -> None:
    assert say.duration(ms) == text


def test_a_round_duration_never_reads_1000_ms_or_60_00_s() -> None:
    assert say.duration(999.9) == "1.00 s"
    assert say.duration(59_999) == "1 min 00 s"
    assert say.per_token(999.99) == "1.00 s"


def test_the_running_clock_reads_as_the_script_ticks_it() -> None:
    assert say.clock(440) == "0.4 s"
    assert say.clock(-3) == "0.0 s"


def test_rates_shares_counts() -> None:
    assert say.rate(33.333) == "33.3"
    assert say.rate(1234.5) == "1,234.5"
    assert say.percent(0.746) == "74.6%"
    assert say.count(1320) == "1,320"
    assert say.length(4) == "4.00"
    assert say.per_token(30.07) == "30.1 ms"
    assert say.temperature(0.0) == "0"
    assert say.span(125) == "2 min 05 s"


def test_moments() -> None:
    assert say.moment("2026-11-30T02:22:29Z") == "30 Nov 2026, 02:22 UTC"
    assert say.moment("2026-11-30T04:22:29+02:00") == "30 Nov 2026, 02:22 UTC"
    assert say.moment("2026-11-30") == "30 Nov 2026"
    assert say.moment("last week") == "last week"


def test_one_line_squeezes_and_cuts() -> None:
    assert say.one_line("a\n\n  b\tc") == "a b c"
    assert say.one_line("word " * 100, 10) == "word word…"


def test_displayed_text_keeps_everything_but_what_html_cannot_carry() -> None:
    assert say.displayed("a\r\nb\rc\n  d\u2028e\u0085f") == "a\nb\nc\n  d\u2028e\u0085f"
    assert say.displayed("a\0b") == "a\u2400b"
