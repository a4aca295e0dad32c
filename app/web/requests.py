"""What visitors ask for, checked: a form or a JSON body to a RaceSpec."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from app.errors import InvalidRace, TooLong
from app.race.fairness import new_salt
from app.race.types import RaceSpec, Sampling, Schedule
from app.race.workloads import Workload, Workloads
from app.settings import Settings


class RaceBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """JSON of POST /api/races. Nothing here can name a host, a model or a key."""

    workload: str | None = None
    prompt: str | None = None
    system: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    ignore_eos: bool | None = None
    schedule: Schedule = "together"
    fresh_cache: bool = False
    """Send both servers a salt of this race's own, so that neither reuses the prompt of another race."""


class SeriesBody(RaceBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """JSON of POST /api/series: a race, and how many times."""

    repeats: int | None = None


B = TypeVar("B", bound=RaceBody)

MOST_BY_PAGE = 10
MOST_BY_SCRIPT = 50

CUSTOM = Sampling(temperature=0.0, top_p=1.0, seed=0, max_tokens=256, ignore_eos=False)
"""Sampling of "Your prompt" where nothing else is said."""


def from_json_body(body: bytes) -> RaceBody:
    """The body of POST /api/races.

    Raises:
        InvalidRace: it is not JSON, or a field is unknown or of the wrong type.
    """
    return _decode(body, RaceBody)


def _decode(body: bytes, kind: type[B]) -> B:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise InvalidRace(*_place(str(error)), "See GET /api/workloads and the README for the fields") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRace(
            "body", f"is not JSON ({error})", 'Send a JSON object such as {"workload": "json-records"}'
        ) from None


def series_of_json(body: bytes) -> tuple[SeriesBody, int]:
    """The body of POST /api/series, and how many races it asks for.

    Raises:
        InvalidRace: as ``from_json_body``, or ``repeats`` is missing or out of range.
    """
    asked = _decode(body, SeriesBody)
    if asked.repeats is None:
        raise InvalidRace("repeats", "it is missing", f"Say how many races, 2 to {MOST_BY_SCRIPT}")
    if not 2 <= asked.repeats <= MOST_BY_SCRIPT:
        raise InvalidRace("repeats", f"{asked.repeats} is out of range", f"Use 2 to {MOST_BY_SCRIPT}")
    return asked, asked.repeats


def times_of(form: dict[str, str]) -> int:
    """How many races the page's form asks for.

    Raises:
        InvalidRace: ``repeats`` is no number, or out of range.
    """
    text = form.get("repeats", "").strip() or "1"
    if not (text.isascii() and text.isdecimal() and len(text) < 4):
        raise InvalidRace("repeats", f"{text[:40]!r} is not a number of races", f"Use 1 to {MOST_BY_PAGE}")
    if not 1 <= int(text) <= MOST_BY_PAGE:
        raise InvalidRace("repeats", f"{text} is out of range", f"Use 1 to {MOST_BY_PAGE}")
    return int(text)


def from_form(form: dict[str, str]) -> RaceBody:
    """The page's form; empty fields are not given.

    Raises:
        InvalidRace: a number is none, or the schedule is unknown.
    """
    given: dict[str, Any] = {
        name: value for name, value in form.items() if value != "" and name in RaceBody.__struct_fields__
    }
    for name, kind in (("temperature", float), ("top_p", float), ("seed", int), ("max_tokens", int)):
        if name in given:
            try:
                given[name] = kind(given[name])
            except ValueError:
                raise InvalidRace(name, f"{str(given[name])[:40]!r} is not a number", "Enter a number") from None
    for name in ("ignore_eos", "fresh_cache"):
        if name in given:
            given[name] = given[name] in ("on", "true", "1")
    try:
        return msgspec.convert(given, RaceBody)
    except msgspec.ValidationError as error:
        raise InvalidRace(*_place(str(error)), "Reload the page and try again") from None


def _place(text: str) -> tuple[str, str]:
    """Field and reason out of msgspec's "Expected `int`, got `str` - at `$.seed`" or "... unknown field `x`"."""
    reason, _, at = text.partition(" - at ")
    if "unknown field" in reason:
        return reason.split("`")[1][:60], "there is no such field"
    return at.strip("`").removeprefix("$").removeprefix(".") or "body", reason.replace("`", "")


def to_spec(body: RaceBody, workloads: Workloads, settings: Settings) -> RaceSpec:
    """The race that ``body`` asks for: a workload as it stands, or changed by the fields given beside it.

    Raises:
        InvalidRace, TooLong: names the field, the reason and the remedy.
    """
    workload = _workload(body.workload, workloads)
    prompt = body.prompt if body.prompt is not None else workload.prompt if workload else None
    if prompt is None:
        raise InvalidRace("prompt", "neither a prompt nor a workload is given", "Write a prompt or name a workload")
    if not prompt.strip():
        raise InvalidRace("prompt", "it is empty", "Write something for the models to go on from")
    system = body.system if body.system is not None else workload.system if workload else None
    for field, text in (("prompt", prompt), ("system", system or "")):
        if any("\ud800" <= char <= "\udfff" for char in text):
            raise InvalidRace(field, "it holds half a character (a lone surrogate)", "Type or paste the text again")
    length = len(prompt) + len(system or "")
    if length > settings.max_prompt_chars:
        reason = f"{length} characters, at most {settings.max_prompt_chars} are allowed"
        raise TooLong("prompt", reason, "Shorten the prompt")
    return RaceSpec(
        workload=workload.name if workload else None,
        prompt=prompt,
        system=system or None,
        sampling=_sampling(body, workload.sampling if workload else CUSTOM, settings),
        schedule=body.schedule,
        cache_salt=new_salt() if body.fresh_cache else None,
    )


def _workload(name: str | None, workloads: Workloads) -> Workload | None:
    if name is None:
        return None
    workload = workloads.get(name)
    if workload is None:
        known = ", ".join(w.name for w in workloads.workload)
        raise InvalidRace("workload", f"there is no workload {name[:60]!r}", f"Use one of {known}")
    return workload


def _sampling(body: RaceBody, base: Sampling, settings: Settings) -> Sampling:
    temperature = base.temperature if body.temperature is None else body.temperature
    top_p = base.top_p if body.top_p is None else body.top_p
    seed = base.seed if body.seed is None else body.seed
    max_tokens = min(base.max_tokens, settings.max_tokens) if body.max_tokens is None else body.max_tokens
    if not 0 <= temperature <= 2:
        raise InvalidRace("temperature", f"{temperature} is out of range", "Use 0 to 2")
    if not 0 < top_p <= 1:
        raise InvalidRace("top_p", f"{top_p} is out of range", "Use more than 0, at most 1")
    if not 0 <= seed < 2**63:
        raise InvalidRace("seed", f"{seed} is out of range", "Use a whole number from 0 on")
    if not 1 <= max_tokens <= settings.max_tokens:
        raise InvalidRace("max_tokens", f"{max_tokens} is out of range", f"Use 1 to {settings.max_tokens}")
    return Sampling(
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        max_tokens=max_tokens,
        ignore_eos=base.ignore_eos if body.ignore_eos is None else body.ignore_eos,
    )
