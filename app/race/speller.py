"""What a lane's server is asked about the text of single tokens: POST /detokenize, after both lanes have ended.

It generates nothing, counts in no figure, and a server without it is asked once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, cast

import anyio
import httpx2
import msgspec

from app.race.events import LaneVocabulary
from app.race.failures import UpstreamError
from app.race.spelling import HALF, MOST_ASKED, Listener, Vocabulary, apart, between
from app.race.types import Chunk, LaneName

ASK_S = 2.0
MARKS_TRIED = 2
WITHOUT = (404, 405, 501)

Post = Callable[[str, dict[str, Any], float], Awaitable[httpx2.Response]]
"""POST below the server root: path, body, seconds. Raises UpstreamError."""


class Speller:
    """The vocabulary of one server, kept for its life."""

    def __init__(self, post: Post) -> None:
        self.vocabulary = Vocabulary()
        self._post = post
        self._able = True
        self._asked: set[int] = set()

    async def ask(self, token_ids: Iterable[int], model: str) -> None:
        """Learn the texts of those ``token_ids`` that are unknown, in two seconds at most. Never raises."""
        unknown = [i for i in token_ids if self.vocabulary.get(i) is None and i not in self._asked][:MOST_ASKED]
        if not unknown or not self._able:
            return
        with anyio.move_on_after(ASK_S):
            marks = self.vocabulary.longest(MARKS_TRIED) or await self._first(unknown[:3], model)
            for mark, text in marks:
                self.vocabulary.learn(mark, text)
                rest = [i for i in unknown if i != mark]
                found = apart(await self._decode(between(mark, rest), model), text, rest) if rest else {}
                for token_id, known in found.items():
                    self.vocabulary.learn(token_id, known)
                if found:
                    self._asked.update(unknown)
                    return

    async def _first(self, token_ids: Sequence[int], model: str) -> list[tuple[int, str]]:
        """A mark, when no token is known yet: what a token adds after itself is its text inside a text."""
        for token_id in token_ids:
            once = await self._decode([token_id], model)
            twice = await self._decode([token_id, token_id], model)
            text = twice[len(once) :] if twice.startswith(once) else ""
            if text.strip() and HALF not in text:
                return [(token_id, text)]
        return []

    async def _decode(self, token_ids: Sequence[int], model: str) -> str:
        """The text of ``token_ids``, empty when the server does not say."""
        if not self._able:
            return ""
        try:
            answer = await self._post("/detokenize", {"model": model, "tokens": list(token_ids)}, ASK_S)
            if answer.status_code != 200:
                self._able = answer.status_code not in WITHOUT
                return ""
            body: Any = msgspec.json.decode(answer.content)
        except (UpstreamError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return ""
        text = cast("dict[str, Any]", body).get("prompt") if isinstance(body, dict) else None
        return text if isinstance(text, str) else ""


class LaneSpelling:
    """What one stream needs of its server's vocabulary: the texts of tokens that came several in a chunk, each told
    once."""

    def __init__(self, lane: LaneName, speller: Speller) -> None:
        self._lane: LaneName = lane
        self._speller = speller
        self._listener = Listener(speller.vocabulary)
        self._told: set[int] = set()
        self._open: dict[int, None] = {}

    def hear(self, chunk: Chunk, at_ms: float) -> LaneVocabulary | None:
        """Take in a chunk; what has to be told before it, None when there is nothing."""
        ids = chunk.token_ids
        self._listener.hear(ids, chunk.text or chunk.reasoning)
        if ids is None or len(ids) < 2:
            return None
        fresh = [i for i in ids if i not in self._told]
        self._open.update(dict.fromkeys(fresh))
        return self._tell(fresh, at_ms) if fresh else None

    async def settle(self, model: str, now_ms: Callable[[], float]) -> LaneVocabulary | None:
        """Ask the server for what is still unknown; what has to be told, None when there is nothing."""
        await self._speller.ask(self._open, model)
        return self._tell(list(self._open), now_ms())

    def _tell(self, token_ids: Sequence[int], at_ms: float) -> LaneVocabulary | None:
        get = self._speller.vocabulary.get
        known = {i: text for i in token_ids if (text := get(i)) is not None}
        if not known:
            return None
        self._told.update(known)
        for token_id in known:
            self._open.pop(token_id, None)
        return LaneVocabulary(t_ms=at_ms, lane=self._lane, ids=tuple(known), texts=tuple(known.values()))
