"""One monotonic clock for every stamp, injected so that tests move it by hand."""

from __future__ import annotations

import time
from collections.abc import Callable

MonotonicNs = Callable[[], int]
"""Nanoseconds of a clock that only goes forward; steps of the wall clock change nothing (P43.5)."""

monotonic_ns: MonotonicNs = time.perf_counter_ns


def ms_between(start_ns: int, end_ns: int) -> float:
    """Milliseconds from ``start_ns`` to ``end_ns``, both of the same MonotonicNs."""
    return (end_ns - start_ns) / 1e6
