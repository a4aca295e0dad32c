"""What real servers sent (vLLM 0.32.0, tests/fixtures), byte for byte through the whole corridor of a lane, against
figures computed here from the recorded times and nothing else."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import anyio
import pytest

from app.race.events import Event, from_json, to_json
from app.race.race import Race
from app.race.scoreboard import Scoreboard
from app.race.sse_lines import SseLines
from app.race.summary import RaceSummary, summarize
from app.race.types import Acceptance, Comparison, LaneName, LaneNumbers, LaneStatus
from app.race.wire import ChunkDecoder
from tests.fakes.fixtures import HERE, read, recording
from tests.race.helpers import Clock, FakeRunner, exactly, meta, spec

SSE = sorted(path.name.removesuffix(".jsonl.gz") for path in (HERE / "sse").iterdir())
CHAT = sorted(path.name.removesuffix(".jsonl.gz") for path in (HERE / "chat").iterdir() if ".jsonl" in path.name)


class Sink:
    """As app.race.hub.Run: fold and log."""

    def __init__(self) -> None:
        self.board = Scoreboard()
        self.events: list[Event] = []

    def append(self, event: Event) -> None:
        self.board.apply(event)
        self.events.append(event)

    def numbers(self, lane: LaneName, now_ms: float, *, ending: LaneStatus | None = None) -> LaneNumbers:
        return self.board.numbers(lane, now_ms, ending=ending)

    def comparison(self, now_ms: float) -> Comparison:
        return self.board.comparison(now_ms, greedy=True)


class Recorded(FakeRunner):
    """A server that sends a recording, its bytes cut into ``size`` pieces a message, the clock moved by hand."""

    def __init__(self, name: str, clock: Clock, size: int = 0) -> None:
        super().__init__(k=4, clock=clock)
        self._frames, self._times, self._hand = recording(name).raw(), recording(name).payloads, clock
        self._size = size

    async def run(self, spec: Any, _: str, sent: Any, receive: Any) -> None:
        began = self._hand.ns
        sent(began, False)
        lines, decoder = SseLines(), ChunkDecoder()
        for frame, (t_ns, _payload) in zip(self._frames, self._times, strict=True):
            size = self._size or len(frame)
            for at in range(0, len(frame), size):
                self._hand.ns = began + t_ns
                for message in lines.feed(frame[at : at + size]):
                    if message.data == b"[DONE]":
                        return
                    found = decoder.decode(message.data, self._hand.ns)
                    if found is not None:
                        receive(found)


@cache
def raced(pair: tuple[str, str], size: int = 0) -> tuple[RaceSummary, tuple[Event, ...]]:
    """The race of two recordings, in turn on one clock."""
    clock, sink = Clock(), Sink()
    runners: dict[LaneName, FakeRunner] = {
        "baseline": Recorded(pair[0], clock, size),
        "speculative": Recorded(pair[1], clock, size),
    }

    async def run() -> None:
        race = Race(spec(schedule="in_turn"), runners, sink, epoch_ns=clock.ns, clock=clock)
        assert await race.run(queue_ms=0, in_flight=1) == "finished"

    anyio.run(run)
    return summarize(meta(), sink.board), tuple(sink.events)


@dataclass(frozen=True)
class Worked:
    """A lane's figures, worked out from the recording's own times and ids, without any code of the app."""

    n: int
    ttft_ms: float
    e2e_ms: float
    text: str
    usage: dict[str, Any]
    record: dict[str, Any] | None
    cuts: int

    @property
    def tpot_ms(self) -> float:
        return (self.e2e_ms - self.ttft_ms) / (self.n - 1)


@cache
def worked(name: str) -> Worked:
    first = last = None
    n = cuts = 0
    text, usage, record = "", {}, None
    for t_ns, payload in recording(name).payloads:
        if payload == "[DONE]":
            continue
        message = json.loads(payload)
        usage = message.get("usage") or usage
        record = (message.get("metrics") or {}).get("speculative_decoding") or record
        for choice in message["choices"]:
            if choice["index"] != 0:
                continue
            piece = choice["text"] if "text" in choice else choice["delta"].get("content", "")
            ids = choice.get("token_ids")
            if piece or ids:
                first, last = first or t_ns, t_ns
                cuts += 1
            n += len(ids or ())
            text += piece
    assert first is not None
    assert last is not None
    return Worked(n or usage["completion_tokens"], first / 1e6, last / 1e6, text, usage, record, cuts)


def pair_of(name: str) -> tuple[str, str]:
    head, _, _ = name.rpartition("_")
    return f"sse/{head}_baseline", f"sse/{head}_speculative"


def test_all_28_streams_are_there() -> None:
    assert len(SSE) == 28
    assert len({pair_of(name) for name in SSE}) == 14


@pytest.mark.parametrize("name", SSE)
@pytest.mark.parametrize("size", [0, 97])
def test_the_figures_of_a_real_stream(name: str, size: int) -> None:
    lane: Any = name.rpartition("_")[2]
    found = raced(pair_of(name), size)[0].lanes[lane]
    own = worked(f"sse/{name}")
    assert found.completion_tokens == own.n == own.usage["completion_tokens"]
    assert found.prompt_tokens == own.usage["prompt_tokens"]
    assert found.text == own.text
    assert found.chunks == own.cuts
    assert found.ttft_ms == pytest.approx(own.ttft_ms, rel=1e-9)
    assert found.e2e_ms == pytest.approx(own.e2e_ms, rel=1e-9)
    assert found.tpot_ms == pytest.approx(own.tpot_ms, rel=1e-9)
    assert found.decode_tokens_per_second == pytest.approx(1000 / own.tpot_ms, rel=1e-9)
    assert found.tokens_per_second == pytest.approx(1000 * own.n / own.e2e_ms, rel=1e-9)
    assert (found.status, found.tokens_estimated, found.error) == ("finished", False, None)
    assert found.finish_reason in ("length", "stop")


@pytest.mark.parametrize("name", [name for name in SSE if name.endswith("speculative")])
def test_the_acceptance_of_a_real_stream_is_the_servers_own(name: str) -> None:
    found = raced(pair_of(name))[0].lanes["speculative"].acceptance
    record = worked(f"sse/{name}").record
    assert found is not None
    assert record is not None
    assert found.source == "request"
    assert found.rate == exactly(record["draft_acceptance_rate"])
    assert found.mean_length == exactly(record["mean_acceptance_length"])
    assert found.histogram == tuple(record["acceptance_histogram"])
    assert (found.drafts, found.drafted, found.accepted) == (
        record["num_spec_steps"],
        record["num_draft_tokens"],
        record["num_accepted_draft_tokens"],
    )
    # positions once more from the single steps, which the app does not use for this
    steps = record["per_step_accepted"]
    by_step = [sum(1 for a in steps if a > i) / len(steps) for i in range(record["num_spec_tokens"])]
    assert found.per_position == tuple(exactly(p) for p in by_step)
    assert raced(pair_of(name))[0].lanes["baseline"].acceptance is None
    n, accepted = worked(f"sse/{name}").n, record["num_accepted_draft_tokens"]
    assert found.effective_tokens_per_pass == exactly((n - 1) / (n - 1 - accepted))
    assert found.share_of_output == exactly(accepted / n)
    rejected = sum(1 for a, d in zip(steps, record["per_step_drafted"], strict=True) if a < d)
    assert found.alpha == exactly(accepted / (accepted + rejected))
    got_there = [len(steps), *(sum(1 for a in steps if a > i) for i in range(record["num_spec_tokens"]))]
    told = [exactly(b / a) if a else None for a, b in pairwise(got_there)]
    assert found.conditional == tuple(told)


# by hand, from the last chunk of each: N, A, S, rejections
HAND = {
    "code_solo": (160, 125, 35, 5, 4.676),  # 159 / 34: the last step was cut, so one accepted token too many
    "json_solo": (200, 138, 46, 22, 3.262),  # 199 / 61
    "sql_solo": (200, 127, 54, 27, 2.764),  # 199 / 72
    "long_solo": (40, 19, 10, 6, 1.950),  # 39 / 20
    "poem_solo": (200, 4, 9, 9, 1.021),  # 199 / 195
}


@pytest.mark.parametrize("pair", HAND)
def test_the_acceptance_of_a_real_stream_worked_by_hand(pair: str) -> None:
    n, accepted, steps, rejected, effective = HAND[pair]
    found = raced(pair_of(f"{pair}_speculative"))[0].lanes["speculative"].acceptance
    assert found is not None
    assert (found.accepted, found.drafts) == (accepted, steps)
    assert found.effective_tokens_per_pass == pytest.approx(effective, abs=0.0005)
    assert found.share_of_output == exactly(accepted / n)
    assert found.alpha == exactly(accepted / (accepted + rejected))


# speedup and decode speedup as shared notes give them for these prompts: medians of three runs, where this is one of
# the three, so within 4 % (creative prompts: the range 0.78 to 0.90 over all runs). The long prompt alone is not
# among them: its baseline recording holds a cold first request.
EXPECTED = {
    "json_solo": (2.50, 2.61),
    "sql_solo": (2.25, 2.35),
    "code_solo": (3.25, 3.60),
    "json_together": (2.38, None),
    "sql_together": (2.02, None),
    "code_together": (2.75, None),
    "long_together": (1.28, None),
}


@pytest.mark.parametrize("pair", sorted({name.rpartition("_")[0] for name in SSE}))
def test_the_speedup_of_a_real_pair(pair: str) -> None:
    compared = raced(pair_of(f"{pair}_baseline"))[0].comparison
    b, s = worked(f"sse/{pair}_baseline"), worked(f"sse/{pair}_speculative")
    assert compared.speedup == pytest.approx((s.n / s.e2e_ms) / (b.n / b.e2e_ms), rel=1e-9)
    assert compared.decode_speedup == pytest.approx(b.tpot_ms / s.tpot_ms, rel=1e-9)
    if pair in EXPECTED:
        speedup, decode = EXPECTED[pair]
        assert compared.speedup == pytest.approx(speedup, rel=0.04)
        assert decode is None or compared.decode_speedup == pytest.approx(decode, rel=0.04)
        assert compared.verdict == "faster"
    elif not pair.startswith("long"):
        assert 0.78 < (compared.speedup or 0) < 0.90
        assert compared.verdict == "slower"


@pytest.mark.parametrize("pair", ["json_solo", "sql_solo", "code_solo"])
def test_the_real_greedy_texts_are_compared_by_their_ids(pair: str) -> None:
    def ids(lane: str) -> list[int]:
        payloads = [
            json.loads(payload) for _, payload in recording(f"sse/{pair}_{lane}").payloads if payload != "[DONE]"
        ]
        return [i for message in payloads for choice in message["choices"] for i in choice["token_ids"]]

    one, other = ids("baseline"), ids("speculative")
    differs = next((i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), None)
    compared = raced(pair_of(f"{pair}_baseline"))[0].comparison
    assert compared.diverges_at_token == differs
    assert compared.text == ("identical" if differs is None else "diverged")


@pytest.mark.parametrize("name", CHAT)
def test_chat_and_completion_variants_of_real_servers(name: str) -> None:
    clock, sink = Clock(), Sink()
    lane: LaneName = "speculative" if name.startswith("speculative") else "baseline"
    other: LaneName = "baseline" if lane == "speculative" else "speculative"
    runners: dict[LaneName, FakeRunner] = {lane: Recorded(f"chat/{name}", clock), other: FakeRunner(clock=clock)}

    async def run() -> None:
        await Race(spec(), runners, sink, epoch_ns=clock.ns, clock=clock).run(queue_ms=0, in_flight=1)

    anyio.run(run)
    found, own = sink.board.numbers(lane), worked(f"chat/{name}")
    assert sink.board.lanes[lane].text == own.text
    assert found.ttft_ms == pytest.approx(own.ttft_ms, rel=1e-9)
    assert found.e2e_ms == pytest.approx(own.e2e_ms, rel=1e-9)
    if not name.endswith("_n2"):  # a second answer is in the usage of the request, and nobody asks for two
        assert found.completion_tokens == own.n
        assert found.tokens_estimated is False
        assert found.tpot_ms == pytest.approx(own.tpot_ms, rel=1e-9)
    acceptance: Acceptance | None = found.acceptance
    if own.record is not None:
        assert acceptance is not None
        assert (acceptance.source, acceptance.accepted) == ("request", own.record["num_accepted_draft_tokens"])
    elif lane == "baseline":
        assert acceptance is None
    else:
        assert acceptance is None or acceptance.source == "stream"


def test_a_real_raw_stream_with_merged_steps() -> None:
    # stream_interval 10: chunks of 1, 10, 10 and 3 tokens
    lines, decoder = SseLines(), ChunkDecoder()
    sent = [message.data for message in lines.feed(read("chat/speculative_stream_interval_10.txt"))]
    assert sent.pop() == b"[DONE]"
    chunks = [found for data in sent if (found := decoder.decode(data, 0)) is not None]
    assert [c.tokens for c in chunks if c.tokens] == [1, 10, 10, 3]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 24


def test_every_event_of_a_real_race_is_kept_as_it_was() -> None:
    _, events = raced(pair_of("json_solo_baseline"))
    assert [from_json(to_json(event)) for event in events] == list(events)
