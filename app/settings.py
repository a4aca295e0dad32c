"""Settings: flags over environment (SPECRACE_*) over specrace.toml in the working folder."""

from __future__ import annotations

import secrets
import tomllib
from pathlib import Path
from typing import Any

import platformdirs
from msgspec import Struct
from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from app.errors import SettingsError
from app.race.endpoint import Endpoint, parse_endpoint
from app.race.types import LANES, LaneName

HOME = Path(__file__).resolve().parent.parent
"""The project: templates, static and deploy lie beside the package."""
CONFIG_FILE = Path("specrace.toml")


class Settings(BaseSettings):
    """Every setting of the contract, under its name without the prefix. Seconds where nothing else is said."""

    model_config = SettingsConfigDict(
        env_prefix="SPECRACE_", extra="ignore", toml_file=CONFIG_FILE, env_ignore_empty=True
    )

    baseline_url: str | None = None
    speculative_url: str | None = None
    baseline_api_key: str | None = Field(default=None, repr=False)
    speculative_api_key: str | None = Field(default=None, repr=False)
    baseline_model: str | None = None
    speculative_model: str | None = None
    baseline_metrics_url: str | None = None
    speculative_metrics_url: str | None = None
    database: Path = Field(default_factory=lambda: platformdirs.user_data_path("specrace") / "races.sqlite3")
    workloads: Path = HOME / "deploy" / "workloads.toml"
    presenter_token: str = Field(default_factory=lambda: secrets.token_urlsafe(12), repr=False)
    max_tokens: int = Field(default=1024, ge=1, le=1_000_000)
    max_prompt_chars: int = Field(default=32_000, ge=1, le=10_000_000)
    queue_limit: int = Field(default=50, ge=0, le=100_000)
    races_at_once: int = Field(default=1, ge=1, le=1000)
    connect_timeout: float = Field(default=3.0, gt=0, le=600)
    first_token_timeout: float = Field(default=120.0, gt=0, le=3600)
    stall_timeout: float = Field(default=10.0, gt=0, le=3600)

    @field_validator("database", "workloads", mode="after")
    @classmethod
    def _expand(cls, path: Path) -> Path:
        return path.expanduser()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003  # the signature is pydantic's
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags (init) win over the environment, which wins over the file."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    def endpoint(self, lane: LaneName) -> Endpoint | None:
        """The configured server of a lane, None when none is.

        Raises:
            SettingsError: its URL is wrong.
        """
        url = getattr(self, f"{lane}_url")
        if url is None:
            return None
        return parse_endpoint(
            f"SPECRACE_{lane.upper()}_URL",
            url,
            api_key=getattr(self, f"{lane}_api_key"),
            model=getattr(self, f"{lane}_model"),
            metrics_url=getattr(self, f"{lane}_metrics_url"),
        )

    def endpoints(self) -> dict[LaneName, Endpoint]:
        """The servers of both lanes.

        Raises:
            SettingsError: one is not configured, or its URL is wrong.
        """
        found: dict[LaneName, Endpoint] = {}
        for lane in LANES:
            endpoint = self.endpoint(lane)
            if endpoint is None:
                reason = "no server is given for this lane"
                raise SettingsError(f"--{lane}", reason, f"Give --{lane} URL, or run: specrace up. {DEMO_PAIR}")
            found[lane] = endpoint
        return found


DEMO_PAIR = "The pair of `make demo`: --baseline http://127.0.0.1:8101 --speculative http://127.0.0.1:8102"


class Server(Struct, frozen=True, kw_only=True):
    """Where the page is served."""

    host: str = "127.0.0.1"
    port: int = 8000


def load_settings(**flags: Any) -> Settings:
    """Settings from flags (None: not given), environment and file.

    Raises:
        SettingsError: names the first wrong one, why, and what to do.
    """
    _check_file()
    try:
        return Settings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        secret = any(
            not Settings.model_fields[str(part)].repr for part in first["loc"] if str(part) in Settings.model_fields
        )
        told = first["msg"] if secret else f"{first['input']!r}: {first['msg']}"
        name = f"SPECRACE_{'_'.join(str(part) for part in first['loc']).upper()}"
        raise SettingsError(name, told, "Correct it in the flag, the environment or specrace.toml") from None


def _check_file() -> None:
    if not CONFIG_FILE.exists():
        return
    try:
        found = tomllib.loads(CONFIG_FILE.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(str(CONFIG_FILE), f"cannot be read ({error})", "Correct the file, or remove it") from None
    unknown = sorted(set(found) - set(Settings.model_fields))
    if unknown:
        known = ", ".join(sorted(Settings.model_fields))
        raise SettingsError(f"{CONFIG_FILE}: {unknown[0]}", "there is no such setting", f"Use one of: {known}")
