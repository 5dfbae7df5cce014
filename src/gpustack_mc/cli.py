"""The command ``gpustack-mc``: parse, call one library function, print. Heavy libraries load inside the commands."""

import functools
import json
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from gpustack_mc import __version__
from gpustack_mc.errors import GpustackError, InputErrors

HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
EXIT_GATE = 3
EXIT_INTERRUPTED = 130

scenario_argument = click.argument("scenario")
set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a value of the scenario, e.g. --set mfu=0.4 or --set cluster.count=4096.",
)
priors_option = click.option(
    "--priors",
    "calibration",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Priors calibrated on your own runs, see `gpustack-mc calibrate`.",
)
samples_option = click.option(
    "--samples", type=int, default=65_536, show_default=True, help="Monte Carlo samples, rounded up."
)
seed_option = click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object; errors are JSON on stderr.")


_LIMITS = {
    "budget": "15 MUSD",
    "deadline": "45 d, or 2027-03-01",
    "carbon_cap": "3000 t",
    "energy_cap": "10 GWh",
    "power_cap": "12 MW",
}


def limit_options(command: Callable) -> Callable:
    """Add one option for each question that a scenario may ask; the command gets them as `limits`."""

    @functools.wraps(command)
    def with_limits(**arguments: Any) -> Any:
        stated = {name: arguments.pop(name) for name in _LIMITS}
        limits = tuple(f"questions.{name}={value}" for name, value in stated.items() if value is not None)
        return command(**arguments, limits=limits)

    for name, example in reversed(_LIMITS.items()):
        flag = "--" + name.replace("_", "-")
        with_limits = click.option(flag, metavar="LIMIT", help=f"Ask for the chance to keep it, e.g. {example}.")(
            with_limits
        )
    return with_limits


@click.group(context_settings=HELP)
@click.version_option(__version__, prog_name="gpustack-mc")
def cli() -> None:
    """Credible intervals for the time, energy, CO2 and cost of training an AI model."""


@cli.command()
@scenario_argument
@set_option
@json_option
@click.option("-q", "--quiet", is_flag=True, help="Print nothing; write the files.")
@samples_option
@seed_option
@click.option(
    "--design",
    type=click.Choice(["sobol", "lhs", "random"]),
    default="sobol",
    show_default=True,
    help="Scrambled Sobol' points, Latin hypercube or plain Monte Carlo.",
)
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Folder of the results [reports/<scenario>].")
@click.option("--no-plots", is_flag=True, help="Draw no pictures and write no report, which holds them.")
@click.option("--no-report", is_flag=True, help="Write no report.html.")
@click.option("--variance-split", is_flag=True,
              help="Tell apart what is not known about populations and what differs from run to run.")  # fmt: skip
@click.option("--input-plot", is_flag=True, help="Draw the inputs too.")
@click.option("--no-files", is_flag=True, help="Write no files at all.")
@priors_option
@limit_options
@click.option("--ask", multiple=True, metavar="CONDITION",
              help="Ask for its probability, e.g. 'budget and deadline' or 'programme_co2e_t <= 9000 t'.")  # fmt: skip
@click.option("--fail-if", multiple=True, metavar="GATE",
              help="Exit with 3 if it is so, e.g. 'P(deadline) < 0.9' or 'p95(cost_owned_usd) > 20 MUSD'.")  # fmt: skip
def run(
    scenario: str,
    overrides: tuple[str, ...],
    as_json: bool,
    quiet: bool,
    samples: int,
    seed: int,
    design: str,
    out: Path | None,
    no_plots: bool,
    no_report: bool,
    input_plot: bool,
    no_files: bool,
    variance_split: bool,
    calibration: Path | None,
    limits: tuple[str, ...],
    ask: tuple[str, ...],
    fail_if: tuple[str, ...],
) -> int:
    """Put intervals on one training run: SCENARIO is a YAML file, a shipped scenario, or - for standard input."""
    from gpustack_mc.compilation import use_cache
    from gpustack_mc.run import run_scenario

    use_cache()
    with ProgressBar(shown=not (quiet or as_json)) as progress:
        done = run_scenario(
            scenario,
            overrides + limits,
            samples=samples,
            seed=seed,
            method=design,
            out=out,
            pictures=[] if no_plots else ["intervals", "sensitivity"] + ["inputs"] * input_plot,
            with_report=not (no_plots or no_report),
            with_files=not no_files,
            ask=ask,
            fail_if=fail_if,
            progress=progress,
            calibration=calibration,
            with_split=variance_split,
        )
    if as_json:
        click.echo(json.dumps(done.summary, indent=2, allow_nan=False))
    elif not quiet:
        from gpustack_mc import summarizing

        style = {} if os.environ.get("NO_COLOR") else {"style": click.style}
        click.echo(summarizing.text(done.summary, done.ownership, **style))
        if variance_split:
            from gpustack_mc import variance_split as parts

            click.echo("\n".join(parts.lines(done.summary["variance_split"])))
    for line in done.failed:
        failure = GpustackError("gate", line)
        click.echo(json.dumps(failure.as_dict()) if as_json else line, err=True)
    return EXIT_GATE if done.failed else 0


@cli.command()
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


@cli.command()
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


@cli.command()
@click.argument("result", type=click.Path(path_type=Path))
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Where to write [report.html beside the result].")
def report(result: Path, out: Path | None) -> None:
    """Write RESULT, a result.nc, as one HTML page that needs no network."""
    from gpustack_mc import report, storage
    from gpustack_mc.reopening import open_result

    tree = open_result(result)
    path = out or result.with_name("report.html")
    with storage.replacing(path) as temporary:
        report.write(tree, temporary)
    click.echo(str(path))


@cli.command()
@click.argument("scenario")
@click.argument("output", required=False)
@set_option
@json_option
@samples_option
@seed_option
@click.option("--svg", type=click.Path(path_type=Path), help="Write the chain as a picture to this file.")
@priors_option
def explain(
    scenario: str,
    output: str | None,
    overrides: tuple[str, ...],
    as_json: bool,
    samples: int,
    seed: int,
    svg: Path | None,
    calibration: Path | None,
) -> None:
    """Show how OUTPUT follows from the inputs: each step with equation, interval and share of the variance.

    SCENARIO may also be a result.nc; without OUTPUT the cost is explained.
    """
    from gpustack_mc import chain_picture, explain, storage
    from gpustack_mc.reopening import result_of

    if output is not None:
        explain.require_output(output)
    with ProgressBar(shown=not as_json) as progress:
        tree = result_of(scenario, overrides, samples=samples, seed=seed, progress=progress, calibration=calibration)
    found = explain.explain(tree, output)
    if svg is not None:
        storage.write_text(svg, chain_picture.svg_file(found))
    click.echo(json.dumps(found, indent=2, allow_nan=False) if as_json else explain.text(found))


@cli.command()
@click.argument("scenario")
@set_option
@json_option
@samples_option
@seed_option
@click.option(
    "--style",
    type=click.Choice(["model-card", "impact-statement", "energy-disclosure"]),
    default="model-card",
    show_default=True,
    help="What the paragraph is for; the energy disclosure follows Annex XI of the EU AI Act.",
)
@priors_option
def cite(
    scenario: str,
    overrides: tuple[str, ...],
    as_json: bool,
    samples: int,
    seed: int,
    style: str,
    calibration: Path | None,
) -> None:
    """Write a paragraph to paste, with intervals, scope and basis, and BibTeX of the sources.

    SCENARIO may also be a result.nc.
    """
    from gpustack_mc import cite
    from gpustack_mc.reopening import result_of

    with ProgressBar(shown=not as_json) as progress:
        tree = result_of(scenario, overrides, samples=samples, seed=seed, progress=progress, calibration=calibration)
    found = cite.cite(tree, style)
    click.echo(json.dumps(found._asdict(), indent=2) if as_json else f"{found.text}\n\n{found.bibtex}")


@cli.command()
@click.argument("file", type=click.Path(path_type=Path), default="plan.yaml")
def init(file: Path) -> None:
    """Write a commented scenario to FILE [plan.yaml], to start from; never overwrites."""
    from gpustack_mc import starter

    starter.write(file)
    click.echo(f"{file}: change the values, then gpustack-mc run {file}")


@cli.command()
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
@click.option("--price-drift", metavar="SHARE", help="Yearly change of rent over the hardware's life, e.g. -18%.")
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


@cli.command()
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


@cli.command()
@scenario_argument
@set_option
@priors_option
@json_option
def check(scenario: str, overrides: tuple[str, ...], calibration: Path | None, as_json: bool) -> None:
    """Say what is wrong with SCENARIO, or what will be assumed; nothing is computed."""
    from gpustack_mc import checking

    found = checking.assumptions(scenario, overrides, calibration)
    click.echo(json.dumps(found, indent=2) if as_json else checking.text(found))


@cli.command()
@json_option
def quantities(as_json: bool) -> None:
    """List every quantity with its unit, role and meaning."""
    from gpustack_mc import listing

    listing.echo(listing.quantities(), as_json)


@cli.command()
@json_option
def accelerators(as_json: bool) -> None:
    """List the accelerators that are known, with peak and TDP."""
    from gpustack_mc import listing

    listing.echo(listing.accelerators(), as_json)


@cli.command()
@click.argument("word", default="")
@json_option
def regions(word: str, as_json: bool) -> None:
    """List the regions that are known; WORD keeps those whose id, name or kind holds it."""
    from gpustack_mc import listing

    listing.echo(listing.regions(word), as_json)


@cli.command()
@json_option
def scenarios(as_json: bool) -> None:
    """List the scenarios that are shipped."""
    from gpustack_mc import listing

    listing.echo(listing.scenarios(), as_json)


@cli.command()
def schema() -> None:
    """Print the JSON Schema of scenario files."""
    from gpustack_mc.schema import json_schema

    click.echo(json.dumps(json_schema(), indent=2))


@cli.command()
@click.option("--data", type=click.Path(path_type=Path), help="CSV of runs to score; else the shipped runs.")
@click.option("--refit", is_flag=True, help="Fit anew without each family of the shipped runs; takes minutes.")
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Folder for the scores and pictures.")
@json_option
def validate(data: Path | None, refit: bool, out: Path | None, as_json: bool) -> None:
    """Score predictions of accelerator-hours against what runs reported."""
    from gpustack_mc.validation import run_validation

    click.echo(run_validation(data, refit, out, as_json, lambda line: click.echo(line, err=True)))


@cli.command()
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


@cli.group()
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
@json_option
def priors_show(name: str, as_json: bool) -> None:
    """Show all populations of one prior, with quantiles, rows and sources."""
    from gpustack_mc import listing

    found = listing.prior(name)
    click.echo(json.dumps(found, indent=2) if as_json else listing.prior_text(found))


class ProgressBar:
    """A bar on stderr while a terminal is attached to it; called with the share of the work that is done."""

    def __init__(self, shown: bool):
        self.shown = shown and sys.stderr.isatty()

    def __enter__(self) -> Callable[[float], None]:
        return self

    def __call__(self, share: float) -> None:
        """Draw the bar at a share between 0 and 1."""
        if self.shown:
            filled = round(30 * share)
            click.echo(f"\r  sampling {'█' * filled}{'·' * (30 - filled)} {share:4.0%}", nl=False, err=True)

    def __exit__(self, *error: object) -> None:
        if self.shown:
            click.echo("\r" + " " * 50 + "\r", nl=False, err=True)


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line; every failure is one line on stderr and an exit code."""
    # Overflows end as infinities, which are refused with a place; NumPy's own words would break the one line.
    warnings.filterwarnings("ignore", category=RuntimeWarning)
    arguments = list(sys.argv[1:] if args is None else args)
    as_json = "--json" in arguments
    try:
        code = cli.main(arguments, prog_name="gpustack-mc", standalone_mode=False)
    except GpustackError as error:
        code = _fail(error, as_json, arguments)
    except click.exceptions.Exit as stop:
        code = stop.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted; nothing was written", err=True)
        code = EXIT_INTERRUPTED
    except click.ClickException as error:
        code = _usage(error, as_json)
    except BrokenPipeError:
        # The reader of our output has gone, e.g. `| head`; Python must not complain about it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as error:
        fix = "Free some space, or send the output elsewhere."
        failure = GpustackError("cannot-write", f"cannot write the output: {error.strerror or error}.", fix)
        code = _fail(failure, as_json, arguments)
    except MemoryError:
        failure = GpustackError("out-of-memory", "not enough memory.", "Use fewer --samples.")
        code = _fail(failure, as_json, arguments)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(error: GpustackError, as_json: bool, arguments: list[str]) -> int:
    if as_json:
        click.echo(json.dumps(error.as_dict()), err=True)
    elif isinstance(error, InputErrors) and arguments[:1] == ["check"]:
        for each in error.errors:
            click.echo(str(each), err=True)
    else:
        click.echo(str(error), err=True)
    return error.exit_code


def _usage(error: click.ClickException, as_json: bool) -> int:
    hint = ""
    if isinstance(error, click.UsageError) and error.ctx is not None:
        hint = f"See `{error.ctx.command_path} --help`."
    failure: Any = GpustackError("usage", error.format_message().rstrip(".") + ".", hint)
    click.echo(json.dumps(failure.as_dict()) if as_json else str(failure), err=True)
    return error.exit_code


if __name__ == "__main__":
    main()
