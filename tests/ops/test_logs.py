"""Real boot logs give the phases in order; causes name the root; shown lines hold no folder of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.ops.logs import BootLog, LogFile

LOGS = Path(__file__).with_name("boot_logs")


@pytest.mark.parametrize(("name", "method", "drafter"), [("baseline_mp", None, False), ("suffix", "suffix", True)])
def test_phases_of_a_real_boot(name: str, method: str | None, drafter: bool) -> None:
    log = BootLog({})
    seen: list[tuple[str, str]] = [(log.stage.phase, log.stage.words)]
    for line in (LOGS / f"{name}.txt").read_text(encoding="utf-8").splitlines():
        log.feed(line)
        if (log.stage.phase, log.stage.words) != seen[-1]:
            seen.append((log.stage.phase, log.stage.words))
    expected = [
        ("starting", "loading vLLM's code"),
        ("starting", "reading the settings"),
        ("starting", "starting the engine core"),
        ("starting", "engine core is up, preparing the device"),
        ("loading_weights", "loading the weights"),
        ("loading_weights", "loading the weights: 0 %"),
        ("loading_weights", "loading the weights: 100 %"),
        ("loading_weights", "weights are loaded"),
        *([("loading_weights", "loading the drafter")] if drafter else []),
        ("compiling", "preparing the KV cache"),
        ("compiling", "engine is ready, starting its server"),
        ("compiling", "server is starting"),
        ("compiling", "server is up"),
    ]
    assert seen == expected
    assert log.version == "0.32.0"
    assert log.method == method


def test_the_tail_is_for_people() -> None:
    log = BootLog({})
    for line in (LOGS / "baseline_mp.txt").read_text(encoding="utf-8").splitlines():
        log.feed(line)
    assert len(log.tail) == 12
    assert all(len(line) <= 240 for line in log.tail)
    assert not any("Route:" in line or "pid=" in line or "█" in line for line in log.tail)
    assert log.tail[-1] == "INFO:     Application startup complete."


def test_requests_are_not_worth_a_line() -> None:
    log = BootLog({})
    assert not log.feed('INFO:     127.0.0.1:50014 - "GET /health HTTP/1.1" 200 OK')
    assert not log.feed("")
    assert log.feed("(APIServer pid=1) INFO 11-30 02:03:06 [x.py:1] something \x1b[32mnew\x1b[0m")
    assert log.tail == ("INFO something new",)


def test_folders_of_this_machine_are_not_shown() -> None:
    log = BootLog({"/home/ada": "~", "/home/ada/.cache/specrace": "cache"})
    log.feed("OSError: cannot read /home/ada/.cache/specrace/weights/x and /home/ada/y")
    assert log.tail == ("OSError: cannot read cache/weights/x and ~/y",)
    assert "/home" not in log.cause(1)


def test_a_stage_never_goes_back() -> None:
    log = BootLog({})
    log.feed("init engine (profile, create kv cache, warmup model) took 3.10 s")
    log.feed("Resolved architecture: Again")
    assert log.stage.words == "engine is ready, starting its server"


@pytest.mark.parametrize(
    ("lines", "code", "cause"),
    [
        (
            [
                "ERROR [core.py:1] ValueError: root",
                "RuntimeError: Engine core initialization failed. See root cause above.",
            ],
            1,
            "ValueError: root",
        ),
        (
            ["WARNING 11-30 02:03:06 [x] fd limit errors like `OSError: [Errno 24] Too many open files`"],
            137,
            "it was killed (signal 9), often because memory ran out",
        ),
        (["all fine"], 143, "signal 15 ended it"),
        (["all fine"], 3, "it ended by itself with status 3"),
        (
            ["ERROR [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."],
            0,
            "its engine process died, often because memory ran out",
        ),
        (
            ["OSError: [Errno 98] Address already in use"],
            1,
            (
                "OSError: [Errno 98] Address already in use. Stop what listens on that port, or change the port in the "
                "profile"
            ),
        ),
        (
            ["vllm: error: unrecognized arguments: --nope"],
            2,
            "error: unrecognized arguments: --nope. Correct the arguments in the profile",
        ),
        (
            ["huggingface_hub.errors.GatedRepoError: 401 Client Error."],
            1,
            (
                "huggingface_hub.errors.GatedRepoError: 401 Client Error. "
                "Accept the model's licence on its hub page and set HF_TOKEN"
            ),
        ),
    ],
)
def test_cause(lines: list[str], code: int, cause: str) -> None:
    log = BootLog({})
    for line in lines:
        log.feed(line)
    assert log.cause(code) == cause


def test_the_file_stays_small(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "logs" / "lane.log", limit_bytes=1000)
    for number in range(200):
        file.write(f"line {number} of an engine")
    file.close()
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "logs").iterdir()}
    assert set(sizes) == {"lane.log", "lane.log.1"}
    assert all(size < 1100 for size in sizes.values())
    assert (tmp_path / "logs" / "lane.log").read_text(encoding="utf-8").endswith("line 199 of an engine\n")
