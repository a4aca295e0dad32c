"""Profiles: one TOML file says how a pair of servers is made. Read and checked here; nothing is run.

    deploy/profiles/NAME.toml ──read──► Profile ──► engines.py (commands) · machine.py (can it run here?)

A misspelt key is an error and never ignored. Paths inside a profile are names of files in deploy/engine. Arguments
and variables may hold placeholders:
``{weights}`` the prepared weights, ``{engine}`` the folder deploy/engine.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from app.errors import ProfileError
from app.race.types import LaneIdentity, LaneName

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
PROFILES = DEPLOY / "profiles"
ENGINE_FILES = DEPLOY / "engine"

Port = Annotated[int, Meta(ge=1024, le=65535)]
Position = Annotated[int, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
Text = Annotated[str, Meta(min_length=1)]
VariableName = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
ConfigValue = str | int | float | bool

OURS = ("--host", "--port", "--served-model-name", "--speculative-config", "--per-request-spec-decode-metrics")
"""Arguments that Specrace sets itself: set twice, one of the two would silently win."""


class Needs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the machine must have. Memory, card memory and disk in GB of 2**30 bytes."""

    device: Literal["cpu", "nvidia"]
    arch: tuple[Text, ...] = ("x86_64", "aarch64")
    cores: Annotated[int, Meta(ge=1)] = 1
    memory_gb: Positive | None = None
    gpu_memory_gb: Positive | None = None
    disk_gb: Positive | None = None


class Engine(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where vLLM comes from: an environment made from requirements, or a command that is there already.

    ``command`` replaces ``vllm serve``; ``preload`` is a library inside the environment, used where it is there.
    """

    requirements: Text | None = None
    constraints: Text | None = None
    overrides: Text | None = None
    packages: tuple[Text, ...] = ()
    torch_backend: Text | None = None
    preload: Text | None = None
    command: tuple[Text, ...] = ()


class Weights(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``script`` prepares a local folder out of ``package``; ``gated`` models need an accepted licence and a token."""

    script: Text | None = None
    package: Text | None = None
    notice: Text | None = None
    gated: tuple[Text, ...] = ()


class Server(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What both servers share."""

    model: Text
    served_name: Text
    args: tuple[str, ...] = ()
    env: dict[VariableName, str] = {}


class Lane(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one server has of its own. ``cpus`` are positions among the CPUs this process may use."""

    port: Port
    cpus: tuple[Position, ...] = ()
    args: tuple[str, ...] = ()
    env: dict[VariableName, str] = {}


class SpeculativeLane(Lane, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The lane that speculates; ``config`` is vLLM's --speculative-config, word for word."""

    config: dict[str, ConfigValue]

    @property
    def method(self) -> str:
        """How the draft is made, in vLLM's own name for it."""
        return str(self.config["method"])

    @property
    def num_speculative_tokens(self) -> int:
        """Tokens drafted per step, at most."""
        return int(self.config["num_speculative_tokens"])

    @property
    def config_json(self) -> str:
        """The value of --speculative-config."""
        return json.dumps(self.config, separators=(",", ":"))


class Profile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way to run the pair. ``name`` is the file's name; it is not written inside the file.

    ``boot`` "in_turn" starts the second server when the first one is up (needed on one GPU).
    """

    name: str = ""
    title: Text
    hardware: Text
    notes: str = ""
    shared_device: bool
    boot: Literal["together", "in_turn"] = "together"
    needs: Needs
    engine: Engine
    weights: Weights = Weights()
    server: Server
    baseline: Lane
    speculative: SpeculativeLane

    def lane(self, name: LaneName) -> Lane:
        """The settings of one server."""
        return self.baseline if name == "baseline" else self.speculative

    def identity(self, name: LaneName) -> LaneIdentity:
        """Who runs in a lane, before any server answers."""
        if name == "baseline":
            return LaneIdentity(model=self.server.served_name)
        return LaneIdentity(
            model=self.server.served_name,
            method=self.speculative.method,
            num_speculative_tokens=self.speculative.num_speculative_tokens,
        )


def profile_names(folder: Path = PROFILES) -> tuple[str, ...]:
    """Names that ``load_profile`` knows, sorted."""
    return tuple(sorted(path.stem for path in folder.glob("*.toml")))


def load_profile(name: str, *, folder: Path = PROFILES) -> Profile:
    """Read a profile by name, or by path when ``name`` ends in .toml.

    Raises ProfileError naming the field, the reason and the remedy.
    """
    path = Path(name) if name.endswith(".toml") else folder / f"{name}.toml"
    if not name.endswith(".toml") and (os.sep in name or name not in profile_names(folder)):
        known = ", ".join(profile_names(folder)) or "none"
        raise ProfileError(
            "profile", f"there is no profile named {name!r}", f"Known ones: {known}; or give a .toml file"
        )
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ProfileError("profile", f"{path.name} cannot be read ({error.strerror})", "Check the path") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ProfileError("profile", f"{path.name} is not valid TOML: {error}", "Correct that line") from None
    try:
        profile = msgspec.convert({**raw, "name": path.stem}, Profile)
    except msgspec.ValidationError as error:
        raise _explained(path, error) from None
    _check(profile, path.name)
    return profile


def _explained(path: Path, error: msgspec.ValidationError) -> ProfileError:
    reason, _, where = str(error).partition(" - at ")
    place = re.search(r"\$\.?([^`]*)", where)
    field = place[1] if place else ""
    named = re.search(r"field `(\w+)`", reason)
    if named:
        field = ".".join(filter(None, [field, named[1]]))
    return ProfileError(field or "profile", f"{path.name}: {reason}", "Compare with deploy/profiles/cpu.toml")


def _check(profile: Profile, file: str) -> None:
    """What types cannot say."""
    config = profile.speculative.config
    if not isinstance(config.get("method"), str) or not config["method"]:
        raise ProfileError("speculative.config.method", f"{file}: it is missing", 'For example: method = "ngram"')
    k = config.get("num_speculative_tokens")
    if type(k) is not int or k < 1:
        raise ProfileError(
            "speculative.config.num_speculative_tokens", f"{file}: it is {k!r}", "Give a whole number from 1 upwards"
        )
    if profile.baseline.port == profile.speculative.port:
        raise ProfileError("speculative.port", f"{file}: both servers have port {profile.baseline.port}", "Change one")
    if bool(profile.engine.command) == bool(profile.engine.requirements):
        raise ProfileError("engine", f"{file}: needs either requirements or command", "Give exactly one of the two")
    if profile.weights.script and not profile.engine.requirements:
        raise ProfileError("weights.script", f"{file}: has no engine environment to run in", "Give engine.requirements")
    if "{weights}" in profile.server.model and not profile.weights.script:
        raise ProfileError("server.model", f"{file}: names {{weights}} without a script", "Give weights.script")
    _check_args(profile, file)
    _check_files(profile, file)


def _check_args(profile: Profile, file: str) -> None:
    for field, args in (
        ("server.args", profile.server.args),
        ("baseline.args", profile.baseline.args),
        ("speculative.args", profile.speculative.args),
    ):
        for arg in args:
            if arg.partition("=")[0] in OURS:
                raise ProfileError(field, f"{file}: {arg} is set by Specrace itself", "Remove it from the list")


def _check_files(profile: Profile, file: str) -> None:
    engine, weights = profile.engine, profile.weights
    named = {
        "engine.requirements": engine.requirements,
        "engine.constraints": engine.constraints,
        "engine.overrides": engine.overrides,
        "weights.script": weights.script,
        **{f"engine.packages[{i}]": package for i, package in enumerate(engine.packages)},
    }
    for field, value in named.items():
        if value and not (ENGINE_FILES / value).exists():
            raise ProfileError(field, f"{file}: deploy/engine has no {value}", "Name a file that is there")
