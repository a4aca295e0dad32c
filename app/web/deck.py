"""The page around a race, turned into views: tabs, prompts, the start button, servers and engines. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from urllib.parse import quote, urlencode

from app.race.summary import RaceMeta, RaceSummary
from app.race.types import LANES, EndpointState, EngineProgress, LaneName, RaceSpec, Schedule
from app.race.workloads import Workload, Workloads
from app.web import board as boards
from app.web import format as say
from app.web import words
from app.web.views import (
    ArenaView,
    EngineView,
    HistoryRow,
    LampView,
    LinkView,
    PageView,
    PromptView,
    ScheduleView,
    StartView,
    StatusView,
    StepView,
    TimesView,
    WarmUpView,
)

OWN = "your-prompt"
"""Name of the tab in which visitors write their own prompt, as in ``/?workload=your-prompt``."""

TIMES = (1, 3, 5, 10)
"""How often a prompt can be raced with one click."""

EVERY_S = 2
"""How often the page asks for the servers, ready or not: one that dies is seen soon."""


def page(
    workloads: Workloads,
    selected: str | None,
    *,
    endpoints: Sequence[EndpointState],
    recordings: Collection[str],
    ticket: str,
    max_tokens: int,
    max_chars: int,
    schedule: Schedule = "together",
    times: int = 1,
    warming: bool = False,
    arena: ArenaView | None = None,
    meta: RaceMeta | None = None,
) -> PageView:
    """The page with the tab or workload ``selected`` open; with ``arena`` and ``meta`` of a race, with that race."""
    spec = None if meta is None else meta.spec
    if spec is not None:
        selected, schedule = _workload_of(workloads, spec), spec.schedule
        times = times if meta is None else meta.series_races or 1
    chosen = choose(workloads, selected)
    name = OWN if chosen is None else chosen.name
    now = status(endpoints, workload=name, recordings=recordings, warming=warming)
    recorded = now.start.action if now.start.mode == "recorded" else None
    return PageView(
        title=_title(chosen),
        tabs=_tabs(workloads, chosen),
        prompts=() if chosen is None else _prompts(workloads, chosen),
        note=_note(workloads, chosen),
        prompt=_prompt(chosen, spec, max_tokens, max_chars),
        schedules=_schedules(schedule),
        times=_times(times),
        fresh_cache=spec is not None and spec.cache_salt is not None,
        ticket=ticket,
        status=now,
        arena=boards.arena_at_rest(endpoints, autoplay=recorded) if arena is None else arena,
    )


def choose(workloads: Workloads, selected: str | None) -> Workload | None:
    """The workload meant by the name of a workload or of a tab; None for the visitor's own prompt."""
    if selected == OWN:
        return None
    if selected is not None:
        in_tab = workloads.in_tab(selected)
        found = workloads.get(selected) or (in_tab[0] if in_tab else None)
        if found is not None:
            return found
    return workloads.first


def _workload_of(workloads: Workloads, spec: RaceSpec) -> str:
    """The ready prompt that a race ran; a prompt that was changed since is shown as somebody's own."""
    known = None if spec.workload is None else workloads.get(spec.workload)
    return known.name if known is not None and known.prompt == spec.prompt else OWN


def _title(chosen: Workload | None) -> str:
    return f"{'Your prompt' if chosen is None else chosen.title} · Specrace"


def _url(workload: str) -> str:
    return "/?" + urlencode({"workload": workload})


def _tabs(workloads: Workloads, chosen: Workload | None) -> tuple[LinkView, ...]:
    tabs = [
        LinkView(title=tab.title, url=_url(tab.name), current=chosen is not None and chosen.tab == tab.name)
        for tab in workloads.tab
    ]
    return (*tabs, LinkView(title="Your prompt", url=_url(OWN), current=chosen is None))


def _prompts(workloads: Workloads, chosen: Workload) -> tuple[LinkView, ...]:
    return tuple(
        LinkView(title=w.title, url=_url(w.name), current=w.name == chosen.name) for w in workloads.in_tab(chosen.tab)
    )


def _note(workloads: Workloads, chosen: Workload | None) -> str:
    if chosen is None:
        return "Both servers get exactly what you write."
    return next((tab.note for tab in workloads.tab if tab.name == chosen.tab), "")


def _prompt(chosen: Workload | None, spec: RaceSpec | None, limit: int, max_chars: int) -> PromptView:
    """What will be sent; the page of a race shows what was sent in it."""
    if spec is not None:
        text, system, sampling = spec.prompt, spec.system, spec.sampling
    elif chosen is not None:
        text, system, sampling = chosen.prompt, chosen.system, chosen.sampling
    else:
        text, system, sampling = "", None, None
    tokens = min(256 if sampling is None else sampling.max_tokens, limit)
    temperature = say.temperature(0.0 if sampling is None else sampling.temperature)
    fixed = sampling is not None and sampling.ignore_eos
    length = f"exactly {say.count(tokens)} tokens" if fixed else f"up to {say.count(tokens)} tokens"
    return PromptView(
        workload=None if chosen is None else chosen.name,
        line=say.one_line(text),
        text=text,
        system=system,
        settings=f"temperature {temperature} · {length}",
        temperature=temperature,
        max_tokens=tokens,
        max_tokens_limit=limit,
        max_chars=max_chars,
    )


def _schedules(chosen: Schedule) -> tuple[ScheduleView, ...]:
    return tuple(
        ScheduleView(value=value, title=title, text=text, chosen=value == chosen)
        for value, (title, text) in words.SCHEDULES.items()
    )


def _times(chosen: int) -> tuple[TimesView, ...]:
    """How often a click races; the series of a script may have any number."""
    chosen = chosen if chosen in TIMES else 1
    return tuple(TimesView(value=n, title="1 race" if n == 1 else f"{n} races", chosen=n == chosen) for n in TIMES)


# --- servers ----------------------------------------------------------------------------------------


def status(
    endpoints: Sequence[EndpointState], *, workload: str, recordings: Collection[str], warming: bool = False
) -> StatusView:
    """Both servers as they are now, and what the start button does about it. ``workload`` may be OWN; ``warming``: a
    warm-up waits or runs."""
    known = {state.lane: state for state in endpoints}
    states = [known.get(lane, EndpointState(lane=lane)) for lane in LANES]
    ready = all(state.status == "ready" for state in states)
    lamps = [_lamp(state) for state in states]
    return StatusView(
        ready=ready,
        headline=_headline(states),
        lamps=(lamps[0], lamps[1]),
        engines=() if ready else tuple(_engine(state) for state in states),
        start=start(states, workload=workload, recorded=workload in recordings),
        poll="/status?" + urlencode({"workload": workload}),
        every_s=EVERY_S,
        warm_up=_warm_up(states, warming) if ready else None,
    )


def _warm_up(states: Sequence[EndpointState], warming: bool) -> WarmUpView | None:
    """Offered while a server is not known to have generated; nothing once both have."""
    if warming:
        return WarmUpView(text=words.WARMING, offered=False)
    if all(state.warm for state in states):
        return None
    cold = [words.LANE_TITLES[state.lane] for state in states if state.warm is False]
    text = words.COLD if len(cold) == len(states) else words.ONE_COLD.format(cold[0]) if cold else words.MAY_BE_COLD
    return WarmUpView(text=text, offered=True)


def start(states: Sequence[EndpointState], *, workload: str, recorded: bool) -> StartView:
    """What a click on the start button does now."""
    ready = [state for state in states if state.status == "ready"]
    live = StartView(mode="live", label="Race", action="/races")
    if len(ready) == len(states):
        return live
    starting = any(state.status == "starting" for state in states)
    if recorded:
        return StartView(
            mode="recorded",
            label="Play the recorded run",
            action=f"/recordings/{quote(workload, safe='')}/play",
            hint=_still_starting(states) if starting else "The live pair is not available.",
        )
    if starting:
        return StartView(mode="blocked", label="Race", action="/races", hint=_still_starting(states))
    if ready:
        missing = next(words.LANE_TITLES[state.lane].lower() for state in states if state.status != "ready")
        return StartView(mode="live", label="Race anyway", action="/races", hint=f"The {missing} server is down.")
    return StartView(mode="blocked", label="Race", action="/races", hint="Neither server answers.")


def _headline(states: Sequence[EndpointState]) -> str:
    if all(state.status == "ready" for state in states):
        return "Both servers ready"
    if any(_cannot_run(state) for state in states):
        return "The live pair cannot run on this machine"
    waking = [state for state in states if state.status == "starting"]
    down = [words.LANE_TITLES[state.lane] for state in states if state.status not in ("ready", "starting")]
    if len(waking) == len(states):
        return "Both servers are starting; the page turns live by itself"
    if waking:
        server = f"The {words.LANE_TITLES[waking[0].lane].lower()} server"
        doing = "crashed and restarts by itself" if _restarts(waking[0]) else "is starting"
        return f"{server} {doing}; " + (f"{down[0].lower()} not available" if down else "the page turns live by itself")
    return f"{' and '.join(down)} not available"


def _still_starting(states: Sequence[EndpointState]) -> str:
    waking = [words.LANE_TITLES[state.lane].lower() for state in states if state.status == "starting"]
    return "The servers are still starting." if len(waking) > 1 else f"The {waking[0]} server is still starting."


def _restarts(state: EndpointState) -> bool:
    return state.engine is not None and state.engine.phase == "restarting"


def _cannot_run(state: EndpointState) -> bool:
    return state.engine is not None and state.engine.phase == "failed"


def _lamp(state: EndpointState) -> LampView:
    facts = (
        ("model", state.identity.model),
        ("vLLM", state.version),
        ("context", None if state.max_model_len is None else f"{say.count(state.max_model_len)} tokens"),
        ("answers in", None if state.latency_ms is None else say.duration(state.latency_ms)),
        ("speculating", _yes_no(state.speculating)),
    )
    return LampView(
        lane=state.lane,
        title=words.LANE_TITLES[state.lane],
        status=state.status,
        words=words.PHASES["failed"] if _cannot_run(state) else words.LAMPS[state.status],
        facts=tuple((name, value) for name, value in facts if value is not None),
        detail=state.detail,
    )


def _yes_no(value: bool | None) -> str | None:
    return None if value is None else "yes" if value else "no"


def _engine(state: EndpointState) -> EngineView:
    engine = state.engine
    if engine is None:
        detail = state.detail or (None if state.error is None else state.error.message)
        title = words.LAMPS[state.status] if state.error is None else words.ERRORS[state.error.kind].lower()
        return EngineView(
            lane=state.lane,
            title=words.LANE_TITLES[state.lane],
            words=title,
            since_ms=None,
            steps=(),
            detail=detail,
            log=(),
            bad=state.status in ("down", "stopped"),
        )
    moving = engine.phase not in ("ready", "failed", "stopped")
    return EngineView(
        lane=state.lane,
        title=words.LANE_TITLES[state.lane],
        words=words.PHASES[engine.phase] + (f" ({engine.restarts} restarts)" if engine.restarts > 1 else ""),
        since_ms=1000 * engine.elapsed_s if moving else None,
        steps=_steps(engine),
        detail=engine.detail or state.detail,
        log=engine.log_tail,
        bad=engine.phase in ("failed", "stopped"),
    )


def _steps(engine: EngineProgress) -> tuple[StepView, ...]:
    phases = [phase for phase, _ in words.PHASE_STEPS]
    if engine.phase not in phases:
        return ()
    at = phases.index(engine.phase)
    return tuple(
        StepView(name=name, state="done" if i < at or phases[at] == "ready" else "now" if i == at else "todo")
        for i, (_, name) in enumerate(words.PHASE_STEPS)
    )


# --- history ----------------------------------------------------------------------------------------


def _no_verdict(race: RaceSummary) -> str | None:
    """Why a ratio stands there without a verdict; None when there is no ratio, or one with a verdict."""
    if race.comparison.speedup is None or race.comparison.verdict is not None:
        return None
    return "one prompt was cached" if "prefix_cache_differs" in race.comparison.caveats else "up to the stop"


def row(race: RaceSummary, workloads: Workloads) -> HistoryRow:
    """One past race for the list."""
    known = None if race.workload is None else workloads.get(race.workload)
    reading = race.lanes["speculative"].acceptance
    lane: LaneName = "speculative"
    told = race.lanes[lane].speculating
    return HistoryRow(
        url=f"/races/{quote(race.id, safe='')}",
        when=say.moment(race.created_at),
        title="Own prompt" if race.workload is None else known.title if known else race.workload,
        line=say.one_line(race.prompt, 90),
        schedule=words.SCHEDULES[race.schedule][0].lower(),
        status=race.status,
        speedup=say.times(race.comparison.speedup),
        verdict=race.comparison.verdict,
        no_verdict=_no_verdict(race),
        acceptance="not speculating" if told is False else say.percent(None if reading is None else reading.rate),
        source=None if reading is None else words.SOURCES[reading.source][0],
        recorded=race.recorded is not False,
        series=None if race.series is None else f"/series/{quote(race.series, safe='')}",
        place="" if race.series is None else f"{race.series_number} of {race.series_races}",
    )
