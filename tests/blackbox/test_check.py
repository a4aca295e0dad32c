"""``specrace check`` as a script sees it: exit status, one report on stdout, nothing else, never a traceback."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.blackbox.app import command
from tests.fakes.script import DONE, FIN, ROLE, TOK, USE
from tests.fakes.vllm import FakeThread, FakeVLLM, refused_port


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[FakeVLLM, FakeVLLM]]:
    with FakeThread() as thread:
        fakes = thread.start(FakeVLLM()), thread.start(FakeVLLM(speculative=4))
        for fake, spec in zip(fakes, (None, "auto"), strict=True):
            fake.script = [ROLE, TOK("one two ", 2), TOK("three", 2), FIN("length"), USE(cached=0, spec=spec), DONE]
        yield fakes


def test_a_good_pair_is_0_and_its_report_ends_with_ready(pair: tuple[FakeVLLM, FakeVLLM]) -> None:
    done = command("check", "--baseline", pair[0].url, "--speculative", pair[1].root + "/")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "baseline"
    assert lines[-1] == "Ready: no problem and no warning."
    assert all(str(fake.port) not in done.stdout for fake in pair)


def test_a_server_that_is_down_is_1_with_the_findings_of_the_other(pair: tuple[FakeVLLM, FakeVLLM]) -> None:
    with refused_port() as port:
        done = command("check", "--baseline", f"http://127.0.0.1:{port}", "--speculative", pair[1].url, "--json")
    assert (done.returncode, done.stderr) == (1, "")
    found = json.loads(done.stdout)
    assert found["ready"] is False
    levels = {(finding["lane"], finding["key"]): finding["level"] for finding in found["findings"]}
    assert levels["baseline", "connection_refused"] == "problem"
    assert levels["speculative", "reachable"] == "ok"
    assert str(port) not in done.stdout


def test_a_wrong_address_is_2_and_one_line() -> None:
    done = command("check", "--baseline", "foo", "--speculative", "http://127.0.0.1:9")
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert "BASELINE" in done.stderr
