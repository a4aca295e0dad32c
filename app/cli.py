"""The command line: ``specrace up``, ``serve`` and ``export``. A wrong option, URL or file ends with one line and 2."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import anyio
import typer
from typer.exceptions import TyperException

from app.errors import SettingsError, SpecraceError, UnknownRace

cli = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, help=__doc__)

Host = Annotated[str, typer.Option(help="Address to listen on.")]
PortNumber = Annotated[int, typer.Option(help="Port of the page.", min=1, max=65535)]
Database = Annotated[Path | None, typer.Option(help="SQLite file that keeps the races.", show_default=False)]


def main(arguments: list[str] | None = None) -> None:
    """Entry point. Exits 0, 1 (found wanting), 2 (wrong use) or 130 (interrupted)."""
    try:
        status = cli(args=arguments, prog_name="specrace", standalone_mode=False)
    except TyperException as error:
        typer.echo(f"specrace: {' '.join(error.format_message().split())} (see specrace --help)", err=True)
        status = 2
    except SpecraceError as error:
        typer.echo(f"specrace: {error}", err=True)
        status = 2
    except (typer.Abort, KeyboardInterrupt):
        status = 130
    sys.exit(status if isinstance(status, int) else 0)


@cli.command()
def serve(
    baseline: Annotated[
        str | None, typer.Option(metavar="URL", help="Server without speculation.", show_default=False)
    ] = None,
    speculative: Annotated[
        str | None, typer.Option(metavar="URL", help="Server with speculation.", show_default=False)
    ] = None,
    baseline_model: Annotated[
        str | None, typer.Option(help="Model to ask the baseline for.", show_default=False)
    ] = None,
    speculative_model: Annotated[
        str | None, typer.Option(help="Model to ask the other for.", show_default=False)
    ] = None,
    database: Database = None,
    host: Host = "127.0.0.1",
    port: PortNumber = 8000,
) -> None:
    """Page and API in front of two servers that run already."""
    from app.settings import Server, load_settings

    settings = load_settings(
        baseline_url=baseline,
        speculative_url=speculative,
        baseline_model=baseline_model,
        speculative_model=speculative_model,
        database=database,
    )
    from app import run

    run.serve(settings, Server(host=host, port=port))


@cli.command()
def up(
    profile: Annotated[
        str | None, typer.Option(help="Profile in deploy/profiles, or a .toml file.", show_default=False)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the exact commands and start nothing.")] = False,
    database: Database = None,
    host: Host = "127.0.0.1",
    port: PortNumber = 8000,
) -> None:
    """Start two vLLM servers, supervise them, and serve the page."""
    from app.ops.engines import default_profile, dry_run_text, load_profile
    from app.settings import Server, load_settings

    settings = load_settings(database=database)
    if profile is None and (settings.baseline_url or settings.speculative_url) and not dry_run:
        from app import run

        # endpoints are configured: there is nothing to start
        run.serve(settings, Server(host=host, port=port))
        return
    chosen = load_profile(profile) if profile else default_profile()
    if dry_run:
        typer.echo(dry_run_text(chosen))
        return
    from app import run

    run.up(settings, Server(host=host, port=port), chosen)


@cli.command()
def export(
    run_id: Annotated[str, typer.Argument(metavar="RUN_ID", help="Id of a race, as in /races/ID.")],
    output: Annotated[Literal["json", "csv", "recording"], typer.Option("--format", help="What to write.")] = "json",
    to: Annotated[
        Path | None, typer.Option("--to", help="File to write; default: standard output.", show_default=False)
    ] = None,
    hardware: Annotated[
        str | None, typer.Option(help="For a recording: where it ran, in words.", show_default=False)
    ] = None,
    database: Database = None,
) -> None:
    """Write one race: its JSON, its figures as CSV, or a labelled recording."""
    from app.race.export import as_csv, as_json, as_recording
    from app.race.store import Store
    from app.settings import load_settings

    settings = load_settings(database=database)
    if not settings.database.exists():
        raise SettingsError(
            "SPECRACE_DATABASE",
            f"there is no file {settings.database.name}",
            "Run a race first, or give the right file",
        )
    store = Store(settings.database)
    store.check()
    race = anyio.run(store.race, run_id)
    if race is None:
        raise UnknownRace("RUN_ID", f"there is no race {run_id!r}", "See the list at /races for ids")
    body = as_json(race) if output == "json" else as_csv(race) if output == "csv" else as_recording(race, hardware)
    if to is None:
        sys.stdout.buffer.write(body)
        sys.stdout.buffer.flush()
        return
    try:
        to.write_bytes(body)
    except OSError as error:
        raise SettingsError(
            "--to", f"{to.name} cannot be written ({error.strerror})", "Give a file that can be written"
        ) from None
