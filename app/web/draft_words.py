"""Sentences of the acceptance panel: why there is nothing to show, and what its figures are called. No markup."""

from __future__ import annotations

from app.race.types import CounterDoubt

FLAG = "Start vLLM 0.28 or newer with --per-request-spec-decode-metrics detailed: it sends the counts with each answer."

NOTHING: dict[str, tuple[str, str]] = {
    "not_speculating": (
        "This server is not speculating",
        "It has no counters of drafts, so there is nothing to accept. Start it with --speculative-config to see some.",
    ),
    "no_token": ("Nothing to show yet", "Drafts are counted from the second token on."),
    "no_draft": ("No draft accepted yet", "Every chunk so far brought one token, as without a draft."),
    "no_drafts_ran": (
        "No drafts ran",
        (
            "The server is set up to speculate, but proposed nothing in this race: n-gram and suffix drafts need text "
            "that repeats. Acceptance does not exist then; it is not zero."
        ),
    ),
    "unfinished": (
        "No record",
        "Servers send their counts at the end of an answer, and this one did not come to it.",
    ),
    "no_record": (
        "No record from the server",
        f"It sent no counts with its answer, and its /metrics told nothing of drafts. {FLAG}",
    ),
}
"""Why there is no acceptance to show, in a few words and in a sentence."""

COUNTER_DOUBTS: dict[CounterDoubt, tuple[str, str]] = {
    "reset": (
        "Counters went down in the race",
        "The server restarted, or something between it and Specrace reset its /metrics. Race again.",
    ),
    "unreadable": (
        "Counters that are no numbers",
        f"Its /metrics could not be read after the race, or a value in it is no count, or comes twice. {FLAG}",
    ),
    "incomplete": (
        "Counters are missing",
        (
            "Acceptance needs drafted and accepted tokens of every engine, before and after the race, and the server's "
            f"/metrics does not have all of them. {FLAG}"
        ),
    ),
    "contradictory": (
        "Counters contradict each other",
        f"The numbers of drafts in the server's /metrics cannot belong to one moment. {FLAG}",
    ),
    "late": (
        "Counters came too late",
        f"Two seconds after the answer the server's /metrics had not counted it yet. {FLAG}",
    ),
}
"""Why counters say nothing."""

TITLES = {
    "acceptance": "Acceptance rate",
    "length": "Mean acceptance length",
    "effective": "Effective tokens per pass",
    "share": "Share of output drafted",
    "alpha": "Per-token alpha",
    "steps": "Steps with a draft",
    "drafted": "Drafted",
    "accepted": "Accepted",
}
"""The figures; each is an About of app/web/words.py."""
