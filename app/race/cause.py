"""Why speculation gained little or nothing: one cause, taken from what was measured. Pure.

With tau tokens per pass of the target and r the cost of such a pass in plain steps, decode speedup = tau / r. Below
1.05x the reasons are looked at in this order:

    prefill_bound    decode speedup >= 1.05: writing did gain, the time to the first token ate it (Amdahl); not named
                     where a cold start or a prefix cache on one side may have made that time
    low_acceptance   tau is farther from what it would take than r is
    costly_steps     r is farther; on a device that both servers used at once it is shared_device instead

What it would take: a step at a usual cost is at most USUAL_STEP_COST plain steps, and at that cost it takes NEEDED_TAU
tokens per pass. "Farther" compares factors: NEEDED_TAU / tau against r / USUAL_STEP_COST; low_acceptance when they are
equal. A pass that brings NEEDED_TAU tokens or more is therefore never blamed on acceptance: r must be above usual then.
"""

from __future__ import annotations

from app.race.types import Cause

GAIN = 1.05
"""Below this speedup the page says why."""
USUAL_STEP_COST = 1.31
"""Plain steps that a step with drafts costs at batch 1: the highest figure published for Llama-3.1-8B on one H100
(SpecDecode-Bench, arXiv 2601.11580: EAGLE with k=3 1.31, n-gram 1.01)."""
NEEDED_TAU = GAIN * USUAL_STEP_COST
"""Tokens per pass that give GAIN at a usual cost."""


def cause(
    speedup: float | None,
    decode: float | None,
    tau: float | None,
    step_cost: float | None,
    *,
    shared: bool = False,
    ttft_spoilt: bool = False,
) -> Cause | None:
    """The cause of a ``speedup`` below 1.05; None where there is none to name, or a number for it is missing.

    ``shared``: both lanes ran at once on one device, as far as is known. ``ttft_spoilt``: the times to the first token
    are not comparable.
    """
    if speedup is None or speedup >= GAIN or decode is None:
        return None
    if decode >= GAIN:
        return None if ttft_spoilt else "prefill_bound"
    if tau is None or step_cost is None:
        return None
    if NEEDED_TAU / tau >= step_cost / USUAL_STEP_COST:
        return "low_acceptance"
    return "shared_device" if shared else "costly_steps"
