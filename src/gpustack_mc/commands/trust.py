"""Where the priors come from, how well they score, and how they learn."""

import json
from pathlib import Path

import click

from gpustack_mc.commands.options import (
    EXIT_GATE,
    json_option,
    priors_option,
)


@click.command()
@click.option("--data", type=click.Path(path_type=Path), help="CSV of runs to score; else the shipped runs.")
@click.option("--refit", is_flag=True, help="Fit anew without each family of the shipped runs; takes minutes.")
@click.option("--priors", is_flag=True, help="Score the priors of single inputs on rows left out; takes minutes.")
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Folder for the scores and pictures.")
@json_option
def validate(data: Path | None, refit: bool, priors: bool, out: Path | None, as_json: bool) -> None:
    """Score predictions of accelerator-hours against what runs reported."""
    if priors:
        from gpustack_mc.compilation import use_jax_cache
        from gpustack_mc.errors import InputError
        from gpustack_mc.validation_priors import command

        if data is not None or refit:
            raise InputError("options", "--priors goes with neither --data nor --refit.", "Give one of them.")
        use_jax_cache()  # most priors are one compiled program
        click.echo(command(out, as_json, lambda line: click.echo(line, err=True)))
        return
    from gpustack_mc.validation import run_validation

    click.echo(run_validation(data, refit, out, as_json, lambda line: click.echo(line, err=True)))


@click.command()
@click.argument("result", type=click.Path(path_type=Path))
@priors_option
@json_option
def reproduce(result: Path, calibration: Path | None, as_json: bool) -> int:
    """Compute RESULT, a result.nc, again from what is in it, and compare every number; exit 3 if they differ."""
    from gpustack_mc import reproduce
    from gpustack_mc.compilation import use_cache

    use_cache()
    done = reproduce.reproduce(result, calibration)
    click.echo(json.dumps(done.found, indent=2, allow_nan=False) if as_json else reproduce.text(done))
    return EXIT_GATE if done.verdict == "different" else 0


@click.command()
@click.argument("table", required=False, type=click.Path(path_type=Path))
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Folder of the prior pack.")
@click.option("--refit", is_flag=True, help="Rebuild the shipped priors from priors/ instead; in a checkout only.")
@click.option("--columns", is_flag=True, help="List the columns that a table of runs may have.")
@json_option
def calibrate(table: Path | None, out: Path | None, refit: bool, columns: bool, as_json: bool) -> None:
    """Update the priors with your own runs. TABLE is a CSV file; `--priors` of other commands uses what is written."""
    if columns:
        from gpustack_mc import listing

        listing.echo(listing.columns(), as_json)
        return
    from gpustack_mc import calibration

    click.echo(calibration.command(table, out, refit, as_json, lambda line: click.echo(line, err=True)))


@click.group()
def priors() -> None:
    """Show the fitted priors, their populations and their sources."""


@priors.command("list")
@json_option
def priors_list(as_json: bool) -> None:
    """List the priors: one per input."""
    from gpustack_mc import listing

    listing.echo(listing.priors(), as_json)


@priors.command("show")
@click.argument("name")
@click.option("--where", multiple=True, metavar="KEY=VALUE",
              help="Populations of which this is said, e.g. accelerator=H100; without sources and limits.")  # fmt: skip
@json_option
def priors_show(name: str, where: tuple[str, ...], as_json: bool) -> None:
    """Show the populations of one prior, with quantiles, rows and sources."""
    from gpustack_mc import listing

    found = listing.prior(name, where)
    click.echo(json.dumps(found, indent=2) if as_json else listing.prior_text(found, short=bool(where)))
