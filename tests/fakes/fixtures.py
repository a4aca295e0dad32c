"""Recordings of real servers (tests/fixtures), read for tests: as raw bytes, or as steps of a script."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fakes.script import DONE, ROLE, Raw, Reply, Sleep, Step, Tok, Use

HERE = Path(__file__).resolve().parent.parent / "fixtures"


def read(name: str) -> bytes:
    """The file ``name`` below tests/fixtures, unpacked when it lies there as .gz."""
    path = HERE / name
    if path.exists():
        return path.read_bytes()
    return gzip.decompress((HERE / (name + ".gz")).read_bytes())


def http_body(name: str) -> tuple[int, bytes]:
    """Status and body of a recorded answer such as errors/unknown_model.json."""
    recorded = json.loads(read(name))
    return int(recorded["status"]), str(recorded["body"]).encode()


@dataclass(frozen=True)
class Recording:
    """One recorded stream: the request, and what came when."""

    name: str
    request: dict[str, Any]
    url: str
    payloads: tuple[tuple[int, str], ...]

    def raw(self) -> list[bytes]:
        """The SSE frames as they were sent."""
        return [f"data: {payload}\n\n".encode() for _, payload in self.payloads]

    def raw_steps(self, scale: float = 1.0) -> list[Step]:
        """The recorded bytes at the recorded pace (``scale`` 0.5 is twice as fast)."""
        steps: list[Step] = []
        last = 0
        for (t_ns, _), data in zip(self.payloads, self.raw(), strict=True):
            steps += [Sleep((t_ns - last) / 1e9 * scale), Raw(data)]
            last = t_ns
        return steps

    def steps(self, scale: float = 1.0) -> list[Step]:
        """The recording as a script: rendered in whichever shape and with whichever fields a client asks for."""
        steps: list[Step] = []
        last = 0
        for t_ns, payload in self.payloads:
            steps.append(Sleep((t_ns - last) / 1e9 * scale))
            last = t_ns
            if payload == "[DONE]":
                steps.append(DONE)
                continue
            obj = json.loads(payload)
            if not obj["choices"]:
                record = (obj.get("metrics") or {}).get("speculative_decoding")
                steps.append(Use(obj["usage"]["completion_tokens"], spec=record))
                continue
            choice = obj["choices"][0]
            delta = choice.get("delta", {"content": choice.get("text")})
            if "role" in delta:
                steps.append(ROLE)
                continue
            ids = choice.get("token_ids")
            steps.append(
                Tok(
                    delta["content"],
                    1 if ids is None else len(ids),
                    ids=None if ids is None else tuple(ids),
                    finish=choice["finish_reason"],
                    stop_reason=choice.get("stop_reason"),
                )
            )
        return steps if ROLE in steps else [ROLE, *steps]

    def prompt_ids(self) -> tuple[int, ...]:
        first = json.loads(self.payloads[0][1])
        ids = first.get("prompt_token_ids") or first["choices"][0].get("prompt_token_ids")
        return tuple(ids or ())

    def reply(self, scale: float = 1.0) -> Reply:
        return Reply(self.steps(scale), prompt_ids=self.prompt_ids() or None)

    def text(self) -> str:
        return "".join(step.text for step in self.steps() if isinstance(step, Tok))


def recording(name: str) -> Recording:
    """E.g. ``recording("sse/json_together_speculative")``."""
    head, *lines = read(name + ".jsonl").decode().splitlines()
    opening = json.loads(head)
    items = [json.loads(line) for line in lines]
    return Recording(
        name=name,
        request=opening["request"],
        url=opening.get("url", "/v1/completions"),
        payloads=tuple((item["t_ns"], item["data"]) for item in items if "data" in item),
    )
