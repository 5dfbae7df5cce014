"""Many runs at once."""

import json
from pathlib import Path

import click

from gpustack_mc.commands.options import ProgressBar, json_option, priors_option, seed_option, set_option


@click.command()
@click.argument("spec")
@set_option
@json_option
@click.option("--outputs", default="", metavar="NAMES", help="Outputs to keep, with commas, or all [the main ones].")
@click.option("--samples", type=int, default=16_384, show_default=True, help="Draws that all scenarios share.")
@seed_option
@click.option("--sensitivity", is_flag=True, help="Sobol' indices of every scenario; takes about ten times as long.")
@click.option("--draws", is_flag=True, help="Keep all draws of the outputs in sweep.nc.")
@click.option("--total", is_flag=True, help="Add the scenarios up; what they share does not average out.")
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Folder of the results [reports/sweep-...].")
@click.option("--no-plots", is_flag=True, help="Draw no pictures.")
@click.option("--format", "form", type=click.Choice(["netcdf", "zarr"]), default="netcdf", show_default=True,
              help="Of the dataset; zarr needs gpustack-mc[zarr].")  # fmt: skip
@priors_option
@click.option("--scheduler", default="", metavar="ADDRESS",
              help="Run on a Dask cluster, e.g. tcp://10.0.0.5:8786; needs gpustack-mc[dask].")  # fmt: skip
def sweep(
    spec: str,
    overrides: tuple[str, ...],
    as_json: bool,
    outputs: str,
    samples: int,
    seed: int,
    sensitivity: bool,
    draws: bool,
    total: bool,
    out: Path | None,
    no_plots: bool,
    form: str,
    calibration: Path | None,
    scheduler: str,
) -> None:
    """Run all scenarios of SPEC: a base with axes of values, or a table of workloads. Goes on where it was stopped."""
    from gpustack_mc.compilation import use_cache
    from gpustack_mc.sweep import run_sweep

    use_cache()
    with ProgressBar(not as_json) as bar:
        done = run_sweep(
            spec,
            overrides,
            outputs=outputs,
            samples=samples,
            seed=seed,
            sensitivity=sensitivity,
            draws=draws,
            total=total,
            out=out,
            with_plots=not no_plots,
            calibration=calibration,
            scheduler=scheduler,
            form=form,
            progress=bar,
        )
    click.echo(json.dumps(done.summary, indent=2, allow_nan=False) if as_json else done.text)
