"""The /metrics page of a fake vLLM: a real recording with the counters that matter made to move."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from prometheus_client.utils import floatToGoString

from tests.fakes.fixtures import read
from tests.fakes.script import Move

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"
DRAFTS, DRAFT_TOKENS, ACCEPTED, PER_POS = (
    f"vllm:spec_decode_num_{name}" for name in ("drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos")
)


@functools.cache
def _recorded(*, speculative: bool) -> tuple[str, ...]:
    name = "speculative_before" if speculative else "baseline_before"
    return tuple(read(f"metrics/{name}.txt").decode().splitlines())


@dataclass
class Metrics:
    """``text`` replaces the page: one string, a list (one item a scrape, the last one stays), or a function.

    ``suffix`` is how this version of vLLM ends its counters' names. ``lag_s`` lets growth show late.
    ``mode`` "html", "404", "401", "500" and "hang" are the ways in which a page is not there. ``comments``
    False leaves the HELP and TYPE lines out, as some relays do. ``prefix_caching`` is a label of cache_config_info.
    """

    model: str = "m"
    spec_k: int | None = None
    engines: Sequence[str] = ("0",)
    suffix: str = "_total"
    lag_s: float = 0.0
    delay_s: float = 0.0
    mode: Literal["ok", "404", "401", "500", "html", "hang"] = "ok"
    text: str | list[str] | Callable[[], str] | None = None
    auto: bool = True
    comments: bool = True
    prefix_caching: bool = True
    scrapes: int = 0
    values: dict[str, float] = field(default_factory=dict)
    _pending: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    _generated: int = 0
    _accepted: list[int] = field(default_factory=list)

    def _labels(self, engine: str, more: str = "") -> str:
        return f'{{engine="{engine}",model_name="{self.model}"{more}}}'

    def grow(self, growth: dict[str, float], after_s: float | None = None) -> None:
        """Let the series (``name{labels}``, names ending in _total) grow, visible after ``lag_s``."""
        lag_s = self.lag_s if after_s is None else after_s
        if lag_s > 0:
            self._pending.append((time.monotonic() + lag_s, growth))
        else:
            self._apply(growth)

    def _apply(self, growth: dict[str, float]) -> None:
        if not self.values:
            self.values = self._start_values()
        for series, n in growth.items():
            self.values[series] = self.values.get(series, 0.0) + n

    def move(self, m: Move) -> None:
        self.grow(self._growth(m))

    def _growth(self, m: Move) -> dict[str, float]:
        at = self._labels(m.engine)
        growth = {
            f"{DRAFTS}_total{at}": m.drafts,
            f"{DRAFT_TOKENS}_total{at}": m.draft_tokens,
            f"{ACCEPTED}_total{at}": m.accepted,
            f"vllm:generation_tokens_total{at}": m.generated,
        }
        for position, count in enumerate(m.per_pos):
            labels = self._labels(m.engine, f',position="{position}"')
            growth[f"{PER_POS}_total{labels}"] = count
        return {series: n for series, n in growth.items() if n}

    def step(self, tokens: int, *, first: bool) -> None:
        """One engine step that brought ``tokens`` tokens; every step but the first had a draft."""
        if not self.auto or not tokens:
            return
        drafted = self.spec_k if self.spec_k and not first else 0
        accepted = min(tokens - 1, drafted)
        if self.lag_s > 0:
            self.move(Move(1 if drafted else 0, drafted, accepted, (1,) * accepted, generated=tokens))
            return
        self._generated += tokens
        if drafted:
            self._accepted.append(accepted)

    def _flush(self) -> None:
        """Steps are only counted while a stream runs; here they become counters."""
        if self._generated:
            steps, k = self._accepted, self.spec_k or 0
            per_pos = tuple(sum(1 for a in steps if a > i) for i in range(k))
            self._apply(self._growth(Move(len(steps), k * len(steps), sum(steps), per_pos, generated=self._generated)))
            self._generated = 0
            self._accepted = []

    def request_done(self, prompt_tokens: int, reason: str) -> None:
        if self.auto:
            success = f'vllm:request_success_total{{engine="0",finished_reason="{reason}",model_name="{self.model}"}}'
            self.grow({f"vllm:prompt_tokens_total{self._labels('0')}": prompt_tokens, success: 1})

    def reset(self) -> None:
        """What a restart of the server does to its counters."""
        self.values = dict.fromkeys(self._start_values(), 0.0)
        self._pending.clear()
        self._generated = 0
        self._accepted = []

    def _start_values(self) -> dict[str, float]:
        values: dict[str, float] = {}
        for line in self._lines():
            if not line.startswith("#"):
                series, _, value = line.rpartition(" ")
                values[series] = float(value)
        return values

    def _lines(self) -> list[str]:
        lines: list[str] = []
        for raw in _recorded(speculative=self.spec_k is not None):
            line = raw.replace('model_name="gemma"', f'model_name="{self.model}"')
            if line.startswith(PER_POS) and int(line.split('position="')[1].split('"')[0]) >= (self.spec_k or 0):
                continue
            if line.startswith("vllm:cache_config_info{") and not self.prefix_caching:
                line = line.replace('enable_prefix_caching="True"', 'enable_prefix_caching="False"')
            if line.startswith("#") or 'engine="0"' not in line:
                lines.append(line)
            else:
                lines += [line.replace('engine="0"', f'engine="{engine}"') for engine in self.engines]
        return lines

    def render(self) -> str:
        """The page as of now."""
        self.scrapes += 1
        if self.text is not None:
            if isinstance(self.text, str):
                return self.text
            if callable(self.text):
                return self.text()
            return self.text[min(self.scrapes, len(self.text)) - 1]
        self._flush()
        now = time.monotonic()
        due = [growth for at, growth in self._pending if at <= now]
        self._pending = [(at, growth) for at, growth in self._pending if at > now]
        for growth in due:
            self._apply(growth)
        out: list[str] = []
        for line in self._lines():
            if line.startswith("#") and not self.comments:
                continue
            if not line.startswith("#"):
                series, _, _ = line.rpartition(" ")
                if series in self.values:
                    line = f"{series} {floatToGoString(self.values[series])}"  # noqa: PLW2901
            if "vllm:spec_decode_" in line and self.suffix != "_total":
                if self.suffix == "gone" or "_created" in line:
                    continue
                line = line.replace("_total", self.suffix, 1)  # noqa: PLW2901
            out.append(line)
        return "\n".join(out) + "\n"
