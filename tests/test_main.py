"""What the app is put together from, where no room of its own tests it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from app.main import version_of
from app.race.types import EndpointState


@pytest.mark.parametrize(
    ("baseline", "speculative", "told"),
    [
        ("0.32.0", "0.32.0", "0.32.0"),
        ("0.31.0", "0.32.0", "baseline 0.31.0, speculative 0.32.0"),
        ("0.31.0", None, "baseline 0.31.0, speculative not told"),
        (None, None, None),
    ],
)
def test_a_race_names_the_version_of_both_servers(
    baseline: str | None, speculative: str | None, told: str | None
) -> None:
    lanes: Any = {
        "baseline": SimpleNamespace(state=EndpointState(lane="baseline", version=baseline)),
        "speculative": SimpleNamespace(state=EndpointState(lane="speculative", version=speculative)),
    }
    assert version_of(lanes) == told
