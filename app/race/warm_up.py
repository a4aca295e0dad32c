"""A warm-up: a few tokens from a server, so that no race pays for a first kernel or a cold cache. Counts nowhere."""

from __future__ import annotations

import structlog

from app.race.failures import UpstreamError
from app.race.racer import Runner
from app.race.types import Chunk, LaneName, RaceSpec, Sampling

_log = structlog.get_logger()
RATE_S = 60.0
WARM_UP = RaceSpec(
    workload=None,
    # repeats itself, so that n-gram speculation finds something to draft
    prompt="One, two, three, one, two, three, one, two,",
    system=None,
    sampling=Sampling(temperature=0.0, top_p=1.0, seed=0, max_tokens=16, ignore_eos=True),
    schedule="together",
)


async def warm_up(lane: LaneName, runner: Runner) -> None:
    """One short answer of a lane's server. Trouble goes to the log: the race after it will say what is wrong."""

    def drop(_: Chunk) -> None:
        """The answer is not looked at."""

    try:
        await runner.run(WARM_UP, await runner.model(), lambda _at, _again: None, drop)
        if lane == "baseline":
            # the first log-probabilities of a server compile too; a race may ask for some at its end (RaceMargin)
            await runner.rate([1], [1, 2], RATE_S)
    except UpstreamError as error:
        _log.warning("warm-up failed", lane=lane, reason=error.raw)
