"""The bytes of an event stream to its messages, against a reference written from the WHATWG rules, line by line."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.race import sse_lines
from app.race.sse_lines import SseLines, SseMessage

BOM = b"\xef\xbb\xbf"


def reference(body: bytes) -> list[SseMessage]:
    """https://html.spec.whatwg.org/multipage/server-sent-events.html, sections 9.2.5 and 9.2.6, byte by byte."""
    body = body.removeprefix(BOM)
    lines: list[bytes] = []
    line = bytearray()
    at = 0
    while at < len(body):
        if body[at : at + 2] == b"\r\n":
            lines.append(bytes(line))
            line.clear()
            at += 2
        elif body[at : at + 1] in (b"\r", b"\n"):
            lines.append(bytes(line))
            line.clear()
            at += 1
        else:
            line += body[at : at + 1]
            at += 1
    # what is left in `line` was never ended: it is discarded, as is a message without its blank line
    found: list[SseMessage] = []
    data, event = b"", ""
    for one in lines:
        if one == b"":
            if data != b"":
                found.append(SseMessage(event, data[:-1]))
            data, event = b"", ""
        elif one.startswith(b":"):
            pass
        else:
            field, colon, value = one.partition(b":")
            if colon and value.startswith(b" "):
                value = value[1:]
            if field == b"data":
                data += value + b"\n"
            elif field == b"event":
                event = value.decode("utf-8", "replace")
    return found


def read(body: bytes, cuts: list[int] | None = None) -> list[SseMessage]:
    lines = SseLines()
    points = [0, *sorted({cut % (len(body) + 1) for cut in cuts or ()}), len(body)]
    return [m for a, b in pairwise(points) for m in lines.feed(body[a:b])]


PIECES = [
    b"data",
    b"event",
    b"id",
    b"retry",
    b":",
    b": ",
    b" ",
    b"\n",
    b"\r",
    b"\r\n",
    b"\n\n",
    b"\r\r",
    b"\r\n\r\n",
    BOM,
    b"{}",
    b"[DONE]",
    "\u2028\u2029\u0085".encode(),
    "龜".encode(),
    b"\x00",
    b"\xff",
    b"\x0b\x0c\x1c",
    b"data: x\n\n",
]
bodies = st.one_of(st.lists(st.sampled_from(PIECES), max_size=30).map(b"".join), st.binary(max_size=60))


@given(bodies, st.lists(st.integers(0, 10_000), max_size=12))
@example(b"data: a\r\n\r\ndata: b\r\n\r\n", [8, 9, 10])
@example(b"data: a\r\r\ndata: b\n\n", [8])
@example(BOM + b"data: a\n\n", [1, 2])
@example(BOM + BOM + b"data: a\n\n", [4])
@example(b"\xefdata: a\n\n", [1])
def test_any_cut_of_the_bytes_gives_the_messages_of_the_whole(body: bytes, cuts: list[int]) -> None:
    assert read(body, cuts) == read(body) == reference(body)


@given(bodies)
def test_one_byte_at_a_time_gives_the_messages_of_the_whole(body: bytes) -> None:
    lines = SseLines()
    assert [m for i in range(len(body)) for m in lines.feed(body[i : i + 1])] == reference(body)


@given(bodies, st.lists(st.integers(0, 10_000), max_size=6))
def test_empty_reads_in_between_change_nothing(body: bytes, cuts: list[int]) -> None:
    lines = SseLines()
    points = [0, *sorted({cut % (len(body) + 1) for cut in cuts}), len(body)]
    found: list[SseMessage] = []
    for a, b in pairwise(points):
        found += lines.feed(b"")
        found += lines.feed(body[a:b])
    assert found == reference(body)


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_every_line_end_of_the_rules_ends_a_line(end: bytes) -> None:
    body = end.join([b"event: ping", b"data: one", b"data: two", b"", b"data:three", b"", b""])
    assert read(body) == [SseMessage("ping", b"one\ntwo"), SseMessage("", b"three")]


def test_a_cr_lf_cut_in_the_middle_is_one_line_end() -> None:
    lines = SseLines()
    assert lines.feed(b"data: a\r") == []
    assert lines.feed(b"\n") == []  # not a blank line: the message is not over
    assert lines.feed(b"data: b\r\n\r") == [SseMessage("", b"a\nb")]
    assert lines.feed(b"\ndata: c\n\n") == [SseMessage("", b"c")]


@pytest.mark.parametrize("cut", range(4))
def test_a_bom_is_dropped_however_it_is_cut(cut: int) -> None:
    lines = SseLines()
    assert lines.feed(BOM[:cut]) + lines.feed(BOM[cut:] + b"data: a\n\n") == [SseMessage("", b"a")]


def test_a_bom_inside_the_stream_is_text() -> None:
    assert read(b"data: a\n\ndata: " + BOM + b"b\n\n")[1].data == BOM + b"b"


def test_p36_other_separators_of_unicode_end_no_line() -> None:
    text = "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg"
    assert read(f"data: {text}\n\n".encode()) == [SseMessage("", text.encode())]


def test_p10_comments_and_unknown_fields_are_nothing() -> None:
    assert read(b": ping\n\nretry: 3000\n\nid: 7\nfoo: bar\n\ndata: x\n\n") == [SseMessage("", b"x")]
    assert read(b"event: ping\ndata:\n\n") == [SseMessage("ping", b"")]


def test_only_one_space_after_the_colon_belongs_to_the_syntax() -> None:
    assert read(b"data:  a\n\ndata:b\n\ndata\n\n") == [SseMessage("", b" a"), SseMessage("", b"b"), SseMessage("", b"")]


def test_a_message_without_its_blank_line_never_comes() -> None:
    assert read(b"data: whole\n\ndata: half\n") == [SseMessage("", b"whole")]


def test_a_name_does_not_stick_to_the_next_message() -> None:
    assert read(b"event: a\ndata: 1\n\ndata: 2\n\nevent: b\n\ndata: 3\n\n") == [
        SseMessage("a", b"1"),
        SseMessage("", b"2"),
        SseMessage("", b"3"),
    ]


@pytest.mark.parametrize("line", [b"x" * 2000, b"data: " + b"x" * 2000, b": " + b"x" * 2000])
def test_a_line_that_never_ends_is_refused_and_not_collected_for_ever(
    monkeypatch: pytest.MonkeyPatch, line: bytes
) -> None:
    monkeypatch.setattr(sse_lines, "MAX_MESSAGE_BYTES", 1000)
    with pytest.raises(OverflowError):
        SseLines().feed(line)


def test_a_message_of_many_lines_that_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse_lines, "MAX_MESSAGE_BYTES", 1000)
    lines = SseLines()
    for _ in range(90):  # 10 bytes each: not yet
        lines.feed(b"data: 0123456789\n")
    with pytest.raises(OverflowError):
        lines.feed(b"data: 0123456789\n" * 20)


def test_many_messages_are_not_one_long_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse_lines, "MAX_MESSAGE_BYTES", 1000)
    assert len(SseLines().feed(b"data: 0123456789\n\n" * 500)) == 500
