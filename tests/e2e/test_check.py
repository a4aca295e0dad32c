"""The check before a show, as a presenter presses it."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.e2e.stage import Hall, Stage
from tests.fakes.script import DONE, FIN, ROLE, TOK, USE


def test_the_presenter_checks_the_pair_and_copies_a_remedy(stage: Stage, hall: Hall) -> None:
    script = [ROLE, TOK("one two ", 2), TOK("three", 2), FIN("length"), USE(), DONE]
    stage.default(script, script)
    visitor = hall.enter(stage).open()
    visitor.page.get_by_role("link", name="Check", exact=True).click()
    expect(visitor.page.get_by_role("heading", level=1)).to_have_text("Check before the show")
    visitor.page.get_by_role("button", name="Check now").click()
    expect(visitor.page.get_by_role("heading", name="Both together")).to_be_visible(timeout=20_000)
    expect(visitor.page.get_by_role("button", name="Check again")).to_be_enabled()
    record = visitor.page.get_by_role("listitem").filter(has_text="Draft record")
    expect(record.locator(".sign")).to_have_text("warning")
    record.locator("code").click()
    assert visitor.page.evaluate("() => getSelection().toString()") == "--per-request-spec-decode-metrics detailed"
    assert visitor.other_hosts == []
