"""The command line: whatever is wrong is one line on stderr and exit code 2, and never a traceback."""

from __future__ import annotations

import json
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from app import run as run_room
from app.cli import main
from app.race.events import Event
from tests.race.helpers import chunk, ended, meta, over, sent, started, store_at

ROOT = Path(__file__).resolve().parent.parent
BOTH = ("--baseline", "http://127.0.0.1:9", "--speculative", "http://127.0.0.1:9")
Run = Callable[..., tuple[int, list[str], str]]


@pytest.fixture(autouse=True)
def _quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder of its own; the logs of the whole program stay as they are."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_room, "configure_logs", lambda: None)


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Run:
    """Exit status, lines on stderr, and stdout of one command."""

    def call(*args: object) -> tuple[int, list[str], str]:
        with pytest.raises(SystemExit) as caught:
            main([str(arg) for arg in args])
        said = capfd.readouterr()
        assert "Traceback" not in said.err
        status = caught.value.code
        assert isinstance(status, int)
        return status, said.err.splitlines(), said.out

    return call


def one_line(found: tuple[int, list[str], str], *words: str) -> None:
    status, lines, out = found
    assert status == 2
    assert len(lines) == 1, lines
    assert lines[0].startswith("specrace: ")
    for word in words:
        assert word in lines[0]
    assert out == ""


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["serve", "--nope"], "--nope"),
        (["serve", "--baseline"], "--baseline"),
        (["serve", "--port", "abc"], "port"),
        (["serve", "--port", "0"], "port"),
        (["serve", "--port", "70000"], "port"),
        (["serve", "surplus"], "surplus"),
        (["check", "--nope"], "--nope"),
        (["check", "--baseline", "http://127.0.0.1:9"], "--speculative"),
        (["nope"], "nope"),
        (["up", "--profile", "nope"], "nope"),
        (["up", "--profile", "none.toml"], "none.toml"),
        (["bench"], "--baseline"),
        (["bench", "--repeats", "0"], "repeats"),
        (["bench", "--schedule", "later"], "schedule"),
        (["bench", "--concurrency", "0"], "--concurrency"),
        (["bench", "--concurrency", "1,two"], "--concurrency"),
        (["bench", "--concurrency", ""], "--concurrency"),
        (["bench", "--workload", "nope"], "json-records"),
        (["bench", "--max-tokens", "0"], "max-tokens"),
        (["bench", "--temperature", "nan"], "temperature"),
        (["bench", "--prompt", " "], "--prompt"),
        (["bench", "--prompts", "none.txt"], "none.txt"),
        (["bench", *BOTH, "--json", "none/out.json"], "--json"),
        (["bench", *BOTH, "--json", "-", "--csv", "-"], "--csv"),
        (["export"], "RUN_ID"),
        (["export", "x", "--format", "nope"], "nope"),
        (["--nope"], "--nope"),
    ],
)
def test_a_wrong_option_is_one_line(cli: Run, args: list[str], word: str) -> None:
    one_line(cli(*args), word)


@pytest.mark.parametrize(
    ("name", "body", "words"),
    [
        ("empty.txt", b"\n  \n", ("--prompts", "empty.txt")),
        ("latin.txt", b"caf\xe9", ("latin.txt", "UTF-8")),
        ("list.jsonl", b'{"prompt": "a"}\n["b"]\n', ("list.jsonl", "line 2")),
        ("blank.jsonl", b'{"prompt": " "}\n', ("line 1",)),
        ("half.jsonl", b'{"prompt": "a"', ("line 1",)),
    ],
)
def test_a_file_without_usable_prompts_is_one_line(
    cli: Run, tmp_path: Path, name: str, body: bytes, words: tuple[str, ...]
) -> None:
    (tmp_path / name).write_bytes(body)
    one_line(cli("bench", *BOTH, "--prompts", tmp_path / name), *words)


@pytest.mark.parametrize(
    "url", ["foo", "localhost:8101", "ftp://x", "http://", "http://u:p@x", "http://x:99999", "http://a b"]
)
def test_a_wrong_address_is_one_line(cli: Run, url: str) -> None:
    one_line(cli("serve", "--baseline", url, "--speculative", "http://127.0.0.1:9"), "BASELINE")


def test_a_missing_server_is_one_line(cli: Run) -> None:
    one_line(cli("serve"), "--baseline")
    one_line(cli("serve", "--baseline", "http://127.0.0.1:9"), "--speculative")


def test_a_wrong_variable_is_one_line(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECRACE_MAX_TOKENS", "many")
    one_line(cli("serve", *BOTH), "SPECRACE_MAX_TOKENS", "many")


def test_a_wrong_file_is_one_line(cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "specrace.toml").write_text("nonsense = 1\n")
    one_line(cli("serve", *BOTH), "nonsense")
    (tmp_path / "specrace.toml").write_text("max_tokens = [")
    one_line(cli("serve", *BOTH), "specrace.toml")
    (tmp_path / "specrace.toml").unlink()
    monkeypatch.setenv("SPECRACE_WORKLOADS", str(tmp_path / "none.toml"))
    one_line(cli("serve", *BOTH, "--port", free()), "none.toml")


def free() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_a_port_in_use_is_one_line(cli: Run) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        one_line(cli("serve", *BOTH, "--port", port), str(port), "in use")
        one_line(cli("up", "--profile", "cpu", "--port", port), str(port), "in use")


@pytest.mark.parametrize("host", ["nonsense.invalid", "203.0.113.7", "300.1.1.1"])
def test_a_host_that_is_not_ours_is_one_line(cli: Run, host: str) -> None:
    one_line(cli("serve", *BOTH, "--host", host, "--port", free()), host)


@pytest.mark.parametrize(
    ("name", "value"),
    [("SSL_CERT_FILE", "none.pem"), ("ALL_PROXY", "socks5://127.0.0.1:9"), ("HTTP_PROXY", "nonsense://x")],
)
def test_an_environment_that_cannot_be_used_is_one_line(
    cli: Run, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    urls = ("--baseline", "http://models.example.com", "--speculative", "http://models.example.com")
    one_line(cli("serve", *urls, "--port", free()))


def broken(tmp_path: Path, trouble: str) -> Path:
    """A database that cannot be used."""
    path = tmp_path / "races.sqlite3"
    if trouble == "no database":
        path.write_bytes(b"hello " * 1000)
    elif trouble == "a folder":
        path.mkdir()
    elif trouble == "an empty file":
        path.write_bytes(b"")
    elif trouble == "a newer version":
        db = sqlite3.connect(path)
        db.execute("PRAGMA user_version = 99")
        db.close()
    else:
        (tmp_path / "file").write_text("")
        path = tmp_path / "file" / "races.sqlite3"
    return path


@pytest.mark.parametrize(
    "trouble", ["no database", "a folder", "an empty file", "a newer version", "a file in the way"]
)
def test_exporting_from_a_file_that_is_no_database_of_ours_is_one_line(cli: Run, tmp_path: Path, trouble: str) -> None:
    one_line(cli("export", "abc", "--database", broken(tmp_path, trouble)))


@pytest.mark.parametrize("trouble", ["no database", "a newer version"])
def test_serving_with_a_database_that_cannot_be_used_is_one_line(tmp_path: Path, trouble: str) -> None:
    # in a process of its own: uvicorn is not to see the signals of the tests
    found = subprocess.run(
        [
            sys.executable,
            "-m",
            "app",
            "serve",
            *BOTH,
            "--port",
            str(free()),
            "--database",
            str(broken(tmp_path, trouble)),
        ],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    one_line((found.returncode, found.stderr.splitlines(), found.stdout), "SPECRACE_DATABASE")


def test_no_arguments_lead_to_the_help(cli: Run) -> None:
    status, lines, out = cli()
    assert status == 2
    assert "--help" in "\n".join([*lines, out])


def test_help_is_no_error(cli: Run) -> None:
    for args in (["--help"], ["serve", "--help"], ["up", "--help"], ["check", "--help"], ["export", "--help"]):
        status, lines, out = cli(*args)
        assert (status, lines) == (0, [])
        assert "Usage" in out or "usage" in out


def test_a_dry_run_prints_both_commands_and_starts_nothing(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_room, "up", lambda *_: pytest.fail("it started"))
    status, lines, out = cli("up", "--dry-run", "--profile", "cpu")
    assert (status, lines) == (0, [])
    assert "--speculative-config" in out
    assert out.count("serve") >= 2


def test_interrupting_is_130(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_room, "serve", interrupted)
    status, _, _ = cli("serve", *BOTH)
    assert status == 130


def test_configured_servers_are_not_started_again(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[object] = []
    monkeypatch.setattr(run_room, "serve", lambda settings, _: found.append(settings.baseline_url))
    monkeypatch.setattr(run_room, "up", lambda *_: pytest.fail("it started engines"))
    monkeypatch.setenv("SPECRACE_BASELINE_URL", "http://box:1")
    monkeypatch.setenv("SPECRACE_SPECULATIVE_URL", "http://box:2")
    assert cli("up")[0] == 0
    assert found == ["http://box:1"]


def test_flags_reach_the_settings(cli: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found: list[object] = []

    def serve(settings: object, server: object) -> None:
        found.extend([settings, server])

    monkeypatch.setattr(run_room, "serve", serve)
    monkeypatch.setenv("SPECRACE_BASELINE_MODEL", "environment")
    cli(
        "serve",
        *BOTH,
        "--baseline-model",
        "flag",
        "--database",
        tmp_path / "x.sqlite3",
        "--host",
        "0.0.0.0",
        "--port",
        "8123",
    )
    settings, server = found
    assert settings.baseline_model == "flag"  # type: ignore[attr-defined]
    assert settings.database == tmp_path / "x.sqlite3"  # type: ignore[attr-defined]
    assert (server.host, server.port) == ("0.0.0.0", 8123)  # type: ignore[attr-defined]


# ------------------------------------------------------------------------------------------------ export
EVENTS: list[Event] = [
    started(),
    sent("baseline", 1),
    chunk("baseline", 101, 1),
    chunk("baseline", 201, 4),
    ended("baseline", 202),
    sent("speculative", 1),
    ended("speculative", 300, "cut_off"),
    over(301, "partial"),
]


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A database with one race."""
    store = store_at(tmp_path)
    store.begin(meta("abc", vllm="0.32.0"))
    for n, event in enumerate(EVENTS, start=1):
        store.keep("abc", n, event)
    store.close()
    return tmp_path / "races.sqlite3"


def test_export_prints_json(cli: Run, kept: Path) -> None:
    status, lines, out = cli("export", "abc", "--database", kept)
    assert (status, lines) == (0, [])
    found = json.loads(out)
    assert (found["id"], found["status"]) == ("abc", "partial")
    assert found["lanes"]["baseline"]["tpot_ms"] == 25
    assert found["comparison"]["speedup"] is None


def test_export_writes_csv_and_recordings_to_a_file(cli: Run, kept: Path, tmp_path: Path) -> None:
    assert cli("export", "abc", "--format", "csv", "--to", tmp_path / "x.csv", "--database", kept)[0] == 0
    assert len((tmp_path / "x.csv").read_text().splitlines()) == 3
    args = ("export", "abc", "--format", "recording", "--to", tmp_path / "x.gz", "--database", kept)
    one_line(cli(*args), "--hardware")
    assert cli(*args, "--hardware", "2 vCPU")[0] == 0
    from app.race.replay import read_recording

    recorded = read_recording(tmp_path / "x.gz")
    assert recorded.events == EVENTS
    assert recorded.meta.recorded is not None
    assert recorded.meta.recorded.on == "2 vCPU"


def test_exporting_what_is_not_there_is_one_line(cli: Run, kept: Path, tmp_path: Path) -> None:
    one_line(cli("export", "none", "--database", kept), "none")
    one_line(cli("export", "abc", "--database", tmp_path / "none.sqlite3"), "none.sqlite3")
    one_line(cli("export", "abc", "--to", tmp_path / "no" / "file", "--database", kept), "--to")


def test_p39_no_key_of_the_environment_is_touched(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-somebody-else")
    found: list[str] = []
    monkeypatch.setattr(run_room, "serve", lambda settings, _: found.append(str(settings.model_dump())))
    cli("serve", *BOTH)
    assert os.environ["OPENAI_API_KEY"] == "sk-of-somebody-else"
    assert "somebody-else" not in found[0]
