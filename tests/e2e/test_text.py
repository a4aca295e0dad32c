"""What a model writes is shown as it wrote it, character by character, and nothing of it runs (P18, P34–P36)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.blackbox.app import LANES
from tests.e2e.stage import Hall, Stage, Visitor, said, staged
from tests.fakes.vllm import ERR, ROLE, SLEEP, TOK

IMAGE = "<img src=x onerror=window.pwned={}>"
APART = 0.06
"""Seconds between deltas: longer than a frame, so that each arrives in a message of its own."""

CASES: dict[str, tuple[str, ...]] = {
    "image": (
        "<im",
        "g src=x onerror=window.pwned=1>",
        "<script>window.pwned=2</script>",
        "<svg/onload=window.pwned=3>",
    ),
    "htmx": ('<div hx-get="/races" hx-trigger="load">', "</span></pre></hx-partial>", '<hx-partial hx-target="body">'),
    "stream": ("a\n\nevent: done\ndata: {}\n\n", "id: 999999\n\n", "data: b\n", ":c\n\nretry: 1\n\n"),
    "entities": ("List<Str", "ing> & ", "&l", "t; <think>"),
    "quotes": ('"', "'", "`", "&quot;", "&#39;", "{{ 7*7 }}", "{% raw %}", "${7*7}"),
    "json": ("{", "\n", "  ", '"a": 1', "\r", "\n", "}"),
    "separators": ("a\u2028b", "c\u0085d", "e\u000bf\u000cg", "\u00a0h", "\ufeffi"),
    "breaks": ("\n\n\na", "\r", "b", "\r\n", "c", "\r", "\r", "d", "\n"),
    "indent": ("def f():\n", "\t", "if x:\n", "\t\t", "return", "  ", "1", "   \n", " ", "\n"),
    "spaces": ("   lead", " ", "  ", "two  ", " \t ", "end   "),
    "cjk": ("", "", "🫠", "", "龜", "👩\u200d", "🚀", "e", "\u0301", "عربية", "\u202eabc\u202c"),
    "long": ("x" * 3000, "<" * 300, "&" * 300),
}
MODEL = IMAGE.format(7)


def shown(*deltas: str) -> str:
    return "".join(deltas).replace("\r\n", "\n").replace("\r", "\n")


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with staged(baseline=MODEL, speculative=MODEL + "</title>") as stage:
        yield stage


@pytest.fixture(scope="module")
def raced(chromium: Browser, stage: Stage) -> Iterator[dict[str, Visitor]]:
    """Every case at once: live in one lane each delta in a frame of its own, in the other all at once."""
    hall = Hall(chromium)
    context_options = {"permissions": ["clipboard-read", "clipboard-write"]}
    visitors: dict[str, Visitor] = {}
    for name, deltas in CASES.items():
        stage.answer(name, said(*deltas, every_s=APART), said(*deltas, every_s=0))
        visitors[name] = hall.enter(stage, **context_options).write(name, IMAGE.format(4) + "</textarea></pre>").race()
    yield visitors
    assert hall.empty() == []


@pytest.mark.parametrize("name", list(CASES))
def test_the_text_is_exactly_what_came(raced: dict[str, Visitor], name: str) -> None:
    visitor = raced[name].until_over()
    for lane in LANES:
        assert visitor.out(lane) == shown(*CASES[name]), f"live, {lane}"
    visitor.page.reload()
    for lane in LANES:
        assert visitor.out(lane) == shown(*CASES[name]), f"reloaded, {lane}"
    assert not visitor.pwned()


@pytest.mark.parametrize("name", ["entities", "json", "indent", "cjk", "stream"])
def test_copied_text_is_exactly_what_came(raced: dict[str, Visitor], name: str) -> None:
    visitor = raced[name].until_over()
    visitor.page.bring_to_front()
    for lane in LANES:
        assert visitor.copied(f"#out-{lane}").rstrip("\n") == shown(*CASES[name]).rstrip("\n"), lane


@pytest.mark.parametrize("name", ["image", "json"])
def test_a_replay_shows_the_same_text(raced: dict[str, Visitor], name: str) -> None:
    visitor = raced[name].until_over()
    visitor.page.get_by_role("button", name="Replay").click()
    expect(visitor.page.locator("#band")).to_contain_text("Replay")
    visitor.until_over()
    for lane in LANES:
        assert visitor.out(lane) == shown(*CASES[name])
    assert not visitor.pwned()


def test_the_prompt_and_the_models_name_are_text(hall: Hall, stage: Stage) -> None:
    name = stage.answer("names")
    prompt = f"[{name}] {IMAGE.format(5)} </textarea><script>window.pwned=6</script> &lt;b>"
    visitor = hall.enter(stage).write(name, prompt.removeprefix(f"[{name}] ")).race().until_over()
    for _ in range(2):
        assert visitor.words("#head-baseline .model") == MODEL
        assert visitor.page.locator("#prompt").input_value() == prompt
        visitor.page.locator(".lamps").click()
        expect(visitor.page.locator("#servers")).to_contain_text(MODEL)
        assert not visitor.pwned()
        visitor.page.reload()
    visitor.open("/races")
    assert IMAGE.format(5) in visitor.words("tbody tr:first-child")
    assert not visitor.pwned()


def test_an_error_message_is_text(hall: Hall, stage: Stage) -> None:
    name = stage.answer(
        "error",
        said("fine"),
        [
            ROLE,
            TOK("some "),
            SLEEP(0.1),
            ERR({"error": {"message": IMAGE.format(8), "type": "x", "param": None, "code": 500}}),
        ],
    )
    visitor = hall.enter(stage).write(name).race().until_over()
    for _ in range(2):
        expect(visitor.page.locator("#foot-speculative")).to_contain_text(IMAGE.format(8))
        assert not visitor.pwned()
        visitor.page.reload()


def test_reasoning_is_shown_apart_and_as_text(hall: Hall, stage: Stage) -> None:
    thoughts = [TOK("", 1, reasoning=text) for text in ("<b>hm", "</b>\n", IMAGE.format(9))]
    name = stage.answer(
        "thinks", [ROLE, *(step for t in thoughts for step in (t, SLEEP(APART))), *said("So: ", "4")[1:]]
    )
    visitor = hall.enter(stage).write(name).race().until_over()
    for _ in range(2):
        for lane in LANES:
            assert visitor.page.locator(f"#think-{lane}").text_content() == "<b>hm</b>\n" + IMAGE.format(9)
            assert visitor.out(lane) == "So: 4"
        assert not visitor.pwned()
        visitor.page.reload()


def test_a_policy_forbids_what_is_not_ours(hall: Hall, stage: Stage) -> None:
    """Even if something got through: the page may not run it."""
    visitor = hall.enter(stage, calm=False).open()
    visitor.page.evaluate("html => document.body.insertAdjacentHTML('beforeend', html)", IMAGE.format(1))
    visitor.wait(0.3)
    assert not visitor.pwned()
    assert any("Content Security Policy" in complaint for complaint in visitor.complaints)
