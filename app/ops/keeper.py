"""Keeps one server: starts it, and ends it and all its descendants when the app stops or dies.

usage: python keeper.py [--cpus 0,1] [--grace SECONDS] -- COMMAND [ARGUMENT ...]

    app ──stdin (a pipe that only the app holds)──► keeper ──fork, own session──► vllm serve ──► EngineCore …

The pipe ends when the app closes it, crashes or is killed with SIGKILL: the kernel closes it in every case. Then the
keeper sends SIGTERM to the server's process group, waits for the grace period and sends SIGKILL. On Linux it is the
subreaper of all its descendants: also those that left the group come back to it, and it ends only when none is left.
Should the keeper itself be killed, the server gets SIGTERM from the kernel.

Runs as a script, with the standard library only: it must start fast and outlive a broken app.
First line on stdout: ``keeper: pid N``, the server's process and group. Exit status: the server's, 128 + N after
signal N, 127 when it could not be started.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import select
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LAST_CALL_S = 5.0
"""How long to wait for processes that were sent SIGKILL; longer means they hang in the kernel."""


def main(arguments: list[str]) -> int:
    """Run the command until it ends or stdin does. Returns the exit status, as the module says."""
    cpus, grace_s, command = _parse(arguments)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    if cpus and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cpus)
    wake = _wake_on_signals()
    pid = _start(command)
    # Unbuffered: with sys.stdout an app that died in between would turn this into a traceback.
    os.write(1, f"keeper: pid {pid}\n".encode())
    status = _watch(pid, wake)
    ended = _end_all(pid, grace_s)
    return status if status is not None else ended.get(pid, 128 + signal.SIGKILL)


def _parse(arguments: list[str]) -> tuple[set[int], float, list[str]]:
    split = arguments.index("--")
    options = dict(zip(arguments[:split:2], arguments[1:split:2], strict=True))
    cpus = {int(number) for number in options.get("--cpus", "").split(",") if number}
    return cpus, float(options.get("--grace", "3")), arguments[split + 1 :]


def _prctl(option: int, value: int) -> None:
    """Linux only; elsewhere the process group has to do."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _wake_on_signals() -> int:
    """A pipe that becomes readable when a child ended or someone asks the keeper to stop."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    os.set_blocking(read_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _noted)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return read_end


def _noted(_number: int, _frame: object) -> None:
    """The wake-up pipe carries the news."""


def _start(command: list[str]) -> int:
    keeper = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != keeper:
            os._exit(127)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.execvp(command[0], command)  # noqa: S606 (no shell is the point)
    except OSError as error:
        os.write(1, f"error: cannot start {command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def _watch(pid: int, wake: int) -> int | None:
    """Until the server ends (its status) or the app lets go (None)."""
    while True:
        readable, _, _ = select.select([0, wake], [], [])
        if 0 in readable and not os.read(0, 4096):
            return None
        if wake in readable:
            numbers = os.read(wake, 4096)
            status = _reap().get(pid)
            if status is not None:
                return status
            if signal.SIGTERM in numbers or signal.SIGHUP in numbers:
                return None


def _reap() -> dict[int, int]:
    """Statuses of the children that ended. Raises ChildProcessError when there is no child at all."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            if ended:
                return ended
            raise
        if pid == 0:
            return ended
        code = os.waitstatus_to_exitcode(status)
        ended[pid] = code if code >= 0 else 128 - code


def _end_all(group: int, grace_s: float) -> dict[int, int]:
    """Ask, wait, then kill, until no descendant is left. Returns the statuses seen on the way."""
    ended: dict[int, int] = {}
    asked_until = time.monotonic() + grace_s
    give_up = asked_until + LAST_CALL_S
    asked = False
    while time.monotonic() < give_up:
        try:
            ended.update(_reap())
        except ChildProcessError:
            break
        if time.monotonic() >= asked_until:
            _signal(group, signal.SIGKILL)
        elif not asked:
            _signal(group, signal.SIGTERM)
            asked = True
        time.sleep(0.02)
    return ended


def _signal(group: int, number: int) -> None:
    """To the group, and to adopted children that left it. Each gets it once: to vLLM a second SIGTERM is rude."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
    for pid in _children_outside(group):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _children_outside(group: int) -> list[int]:
    """Direct children in other process groups, from /proc; empty where there is none."""
    found: list[int] = []
    me = os.getpid()
    try:
        entries = [entry for entry in pathlib.Path("/proc").iterdir() if entry.name.isdigit()]
    except OSError:
        return found
    for entry in entries:
        try:
            _state, parent, its_group = (entry / "stat").read_bytes().rpartition(b")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if int(parent) == me and int(its_group) != group:
            found.append(int(entry.name))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
