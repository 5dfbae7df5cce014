"""The command ``gpustack-mc``: parse, call one library function, print. Heavy libraries load inside the commands."""

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
EXIT_INTERRUPTED = 130

scenario_argument = click.argument("scenario")
set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a value of the scenario, e.g. --set mfu=0.4 or --set cluster.count=4096.",
)
samples_option = click.option(
    "--samples", type=int, default=65_536, show_default=True, help="Monte Carlo samples, rounded up."
)
seed_option = click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object; errors are JSON on stderr.")


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
@click.option("--input-plot", is_flag=True, help="Draw the inputs too.")
@click.option("--no-files", is_flag=True, help="Write no files at all.")
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
) -> None:
    """Put intervals on one training run: SCENARIO is a YAML file, a shipped scenario, or - for standard input."""
    from gpustack_mc.compilation import use_cache
    from gpustack_mc.run import run_scenario

    use_cache()
    with ProgressBar(shown=not (quiet or as_json)) as progress:
        done = run_scenario(
            scenario,
            overrides,
            samples=samples,
            seed=seed,
            method=design,
            out=out,
            pictures=[] if no_plots else ["intervals", "sensitivity"] + ["inputs"] * input_plot,
            with_report=not (no_plots or no_report),
            with_files=not no_files,
            progress=progress,
        )
    if as_json:
        click.echo(json.dumps(done.summary, indent=2, allow_nan=False))
    elif not quiet:
        from gpustack_mc import summary

        style = {} if os.environ.get("NO_COLOR") else {"style": click.style}
        click.echo(summary.text(done.summary, done.ownership, **style))


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
def explain(
    scenario: str,
    output: str | None,
    overrides: tuple[str, ...],
    as_json: bool,
    samples: int,
    seed: int,
    svg: Path | None,
) -> None:
    """Show how OUTPUT follows from the inputs: each step with equation, interval and share of the variance.

    SCENARIO may also be a result.nc; without OUTPUT the cost is explained.
    """
    from gpustack_mc import chain_picture, explain, storage
    from gpustack_mc.reopening import result_of

    if output is not None:
        explain.require_output(output)
    with ProgressBar(shown=not as_json) as progress:
        tree = result_of(scenario, overrides, samples=samples, seed=seed, progress=progress)
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
def cite(scenario: str, overrides: tuple[str, ...], as_json: bool, samples: int, seed: int, style: str) -> None:
    """Write a paragraph to paste, with intervals, scope and basis, and BibTeX of the sources.

    SCENARIO may also be a result.nc.
    """
    from gpustack_mc import cite
    from gpustack_mc.reopening import result_of

    with ProgressBar(shown=not as_json) as progress:
        tree = result_of(scenario, overrides, samples=samples, seed=seed, progress=progress)
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
def check(scenario: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Say what is wrong with SCENARIO, or what will be assumed; nothing is computed."""
    from gpustack_mc import checking

    found = checking.assumptions(scenario, overrides)
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
