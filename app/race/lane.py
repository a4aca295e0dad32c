"""What the app knows of one lane's server between and during races, and the requests that find it out.

Between races only GETs: /v1/models, /metrics, /version. After a race, where greedy texts part, ``rate`` asks for the
log-probabilities of two tokens, which generates one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import anyio
import httpx2
import msgspec
from msgspec import structs

from app.race import counters
from app.race.candidates import question, rated
from app.race.clock import MonotonicNs, monotonic_ns, ms_between
from app.race.failures import UpstreamError, from_status
from app.race.speller import Speller
from app.race.types import Candidate, Chunk, EndpointState, LaneError, LaneIdentity, LaneName, RaceSpec
from app.race.upstream import Receive, Sent, Upstream

PROBE_S = 4.0


class LaneServer:
    """A lane's server: its Upstream, and its state as last seen (``state`` is replaced, never changed)."""

    def __init__(
        self, lane: LaneName, upstream: Upstream, *, method: str | None = None, clock: MonotonicNs = monotonic_ns
    ) -> None:
        self.lane: LaneName = lane
        self.upstream = upstream
        self.reports_per_request = False
        self._counted: bool | None = None
        """What /metrics told last of whether it speculates; None where it never did."""
        self._read = False
        self.warm: bool | None = None
        """Whether the server has generated since its start; None where nobody can tell."""
        self.state = EndpointState(lane=lane, status="starting", identity=LaneIdentity(model=upstream.endpoint.model))
        self.speller = self._new_speller()
        """Texts of the server's tokens (app.race.speller)."""
        self._method = method
        self._clock = clock

    def _new_speller(self) -> Speller:
        return Speller(self._ask_more)

    async def _ask_more(self, path: str, body: dict[str, Any], timeout_s: float) -> httpx2.Response:
        """POST what only vLLM answers. A server that does not name its version is sent nothing but the race: what it
        would make of the rest, perhaps an answer that somebody pays for, nobody knows.

        Raises:
            UpstreamError: no answer, or no question.
        """
        if self.state.version is None:
            raise UpstreamError("bad_request", "The server does not say that it is vLLM")
        return await self.upstream.post(path, body, timeout_s=timeout_s)

    @property
    def identity(self) -> LaneIdentity:
        """Model, method and k as far as known."""
        return self.state.identity

    @property
    def speculating(self) -> bool | None:
        """Whether the server speculates; None where it gives no way to know."""
        return self.state.speculating

    @property
    def takes_salt(self) -> bool:
        """Whether the server is not known to refuse a cache salt."""
        return self.upstream.dialect.cache_salt

    async def run(self, spec: RaceSpec, model: str, sent: Sent, receive: Receive) -> None:
        """Stream one answer (app.race.upstream); notes whether the server reports drafts per request. An answer that
        ends without a record takes that back: the counters are needed again."""
        reported = False

        def note(chunk: Chunk) -> None:
            if not self.warm:
                self.warm, self.state = True, structs.replace(self.state, warm=True)
            if chunk.spec is not None:
                nonlocal reported
                reported = self.reports_per_request = True
                self._note_speculating(True, chunk.spec.num_spec_tokens)
            receive(chunk)

        await self.upstream.run(spec, model, sent, note)
        self.reports_per_request = reported

    def _note_speculating(self, told: bool, k: int | None) -> None:
        """Keep what a record or a page has just shown; a k that it does not name may be known from before."""
        known = self.state.identity
        identity = structs.replace(
            known,
            method=(self._method or "unknown") if told else None,
            num_speculative_tokens=(k or known.num_speculative_tokens) if told else None,
        )
        self.state = structs.replace(self.state, speculating=told, identity=identity)

    def _learn(self, read: counters.Counters) -> None:
        """Take from a page what may have changed unseen: a server can be back, with other flags, between two probes. A
        record outranks counters that were never there; counters that have gone are another server's."""
        if read.told is None:
            return
        was, self._counted = self._counted, read.told
        if not read.told and self.reports_per_request:
            if not was:
                return
            self.reports_per_request = False
        self._note_speculating(read.told, read.num_speculative_tokens)

    async def model(self) -> str:
        """The model to ask for: from the settings, else the first that the server names.

        Raises:
            UpstreamError: the server does not answer or serves nothing.
        """
        configured = self.upstream.endpoint.model
        return configured or self.state.identity.model or (await self._models(PROBE_S))[0]

    async def rate(
        self, context: Sequence[int], tokens: Sequence[int], timeout_s: float
    ) -> tuple[Candidate, ...] | None:
        """``tokens`` with their log-probabilities after ``context`` (ids); None when the server cannot tell, or not in
        time. The first such request of a server's life compiles kernels: one that is left in the middle of it makes
        the next race a cold one."""
        try:
            body = question(await self.model(), context, tokens)
            answer = await self._ask_more("/v1/completions", body, timeout_s)
        except UpstreamError as error:
            if error.error.kind == "connect_timeout":
                self.warm, self.state = False, structs.replace(self.state, warm=False)
            return None
        return rated(answer.content, tokens) if answer.status_code == 200 else None

    async def counters(self, timeout_s: float) -> counters.Counters | None:
        """One reading of /metrics, None when it does not come in time or is none. The state follows it."""
        try:
            with anyio.move_on_after(timeout_s):
                answer = await self.upstream.get("/metrics", timeout_s=timeout_s)
                if answer.status_code != 200:
                    return None
                read = counters.parse(answer.text)
                self._learn(read)
                return read
        except (UpstreamError, ValueError):
            return None
        return None

    async def probe(self) -> EndpointState:
        """Ask the server what it is; the new state. Never raises: trouble is part of the state."""
        began = self._clock()
        try:
            model, max_len = await self._models(PROBE_S)
        except UpstreamError as error:
            self.warm = None
            self._forget()
            # who comes back may be another: nothing that was learned of its tokens is taken for granted
            self.speller = self._new_speller()
            status = "starting" if error.error.kind == "unavailable" else "down"
            self.state = self._trouble(error.error, status=status)
            return self.state
        latency_ms = ms_between(began, self._clock())
        self.state = structs.replace(await self._known(model), max_model_len=max_len, latency_ms=latency_ms)
        return self.state

    def _forget(self) -> None:
        """Nothing that was learned of drafts is taken for granted any more."""
        self.reports_per_request, self._counted, self._read = False, None, False

    async def _known(self, model: str) -> EndpointState:
        """The state of a server that answers. What cannot change while it runs is asked for once: reading 50 kB of
        /metrics every few seconds would be felt by a small engine. (Each race reads it before it starts.)"""
        if self.state.status == "ready":
            if self.state.identity.model != model:
                self._forget()
            elif self._read:
                return self.state
        read = await self.counters(PROBE_S)
        version = await self._version()
        if not self.warm and read is not None and read.generated is not None:
            self.warm = read.generated > 0
        self._read = read is not None
        # a record may have come meanwhile
        speculating = True if self.reports_per_request else None if read is None else read.told
        method = self._method or ("unknown" if speculating else None)
        k = (read.num_speculative_tokens if read else None) or self.state.identity.num_speculative_tokens
        return EndpointState(
            lane=self.lane,
            status="ready",
            identity=LaneIdentity(
                model=model,
                method=method if speculating is not False else None,
                num_speculative_tokens=k if speculating else None,
            ),
            speculating=speculating,
            version=version,
            warm=self.warm,
        )

    def _trouble(self, error: LaneError, *, status: Any) -> EndpointState:
        known = self.state.identity
        return EndpointState(lane=self.lane, status=status, identity=known, error=error, detail=error.message)

    async def _models(self, timeout_s: float) -> tuple[str, int | None]:
        answer = await self.upstream.get("/v1/models", timeout_s=timeout_s)
        configured = self.upstream.endpoint.model
        if configured and answer.status_code in (404, 405):
            # a gateway that lists no models may serve this one all the same
            return configured, None
        if answer.status_code != 200:
            raise from_status(answer.status_code, answer.content)
        try:
            body: Any = msgspec.json.decode(answer.content)
            models = cast("list[dict[str, Any]]", body["data"])
            wanted = self.upstream.endpoint.model
            found = next((m for m in models if wanted in (None, m["id"])), None)
            if found is None and models:
                raise UpstreamError("model_not_found", f"The server does not serve {wanted!r}")
            if found is None:
                raise UpstreamError("model_not_found", "The server serves no model")
            length = found.get("max_model_len")
            return str(found["id"]), length if isinstance(length, int) else None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError, KeyError):
            kind = answer.headers.get("content-type", "").split(";")[0]
            what = "HTML" if "html" in kind else kind[:60] or "no content type"
            raise UpstreamError(
                "not_a_model_server", f"Not a model server ({what} instead of a list of models)"
            ) from None

    async def _version(self) -> str | None:
        try:
            answer = await self.upstream.get("/version", timeout_s=PROBE_S)
            found = msgspec.json.decode(answer.content) if answer.status_code == 200 else None
        except (UpstreamError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        version = cast("dict[str, Any]", found).get("version") if isinstance(found, dict) else None
        return str(version)[:40] if version else None
