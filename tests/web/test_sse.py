"""Frames to bytes: encoding, one render for all at the head, catch-up for the slow, nothing lost or repeated."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st

from app.race.events import RaceFinished
from app.race.run import Run
from app.race.sse_lines import SseLines
from app.web import sse
from app.web.sse import Feeds, done, json_events, message
from tests.race.helpers import chunk, meta, over, started
from tests.web.site import messages


# ------------------------------------------------------------------------------------------------ encoding
@given(st.text(max_size=80), st.none() | st.integers(0, 10**9), st.none() | st.just("done"))
def test_a_browser_reads_what_was_written(text: str, event_id: int | None, event: str | None) -> None:
    raw = message(text, event_id=event_id, event=event)
    assert b"\r" not in raw
    assert raw.endswith(b"\n\n")
    assert raw.count(b"\n\n") == 1
    (found,) = SseLines().feed(raw)
    assert found.event == (event or "")
    assert found.data.decode() == re.sub(r"\r\n?", "\n", text)
    assert (f"id: {event_id}\n".encode() in raw.split(b"data:")[0]) is (event_id is not None)


@pytest.mark.parametrize(
    ("text", "raw"),
    [
        ("", b"data: \n\n"),
        ("a", b"data: a\n\n"),
        (" a", b"data:  a\n\n"),
        ("a\nb", b"data: a\ndata: b\n\n"),
        ("a\rb\r\nc", b"data: a\ndata: b\ndata: c\n\n"),
        ("a\n", b"data: a\ndata: \n\n"),
        ("\n\n", b"data: \ndata: \ndata: \n\n"),
        ("a\u2028b\u0085c", "data: a\u2028b\u0085c\n\n".encode()),
        ("data: x\n\nid: 9", b"data: data: x\ndata: \ndata: id: 9\n\n"),
    ],
)
def test_line_ends_inside_a_message(text: str, raw: bytes) -> None:
    assert message(text) == raw
    assert message(text.encode()) == raw


def test_the_order_of_the_fields() -> None:
    assert message("x", event_id=7, event="done") == b"id: 7\nevent: done\ndata: x\n\n"


def test_p26_the_end_has_a_name_and_data() -> None:
    assert done("finished") == b'event: done\ndata: {"status":"finished"}\n\n'


# ------------------------------------------------------------------------------------------------ frames
class Plain:
    """A renderer whose frames say what they hold: ``after-upto`` and the text between."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int, bool]] = []

    def frame(
        self, meta: Any, board: Any, log: Any, after: int, upto: int, *, scores: bool, now_ms: float, **_: Any
    ) -> str:
        self.calls.append((after, upto, scores))
        return f"{after}-{upto} {''.join(getattr(event, 'text', '') for event in log.between(after, upto))}"


class Viewer:
    """One connection: what it was sent."""

    def __init__(self, feeds: Feeds, run: Run, after: int = 0) -> None:
        self.stream: AsyncIterator[bytes] = feeds.frames(run, after)
        self.after = after
        self.raw = b""

    async def next(self) -> bytes:
        with anyio.fail_after(3):
            found = await anext(self.stream)
        self.raw += found
        return found

    async def rest(self) -> None:
        with anyio.fail_after(10):
            async for found in self.stream:
                self.raw += found

    async def leave(self) -> None:
        await self.stream.aclose()  # type: ignore[attr-defined]

    @property
    def spans(self) -> list[tuple[int, int]]:
        found = [m["data"].split(" ")[0].split("-") for m in messages(self.raw.decode()) if "event" not in m]
        return [(int(a), int(b)) for a, b in found]

    @property
    def text(self) -> str:
        return "".join(m["data"].partition(" ")[2] for m in messages(self.raw.decode()) if "event" not in m)

    def seamless(self) -> bool:
        """Whether every frame begins where the one before ended."""
        at = self.after
        for after, upto in self.spans:
            if after != at or upto < after:
                return False
            at = upto
        return True


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "FRAME_S", 0.01)


def run_with(events: int = 0) -> Run:
    run = Run(meta(), None)
    run.append(started())
    for n in range(events):
        run.append(chunk("baseline", n + 1.0, text=chr(97 + n % 26)))
    return run


def say(run: Run, text: str) -> None:
    run.append(chunk("baseline", run.board.now_ms + 1, text=text))


@pytest.mark.anyio
@pytest.mark.usefixtures("_quick")
async def test_one_frame_is_rendered_and_encoded_once_for_everybody_at_the_head() -> None:
    plain, run = Plain(), run_with()
    feeds = Feeds(plain)  # type: ignore[arg-type]
    viewers = [Viewer(feeds, run) for _ in range(40)]
    first = {await viewer.next() for viewer in viewers}
    assert len(first) == 1
    plain.calls.clear()
    async with anyio.create_task_group() as group:
        for viewer in viewers:
            group.start_soon(viewer.rest)
        for n in range(10):
            say(run, f"<{n}>")
            await anyio.sleep(0.02)
        run.append(over(1000))
    assert all(viewer.seamless() for viewer in viewers)
    assert {viewer.text for viewer in viewers} == {"".join(f"<{n}>" for n in range(10))}
    assert len({viewer.raw for viewer in viewers}) == 1
    assert len(plain.calls) <= 12  # one a cut, not one a viewer
    assert run.viewers == 0


@pytest.mark.anyio
@pytest.mark.usefixtures("_quick")
async def test_a_slow_viewer_gets_one_bigger_frame_and_then_joins_the_others() -> None:
    plain, run = Plain(), run_with()
    feeds = Feeds(plain)  # type: ignore[arg-type]
    fast, slow = Viewer(feeds, run), Viewer(feeds, run)
    await fast.next()
    await slow.next()
    for n in range(8):
        say(run, f"<{n}>")
        await fast.next()
    assert fast.spans[-1][1] == 9
    before = len(plain.calls)
    await slow.next()  # eight frames in one
    assert slow.spans[-1] == (1, 9)
    assert plain.calls[before:] == [(1, 9, True)]
    say(run, "<8>")
    await fast.next()
    await slow.next()
    assert fast.spans[-1] == slow.spans[-1] == (9, 10)
    assert fast.text == slow.text
    assert fast.seamless()
    assert slow.seamless()
    await fast.leave()
    await slow.leave()


@pytest.mark.anyio
@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("after", [0, 1, 3, 5, 6, 1000])
async def test_p32_a_viewer_resumes_anywhere_without_loss_or_repetition(after: int) -> None:
    run = run_with(5)  # six events: abcde from the second on
    feeds = Feeds(Plain())  # type: ignore[arg-type]
    other, back = Viewer(feeds, run), Viewer(feeds, run, after)
    await other.next()
    await back.next()
    back.after = min(after, 6)
    say(run, "f")
    run.append(over(99))
    await back.rest()
    await other.rest()
    assert back.seamless()
    assert back.text == "abcdef"[max(back.after - 1, 0) :]
    assert back.spans[-1][1] == 8


@pytest.mark.anyio
@pytest.mark.parametrize("after", [4, 6])
async def test_a_page_rendered_past_the_last_cut_gets_nothing_twice(
    monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    monkeypatch.setattr(sse, "FRAME_S", 0.15)
    run = run_with(2)
    feeds = Feeds(Plain())  # type: ignore[arg-type]
    first = Viewer(feeds, run)
    await first.next()  # the feed stands at 3
    say(run, "c")
    await first.next()  # cut at 4; the next one is due in 150 ms
    say(run, "d")
    say(run, "e")
    late = Viewer(feeds, run, after)  # its page was rendered with all six, or with four
    await late.next()
    run.append(over(99))
    await late.rest()
    await first.rest()
    assert late.seamless()
    assert late.text == ("" if after == 6 else "de")
    assert first.text == "abcde"
    assert first.seamless()


@pytest.mark.anyio
async def test_frames_are_cut_at_most_twenty_times_a_second() -> None:
    plain, run = Plain(), run_with()
    viewer = Viewer(Feeds(plain), run)  # type: ignore[arg-type]
    async with anyio.create_task_group() as group:
        group.start_soon(viewer.rest)
        with anyio.move_on_after(0.5):
            while True:
                say(run, "x")
                await anyio.sleep(0.002)
        run.append(over(1e6))
    assert 4 <= len(viewer.spans) <= 13
    assert len(viewer.text) == run.log.head - 2


@pytest.mark.anyio
async def test_the_first_word_of_a_silent_race_is_not_held_back() -> None:
    run = run_with()
    viewer = Viewer(Feeds(Plain()), run)  # type: ignore[arg-type]
    await viewer.next()
    began = anyio.current_time()
    say(run, "x")
    await viewer.next()
    assert anyio.current_time() - began < 0.04
    await viewer.leave()


@pytest.mark.anyio
async def test_the_scoreboard_comes_less_often_than_the_text_but_always_at_the_end() -> None:
    plain, run = Plain(), run_with()
    viewer = Viewer(Feeds(plain), run)  # type: ignore[arg-type]
    await viewer.next()
    plain.calls.clear()
    async with anyio.create_task_group() as group:
        group.start_soon(viewer.rest)
        with anyio.move_on_after(0.6):
            while True:
                say(run, "x")
                await anyio.sleep(0.005)
        run.append(over(1e6))
    with_scores = [call for call in plain.calls if call[2]]
    assert plain.calls[-1][2]
    assert len(with_scores) < len(plain.calls) / 2


@pytest.mark.anyio
@pytest.mark.usefixtures("_quick")
async def test_the_cutter_stops_when_the_last_viewer_leaves_and_starts_again_with_the_next() -> None:
    plain, run = Plain(), run_with()
    feeds = Feeds(plain)  # type: ignore[arg-type]
    one, two = Viewer(feeds, run), Viewer(feeds, run)
    for viewer in (one, two):
        await viewer.next()
    say(run, "a")
    await one.next()
    await one.leave()
    say(run, "b")
    await two.next()
    await two.next()  # still served
    assert two.text == "ab"
    await two.leave()
    assert run.viewers == 0
    await checkpoint()
    count = len(plain.calls)
    for _ in range(5):
        say(run, "x")
        await anyio.sleep(0.015)
    assert len(plain.calls) == count
    back = Viewer(feeds, run, 3)
    await back.next()
    say(run, "y")
    await back.next()
    assert back.text == "xxxxxy"
    await back.leave()


@pytest.mark.anyio
async def test_p25_p27_a_race_that_is_over_is_one_frame_and_the_end() -> None:
    run = run_with(3)
    run.append(over(99, "partial"))
    feeds = Feeds(Plain())  # type: ignore[arg-type]
    for after, text in ((0, "abc"), (4, ""), (5, ""), (77, "")):
        viewer = Viewer(feeds, run, after)
        await viewer.rest()
        assert viewer.text == text
        found = messages(viewer.raw.decode())
        assert len(found) == 2
        assert found[-1] == {"event": "done", "data": '{"status":"partial"}'}


@pytest.mark.anyio
@pytest.mark.usefixtures("_quick")
async def test_a_connection_does_not_live_for_ever_and_ends_without_the_named_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sse, "CONNECTION_LIFE_S", 0.03)
    run = run_with()
    viewer = Viewer(Feeds(Plain()), run)  # type: ignore[arg-type]
    async with anyio.create_task_group() as group:
        group.start_soon(viewer.rest)
        for _ in range(8):
            say(run, "x")
            await anyio.sleep(0.02)
    assert "event: done" not in viewer.raw.decode()  # the browser comes back with Last-Event-ID
    assert run.viewers == 0


@pytest.mark.anyio
@pytest.mark.usefixtures("_quick")
async def test_a_connection_to_a_silent_race_does_not_live_for_ever_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "CONNECTION_LIFE_S", 0.05)
    run = run_with()
    viewer = Viewer(Feeds(Plain()), run)  # type: ignore[arg-type]
    with anyio.move_on_after(1) as scope:
        await viewer.rest()
    assert not scope.cancelled_caught


@pytest.mark.anyio
async def test_a_viewer_counts_as_long_as_it_watches() -> None:
    run = run_with()
    viewer = Viewer(Feeds(Plain()), run)  # type: ignore[arg-type]
    assert run.viewers == 0
    await viewer.next()
    assert run.viewers == 1
    await viewer.leave()
    assert run.viewers == 0


# ------------------------------------------------------------------------------------------------ JSON
@pytest.mark.anyio
@pytest.mark.parametrize("after", [0, 2, 4, 99])
async def test_every_event_as_json_from_a_cursor_on(after: int) -> None:
    run = run_with(3)
    run.append(RaceFinished(t_ms=9, status="finished"))
    async with aclosing(json_events(run, after)) as stream:
        raw = b"".join([one async for one in stream])
    *events, end = messages(raw.decode())
    assert [int(one["id"]) for one in events] == list(range(after + 1, 6))
    assert all(one.json["type"] for one in events)
    assert end == {"event": "done", "data": '{"status":"finished"}'}
    assert run.viewers == 0
