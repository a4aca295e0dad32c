"""The text of single tokens, so that a chunk's text can be cut between them. Pure.

A chunk of one token tells that token's text; a server tells the rest when asked (vLLM's POST /detokenize). Nothing is
believed blindly: a chunk is cut only where the known texts meet the text that came. Where one token of a chunk is
unknown, it is what the others leave (the second half of an emoji, an end-of-text token without text).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

MOST_KNOWN = 65_536
"""Tokens remembered of one server."""
MOST_ASKED = 400
HALF = "\ufffd"
"""What a decoder writes for half a character: no text of its own."""

Lookup = Callable[[int], str | None]
"""Token id -> its text, None when unknown."""


class Piece(Struct, frozen=True, gc=False):
    """A piece of a chunk's text and the number of tokens that it is known to hold."""

    text: str
    tokens: int


def split(text: str, token_ids: Sequence[int], lookup: Lookup) -> list[Piece]:
    """``text`` cut into its tokens, from both ends as far as they are known; what is left in the middle stays one
    piece. Where the known texts contradict ``text`` it stays whole."""
    first, last, start, end = 0, len(token_ids), 0, len(text)
    front: list[Piece] = []
    back: list[Piece] = []
    while first < last and (known := lookup(token_ids[first])) is not None and text.startswith(known, start):
        front.append(Piece(known, 1))
        first, start = first + 1, start + len(known)
    while first < last and (known := lookup(token_ids[last - 1])) is not None and text.endswith(known, start, end):
        back.append(Piece(known, 1))
        last, end = last - 1, end - len(known)
    if first < last:
        return [*front, Piece(text[start:end], last - first), *reversed(back)]
    return [*front, *reversed(back)] if start == end else [Piece(text, len(token_ids))]


class Vocabulary:
    """Texts of tokens, as far as they are known."""

    def __init__(self) -> None:
        self._texts: dict[int, str | None] = {}

    def get(self, token_id: int) -> str | None:
        """Text of a token, None when unknown or not always the same."""
        return self._texts.get(token_id)

    def learn(self, token_id: int, text: str) -> None:
        """Note the text of a token; one that has had another text before is none that can be relied on."""
        if not text or HALF in text:
            return
        known = self._texts.get(token_id, text)
        if known != text:
            self._texts[token_id] = None
        elif token_id in self._texts or len(self._texts) < MOST_KNOWN:
            self._texts[token_id] = text

    def longest(self, count: int) -> list[tuple[int, str]]:
        """The tokens with the longest texts: marks that hardly occur inside another one."""
        known = [(token_id, text) for token_id, text in self._texts.items() if text and text.strip()]
        return sorted(known, key=lambda item: len(item[1]), reverse=True)[:count]


class Listener:
    """Learns from the chunks of one stream. The first one may have lost a leading space, and one after a chunk without
    text may hold text of that one: neither teaches anything."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._whole = False

    def hear(self, token_ids: Sequence[int] | None, text: str) -> None:
        """Take in a chunk."""
        if self._whole and token_ids and len(token_ids) == 1:
            self._vocabulary.learn(token_ids[0], text)
        self._whole = bool(text and token_ids)


class Shared:
    """The vocabulary of a race: each lane's own, and the other lane's for as long as the two never contradict."""

    def __init__(self, lanes: Sequence[str]) -> None:
        self._lanes = {lane: Vocabulary() for lane in lanes}
        self._listeners = {lane: Listener(own) for lane, own in self._lanes.items()}
        self._alike = True

    def hear(self, lane: str, token_ids: Sequence[int] | None, text: str) -> None:
        """A chunk of one lane."""
        self._listeners[lane].hear(token_ids, text)
        if token_ids and len(token_ids) == 1:
            self._compare(token_ids[0])

    def again(self, lane: str) -> None:
        """The stream of a lane begins (again)."""
        self._listeners[lane] = Listener(self._lanes[lane])

    def tell(self, lane: str, token_ids: Sequence[int], texts: Sequence[str]) -> None:
        """What the server of one lane says its tokens are."""
        for token_id, text in zip(token_ids, texts, strict=False):
            self._lanes[lane].learn(token_id, text)
            self._compare(token_id)

    def _compare(self, token_id: int) -> None:
        texts = {text for own in self._lanes.values() if (text := own.get(token_id)) is not None}
        self._alike = self._alike and len(texts) < 2

    def lookup(self, lane: str) -> Lookup:
        """Texts of tokens for ``lane``, from what all lanes have taught so far."""
        own = self._lanes[lane]
        others = [other for name, other in self._lanes.items() if name != lane] if self._alike else []

        def text_of(token_id: int) -> str | None:
            text = own.get(token_id)
            for other in others:
                text = other.get(token_id) if text is None else text
            return text

        return text_of


# --- asking the server ------------------------------------------------------------------------------


def between(mark: int, token_ids: Sequence[int]) -> list[int]:
    """Tokens to have decoded in one go: each of ``token_ids`` with ``mark`` before and after, so that it is decoded
    inside a text and the answer can be taken apart. The first mark may lose a leading space."""
    return [mark, mark, *(token for token_id in token_ids for token in (token_id, mark))]


def apart(decoded: str, mark_text: str, token_ids: Sequence[int]) -> dict[int, str]:
    """Texts of ``token_ids`` in the decoded ``between``; empty when it does not come apart as it was put together."""
    parts = decoded.split(mark_text)
    head = parts[: -len(token_ids) - 1]
    if parts[-1] or head not in (["", ""], [mark_text.lstrip()]):
        return {}
    return dict(zip(token_ids, parts[len(head) : -1], strict=True))
