"""Numbers as people read them. The only place where a figure becomes text; nothing is computed here.

A number that does not exist is "n/a". Decimals are fixed for each kind of number, so that digits do not dance while a
race is on.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

NA = "n/a"


def times(ratio: float | None) -> str:
    """A ratio with two decimals: "2.38x"; never clamped, never rounded up to a win."""
    return NA if ratio is None else f"{ratio:.2f}x"


def duration(ms: float | None) -> str:
    """A span of time: "118 ms", "2.52 s", "1 min 05 s"."""
    if ms is None:
        return NA
    if round(ms) < 1000:
        return f"{ms:.0f} ms"
    if round(ms / 1000, 2) < 60:
        return f"{ms / 1000:.2f} s"
    minutes, seconds = divmod(round(ms / 1000), 60)
    return f"{minutes} min {seconds:02d} s"


def clock(ms: float) -> str:
    """A running clock, the way static/app.js ticks it: "0.4 s", "83.1 s"."""
    return f"{max(ms, 0) / 1000:.1f} s"


def per_token(ms: float | None) -> str:
    """Time per output token: "30.1 ms"."""
    if ms is None:
        return NA
    return f"{ms:.1f} ms" if round(ms, 1) < 1000 else f"{ms / 1000:.2f} s"


def rate(per_second: float | None) -> str:
    """Tokens per second: "33.3"."""
    return NA if per_second is None else f"{per_second:,.1f}"


def percent(share: float | None) -> str:
    """A share of 1: "74.6%"."""
    return NA if share is None else f"{100 * share:.1f}%"


def logprob(nats: float | None) -> str:
    """A log-probability, or a difference of two: "0.125"."""
    return NA if nats is None else f"{nats:.3f}"


def length(tokens: float | None) -> str:
    """Mean acceptance length: "4.00"."""
    return NA if tokens is None else f"{tokens:.2f}"


def count(n: int | None) -> str:
    """A whole number: "1,320"."""
    return NA if n is None else f"{n:,}"


def span(seconds: float) -> str:
    """How long an engine has been at it: "23 s", "2 min 05 s"."""
    minutes, rest = divmod(int(max(seconds, 0)), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def temperature(value: float) -> str:
    """Without idle zeros: "0", "0.7", "1"."""
    return f"{value:g}"


def moment(iso: str) -> str:
    """An ISO 8601 time in UTC: "30 Nov 2026, 02:22 UTC"; a bare date stays a date; anything else as it is."""
    try:
        at = datetime.fromisoformat(iso)
    except ValueError:
        return iso
    if len(iso) <= 10:
        return f"{at.day} {at:%b %Y}"
    at = at.astimezone(UTC) if at.tzinfo else at
    return f"{at.day} {at:%b %Y, %H:%M} UTC"


def one_line(text: str, limit: int = 240) -> str:
    """The beginning of a text with all white space squeezed, for places of one line."""
    flat = re.sub(r"\s+", " ", text[: 4 * limit]).strip()
    return flat if len(flat) <= limit and len(text) <= 4 * limit else flat[:limit].rstrip() + "…"


def displayed(text: str) -> str:
    """Model text as HTML can carry it: CR LF and CR are one line break each, NUL is made visible."""
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\u2400")
