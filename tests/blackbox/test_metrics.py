"""Acceptance from the server's counters: P11-P17. Their growth counts, whatever the page of numbers looks like."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.blackbox.app import App, Run, check_run, running
from tests.fakes.vllm import DONE, FIN, ROLE, SLEEP, TOK, USE, FakeThread, FakeVLLM, Metrics, Move, paced

HUNDRED = Move(100, 300, 150, (80, 50, 20))
NAMES = {
    "drafts": "vllm:spec_decode_num_drafts",
    "draft_tokens": "vllm:spec_decode_num_draft_tokens",
    "accepted": "vllm:spec_decode_num_accepted_tokens",
}


def answer(tokens: int, *moves: Move, per_chunk: int = 4) -> list[Any]:
    """``tokens`` tokens and the growth of the counters that goes with them; no record in the stream."""
    sizes = [per_chunk] * (tokens // per_chunk) + ([tokens % per_chunk] if tokens % per_chunk else [])
    chunks = [step for n in sizes for step in (TOK("ab " * n, n), SLEEP(0.002))]
    return [ROLE, SLEEP(0.02), *chunks, *moves, Move(generated=tokens), FIN("length"), USE(tokens), DONE]


def page(
    values: dict[str, float],
    *,
    generated: int = 0,
    labels: str = '{engine="0",model_name="s"}',
    end: str = "",
    more: str = "",
) -> str:
    """A /metrics page with these counters."""
    lines = ["# HELP python_info Python platform information", "# TYPE python_info gauge", "python_info 1.0"]
    for name, value in [(NAMES[key], values[key]) for key in NAMES] + [("vllm:generation_tokens", generated)]:
        lines += [f"# TYPE {name}_total counter", f"{name}_total{labels} {value}{end}"]
    return "\n".join(lines) + "\n" + more


class Bench:
    """An app with a plain baseline and a speculative server whose metrics the tests change."""

    def __init__(self, thread: FakeThread, metrics: Metrics | None = None, **env: str) -> None:
        self.baseline = thread.start(FakeVLLM(model="b"))
        self.speculative = thread.start(FakeVLLM(model="s", speculative=3, metrics=metrics or Metrics(auto=False)))
        self.app = App(self.baseline.url, self.speculative.url, env=env)

    def race(self, speculative: Any, baseline: Any = None) -> Run:
        self.baseline.then(baseline or answer(20))
        self.speculative.then(speculative)
        run = self.app.race("count")
        check_run(run)
        return run

    def pages(self, before: str, after: str) -> None:
        """``before`` until the next POST, ``after`` from then on."""
        posts = len(self.speculative.posts)
        self.speculative.metrics = Metrics(
            model="s", spec_k=3, text=lambda: after if len(self.speculative.posts) > posts else before
        )


@pytest.fixture(scope="module")
def benches() -> Iterator[dict[str, Bench]]:
    with FakeThread() as thread:
        made = {
            "plain": Bench(thread),
            "absent": Bench(thread, Metrics(mode="hang")),  # the app has never seen a number of this server
            "lag": Bench(thread, Metrics(lag_s=0.4)),
        }
        with running(*(bench.app for bench in made.values())):
            yield made


def fifty_percent(run: Run) -> None:
    acceptance = run.speculative["acceptance"]
    assert acceptance is not None, "no acceptance although the counters grew"
    assert acceptance["source"] == "server"
    assert acceptance["rate"] == pytest.approx(0.5)
    assert acceptance["mean_length"] == pytest.approx(2.5)


# ------------------------------------------------------------------------------------------------ P11
@pytest.mark.parametrize("comments", [True, False], ids=["typed", "untyped"])
@pytest.mark.parametrize("suffix", ["_total", ""])
def test_p11_counters_with_and_without_total_give_the_same_rate(
    benches: dict[str, Bench], suffix: str, comments: bool
) -> None:
    bench = benches["plain"]
    bench.speculative.metrics = Metrics(model="s", spec_k=3, suffix=suffix, comments=comments, auto=False)
    run = bench.race(answer(251, HUNDRED))
    fifty_percent(run)
    acceptance = run.speculative["acceptance"]
    assert (acceptance["drafts"], acceptance["drafted"], acceptance["accepted"]) == (100, 300, 150)
    assert acceptance["per_position"] == pytest.approx([0.8, 0.5, 0.2])
    assert acceptance["exclusive"] is True


def test_p11_without_any_counter_acceptance_is_not_available(benches: dict[str, Bench]) -> None:
    bench = benches["absent"]
    bench.speculative.metrics = Metrics(model="s", spec_k=3, suffix="gone", auto=False)
    run = bench.race(answer(251, HUNDRED))
    not_available(run)
    for html in (bench.app.page(run), bench.app.stream(run)):
        assert "0 %" not in html.replace("100 %", "")
        assert ">0%<" not in html


def not_available(run: Run) -> None:
    """No rate, or one that is called an estimate from the stream; never 0 %, never a server's number."""
    acceptance = run.speculative["acceptance"]
    assert acceptance is None or acceptance["rate"] is None or acceptance["source"] == "stream", acceptance
    assert acceptance is None or acceptance["rate"] != 0, acceptance


# ------------------------------------------------------------------------------------------------ P12
def test_p12_created_and_per_position_series_are_not_the_counter(benches: dict[str, Bench]) -> None:
    bench = benches["plain"]
    name = NAMES["accepted"]
    labels = '{engine="0",model_name="s"}'
    more = f"# TYPE {name}_created gauge\n{name}_created{labels} 1.796e+09\n# TYPE {name}_per_pos_total counter\n"
    positions = [(80, 50, 20)[i] for i in range(3)]
    before = "".join(f'{name}_per_pos_total{{engine="0",model_name="s",position="{i}"}} 5\n' for i in range(3))
    after = "".join(
        f'{name}_per_pos_total{{engine="0",model_name="s",position="{i}"}} {5 + n}\n' for i, n in enumerate(positions)
    )
    bench.pages(
        page({"drafts": 7, "draft_tokens": 21, "accepted": 9}, more=more + before),
        page({"drafts": 107, "draft_tokens": 321, "accepted": 159}, generated=251, more=more + after),
    )
    run = bench.race(answer(251))
    fifty_percent(run)
    assert run.speculative["acceptance"]["per_position"] == pytest.approx([0.8, 0.5, 0.2])


def test_p12_created_first_and_nothing_else_is_no_counter(benches: dict[str, Bench]) -> None:
    bench = benches["plain"]
    series = "".join(f"# TYPE {n}_created gauge\n{n}_created 1.796e+09\n" for n in NAMES.values())
    bench.pages(series, series.replace("1.796e+09", "1.797e+09"))
    run = bench.race(answer(251))
    not_available(run)


# ------------------------------------------------------------------------------------------------ P13
@pytest.mark.parametrize(
    ("labels", "end"),
    [
        ('{engine="0",model_name="Qwen 3 {x}, \\"v\\""}', " 1796004267813"),
        ('{engine="0",model_name="a}b{c"}', ""),
        ('{engine="0",model_name="back\\\\slash\\nline, comma=\\"1\\""}', " 1796004267813"),
        ('{model_name="Qwen 3 {x}",engine="0",}', ""),
    ],
)
def test_p13_label_values_and_timestamps_are_parsed(benches: dict[str, Bench], labels: str, end: str) -> None:
    bench = benches["plain"]
    bench.pages(
        page({"drafts": 0.0, "draft_tokens": 0.0, "accepted": 0.0}, labels=labels, end=end),
        page({"drafts": 100.0, "draft_tokens": 300.0, "accepted": 150.0}, generated=251, labels=labels, end=end),
    )
    run = bench.race(answer(251))
    fifty_percent(run)
    assert run.speculative["acceptance"]["drafted"] == 300


# ------------------------------------------------------------------------------------------------ P14
def test_p14_data_parallel_engines_are_summed(benches: dict[str, Bench]) -> None:
    bench = benches["plain"]
    bench.speculative.metrics = Metrics(model="s", spec_k=3, engines=("0", "1"), auto=False)
    second = Move(HUNDRED.drafts, HUNDRED.draft_tokens, HUNDRED.accepted, HUNDRED.per_pos, engine="1")
    run = bench.race(answer(501, HUNDRED, second))
    fifty_percent(run)
    acceptance = run.speculative["acceptance"]
    assert (acceptance["drafts"], acceptance["drafted"], acceptance["accepted"]) == (200, 600, 300)
    assert acceptance["per_position"] == pytest.approx([0.8, 0.5, 0.2])
    assert acceptance["mean_length"] == pytest.approx(1 + sum(acceptance["per_position"]))


def test_p14_one_engine_of_two_did_the_work(benches: dict[str, Bench]) -> None:
    bench = benches["plain"]
    bench.speculative.metrics = Metrics(model="s", spec_k=3, engines=("0", "1", "10"), auto=False)
    run = bench.race(answer(251, Move(100, 300, 150, (80, 50, 20), engine="10")))
    fifty_percent(run)
    assert run.speculative["acceptance"]["per_position"] == pytest.approx([0.8, 0.5, 0.2])


def test_p14_traffic_of_others_is_named(benches: dict[str, Bench]) -> None:
    bench = benches["plain"]
    bench.speculative.metrics = Metrics(model="s", spec_k=3, auto=False)
    run = bench.race(answer(251, HUNDRED, HUNDRED, HUNDRED))
    assert run.speculative["acceptance"]["exclusive"] is False
    assert "other_traffic" in run.comparison["caveats"]


@pytest.mark.parametrize("after", [(100, 300, 150), (0, 0, 0), (6, 18, 2)])
def test_p14_counters_that_went_down_are_no_growth(benches: dict[str, Bench], after: tuple[int, int, int]) -> None:
    bench = benches["plain"]
    bench.pages(
        page({"drafts": 5000, "draft_tokens": 15000, "accepted": 9000}),
        page(dict(zip(NAMES, after, strict=True))),
    )
    run = bench.race(answer(251))
    acceptance = run.speculative["acceptance"]
    assert "counters_reset" in run.comparison["caveats"] or acceptance is None or acceptance["rate"] is None
    if acceptance is not None and acceptance["rate"] is not None:
        assert acceptance["rate"] == pytest.approx(after[2] / after[1])


def test_p14_a_restart_that_the_server_owns_up_to_is_growth_from_zero(benches: dict[str, Bench]) -> None:
    """A newer ``_created`` proves the reset: the new value is the growth, and the race says so."""
    bench = benches["plain"]
    labels = '{engine="0",model_name="s"}'

    def created(at: str) -> str:
        return "".join(f"# TYPE {n}_created gauge\n{n}_created{labels} {at}\n" for n in NAMES.values())

    bench.pages(
        page({"drafts": 50, "draft_tokens": 150, "accepted": 90}, more=created("1.796e+09")),
        page({"drafts": 100, "draft_tokens": 300, "accepted": 150}, generated=251, more=created("1.797e+09")),
    )
    run = bench.race(answer(251))
    fifty_percent(run)
    assert run.speculative["acceptance"]["drafts"] == 100
    assert "counters_reset" in run.comparison["caveats"]


# ------------------------------------------------------------------------- lies of other kinds (P11, P14, P17)
def test_all_of_acceptance_is_in_the_json(benches: dict[str, Bench]) -> None:
    bench = benches["plain"]
    bench.speculative.metrics = Metrics(model="s", spec_k=3, auto=False)
    acceptance = bench.race(answer(251, HUNDRED)).speculative["acceptance"]
    assert acceptance["conditional"] == pytest.approx([0.8, 0.625, 0.4])  # 0.8, 0.5 / 0.8, 0.2 / 0.5
    assert acceptance["histogram"] == [20, 30, 30, 20]  # 100 steps, of which 80, 50, 20 got to a position
    assert acceptance["effective_tokens_per_pass"] == pytest.approx(2.5)  # 250 / (250 - 150)
    assert acceptance["share_of_output"] == pytest.approx(150 / 251)
    assert acceptance["alpha"] == pytest.approx(150 / 230)  # 80 of 100 steps turned a token down
    assert acceptance["doubt"] is None


BEFORE = {"drafts": 7, "draft_tokens": 21, "accepted": 9}
AFTER = {"drafts": 107, "draft_tokens": 321, "accepted": 159}


TITLES = {
    "reset": "Counters went down in the race",
    "unreadable": "Counters that are no numbers",
    "incomplete": "Counters are missing",
    "contradictory": "Counters contradict each other",
}


def gone(text: str, key: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if f"{NAMES[key]}_total" not in line)


@pytest.mark.parametrize(
    ("before", "after", "doubt"),
    [
        (page(BEFORE), gone(page(AFTER, generated=251), "accepted"), "incomplete"),
        (gone(page(BEFORE), "accepted"), gone(page(AFTER, generated=251), "accepted"), "incomplete"),
        (page(BEFORE), page(AFTER | {"accepted": float("nan")}, generated=251), "unreadable"),
        (page(BEFORE), page(AFTER | {"accepted": -1}, generated=251), "unreadable"),
        (page(BEFORE), page(AFTER, generated=251) + page(AFTER | {"accepted": 12}), "unreadable"),
        (page(BEFORE), page(AFTER | {"accepted": 500}, generated=251), "contradictory"),
        (page(BEFORE), page(BEFORE | {"drafts": 3}, generated=251), "reset"),
        (page(BEFORE), "# nothing here any more\n# TYPE python_info gauge\npython_info 1.0\n", "incomplete"),
    ],
)
def test_counters_that_lie_are_no_figure_and_the_page_says_why(
    benches: dict[str, Bench], before: str, after: str, doubt: str
) -> None:
    bench = benches["plain"]
    bench.pages(before, after)
    run = bench.race(answer(251))
    acceptance = run.speculative["acceptance"]
    assert (acceptance["source"], acceptance["rate"], acceptance["doubt"]) == ("server", None, doubt)
    assert acceptance["drafted"] is None
    assert acceptance["effective_tokens_per_pass"] is None
    assert ("counters_reset" in run.comparison["caveats"]) is (doubt == "reset")
    assert "no_drafts" not in run.comparison["caveats"]
    assert "other_traffic" not in run.comparison["caveats"]
    assert TITLES[doubt] in bench.app.page(run)


@pytest.mark.parametrize("labels", [("0", "2", "3"), ("0", "1", "x"), ("0", "1", "01")])
def test_positions_that_cannot_be_read_leave_the_rate_alone(benches: dict[str, Bench], labels: tuple[str, ...]) -> None:
    bench = benches["plain"]

    def positions(counts: tuple[int, ...]) -> str:
        series = f"{NAMES['accepted']}_per_pos_total"
        return "".join(
            f'{series}{{engine="0",model_name="s",position="{label}"}} {count}\n'
            for label, count in zip(labels, counts, strict=True)
        )

    bench.pages(page(BEFORE, more=positions((0, 0, 0))), page(AFTER, generated=251, more=positions((80, 50, 20))))
    run = bench.race(answer(251))
    fifty_percent(run)
    assert (run.speculative["acceptance"]["per_position"], run.speculative["acceptance"]["conditional"]) == (None, None)


# ------------------------------------------------------------------------------------------------ P15
def test_p15_no_draft_and_one_token_is_no_number_and_no_crash(benches: dict[str, Bench]) -> None:
    bench = benches["plain"]
    bench.speculative.metrics = Metrics(model="s", spec_k=3, auto=False)
    yes = [ROLE, SLEEP(0.02), TOK("Yes"), FIN("stop"), USE(1), DONE]
    run = bench.race(yes, yes)
    assert run.status == "finished"
    lane = run.speculative
    assert lane["acceptance"] is None or lane["acceptance"]["rate"] is None
    assert lane["completion_tokens"] == 1
    assert lane["ttft_ms"] is not None
    assert lane["tpot_ms"] is None
    assert lane["decode_tokens_per_second"] is None
    assert run.comparison["decode_speedup"] is None
    assert run.comparison["speedup"] is None
    assert run.comparison["verdict"] is None
    for text in (bench.app.stream(run), bench.app.page(run), run.raw_race, run.raw_events):
        assert "NaN" not in text
        assert "Infinity" not in text


def test_p15_no_draft_in_a_long_answer(benches: dict[str, Bench]) -> None:
    bench = benches["plain"]
    bench.speculative.metrics = Metrics(model="s", spec_k=3, auto=False)
    run = bench.race(answer(30, per_chunk=1))
    assert run.status == "finished"
    acceptance = run.speculative["acceptance"]
    assert acceptance is None or acceptance["rate"] is None, "0/0 is not 0 %"
    assert "no_drafts" in run.comparison["caveats"]
    assert run.comparison["speedup"] is not None, "the speed-up needs no drafts"
    assert "No drafts ran" in bench.app.page(run)


# ------------------------------------------------------------------------------------------------ P16
def test_p16_a_server_that_does_not_speculate_is_not_at_0_percent(benches: dict[str, Bench]) -> None:
    bench = benches["plain"]
    bench.speculative.metrics = Metrics(model="s", spec_k=3, auto=False)
    run = bench.race(answer(251, HUNDRED))
    assert run.baseline["acceptance"] is None
    assert run.baseline["method"] is None
    assert run.baseline["num_speculative_tokens"] is None
    assert bench.app.endpoint("baseline")["speculating"] is False
    assert "not speculative" in bench.app.page(run).lower() + bench.app.stream(run).lower()


def test_p16_the_speculative_server_tells_its_k(benches: dict[str, Bench]) -> None:
    bench = benches["lag"]
    assert bench.app.endpoint("speculative")["speculating"] is True
    run = bench.race(paced(41, every_s=0.005, per_chunk=4))
    assert run.speculative["num_speculative_tokens"] == 3
    assert run.speculative["method"] is not None


# ------------------------------------------------------------------------------------------------ P17
def test_p17_late_counters_are_waited_for_and_complete(benches: dict[str, Bench]) -> None:
    """The growth of each step shows 0.4 s late: right after the stream a part of it is there, which is no result."""
    bench = benches["lag"]
    bench.speculative.metrics = Metrics(model="s", spec_k=3, lag_s=0.4)
    run = bench.race(paced(201, every_s=0.02, per_chunk=3))
    acceptance = run.speculative["acceptance"]
    assert acceptance is not None
    assert acceptance["source"] == "server"
    # a first step of 3 tokens without a draft, then 66 steps of 3 tokens: 2 of 3 drafted accepted
    assert (acceptance["drafts"], acceptance["drafted"], acceptance["accepted"]) == (66, 198, 132)
    assert acceptance["exclusive"] is True


def test_p17_counters_that_never_come_are_not_available_and_hold_nothing_up(benches: dict[str, Bench]) -> None:
    bench = benches["lag"]
    bench.speculative.metrics = Metrics(model="s", spec_k=3, lag_s=30)
    run = bench.race(paced(41, every_s=0.01, per_chunk=4))
    not_available(run)
    assert run.wall_s < 4.5, "a race waits about 2 s for the counters, not longer"


ABSENT = ["404", "401", "500", "html"]


@pytest.mark.parametrize("mode", [*ABSENT, "hang"])
def test_p17_metrics_that_are_not_there_leave_the_race_alone(benches: dict[str, Bench], mode: Any) -> None:
    bench = benches["absent"]
    bench.speculative.metrics = Metrics(model="s", spec_k=3, mode=mode)
    began = time.perf_counter()
    run = bench.race(paced(41, every_s=0.01, per_chunk=4, ttft_s=0.02))
    not_available(run)
    assert run.status == "finished"
    assert run.speculative["completion_tokens"] == 41
    assert run.speculative["ttft_ms"] == pytest.approx(bench.speculative.posts[-1].ttft_ms, abs=100)
    first = next(m.at for m in run.messages if m.event != "done" and m.json["type"] == "lane.chunk")
    assert first - began < 1.0, "tokens waited for metrics"
    assert run.comparison["speedup"] is not None
    assert run.wall_s < 5


def test_p17_slow_metrics_do_not_make_tokens_wait(benches: dict[str, Bench]) -> None:
    bench = benches["plain"]
    bench.speculative.metrics = Metrics(model="s", spec_k=3, auto=False, delay_s=0.5)
    began = time.perf_counter()
    run = bench.race(answer(251, HUNDRED))
    first = next(m.at for m in run.messages if m.event != "done" and m.json["type"] == "lane.chunk")
    assert first - began < 1.2
    ttft_ms = bench.speculative.posts[-1].ttft_ms
    assert run.speculative["ttft_ms"] == pytest.approx(ttft_ms, abs=100), "the scrape is in a figure"


def test_apps_do_not_scrape_more_than_they_need(benches: dict[str, Bench]) -> None:
    bench = benches["plain"]
    bench.speculative.metrics = Metrics(model="s", spec_k=3, auto=False)
    bench.speculative.forget()
    bench.race(answer(251, HUNDRED))
    assert len(bench.speculative.gets("/metrics")) <= 15


# ------------------------------------------------------------------------------------------------ sources
# Last, since an app need not read the counters of a server that has once reported per request.
def test_the_requests_own_record_is_preferred_to_the_counters(benches: dict[str, Bench]) -> None:
    bench = benches["plain"]
    bench.speculative.metrics = Metrics(model="s", spec_k=3, auto=False)
    # the counters hold the traffic of others as well
    run = bench.race([ROLE, *[TOK("ab " * 3, 3), SLEEP(0.002)] * 20, HUNDRED, FIN(), USE(60, spec="auto"), DONE])
    acceptance = run.speculative["acceptance"]
    assert acceptance["source"] == "request"
    assert acceptance["rate"] == pytest.approx(2 / 3)
    assert acceptance["mean_length"] == pytest.approx(3.0)


def test_p15_a_record_without_drafts(benches: dict[str, Bench]) -> None:
    bench = benches["plain"]
    empty = {"mean_acceptance_length": 1.0, "draft_acceptance_rate": 0.0, "acceptance_histogram": [0, 0, 0, 0]}
    empty |= {"num_spec_steps": 0, "num_accepted_draft_tokens": 0, "num_draft_tokens": 0, "num_spec_tokens": 3}
    run = bench.race([ROLE, *[TOK("ab "), SLEEP(0.005)] * 20, FIN(), USE(20, spec=empty), DONE])
    acceptance = run.speculative["acceptance"]
    assert acceptance is None or acceptance["rate"] is None
