"""What facts mean for a show: every finding by hand, with the flag that mends it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import structs

from app.ops import compare, judge
from app.ops.findings import Finding
from app.ops.observed import Answer, Defaults, Exposed, Facts, Info, Served, exposed_in, info_in, served_in
from app.race.divergence import Continuation, Divergence
from app.race.failures import UpstreamError
from app.race.scoreboard import Scoreboard
from app.race.summary import RaceMeta, RaceSummary, summarize
from app.race.types import Acceptance, EndpointState, LaneIdentity, LaneName
from app.race.workloads import Workload
from tests.race.helpers import spec

GOOD = Answer(
    token_ids=True,
    final_usage=True,
    running_usage=True,
    cached_again=0,
    record="detailed",
    prompt_tokens=310,
    first_ttft_ms=120,
    again_ttft_ms=100,
)


def facts(lane: LaneName = "speculative", *, state: dict[str, Any] | None = None, **rest: Any) -> Facts:
    speculates = lane == "speculative"
    known = {
        "lane": lane,
        "status": "ready",
        "identity": LaneIdentity(
            model="m",
            method="unknown" if speculates else None,
            num_speculative_tokens=4 if speculates else None,
        ),
        "speculating": speculates,
        "max_model_len": 2048,
        "version": "0.32.0",
    }
    given = {
        "served": Served("m", "org/m", "vLLM"),
        "latencies_ms": (1.0, 2.0, 9.0),
        "exposed": Exposed(running=0, waiting=0, prefix_caching=False),
        "probe_ids": (2, 5, 7),
        "ids_from": "/tokenize",
        "lengths": (("json", 100),),
        "answer": GOOD if (known | (state or {}))["speculating"] else structs.replace(GOOD, record=None),
        "defaults": Defaults(status="neutral"),
    }
    return Facts(state=EndpointState(**(known | (state or {}))), **(given | rest))


def workload(name: str = "json", max_tokens: int = 200) -> Workload:
    return Workload(name=name, tab="t", title=name, prompt="p", max_tokens=max_tokens)


def found(findings: Any, key: str) -> Finding:
    return next(finding for finding in findings if finding.key == key)


def of(one: Facts, key: str, workloads: list[Workload] | None = None) -> Finding:
    return found(judge.lane_findings(one, [workload()] if workloads is None else workloads), key)


def of_pair(key: str, baseline: Facts | None = None, speculative: Facts | None = None, **rest: Any) -> Finding:
    pair = {"baseline": baseline or facts("baseline"), "speculative": speculative or facts()}
    return found(compare.pair_findings(pair, **rest), key)


# ------------------------------------------------------------------------------------------ one server
@pytest.mark.parametrize("lane", ["baseline", "speculative"])
def test_a_good_server_has_nothing_to_mend(lane: LaneName) -> None:
    one = facts(lane, state={"identity": LaneIdentity(model="m", method="eagle3", num_speculative_tokens=3)})
    findings = list(judge.lane_findings(one, [workload()]))
    assert {finding.level for finding in findings} == {"ok"}
    assert {finding.remedy for finding in findings} == {None}
    assert all(finding.lane == lane for finding in findings)
    assert findings[0].detail == "vLLM answers, in 2.0 ms (median of 3); model m"


def test_a_key_that_was_accepted_is_said() -> None:
    assert of(facts(with_key=True), "reachable").detail.endswith("; key accepted")


def test_a_server_that_is_down_has_one_finding_with_its_remedy() -> None:
    error = UpstreamError("connection_refused", "Nothing listens at the server's address").error
    findings = list(judge.lane_findings(Facts(state=EndpointState(lane="baseline", error=error)), [workload()]))
    assert [(f.key, f.level, f.detail) for f in findings] == [
        ("connection_refused", "problem", "Nothing listens at the server's address."),
    ]
    assert findings[0].remedy == "Start it, wait until it is up again, or correct its address."


def test_a_refused_key_names_the_variable_of_its_lane() -> None:
    error = UpstreamError("unauthorized", "The server refused the key (HTTP 401)").error
    (one,) = judge.lane_findings(Facts(state=EndpointState(lane="speculative", error=error)), [])
    assert (one.level, one.code) == ("problem", "SPECRACE_SPECULATIVE_API_KEY")


def test_speculation_is_on_here_and_off_there() -> None:
    assert of(facts("baseline"), "speculation").level == "ok"
    wrong = of(facts("baseline", state={"speculating": True}), "speculation")
    assert (wrong.level, wrong.code) == ("problem", "--speculative-config")
    off = of(facts(state={"speculating": False}), "speculation")
    assert (off.level, off.detail) == ("problem", "off")
    assert off.code is not None
    assert json.loads(off.code.split(" ", 1)[1].strip("'")) == {"method": "ngram", "num_speculative_tokens": 4}


@pytest.mark.parametrize("counters", [None, False])
def test_a_record_in_the_answer_outranks_counters_that_are_not_there(counters: bool | None) -> None:
    told = facts(state={"speculating": counters}, answer=GOOD)
    assert "on" in of(told, "speculation").detail
    assert of(told, "spec_record").level == "ok"
    assert of(facts("baseline", state={"speculating": counters}, answer=GOOD), "speculation").level == "problem"


def test_a_method_that_is_not_told_is_a_note_with_how_to_tell() -> None:
    note = of(facts(), "speculation")
    assert (note.level, note.detail, note.code) == ("note", "on, k = 4; the method is not told", "specrace up")
    told = of(facts(info=Info(method="ngram")), "speculation")
    assert (told.level, told.detail) == ("ok", "on: ngram, k = 4")


def test_counters_that_cannot_be_read_leave_speculation_open() -> None:
    note = of(facts(state={"speculating": None}), "speculation")
    assert (note.level, note.code) == ("note", "SPECRACE_SPECULATIVE_METRICS_URL")
    other = of(facts(state={"speculating": None}, served=Served("m", None, "SGLang")), "speculation")
    assert (other.level, other.remedy) == ("note", None)
    assert other.detail == "n/a here: SGLang does not show it to us"


@pytest.mark.parametrize(
    ("first", "again", "level", "words"),
    [
        (120.0, 100.0, "ok", "TTFT 100 ms for 310 prompt tokens"),
        (9_000.0, 100.0, "note", "the first after its start took 9.0 s"),
        (900.0, 100.0, "ok", "TTFT 100 ms"),  # not a second longer
        (2_500.0, 1_000.0, "ok", "TTFT 1000 ms"),  # not three times as long
        (6_000.0, 5_001.0, "warning", "TTFT 5001 ms"),
    ],
)
def test_slow_and_cold_answers_are_said(first: float, again: float, level: str, words: str) -> None:
    one = of(facts(answer=structs.replace(GOOD, first_ttft_ms=first, again_ttft_ms=again)), "answers")
    assert one.level == level
    assert words in one.detail


def test_an_answer_that_failed_is_a_problem_and_nothing_is_concluded_from_it() -> None:
    error = UpstreamError("cut_off", "The stream ended in the middle of the answer").error
    findings = list(judge.lane_findings(facts(answer=Answer(error=error)), [workload()]))
    failed = found(findings, "cut_off")
    assert (failed.level, failed.remedy) == ("problem", "The server may have died: look into its log, then race again.")
    assert not {"spec_record", "token_counts", "cached_tokens"} & {finding.key for finding in findings}


def test_a_missing_record_names_the_flag() -> None:
    flag = "--per-request-spec-decode-metrics detailed"
    without = facts(answer=structs.replace(GOOD, record=None))
    assert (of(without, "spec_record").level, of(without, "spec_record").code) == ("warning", flag)
    assert of(facts(answer=structs.replace(GOOD, record="summary")), "spec_record").level == "note"
    blind = of(facts(answer=structs.replace(GOOD, record=None), state={"speculating": None}), "spec_record")
    assert blind.detail == "none, and no counters: acceptance will be n/a"
    other = of(facts(answer=structs.replace(GOOD, record=None), served=Served("m", None, "llama.cpp")), "spec_record")
    assert (other.level, other.remedy) == ("note", None)
    baseline = judge.lane_findings(facts("baseline", answer=structs.replace(GOOD, record=None)), [])
    assert "spec_record" not in {finding.key for finding in baseline}  # the flag is a start-up error there


@pytest.mark.parametrize(
    ("ids", "running", "final", "level", "words"),
    [
        (True, True, True, "ok", "exact: token ids, running usage, final usage"),
        (True, False, True, "ok", "exact: token ids, final usage"),
        (
            False,
            True,
            True,
            "note",
            "from usage while it runs (running usage, final usage); not honoured: return_token",
        ),
        (False, False, True, "note", "only known at the end (final usage)"),
        (True, False, False, "note", "exact while it runs (token ids); not honoured: continuous_usage_stats, include"),
        (False, False, False, "problem", "none: tokens would be guessed"),
    ],
)
def test_one_way_to_count_tokens_is_enough(ids: bool, running: bool, final: bool, level: str, words: str) -> None:
    answer = structs.replace(GOOD, token_ids=ids, running_usage=running, final_usage=final)
    one = of(facts(answer=answer), "token_counts")
    assert one.level == level
    assert one.detail.startswith(words)


def test_cached_tokens_that_are_not_told_name_the_flag() -> None:
    silent = structs.replace(GOOD, cached_again=None)
    assert of(facts(answer=silent), "cached_tokens").code == "--enable-prompt-tokens-details"
    other = of(facts(answer=silent, served=Served("m", None, "another server")), "cached_tokens")
    assert (other.level, other.remedy) == ("note", None)


def test_every_ready_prompt_has_to_fit_into_the_context_with_its_answer() -> None:
    prompts = [workload("a", 100), workload("b", 100), workload("c", 100)]
    lengths = (("a", 100), ("b", 1949), ("c", 2048))
    findings = [f for f in judge.lane_findings(facts(lengths=lengths), prompts) if f.key == "context"]
    assert [(f.level, f.code) for f in findings] == [
        ("problem", "--max-model-len 2148"),
        ("warning", "--max-model-len 2148"),
    ]
    assert "c (2,048)" in findings[0].detail
    assert "b (1,949 + 100)" in findings[1].detail
    fits = of(facts(lengths=(("a", 100), ("b", 1948))), "context", prompts)
    assert fits.level == "ok"
    assert (
        fits.detail == "2,048 tokens; the longest ready prompt with its answer needs 2,048 (b); 1 could not be measured"
    )


def test_a_context_that_cannot_be_measured_is_said() -> None:
    assert of(facts(lengths=()), "context").detail.startswith("2,048 tokens; the ready prompts could not be measured")
    assert of(facts(state={"max_model_len": None}), "context").detail.startswith("n/a here")


def test_requests_of_others_are_a_warning() -> None:
    busy = of(facts(exposed=Exposed(running=2, waiting=1)), "other_traffic")
    assert (busy.level, busy.detail) == ("warning", "2 running, 1 waiting, and none of them is ours")
    silent = judge.lane_findings(facts(exposed=None), [])
    assert "other_traffic" not in {finding.key for finding in silent}


def test_a_server_that_is_no_vllm_has_nothing_to_mend_with_vllms_flags() -> None:
    bare = Answer(final_usage=True, prompt_tokens=300, first_ttft_ms=100, again_ttft_ms=100)
    other = facts(
        served=Served("m", None, "llama.cpp"),
        state={"speculating": None, "max_model_len": None, "version": None},
        exposed=None,
        probe_ids=None,
        lengths=(),
        answer=bare,
        defaults=Defaults(status="refused"),
    )
    pair: dict[LaneName, Facts] = {
        "baseline": structs.replace(other, state=facts("baseline").state),
        "speculative": other,
    }
    findings = [*judge.lane_findings(other, [workload()]), *compare.pair_findings(pair)]
    assert {finding.level for finding in findings} == {"ok", "note"}
    assert [finding.code for finding in findings if finding.code] == []


# ------------------------------------------------------------------------------------------ the pair
def test_a_good_pair_has_nothing_to_mend() -> None:
    pair = {"baseline": facts("baseline"), "speculative": facts(info=Info(method="eagle3"))}
    assert {finding.level for finding in compare.pair_findings(pair)} == {"ok"}


def test_one_server_for_both_lanes_is_a_problem() -> None:
    assert of_pair("same_server", same_address=True).level == "problem"


def test_swapped_addresses_are_seen() -> None:
    swapped = of_pair("swapped", facts("baseline", state={"speculating": True}), facts(state={"speculating": False}))
    assert (swapped.level, swapped.remedy) == ("problem", "Give the two addresses the other way round")


@pytest.mark.parametrize(
    ("baseline", "speculative", "level", "detail"),
    [
        (("m", "a/m"), ("m", "b/m"), "ok", "the same: m"),
        (("m", "org/m"), ("m-spec", "org/m"), "ok", "the same: m and m-spec, both loaded from org/m"),
        (("m", "org/m"), ("n", "org/n"), "warning", "baseline has m (org/m), the other n (org/n)"),
        (("m", None), ("n", None), "warning", "baseline has m (origin not told), the other n (origin not told)"),
    ],
)
def test_names_may_differ_but_not_what_was_loaded(
    baseline: tuple[str, str | None], speculative: tuple[str, str | None], level: str, detail: str
) -> None:
    def serving(lane: LaneName, name: str, root: str | None) -> Facts:
        return facts(lane, state={"identity": LaneIdentity(model=name)}, served=Served(name, root, "vLLM"))

    one = of_pair("model", serving("baseline", *baseline), serving("speculative", *speculative))
    assert (one.level, one.detail) == (level, detail)


def test_context_lengths_that_differ_are_a_warning() -> None:
    one = of_pair("context_differs", speculative=facts(state={"max_model_len": 1024}))
    assert (one.level, one.detail) == ("warning", "baseline 2,048 tokens, speculative 1,024")


def test_tokenizers_that_differ_are_a_problem() -> None:
    assert of_pair("tokenizer").detail == "the same: 3 equal ids for a probe text (/tokenize)"
    other = of_pair("tokenizer", speculative=facts(probe_ids=(2, 5, 8, 9)))
    assert (other.level, other.detail) == (
        "problem",
        "different: 3 and 4 ids for a probe text, the first difference at 2",
    )
    assert of_pair("tokenizer", speculative=facts(probe_ids=(2, 5))).detail.endswith("the first difference at 2")
    mute = of_pair("tokenizer", facts("baseline", probe_ids=None), facts("speculative", probe_ids=None))
    assert mute.detail.startswith("n/a: baseline and speculative give no token ids")
    silent = of_pair("tokenizer", speculative=facts(probe_ids=None))
    assert (silent.level, silent.detail) == (
        "note",
        "n/a: speculative gives no token ids (neither /tokenize nor return_token_ids)",
    )


def test_versions_and_kinds_are_compared() -> None:
    assert of_pair("version").detail == "vLLM 0.32.0 on both"
    assert of_pair("version", speculative=facts(state={"version": "0.31.0"})).level == "warning"
    assert of_pair("version", speculative=facts(state={"version": None})).level == "note"
    kinds = of_pair("kinds", speculative=facts(served=Served("m", None, "SGLang")))
    assert kinds.detail == "vLLM (baseline) and SGLang (speculative): this compares servers, not speculation"


@pytest.mark.parametrize(
    ("ms", "level"), [((2.0, 2.1), "ok"), ((2.0, 21.0), "ok"), ((2.0, 23.0), "warning"), ((100.0, 130.0), "ok")]
)
def test_latencies_differ_when_one_is_twice_the_other_and_20_ms_longer(ms: tuple[float, float], level: str) -> None:
    one = of_pair("latency", facts("baseline", latencies_ms=(ms[0],)), facts(latencies_ms=(ms[1],)))
    assert one.level == level


@pytest.mark.parametrize(
    ("baseline", "speculative", "level", "words"),
    [
        (False, False, "ok", "off at both"),
        (True, True, "note", "on at both"),
        (True, False, "warning", "on at the baseline server only"),
        (False, True, "warning", "on at the speculative server only"),
        (None, True, "note", "n/a here: baseline does not show whether it has one"),
        (None, None, "note", "n/a here: baseline and speculative do not show whether they have one"),
    ],
)
def test_a_prefix_cache_on_one_side_only_is_a_warning(
    baseline: bool | None, speculative: bool | None, level: str, words: str
) -> None:
    def with_cache(lane: LaneName, on: bool | None) -> Facts:
        return facts(lane, exposed=Exposed(prefix_caching=on), answer=structs.replace(GOOD, cached_again=None))

    one = of_pair("prefix_cache", with_cache("baseline", baseline), with_cache("speculative", speculative))
    assert one.level == level
    assert one.detail.startswith(words)
    if level == "warning":
        assert one.code == "--no-enable-prefix-caching"


def test_the_second_answer_shows_a_cache_that_is_not_told() -> None:
    def seen(lane: LaneName, tokens: int) -> Facts:
        return facts(lane, exposed=None, answer=structs.replace(GOOD, cached_again=tokens))

    assert of_pair("prefix_cache", seen("baseline", 256), seen("speculative", 0)).level == "warning"
    assert of_pair("prefix_cache", seen("baseline", 0), seen("speculative", 0)).level == "ok"


NEUTRAL, TOP_K = Defaults(status="neutral"), Defaults(status="differ", names=("top_k",))


@pytest.mark.parametrize(
    ("baseline", "speculative", "level", "words"),
    [
        (NEUTRAL, NEUTRAL, "ok", "none: samples are the same"),
        (TOP_K, TOP_K, "note", "both servers add at least top_k of their own"),
        (TOP_K, NEUTRAL, "warning", "baseline adds at least top_k, speculative adds none to what a race sends"),
        (Defaults(status="differ"), NEUTRAL, "warning", "baseline adds several defaults together"),
        (
            NEUTRAL,
            Defaults(status="not repeatable"),
            "note",
            "cannot be seen at speculative (equal seeds gave different",
        ),
        (Defaults(status="refused"), NEUTRAL, "note", "cannot be seen at baseline (the probing requests were refused)"),
    ],
)
def test_sampling_defaults_of_one_server_only_are_a_warning(
    baseline: Defaults, speculative: Defaults, level: str, words: str
) -> None:
    one = of_pair("sampling", facts("baseline", defaults=baseline), facts(defaults=speculative))
    assert one.level == level
    assert one.detail.startswith(words)
    assert one.code == (None if level == "ok" else "--generation-config vllm")


def test_a_generation_config_of_vllm_is_neutral_for_certain() -> None:
    told = facts(info=Info(generation_config="vllm"), defaults=Defaults(status="not repeatable"))
    assert of_pair("sampling", speculative=told).level == "ok"


@pytest.mark.parametrize(
    ("method", "known", "level", "words"),
    [
        ("ngram", None, "note", "ngram runs without asynchronous scheduling; a baseline keeps it"),
        ("ngram", False, "note", "ngram runs without asynchronous scheduling, the baseline with it"),
        ("ngram", True, "ok", "asynchronous scheduling is the same at both"),
        ("eagle3", None, "ok", "asynchronous scheduling is the same at both"),
        (None, None, "note", "n/a: the method is not known"),
    ],
)
def test_scheduling_that_differs_is_a_note(method: str | None, known: bool | None, level: str, words: str) -> None:
    one = of_pair("scheduling", speculative=facts(info=Info(method=method)), equal_scheduling=known)
    assert one.level == level
    assert one.detail.startswith(words)
    assert one.code == ("--no-async-scheduling" if level == "note" else None)


def test_server_info_of_both_settles_scheduling() -> None:
    def told(lane: LaneName, on: bool) -> Facts:
        return facts(lane, info=Info(method="ngram" if lane == "speculative" else None, async_scheduling=on))

    assert of_pair("scheduling", told("baseline", True), told("speculative", False)).level == "note"
    assert of_pair("scheduling", told("baseline", False), told("speculative", False)).level == "ok"


# ------------------------------------------------------------------------------------------ the race
def raced(
    text: str, *, at: int | None = None, rate: float | None = 0.5, character: int | None = None, **lane: Any
) -> RaceSummary:
    """A race that ended so, as far as the check reads it."""
    bare = summarize(RaceMeta(id="check", spec=spec(), created_at=""), Scoreboard())
    drafts = (
        None
        if rate is None
        else Acceptance(source="request", rate=rate, mean_length=3.0, drafts=10, drafted=40, accepted=20)
    )
    told = {"completion_tokens": 48, "ttft_ms": 100.0, "speculating": True, "acceptance": drafts} | lane
    lanes = {
        "baseline": structs.replace(bare.lanes["baseline"], ttft_ms=100.0),
        "speculative": structs.replace(bare.lanes["speculative"], **told),
    }
    comparison = structs.replace(bare.comparison, text=text, diverges_at_token=at)
    way = Continuation(token_id=None, first="a", rest="")
    parted = None
    if character is not None:
        parted = Divergence(basis="text", token=None, character=character, before="", baseline=way, speculative=way)
    return structs.replace(bare, status="finished", lanes=lanes, comparison=comparison, divergence=parted)


def test_a_race_with_equal_texts_and_drafts_is_good() -> None:
    race, drafts = compare.race_findings([raced("identical")])
    assert (race.level, race.detail) == ("ok", "48 tokens at temperature 0, the same text in both lanes")
    assert (drafts.level, drafts.detail) == ("ok", "50.0% of 40 draft tokens, from the server's record of this answer")


def test_one_text_that_parts_on_a_near_tie_is_told_and_no_more() -> None:
    race = found(compare.race_findings([raced("diverged", at=7), raced("identical")]), "race")
    assert race.level == "note"
    assert race.detail.endswith("the same text in both lanes; before it 1 of 2 differed, as texts with a near-tie may")


def test_texts_that_all_differ_are_a_problem() -> None:
    race = found(
        compare.race_findings([raced("diverged", at=0), raced("diverged", at=3), raced("diverged", at=1)]), "race"
    )
    assert (race.level, race.detail) == ("problem", "3 of 3 texts differ at temperature 0 (from token 0, 3, 1 on)")


def test_texts_that_differ_without_token_ids_were_from_token_na_on() -> None:
    texts = [raced("diverged", character=character) for character in (4, 0, 12)]
    race = found(compare.race_findings(texts), "race")
    assert race.detail == "3 of 3 texts differ at temperature 0 (from character 4, 0, 12 on)"
    bare = found(compare.race_findings([raced("diverged")]), "race")
    assert bare.detail == "1 of 1 texts differ at temperature 0"


def test_texts_that_cannot_be_compared_are_not_called_different() -> None:
    race = found(compare.race_findings([raced("not_comparable")]), "race")
    assert (race.level, race.detail) == ("note", "48 tokens; the texts cannot be compared")


def test_a_race_without_drafts_is_a_warning() -> None:
    assert found(compare.race_findings([raced("identical", rate=None)]), "acceptance").level == "warning"
    blind = found(compare.race_findings([raced("identical", rate=None, speculating=None)]), "acceptance")
    assert (blind.level, blind.detail) == ("note", "n/a here: the server tells nothing about drafts")


def test_a_slow_first_token_is_a_warning() -> None:
    slow = found(compare.race_findings([raced("identical", ttft_ms=6_000.0)]), "ttft")
    assert (slow.level, slow.lane, slow.detail) == (
        "warning",
        "speculative",
        "TTFT 6.0 s in the short race, on a warm server",
    )


# ------------------------------------------------------------------------------------------ reading pages
@pytest.mark.parametrize(
    ("root", "shown"),
    [
        ("/srv/models/gemma", "gemma"),
        ("./gemma", "gemma"),
        ("C:\\models\\gemma", "gemma"),
        ("google/gemma-3-270m", "google/gemma-3-270m"),
        (None, None),
        (7, None),
    ],
)
def test_where_a_model_lies_on_a_machine_is_not_shown(root: object, shown: str | None) -> None:
    body = json.dumps({"data": [{"id": "m", "root": root, "owned_by": "vllm"}]}).encode()
    assert served_in(body, "m") == Served("m", shown, "vLLM")


@pytest.mark.parametrize("body", [b"", b"[]", b"<html>", b'{"data": 7}', b'{"data": [7]}', b'{"data": [{"id": "n"}]}'])
def test_a_list_of_models_that_is_none_says_nothing(body: bytes) -> None:
    assert served_in(body, "m") is None


def test_gauges_of_several_engines_are_added_up() -> None:
    page = (
        'vllm:num_requests_running{engine="0"} 2.0\nvllm:num_requests_running{engine="1"} 1.0\n'
        'vllm:num_requests_waiting{engine="0"} 3.0\n'
        'vllm:cache_config_info{enable_prefix_caching="False",engine="0"} 1.0\n'
    )
    assert exposed_in(page) == Exposed(running=3, waiting=3, prefix_caching=False)
    assert exposed_in('vllm:cache_config_info{enable_prefix_caching="None"} 1.0\n') == Exposed()
    assert exposed_in("<html>no metrics</html>") is None


def test_server_info_is_read_where_there_is_one() -> None:
    config = {
        "model_config": {"generation_config": "auto", "override_generation_config": {}},
        "scheduler_config": {"async_scheduling": False},
        "speculative_config": {"method": "ngram"},
    }
    assert info_in(json.dumps({"vllm_config": config}).encode()) == Info(
        method="ngram", generation_config="auto", async_scheduling=False
    )
    config["model_config"]["override_generation_config"] = {"top_k": 5}
    config["speculative_config"] = None  # type: ignore[assignment]
    read = info_in(json.dumps({"vllm_config": config}).encode())
    assert read is not None
    assert (read.method, read.generation_config) == (None, "overridden")
    assert info_in(b'{"vllm_config": "model=..."}') is None
