"""Profiles: those that come with the project, and those that someone got wrong."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.errors import ProfileError
from app.ops.engines import dry_run_text, server_command
from app.ops.install import environment_dir
from app.ops.profiles import PROFILES, load_profile, profile_names
from app.race.types import LANES, LaneIdentity
from tests.ops.helpers import MACHINE, fake_profile

METRICS = ["--per-request-spec-decode-metrics", "detailed"]


def test_the_profiles_of_the_issue_are_there() -> None:
    assert profile_names() == ("cpu", "gpu-draft", "gpu-eagle3", "gpu-ngram", "gpu-qwen3")


@pytest.mark.parametrize("name", profile_names())
def test_only_the_speculative_server_speculates(name: str) -> None:
    profile = load_profile(name)
    commands = {
        lane: list(server_command(profile, lane, port=9, cache_dir=Path("/c"), allowed_cpus=(0, 1)).argv)
        for lane in LANES
    }
    assert "--speculative-config" not in commands["baseline"]
    assert METRICS[0] not in commands["baseline"]
    at = commands["speculative"].index("--speculative-config")
    assert commands["speculative"][at + 2 :] == METRICS
    # But for speculation and the port (here the same) both run with the very same arguments.
    assert commands["speculative"][:at] == commands["baseline"]
    assert commands["baseline"][commands["baseline"].index("--host") + 1] == "127.0.0.1"


def test_cpu_profile_is_the_measured_recipe() -> None:
    profile = load_profile("cpu")
    base = server_command(profile, "baseline", port=8101, cache_dir=Path("/c"), allowed_cpus=(0, 1))
    spec = server_command(profile, "speculative", port=8102, cache_dir=Path("/c"), allowed_cpus=(0, 1))
    assert " ".join(base.argv[5:]).split(" --chat-template ")[0] == (
        "--port 8101 --served-model-name gemma --max-model-len 2048 --no-enable-prefix-caching "
        "--enable-prompt-tokens-details --dtype bfloat16 --enforce-eager "
        "--gpu-memory-utilization 0.2 --distributed-executor-backend uni"
    )
    assert spec.argv[-3] == (
        '{"method":"ngram","num_speculative_tokens":4,"prompt_lookup_max":4,"prompt_lookup_min":2}'
    )
    assert (base.cpus, spec.cpus) == ((0,), (1,))
    assert base.env == spec.env
    expected = {
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1",
        "NUMBA_NUM_THREADS": "1", "KMP_BLOCKTIME": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }  # fmt: skip
    assert expected.items() <= base.env.items()
    assert profile.identity("baseline") == LaneIdentity(model="gemma")
    assert profile.identity("speculative") == LaneIdentity(model="gemma", method="ngram", num_speculative_tokens=4)


def test_a_faster_library_is_for_both_lanes_or_none(tmp_path: Path) -> None:
    profile = load_profile("cpu")
    engine = msgspec.structs.replace(profile.engine, preload="lib/libiomp5.so")
    profile = msgspec.structs.replace(profile, engine=engine)

    def preloaded() -> list[str | None]:
        commands = [server_command(profile, lane, port=9, cache_dir=tmp_path, allowed_cpus=(0, 1)) for lane in LANES]
        return [command.env.get("LD_PRELOAD") for command in commands]

    assert preloaded() == [None, None]
    folder = environment_dir(profile, tmp_path)
    assert folder is not None
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "libiomp5.so").touch()
    assert preloaded() == [str(folder / "lib" / "libiomp5.so")] * 2


def test_cpus_are_positions_among_those_allowed() -> None:
    command = server_command(load_profile("cpu"), "speculative", port=1, cache_dir=Path("/c"), allowed_cpus=(4, 6))
    assert command.cpus == (6,)


def test_one_gpu_is_booted_in_turn_and_gated_weights_are_named() -> None:
    draft = load_profile("gpu-draft")
    assert draft.boot == "in_turn"
    assert draft.weights.gated == ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.2-1B-Instruct")
    assert draft.speculative.config["model"] == "meta-llama/Llama-3.2-1B-Instruct"
    assert "0.45" in draft.server.args
    assert load_profile("gpu-qwen3").weights.gated == ()


def test_dry_run_prints_everything_that_would_run(tmp_path: Path) -> None:
    text = dry_run_text(load_profile("cpu"), tmp_path, MACHINE)
    for part in ("uv venv", "uv pip install", "prepare_weights.py", "Gemma Terms", "taskset -c 0", "--port 8102"):
        assert part in text
    assert "VLLM_CPU_KVCACHE_SPACE=1" in text
    assert '\'{"method":"ngram"' in text
    assert "CANNOT RUN HERE: it needs 2 CPU cores, this process may use 1" in text


def _cpu() -> dict[str, Any]:
    return tomllib.loads((PROFILES / "cpu.toml").read_text(encoding="utf-8"))


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, int | float) else '"' + str(value).translate({10: "\\n", 34: '\\"'}) + '"'


WRONG: list[tuple[str, tuple[str, ...], object, str, str]] = [
    ("no title", ("title",), None, "title", "missing"),
    ("misspelt key", ("titel",), "x", "titel", "unknown field"),
    ("number as text", ("baseline", "port"), "8101", "baseline.port", "int"),
    ("port out of range", ("baseline", "port"), 80, "baseline.port", ">= 1024"),
    ("same port twice", ("speculative", "port"), 8101, "speculative.port", "both servers"),
    ("unknown device", ("needs", "device"), "tpu", "needs.device", "tpu"),
    ("no method", ("speculative", "config", "method"), None, "speculative.config.method", "missing"),
    (
        "k of 0",
        ("speculative", "config", "num_speculative_tokens"),
        0,
        "speculative.config.num_speculative_tokens",
        "0",
    ),
    ("k is true", ("speculative", "config", "num_speculative_tokens"), True, "speculative.config.num_spec", "True"),
    ("no speculation", ("speculative", "config"), None, "speculative.config", "missing"),
    ("engine twice", ("engine", "command"), ["vllm"], "engine", "either"),
    ("file not there", ("engine", "overrides"), "nothing.txt", "engine.overrides", "nothing.txt"),
    ("argument of ours", ("server", "args"), ["--port", "1"], "server.args", "--port"),
    ("argument of ours, glued", ("baseline", "args"), ["--host=0.0.0.0"], "baseline.args", "--host"),
    ("weights without script", ("weights",), {}, "server.model", "weights"),
    ("variable's name", ("server", "env"), {"A-B": "1"}, "server.env", "A-Za-z"),
    ("negative cpu", ("baseline", "cpus"), [-1], "baseline.cpus", ">= 0"),
]


@pytest.mark.parametrize(
    ("path", "value", "field", "reason"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG]
)
def test_a_wrong_profile_says_where_and_why(
    tmp_path: Path, path: tuple[str, ...], value: object, field: str, reason: str
) -> None:
    raw = _cpu()
    place = raw
    for key in path[:-1]:
        place = place[key]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    file = tmp_path / "mine.toml"
    file.write_text("\n".join(f"{key} = {_toml(item)}" for key, item in raw.items()), encoding="utf-8")
    with pytest.raises(ProfileError) as caught:
        load_profile(str(file))
    assert caught.value.field.startswith(field)
    assert reason in caught.value.reason
    assert "mine.toml" in caught.value.reason
    assert caught.value.remedy


@pytest.mark.parametrize("name", ["nope", "../../etc/passwd", "", "/etc/passwd"])
def test_an_unknown_name_lists_the_known_ones(name: str) -> None:
    with pytest.raises(ProfileError) as caught:
        load_profile(name)
    assert "cpu, gpu-draft" in caught.value.remedy


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="cannot be read"):
        load_profile(str(tmp_path / "none.toml"))
    (tmp_path / "bad.toml").write_text("title = ", encoding="utf-8")
    with pytest.raises(ProfileError, match="not valid TOML"):
        load_profile(str(tmp_path / "bad.toml"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ProfileError, match="not valid TOML"):
        load_profile(str(tmp_path / "binary.toml"))


def test_a_profile_of_ones_own_is_loaded_by_path(tmp_path: Path) -> None:
    profile = fake_profile(tmp_path)
    assert profile.name == "fake"
    assert profile.engine.command
