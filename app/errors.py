"""The errors that people see. Every one names the field, the reason and the remedy.

    SpecraceError
    ├── SettingsError       a flag, variable or file is wrong        command line: exit 2
    │   └── ProfileError    a profile is unknown or malformed        command line: exit 2
    ├── InvalidRace         a race asked for cannot be run           HTTP 422
    │   └── TooLong         prompt or body over the limit            HTTP 413
    ├── UnknownRace         no such race                             HTTP 404
    ├── NotAllowed          the presenter's token is missing         HTTP 401/403
    ├── Busy                queue full or too many requests          HTTP 429, Retry-After
    ├── EndpointsDown       neither server answers                   HTTP 503
    └── EngineError         an engine could not be set up or started shown on the page, the app runs on

What goes wrong inside one lane is no exception here: it is an event (types.LaneError) and never stops
the other lane.
"""

from __future__ import annotations


class SpecraceError(Exception):
    """Base of all. ``field`` is what is wrong, ``reason`` why, ``remedy`` what to do."""

    status = 500

    def __init__(self, field: str, reason: str, remedy: str) -> None:
        super().__init__(f"{field}: {reason}. {remedy}")
        self.field = field
        self.reason = reason
        self.remedy = remedy


class SettingsError(SpecraceError):
    """A flag, environment variable or line of specrace.toml is wrong."""


class ProfileError(SettingsError):
    """A profile is unknown or malformed."""


class InvalidRace(SpecraceError):
    """The race asked for cannot be run as asked."""

    status = 422


class TooLong(InvalidRace):
    """Prompt or body is over the limit."""

    status = 413


class UnknownRace(SpecraceError):
    """There is no race with this id."""

    status = 404


class NotAllowed(SpecraceError):
    """Only the presenter may do this."""

    status = 403


class Busy(SpecraceError):
    """The queue is full, or this visitor asks too often. ``retry_after_s`` goes into Retry-After."""

    status = 429

    def __init__(self, field: str, reason: str, remedy: str, *, retry_after_s: int) -> None:
        super().__init__(field, reason, remedy)
        self.retry_after_s = retry_after_s


class EndpointsDown(SpecraceError):
    """Neither server answers."""

    status = 503


class EngineError(SpecraceError):
    """An engine could not be set up or started."""
