"""What the program knows: quantities, accelerators, regions, scenarios, the schema."""

import json

import click

from gpustack_mc.commands.options import (
    json_option,
)


@click.command()
@json_option
def quantities(as_json: bool) -> None:
    """List every quantity with its unit, role and meaning."""
    from gpustack_mc import listing

    listing.echo(listing.quantities(), as_json)


@click.command()
@json_option
def accelerators(as_json: bool) -> None:
    """List the accelerators that are known, with peak and TDP."""
    from gpustack_mc import listing

    listing.echo(listing.accelerators(), as_json)


@click.command()
@click.argument("word", default="")
@json_option
def regions(word: str, as_json: bool) -> None:
    """List the regions that are known; WORD keeps those whose id, name or kind holds it."""
    from gpustack_mc import listing

    listing.echo(listing.regions(word), as_json)


@click.command()
@json_option
def scenarios(as_json: bool) -> None:
    """List the scenarios that are shipped."""
    from gpustack_mc import listing

    listing.echo(listing.scenarios(), as_json)


@click.command()
def schema() -> None:
    """Print the JSON Schema of scenario files."""
    from gpustack_mc.schema import json_schema

    click.echo(json.dumps(json_schema(), indent=2))
