"""What one server shows of itself from outside, as plain values, and how its pages are read. Pure.

What a server does not show is None, and stays apart from "no".
"""

from __future__ import annotations

from typing import Any, Literal, cast

import msgspec
from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families

from app.race.types import EndpointState, LaneError

Kind = Literal["vLLM", "SGLang", "llama.cpp", "another server"]
Record = Literal["detailed", "summary"]

_KINDS: dict[str, Kind] = {"vllm": "vLLM", "sglang": "SGLang", "llamacpp": "llama.cpp"}
_CACHE_INFO = "vllm:cache_config_info"
_RUNNING, _WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"


class Served(Struct, frozen=True):
    """One entry of /v1/models. ``root`` is the last part of what the server loaded: paths stay on their machine."""

    id: str
    root: str | None
    kind: Kind


class Exposed(Struct, frozen=True, kw_only=True):
    """What /metrics says besides the counters of app.race.counters; several engines are added up."""

    running: int | None = None
    waiting: int | None = None
    prefix_caching: bool | None = None


class Info(Struct, frozen=True, kw_only=True):
    """What /server_info says (vLLM with VLLM_SERVER_DEV_MODE=1 only)."""

    method: str | None = None
    generation_config: str | None = None
    async_scheduling: bool | None = None


class Answer(Struct, frozen=True, kw_only=True):
    """Two equal short requests, streamed as a race streams them. ``error`` is why there is no second, or no first.

    ``cached_again`` is how many prompt tokens the second took from the prefix cache, as far as the server tells.
    """

    error: LaneError | None = None
    chat: bool = True
    token_ids: bool = False
    final_usage: bool = False
    running_usage: bool = False
    cached_again: int | None = None
    record: Record | None = None
    prompt_tokens: int | None = None
    first_ttft_ms: float | None = None
    again_ttft_ms: float | None = None


class Defaults(Struct, frozen=True, kw_only=True):
    """Whether the server adds sampling of its own to a request that leaves it out. ``names`` are the parameters whose
    neutral value, sent explicitly, changes the answer; empty with ``differ``: it is none of them alone."""

    status: Literal["neutral", "differ", "not repeatable", "refused"]
    names: tuple[str, ...] = ()


class Facts(Struct, frozen=True, kw_only=True):
    """Everything seen of one server. ``with_key``: it was asked with an API key. ``lengths`` are the prompt tokens of
    each ready prompt, by the server's own count."""

    state: EndpointState
    with_key: bool = False
    served: Served | None = None
    latencies_ms: tuple[float, ...] = ()
    exposed: Exposed | None = None
    info: Info | None = None
    probe_ids: tuple[int, ...] | None = None
    ids_from: Literal["/tokenize", "prompt_token_ids"] | None = None
    lengths: tuple[tuple[str, int], ...] = ()
    answer: Answer | None = None
    defaults: Defaults | None = None

    @property
    def error(self) -> LaneError | None:
        """Why the server cannot be raced, None when it answers."""
        return self.state.error or (self.answer.error if self.answer else None)

    @property
    def kind(self) -> Kind:
        """What kind of server it says it is."""
        return self.served.kind if self.served else "another server"

    @property
    def is_vllm(self) -> bool:
        """Whether vLLM's flags are of use to it."""
        return self.kind == "vLLM"

    @property
    def prefix_caching(self) -> bool | None:
        """Whether the server keeps prompts for the next request: as it says, else as the second request showed."""
        told = self.exposed.prefix_caching if self.exposed else None
        again = self.answer.cached_again if self.answer else None
        return told if told is not None else None if again is None else again > 0


def json_of(body: bytes) -> dict[str, Any]:
    """The JSON object in ``body``, empty when there is none."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def part(fields: dict[str, Any], *names: str) -> dict[str, Any]:
    """The object below ``names``, empty when there is none."""
    for name in names:
        found = fields.get(name)
        fields = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    return fields


def text_or_none(value: object) -> str | None:
    """A short text, or None."""
    return value[:100] if isinstance(value, str) and value else None


def served_in(body: bytes, model: str | None) -> Served | None:
    """The entry for ``model`` in a list of models, None when there is none."""
    listed = json_of(body).get("data")
    entries = [part({"": entry}, "") for entry in cast("list[Any]", listed)] if isinstance(listed, list) else []
    found = next((entry for entry in entries if entry.get("id") == model), None)
    if found is None or model is None:
        return None
    root = text_or_none(found.get("root"))
    if root and (root[0] in "/\\.~" or root.count("/") > 1 or "\\" in root):
        root = root.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]
    return Served(model, root, _KINDS.get(str(found.get("owned_by")).lower(), "another server"))


def exposed_in(text: str) -> Exposed | None:
    """What a page of /metrics says, None when it is no such page."""
    gauges: dict[str, int] = {}
    caching: list[str] = []
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name in (_RUNNING, _WAITING):
                    gauges[sample.name] = gauges.get(sample.name, 0) + round(float(sample.value))
                elif sample.name == _CACHE_INFO:
                    caching.append(sample.labels.get("enable_prefix_caching", ""))
    except (ValueError, OverflowError, IndexError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    told = [word == "True" for word in caching if word in ("True", "False")]
    return Exposed(
        running=gauges.get(_RUNNING), waiting=gauges.get(_WAITING), prefix_caching=any(told) if told else None
    )


def info_in(body: bytes) -> Info | None:
    """What /server_info?config_format=json says, None when it is no such page."""
    config = part(json_of(body), "vllm_config")
    if not config:
        return None
    scheduling = part(config, "scheduler_config").get("async_scheduling")
    model = part(config, "model_config")
    source = text_or_none(model.get("generation_config"))
    return Info(
        method=text_or_none(part(config, "speculative_config").get("method")),
        generation_config="overridden" if model.get("override_generation_config") else source,
        async_scheduling=scheduling if isinstance(scheduling, bool) else None,
    )
