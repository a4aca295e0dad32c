"""Which tokens were drafted: seen in the text, told under the pointer, switched off and on, exact at the end."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.e2e.stage import Hall, Stage, Visitor, said, staged
from tests.fakes.script import Reply
from tests.fakes.vllm import DONE, FIN, ROLE, SLEEP, TOK, USE

STEPS = (4, 1, 3, 5, 1, 4)
"""Tokens of each step after the first token; k is 4."""
RECT = """([selector, index]) => {
    const texts = document.createTreeWalker(document.querySelector(selector), NodeFilter.SHOW_TEXT);
    let rest = index;
    while (texts.nextNode()) {
        if (rest < texts.currentNode.length) {
            const range = new Range();
            range.setStart(texts.currentNode, rest);
            range.setEnd(texts.currentNode, rest + 1);
            range.startContainer.parentElement.scrollIntoView({ block: 'center' });
            const box = range.getBoundingClientRect();
            return [box.left + box.width / 2, box.top + box.height / 2];
        }
        rest -= texts.currentNode.length;
    }
}"""
LINE = "() => getComputedStyle(document.querySelector('#out-speculative u')).textDecorationLine"


def words(start: int, count: int) -> str:
    """Tokens of the same length, of which no two are alike."""
    return "".join(f"w{i:02} " for i in range(start, start + count))


def drafting(every_s: float = 0.05, steps: tuple[int, ...] = STEPS) -> list[Any]:
    script: list[Any] = [ROLE, SLEEP(0.05), TOK(words(0, 1)), SLEEP(every_s)]
    at = 1
    for size in steps:
        script += [TOK(words(at, size), size), SLEEP(every_s)]
        at += size
    return [*script, FIN("length"), USE(spec="auto"), DONE]


def text(steps: tuple[int, ...] = STEPS) -> str:
    return words(0, 1 + sum(steps))


def drafted(visitor: Visitor) -> list[str]:
    return visitor.page.locator("#out-speculative u").all_text_contents()


def raced(visitor: Visitor, name: str, baseline: Any = None, speculative: Any = None) -> Visitor:
    visitor.stage.answer(name, baseline or said("The", " other", " lane."), speculative or drafting())
    return visitor.write(name).race()


def told(visitor: Visitor, token: int) -> str:
    """What the pointer is told over a token of the finished text."""
    x, y = visitor.page.evaluate(RECT, ["#out-speculative", 4 * token + 1])
    visitor.page.mouse.move(x, y)
    expect(visitor.page.locator("#inktip")).to_be_visible()
    visitor.wait(0.05)
    return visitor.words("#inktip")


def test_at_the_end_exactly_the_drafted_tokens_are_marked(hall: Hall, stage: Stage) -> None:
    visitor = raced(hall.enter(stage), "exact").until_over()
    expect(visitor.page.locator("#foot-speculative .inked")).to_have_text("12 of 19 tokens drafted · exact")
    assert drafted(visitor) == [words(1, 3), words(6, 2), words(9, 4), words(15, 3)]
    assert visitor.page.locator("#out-speculative .hint, #out-speculative .mixed").count() == 0
    assert visitor.page.locator("#out-baseline u").count() == 0
    assert visitor.out("speculative") == text()
    html = visitor.page.locator("#out-speculative").inner_html()
    visitor.page.reload()
    assert visitor.page.locator("#out-speculative").inner_html() == html
    assert visitor.words("#ink") == "drafted 12 of 19 tokens, exact"


def test_while_it_runs_the_marks_are_an_estimate(hall: Hall, stage: Stage) -> None:
    visitor = raced(hall.enter(stage), "live", speculative=drafting(0.3))
    expect(visitor.page.locator("#out-speculative .hint u").nth(1)).to_be_visible()
    style = "() => getComputedStyle(document.querySelector('#out-speculative u')).textDecorationStyle"
    assert visitor.page.evaluate(style) == "dashed"
    expect(visitor.page.locator("#ink .estimated")).to_be_visible()
    visitor.until_over()
    assert visitor.page.evaluate(style) == "solid"


def test_the_pointer_is_told_step_and_place(hall: Hall, stage: Stage) -> None:
    visitor = raced(hall.enter(stage), "hover").until_over()
    assert told(visitor, 0) == "first token · from the prefill, before any draft"
    assert told(visitor, 1) == "step 1 · draft token 1 of 4 · accepted"
    assert told(visitor, 3) == "step 1 · draft token 3 of 4 · accepted"
    assert told(visitor, 4) == "step 1 · target's own token, after 3 accepted of 4"
    assert told(visitor, 5) == "step 2 · target's own token, after 0 accepted of 4"
    assert told(visitor, 12) == "step 4 · draft token 4 of 4 · accepted"
    assert told(visitor, 18) == "step 6 · target's own token, after 3 accepted of 4"
    visitor.page.keyboard.press("Escape")
    expect(visitor.page.locator("#inktip")).to_be_hidden()
    told(visitor, 3)
    visitor.page.mouse.move(5, 5)
    expect(visitor.page.locator("#inktip")).to_be_hidden()


def test_a_tap_tells_it_on_a_phone(hall: Hall, stage: Stage) -> None:
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
    visitor = raced(hall.enter(stage, **phone), "tap").until_over()
    visitor.wait(0.2)
    x, y = visitor.page.evaluate(RECT, ["#out-speculative", 4 * 7 + 1])
    visitor.page.touchscreen.tap(x, y)
    expect(visitor.page.locator("#inktip")).to_have_text("step 3 · draft token 2 of 4 · accepted")
    box = visitor.page.locator("#inktip").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390


def test_the_switch_is_kept(hall: Hall, stage: Stage) -> None:
    visitor = raced(hall.enter(stage), "switch").until_over()
    switch = visitor.page.locator("#ink")
    assert visitor.page.evaluate(LINE) == "underline"
    switch.focus()
    visitor.page.keyboard.press("Enter")
    for _ in range(2):
        expect(switch).to_have_attribute("aria-pressed", "false")
        assert visitor.page.evaluate(LINE) == "none"
        assert visitor.out("speculative") == text()
        visitor.page.reload()
    visitor.page.evaluate(RECT, ["#out-speculative", 5])
    visitor.page.locator("#out-speculative u").first.hover()
    expect(visitor.page.locator("#inktip")).to_be_hidden()
    switch.click()
    expect(switch).to_have_attribute("aria-pressed", "true")
    assert visitor.page.evaluate(LINE) == "underline"


def test_the_reader_keeps_place_and_selection_when_the_marks_become_exact(hall: Hall, stage: Stage) -> None:
    steps = (5,) * 80
    slow = [ROLE, *(step for i in range(40) for step in (TOK(f"{i} "), SLEEP(0.1))), FIN("length"), USE(), DONE]
    visitor = raced(hall.enter(stage), "place", slow, drafting(0.02, steps))
    page = visitor.page
    expect(page.locator("#out-speculative .hint u").nth(8)).to_be_attached()
    page.evaluate("() => { document.querySelector('#scroll-speculative').scrollTop = 5000; }")
    visitor.wait(0.2)
    page.evaluate("() => { document.querySelector('#scroll-speculative').scrollTop = 30; }")
    page.evaluate(
        "() => { const u = document.querySelectorAll('#out-speculative u');"
        " getSelection().setBaseAndExtent(u[1].firstChild, 2, u[4].firstChild, 3); }"
    )
    chosen = page.evaluate("() => String(getSelection())")
    assert len(chosen) > 8
    visitor.until_over()
    expect(page.locator("#out-speculative .hint")).to_have_count(0)
    assert page.evaluate("() => String(getSelection())") == chosen
    assert page.evaluate("() => document.querySelector('#scroll-speculative').scrollTop") == 30


def test_copied_text_is_exactly_what_came(hall: Hall, stage: Stage) -> None:
    options = {"permissions": ["clipboard-read", "clipboard-write"]}
    visitor = raced(hall.enter(stage, **options), "copy").until_over()
    assert visitor.copied("#out-speculative").rstrip() == text().rstrip()


def test_reasoning_is_marked_too(hall: Hall, stage: Stage) -> None:
    thinks = [
        ROLE,
        TOK("", 1, reasoning="t00 "),
        SLEEP(0.05),
        TOK("", 3, reasoning="t01 t02 t03 "),
        SLEEP(0.05),
        TOK(words(0, 3), 3),
        FIN("stop"),
        USE(spec="auto"),
        DONE,
    ]
    visitor = raced(hall.enter(stage), "thinks", speculative=thinks).until_over()
    assert visitor.page.locator("#think-speculative u").all_text_contents() == ["t01 t02 "]
    assert drafted(visitor) == [words(0, 2)]


@pytest.fixture
def silent(chromium: Browser) -> Any:
    """A pair that does not tell the texts of tokens."""
    with staged() as stage:
        for fake in stage.fakes:
            fake.routes["/detokenize"] = Reply.json(404, {"detail": "Not Found"})
        hall = Hall(chromium)
        yield hall.enter(stage)
        assert hall.empty() == []


def test_without_the_texts_of_tokens_a_step_is_marked_as_one(silent: Visitor) -> None:
    visitor = raced(silent, "silent").until_over()
    expect(visitor.page.locator("#foot-speculative .inked")).to_have_text("12 of 19 tokens drafted · exact")
    assert visitor.page.locator("#out-speculative .mixed").all_text_contents() == [
        words(1, 4),
        words(6, 8),
        words(15, 4),
    ]
    assert visitor.out("speculative") == text()
    assert told(visitor, 2) == "step 1 · 3 draft tokens of 4 and the target's own"


def test_a_lane_that_does_not_speculate_has_no_switch(hall: Hall, stage: Stage) -> None:
    visitor = raced(hall.enter(stage), "plain", speculative=said("a", " b", " c")).until_over()
    assert visitor.page.locator("#out-speculative u").count() == 0
    assert re.search(r"^drafted 0 of 3 tokens", visitor.words("#ink"))
