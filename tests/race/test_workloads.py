"""The ready prompts: the file that comes with the project, and every way in which a presenter's own can be wrong."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from app.errors import SettingsError
from app.race.workloads import Workloads, load_workloads
from app.settings import Settings

OURS = Path(__file__).resolve().parents[2] / "deploy" / "workloads.toml"
TAB = '[[tab]]\nname = "t"\ntitle = "T"\nnote = "n"\n'
ONE = '[[workload]]\nname = "one"\ntab = "t"\ntitle = "One"\nprompt = "Say one."\n'


def load(tmp_path: Path, text: str) -> Workloads:
    path = tmp_path / "w.toml"
    path.write_text(text, encoding="utf-8")
    return load_workloads(path)


def test_our_own_file_has_what_the_page_promises() -> None:
    found = load_workloads(OURS)
    tabs = [tab.name for tab in found.tab]
    assert tabs == ["structured", "creative", "long"]
    count = Counter(w.tab for w in found.workload)
    assert all(count[tab] >= 3 for tab in tabs)
    assert {w.temperature for w in found.in_tab("structured")} == {0.0}
    assert {w.temperature for w in found.in_tab("creative")} == {1.0}
    assert all(len(w.prompt) > 3000 for w in found.in_tab("long"))  # about 1,300 tokens
    assert all(w.max_tokens <= 1024 for w in found.workload)
    assert found.first.tab == "structured"


def test_our_own_file_is_the_one_that_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert Settings().workloads == OURS


def test_what_is_not_said_has_a_default(tmp_path: Path) -> None:
    found = load(tmp_path, TAB + ONE)
    one = found.get("one")
    assert one is not None
    assert one.system is None
    sampling = one.sampling
    assert (sampling.temperature, sampling.top_p, sampling.seed, sampling.max_tokens, sampling.ignore_eos) == (
        0,
        1,
        0,
        256,
        False,
    )
    assert found.get("two") is None
    assert found.in_tab("none") == []


def test_the_order_of_the_file_is_the_order_of_the_page(tmp_path: Path) -> None:
    more = "".join(ONE.replace('"one"', f'"{name}"') for name in ("c", "a", "b"))
    assert [w.name for w in load(tmp_path, TAB + more).in_tab("t")] == ["c", "a", "b"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[tab]", "w.toml"),
        ("", "tab"),
        ("tab = 5\nworkload = []", "array"),
        ("tab = []\nworkload = []", "no [[tab]]"),
        (TAB, "workload"),
        (TAB + "workload = 1", "w.toml"),
        (TAB + ONE.replace('tab = "t"', 'tab = "x"'), "no tab 'x'"),
        (TAB + ONE + ONE, "twice"),
        (TAB + ONE.replace('"one"', '"One"'), "URL"),
        (TAB + ONE.replace('"one"', '"a/b"'), "URL"),
        (TAB + ONE.replace('"one"', '""'), "URL"),
        (TAB + ONE.replace('"one"', f'"{"x" * 41}"'), "URL"),
        (TAB + ONE.replace("Say one.", "  "), "empty"),
        (TAB + ONE + "temperature = 2.1\n", "sampling"),
        (TAB + ONE + "temperature = -0.1\n", "sampling"),
        (TAB + ONE + "temperature = nan\n", "sampling"),
        (TAB + ONE + "temperature = inf\n", "sampling"),
        (TAB + ONE + "top_p = 0\n", "sampling"),
        (TAB + ONE + "top_p = 1.1\n", "sampling"),
        (TAB + ONE + "max_tokens = 0\n", "sampling"),
        (TAB + ONE + "seed = -1\n", "sampling"),
        (TAB + ONE + 'max_tokens = "many"\n', "max_tokens"),
        (TAB + ONE + "ignore_eos = 1\n", "ignore_eos"),
        (TAB + ONE + "temprature = 1.0\n", "temprature"),
        (TAB + ONE.replace('title = "One"\n', ""), "title"),
        (TAB.replace('"t"', '"u"') + TAB + ONE, "'u'"),
        (TAB + TAB + ONE, "twice"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, text)
    assert says in str(caught.value)
    assert "w.toml" in caught.value.field
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_or_no_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        load_workloads(tmp_path / "none.toml")
    assert "none.toml" in caught.value.field
    with pytest.raises(SettingsError):
        load_workloads(tmp_path)
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError):
        load_workloads(tmp_path / "bytes.toml")
