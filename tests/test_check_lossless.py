"""``specrace check --lossless`` as it is typed: exit status, JSON, and what reads on a terminal."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app import check
from app.cli import main
from app.race import lossless
from tests.fakes.vllm import FakeThread, FakeVLLM, Metrics
from tests.race.test_sampling import sampler

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(check, "configure_logs", lambda: None)
    monkeypatch.setattr(lossless, "RELABELLINGS", 1)


@pytest.fixture
def fakes() -> Iterator[FakeThread]:
    with FakeThread() as thread:
        yield thread


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str], fakes: FakeThread) -> Run:
    """Exit status, stdout and stderr of a check of a pair whose speculative server has this script."""

    def call(script: Any, *args: str, metrics: Metrics | None = None) -> tuple[int, str, str]:
        base = fakes.start(FakeVLLM(script=sampler()))
        spec = fakes.start(FakeVLLM(script=script, speculative=3, metrics=metrics or Metrics()))
        with pytest.raises(SystemExit) as caught:
            main(["check", "--baseline", base.root, "--speculative", spec.root, *args])
        said = capfd.readouterr()
        status = caught.value.code
        assert isinstance(status, int)
        return status, said.out, said.err

    return call


def found(out: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The JSON report, and its finding about the samples."""
    report = json.loads(out)
    return report, next(one for one in report["findings"] if one["key"] == "lossless")


def test_a_pair_without_a_fault(cli: Run) -> None:
    _, out, _ = cli(sampler(per_chunk=2), "--lossless", "--samples", "20", "--json")
    report, finding = found(out)
    assert (report["lossless"]["verdict"], report["lossless"]["samples"]) == ("no_difference", 60)
    assert finding["level"] == "ok"
    assert finding["detail"].startswith("no difference found in 60 samples of each server")
    assert finding["remedy"] is None


def test_a_faulty_sampler_is_a_problem_and_exit_1(cli: Run) -> None:
    status, out, err = cli(sampler(fault=True), "--lossless", "--samples", "20")
    assert status == 1
    assert err == ""
    assert out.startswith("lossless: DIFFERENCE FOUND in 60 samples of each server")
    assert "total variation" in out
    assert "acceptance rate 0.0 %" in out
    assert out.splitlines()[-1].startswith("NOT READY:")
    assert "same distribution" in out.splitlines()[-1]


def test_nothing_tested_is_no_pass(cli: Run) -> None:
    status, out, _ = cli(sampler(drafts=False), "--lossless", "--samples", "20", "--json", metrics=Metrics(auto=False))
    report, finding = found(out)
    assert status == 1
    assert report["ready"] is False
    assert report["lossless"]["verdict"] == "untested"
    assert (finding["level"], finding["detail"]) == ("problem", "NOT TESTED: no drafts ran: nothing was tested")


def test_without_the_flag_nothing_is_sampled(cli: Run) -> None:
    _, out, _ = cli(sampler(per_chunk=2), "--json")
    report = json.loads(out)
    assert "lossless" not in report
    assert "lossless" not in [finding["key"] for finding in report["findings"]]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--samples", "100"], "--samples: it says how many answers --lossless compares"),
        (["--lossless", "--samples", "5"], "--samples"),
        (["--lossless", "--samples", "many"], "--samples"),
    ],
)
def test_wrong_use_is_one_line(capfd: pytest.CaptureFixture[str], args: list[str], words: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["check", "--baseline", "http://127.0.0.1:9", "--speculative", "http://127.0.0.1:9", *args])
    said = capfd.readouterr()
    assert caught.value.code == 2
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert words in said.err
