"""What templates are given: frozen, typed, ready to print. Every figure in here is text already.

Built by app/web/panes.py and board.py (a race) and deck.py (the page around it); templates/ reads nothing else.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from app.race.types import EndpointStatus, Holds, LaneName, RaceStatus, Schedule, TextVerdict, Verdict

PaneState = Literal[
    "idle", "queued", "turn", "waiting", "streaming", "finished", "length", "tool", "silent", "stopped", "failed",
    "cut_off", "aborted", "interrupted",
]  # fmt: skip
PartMark = Literal["", "draft", "mixed"]
StartMode = Literal["live", "recorded", "blocked"]


class View(Struct, frozen=True, kw_only=True):
    """Base of all."""


class NoteView(View, frozen=True, kw_only=True):
    """A sentence to be taken seriously: what happened, and what to do."""

    title: str
    text: str


class InkView(View, frozen=True, kw_only=True):
    """How much of an answer came from the draft: "132" of "200", and how certain that is."""

    drafted: str
    tokens: str
    words: str
    estimated: bool


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
    ink: InkView | None = None
    """Which tokens were drafted, in a sentence; None for a lane without drafts."""

    @property
    def bad(self) -> bool:
        """Whether the lane ended in trouble."""
        return self.state in ("failed", "cut_off", "aborted", "interrupted", "silent")


class PartView(View, frozen=True, kw_only=True):
    """Text that looks alike: from the draft, or of several tokens of which some are, or neither."""

    text: str
    mark: PartMark


class SpanView(View, frozen=True, kw_only=True):
    """Text with its drafted tokens marked. ``ink`` is what the pointer is told about it (app/web/ink.py), ``step`` the
    number of the first engine step in it, ``hint`` whether the marks are an estimate."""

    parts: tuple[PartView, ...]
    ink: str
    step: int | None
    hint: bool


class TextView(View, frozen=True, kw_only=True):
    """Text for one pane: all of it so far in a page, what is new in a frame. The spans hold the same text again, for a
    lane whose drafted tokens are marked."""

    lane: LaneName
    answer: str = ""
    reasoning: str = ""
    answer_spans: tuple[SpanView, ...] = ()
    reasoning_spans: tuple[SpanView, ...] = ()
    afresh: bool = False
    """In a frame: replace what is there, because the lane was asked again, or the marks are better known now."""


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
    href: str | None = None
    """Where on the page more of it stands, instead of an explanation."""
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
    why: str | None = None
    """In a few words, when a finished race gained little or nothing."""


class BandView(View, frozen=True, kw_only=True):
    """The band worn all the time by what is not live."""

    kind: Literal["recorded", "replay"]
    label: str
    text: str


class MarkView(View, frozen=True, kw_only=True):
    """One race, by its number in the series, on the line of a figure; places in percent of the line's width
    and height."""

    race: int
    at: str
    height: str
    told: str


class SpreadView(View, frozen=True, kw_only=True):
    """One figure over the races of a series: a mark for each race, low to high, and the median."""

    name: str
    about: str | None
    lane: LaneName | None
    lane_title: str
    marks: tuple[MarkView, ...]
    low: str
    median: str
    high: str
    even: str | None
    """Where 1.00x lies, for ratios."""
    value: str
    range: str
    told: str


class SummaryRow(View, frozen=True, kw_only=True):
    """One figure of a series as a row of a table."""

    name: str
    lane: LaneName | None
    lane_title: str
    median: str
    low: str
    high: str
    races: str


class RepeatRow(View, frozen=True, kw_only=True):
    """One race of a series as a row of a table. ``cells`` are its figures in the order of the table's head."""

    number: int
    url: str
    first: str
    status: str
    counted: bool
    cells: tuple[str, ...]


class SeriesView(View, frozen=True, kw_only=True):
    """A series of races: the plot, the tables and the verdict. ``headline`` is its median speedup in a line; ``heads``
    are those of the table of ``races``."""

    id: str
    url: str
    live: bool
    title: str
    of: str
    """What was raced: the prompt, its settings, who ran it."""
    state: str
    counted: str
    headline: str | None
    texts: str | None
    verdict: str
    why: str
    spreads: tuple[SpreadView, ...]
    summary: tuple[SummaryRow, ...]
    heads: tuple[str, ...]
    races: tuple[RepeatRow, ...]
    notes: tuple[ChipView, ...]


class WhyView(View, frozen=True, kw_only=True):
    """Why nothing or little was gained: a few words for the scoreboard, a sentence below."""

    short: str
    sentence: str


class ConditionView(View, frozen=True, kw_only=True):
    """One thing that could spoil the result. The lanes' values are None where there is nothing to be seen of a lane."""

    key: str
    title: str
    holds: Holds
    answer: str
    text: str
    baseline: str | None
    speculative: str | None


class ConditionsView(View, frozen=True, kw_only=True):
    """The checklist. ``held`` counts what holds here."""

    rows: tuple[ConditionView, ...]
    held: int
    why: str | None


class DraftFigureView(View, frozen=True, kw_only=True):
    """One figure of acceptance with its formula; ``key`` is an About of app/web/words.py."""

    key: str
    title: str
    formula: str
    text: str
    none: bool


class DraftBarView(View, frozen=True, kw_only=True):
    """One draft position, or one number of accepted tokens. ``length`` in thousandths of the track; ``told`` is what
    the bar says in words."""

    name: str
    length: int
    text: str
    told: str
    none: bool = False


class DraftBarsView(View, frozen=True, kw_only=True):
    """A staircase of bars, the first one on top."""

    bars: tuple[DraftBarView, ...]


class DraftsView(View, frozen=True, kw_only=True):
    """Acceptance, position by position. ``note`` instead of everything else says why there is nothing to show."""

    note: NoteView | None = None
    source: str | None = None
    about: str = "acceptance"
    estimated: bool = False
    mixture: str | None = None
    """Set when the counts hold the requests of others."""
    figures: tuple[DraftFigureView, ...] = ()
    per_position: DraftBarsView | None = None
    conditional: DraftBarsView | None = None
    histogram: DraftBarsView | None = None


class SideView(View, frozen=True, kw_only=True):
    """How one lane went on where the texts part: the first differing token, then the rest."""

    lane: LaneName
    title: str
    first: str
    rest: str
    cut: bool
    ended: bool


class SameTextView(View, frozen=True, kw_only=True):
    """Whether both texts are the same. ``before`` is the end of the common text, ``margin`` how close the two first
    tokens were to the target."""

    verdict: TextVerdict
    headline: str
    text: str
    before: str = ""
    before_cut: bool = False
    sides: tuple[SideView, SideView] | None = None
    margin: str | None = None
    note: str | None = None


class InsightView(View, frozen=True, kw_only=True):
    """Below the fold: what stands behind the numbers. A part that has nothing to show is None."""

    race: str
    over: bool
    same_text: SameTextView | None = None
    drafts: DraftsView | None = None
    series: SeriesView | None = None
    conditions: ConditionsView | None = None


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
    next_race: str | None = None
    """Where the page asks for the next race of the series once this one is over."""
    autoplay: str | None = None
    """At rest while the live pair is not there: the recording that plays meanwhile, labelled as one."""


class FrameView(View, frozen=True, kw_only=True):
    """One SSE message."""

    texts: tuple[TextView, ...]
    panes: tuple[PaneView, ...]
    score: ScoreView | None
    insight: InsightView | None
    """When a state changed: it is not worth rendering twenty times a second."""
    drafts: DraftsView | None = None
    """While drafts are checked, about once a second."""
    actions: ActionsView | None
    say: str | None
    next_race: str | None = None
    """Set in the last frame of a race whose series goes on."""


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


class WarmUpView(View, frozen=True, kw_only=True):
    """Servers that would pay for their first kernels in a race, or are being warmed up now."""

    text: str
    offered: bool


class StatusView(View, frozen=True, kw_only=True):
    """Lamps, engines and the start button, asked for again every ``every_s`` seconds."""

    ready: bool
    headline: str
    lamps: tuple[LampView, LampView]
    engines: tuple[EngineView, ...]
    start: StartView
    poll: str
    every_s: int
    warm_up: WarmUpView | None = None


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


class TimesView(View, frozen=True, kw_only=True):
    """How many times a click on the start button races."""

    value: int
    title: str
    chosen: bool


class PageView(View, frozen=True, kw_only=True):
    """The whole page."""

    title: str
    tabs: tuple[LinkView, ...]
    prompts: tuple[LinkView, ...]
    note: str
    prompt: PromptView
    schedules: tuple[ScheduleView, ...]
    times: tuple[TimesView, ...]
    fresh_cache: bool
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
    no_verdict: str | None
    """Under a ratio without a verdict: why."""
    acceptance: str
    source: str | None
    recorded: bool
    series: str | None = None
    """Address of the series that the race belongs to."""
    place: str = ""
    """"2 of 5" of that series."""


class FindingView(View, frozen=True, kw_only=True):
    """One thing that a check looked at; ``sign`` is its level in a word."""

    level: Literal["ok", "note", "warning", "problem"]
    sign: str
    title: str
    detail: str
    remedy: str | None
    code: str | None


class FindingsView(View, frozen=True, kw_only=True):
    """The findings about one server, or about the pair (``lane`` None)."""

    lane: LaneName | None
    title: str
    findings: tuple[FindingView, ...]


class CheckView(View, frozen=True, kw_only=True):
    """The last check, or the one that runs (``doing`` says at what)."""

    ready: bool | None
    headline: str
    why: str | None
    when: str | None
    took: str | None
    doing: str | None
    refused: str | None
    """Why the check just asked for was not started."""
    groups: tuple[FindingsView, ...]
