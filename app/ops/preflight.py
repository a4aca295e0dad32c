"""The check before a show: ask both servers, let them run a short race, and say what is found, with remedies.

``check`` does it once; ``Preflight`` is the one place in the app that may, so that a room full of visitors cannot keep
the pair busy with checks.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime

import structlog

from app.errors import Busy
from app.ops.compare import pair_findings, race_findings
from app.ops.findings import Finding, Report, report
from app.ops.judge import lane_findings
from app.ops.observed import Facts
from app.ops.probes import listen, look
from app.race.clock import MonotonicNs, monotonic_ns, ms_between
from app.race.hub import Hub
from app.race.lane import LaneServer
from app.race.race import Race
from app.race.run import Run
from app.race.summary import RaceMeta, RaceSummary
from app.race.types import LANES, LaneName, RaceSpec, Sampling
from app.race.workloads import Workloads

_log = structlog.get_logger()
AGAIN_AFTER_S = 10.0
Lanes = Mapping[LaneName, LaneServer]
Say = Callable[[str], None]

RACES = (
    'Shopping:\n{"item": "apples", "amount": 4, "unit": "pieces"}\n{"item": "flour", "amount": 500, "unit": "grams"}\n',
    "One, two, three, one, two, three, one, two, three, one, two, three, one, two,",
    "INSERT INTO boats (id, name) VALUES (1, 'Anna');\nINSERT INTO boats (id, name) VALUES (2, 'Berta');\n",
)
"""Prompts whose continuation repeats itself: a draft of any kind has something to guess."""
RACE_TOKENS = 48


async def check(
    lanes: Lanes, workloads: Workloads, say: Say = lambda _: None, *, equal_scheduling: bool | None = None
) -> Report:
    """Check the pair now; takes some seconds. ``say`` is told what is being done. Never raises for what servers do."""
    began = monotonic_ns()
    at = _now()
    say("asking both servers what they are")
    pair = await _both(lanes, lambda lane: look(lane, workloads.workload))
    say("asking both for short answers")
    pair = await _both(lanes, lambda lane: listen(lane, pair[lane.lane]))
    findings = [finding for lane in LANES for finding in lane_findings(pair[lane], workloads.workload)]
    same = lanes["baseline"].upstream.endpoint.root == lanes["speculative"].upstream.endpoint.root
    findings += pair_findings(pair, same_address=same, equal_scheduling=equal_scheduling)
    if all(facts.error is None for facts in pair.values()):
        say("running a short race, one lane after the other")
        findings += race_findings(await _races(lanes))
    return report(findings, at=at, took_s=ms_between(began, monotonic_ns()) / 1000)


async def _both(lanes: Lanes, ask: Callable[[LaneServer], Awaitable[Facts]]) -> dict[LaneName, Facts]:
    """Ask both at the same time: nothing in these answers is compared by its speed."""
    found = await asyncio.gather(*(ask(lanes[lane]) for lane in LANES))
    return dict(zip(LANES, found, strict=True))


async def _races(lanes: Lanes) -> list[RaceSummary]:
    """Short races in turn until one ends in equal texts, three at most; kept nowhere."""
    done: list[RaceSummary] = []
    for prompt in RACES:
        sampling = Sampling(temperature=0.0, top_p=1.0, seed=0, max_tokens=RACE_TOKENS, ignore_eos=True)
        spec = RaceSpec(workload=None, prompt=prompt, system=None, sampling=sampling, schedule="in_turn")
        run = Run(RaceMeta(id="check", spec=spec, created_at=""), None)
        race = Race(spec, lanes, run, epoch_ns=run.epoch_ns)
        await race.run(queue_ms=0.0, in_flight=1)
        done.append(run.summary())
        if done[-1].status != "finished" or done[-1].comparison.text != "diverged":
            break
    return done


class Preflight:
    """The app's checks: one at a time, never beside a race, not too often; the last one is kept for everybody."""

    def __init__(
        self,
        lanes: Lanes,
        workloads: Workloads,
        hub: Hub,
        *,
        equal_scheduling: bool | None = None,
        clock: MonotonicNs = monotonic_ns,
    ) -> None:
        self.last: Report | None = None
        self.doing: str | None = None
        """What a running check is doing; None when none runs."""
        self._lanes = lanes
        self._workloads = workloads
        self._hub = hub
        self._equal_scheduling = equal_scheduling
        self._clock = clock
        self._ended_ns: int | None = None
        self._task: asyncio.Task[None] | None = None

    def refusal(self) -> Busy | None:
        """Why no check can be started now, None when one can."""
        if self.doing is not None:
            return Busy("check", "a check is running already", "Wait for its end", retry_after_s=5)
        if self._hub.racing or self._hub.waiting:
            return Busy("check", "a race is on the servers", "Check again when it is over", retry_after_s=10)
        since_s = AGAIN_AFTER_S if self._ended_ns is None else ms_between(self._ended_ns, self._clock()) / 1000
        if since_s < AGAIN_AFTER_S:
            left_s = math.ceil(AGAIN_AFTER_S - since_s)
            return Busy("check", "the last one has just ended", f"Check again in {left_s} s", retry_after_s=left_s)
        return None

    def start(self) -> None:
        """Start a check; ``doing`` and then ``last`` tell of it. Races asked for meanwhile wait for its end.

        Raises:
            Busy: one runs, a race is on, or the last one has just ended.
        """
        refusal = self.refusal()
        if refusal is None and not self._hub.hold():
            refusal = Busy("check", "the app is restarting", "Try again in a few seconds", retry_after_s=5)
        if refusal is not None:
            raise refusal
        self.doing = "starting"
        self._task = asyncio.create_task(self._live(), name="check")

    async def run(self) -> Report:
        """Start a check and wait for what it finds. Who stops waiting does not stop it.

        Raises:
            Busy: as ``start``.
        """
        self.start()
        assert self._task is not None  # noqa: S101  # start has just made it
        await asyncio.wait([self._task])
        if self.last is None:
            raise Busy("check", "the app is restarting", "Try again in a few seconds", retry_after_s=5)
        return self.last

    async def close(self) -> None:
        """End a running check."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _live(self) -> None:
        try:
            self.last = await check(self._lanes, self._workloads, self._say, equal_scheduling=self._equal_scheduling)
        except Exception as error:  # noqa: BLE001  # a fault of ours is said, and does not keep the pair for ever
            _log.exception("check failed unexpectedly")
            self.last = report([_own_fault(error)], at=_now(), took_s=0.0)
        finally:
            self.doing = None
            self._ended_ns = self._clock()
            self._hub.let_go()

    def _say(self, doing: str) -> None:
        self.doing = doing


def _own_fault(error: Exception) -> Finding:
    detail = f"Specrace could not go on ({type(error).__name__}); its log says more"
    return Finding(key="check", level="problem", title="The check itself", detail=detail)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
