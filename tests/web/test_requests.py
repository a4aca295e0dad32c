"""What visitors ask for: every field's limits, and a refusal that names the field, the reason and the remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import InvalidRace, TooLong
from app.race.types import RaceSpec
from app.race.workloads import Workload, Workloads, load_workloads
from app.settings import HOME, Settings
from app.web.requests import RaceBody, from_form, from_json_body, to_spec

WORKLOADS = load_workloads(HOME / "deploy" / "workloads.toml")
SETTINGS = Settings(max_tokens=100, max_prompt_chars=50, database=Path("unused"))


def asked(**body: Any) -> RaceSpec:
    return to_spec(from_json_body(msgspec.json.encode(body)), WORKLOADS, SETTINGS)


def refused(**body: Any) -> InvalidRace:
    with pytest.raises(InvalidRace) as caught:
        asked(**{"prompt": "x"} | body)
    assert caught.value.reason
    assert caught.value.remedy
    assert caught.value.status == (413 if isinstance(caught.value, TooLong) else 422)
    return caught.value


def test_a_prompt_alone_has_every_setting_said() -> None:
    found = asked(prompt="Count.")
    assert (found.prompt, found.system, found.workload, found.schedule) == ("Count.", None, None, "together")
    sampling = found.sampling
    assert (sampling.temperature, sampling.top_p, sampling.seed, sampling.ignore_eos) == (0.0, 1.0, 0, False)
    assert sampling.max_tokens == 100  # 256, capped by this server's limit


def test_everything_given_is_taken() -> None:
    found = asked(
        prompt="p", system="s", temperature=1.5, top_p=0.5, seed=7, max_tokens=9, ignore_eos=True, schedule="in_turn"
    )
    assert (found.prompt, found.system, found.schedule) == ("p", "s", "in_turn")
    sampling = found.sampling
    assert (sampling.temperature, sampling.top_p, sampling.seed, sampling.max_tokens, sampling.ignore_eos) == (
        1.5,
        0.5,
        7,
        9,
        True,
    )


def test_a_workload_is_taken_as_it_stands_and_changed_by_what_is_said() -> None:
    wide = Settings(max_prompt_chars=32_000, database=Path("unused"))
    ours = WORKLOADS.first

    def spec(**body: Any) -> RaceSpec:
        return to_spec(RaceBody(workload=ours.name, **body), WORKLOADS, wide)

    assert spec().prompt == ours.prompt
    assert spec().sampling == ours.sampling
    assert spec().workload == ours.name
    changed = spec(prompt="mine", seed=9)
    assert (changed.prompt, changed.sampling.seed, changed.sampling.max_tokens) == ("mine", 9, ours.max_tokens)


def test_a_workload_longer_than_this_server_allows_is_capped() -> None:
    long = Workload(name="w", tab="t", title="W", prompt="p", max_tokens=5000)
    found = to_spec(RaceBody(workload="w"), Workloads(tab=[], workload=[long]), SETTINGS)
    assert found.sampling.max_tokens == 100


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("temperature", [0, 0.0, 2, 2.0, 1e-9], [-0.001, 2.001, 1e308]),
        ("top_p", [1, 1.0, 1e-9, 0.5], [0, -1, 1.0001]),
        ("seed", [0, 2**63 - 1], [-1, 2**63, 10**30]),
        ("max_tokens", [1, 100], [0, -1, 101, 10**30]),
    ],
)
def test_every_number_has_its_limits(field: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        assert getattr(asked(prompt="x", **{field: value}).sampling, field) == value
    for value in bad:
        assert refused(**{field: value}).field == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", "1"),
        ("temperature", True),
        ("temperature", []),
        ("top_p", "x"),
        ("seed", 1.5),
        ("seed", "1"),
        ("seed", True),
        ("max_tokens", "9"),
        ("max_tokens", 9.5),
        ("ignore_eos", "yes"),
        ("ignore_eos", 1),
        ("prompt", 5),
        ("prompt", ["x"]),
        ("system", 5),
        ("workload", 5),
        ("schedule", "sideways"),
        ("schedule", 5),
        ("schedule", None),
    ],
)
def test_a_field_of_the_wrong_type_is_named(field: str, value: Any) -> None:
    assert refused(**{field: value}).field == field


@pytest.mark.parametrize(
    "body",
    [b'{"prompt":"x","temperature":NaN}', b'{"prompt":"x","top_p":Infinity}', b'{"prompt":"x","temperature":1e999}'],
)
def test_what_is_no_number_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRace):
        from_json_body(body)


@pytest.mark.parametrize("field", ["model", "base_url", "api_key", "n", "stop", "stream", "Prompt", "", "temperature "])
def test_p42_an_unknown_field_is_refused_and_named(field: str) -> None:
    # nobody names a host, a model or a key from outside
    assert refused(**{field: "x"}).field == field


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"hello",
        b"\xff",
        b"[]",
        b"null",
        b"5",
        b'"x"',
        b"{}{}",
        b'{"prompt":"\xff"}',
        b'{"prompt":"\\ud800"}',
    ],
)
def test_a_body_that_is_no_object_of_ours_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRace) as caught:
        from_json_body(body)
    assert caught.value.field == "body"


@given(st.binary(max_size=60))
def test_no_body_breaks_in_an_unforeseen_way(body: bytes) -> None:
    try:
        to_spec(from_json_body(body), WORKLOADS, SETTINGS)
    except InvalidRace:
        return


@pytest.mark.parametrize("prompt", ["", " ", "\n\t\u2003"])
def test_an_empty_prompt_is_refused(prompt: str) -> None:
    assert refused(prompt=prompt).field == "prompt"


def test_no_prompt_at_all_is_refused() -> None:
    with pytest.raises(InvalidRace) as caught:
        asked()
    assert caught.value.field == "prompt"


def test_an_unknown_workload_is_refused_with_the_known_ones() -> None:
    found = refused(workload="x" * 500)
    assert found.field == "workload"
    assert WORKLOADS.first.name in found.remedy
    assert len(found.reason) < 200


def test_the_length_of_prompt_and_system_together_is_limited_in_characters_not_bytes() -> None:
    assert asked(prompt="🫠" * 50).prompt == "🫠" * 50
    assert isinstance(refused(prompt="x" * 51), TooLong)
    assert isinstance(refused(prompt="x" * 40, system="y" * 11), TooLong)
    assert asked(prompt="x" * 40, system="y" * 10).system == "y" * 10


def test_an_empty_system_prompt_is_none() -> None:
    assert asked(prompt="x", system="").system is None


# ------------------------------------------------------------------------------------------------ the form
def form(**fields: str) -> RaceSpec:
    return to_spec(from_form({"prompt": "x"} | fields), WORKLOADS, SETTINGS)


def test_a_form_is_a_body_whose_numbers_are_words() -> None:
    found = form(
        temperature="0.7",
        top_p="1",
        seed="3",
        max_tokens="9",
        ignore_eos="on",
        schedule="in_turn",
        system="s",
        ticket="t",
    )
    sampling = found.sampling
    assert (sampling.temperature, sampling.top_p, sampling.seed, sampling.max_tokens, sampling.ignore_eos) == (
        0.7,
        1.0,
        3,
        9,
        True,
    )
    assert (found.schedule, found.system) == ("in_turn", "s")


def test_an_empty_field_of_a_form_is_not_given() -> None:
    found = form(temperature="", seed="", system="", workload="")
    assert (found.sampling.temperature, found.sampling.seed, found.system, found.workload) == (0.0, 0, None, None)


@pytest.mark.parametrize(("given", "taken"), [("on", True), ("true", True), ("1", True), ("off", False), ("no", False)])
def test_a_box_is_ticked_or_not(given: str, taken: bool) -> None:
    assert form(ignore_eos=given).sampling.ignore_eos is taken


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", "warm"),
        ("temperature", "nan"),
        ("temperature", "inf"),
        ("temperature", "-inf"),
        ("temperature", "1e999"),
        ("top_p", "nan"),
        ("top_p", "0"),
        ("seed", "1.5"),
        ("seed", "-1"),
        ("seed", "9" * 5000),
        ("max_tokens", "0"),
        ("max_tokens", "1e3"),
        ("schedule", "sideways"),
        ("workload", "none such"),
    ],
)
def test_a_wrong_field_of_a_form_is_named(field: str, value: str) -> None:
    with pytest.raises(InvalidRace) as caught:
        form(**{field: value})
    assert caught.value.field == field
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
def test_half_a_character_in_a_form_is_refused(text: str) -> None:
    # a form in UTF-7 can hold one; it can be neither stored nor sent nor shown
    with pytest.raises(InvalidRace):
        form(prompt=text)


@given(st.dictionaries(st.sampled_from([*RaceBody.__struct_fields__, "model", "ticket"]), st.text(max_size=12)))
def test_no_form_breaks_in_an_unforeseen_way(fields: dict[str, str]) -> None:
    try:
        spec = to_spec(from_form(fields), WORKLOADS, SETTINGS)
    except InvalidRace:
        return
    assert 0 <= spec.sampling.temperature <= 2
    assert 1 <= spec.sampling.max_tokens <= 100


def test_a_fresh_cache_is_a_salt_of_each_race_and_off_where_nothing_is_said() -> None:
    assert asked(prompt="Hi").cache_salt is None
    one, other = asked(prompt="Hi", fresh_cache=True), form(prompt="Hi", fresh_cache="on")
    assert one.cache_salt
    assert other.cache_salt
    assert one.cache_salt != other.cache_salt
    assert form(prompt="Hi").cache_salt is None  # an unticked box is not sent at all
    assert refused(prompt="Hi", fresh_cache="yes").field == "fresh_cache"
