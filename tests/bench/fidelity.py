"""Is what the page says what the servers did? The app's figures beside an independent client's, in one alternating run.

    python -m tests.bench.fidelity --baseline URL --speculative URL [--rounds 10] [--viewers 30]

Each round is one race in turn through the app and one answer of each server to ``tests.bench.raw_client``, with
the same body; who goes first alternates. Greedy, so both see the same tokens. All of it passes ``tests.bench.tap``,
which stamps the packets on the wire: the very same answers, seen by somebody else. So two things show apart: whether
the app measures right (page against tap), and whether it slows what it measures (page against raw client; a machine
that is not steady shows there too). The servers must have nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.bench.processes import cpu_s, free_ports, running, wait_for
from tests.bench.raw_client import Measured, measure

LANES = ("baseline", "speculative")
FIGURES = ("ttft_ms", "tpot_ms", "tokens_per_second")
GOAL_PERCENT = {0: 1.0, 30: 2.0}
PROMPT = (
    "A JSON list of the members of the crew, one object a line, each with name, role, age and cabin:\n"
    '[\n{"name": "Ada", "role": "captain", "age": 41, "cabin": "A1"},\n'
    '{"name": "Ben", "role": "cook", "age": 35, "cabin": "A2"},\n'
)

Figures = dict[str, float]


def asked(tokens: int) -> dict[str, Any]:
    return {"prompt": PROMPT, "temperature": 0, "top_p": 1, "seed": 0, "max_tokens": tokens, "ignore_eos": True}


def raw(url: str, model: str, tokens: int) -> Measured:
    body = asked(tokens) | {
        "model": model,
        "messages": [{"role": "user", "content": PROMPT}],
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "return_token_ids": True,
    }
    del body["prompt"]
    return measure(url, body)


def get(url: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def through_the_app(app: str, tokens: int, crowd: subprocess.Popen[str] | None) -> tuple[Figures, dict[str, Any]]:
    race = get(f"{app}/api/races", asked(tokens) | {"schedule": "in_turn"})["id"]
    if crowd is not None and crowd.stdin is not None:
        crowd.stdin.write(race + "\n")
        crowd.stdin.flush()
    # waiting on the event stream costs the machine less than asking again and again
    with urllib.request.urlopen(f"{app}/api/races/{race}/events", timeout=120) as events:
        while b"event: done" not in events.readline():
            pass
    if crowd is not None and crowd.stdout is not None and int(crowd.stdout.readline()) == 0:
        raise SystemExit("a viewer saw nothing")
    found = get(f"{app}/api/races/{race}")
    if found["status"] != "finished":
        raise SystemExit(f"the race ended {found['status']}: {found['lanes']}")
    figures = {f"{figure} {lane}": found["lanes"][lane][figure] for lane in LANES for figure in FIGURES}
    compared = found["comparison"]
    return figures | {"speedup": compared["speedup"], "decode_speedup": compared["decode_speedup"]}, found


def figures_of(seen: dict[str, dict[str, Any]]) -> Figures:
    """The figures of both lanes and of the pair, from ``Measured`` as dicts."""
    figures = {f"{figure} {lane}": seen[lane][figure] for lane in LANES for figure in FIGURES}
    figures["speedup"] = seen["speculative"]["tokens_per_second"] / seen["baseline"]["tokens_per_second"]
    figures["decode_speedup"] = seen["baseline"]["tpot_ms"] / seen["speculative"]["tpot_ms"]
    return figures


def by_the_raw_client(urls: dict[str, str], models: dict[str, str], tokens: int) -> Figures:
    return figures_of({lane: asdict(raw(urls[lane], models[lane], tokens)) for lane in LANES})


@contextmanager
def watching(viewers: int, port: int) -> Iterator[subprocess.Popen[str] | None]:
    if not viewers:
        yield None
        return
    command = [sys.executable, "-m", "tests.bench.crowd", "--port", str(port), "--viewers", str(viewers)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as crowd:
        try:
            yield crowd
        finally:
            crowd.terminate()


@contextmanager
def tapped(server: str, port: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.bench.tap", "--port", str(port), "--server", server]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tap:
        try:
            yield tap
        finally:
            tap.terminate()


def said(tap: subprocess.Popen[str]) -> dict[str, Any]:
    """What the tap saw of the answer that just ended."""
    line = tap.stdout.readline() if tap.stdout is not None else ""
    if not line:
        raise SystemExit("the tap is gone")
    return json.loads(line)


def differences(number: int, found: dict[str, Any], record: dict[str, Any]) -> list[str]:
    """Where the page's acceptance is not what the server itself said in that very answer."""
    took = found["lanes"]["speculative"]["acceptance"]
    pairs = {
        "drafted": (took["drafted"], record.get("num_draft_tokens")),
        "accepted": (took["accepted"], record.get("num_accepted_draft_tokens")),
        "rate": (took["rate"], record.get("draft_acceptance_rate")),
        "mean length": (took["mean_length"], record.get("mean_acceptance_length")),
        "histogram": (took["histogram"], record.get("acceptance_histogram")),
    }
    return [f"round {number}: {name} {one} != {other}" for name, (one, other) in pairs.items() if one != other]


def compare(options: argparse.Namespace) -> tuple[dict[str, list[Figures]], list[str]]:
    servers = {lane: getattr(options, lane).rstrip("/").removesuffix("/v1") for lane in LANES}
    models = {lane: get(f"{servers[lane]}/v1/models")["data"][0]["id"] for lane in LANES}
    arms: dict[str, list[Figures]] = {"page": [], "tap": [], "raw client": []}
    wrong: list[str] = []
    busy: list[float] = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        port, *ports = free_ports(1 + len(LANES))
        urls = {lane: f"http://127.0.0.1:{at}" for lane, at in zip(LANES, ports, strict=True)}
        taps = {lane: stack.enter_context(tapped(servers[lane], at)) for lane, at in zip(LANES, ports, strict=True)}
        time.sleep(1)
        log = Path(folder) / "app"
        env = {"SPECRACE_DATABASE": f"{folder}/races.sqlite3", "SPECRACE_RATE_LIMIT": "100000/minute"}
        served = ["serve", "--baseline", urls["baseline"], "--speculative", urls["speculative"], "--port", str(port)]
        pid = stack.enter_context(running("app", *served, env=env, log=log))
        wait_for(f"http://127.0.0.1:{port}/healthz", log)
        time.sleep(6)  # both probes are over
        crowd = stack.enter_context(watching(options.viewers, port))
        app = f"http://127.0.0.1:{port}"
        for number in range(-1, options.rounds):
            for arm in ("page", "raw client") if number % 2 == 0 else ("raw client", "page"):
                used, began = cpu_s(pid), time.monotonic()
                if arm == "page":
                    figures, race = through_the_app(app, options.tokens, crowd)
                    seen = {lane: said(tap) for lane, tap in taps.items()}
                else:
                    figures, race = by_the_raw_client(urls, models, options.tokens), None
                    seen = {lane: said(tap) for lane, tap in taps.items()}
                if number >= 0:  # the round before warms everything up
                    arms[arm].append(figures)
                    if race is not None:
                        busy.append((cpu_s(pid) - used) / (time.monotonic() - began))
                        arms["tap"].append(figures_of(seen))
                        wrong += differences(number, race, seen["speculative"]["record"] or {})
                time.sleep(0.5)
    print(f"the app's CPU in a race: {statistics.median(busy) * 100:.1f} % of a core")
    return arms, wrong


def report(options: argparse.Namespace, arms: dict[str, list[Figures]], wrong: list[str]) -> bool:
    goal = options.goal if options.goal is not None else GOAL_PERCENT.get(options.viewers, 2.0)
    print(
        f"{options.rounds} rounds, in turn, {options.tokens} tokens, {options.viewers} other viewers, "
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; median [lowest to highest]"
    )
    met: dict[str, bool] = {}
    for other, what in (
        ("tap", "the same answers, stamped on the wire"),
        ("raw client", "answers of its own, in turn"),
    ):
        print(f"page beside {other}: {what}")
        met[other] = True
        for figure in arms["page"][0]:
            page, beside = ([run[figure] for run in arms[arm]] for arm in ("page", other))
            off = (statistics.median(page) / statistics.median(beside) - 1) * 100
            met[other] = met[other] and abs(off) <= goal
            print(
                f"  {figure:<30} page {_spread(page)}  {other} {_spread(beside)}  {off:+.2f} %"
                + ("" if abs(off) <= goal else f"  MORE THAN {goal:g} %")
            )
    print("acceptance: " + ("; ".join(wrong) or "equal to the server's own record in every round"))
    for other, held in met.items():
        print(f"goal: page and {other} within {goal:g} %: {'met' if held else 'NOT MET'}")
    return met["tap"] and not wrong


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):8.2f} [{min(values):.2f} to {max(values):.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.fidelity", description=__doc__)
    parser.add_argument("--baseline", required=True)
    parser.add_argument("--speculative", required=True)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--viewers", type=int, default=0)
    parser.add_argument("--goal", type=float, help="percent; default 1 alone, 2 with viewers")
    options = parser.parse_args()
    raise SystemExit(0 if report(options, *compare(options)) else 1)


if __name__ == "__main__":
    main()
