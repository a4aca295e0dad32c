"""Races in every state that the page draws, as small hand-made logs."""

from __future__ import annotations

from app.race.events import (
    Event,
    LaneChunk,
    LaneDrafts,
    LaneFailed,
    LaneFinished,
    LaneStarted,
    LaneUsage,
    RaceFinished,
    RaceQueued,
    RaceStarted,
)
from app.race.log import Log
from app.race.scoreboard import Scoreboard
from app.race.summary import RaceMeta
from app.race.types import (
    LANES,
    AcceptanceSource,
    EndpointState,
    EngineProgress,
    ErrorKind,
    LaneError,
    LaneIdentity,
    LaneName,
    LaneStatus,
    RaceSpec,
    RaceStatus,
    Recorded,
    Sampling,
    Schedule,
    SpecRecord,
)
from app.race.workloads import Tab, Workload, Workloads

WORKLOADS = Workloads(
    tab=[
        Tab(name="structured", title="Structured", note="Easy."),
        Tab(name="creative", title="Creative", note="Hard."),
    ],
    workload=[
        Workload(name="json", tab="structured", title="JSON", prompt="Continue <this>", max_tokens=64, ignore_eos=True),
        Workload(name="sql", tab="structured", title="SQL", prompt="INSERT", system="You are terse."),
        Workload(name="poem", tab="creative", title="Poem", prompt="A poem", temperature=1.0),
    ],
)
RECORDED = Recorded(on="2 cores, no GPU", vllm="0.32.0", at="2026-11-30")


def meta(
    race_id: str = "abc",
    *,
    schedule: Schedule = "together",
    temperature: float = 0.0,
    workload: str | None = "json",
    prompt: str = "Continue <this>",
    recorded: Recorded | None = None,
    origin: str | None = None,
) -> RaceMeta:
    sampling = Sampling(temperature=temperature, top_p=1, seed=0, max_tokens=64, ignore_eos=True)
    spec = RaceSpec(workload=workload, prompt=prompt, system=None, sampling=sampling, schedule=schedule)
    return RaceMeta(id=race_id, spec=spec, created_at="2026-11-30T02:22:29Z", recorded=recorded, origin=origin)


def begun(schedule: Schedule = "together") -> list[Event]:
    lanes: tuple[LaneName, ...] = ("baseline", "speculative") if schedule == "together" else ("baseline",)
    return [RaceStarted(t_ms=0, queue_ms=0, in_flight=1), *(sent(lane) for lane in lanes)]


def sent(lane: LaneName, t_ms: float = 0.0, *, retried: bool = False) -> LaneStarted:
    it = identity(lane)
    return LaneStarted(
        t_ms=t_ms,
        lane=lane,
        model=it.model,
        method=it.method,
        num_speculative_tokens=it.num_speculative_tokens,
        speculating=lane == "speculative",
        retried=retried,
    )


def identity(lane: LaneName) -> LaneIdentity:
    if lane == "baseline":
        return LaneIdentity(model="gemma")
    return LaneIdentity(model="gemma", method="ngram", num_speculative_tokens=4)


def chunk(lane: LaneName, text: str, t_ms: float, *, tokens: int | None = 1, reasoning: bool = False) -> LaneChunk:
    return LaneChunk(t_ms=t_ms, lane=lane, text=text, tokens=tokens, reasoning=reasoning)


def written(*, until: int = 10) -> list[Event]:
    """Baseline: a token every 20 ms from 100. Speculative: two tokens every 20 ms from 100."""
    events: list[Event] = []
    for i in range(until):
        events.append(chunk("baseline", f"b{i} ", 100 + 20 * i))
        if i < until / 2:
            events.append(chunk("speculative", f"s{i} ", 100 + 20 * i, tokens=2))
    return events


def ended(lane: LaneName, t_ms: float, reason: str | None = "stop", status: LaneStatus = "finished") -> LaneFinished:
    return LaneFinished(t_ms=t_ms, lane=lane, status=status, finish_reason=reason)


def failed(lane: LaneName, t_ms: float, kind: ErrorKind = "stalled", status: LaneStatus = "failed") -> LaneFailed:
    error = LaneError(kind=kind, message="No chunk for 10 s. Check the server's <log>, then race again.")
    return LaneFailed(t_ms=t_ms, lane=lane, status=status, error=error)


def record(*, source: AcceptanceSource = "request") -> LaneDrafts:
    """20 of 40 drafted tokens accepted in 10 steps."""
    return LaneDrafts(
        t_ms=290, lane="speculative", record=SpecRecord(source=source, drafts=10, drafted=40, accepted=20)
    )


def over(t_ms: float, status: RaceStatus) -> RaceFinished:
    return RaceFinished(t_ms=t_ms, status=status)


def both_done(reason: str | None = "stop") -> list[Event]:
    usage = LaneUsage(t_ms=290, lane="baseline", completion_tokens=10)
    ends = [ended("speculative", 290, reason), ended("baseline", 300, reason)]
    return [*begun(), *written(), usage, record(), *ends, over(300, "finished")]


def one_failed() -> list[Event]:
    ends = [failed("baseline", 295), record(), ended("speculative", 296)]
    return [*begun(), *written(), *ends, over(296, "partial")]


def slower() -> list[Event]:
    """Speculative at 0.88 of the baseline: both 11 tokens, 440 ms against 500 ms."""
    chunks: list[Event] = [chunk("baseline", "b", 40.0 * (i + 1)) for i in range(11)]
    chunks += [chunk("speculative", "s", 500 / 11 * (i + 1)) for i in range(11)]
    ends: list[Event] = [ended("baseline", 500), ended("speculative", 500), over(500, "finished")]
    return [*begun(), *sorted(chunks, key=lambda event: event.t_ms), *ends]


def closed(*events: Event, status: RaceStatus = "finished") -> list[Event]:
    """A race that wrote something and ended with ``events``."""
    return [*begun(), *written(), *events, over(300, status)]


def silent_baseline() -> list[Event]:
    """The baseline ends without a word, the other lane writes."""
    spoken = [event for event in written() if isinstance(event, LaneChunk) and event.lane == "speculative"]
    return [*begun(), ended("baseline", 30, None), *spoken, ended("speculative", 300), over(300, "partial")]


def tool_call() -> list[Event]:
    called = LaneChunk(t_ms=9, lane="baseline", text="", tokens=5, tool_call=True)
    ends = [ended("baseline", 30, "tool_calls"), ended("speculative", 300)]
    return [*begun(), called, *ends, over(300, "finished")]


def estimated() -> list[Event]:
    base: list[Event] = [chunk("baseline", "x", 50, tokens=None), ended("baseline", 60)]
    return [*begun(), *base, chunk("speculative", "x", 50), ended("speculative", 60), over(60, "finished")]


def reasoned() -> list[Event]:
    thought = [chunk("baseline", "hm ", 50, reasoning=True), chunk("baseline", "yes", 60)]
    return [*begun(), *thought, ended("baseline", 60), ended("speculative", 60), over(60, "partial")]


def refused() -> list[Event]:
    both = [failed("baseline", 5, "connection_refused"), failed("speculative", 9, "tls")]
    return [*begun(), *both, over(9, "failed")]


ENDS: list[Event] = [ended("speculative", 290), ended("baseline", 300)]
NO_DRAFTS = LaneDrafts(t_ms=1, lane="speculative", record=SpecRecord(source="request", drafts=0, drafted=0, accepted=0))
STOPPED: list[Event] = [ended(lane, 300, None, "stopped") for lane in LANES]
STREAMING = [*begun(), *written(until=6)]

SCENES: dict[str, tuple[RaceMeta, list[Event]]] = {
    "queued": (meta(), [RaceQueued(t_ms=0, position=3)]),
    "waiting": (meta(), begun()),
    "turn": (meta(schedule="in_turn"), begun("in_turn")),
    "streaming": (meta(), STREAMING),
    "finished": (meta(), both_done()),
    "sampled": (meta(temperature=1.0), both_done()),
    "length": (meta(), both_done("length")),
    "odd reason": (meta(), both_done("<odd>")),
    "content filter": (meta(), both_done("content_filter")),
    "server counters": (meta(), closed(record(source="server"), *ENDS)),
    "no drafts": (meta(), closed(NO_DRAFTS, *ENDS)),
    "slower": (meta(), slower()),
    "one failed": (meta(), one_failed()),
    "both failed": (meta(), refused()),
    "cut off": (meta(), closed(failed("baseline", 300, "cut_off", "cut_off"), ENDS[0], status="partial")),
    "aborted": (meta(), closed(failed("speculative", 300, "aborted", "aborted"), ENDS[1], status="partial")),
    "stopped": (meta(), closed(*STOPPED, status="stopped")),
    "no answer": (meta(), silent_baseline()),
    "tool call": (meta(), tool_call()),
    "interrupted": (meta(), [*STREAMING, over(300, "interrupted")]),
    "replay stopped": (meta(origin="old"), [*STREAMING, over(300, "stopped")]),
    "recorded": (meta(recorded=RECORDED, origin="rec"), STREAMING),
    "recorded finished": (meta(recorded=RECORDED, origin="rec"), both_done()),
    "replay": (meta(origin="old"), STREAMING),
    "own prompt": (meta(workload=None, prompt="<b>mine</b>"), both_done()),
    "estimated": (meta(), estimated()),
    "reasoning": (meta(), reasoned()),
}


def fold(events: list[Event]) -> tuple[Log, Scoreboard]:
    log, board = Log(), Scoreboard()
    for event in events:
        log.append(event)
        board.apply(event)
    if board.over:
        log.close()
    return log, board


def ready(lane: LaneName) -> EndpointState:
    return EndpointState(
        lane=lane,
        status="ready",
        identity=identity(lane),
        speculating=lane == "speculative",
        max_model_len=2048,
        version="0.32.0",
        latency_ms=3.2,
    )


def down(lane: LaneName) -> EndpointState:
    error = LaneError(kind="connection_refused", message="Nothing listens there.")
    return EndpointState(lane=lane, status="down", error=error, detail="Nothing listens there. Start it.")


def starting(lane: LaneName) -> EndpointState:
    engine = EngineProgress(phase="loading_weights", detail="Reading 0.5 GiB.", elapsed_s=23, log_tail=("one", "<two>"))
    return EndpointState(lane=lane, status="starting", engine=engine)


def cannot(lane: LaneName) -> EndpointState:
    engine = EngineProgress(phase="failed", detail="Needs 10 GB of memory, has 4.", elapsed_s=2)
    return EndpointState(lane=lane, status="down", engine=engine)


def restarting(lane: LaneName) -> EndpointState:
    engine = EngineProgress(phase="restarting", detail="It crashed.", elapsed_s=100, restarts=3)
    return EndpointState(lane=lane, status="starting", engine=engine)


PAIRS: dict[str, list[EndpointState]] = {
    "ready": [ready("baseline"), ready("speculative")],
    "one down": [ready("baseline"), down("speculative")],
    "both down": [down("baseline"), down("speculative")],
    "starting": [starting("baseline"), starting("speculative")],
    "cannot run": [cannot("baseline"), cannot("speculative")],
    "restarting": [ready("baseline"), restarting("speculative")],
    "unknown": [],
}
