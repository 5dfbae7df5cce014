"""What makes an output uncertain."""

import json
from pathlib import Path
from typing import Any

import click

from gpustack_mc.commands.options import (
    json_option,
    limit_options,
    priors_option,
    samples_option,
    scenario_argument,
    seed_option,
    set_option,
)


@click.command()
@scenario_argument
@click.argument("outputs", nargs=-1, metavar="[OUTPUT]...")
@set_option
@click.option("--groups", type=click.Choice(["domain", "none"]), default="domain", show_default=True,
              help="Whether to take the inputs of a domain (price, energy, ...) together.")  # fmt: skip
@click.option("--group", multiple=True, metavar="NAME=INPUTS",
              help="Groups of your own instead, e.g. --group site=pue,electricity_price,grid_intensity.")  # fmt: skip
@click.option("--second-order/--no-second-order", default=False, help="Pairs of inputs that act together  [no].")
@click.option("--shapley/--no-shapley", default=None, help="Shapley effects  [where inputs are correlated].")
@click.option("--tornado/--no-tornado", default=True, help="The output with one input at its 5% and 95%  [yes].")
@click.option("--regional/--no-regional", default=True, help="What runs beyond a limit have in common  [yes].")
@click.option("--scale", type=click.Choice(["auto", "raw", "log"]), default="auto", show_default=True,
              help="Divide the variance of the output or of its logarithm.")  # fmt: skip
@click.option("--salib", is_flag=True, help="Write the scenario and a sample for SALib as well.")
@limit_options
@json_option
@samples_option
@seed_option
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Folder of the results [reports/<scenario>].")
@click.option("--no-files", is_flag=True, help="Write no files at all.")
@priors_option
def sensitivity(
    scenario: str,
    outputs: tuple[str, ...],
    overrides: tuple[str, ...],
    limits: tuple[str, ...],
    groups: str,
    group: tuple[str, ...],
    as_json: bool,
    samples: int,
    seed: int,
    out: Path | None,
    no_files: bool,
    calibration: Path | None,
    **parts: Any,
) -> None:
    """Say which inputs of SCENARIO, and which groups of them, make OUTPUT uncertain [cost, time, energy, carbon]."""
    from gpustack_mc.compilation import use_cache

    use_cache()
    from gpustack_mc import sensitivity_text
    from gpustack_mc.sensitivities import Wanted, run_sensitivity

    found = run_sensitivity(
        scenario,
        overrides + limits,
        Wanted(outputs=outputs, domains=groups == "domain", groups=group, **parts),
        samples=samples,
        seed=seed,
        out=out,
        with_files=not no_files,
        calibration=calibration,
    )
    click.echo(json.dumps(found, indent=2, allow_nan=False) if as_json else sensitivity_text.text(found))
