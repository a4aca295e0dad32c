"""Profiles for the fake engine, and waiting for what a supervisor does."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import anyio

from app.ops.machine import Machine
from app.ops.profiles import Profile, load_profile
from app.ops.supervisor import Patience

FAKE = Path(__file__).with_name("fake_engine.py")
HASTY = Patience(first_s=0.05, cap_s=0.2, slow_s=0.4, stable_s=30, health_every_s=0.02, grace_s=0.5)
MACHINE = Machine(
    system="Linux", arch="x86_64", cpu="Test", virtual=True, cpus=(0,), memory_gb=24.0, free_memory_gb=20.0
)

TOML = """
title = "Fake pair"
hardware = "anything"
shared_device = true
boot = "{boot}"
[needs]
device = "cpu"
[engine]
command = ["{python}", "{fake}"]
[server]
model = "fake"
served_name = "fake"
[server.env]
FAKE_FOLDER = "{folder}"
FAKE_PLAN_{first} = "{baseline}"
FAKE_PLAN_{second} = "{speculative}"
[baseline]
port = {first}
[speculative]
port = {second}
[speculative.config]
method = "ngram"
num_speculative_tokens = 4
"""


def two_free_ports() -> tuple[int, int]:
    with socket.socket() as a, socket.socket() as b:
        a.bind(("127.0.0.1", 0))
        b.bind(("127.0.0.1", 0))
        return a.getsockname()[1], b.getsockname()[1]


def fake_profile(
    folder: Path, *, baseline: str = "serve", speculative: str = "serve", boot: str = "together"
) -> Profile:
    first, second = two_free_ports()
    path = folder / "fake.toml"
    text = TOML.format(
        python=sys.executable, fake=FAKE, folder=folder, boot=boot, first=first, second=second,
        baseline=baseline, speculative=speculative,
    )  # fmt: skip
    path.write_text(text, encoding="utf-8")
    return load_profile(str(path))


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return False
    return state != b"Z"


def starts(folder: Path, port: int) -> list[tuple[int, float]]:
    """Pid and time (s) of each start of the fake engine on a port."""
    try:
        lines = (folder / f"starts-{port}").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    return [(int(line.split()[0]), float(line.split()[1])) for line in lines]


async def until(true: Callable[[], bool], what: str, within_s: float = 15.0) -> None:
    """Wait for something; fails with ``what`` when it does not come."""
    with anyio.move_on_after(within_s):
        while not true():  # noqa: ASYNC110 (what is waited for happens in another process)
            await anyio.sleep(0.02)
    assert true(), f"not within {within_s} s: {what}"


def wait_until(true: Callable[[], bool], what: str, within_s: float = 15.0) -> None:
    """The same outside a loop."""
    end = time.monotonic() + within_s
    while not true() and time.monotonic() < end:
        time.sleep(0.02)
    assert true(), f"not within {within_s} s: {what}"


def environment_of(pid: int) -> dict[str, str]:
    """The variables that a process was started with."""
    raw = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(entry.split("=", 1) for entry in raw if "=" in entry)


ROOT = Path(__file__).resolve().parents[2]
ENV = {**os.environ, "PYTHONPATH": str(ROOT)}
