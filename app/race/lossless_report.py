"""The result of ``specrace check --lossless`` in lines for a terminal."""

from __future__ import annotations

from app.race.lossless import POWER, Compared, Drafts, Greedy, Lossless
from app.race.sampling import GREEDY_TOKENS

REMEDY = (
    "Check that both servers have the same target model, dtype and vLLM version. If they have, sampled speculation is "
    "broken there: race at temperature 0 only, or repair the server. vLLM 0.32.0 on a CPU needs the plugin of "
    "deploy/engine/vllm-shim (specrace up installs it)."
)
UNTESTED_REMEDY = (
    "See that both servers answer and that the speculative one was started with --speculative-config and "
    "--per-request-spec-decode-metrics detailed, and check again."
)


def lines(result: Lossless) -> list[str]:
    """Verdict first, then what it rests on."""
    told = [f"lossless: {headline(result)}"]
    if (cure := remedy(result)) is not None:
        told.append(f"  {cure}")
    if result.drafts is not None:
        told.append(f"  Drafts: {_drafts(result.drafts)}")
    if result.tests:
        told += _tests(result)
    if result.greedy is not None:
        told.append(f"  Temperature 0: {_greedy(result.greedy, result.unit)}")
    if result.seconds is not None:
        told.append(f"  Took {result.seconds:.0f} s.")
    return told


def headline(result: Lossless) -> str:
    """The verdict in one line. Never more than was found: samples prove nothing equal."""
    if result.verdict == "untested":
        return f"NOT TESTED: {result.reason}"
    of = f"in {result.samples:,} samples of each server"
    if result.verdict == "difference":
        return f"DIFFERENCE FOUND {of}: {result.flagged} of {result.tests} tests below p = {result.alpha:g}"
    return f"no difference found {of} (which is no proof that there is none)"


def remedy(result: Lossless) -> str | None:
    """What to do, None when there is nothing to do."""
    return {"difference": REMEDY, "untested": UNTESTED_REMEDY, "no_difference": None}[result.verdict]


def _drafts(drafts: Drafts) -> str:
    rate = "n/a" if drafts.acceptance_rate is None else f"{100 * drafts.acceptance_rate:.1f} %"
    told = f"{drafts.drafted:,} draft tokens, acceptance rate {rate}"
    if drafts.decided is None:
        return f"{told}."
    return f"{told}; {100 * drafts.decided:.0f} % of the sampled tokens came from a step with a draft."


def _tests(result: Lossless) -> list[str]:
    """How sharp the test was, and the most suspicious places."""
    smallest = "n/a" if result.smallest_p is None else f"{result.smallest_p:.2g}"
    by = f"{result.unit} by {result.unit}, and whole answers"
    told = [f"  Tests: {result.tests} by permutation ({by}); smallest p after Holm's correction {smallest}."]
    if result.detectable is None:
        told.append("  Sharpness: too few samples to find even a large difference: raise --samples.")
    else:
        low, high = result.detectable
        told.append(
            f"  Sharpness: with {100 * POWER:.0f} % probability, a difference at one {result.unit} shows from a total "
            f"variation of {low:.2f} to {high:.2f} upwards (by {result.unit}); smaller ones need more --samples."
        )
    shown = result.worst if result.verdict == "difference" else result.worst[:1]
    told.append("  Most different:")
    for one in shown:
        told += _compared(one, result.unit)
    return told


def _compared(one: Compared, unit: str) -> list[str]:
    at = f"{one.probe}, whole answer" if one.token is None else f"{one.probe}, {unit} {one.token}"
    p = f"p {one.p_value:.2g}, corrected {one.corrected:.2g}"
    if one.total_variation is None or one.tv_expected is None:
        return [f"    {at}: {p}"]
    told = [f"    {at}: total variation {one.total_variation:.2f} ({one.tv_expected:.2f} by chance alone), {p}"]
    for share in one.shares:
        base, spec = (f"{100 * value:5.1f} %" for value in (share.baseline, share.speculative))
        told.append(f"      {share.token:<22} {base} baseline  {spec} speculative")
    return told


def _greedy(greedy: Greedy, unit: str) -> str:
    told = f"{greedy.identical} of {greedy.answers} answers identical over {GREEDY_TOKENS} tokens"
    if not greedy.diverged:
        return f"{told}."
    where = ", ".join(f"{probe} from {unit} {at}" for probe, at in greedy.diverged)
    return f"{told}; parted: {where}. Near ties flip with the shape of a batch: no fault by itself."
