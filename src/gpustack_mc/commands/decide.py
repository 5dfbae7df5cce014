"""What to do: hold choices against each other, solve for a target, say what to measure."""

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
@click.argument("scenarios", nargs=-1, required=True)
@set_option
@click.option("--vary", multiple=True, metavar="KEY=VALUE,VALUE",
              help="Compare variants of one scenario, e.g. --vary cluster.accelerator=H100-SXM-80GB,B200-SXM "
                   "or --vary ownership=own,rent; one value is held against the scenario as it is.")  # fmt: skip
@click.option("--outputs", default="", metavar="NAMES", help="Outputs to compare, with commas [the main ones].")
@click.option("--independent", is_flag=True,
              help="Draw inputs that differ independently, not at the same quantile.")  # fmt: skip
@json_option
@samples_option
@seed_option
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Folder of the results [reports/compare-...].")
@click.option("--no-plots", is_flag=True, help="Draw no picture.")
@click.option("--no-files", is_flag=True, help="Write no files at all.")
@priors_option
def compare(
    scenarios: tuple[str, ...],
    overrides: tuple[str, ...],
    vary: tuple[str, ...],
    outputs: str,
    independent: bool,
    as_json: bool,
    samples: int,
    seed: int,
    out: Path | None,
    no_plots: bool,
    no_files: bool,
    calibration: Path | None,
) -> None:
    """Hold SCENARIOS against the first one on the same draws: chances, differences, and what drives them."""
    from gpustack_mc.comparing import run_comparison
    from gpustack_mc.compilation import use_cache

    use_cache()
    done = run_comparison(
        scenarios,
        overrides,
        vary,
        outputs=outputs,
        independent=independent,
        samples=samples,
        seed=seed,
        out=out,
        with_files=not no_files,
        with_plots=not no_plots,
        calibration=calibration,
    )
    click.echo(json.dumps(done.summary, indent=2, allow_nan=False) if as_json else done.text)


@click.command()
@scenario_argument
@set_option
@click.option("--regions", default="", metavar="IDS", help="Regions with commas, e.g. US-CA,CA-QC,'gcp:europe-*'.")
@click.option("--kind", default="", help="All regions of a kind, e.g. us_state, ca_province, country, cloud_region.")
@click.option("--by", type=click.Choice(["cost", "carbon", "water"]), default="cost", show_default=True,
              help="What the table is sorted by.")  # fmt: skip
@click.option("--carbon-basis", type=click.Choice(["direct", "lifecycle"]),
              help="The one basis of all carbon figures [the scenario's, else the one with more data].")  # fmt: skip
@json_option
@click.option("--samples", type=int, default=16_384, show_default=True, help="Monte Carlo samples, rounded up.")
@seed_option
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Folder of the results [reports/sites-...].")
@click.option("--no-plots", is_flag=True, help="Draw no picture.")
@click.option("--no-files", is_flag=True, help="Write no files at all.")
@priors_option
def sites(
    scenario: str,
    overrides: tuple[str, ...],
    regions: str,
    kind: str,
    by: Any,
    carbon_basis: str | None,
    as_json: bool,
    samples: int,
    seed: int,
    out: Path | None,
    no_plots: bool,
    no_files: bool,
    calibration: Path | None,
) -> None:
    """Rank regions for SCENARIO on cost, carbon and water, each with its interval and its chance of being best."""
    from gpustack_mc.compilation import use_cache
    from gpustack_mc.sites import run_sites

    use_cache()
    done = run_sites(
        scenario,
        overrides,
        regions=regions,
        kind=kind,
        by=by,
        carbon_basis=carbon_basis or "",
        samples=samples,
        seed=seed,
        out=out,
        with_files=not no_files,
        with_plots=not no_plots,
        calibration=calibration,
    )
    click.echo(json.dumps(done.summary, indent=2, allow_nan=False) if as_json else done.text)


@click.command()
@scenario_argument
@set_option
@json_option
@click.option("--for", "variable", required=True, help="count, params, tokens, served-tokens or any input, e.g. mfu.")
@click.option("--such-that", metavar="CONDITION", help="E.g. 'P(training_days <= 30 d) >= 0.9'.")
@click.option("--budget", metavar="MONEY", help="Keep the cost at most this, e.g. 5MUSD.")
@click.option("--deadline", metavar="TIME", help="Keep the run time at most this, e.g. 30d.")
@click.option("--carbon-cap", metavar="MASS", help="Keep CO2e, with embodied, at most this, e.g. 3000t.")
@click.option("--energy-cap", metavar="ENERGY", help="Keep the energy at most this, e.g. 10GWh.")
@click.option("--power-cap", metavar="POWER", help="Keep the average power at most this, e.g. 12MW.")
@click.option("--probability", default="0.9", show_default=True, help="Of keeping all of them.")
@click.option("--tokens-per-param", type=float, help="With --for params: tokens follow at this ratio, e.g. 20.")
@click.option("--instead", type=float, metavar="PARAMS", help="With served-tokens: a smaller model of equal loss.")
@click.option(
    "--price-drift",
    metavar="SHARE",
    help="Yearly change of rent over the hardware's life, e.g. -18%, '-25% to 0%', or fitted: as past prices changed.",
)
@click.option("--between", nargs=2, metavar="LOW HIGH", help="Where to look [the scenario's value / 1000 to x 1000].")
@samples_option
@seed_option
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Folder for solve.json and solve.png.")
@priors_option
def solve(
    scenario: str,
    overrides: tuple[str, ...],
    as_json: bool,
    variable: str,
    such_that: str | None,
    probability: str,
    tokens_per_param: float | None,
    instead: float | None,
    price_drift: str | None,
    between: tuple[str, str] | None,
    samples: int,
    seed: int,
    out: Path | None,
    calibration: Path | None,
    **limits: str | None,
) -> None:
    """Find the value of one quantity of SCENARIO for which a limit is kept with a probability."""
    from gpustack_mc.compilation import use_cache

    use_cache()
    from gpustack_mc import solve_text
    from gpustack_mc.solving import run_solve

    found = run_solve(
        scenario,
        overrides,
        variable=variable,
        such_that=such_that,
        limits={name: limit for name, limit in limits.items() if limit is not None},
        probability=probability,
        tokens_per_param=tokens_per_param,
        price_drift=price_drift,
        instead=instead,
        between=between,
        samples=samples,
        seed=seed,
        out=out,
        calibration=calibration,
    )
    click.echo(json.dumps(found, indent=2, allow_nan=False) if as_json else solve_text.text(found))


@click.command()
@scenario_argument
@set_option
@json_option
@click.option(
    "--accuracy",
    "accuracies",
    multiple=True,
    metavar="[INPUT=]SHARE",
    help="Relative standard uncertainty of a measurement, e.g. mfu=5%; without a name for all others [10%].",
)
@click.option("--decision", help="own-or-rent, site, or go: whether to go ahead with a run worth its budget.")
@click.option("--budget", metavar="MONEY", help="What the run is worth [questions.budget].")
@click.option("--site", "sites", multiple=True, metavar="REGION", help="A site to choose from; give two or more.")
@click.option("--together", multiple=True, metavar="INPUTS", help="Know these at once, e.g. mfu,goodput.")
@samples_option
@seed_option
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Folder for measure.json and measure.png.")
@priors_option
def measure(scenario: str, overrides: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Say which input of SCENARIO to measure first, and what knowing it is worth."""
    from gpustack_mc.compilation import use_cache

    use_cache()
    from gpustack_mc import measure_text
    from gpustack_mc.measure import run_measure

    found = run_measure(scenario, overrides, **options)
    click.echo(json.dumps(found, indent=2, allow_nan=False) if as_json else measure_text.text(found))


@click.command()
@scenario_argument
@set_option
@json_option
@click.option(
    "--accuracy",
    "accuracies",
    multiple=True,
    metavar="[INPUT=]SHARE",
    help="Relative standard uncertainty of a first reading, e.g. mfu=5%; without a name for all others [10%].",
)
@click.option("--days", type=float, default=3.0, show_default=True, help="First days after which readings are judged.")
@click.option("--memory", metavar="SIZE", help="Memory of one accelerator, e.g. '80 GB' [its data sheet].")
@click.option("--activations", metavar="SIZE", help="What one accelerator keeps for activations [from the shape].")
@click.option("--bytes-per-param", metavar="W,G,O", help="Of weights, gradients, optimizer state [2,4,12].")
@samples_option
@seed_option
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Folder of the plan [reports/<scenario>].")
@click.option("--no-files", is_flag=True, help="Write no files.")
@priors_option
@limit_options
def plan(
    scenario: str,
    overrides: tuple[str, ...],
    as_json: bool,
    samples: int,
    seed: int,
    out: Path | None,
    no_files: bool,
    calibration: Path | None,
    limits: tuple[str, ...],
    **options: Any,
) -> None:
    """Write the short design document of SCENARIO: plan.md and plan.html, with what would overturn it."""
    from gpustack_mc.compilation import use_cache

    use_cache()
    from gpustack_mc import plan, plan_text

    done = plan.run_plan(
        scenario,
        overrides + limits,
        options=plan.Options(**options),
        samples=samples,
        seed=seed,
        out=out,
        with_files=not no_files,
        calibration=calibration,
    )
    click.echo(plan.dumped(done) if as_json else plan_text.text(done.found))
