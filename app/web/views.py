"""What templates are given: frozen, typed, ready to print. Every figure in here is text already.

Built by app/web/panes.py and board.py (a race) and deck.py (the page around it); templates/ reads nothing else.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from app.race.types import EndpointStatus, LaneName, RaceStatus, Schedule, Verdict

PaneState = Literal[
    "idle", "queued", "turn", "waiting", "streaming", "finished", "length", "tool", "silent", "stopped", "failed",
    "cut_off", "aborted", "interrupted",
]  # fmt: skip
StartMode = Literal["live", "recorded", "blocked"]


class View(Struct, frozen=True, kw_only=True):
    """Base of all."""


class NoteView(View, frozen=True, kw_only=True):
    """A sentence to be taken seriously: what happened, and what to do."""

    title: str
    text: str


class PaneView(View, frozen=True, kw_only=True):
    """Heading and state of one lane. The text of the pane is a TextView: it is appended, never rendered again."""

    lane: LaneName
    title: str
    model: str | None
    method: str
    k: str | None
    state: PaneState
    chip: str
    since_ms: float | None = None
    """Set while a clock runs beside the chip: how long the lane has waited when this was rendered."""
    note: NoteView | None = None
    explain: str | None = None
    """What this lane is, in a sentence, while it has nothing else to show."""

    @property
    def bad(self) -> bool:
        """Whether the lane ended in trouble."""
        return self.state in ("failed", "cut_off", "aborted", "interrupted", "silent")


class TextView(View, frozen=True, kw_only=True):
    """Text for one pane: all of it so far in a page, what is new in a frame."""

    lane: LaneName
    answer: str = ""
    reasoning: str = ""
    afresh: bool = False
    """In a frame: replace what is there, because the lane was asked again."""


class FigureView(View, frozen=True, kw_only=True):
    """One number of one lane."""

    key: str
    text: str
    none: bool = False
    """There is no such number: not yet while the race runs, not at all afterwards."""
    estimated: bool = False
    since_ms: float | None = None
    """Set for a clock that runs: static/app.js goes on counting from here."""


class BarView(View, frozen=True, kw_only=True):
    """Lengths in thousandths of the track. ``told`` is what the bar says in words."""

    race: int
    wait: int
    write: int
    ended: bool
    told: str


class LaneScoreView(View, frozen=True, kw_only=True):
    """One row of the scoreboard."""

    lane: LaneName
    title: str
    figures: tuple[FigureView, ...]
    bar: BarView


class ChipView(View, frozen=True, kw_only=True):
    """A short remark with its explanation (an About of app/web/words.py) one tap away."""

    text: str
    about: str | None = None
    weight: Literal["remark", "caveat", "doubt"] = "remark"
    """A caveat is to be known; a doubt may have spoiled the result."""


class AcceptanceView(View, frozen=True, kw_only=True):
    """The second number of the page; the source is always there when the number is."""

    rate: str | None
    length: str | None
    source: str | None
    about: str
    estimated: bool
    note: str | None = None
    """Instead of a number: "not speculating", "no drafts ran"."""
    reason: str | None = None
    """Under a number that is missing: why there is none, or none yet."""


class ActionsView(View, frozen=True, kw_only=True):
    """What can be done with the race in the arena."""

    stop: str | None = None
    replay: str | None = None
    permalink: str | None = None


class ScoreView(View, frozen=True, kw_only=True):
    """The scoreboard band."""

    speedup: str | None
    """"2.38" without its x; None before there is any."""
    ended: bool
    """Whether both lanes have ended; until then a missing number may still come."""
    verdict: Verdict | None
    headline: str
    decode: str | None
    acceptance: AcceptanceView
    lanes: tuple[LaneScoreView, LaneScoreView]
    state: str
    chips: tuple[ChipView, ...]
    actions: ActionsView


class BandView(View, frozen=True, kw_only=True):
    """The band worn all the time by what is not live."""

    kind: Literal["recorded", "replay"]
    label: str
    text: str


class InsightView(View, frozen=True, kw_only=True):
    """Below the fold: what stands behind the numbers. A part that has nothing to show is None."""

    race: str
    over: bool


class ArenaView(View, frozen=True, kw_only=True):
    """Panes, scoreboard and the connection of one race; without a race, the same at rest."""

    race: str | None
    status: RaceStatus | None
    stream: str | None
    """Where the page goes on reading; None when the race is over."""
    band: BandView | None
    panes: tuple[PaneView, PaneView]
    texts: tuple[TextView, TextView]
    score: ScoreView
    actions: ActionsView
    insight: InsightView | None = None
    say: str = ""
    """For the one status line that is read out."""
    autoplay: str | None = None
    """At rest while the live pair is not there: the recording that plays meanwhile, labelled as one."""


class FrameView(View, frozen=True, kw_only=True):
    """One SSE message."""

    texts: tuple[TextView, ...]
    panes: tuple[PaneView, ...]
    score: ScoreView | None
    insight: InsightView | None
    """When a state changed: it is not worth rendering twenty times a second."""
    actions: ActionsView | None
    say: str | None


class StartView(View, frozen=True, kw_only=True):
    """The start button: what a click does now, and why not more."""

    mode: StartMode
    label: str
    action: str
    hint: str | None = None


class LampView(View, frozen=True, kw_only=True):
    """One server, seen before the click."""

    lane: LaneName
    title: str
    status: EndpointStatus
    words: str
    facts: tuple[tuple[str, str], ...]
    detail: str | None


class StepView(View, frozen=True, kw_only=True):
    """One step of an engine's way up."""

    name: str
    state: Literal["done", "now", "todo"]


class EngineView(View, frozen=True, kw_only=True):
    """One server that is not ready: an engine on its way up, or one that is down."""

    lane: LaneName
    title: str
    words: str
    since_ms: float | None
    steps: tuple[StepView, ...]
    detail: str | None
    log: tuple[str, ...]
    bad: bool


class StatusView(View, frozen=True, kw_only=True):
    """Lamps, engines and the start button, asked for again every ``every_s`` seconds."""

    ready: bool
    headline: str
    lamps: tuple[LampView, LampView]
    engines: tuple[EngineView, ...]
    start: StartView
    poll: str
    every_s: int


class LinkView(View, frozen=True, kw_only=True):
    """A tab, or a ready prompt in it."""

    title: str
    url: str
    current: bool


class PromptView(View, frozen=True, kw_only=True):
    """The prompt as it will be sent. ``workload`` is None for the visitor's own."""

    workload: str | None
    line: str
    text: str
    system: str | None
    settings: str
    temperature: str
    max_tokens: int
    max_tokens_limit: int
    max_chars: int


class ScheduleView(View, frozen=True, kw_only=True):
    """One position of the schedule switch."""

    value: Schedule
    title: str
    text: str
    chosen: bool


class PageView(View, frozen=True, kw_only=True):
    """The whole page."""

    title: str
    tabs: tuple[LinkView, ...]
    prompts: tuple[LinkView, ...]
    note: str
    prompt: PromptView
    schedules: tuple[ScheduleView, ...]
    ticket: str
    status: StatusView
    arena: ArenaView


class HistoryRow(View, frozen=True, kw_only=True):
    """One past race."""

    url: str
    when: str
    title: str
    line: str
    schedule: str
    status: str
    speedup: str
    verdict: Verdict | None
    acceptance: str
    source: str | None
    recorded: bool
