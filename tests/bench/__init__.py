"""What the app costs, beside the least that could do the same job. ``make bench`` runs it.

    source ──► app    ──► viewer      two streams in, HTML frames at most ~20 times a second out
    source ──► relay  ──► viewer      the same two streams, their bytes passed on unread

The source writes the time of sending (CLOCK_MONOTONIC) into each token's text and the viewer, on the same
machine, reads it there: the added time is measured from outside, and a lost or repeated token is noticed.
"""
