"""Below the first screen: the numbers behind the scoreboard, turned into views. Pure; it computes no figure.

One view a room: acceptance by position, the same text or not, what could spoil the result, repeats.
"""

from __future__ import annotations

from app.race.scoreboard import Scoreboard
from app.race.series import Series
from app.race.summary import RaceMeta
from app.web import spreads
from app.web.conditions import conditions
from app.web.drafts import drafts
from app.web.sametext import same_text
from app.web.views import InsightView


def insight(meta: RaceMeta, board: Scoreboard, now_ms: float, *, series: Series | None = None) -> InsightView | None:
    """Everything below the fold at ``now_ms`` (race clock); while the race waits in the queue, at most its series."""
    repeated = None if series is None else spreads.series_view(series)
    if board.status == "queued":
        return None if repeated is None else InsightView(race=meta.id, over=False, series=repeated)
    return InsightView(
        race=meta.id,
        over=board.over,
        same_text=same_text(meta, board),
        drafts=drafts(board, now_ms),
        conditions=conditions(meta, board, now_ms),
        series=repeated,
    )
