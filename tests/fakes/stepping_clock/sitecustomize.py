"""Steps the wall clock of a process of the tests five seconds back, a second after it first raced (P43.5).

Put on PYTHONPATH by tests/blackbox/test_clock.py. Only the wall clock: what counts from a monotonic one must not care.
"""

from __future__ import annotations

import datetime as dt
import os
import time

_real = time.time
_real_ns = time.time_ns
_flag = os.environ.get("SPECRACE_TEST_CLOCK", "")


def _step_s() -> float:
    return -5.0 if _flag and os.path.exists(_flag) else 0.0  # noqa: PTH110  # pathlib would be imported at every start


time.time = lambda: _real() + _step_s()
time.time_ns = lambda: _real_ns() + int(_step_s() * 1e9)


class _Stepped(dt.datetime):
    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> dt.datetime:
        return super().now(tz) + dt.timedelta(seconds=_step_s())


dt.datetime = _Stepped
