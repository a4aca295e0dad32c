"""Drafted tokens in the text of a pane: the same text, more about it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.race.events import Event, LaneChunk, LaneDrafts, LaneStarted, LaneVocabulary
from app.race.types import SpecRecord
from app.web import ink
from app.web.render import Renderer
from app.web.views import SpanView
from tests.web.scenes import begun, chunk, ended, fold, meta, over, sent

RENDER = Renderer()
PARTIAL = re.compile(r'<hx-partial hx-target="#([\w-]+)" hx-swap="(\w+)">(.*?)</hx-partial>', re.DOTALL)
WORDS = {1: "The", 2: " cat", 3: " sat", 4: " on", 5: " it"}


def spoke(t_ms: float, *ids: int, text: str | None = None, reasoning: bool = False) -> LaneChunk:
    text = "".join(WORDS[i] for i in ids) if text is None else text
    return LaneChunk(t_ms=t_ms, lane="speculative", text=text, tokens=len(ids), token_ids=ids, reasoning=reasoning)


def spelled(*ids: int) -> LaneVocabulary:
    return LaneVocabulary(t_ms=5, lane="speculative", ids=ids, texts=tuple(WORDS[i] for i in ids))


def drafts(*accepted: int, drafted: int = 4) -> LaneDrafts:
    record = SpecRecord(
        source="request",
        drafts=len(accepted),
        drafted=drafted * len(accepted),
        accepted=sum(accepted),
        per_step_accepted=accepted,
        per_step_drafted=(drafted,) * len(accepted),
    )
    return LaneDrafts(t_ms=90, lane="speculative", record=record)


def shown(spans: tuple[SpanView, ...]) -> list[list[tuple[str, str]]]:
    return [[(part.text, part.mark) for part in span.parts] for span in spans]


def answer(*events: Event) -> tuple[SpanView, ...]:
    return ink.whole(fold([*begun(), *events])[1], "speculative").answer_spans


def frame(events: list[Event], after: int, upto: int) -> dict[str, tuple[str, str]]:
    log, board = fold(events[:upto])
    html = RENDER.frame(meta(), board, log, after, upto, scores=False, now_ms=board.now_ms)
    return {target: (swap, inner) for target, swap, inner in PARTIAL.findall(html)}


STORY: list[Event] = [spoke(10, 1), spoke(20, 2, 3, 4), spoke(30, 5), spelled(2, 3, 4)]
END: list[Event] = [drafts(2, 0), ended("speculative", 100), ended("baseline", 110), over(120, "finished")]


def test_at_the_end_every_token_has_its_step() -> None:
    (span,) = answer(*STORY, *END)
    assert shown((span,)) == [[("The", ""), (" cat sat", "draft"), (" on it", "")]]
    assert (span.ink, span.step, span.hint) == ("p:3 2/4:4,4,3 0/4:3", 1, False)


def test_while_it_streams_the_marks_are_a_hint_without_steps() -> None:
    (span,) = answer(*STORY)
    assert shown((span,)) == [[("The", ""), (" cat sat", "draft"), (" on it", "")]]
    assert (span.ink, span.step, span.hint) == ("p:3 2/:4,4,3 :3", None, True)


def test_tokens_whose_texts_are_unknown_share_a_mark() -> None:
    (span,) = answer(spoke(10, 1), spoke(20, 2, 3, 4))
    assert shown((span,)) == [[("The", ""), (" cat sat on", "mixed")]]
    assert span.ink == "p:3 2/:11*3"


def test_merged_steps_that_cannot_be_told_apart() -> None:
    (span,) = answer(
        spoke(10, 1), spoke(20, 2, 3, 4, 5, 1, 2, 3), drafts(4, 1), ended("speculative", 100), over(120, "finished")
    )
    assert shown((span,)) == [[("The", ""), (" cat sat on itThe cat sat", "mixed")]]
    assert (span.ink, span.step) == ("p:3 ~2.5.7:25", 1)


def test_a_chunk_without_a_count_is_plain() -> None:
    (span,) = answer(spoke(10, 1), LaneChunk(t_ms=20, lane="speculative", text=" cat", tokens=None))
    assert shown((span,)) == [[("The cat", "")]]
    assert span.ink == "p:3 ?:4"


def test_lengths_are_those_of_browsers() -> None:
    events = [spoke(10, 1), spoke(20, 2, 3, text="🫠 sat"), spelled(3)]
    (span,) = answer(*events)
    assert span.ink == "p:3 1/:2,4"


def test_a_lane_that_does_not_speculate_has_plain_text() -> None:
    plain = [LaneStarted(t_ms=0, lane="speculative", model="m", speculating=False), spoke(10, 1), spoke(20, 2, 3, 4)]
    _, board = fold([*begun(), *plain])
    view = ink.whole(board, "speculative")
    assert (view.answer, view.answer_spans) == ("The cat sat on", ())
    assert ink.summary(board.lanes["speculative"]) is None
    assert ink.whole(board, "baseline").answer_spans == ()


def test_the_legend_counts_and_says_how_certain_it_is() -> None:
    _, live = fold([*begun(), *STORY])
    _, done = fold([*begun(), *STORY, *END])
    found = [ink.summary(board.lanes["speculative"]) for board in (live, done)]
    assert [(f.drafted, f.tokens, f.words, f.estimated) for f in found if f] == [
        ("2", "5", "estimate from chunk sizes", True),
        ("2", "5", "exact", False),
    ]


def test_long_texts_come_in_spans_that_end_with_a_step() -> None:
    events: list[Event] = [spoke(10, 1)]
    events.extend(spoke(20 + i, 2, 3, 4) for i in range(400))
    spans = answer(*events, spelled(2, 3, 4), drafts(*[2] * 400), ended("speculative", 500), over(520, "finished"))
    assert len(spans) == 8
    assert [span.step for span in spans][:3] == [1, 56, 111]
    for span in spans:
        ends = [sum(int(n) for n in word.split(":")[1].split(",")) for word in span.ink.split(" ")]
        assert sum(ends) == sum(len(part.text) for part in span.parts)


# --- frames -----------------------------------------------------------------------------------------


def test_new_text_comes_marked_and_escaped() -> None:
    events = [*begun(), spoke(10, 1), spoke(20, 2, 3, text=" <b>&"), spoke(30, 4)]
    found = frame(events, 4, 6)
    swap, inner = found["out-speculative"]
    assert swap == "beforeend"
    assert inner == ('<span class="hint" data-ink="1/:5*2 :3"><u class="mixed"> &lt;b&gt;&amp;</u> on</span>')


def test_the_first_token_of_a_lane_is_the_prefills_in_whatever_frame_it_comes() -> None:
    events = [*begun(), spoke(10, 1), spoke(20, 2)]
    assert 'data-ink="p:3"' in frame(events, 3, 4)["out-speculative"][1]
    assert 'data-ink=":4"' in frame(events, 4, 5)["out-speculative"][1]


def test_when_the_lane_is_over_its_text_comes_whole_once_more() -> None:
    events = [*begun(), *STORY, *END]
    lane_over = next(i for i, event in enumerate(events, start=1) if event is END[1])
    swap, inner = frame(events, lane_over - 1, lane_over)["out-speculative"]
    assert swap == "innerHTML"
    assert inner == '<span data-ink="p:3 2/4:4,4,3 0/4:3" data-step="1">The<u> cat sat</u> on it</span>'
    swap, inner = frame(events, len(events) - 1, len(events))["out-speculative"]
    assert swap == "innerHTML"
    assert "out-speculative" not in frame(events, lane_over, lane_over + 1), "the other lane's end changes nothing here"


def test_a_text_without_a_drafted_token_stays_as_it_is() -> None:
    events = [*begun(), spoke(10, 1), spoke(20, 2), drafts(0), *END[1:]]
    assert "out-speculative" not in frame(events, 5, len(events))


def test_reasoning_is_marked_too() -> None:
    events = [*begun(), spoke(10, 1, reasoning=True), spoke(20, 2, 3, reasoning=True), spelled(2, 3)]
    inner = frame(events, 4, 6)["think-speculative"][1]
    assert "<u" in inner


def test_texts_of_tokens_alone_bring_no_frame() -> None:
    assert frame([*begun(), spoke(10, 1), spelled(2)], 4, 5) == {}


def test_a_lane_asked_again_begins_anew() -> None:
    events = [*begun(), spoke(10, 2), sent("speculative", 15, retried=True), spoke(20, 1), spoke(30, 2)]
    assert frame(events, 4, 6)["out-speculative"][0] == "innerHTML"
    assert 'data-ink="p:3 :4"' in frame(events, 4, 7)["out-speculative"][1]


@given(
    st.lists(st.tuples(st.text(alphabet="a \r\n<&🫠", max_size=4), st.integers(0, 5)), max_size=10),
    st.sets(st.integers(4, 14)),
    st.booleans(),
)
def test_however_frames_are_cut_the_text_is_the_same(
    pieces: list[tuple[str, int]], cuts: set[int], finished: bool
) -> None:
    import html

    events: list[Event] = [
        *begun(),
        *(chunk("speculative", text, i, tokens=n) for i, (text, n) in enumerate(pieces)),
        *((drafts(), ended("speculative", 50), over(60, "finished")) if finished else ()),
    ]
    ends = sorted({cut for cut in cuts if cut < len(events)} | {len(events)})
    text, after = "", 0
    for upto in ends:
        if found := frame(events, after, upto).get("out-speculative"):
            swap, inner = found
            text = ("" if swap == "innerHTML" else text) + html.unescape(re.sub(r"<[^>]*>", "", inner))
        after = upto
    whole = "".join(text for text, _ in pieces).replace("\r\n", "\n").replace("\r", "\n")
    assert text == whole
    assert ink.whole(fold(events)[1], "speculative").answer == whole


@pytest.mark.parametrize("name", ["_pane.html", "frames/frame.html"])
def test_page_and_frame_draw_text_with_the_same_partial(name: str) -> None:
    from app.web.render import ROOT

    assert (ROOT / "templates" / name).read_text().count('include "_ink.html"') == 2
