"""Measures app and relay in turn, under the same load, and prints what each needed. See ``tests.bench``."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.bench import first_load
from tests.bench.processes import cpu_s, free_ports, rss_mb, running, wait_for
from tests.bench.report import report
from tests.bench.viewer import Seen, watch

LANES = 2


@dataclass(frozen=True)
class Run:
    """One stream of both lanes, carried by one of the two."""

    cpu_us_per_chunk: float
    added_p50_ms: float
    added_p99_ms: float
    frames_per_s: float
    gap_p99_ms: float
    bytes_per_chunk: float
    lost: int


@dataclass(frozen=True)
class Rig:
    """The three servers: where they listen, and whose CPU is counted."""

    source_port: int
    relay_port: int
    app_port: int
    relay_pid: int
    app_pid: int
    idle: dict[int, float]


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def post(url: str, body: bytes, *, patience_s: float = 0) -> dict[str, Any]:
    """POSTs JSON; asks again while the server says that it is not ready or busy."""
    end = time.monotonic() + patience_s
    while True:
        try:
            request = urllib.request.Request(url, body, {"content-type": "application/json"}, method="POST")
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code not in {429, 503} or time.monotonic() > end:
                raise SystemExit(f"{url}: {error.code} {error.read().decode(errors='replace')[:500]}") from error
            time.sleep(0.2)


async def start_race(rig: Rig, tokens: int) -> str:
    asked = {
        "prompt": "Count.",
        "temperature": 0,
        "max_tokens": tokens,
        "ignore_eos": True,
        "schedule": "together",
    }
    race = await asyncio.to_thread(
        post, f"http://127.0.0.1:{rig.app_port}/api/races", json.dumps(asked).encode(), patience_s=20
    )
    return str(race["id"])


async def carried_by_app(rig: Rig, tokens: int, timeout_s: float) -> Seen:
    race = await start_race(rig, tokens)
    return await watch(rig.app_port, f"/races/{race}/stream", until=b"event: done", timeout_s=timeout_s)


async def carried_by_relay(rig: Rig, tokens: int, timeout_s: float) -> Seen:
    return await watch(rig.relay_port, f"/relay?tokens={tokens}", until=None, timeout_s=timeout_s)


async def measure(rig: Rig, arm: str, rate: float, seconds: float) -> Run:
    pid = rig.app_pid if arm == "app" else rig.relay_pid
    carry = carried_by_app if arm == "app" else carried_by_relay
    tokens = int(rate * seconds)
    began, before = time.monotonic(), cpu_s(pid)
    seen = await carry(rig, tokens, seconds * 3 + 20)
    await asyncio.sleep(0.5)  # what is written after the last frame belongs to the race as well
    used = cpu_s(pid) - before - rig.idle[pid] * (time.monotonic() - began)
    added = [nanoseconds / 1e6 for nanoseconds in seen.added_ns]
    gaps = [(b - a) / 1e6 for a, b in zip(seen.arrivals_ns, seen.arrivals_ns[1:], strict=False)]
    return Run(
        cpu_us_per_chunk=used / (LANES * tokens) * 1e6,
        added_p50_ms=quantile(added, 0.5),
        added_p99_ms=quantile(added, 0.99),
        frames_per_s=len(seen.arrivals_ns) / seconds,
        gap_p99_ms=quantile(gaps, 0.99),
        bytes_per_chunk=seen.bytes / (LANES * tokens),
        lost=LANES * tokens - len(added),
    )


async def idle_cpu(pids: list[int], seconds: float) -> dict[int, float]:
    """The share of a core that each process uses while nobody races."""
    before = {pid: cpu_s(pid) for pid in pids}
    await asyncio.sleep(seconds)
    return {pid: (cpu_s(pid) - before[pid]) / seconds for pid in pids}


async def memory(rig: Rig, total: int, per_race: int, rate: float) -> dict[str, Any]:
    """Resident memory over many races of ``2 * per_race`` tokens, after the first has warmed everything up."""
    post(f"http://127.0.0.1:{rig.source_port}/rate", str(rate).encode())
    await carried_by_app(rig, per_race, per_race / rate * 3 + 20)
    before = rss_mb(rig.app_pid)
    after: list[float] = []
    done = 0
    while done < total:
        await carried_by_app(rig, per_race, per_race / rate * 3 + 20)
        done += LANES * per_race
        after.append(rss_mb(rig.app_pid))
    slope = statistics.linear_regression(range(len(after)), after).slope if len(after) > 1 else 0.0
    half = after[len(after) // 2 :]
    return {
        "tokens": done,
        "races": len(after),
        "tokens_per_race": LANES * per_race,
        "rss_before_mb": before,
        "rss_after_mb": after[-1],
        "rss_highest_mb": max(after),
        "rss_growth_second_half_mb": half[-1] - half[0],
        "rss_growth_mb_per_race": slope,
    }


async def benchmark(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        logs = Path(folder)
        first, second, relay_port, app_port = free_ports(4)
        upstreams = [f"http://127.0.0.1:{port}" for port in (first, second)]
        stack.enter_context(running("tests.bench.source", str(first), str(second), log=logs / "source"))
        relay_pid = stack.enter_context(
            running("tests.bench.relay", "--port", str(relay_port), *upstreams, log=logs / "relay")
        )
        limits = {
            "SPECRACE_DATABASE": str(logs / "bench.sqlite3"),
            "SPECRACE_MAX_TOKENS": "1000000",
            "SPECRACE_RATE_LIMIT": "100000/minute",
        }
        served = ["serve", "--baseline", upstreams[0], "--speculative", upstreams[1], "--port", str(app_port)]
        began = time.monotonic()
        app_pid = stack.enter_context(running("app", *served, env=limits, log=logs / "app"))
        wait_for(f"http://127.0.0.1:{app_port}/healthz", logs / "app")
        page_up_s = time.monotonic() - began
        wait_for(f"http://127.0.0.1:{relay_port}/healthz", logs / "relay")
        wait_for(f"{upstreams[0]}/health", logs / "source")

        rig = Rig(first, relay_port, app_port, relay_pid, app_pid, {relay_pid: 0.0, app_pid: 0.0})
        for arm in ("relay", "app"):
            await measure(rig, arm, 200, 2)  # warm both up
        rig.idle.update(await idle_cpu([relay_pid, app_pid], options.seconds / 2))
        rates: dict[str, Any] = {}
        for rate in options.rates:
            post(f"http://127.0.0.1:{first}/rate", str(rate).encode())
            runs: dict[str, list[Run]] = {"relay": [], "app": []}
            for number in range(options.repeats):
                order = ("relay", "app") if number % 2 == 0 else ("app", "relay")
                for arm in order:
                    runs[arm].append(await measure(rig, arm, rate, options.seconds))
            rates[f"2x{rate:g}"] = {
                "relay": [asdict(run) for run in runs["relay"]],
                "app": [asdict(run) for run in runs["app"]],
                "ratio": [
                    a.cpu_us_per_chunk / b.cpu_us_per_chunk for a, b in zip(runs["app"], runs["relay"], strict=True)
                ],
            }
        return {
            "machine": {
                "cores": os.cpu_count(),
                "python": platform.python_version(),
                "load_1m": os.getloadavg()[0],
            },
            "page_up_s": page_up_s,
            "idle_cpu_percent": {"app": rig.idle[app_pid] * 100, "relay": rig.idle[relay_pid] * 100},
            "rates": rates,
            "memory": await memory(rig, options.tokens, options.tokens_per_race, options.memory_rate),
            "first_load": await asyncio.to_thread(first_load.measure, f"http://127.0.0.1:{app_port}/"),
        }


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--rates", type=lambda text: [float(one) for one in text.split(",")], default=[200.0, 500.0])
    parser.add_argument("--seconds", type=float, default=10, help="length of one run")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each arm at each rate")
    parser.add_argument("--tokens", type=int, default=100_000, help="tokens in all while memory is watched")
    parser.add_argument("--tokens-per-race", type=int, default=2_500, help="per lane, while memory is watched")
    parser.add_argument("--memory-rate", type=float, default=1_000, help="chunks a second and lane, meanwhile")
    parser.add_argument("--json", action="store_true", help="everything measured, as JSON")
    options = parser.parse_args()
    found = asyncio.run(benchmark(options))
    print(json.dumps(found, indent=1) if options.json else report(found))


if __name__ == "__main__":
    main()
