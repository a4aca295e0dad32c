"""The processes under measurement: started, asked for what they used, and ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


@contextmanager
def running(module: str, *arguments: str, env: dict[str, str] | None = None, log: Path) -> Iterator[int]:
    """``python -m module`` in a process group of its own; gives its process id."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=os.environ | (env or {}),
            start_new_session=True,
        )
        try:
            yield process.pid
        finally:
            if process.poll() is None:
                process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def wait_for(url: str, log: Path, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            if time.monotonic() > end:
                print(log.read_text(errors="replace")[-2000:], file=sys.stderr)
                raise
            time.sleep(0.05)


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the command's name, which may hold spaces."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()


def _tree(pid: int) -> list[int]:
    """The process and all that descend from it."""
    parent: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent[int(entry.name)] = int(_stat(int(entry.name))[1])
            except OSError:
                continue
    found = [pid]
    for one in found:
        found += [child for child, its_parent in parent.items() if its_parent == one]
    return found


def cpu_s(pid: int) -> float:
    """Seconds of CPU that the process, and what it started, have used so far, in user and kernel."""
    return sum(int(_stat(one)[11]) + int(_stat(one)[12]) for one in _tree(pid)) / _TICKS_PER_S


def rss_mb(pid: int) -> float:
    pages = sum(int(Path(f"/proc/{one}/statm").read_text().split()[1]) for one in _tree(pid))
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
