"""vLLM's Prometheus counters, read from the text of /metrics. What they grew by is in app/race/growth.py. Pure.

Names are matched whole, with and without ``_total``, and never by prefix: ``..._created`` is a timestamp (P11, P12).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite, nan

from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families

DRAFTS = "vllm:spec_decode_num_drafts"
DRAFTED = "vllm:spec_decode_num_draft_tokens"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens"
PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos"
GENERATED = "vllm:generation_tokens"
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
_SPECULATION = "vllm:spec_decode_"
_NAMES = (DRAFTS, DRAFTED, ACCEPTED, PER_POSITION, GENERATED)
_VALUE_OF = {name: name for name in _NAMES} | {f"{name}_total": name for name in _NAMES}
_CREATED_OF = {f"{name}_created": name for name in _NAMES}

SeriesKey = tuple[str, tuple[tuple[str, str], ...]]


class Counters(Struct, frozen=True):
    """One reading of /metrics: value and, where exposed, creation time (Unix seconds) per series; ``gauges`` go up and
    down and have no growth."""

    values: dict[SeriesKey, float]
    created: dict[SeriesKey, float]
    gauges: dict[SeriesKey, float] = {}
    plain_vllm: bool = False
    """The page has families of vLLM's, and none about speculation, whatever its name."""

    @property
    def told(self) -> bool | None:
        """Whether the server speculates; None on a page that cannot tell: another server's, a relay's, an empty one."""
        return True if self.speculating else False if self.plain_vllm else None

    @property
    def speculating(self) -> bool:
        """vLLM exposes the spec_decode families from boot if and only if it speculates."""
        return any(key[0] in (DRAFTS, DRAFTED, ACCEPTED) for key in self.values)

    @property
    def generated(self) -> int | None:
        """Tokens that the server has put out since its start, None where it does not tell."""
        return _whole_sum(value for key, value in self.values.items() if key[0] == GENERATED)

    @property
    def running(self) -> int | None:
        """Requests that the server is working on, all engines together; None where it does not tell."""
        return _whole_sum(value for key, value in self.gauges.items() if key[0] == RUNNING)

    @property
    def waiting(self) -> int | None:
        """Requests that wait inside the server; None where it does not tell."""
        return _whole_sum(value for key, value in self.gauges.items() if key[0] == WAITING)

    @property
    def num_speculative_tokens(self) -> int | None:
        """k is the number of ``position`` series of one engine, None where they are not numbered 0..k-1."""
        found = {position(key) for key in self.values if key[0] == PER_POSITION}
        return len(found) if found and found == set(range(len(found))) else None


def _whole_sum(values: Iterable[float]) -> int | None:
    found = list(values)
    return round(sum(found)) if found and all(isfinite(value) and value >= 0 for value in found) else None


def parse(text: str) -> Counters:
    """Read the Prometheus text format.

    Raises:
        ValueError: the text is not that format (an HTML page, a truncated body).
    """
    values: dict[SeriesKey, float] = {}
    created: dict[SeriesKey, float] = {}
    gauges: dict[SeriesKey, float] = {}
    try:
        families = list(text_string_to_metric_families(text))
    except (IndexError, KeyError, TypeError, AttributeError, RecursionError) as error:
        # the parser's own way of saying that a line is broken
        raise ValueError(f"not the Prometheus format ({type(error).__name__})") from None
    if not families and text.strip():
        raise ValueError("no metric family in the answer")
    for family in families:
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            if sample.name in _VALUE_OF:
                _put(values, (_VALUE_OF[sample.name], labels), float(sample.value))
            elif sample.name in _CREATED_OF:
                _put(created, (_CREATED_OF[sample.name], labels), float(sample.value))
            elif sample.name in (RUNNING, WAITING):
                gauges[(sample.name, labels)] = float(sample.value)
    names = [family.name for family in families]
    vllm = any(name.startswith("vllm:") for name in names)
    return Counters(values, created, gauges, vllm and not any(name.startswith(_SPECULATION) for name in names))


def _put(into: dict[SeriesKey, float], key: SeriesKey, value: float) -> None:
    """Note a value; a series that comes twice with two values (two pages put together by a relay) has none."""
    into[key] = value if into.get(key, value) == value else nan


def position(key: SeriesKey) -> int | None:
    """The draft position of a series, from 0; None where the label is no such number ("01", "x", none at all)."""
    value = dict(key[1]).get("position", "")
    plain = value.isascii() and value.isdecimal() and len(value) < 4
    return int(value) if plain and str(int(value)) == value else None
