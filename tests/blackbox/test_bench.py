"""``specrace bench`` as a user runs it, against a pair of fakes: table, files, order, and every early end."""

from __future__ import annotations

import csv
import io
import json
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.blackbox.app import ROOT, command, environment
from tests.fakes.vllm import DONE, RESET, ROLE, SLEEP, TOK, USE, FakeThread, FakeVLLM, Seen, refused_port

PROMPT = "Count to a hundred."
SLOW = [ROLE, TOK("a"), SLEEP(60), DONE]


def answer(size: int, every_s: float, *, spec: bool = False) -> list[Any]:
    """101 tokens: the first alone, then ``size`` at a time. With k = 4 and 4 at a time each step accepts 3 drafts of 4:
    rate 0.75, mean length 1 + 75 / 25 = 4, tokens per pass 100 / (100 - 75) = 4."""
    steps: list[Any] = [ROLE, SLEEP(0.02), TOK("w", 1)]
    left = 100 // size
    for i in range(left):
        steps += [SLEEP(every_s), TOK("w" * size, size, finish="length" if i == left - 1 else None)]
    return [*steps, USE(spec="auto" if spec else None), DONE]


@dataclass
class Pair:
    baseline: FakeVLLM
    speculative: FakeVLLM
    thread: FakeThread

    @property
    def where(self) -> list[str]:
        return ["--baseline", self.baseline.url, "--speculative", self.speculative.url]

    def bench(self, *args: str) -> subprocess.CompletedProcess[str]:
        return command("bench", *self.where, *args, timeout_s=60)


@pytest.fixture
def pair() -> Iterator[Pair]:
    with FakeThread() as thread:
        baseline = thread.start(FakeVLLM(script=answer(1, 0.004), model="gemma"))
        speculative = thread.start(FakeVLLM(script=answer(4, 0.008, spec=True), model="gemma", speculative=4))
        yield Pair(baseline, speculative, thread)


def one_by_one(*answers: Any) -> Callable[[Seen], Any]:
    """One answer after the other; the last one stays. A chooser is asked in its turn."""
    left = list(answers)

    def choose(seen: Seen) -> Any:
        found = left.pop(0) if len(left) > 1 else left[0]
        return found(seen) if callable(found) else found

    return choose


def asked(fake: FakeVLLM) -> list[Seen]:
    """The requests for an answer, without what is asked for beside them."""
    return [seen for seen in fake.posts if "messages" in seen.json]


def table(text: str, heading: str) -> list[dict[str, str]]:
    """The lines of the table whose first line names ``heading``."""
    blocks = [block.splitlines() for block in text.split("\n\n") if block.startswith("| ")]
    block = next(block for block in blocks if f" {heading} " in block[0])
    head, _, *lines = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in block]
    return [dict(zip(head, line, strict=True)) for line in lines]


# ------------------------------------------------------------------------------------------------ a whole run
@dataclass
class Measured:
    """One run, and what the servers saw of it."""

    done: subprocess.CompletedProcess[str]
    seen: dict[str, list[Seen]]
    posts: dict[str, list[dict[str, Any]]]
    starts: list[tuple[float, str]]
    rows: list[dict[str, str]]
    json: dict[str, Any]


@pytest.fixture(scope="module")
def measured() -> Iterator[Measured]:
    """Three repeats alone and with three requests at once, and both files."""
    with FakeThread() as thread, tempfile.TemporaryDirectory() as name:
        baseline = thread.start(FakeVLLM(script=answer(1, 0.004), model="gemma"))
        speculative = thread.start(FakeVLLM(script=answer(4, 0.008, spec=True), model="gemma", speculative=4))
        pair = Pair(baseline, speculative, thread)
        files = [str(Path(name) / file) for file in ("out.json", "out.csv")]
        args = ["--prompt", PROMPT, "--repeats", "3", "--concurrency", "1,3", "--json", files[0], "--csv", files[1]]
        done = pair.bench(*args)
        assert done.returncode == 0, done.stderr
        posts = {"baseline": baseline.posts_with(PROMPT), "speculative": speculative.posts_with(PROMPT)}
        yield Measured(
            done=done,
            seen=posts,
            posts={lane: [seen.json for seen in found] for lane, found in posts.items()},
            starts=sorted((seen.at, lane) for lane, found in posts.items() for seen in found),
            rows=list(csv.DictReader(io.StringIO(Path(files[1]).read_text()))),
            json=json.loads(Path(files[0]).read_text()),
        )
        for fake in (baseline, speculative):
            assert len(asked(fake)) - len(fake.posts_with(PROMPT)) == 1, "one warm-up each"


def test_the_table_has_the_values_worked_by_hand(measured: Measured) -> None:
    head = measured.done.stdout.split("\n\n")[1]
    assert "- model: gemma\n- speculation: method not told by the server, k = 4\n- vLLM: 0.32.0\n" in head
    assert "- 3 repeats, lanes in turn, who goes first alternates; a cache salt for every request; warmed up\n" in head
    lines = table(measured.done.stdout, "speedup")
    assert [(line["workload"], line["at once"], line["counted"]) for line in lines] == [
        ("prompt", "1", "3 of 3"),
        ("prompt", "3", "3 of 3"),
    ]
    for line, texts in zip(lines, ("3 of 3", "9 of 9"), strict=True):
        assert line["acceptance"] == "75.0% [75.0%–75.0%] (per-request record)"
        assert line["mean acceptance length"] == "4.00 [4.00–4.00]"
        assert line["tokens per pass"] == "4.00 [4.00–4.00]"
        assert line["text identical"] == texts
        assert line["verdict"] == f"worth it at {line['at once']} at once"
    assert {line["tokens"] for line in table(measured.done.stdout, "lane")} == {"101 [101–101]"}


def test_everything_in_the_table_can_be_recomputed_from_the_csv(measured: Measured) -> None:
    for at_once in ("1", "3"):
        line = next(line for line in table(measured.done.stdout, "speedup") if line["at once"] == at_once)
        tpot = {
            lane: [
                [float(row["tpot_ms"]) for row in measured.rows if key(row) == (at_once, lane, repeat)]
                for repeat in ("1", "2", "3")
            ]
            for lane in ("baseline", "speculative")
        }
        assert {len(found) for lane in tpot.values() for found in lane} == {int(at_once)}
        pairs = zip(tpot["baseline"], tpot["speculative"], strict=True)
        ratios = [median(b) / median(s) for b, s in pairs]
        shown = f"{median(ratios):.2f}x [{min(ratios):.2f}x–{max(ratios):.2f}x]"
        assert line["decode speedup"] == shown
        lanes = [found for found in table(measured.done.stdout, "lane") if found["at once"] == at_once]
        for found in lanes:
            pooled = [value for repeat in tpot[found["lane"]] for value in repeat]
            assert found["TPOT ms"] == f"{median(pooled):.2f} [{min(pooled):.2f}–{max(pooled):.2f}]"


def key(row: dict[str, str]) -> tuple[str, str, str]:
    return row["at_once"], row["lane"], row["repeat"]


def test_the_speedup_is_what_the_servers_did(measured: Measured) -> None:
    found = measured.json["rows"][0]["result"]["decode_speedup"]["values"]
    pairs = zip(measured.seen["baseline"][:3], measured.seen["speculative"][:3], strict=True)
    assert found == [pytest.approx(b.tpot_ms / s.tpot_ms, rel=0.05) for b, s in pairs]


def test_the_tokens_of_a_loaded_lane_are_all_of_them_over_the_time_it_was_at_work(measured: Measured) -> None:
    lines = [line for line in table(measured.done.stdout, "lane") if line["at once"] == "3"]
    for line in lines:
        rates: list[float] = []
        for repeat in ("1", "2", "3"):
            rows = [row for row in measured.rows if key(row) == ("3", line["lane"], repeat)]
            assert len({row["busy_ms"] for row in rows}) == 1
            assert float(rows[0]["busy_ms"]) >= max(float(row["e2e_ms"]) for row in rows)
            rates.append(1000 * sum(int(row["completion_tokens"]) for row in rows) / float(rows[0]["busy_ms"]))
        assert line["all tokens/s"] == f"{median(rates):.1f} [{min(rates):.1f}–{max(rates):.1f}]"


def test_the_lanes_took_turns_and_alternated(measured: Measured) -> None:
    order = [lane for _, lane in measured.starts]
    b, s = "baseline", "speculative"
    assert order[:6] == [b, s, s, b, b, s]
    assert order[6:] == [*[b] * 3, *[s] * 6, *[b] * 6, *[s] * 3]
    assert [row["first"] for row in measured.rows if row["at_once"] == "1"] == [b, b, s, s, b, b]


def test_both_servers_got_the_same_requests_with_a_salt_each(measured: Measured) -> None:
    salts = {lane: Counter(body["cache_salt"] for body in posts) for lane, posts in measured.posts.items()}
    assert salts["baseline"] == salts["speculative"]
    assert set(salts["baseline"].values()) == {1}
    seeds = {lane: sorted(body["seed"] for body in posts) for lane, posts in measured.posts.items()}
    assert seeds["baseline"] == seeds["speculative"] == sorted([0, 1, 2, *range(9)])
    assert {(body["temperature"], body["max_tokens"]) for body in measured.posts["baseline"]} == {(0.0, 200)}


def test_progress_is_one_line_a_repeat_on_stderr(measured: Measured) -> None:
    lines = measured.done.stderr.splitlines()
    assert len(lines) == 6
    assert lines[1].startswith("specrace: prompt, 1 at once, repeat 2 of 3 (speculative first): speedup ")
    assert lines[1].endswith(", acceptance 75.0%")


# ------------------------------------------------------------------------------------------------ options
def test_prompts_of_a_file_without_a_warm_up_a_salt_or_a_table(pair: Pair, tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "One\\ntwo"}\n\n{"prompt": "Three", "output_len": 5}\n')
    args = ["--prompts", str(file), "--no-warm-up", "--no-fresh-cache", "--repeats", "1", "--schedule", "together"]
    done = pair.bench(*args, "--max-tokens", "7", "--temperature", "0.5", "--ignore-eos", "--csv", "-")
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [(row["workload"], row["request"], row["lane"], row["schedule"]) for row in rows] == [
        ("mine.jsonl", "1", "baseline", "together"),
        ("mine.jsonl", "2", "baseline", "together"),
        ("mine.jsonl", "1", "speculative", "together"),
        ("mine.jsonl", "2", "speculative", "together"),
    ]
    for fake in (pair.baseline, pair.speculative):
        assert [seen.prompt for seen in asked(fake)] == ["One\ntwo", "Three"]
        assert not any("cache_salt" in seen.json for seen in asked(fake))
        assert {(seen.json["max_tokens"], seen.json["temperature"]) for seen in asked(fake)} == {(7, 0.5)}
        assert all(seen.json["ignore_eos"] for seen in asked(fake))


def test_without_a_name_the_first_tab_and_the_creative_one_are_run(pair: Pair) -> None:
    for fake in (pair.baseline, pair.speculative):
        fake.script = [ROLE, TOK("a"), TOK("b", finish="stop"), USE(), DONE]
    done = pair.bench("--repeats", "1", "--json", "-")
    assert done.returncode == 0, done.stderr
    names = [row["workload"] for row in json.loads(done.stdout)["rows"]]
    assert names == ["json-records", "sql-inserts", "code-edit", "poem", "story", "brainstorm"]
    prompts = [[seen.prompt for seen in asked(fake)][-6:] for fake in (pair.baseline, pair.speculative)]
    assert prompts[0] == prompts[1]


# ------------------------------------------------------------------------------------------------ trouble
def test_a_server_that_dies_in_the_middle_leaves_what_was_measured(pair: Pair) -> None:
    def dies(_: Seen) -> list[Any]:
        threading.Thread(target=pair.thread.stop, args=(pair.baseline,)).start()
        return [ROLE, TOK("a"), SLEEP(30), DONE]

    normal = answer(1, 0.004)
    pair.baseline.on(PROMPT, one_by_one(normal, normal, dies))
    done = pair.bench("--prompt", PROMPT, "--repeats", "6")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "- **ended early**: the baseline server does not answer any more. " in done.stdout
    assert table(done.stdout, "speedup")[0]["counted"] == "2 of 6"
    assert "repeat 3 does not count: baseline " in done.stdout
    assert len(done.stderr.splitlines()) == 4, "a line a repeat, and why it ended"


def test_an_answer_that_breaks_off_spoils_its_repeat_only(pair: Pair) -> None:
    fast = answer(4, 0.002, spec=True)
    pair.speculative.on(PROMPT, one_by_one(fast, [ROLE, TOK("a"), RESET], fast))
    done = pair.bench("--prompt", PROMPT, "--repeats", "4")
    assert done.returncode == 1
    assert table(done.stdout, "speedup")[0]["counted"] == "3 of 4"
    assert "repeat 2 does not count: speculative cut_off: " in done.stdout
    assert "ended early" not in done.stdout


@pytest.mark.parametrize("name", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_with_what_there_is(pair: Pair, name: signal.Signals) -> None:
    fast = answer(4, 0.002, spec=True)
    pair.speculative.on(PROMPT, one_by_one(fast, fast, SLOW))
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, "-m", "app", "bench", *pair.where, "--prompt", PROMPT],
            env=environment(Path(folder)),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        for number in (1, 2):
            assert f"repeat {number} of 5" in process.stderr.readline()
        process.send_signal(name)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "specrace: interrupted: here is what there is\n" in err
    assert "Traceback" not in err
    assert "- **ended early**: interrupted\n" in out
    line = table(out, "speedup")[0]
    assert line["counted"] == "2 of 5"
    assert line["verdict"] == "none: a verdict needs 3 repeats: 2 of 5 repeats counted"


def test_a_server_that_is_not_there_is_one_line_and_1(pair: Pair) -> None:
    with refused_port() as port:
        where = ["--baseline", pair.baseline.url, "--speculative", f"http://127.0.0.1:{port}"]
        done = command("bench", *where, "--prompt", PROMPT)
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("specrace: speculative: ")
    assert asked(pair.baseline) == []


@pytest.mark.parametrize("option", ["--csv", "--json"])
def test_a_run_that_measured_nothing_left_an_empty_file(pair: Pair, tmp_path: Path, option: str) -> None:
    kept, new = tmp_path / "kept", tmp_path / "new"
    kept.write_text("mine")
    with refused_port() as port:
        where = ["--baseline", pair.baseline.url, "--speculative", f"http://127.0.0.1:{port}"]
        for file in (kept, new):
            assert command("bench", *where, "--prompt", PROMPT, option, str(file)).returncode == 1
    assert kept.read_text() == "mine"
    assert not new.exists()


@pytest.mark.parametrize(
    "args",
    [
        ["--concurrency", "9" * 5000],
        ["--concurrency", "1," + "9" * 10],
        ["--prompt", "a\udcff"],
        ["--workload", "\udcff"],
        ["--prompts", "no\udcff.txt"],
        ["--csv", "no/such\udcff/folder"],
    ],
    ids=["digits", "ten digits", "prompt", "workload", "prompts", "csv"],
)
def test_what_cannot_be_read_was_a_traceback(args: list[str]) -> None:
    where = ["--baseline", "http://127.0.0.1:9", "--speculative", "http://127.0.0.1:9"]
    _refused(command("bench", *where, *args), args[0])


def test_half_a_character_in_a_file_of_prompts_was_a_traceback(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "fine"}\n{"prompt": "a\\ud800"}\n')
    where = ["--baseline", "http://127.0.0.1:9", "--speculative", "http://127.0.0.1:9"]
    done = command("bench", *where, "--prompts", str(file))
    _refused(done, "--prompts")
    assert "line 2 of mine.jsonl" in done.stderr


def test_check_without_servers_did_not_say_how_to_give_them() -> None:
    done = command("check")
    _refused(done, "--baseline")
    assert "`make demo`: --baseline http://127.0.0.1:8101 --speculative http://127.0.0.1:8102" in done.stderr


def _refused(done: subprocess.CompletedProcess[str], option: str) -> None:
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert option in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr) < 500
