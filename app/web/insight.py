"""Below the first screen: the numbers behind the scoreboard, turned into views. Pure; it computes no figure.

One view a room: acceptance by position, the same text or not, what could spoil the result, repeats.
"""

from __future__ import annotations

from app.race.scoreboard import Scoreboard
from app.race.summary import RaceMeta
from app.web.views import InsightView


def insight(meta: RaceMeta, board: Scoreboard, now_ms: float) -> InsightView | None:
    """Everything below the fold at ``now_ms`` (race clock); None while the race waits in the queue."""
    if board.status == "queued":
        return None
    return InsightView(race=meta.id, over=board.over)
