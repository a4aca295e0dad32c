"""Many cases through one app at once: each has its own prompt, by which the fakes know what to say."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import anyio

from tests.blackbox.app import App, Run, check_run, running
from tests.fakes.vllm import DONE, FIN, ROLE, SLEEP, TOK, USE, FakeThread, FakeVLLM, Reply, Seen

OTHER = (ROLE, SLEEP(0.02), TOK("The"), SLEEP(0.02), TOK(" other"), SLEEP(0.02), TOK(" lane."), FIN(), USE(), DONE)
"""What the lane says that a case does not speak of. Three tokens."""
OTHER_TEXT = "The other lane."


@dataclass(frozen=True)
class Case:
    """What the two servers answer, and what else is in the request."""

    speculative: Any = OTHER
    baseline: Any = OTHER
    body: dict[str, Any] = field(default_factory=dict)


class Batch:
    """The results of all cases; ``batch["name"]`` is checked for what always holds and then handed over."""

    def __init__(self, app: App, baseline: FakeVLLM, speculative: FakeVLLM) -> None:
        self.app = app
        self.fakes = {"baseline": baseline, "speculative": speculative}
        self._outcomes: dict[str, Run | BaseException] = {}
        self._sound: set[str] = set()

    def __getitem__(self, name: str) -> Run:
        run = self.raw(name)
        if name not in self._sound:
            check_run(run)
            self._sound.add(name)
        return run

    def raw(self, name: str) -> Run:
        outcome = self._outcomes[name]
        if isinstance(outcome, BaseException):
            raise AssertionError(f"{name} did not come to its end: {outcome!r}") from outcome
        return outcome

    def posts(self, name: str, lane: str) -> list[Seen]:
        return self.fakes[lane].posts_with(marker(name))

    def run(self, cases: dict[str, Case], at_once: int) -> None:
        for name, case in cases.items():
            self.fakes["baseline"].on(marker(name), case.baseline)
            self.fakes["speculative"].on(marker(name), case.speculative)

        async def one(name: str, case: Case, limit: anyio.CapacityLimiter) -> None:
            async with limit:
                try:
                    self._outcomes[name] = await self.app.race_async(f"{marker(name)} Say it.", case.body)
                except Exception as error:  # noqa: BLE001 - one case's trouble is told by its own test
                    self._outcomes[name] = error

        async def everything() -> None:
            limit = anyio.CapacityLimiter(at_once)
            async with anyio.create_task_group() as group:
                for name, case in cases.items():
                    group.start_soon(one, name, case, limit)

        anyio.run(everything)


def marker(name: str) -> str:
    return f"[{name}]"


@contextlib.contextmanager
def batch(
    cases: dict[str, Case],
    *,
    at_once: int = 6,
    env: dict[str, str] | None = None,
    speculative: dict[str, Any] | None = None,
    baseline: dict[str, Any] | None = None,
) -> Iterator[Batch]:
    """Run all ``cases`` against a pair of fakes and an app of their own."""
    with FakeThread() as thread:
        pair = (
            thread.start(FakeVLLM(model="base-m", **(baseline or {}))),
            thread.start(FakeVLLM(model="spec-m", **{"speculative": 4} | (speculative or {}))),
        )
        app = App(pair[0].url, pair[1].url, env={"SPECRACE_RACES_AT_ONCE": str(at_once)} | (env or {}))
        with running(app):
            result = Batch(app, *pair)
            result.run(cases, at_once)
            yield result


def ignoring(*steps: Any, honour: tuple[str, ...] = ("usage",), **rest: Any) -> Reply:
    """An answer of a server that does not know all of vLLM's extra fields."""
    return Reply(steps, honour=frozenset(honour), **rest)
