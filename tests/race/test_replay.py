"""Recordings: files that are the same byte for byte, refused when they are none, played at their pace."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.errors import SettingsError
from app.race import replay as replay_room
from app.race.events import Event, LaneDrafts, RaceFinished, RaceQueued, to_json
from app.race.export import as_csv, as_json, as_recording, summary_of
from app.race.replay import begins_at_ms, play, read_recording, recording_bytes
from app.race.summary import StoredRace
from app.race.types import Recorded, SpecRecord
from tests.race.helpers import Clock, chunk, ended, meta, over, sent, started, usage

HARDWARE = Recorded(on="2 vCPU, 24 GB, no GPU", vllm="0.32.0", at="2026-11-30")
EVENTS: list[Event] = [
    RaceQueued(t_ms=0, position=2),
    RaceQueued(t_ms=900, position=1),
    started(1500),
    sent("baseline", 1501, method=None),
    sent("speculative", 1501.5, method="ngram", num_speculative_tokens=4),
    chunk("baseline", 1600.5, 1, text="é🫠\n"),
    usage("baseline", 1601, 1, prompt_tokens=5),
    ended("baseline", 1602),
    chunk("speculative", 1610.5, 3, text='"<b>'),
    ended("speculative", 1700),
    over(1701),
]


def labelled(**rest: object) -> StoredRace:
    return StoredRace(meta(recorded=HARDWARE, vllm="0.32.0", **rest), EVENTS)


def test_the_same_race_is_the_same_bytes() -> None:
    assert recording_bytes(labelled()) == recording_bytes(labelled())
    assert recording_bytes(labelled())[4:8] == b"\0\0\0\0"  # no time of writing in the head
    assert recording_bytes(labelled()) != recording_bytes(labelled(race_id="other"))


def test_a_recording_reads_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "json.jsonl.gz"
    path.write_bytes(recording_bytes(labelled()))
    assert read_recording(path) == labelled()


def lines(*extra: bytes, recorded: bool = True) -> bytes:
    import msgspec

    head = meta(recorded=HARDWARE if recorded else None)
    return b"\n".join([msgspec.json.encode(head), *extra]) + b"\n"


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("empty", b""),
        ("no gzip", b'{"id":"x"}\n'),
        ("cut gzip", recording_bytes(labelled())[:-9]),
        ("broken gzip", recording_bytes(labelled())[:40] + b"\0" * 40 + recording_bytes(labelled())[80:]),
        ("nothing in it", gzip.compress(b"")),
        ("no json", gzip.compress(b"hello\n")),
        ("no meta", gzip.compress(b"{}\n")),
        ("no event", gzip.compress(lines(b'{"type":"nope","t_ms":1}'))),
        ("half an event", gzip.compress(lines(to_json(EVENTS[0])[:-5]))),
        ("no text", gzip.compress(b"\xff\xfe\n")),
        ("no label", gzip.compress(lines(recorded=False))),
    ],
)
def test_a_file_that_is_no_recording_is_named_and_refused(tmp_path: Path, name: str, body: bytes) -> None:
    path = tmp_path / "bad.jsonl.gz"
    path.write_bytes(body)
    with pytest.raises(SettingsError) as caught:
        read_recording(path)
    assert caught.value.field == "bad.jsonl.gz"
    assert caught.value.reason
    assert "\n" not in str(caught.value)


def test_a_recording_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError):
        read_recording(tmp_path / "none.jsonl.gz")


def test_a_replay_begins_where_the_queue_ended() -> None:
    assert begins_at_ms(EVENTS) == 1500
    assert begins_at_ms(EVENTS[:2]) == begins_at_ms([]) == 0


@pytest.mark.anyio
async def test_every_event_is_played_at_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(0)

    async def sleep(seconds: float) -> None:
        assert seconds > 0
        clock.move_ms(seconds * 1000)

    monkeypatch.setattr(replay_room, "anyio", SimpleNamespace(sleep=sleep))
    at: list[tuple[Event, float]] = []
    await play(EVENTS, lambda event: at.append((event, clock.ns / 1e6)), lambda: clock.ns / 1e6)
    assert [event for event, _ in at] == EVENTS
    assert [now for _, now in at] == pytest.approx([event.t_ms for event in EVENTS], abs=1.0)


@pytest.mark.anyio
async def test_a_replay_that_fell_behind_catches_up_and_does_not_stretch() -> None:
    played: list[Event] = []
    await play(EVENTS, played.append, lambda: 1e9)
    assert played == EVENTS


@pytest.mark.anyio
async def test_a_replay_always_ends() -> None:
    played: list[Event] = []
    await play(EVENTS[:-1], played.append, lambda: 5000.0)
    assert played[-1] == RaceFinished(t_ms=5000.0, status="interrupted")


# ------------------------------------------------------------------------------------------------ export
def test_an_export_as_json_is_the_race_json() -> None:
    found = json.loads(as_json(labelled()))
    assert found["id"] == "race1"
    assert found["recorded"] == {"on": HARDWARE.on, "vllm": "0.32.0", "at": "2026-11-30"}
    assert found["lanes"]["baseline"]["text"] == "é🫠\n"
    assert found["lanes"]["baseline"]["ttft_ms"] == 99.5


def test_an_export_as_csv_has_a_line_a_lane_and_empty_cells_for_what_does_not_exist() -> None:
    import csv
    import io

    head, base, fast = csv.reader(io.StringIO(as_csv(labelled()).decode()))
    found = dict(zip(head, base, strict=True))
    assert (found["lane"], found["ttft_ms"], found["completion_tokens"]) == ("baseline", "99.5", "1")
    assert (found["tpot_ms"], found["acceptance_rate"], found["acceptance_source"]) == ("", "", "")
    assert dict(zip(head, fast, strict=True))["lane"] == "speculative"


def test_an_export_as_csv_holds_the_whole_acceptance() -> None:
    import csv
    import io

    record = SpecRecord(source="request", drafts=2, drafted=8, accepted=3, histogram=(1, 0, 0, 1, 0))
    told = [*EVENTS[:-1], LaneDrafts(t_ms=EVENTS[-1].t_ms, lane="speculative", record=record), EVENTS[-1]]
    head, _, fast = csv.reader(io.StringIO(as_csv(StoredRace(labelled().meta, told)).decode()))
    found = dict(zip(head, fast, strict=True))
    assert [found[name] for name in ("acceptance_source", "acceptance_rate", "mean_acceptance_length")] == [
        "request",
        "0.375",
        "2.5",
    ]
    assert [found[name] for name in ("speculative_steps", "drafted_tokens", "accepted_tokens")] == ["2", "8", "3"]
    assert found["acceptance_per_position"] == "0.5 0.5 0.5 0.0"
    assert found["steps_by_accepted_tokens"] == "1 0 0 1 0"
    assert found["per_token_alpha"] == "0.6"  # 3 / (3 + 2)
    assert found["acceptance_exclusive"] == "true"
    # three tokens, of which three were accepted: more than can have been sent after the first
    assert (found["effective_tokens_per_pass"], found["share_of_output_drafted"]) == ("", "")
    assert found["acceptance_doubt"] == ""


def test_a_recording_is_only_made_with_a_label() -> None:
    bare = StoredRace(meta(vllm="0.32.0"), EVENTS)
    with pytest.raises(SettingsError) as caught:
        as_recording(bare, None)
    assert caught.value.field == "--hardware"
    made = as_recording(bare, "a machine")
    head = json.loads(gzip.decompress(made).splitlines()[0])
    assert head["recorded"] == {"on": "a machine", "vllm": "0.32.0", "at": "2026-11-30T02:22:11.000Z"}


def test_a_label_once_given_stays() -> None:
    head = json.loads(gzip.decompress(as_recording(labelled(), "another machine")).splitlines()[0])
    assert head["recorded"]["on"] == HARDWARE.on


def test_the_summary_of_a_recording_is_the_summary_of_its_race() -> None:
    assert summary_of(labelled()).lanes["speculative"].completion_tokens == 3
