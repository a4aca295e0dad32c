"""The same text? In words, on the page, and through the whole app: live, kept and replayed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from app.race.events import Event, RaceMargin
from app.race.types import Candidate
from app.web import board
from app.web.render import Renderer
from app.web.sametext import same_text
from app.web.views import SameTextView
from tests.fakes.vllm import DONE, FIN, ROLE, TOK, USE, FakeVLLM
from tests.race.helpers import chunk, ended, over, sent, started
from tests.web.scenes import SCENES, fold, meta
from tests.web.site import site

RENDER = Renderer()
COMMON = [(1, "The"), (2, " cat")]


def told(base: list[tuple[int, str]], spec: list[tuple[int, str]], *, ids: bool = True, **rest: Any) -> list[Event]:
    """A race of two answers, a token a chunk, and what the target said of two candidates (``margin``)."""
    events: list[Event] = [started(), sent("baseline"), sent("speculative")]
    for lane, tokens in (("baseline", base), ("speculative", spec)):
        for at, (token, text) in enumerate(tokens):
            events.append(chunk(lane, 10 + at, 1, text=text, token_ids=(token,) if ids else None))  # type: ignore[arg-type]
        events.append(ended(lane, 50))  # type: ignore[arg-type]
    if "margin" in rest:
        one, other = rest["margin"]
        rated = [Candidate(token_id=token, logprob=value) for token, value in ((base[2][0], one), (spec[2][0], other))]
        events.append(RaceMargin(t_ms=60, index=2, baseline=rated[0], speculative=rated[1]))
    return [*events, over(70)]


def view(events: list[Event], *, temperature: float = 0.0) -> SameTextView:
    found = same_text(meta(temperature=temperature), fold(events)[1])
    assert found is not None
    return found


def parted(**rest: Any) -> list[Event]:
    return told([*COMMON, (3, " sat"), (4, " on")], [*COMMON, (5, " slept"), (6, ".")], **rest)


# ---------------------------------------------------------------------------------------- in words
def test_identical_says_how_it_was_told() -> None:
    found = view(told(COMMON, COMMON))
    assert (found.verdict, found.headline, found.sides) == ("identical", "Identical: the same 2 tokens.", None)
    assert "token by token" in found.text
    assert view(told(COMMON[:1], COMMON[:1])).headline == "Identical: the same 1 token."
    by_text = view(told(COMMON, COMMON, ids=False))
    assert by_text.headline == "Identical, to the letter."
    assert "no token ids" in by_text.text


def test_p19_a_divergence_is_a_neutral_note_with_both_continuations() -> None:
    found = view(parted())
    assert found.headline == "They part at token 2, after 2 equal tokens."
    assert found.before == "The cat"
    assert found.sides is not None
    assert [(side.title, side.first, side.rest) for side in found.sides] == [
        ("Baseline", " sat", " on"),
        ("Speculative", " slept", "."),
    ]
    assert found.text.startswith("Neither text is wrong.")
    assert (found.margin, found.note) == (None, None)
    assert not re.search("error|wrong answer|fail", found.headline + found.text, re.IGNORECASE)


@pytest.mark.parametrize(
    ("at", "headline"),
    [(0, "They differ from the first token on."), (1, "They part at token 1, after 1 equal token.")],
)
def test_where_they_part_is_counted_in_equal_tokens(at: int, headline: str) -> None:
    rest = [(1, "a"), (2, "b"), (3, "c")]
    other = [*rest[:at], (9, "x"), *rest[at + 1 :]]
    assert view(told(rest, other)).headline == headline


def test_by_text_nothing_is_said_of_tokens() -> None:
    found = view(parted(ids=False))
    assert found.headline == "They part after 9 equal characters."  # "The cat s"
    assert found.note is not None
    assert "no token ids" in found.note
    assert view(told([(1, "a")], [(2, "b")], ids=False)).headline == "They differ from the first character on."


def test_a_mark_that_is_not_exact_says_so() -> None:
    events = parted()[:-1]
    merged = [event for event in events if getattr(event, "lane", None) != "speculative"]
    merged += [sent("speculative"), chunk("speculative", 11, 4, text="The cat slept.", token_ids=(1, 2, 5, 6))]
    found = view([*merged, ended("speculative", 50), over(70)])
    assert found.note is not None
    assert "approximate" in found.note


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (-0.5, -0.5, "60.7% and “slept” 60.7%: 0.000 apart in log-probability, a tie that rounding decides."),
        (-0.5, -0.625, "60.7% and “slept” 53.5%: 0.125 apart in log-probability, a near-tie that rounding can decide."),
        (-0.625, -0.5, "53.5% and “slept” 60.7%: 0.125 apart in log-probability, a near-tie that rounding can decide."),
        (-0.5, -2.0, "1.500 apart in log-probability, more than rounding usually turns over."),
        (-0.5, None, "the target gives “sat” 60.7%; the other one is not among the tokens that it lists."),
        (None, -0.5, "the target gives “slept” 60.7%; the other one is not among the tokens that it lists."),
        (None, None, "the target lists neither of the two"),
    ],
)
def test_how_close_it_was_in_words(one: float | None, other: float | None, said: str) -> None:
    found = view(parted(margin=(one, other))).margin
    assert found is not None
    assert found.startswith("Asked again after the race")
    assert said in found


def test_sampled_texts_are_expected_to_differ_and_why() -> None:
    found = view(parted(), temperature=0.7)
    assert found.headline == "Expected to differ: sampled at temperature 0.7."
    assert "draws its own tokens" in found.text
    assert found.sides is None


@pytest.mark.parametrize("scene", ["one failed", "both failed", "stopped", "interrupted", "cut off"])
def test_an_unfinished_lane_is_not_compared(scene: str) -> None:
    race, events = SCENES[scene]
    found = same_text(race, fold(events)[1])
    assert found is not None
    assert found.headline == "Not compared: a lane did not finish."


@pytest.mark.parametrize("scene", ["queued", "waiting", "streaming"])
def test_nothing_is_said_while_a_lane_writes(scene: str) -> None:
    race, events = SCENES[scene]
    assert same_text(race, fold(events)[1]) is None


@pytest.mark.parametrize(
    ("text", "shown"), [("\n", "⏎\n"), ("  ", "␣␣"), ("\t", "⇥"), (" x", " x"), ("", "[token 3, no text of its own]")]
)
def test_a_token_that_cannot_be_seen_is_made_visible(text: str, shown: str) -> None:
    found = view(told([*COMMON, (3, text), (4, "x")], [*COMMON, (5, "y")]))
    assert found.sides is not None
    assert found.sides[0].first == shown


# ---------------------------------------------------------------------------------------- on the page
def page(events: list[Event], **rest: Any) -> str:
    log, folded = fold(events)
    return RENDER.arena(board.arena(meta(**rest), folded, upto=log.head, now_ms=70), ticket="t")


def test_the_page_shows_both_and_marks_more_than_by_colour() -> None:
    text = page(parted(margin=(-0.5, -0.5)))
    assert 'id="insight-text"' in text
    assert '<mark><span class="unseen">first differing token: </span> sat</mark> on' in text
    assert '<mark><span class="unseen">first differing token: </span> slept</mark>.' in text
    assert "a tie that rounding decides" in text
    css = (Path(__file__).parents[2] / "static" / "app.css").read_text(encoding="utf-8")
    (rule,) = re.findall(r"\.quote mark \{(.+)\}", css)
    assert "underline" in rule
    assert "outline" in rule


def test_the_chip_leads_to_it() -> None:
    text = page(parted())
    assert '<a href="#insight-text">texts diverged at token 2</a>' in text


def test_model_text_stays_text() -> None:
    text = page(told([*COMMON, (3, "<img src=x onerror=alert(1)>")], [*COMMON, (5, "&lt;")]))
    assert "<img" not in text
    assert "&lt;img src=x onerror=alert(1)&gt;" in text
    assert "&amp;lt;" in text


def test_an_answer_that_ends_there_says_so() -> None:
    assert "[the answer ends here]" in page(told(COMMON, [*COMMON, (5, " slept")]))


# ---------------------------------------------------------------------------------------- through the whole app
def answering(last: tuple[int, str], **rest: Any) -> FakeVLLM:
    steps = [TOK("The", ids=(1,)), TOK(" cat", ids=(2,)), TOK(last[1], ids=(last[0],)), FIN("stop"), USE(3), DONE]
    return FakeVLLM(script=(ROLE, *steps), **rest)


def test_a_race_that_parts_asks_the_target_keeps_the_answer_and_replays_it(tmp_path: Path) -> None:
    base = answering((3, " sat"), ratings={3: -0.6931471805599453, 5: -0.6931471805599453, 9: -4.0})
    fast = answering((5, " slept"), speculative=4)
    with site(tmp_path, {"baseline": base, "speculative": fast}) as here:
        race = here.start(temperature=0)
        live = [message.json["type"] for message in here.events(race)[:-1]]
        found = here.get(f"/api/races/{race}").json()
        assert (found["status"], found["comparison"]["text"], found["comparison"]["diverges_at_token"]) == (
            "finished",
            "diverged",
            2,
        )
        assert found["divergence"] == {
            "basis": "token_ids",
            "token": 2,
            "character": 7,
            "before": "The cat",
            "baseline": {"token_id": 3, "first": " sat", "rest": "", "cut": False, "ended": False},
            "speculative": {"token_id": 5, "first": " slept", "rest": "", "cut": False, "ended": False},
            "approximate": False,
            "margin": {
                "index": 2,
                "baseline": {"token_id": 3, "logprob": -0.6931471805599453},
                "speculative": {"token_id": 5, "logprob": -0.6931471805599453},
                "difference": 0.0,
            },
        }
        assert live[-1] == "race.finished"
        assert live.count("race.margin") == 1
        (asked,) = base.rated
        assert asked.json["prompt"] == [*range(2, 22), 1, 2]  # the prompt as the server read it, then the common tokens
        assert (fast.rated, len(base.posts), len(fast.posts)) == ([], 1, 1)

        here.call(lambda: here.services.hub._runs.pop(race))  # from now on only the store has it
        here.until(lambda: here.services.hub.get(race) is None)
        here.until(lambda: here.get(f"/api/races/{race}").json()["divergence"] == found["divergence"])
        assert "a tie that rounding decides" in here.get(f"/races/{race}").text
        again = here.post(f"/races/{race}/replay", headers={"HX-Request": "true"}).text
        (played,) = set(re.findall(r"/races/(\w+)/stream", again))
        assert [m.json["type"] for m in here.events(played)[:-1]].count("race.margin") == 1
        assert len(base.rated) == 1


def test_a_race_whose_servers_send_no_ids_asks_nothing(tmp_path: Path) -> None:
    base = answering((3, " sat"), ratings={3: -0.7, 5: -0.7}, honour={"usage"})
    fast = answering((5, " slept"), honour={"usage"})
    with site(tmp_path, {"baseline": base, "speculative": fast}) as here:
        found = here.finished(temperature=0)
        assert (found["comparison"]["text"], found["comparison"]["diverges_at_token"]) == ("diverged", None)
        assert (found["divergence"]["basis"], found["divergence"]["margin"]) == ("text", None)
        assert base.rated == []
        sampled = here.finished(temperature=1)
        assert (sampled["comparison"]["text"], sampled["divergence"]) == ("not_comparable", None)
