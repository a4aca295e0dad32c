"""The heading and the state of one lane in words: every way to wait, to write and to end. Pure."""

from __future__ import annotations

from app.race.scoreboard import LaneBoard, Scoreboard
from app.race.summary import RaceMeta
from app.race.types import EndpointState, LaneIdentity, LaneName
from app.web import ink, words
from app.web.views import NoteView, PaneState, PaneView

EXPLAIN: dict[LaneName, str] = {
    "baseline": "Plain vLLM: one token for every pass of the model.",
    "speculative": "A cheap draft guesses the next tokens; the model checks them all in one pass and keeps what it "
    "would have written itself.",
}


def pane(meta: RaceMeta, board: Scoreboard, lane: LaneName, now_ms: float) -> PaneView:
    """Heading and state of one lane."""
    it = board.lanes[lane]
    state, chip, since = _state(meta, board, it, now_ms)
    return PaneView(
        lane=lane,
        title=words.LANE_TITLES[lane],
        model=it.identity.model,
        method=_method(lane, it.identity, it.speculating),
        k=_k(it.identity),
        state=state,
        chip=chip,
        since_ms=since,
        note=_note(state, it),
        explain=EXPLAIN[lane] if state in ("queued", "turn") else None,
        ink=ink.summary(it),
    )


def _state(meta: RaceMeta, board: Scoreboard, it: LaneBoard, now_ms: float) -> tuple[PaneState, str, float | None]:
    if board.over and not it.ended:
        return _left_behind(board, it)
    match it.status:
        case "waiting" if board.status == "queued":
            return "queued", "in the queue", None
        case "waiting" if meta.spec.schedule == "in_turn":
            return "turn", "waits for its turn", None
        case "waiting":
            return "waiting", "starting", None
        case "streaming" if it.first_ms is None:
            return "waiting", "waiting for the first token", it.elapsed_ms(now_ms)
        case "streaming":
            return "streaming", "writing" if meta.recorded is None and meta.origin is None else "replaying", None
        case "finished":
            return (*_ending(meta, it), None)
        case "stopped":
            return "stopped", "stopped", None
        case "cut_off":
            return "cut_off", "cut off", None
        case "aborted":
            return "aborted", "aborted", None
        case "failed":
            return "failed", "failed", None


def _left_behind(board: Scoreboard, it: LaneBoard) -> tuple[PaneState, str, float | None]:
    """A lane whose race ended before it did: the app was stopped, or a replay was."""
    if board.status == "interrupted":
        return "interrupted", "interrupted", None
    return "stopped", "stopped" if it.sent_ms is not None else "not started", None


def _ending(meta: RaceMeta, it: LaneBoard) -> tuple[PaneState, str]:
    """How a lane that finished by itself came to its end."""
    if it.called_tool and not it.text:
        return "tool", "tried to call a tool"
    if it.chunks == 0 or not (it.text or it.reasoning):
        return "silent", "no answer"
    asked = meta.spec.sampling
    match it.finish_reason:
        case "length" if asked.ignore_eos and it.tokens == asked.max_tokens:
            return "finished", "finished"  # held to its length: it was asked to end there
        case "length":
            return "length", "stopped at the length limit"
        case "stop" | None:
            return "finished", "finished"
        case "content_filter":
            return "finished", "ended by a content filter"
        case other:
            return "finished", f"finished ({other})"


def _note(state: PaneState, it: LaneBoard) -> NoteView | None:
    if it.error is not None:
        return NoteView(title=words.ERRORS[it.error.kind], text=it.error.message)
    match state:
        case "silent":
            text = "The server ended the stream without a word. Look at its log, or try another prompt."
            return NoteView(title="No answer", text=text)
        case "tool":
            text = "Its answer is a tool call, and there is no tool here. Ask for plain text in the prompt."
            return NoteView(title="The model tried to call a tool", text=text)
        case "interrupted":
            text = "The Specrace server restarted while this race ran. What had arrived is kept; run it again."
            return NoteView(title="Interrupted", text=text)
        case _:
            return None


def at_rest(lane: LaneName, state: EndpointState | None) -> PaneView:
    """Who would run in a lane."""
    identity = LaneIdentity() if state is None else state.identity
    return PaneView(
        lane=lane,
        title=words.LANE_TITLES[lane],
        model=identity.model,
        method=_method(lane, identity, None if state is None else state.speculating),
        k=_k(identity),
        state="idle",
        chip="at rest",
        explain=EXPLAIN[lane],
    )


def _method(lane: LaneName, identity: LaneIdentity, speculating: bool | None) -> str:
    if identity.method is not None:
        return words.METHODS.get(identity.method, identity.method)
    if lane == "baseline":
        return "not speculative" if not speculating else words.METHODS["unknown"]
    return "not speculating" if speculating is False else "speculative decoding"


def _k(identity: LaneIdentity) -> str | None:
    return None if identity.num_speculative_tokens is None else f"k = {identity.num_speculative_tokens}"
