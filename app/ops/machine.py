"""What this machine is, in words, and why a profile cannot run on it."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from app.ops.profiles import Profile

GIB = 2**30
QUERY_S = 5.0
"""A driver that answers later than this counts as absent: the page must be up within three seconds or so."""


class Card(Struct, frozen=True):
    """One NVIDIA card; memory in GB of 2**30 bytes."""

    name: str
    memory_gb: float


class Machine(Struct, frozen=True, kw_only=True):
    """This machine as an engine sees it: limits of a container or an affinity mask count. Memory in GB of 2**30."""

    system: str
    arch: str
    cpu: str
    virtual: bool
    cpus: tuple[int, ...]
    memory_gb: float
    free_memory_gb: float
    cards: tuple[Card, ...] = ()

    @property
    def words(self) -> str:
        """For people: "2 vCPU AMD EPYC, 24 GB, no GPU"."""
        gpu = "no GPU"
        if self.cards:
            card = self.cards[0]
            gpu = f"{len(self.cards)} x {card.name}, {card.memory_gb:.0f} GB"
        cores = f"{len(self.cpus)} {'vCPU' if self.virtual else 'CPU'}"
        return f"{cores} {self.cpu}, {self.memory_gb:.0f} GB, {gpu}"


def look() -> Machine:
    """Look at this machine. Asks nvidia-smi where there is one (a second at most, as a rule)."""
    info = _text("/proc/cpuinfo")
    total, free = _memory_gb()
    return Machine(
        system=platform.system(),
        arch=platform.machine().lower().replace("arm64", "aarch64").replace("amd64", "x86_64"),
        cpu=_cpu_name(info),
        virtual=bool(re.search(r"^flags\b.*\bhypervisor\b", info, re.MULTILINE)),
        cpus=_cpus(),
        memory_gb=total,
        free_memory_gb=free,
        cards=_cards(),
    )


def why_not(profile: Profile, machine: Machine, *, cache_dir: Path, installed: bool) -> str | None:
    """Why the profile cannot run here, and what would help; None when nothing speaks against it."""
    needs = profile.needs
    if machine.system != "Linux":
        return f"vLLM runs on Linux, this is {machine.system}. Use specrace serve with servers elsewhere"
    if machine.arch not in needs.arch:
        return f"no vLLM is built for {machine.arch} processors. Use specrace serve with servers elsewhere"
    if needs.device == "nvidia" and (reason := _no_card(profile, machine)):
        return reason
    if len(machine.cpus) < needs.cores:
        return f"it needs {needs.cores} CPU cores, this process may use {len(machine.cpus)}"
    if needs.memory_gb and machine.free_memory_gb < needs.memory_gb:
        free, wanted = machine.free_memory_gb, needs.memory_gb
        return f"it needs {wanted:.0f} GB of free memory, {free:.1f} GB are free. Close something and start again"
    if needs.disk_gb and not installed and (free := _free_disk_gb(cache_dir)) < needs.disk_gb:
        return f"it needs {needs.disk_gb:.0f} GB on the cache's disk, {free:.0f} GB are free. Set SPECRACE_CACHE"
    return _gated(profile, os.environ)


def _no_card(profile: Profile, machine: Machine) -> str | None:
    if not machine.cards:
        return "it needs an NVIDIA GPU, and nvidia-smi finds none. The profile cpu needs none"
    wanted = profile.needs.gpu_memory_gb or 0.0
    best = max(card.memory_gb for card in machine.cards)
    if best < wanted:
        return f"it needs a card with {wanted:.0f} GB, the largest here has {best:.0f} GB. The profile cpu needs none"
    return None


def _gated(profile: Profile, environ: Mapping[str, str]) -> str | None:
    """Gated weights are asked for before a quarter of an hour of installing, not after it."""
    home = Path(environ.get("HF_HOME") or Path(environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")).expanduser()
    hub = Path(environ.get("HF_HUB_CACHE") or home / "hub")
    missing = [name for name in profile.weights.gated if not (hub / f"models--{name.replace('/', '--')}").exists()]
    tokens = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
    if not missing or any(environ.get(name) for name in tokens) or (home / "token").exists():
        return None
    names = " and ".join(missing)
    return f"{names} ask for an accepted licence: accept it on the hub page and set HF_TOKEN"


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _cpu_name(info: str) -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", info, re.MULTILINE)
    name = found[1] if found else platform.processor() or platform.machine()
    return re.sub(r"\((?:R|TM)\)|\bCPU\b|\bProcessor\b|@.*|\d+-Core", "", name).strip().replace("  ", " ")


def _cpus() -> tuple[int, ...]:
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def _memory_gb() -> tuple[float, float]:
    """Total and free; the smaller of the machine's and the container's."""
    rows = dict(re.findall(r"^(\w+):\s+(\d+) kB", _text("/proc/meminfo"), re.MULTILINE))
    total, free = (int(rows.get(name, 0)) * 1024 / GIB for name in ("MemTotal", "MemAvailable"))
    limit = _text("/sys/fs/cgroup/memory.max").strip()
    if limit.isdigit():
        used = int(_text("/sys/fs/cgroup/memory.current") or 0)
        cached = re.search(r"^inactive_file (\d+)", _text("/sys/fs/cgroup/memory.stat"), re.MULTILINE)
        spare = int(limit) - used + (int(cached[1]) if cached else 0)
        total, free = min(total, int(limit) / GIB), min(free, spare / GIB)
    return total, free


def _cards() -> tuple[Card, ...]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    query = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=QUERY_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    rows = [line.rpartition(",") for line in answer.stdout.splitlines() if "," in line]
    return tuple(Card(name.strip(), float(mib) / 1024) for name, _, mib in rows if mib.strip().isdigit())


def _free_disk_gb(folder: Path) -> float:
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(existing).free / GIB
