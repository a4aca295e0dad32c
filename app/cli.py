"""The command line. A wrong option, URL or file ends with one line and exit status 2."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import anyio
import typer
from typer.exceptions import TyperException

from app.errors import SettingsError, SpecraceError, UnknownRace

if TYPE_CHECKING:
    from app.race.store import Store
    from app.race.summary import StoredRace

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


# the servers, asked for alike by every command that needs them
BaselineUrl = Annotated[str | None, typer.Option(metavar="URL", help="Server without speculation.", show_default=False)]
SpeculativeUrl = Annotated[str | None, typer.Option(metavar="URL", help="Server with speculation.", show_default=False)]
BaselineModel = Annotated[str | None, typer.Option(help="Model to ask the baseline for.", show_default=False)]
SpeculativeModel = Annotated[str | None, typer.Option(help="Model to ask the other for.", show_default=False)]


@cli.command()
def serve(
    baseline: BaselineUrl = None,
    speculative: SpeculativeUrl = None,
    baseline_model: BaselineModel = None,
    speculative_model: SpeculativeModel = None,
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
def bench(
    *,
    workload: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Ready prompt, or a tab of them; again for more.", show_default=False),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="A prompt of your own.", show_default=False)
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help='One prompt a line; .jsonl: {"prompt": "..."} a line.', show_default=False),
    ] = None,
    repeats: Annotated[int, typer.Option(help="How often each is run.", min=1, max=1000)] = 5,
    schedule: Annotated[Literal["together", "in-turn"], typer.Option(help="Both lanes at once, or not.")] = "in-turn",
    concurrency: Annotated[str, typer.Option(metavar="N,N,...", help="Requests at once on a lane.")] = "1",
    max_tokens: Annotated[
        int | None, typer.Option(help="Instead of the workload's.", min=1, max=1_000_000, show_default=False)
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Instead of the workload's.", min=0, max=2, show_default=False)
    ] = None,
    ignore_eos: Annotated[
        bool | None,
        typer.Option("--ignore-eos/--no-ignore-eos", help="Instead of the workload's.", show_default=False),
    ] = None,
    fresh_cache: Annotated[
        bool, typer.Option("--fresh-cache/--no-fresh-cache", help="A cache salt with every request.")
    ] = True,
    warm_up: Annotated[
        bool, typer.Option("--warm-up/--no-warm-up", help="A short request first that counts nowhere.")
    ] = True,
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help='Result as JSON; "-": here.', show_default=False)
    ] = None,
    csv: Annotated[
        str | None, typer.Option(metavar="FILE", help='Every request as CSV; "-": here.', show_default=False)
    ] = None,
    baseline: BaselineUrl = None,
    speculative: SpeculativeUrl = None,
    baseline_model: BaselineModel = None,
    speculative_model: SpeculativeModel = None,
) -> int:
    """Run workloads several times through both servers, without a page, and print a table."""
    from app.settings import load_settings

    settings = load_settings(
        baseline_url=baseline,
        speculative_url=speculative,
        baseline_model=baseline_model,
        speculative_model=speculative_model,
    )
    from app.bench import bench as run_bench
    from app.bench_plan import Asked

    asked = Asked(
        workloads=tuple(workload or ()),
        prompt=prompt,
        prompts=prompts,
        repeats=repeats,
        schedule="together" if schedule == "together" else "in_turn",
        concurrency=concurrency,
        max_tokens=max_tokens,
        temperature=temperature,
        ignore_eos=ignore_eos,
        fresh_cache=fresh_cache,
        warm_up=warm_up,
        json=json,
        csv=csv,
    )
    return run_bench(settings, asked)


@cli.command()
def check(
    baseline: BaselineUrl = None,
    speculative: SpeculativeUrl = None,
    baseline_model: BaselineModel = None,
    speculative_model: SpeculativeModel = None,
    lossless: Annotated[
        bool, typer.Option("--lossless", help="Compare sampled answers of both, too: takes minutes on a small engine.")
    ] = False,
    samples: Annotated[
        int | None,
        typer.Option(
            help="With --lossless: answers for each of 3 prompts (200).", min=20, max=100_000, show_default=False
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The findings as JSON.")] = False,
) -> int:
    """Look both servers over before a show. Exit 0: ready for the stage, 1: not."""
    from app.settings import load_settings

    if samples is not None and not lossless:
        raise SettingsError("--samples", "it says how many answers --lossless compares", "Add --lossless")
    settings = load_settings(
        baseline_url=baseline,
        speculative_url=speculative,
        baseline_model=baseline_model,
        speculative_model=speculative_model,
    )
    from app import check as checking

    return checking.check(settings, as_json=as_json, samples=(samples or checking.SAMPLES) if lossless else None)


@cli.command()
def export(
    run_id: Annotated[
        str, typer.Argument(metavar="RUN_ID", help="Id of a race, as in /races/ID, or of a series, as in /series/ID.")
    ],
    output: Annotated[
        Literal["json", "csv", "md", "recording"], typer.Option("--format", help="What to write; md: a series only.")
    ] = "json",
    to: Annotated[
        Path | None, typer.Option("--to", help="File to write; default: standard output.", show_default=False)
    ] = None,
    hardware: Annotated[
        str | None, typer.Option(help="For a recording: where it ran, in words.", show_default=False)
    ] = None,
    database: Database = None,
) -> None:
    """Write one race: its JSON, its figures as CSV, or a labelled recording; or a series, as JSON, CSV or Markdown."""
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
    body = _series(store, run_id, output) if race is None else _race(race, output, hardware)
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


def _race(race: StoredRace, output: str, hardware: str | None) -> bytes:
    from app.race.export import as_csv, as_json, as_recording

    if output == "md":
        raise SettingsError("--format", "Markdown is for a series of races", "Use json or csv, or give a series")
    return as_json(race) if output == "json" else as_csv(race) if output == "csv" else as_recording(race, hardware)


def _series(store: Store, series_id: str, output: str) -> bytes:
    from app.race import series_files
    from app.race.series import rebuilt

    series = rebuilt(series_id, anyio.run(store.series, series_id))
    if series is None:
        raise UnknownRace("RUN_ID", f"there is no race and no series {series_id!r}", "See the list at /races for ids")
    if output == "recording":
        raise SettingsError("--format", "a recording is one race", "Give the id of one race of the series")
    if output == "md":
        return series_files.as_markdown(series).encode()
    return series_files.as_json(series) if output == "json" else series_files.as_csv(series)
