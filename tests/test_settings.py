"""Settings: flags over environment over specrace.toml, and one clear line for whatever is wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.errors import SettingsError
from app.settings import Settings, load_settings


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder of its own, and no setting from outside."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.upper().startswith("SPECRACE_"):
            monkeypatch.delenv(name)
    return tmp_path


def config(here: Path, text: str) -> None:
    (here / "specrace.toml").write_text(text, encoding="utf-8")


def refused(**flags: object) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        load_settings(**flags)
    assert "\n" not in str(caught.value)
    assert caught.value.reason
    assert caught.value.remedy
    return caught.value


def test_the_defaults_are_those_of_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    found = load_settings()
    assert (found.max_tokens, found.max_prompt_chars, found.queue_limit, found.races_at_once) == (1024, 32_000, 50, 1)
    assert (found.connect_timeout, found.first_token_timeout, found.stall_timeout) == (3, 120, 10)
    assert (found.baseline_url, found.speculative_url, found.baseline_api_key, found.baseline_model) == (None,) * 4
    assert found.database.name.endswith(".sqlite3")
    assert found.endpoint("baseline") is None


def test_flags_win_over_the_environment_which_wins_over_the_file(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config(here, "max_tokens = 11\nqueue_limit = 12\nraces_at_once = 13\nbaseline_model = 'file'\n")
    monkeypatch.setenv("SPECRACE_QUEUE_LIMIT", "22")
    monkeypatch.setenv("SPECRACE_RACES_AT_ONCE", "23")
    monkeypatch.setenv("SPECRACE_BASELINE_MODEL", "environment")
    found = load_settings(races_at_once=33, baseline_model="flag")
    assert (found.max_tokens, found.queue_limit, found.races_at_once) == (11, 22, 33)
    assert found.baseline_model == "flag"
    assert load_settings(baseline_model=None).baseline_model == "environment"  # a flag that is not given


def test_an_empty_variable_is_not_given(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config(here, "max_tokens = 11\n")
    monkeypatch.setenv("SPECRACE_MAX_TOKENS", "")
    monkeypatch.setenv("SPECRACE_BASELINE_API_KEY", "")
    assert load_settings().max_tokens == 11
    assert load_settings().baseline_api_key is None


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("MAX_TOKENS", "many", "max_tokens"),
        ("MAX_TOKENS", "0", "max_tokens"),
        ("MAX_TOKENS", "1.5", "max_tokens"),
        ("MAX_PROMPT_CHARS", "-1", "max_prompt_chars"),
        ("QUEUE_LIMIT", "-1", "queue_limit"),
        ("RACES_AT_ONCE", "0", "races_at_once"),
        ("CONNECT_TIMEOUT", "0", "connect_timeout"),
        ("CONNECT_TIMEOUT", "nan", "connect_timeout"),
        ("FIRST_TOKEN_TIMEOUT", "inf", "first_token_timeout"),
        ("STALL_TIMEOUT", "-3", "stall_timeout"),
        ("STALL_TIMEOUT", "10 s", "stall_timeout"),
    ],
)
def test_a_wrong_variable_is_named_with_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, field: str
) -> None:
    monkeypatch.setenv(f"SPECRACE_{name}", value)
    found = refused()
    assert found.field == f"SPECRACE_{field.upper()}"
    assert value in found.reason


def test_a_wrong_flag_is_named_too() -> None:
    assert refused(max_tokens=-5).field == "SPECRACE_MAX_TOKENS"


def test_an_unknown_name_in_the_file_is_refused_with_the_known_ones(here: Path) -> None:
    config(here, "max_token = 5\n")
    found = refused()
    assert "max_token" in found.field
    assert "specrace.toml" in found.field
    assert "max_tokens" in found.remedy


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens = [",
        "= 5",
        "max_tokens = 'a\nb'",
        "max_tokens = 'many'\n",
        "max_tokens = [1]\n",
        "max_tokens = {a=1}\n",
        "[max_tokens]\nx=1\n",
        "connect_timeout = nan\n",
        "connect_timeout = inf\n",
        "database = 5\n",
        "baseline_url = 5\n",
    ],
)
def test_a_file_that_is_wrong_is_one_clear_line(here: Path, text: str) -> None:
    config(here, text)
    refused()


def test_a_file_that_is_no_text_or_a_folder_is_one_clear_line(here: Path) -> None:
    (here / "specrace.toml").write_bytes(b"\xff\xfe\x00")
    refused()
    (here / "specrace.toml").unlink()
    (here / "specrace.toml").mkdir()
    refused()


@pytest.mark.parametrize("where", ["file", "environment"])
def test_a_wrong_key_is_not_repeated(here: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    # a number where a text belongs: the value is a key and stays out of logs and screens
    config(here, "baseline_api_key = 1234567890\n")
    if where == "environment":
        monkeypatch.setenv("SPECRACE_MAX_TOKENS", "many")
    assert "1234567890" not in str(refused())


def test_keys_and_the_token_are_in_no_print() -> None:
    found = load_settings(
        baseline_api_key="key-of-base", speculative_api_key="key-of-fast", presenter_token="token-of-show"
    )
    for text in (repr(found), str(found)):
        assert "key-of" not in text
        assert "token-of" not in text


def test_a_token_is_made_up_when_none_is_given() -> None:
    one, other = load_settings().presenter_token, load_settings().presenter_token
    assert len(one) >= 12
    assert one != other
    assert load_settings(presenter_token="mine").presenter_token == "mine"


def test_a_home_in_a_path_is_meant(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SPECRACE_DATABASE", "~/races.sqlite3")
    assert load_settings().database == tmp_path / "races.sqlite3"


def test_the_endpoint_of_a_lane_is_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECRACE_SPECULATIVE_URL", "http://box:8102/v1/")
    monkeypatch.setenv("SPECRACE_SPECULATIVE_API_KEY", "key")
    monkeypatch.setenv("SPECRACE_SPECULATIVE_MODEL", "big")
    monkeypatch.setenv("SPECRACE_SPECULATIVE_METRICS_URL", "http://box:9/m")
    found = load_settings().endpoint("speculative")
    assert found is not None
    assert (found.root, found.api_key, found.model, found.metrics_url) == (
        "http://box:8102",
        "key",
        "big",
        "http://box:9/m",
    )
    assert load_settings().endpoint("baseline") is None


@pytest.mark.parametrize("url", ["localhost:8000", "nonsense", "ftp://x"])
def test_a_wrong_address_names_its_variable(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("SPECRACE_BASELINE_URL", url)
    with pytest.raises(SettingsError) as caught:
        load_settings().endpoint("baseline")
    assert caught.value.field == "SPECRACE_BASELINE_URL"


def test_p39_the_variables_of_openai_are_neither_used_nor_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"OPENAI_API_KEY": "sk-of-somebody-else", "OPENAI_BASE_URL": "http://elsewhere.example/v1"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    found = load_settings(baseline_url="http://box:1")
    assert "somebody-else" not in str(found.model_dump())
    assert "elsewhere" not in str(found.model_dump())
    endpoint = found.endpoint("baseline")
    assert endpoint is not None
    assert endpoint.api_key is None
    assert {name: os.environ[name] for name in given} == given


def test_a_dotenv_file_is_not_read(here: Path) -> None:
    (here / ".env").write_text("SPECRACE_MAX_TOKENS=7\nMAX_TOKENS=7\n")
    assert load_settings().max_tokens == 1024


def test_every_setting_has_bounds_or_is_text() -> None:
    for name, field in Settings.model_fields.items():
        if field.annotation in (int, float):
            kinds = {type(bound).__name__ for bound in field.metadata}
            assert kinds & {"Ge", "Gt"}, name
            assert kinds & {"Le", "Lt"}, name
