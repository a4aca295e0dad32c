"""The result of repeated races as Markdown, CSV and JSON: what stands in a cell, worked by hand."""

from __future__ import annotations

import csv
import io
import json

from msgspec import structs

from app.race.repeats import Lap
from app.race.report import Head, Report, as_csv, as_json, as_markdown, lap_line, row
from app.race.summary import RaceSummary
from app.race.types import LANES
from tests.race.test_repeats import race

HEAD = Head(
    at="2026-11-30T08:00:00Z",
    models={"baseline": "gemma", "speculative": "gemma"},
    versions={"baseline": "0.32.0", "speculative": "0.32.0"},
    speculating=True,
    method="ngram",
    num_speculative_tokens=4,
    schedule="in_turn",
    repeats=3,
    warm_up=True,
    fresh_cache=True,
)


def lap(one: RaceSummary, number: int = 1) -> Lap:
    busy = {lane: one.lanes[lane].e2e_ms for lane in LANES}
    return Lap(races=(one,), busy_ms=busy, number=number, first=LANES[(number - 1) % 2])


def report(*races: RaceSummary, ended: str | None = None, head: Head = HEAD) -> Report:
    laps = [lap(one, number) for number, one in enumerate(races, start=1)]
    return Report(head=head, rows=(row("json-records", 1, laps, asked=3),), ended=ended)


def cells(text: str, heading: str) -> list[dict[str, str]]:
    """The lines of the table whose first line names ``heading``."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    tables: list[list[list[str]]] = []
    for line in lines:
        parts = [part.strip() for part in line.strip("|").split(" | ")]
        if parts[0] == "workload":
            tables.append([])
        tables[-1].append(parts)
    table = next(table for table in tables if heading in table[0])
    assert all(set(part) == {"-"} for part in table[1])
    return [dict(zip(table[0], parts, strict=True)) for parts in table[2:]]


def test_the_whole_table_of_three_races() -> None:
    # E2E_b 1100, 1100, 900; E2E_s 600, 725, 600; TPOT_b 10, 10, 8; TPOT_s 5, 6.25, 5; 101 tokens
    text = as_markdown(report(race(), race(spec_ms=25.0), race(base_ms=8.0)))
    assert cells(text, "speedup") == [
        {
            "workload": "json-records",
            "at once": "1",
            "counted": "3 of 3",
            "speedup": "1.52x [1.50x–1.83x]",
            "decode speedup": "1.60x [1.60x–2.00x]",
            "acceptance": "75.0% [75.0%–75.0%] (per-request record)",
            "mean acceptance length": "4.00 [4.00–4.00]",
            "tokens per pass": "4.00 [4.00–4.00]",
            "text identical": "3 of 3",
            "verdict": "worth it at 1 at once",
        }
    ]
    assert cells(text, "lane") == [
        {
            "workload": "json-records",
            "at once": "1",
            "lane": "baseline",
            "TTFT ms": "100.00 [100.00–100.00]",
            "TPOT ms": "10.00 [8.00–10.00]",
            "tokens/s": "91.8 [91.8–112.2]",
            "all tokens/s": "91.8 [91.8–112.2]",
            "tokens": "101 [101–101]",
        },
        {
            "workload": "json-records",
            "at once": "1",
            "lane": "speculative",
            "TTFT ms": "100.00 [100.00–100.00]",
            "TPOT ms": "5.00 [5.00–6.25]",
            "tokens/s": "168.3 [139.3–168.3]",
            "all tokens/s": "168.3 [139.3–168.3]",
            "tokens": "101 [101–101]",
        },
    ]


def test_the_header_says_what_was_measured() -> None:
    head = as_markdown(report(race())).split("\n\n")[:2]
    assert head == [
        "Specrace, 2026-11-30T08:00:00Z: plain vLLM against speculative decoding",
        (
            "- model: gemma\n- speculation: method ngram, k = 4\n- vLLM: 0.32.0\n"
            "- 3 repeats, lanes in turn, who goes first alternates; a cache salt for every request; warmed up\n"
            "- figures are median [lowest–highest]; speedups are of paired runs"
        ),
    ]


def test_the_header_says_what_it_does_not_know() -> None:
    head = structs.replace(
        HEAD,
        models={"baseline": "a", "speculative": "b|c"},
        versions={"baseline": None, "speculative": "0.32.0"},
        method="unknown",
        num_speculative_tokens=None,
        schedule="together",
        warm_up=False,
        fresh_cache=False,
    )
    text = as_markdown(report(race(), head=head, ended="the baseline server\nis gone"))
    assert "- model: baseline a, speculative b\\|c\n" in text
    assert "- speculation: method not told by the server\n" in text
    assert "- vLLM: baseline version not told, speculative 0.32.0\n" in text
    assert "lanes together, who goes first alternates; prefix cache as the servers have it; not warmed up\n" in text
    assert "- **ended early**: the baseline server is gone\n" in text
    silent = structs.replace(HEAD, speculating=False, method=None)
    assert "- speculation: the speculative server does not speculate\n" in as_markdown(report(race(), head=silent))


def test_what_does_not_count_and_what_could_spoil_it_stands_below() -> None:
    text = as_markdown(report(race(conditions=("scheduling_differs",)), race(status="cut_off"), race(token=8)))
    line = cells(text, "speedup")[0]
    assert line["counted"] == "2 of 3"
    assert line["text identical"] == "1 of 2"
    assert line["verdict"] == "none: a verdict needs 3 repeats: 2 of 3 repeats counted"
    assert text.endswith(
        "- json-records, 1 at once: scheduling differs 1 of 2, text diverged 1 of 2\n"
        "- json-records, 1 at once: repeat 2 does not count: speculative cut_off: It broke. Do this.\n"
    )


def test_a_lane_that_was_stopped_was_called_it_stopped() -> None:
    stopped = structs.replace(race(), status="stopped")
    lanes = {lane: structs.replace(one, status="stopped") for lane, one in stopped.lanes.items()}
    text = as_markdown(report(structs.replace(stopped, lanes=lanes)))
    assert "repeat 1 does not count: baseline was stopped\n" in text
    assert "repeat 1 does not count: speculative was stopped\n" in text


def test_p22_a_cold_race_that_was_left_out_is_named() -> None:
    found = report(race(), race(conditions=("cold_start",)), race())
    text = as_markdown(found)
    assert cells(text, "speedup")[0]["counted"] == "2 of 3"
    assert text.endswith("- json-records, 1 at once: 1 cold race left out (repeat 2)\n")
    lines = list(csv.DictReader(io.StringIO(as_csv(found).decode())))
    assert [line["counted"] for line in lines] == ["true", "true", "false", "false", "true", "true"]
    assert lap_line("json", 1, lap(race(conditions=("cold_start",))), asked=3).endswith(
        "acceptance 75.0%; cold start: it counts only if all are cold"
    )


def test_a_figure_that_some_races_lack_says_of_how_many_it_is() -> None:
    line = cells(as_markdown(report(race(), race(record=None), race())), "speedup")[0]
    assert line["acceptance"] == "75.0% [75.0%–75.0%] (2 of 3) (per-request record)"
    alone = cells(as_markdown(report(race(record=None))), "speedup")[0]
    assert (alone["acceptance"], alone["mean acceptance length"], alone["tokens per pass"]) == ("n/a", "n/a", "n/a")
    assert alone["speedup"] == "1.83x", "one value has no spread"
    assert alone["counted"] == "1 of 3"


def test_sampled_texts_are_not_compared() -> None:
    assert cells(as_markdown(report(race(temperature=1.0))), "speedup")[0]["text identical"] == "not compared (sampled)"
    assert cells(as_markdown(report(race(status="failed"))), "speedup")[0]["text identical"] == "n/a"


def test_a_loss_is_printed_as_one_with_its_cause() -> None:
    # TPOT 10 and 12.5, E2E 1100 and 1350
    line = cells(as_markdown(report(*[race(spec_ms=50.0)] * 3)), "speedup")[0]
    assert line["decode speedup"] == "0.80x [0.80x–0.80x]"
    assert line["speedup"] == "0.81x [0.81x–0.81x]"
    assert line["verdict"] == "hurts at 1 at once (costly steps)"


def test_nothing_measured_is_a_header_without_a_table() -> None:
    text = as_markdown(Report(head=HEAD, rows=(), ended="interrupted"))
    assert "|" not in text
    assert "- **ended early**: interrupted\n" in text


def test_one_lap_in_one_line() -> None:
    assert lap_line("json", 1, lap(race()), asked=3) == (
        "json, 1 at once, repeat 1 of 3 (baseline first): speedup 1.83x, decode 2.00x, acceptance 75.0%"
    )
    assert lap_line("json", 1, lap(race(status="cut_off"), 2), asked=3) == (
        "json, 1 at once, repeat 2 of 3 (speculative first): does not count: speculative cut_off: It broke. Do this."
    )


def test_csv_has_a_line_for_each_request_and_lane_from_which_everything_can_be_recomputed() -> None:
    found = report(race(), race(status="cut_off"), race(base_ms=8.0, record=None))
    lines = list(csv.DictReader(io.StringIO(as_csv(found).decode())))
    assert [(line["repeat"], line["lane"], line["counted"], line["first"]) for line in lines] == [
        ("1", "baseline", "true", "baseline"),
        ("1", "speculative", "true", "baseline"),
        ("2", "baseline", "false", "speculative"),
        ("2", "speculative", "false", "speculative"),
        ("3", "baseline", "true", "baseline"),
        ("3", "speculative", "true", "baseline"),
    ]
    base, fast = lines[0], lines[1]
    assert (float(base["tpot_ms"]) / float(fast["tpot_ms"])) == float(fast["decode_speedup"]) == 2.0
    assert int(fast["accepted"]) / int(fast["drafted"]) == float(fast["acceptance_rate"]) == 0.75
    assert (fast["drafts"], fast["tau"], fast["step_cost"]) == ("25", "4.0", "2.0")
    assert (fast["at_once"], fast["request"], fast["busy_ms"], fast["seed"]) == ("1", "1", "600.0", "0")
    assert (lines[5]["drafted"], lines[5]["acceptance_rate"]) == ("", ""), "what there is not is an empty cell"


def test_json_holds_the_results_and_every_race() -> None:
    found = json.loads(as_json(report(race(), race(spec_ms=25.0), race(base_ms=8.0))))
    assert found["head"]["num_speculative_tokens"] == 4
    line = found["rows"][0]
    assert (line["workload"], line["at_once"]) == ("json-records", 1)
    assert line["result"]["decode_speedup"] == {"median": 1.6, "low": 1.6, "high": 2.0, "values": [2.0, 1.6, 1.6]}
    assert line["result"]["verdict"] == "worth_it"
    assert [one["races"][0]["lanes"]["speculative"]["tpot_ms"] for one in line["laps"]] == [5.0, 6.25, 5.0]
