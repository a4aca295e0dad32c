"""Why a profile cannot run somewhere, and which one runs by default."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from app.ops.engines import default_profile
from app.ops.machine import Card, Machine, look, why_not
from app.ops.profiles import load_profile

DESK = Machine(
    system="Linux", arch="x86_64", cpu="AMD EPYC", virtual=True, cpus=(0, 1), memory_gb=23.6, free_memory_gb=20.0
)
GPU = msgspec.structs.replace(DESK, cpus=tuple(range(16)), memory_gb=128.0, cards=(Card("NVIDIA H200", 140.4),))


def test_words() -> None:
    assert DESK.words == "2 vCPU AMD EPYC, 24 GB, no GPU"
    assert GPU.words == "16 vCPU AMD EPYC, 128 GB, 1 x NVIDIA H200, 140 GB"


@pytest.mark.parametrize(
    ("machine", "profile", "reason"),
    [
        (DESK, "cpu", None),
        (msgspec.structs.replace(DESK, system="Darwin"), "cpu", "vLLM runs on Linux, this is Darwin"),
        (msgspec.structs.replace(DESK, arch="riscv64"), "cpu", "no vLLM is built for riscv64"),
        (msgspec.structs.replace(DESK, free_memory_gb=7.9), "cpu", "10 GB of free memory, 7.9 GB are free"),
        (msgspec.structs.replace(DESK, cpus=(3,)), "cpu", "needs 2 CPU cores, this process may use 1"),
        (DESK, "gpu-qwen3", "needs an NVIDIA GPU, and nvidia-smi finds none"),
        (GPU, "gpu-qwen3", None),
        (msgspec.structs.replace(GPU, cards=(Card("T4", 15.0),)), "gpu-qwen3", "card with 44 GB"),
        (GPU, "gpu-draft", "meta-llama/Llama-3.1-8B-Instruct and meta-llama/Llama-3.2-1B-Instruct ask"),
    ],
)
def test_why_not(
    machine: Machine, profile: str, reason: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
    found = why_not(load_profile(profile), machine, cache_dir=tmp_path, installed=True)
    assert (reason is None) == (found is None)
    assert (reason or "") in (found or "")


def test_a_small_disk_speaks_against_an_installation_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.ops.machine._free_disk_gb", lambda _: 2.0)
    profile = load_profile("cpu")
    assert "9 GB on the cache's disk, 2 GB" in (why_not(profile, DESK, cache_dir=tmp_path, installed=False) or "")
    assert why_not(profile, DESK, cache_dir=tmp_path, installed=True) is None


def test_default_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.ops.machine._free_disk_gb", lambda _: 500.0)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    assert default_profile(DESK, tmp_path).name == "cpu"
    assert default_profile(GPU, tmp_path).name == "gpu-qwen3"
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    assert default_profile(GPU, tmp_path).name == "gpu-draft"


def test_this_machine_is_looked_at() -> None:
    machine = look()
    assert machine.cpus
    assert 0 < machine.free_memory_gb <= machine.memory_gb
