"""Texts that make a result doubtful: garbage that no draft can guess, and a loop that every draft guesses. Pure.

    repetition_loop   acceptance rate >= 0.8, and the answer ends in a block of tokens repeated to the letter at least
                      3 times, over at least 32 tokens and 40 % of the answer
    garbled_text      acceptance rate < 0.1, the speculative answer is garbled and the baseline's is not

A list with numbers that count on, or two versions of a text, is no loop: the block must return unchanged. 3 times,
because a quotation or a refrain returns twice; 32 tokens, so that a ruled line or a row of dots in a short answer is
none; 40 %, so that it weighs in the acceptance; 0.8, because below it the draft did not live off the loop.

A text is garbled when, over at least 24 words, one of these holds (a word: a run of characters that are not spaces):

    broken characters   at least 2 % replacement, unassigned, private-use or control characters
    mixed scripts       letters change from one script to another at every tenth word or oftener, among three or more
                        scripts (Chinese, Japanese and Korean count as one: they are written together)
    glued pieces        three words in ten go on with a capital after a small letter, or have other signs between
                        their letters: pieces of words drawn at random

Program text, tables or a list of greetings in many languages have some of these honestly: hence only at an acceptance
that is next to nothing, and only when the baseline's answer to the same prompt has none of them. Tried on what vLLM
0.32 on a CPU writes without its repair (tests/fixtures/quality_texts.json): three prompts of four are told, at
acceptance rates of 0.01 to 0.06; the fourth has so few drafts that its text is nearly readable.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Hashable, Sequence
from functools import lru_cache
from itertools import pairwise

from app.race.divergence import Answer
from app.race.types import Caveat

LOOP_ACCEPTANCE = 0.8
LOOP_REPEATS = 3
LOOP_TOKENS = 32
LOOP_SHARE = 0.4

GARBLED_ACCEPTANCE = 0.1
GARBLED_WORDS = 24
BROKEN_SHARE = 0.02
SWITCH_SHARE = 0.1
SWITCH_SCRIPTS = 3
GLUED_SHARE = 0.3

_BROKEN = {"Cn", "Co", "Cs", "Cc"}
_GLUED = re.compile(r"[^\W\d_][^\w\s'’.,:;!?)\]}/-]+[^\W\d_]|[a-z][A-Z]|[^\W\d_]\d[^\W\d_]")
_TOGETHER = {"CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO"}


def doubts(baseline: Answer, speculative: Answer, acceptance_rate: float | None) -> tuple[Caveat, ...]:
    """The caveats that follow from the two texts; none without an acceptance rate."""
    if acceptance_rate is None:
        return ()
    if acceptance_rate >= LOOP_ACCEPTANCE and loops(speculative.token_ids or _words_and_signs(speculative.text)):
        return ("repetition_loop",)
    if acceptance_rate < GARBLED_ACCEPTANCE and garbled(speculative.text) and _is_sound(baseline.text):
        return ("garbled_text",)
    return ()


def loops(tokens: Sequence[Hashable]) -> bool:
    """Whether ``tokens`` end in a block that is repeated to the letter."""
    length = len(tokens)
    # the Z function of the reversed text: how many tokens before the end repeat those one period later
    for period, matched in enumerate(_z(tokens[::-1])):
        covered = matched + period
        if not period or covered < LOOP_REPEATS * period or covered < LOOP_TOKENS:
            continue
        if covered >= LOOP_SHARE * length:
            return True
    return False


def _z(text: Sequence[Hashable]) -> list[int]:
    """For each place, how long the text from there on agrees with its beginning; linear in the length."""
    found = [0] * len(text)
    left = right = 0
    for i in range(1, len(text)):
        same = min(right - i, found[i - left]) if i < right else 0
        while i + same < len(text) and text[same] == text[i + same]:
            same += 1
        found[i] = same
        if i + same > right:
            left, right = i, i + same
    return found


def garbled(text: str) -> bool:
    """Whether a text is no text, by one of three signs."""
    words = text.split()
    if len(words) < GARBLED_WORDS:
        return False
    broken = sum(char == "\ufffd" or (char not in "\t\n\r" and unicodedata.category(char) in _BROKEN) for char in text)
    if broken >= BROKEN_SHARE * len(text):
        return True
    scripts = [script for word in words for script in _scripts(word)]
    switches = sum(one != other for one, other in pairwise(scripts))
    if len(set(scripts)) >= SWITCH_SCRIPTS and switches >= SWITCH_SHARE * len(words):
        return True
    return sum(_GLUED.search(word) is not None for word in words) >= GLUED_SHARE * len(words)


def _is_sound(text: str) -> bool:
    """Whether there is enough text to compare with, and it is not garbled itself."""
    return len(text.split()) >= GARBLED_WORDS and not garbled(text)


def _scripts(word: str) -> list[str]:
    """The scripts that the letters of a word run through."""
    runs: list[str] = []
    for char in word:
        if char.isalpha():
            script = _script(char)
            if not runs or runs[-1] != script:
                runs.append(script)
    return runs


@lru_cache(maxsize=4096)
def _script(char: str) -> str:
    """The first word of a letter's name is its script: LATIN, CYRILLIC, DEVANAGARI."""
    name = unicodedata.name(char, "?").split()[0]
    return "EAST ASIAN" if name in _TOGETHER else name


def _words_and_signs(text: str) -> list[str]:
    return re.findall(r"\w+|\s+|[^\w\s]", text)
