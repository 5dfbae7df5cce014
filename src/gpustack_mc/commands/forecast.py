"""One training run: what it costs, why, and what to write about it."""

import json
import os
from pathlib import Path
from typing import Any, Literal

import click

from gpustack_mc.commands.options import (
    EXIT_GATE,
    ProgressBar,
    json_option,
    limit_options,
    priors_option,
    samples_option,
    scenario_argument,
    seed_option,
    set_option,
)
from gpustack_mc.errors import GpustackError


@click.command()
@scenario_argument
@set_option
@json_option
@click.option("--outputs", default="", metavar="NAMES",
              help="Print these outputs only, with the questions and public figures [the whole report].")  # fmt: skip
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
@click.option(
    "--tolerance",
    type=float,
    metavar="SHARE",
    help="Double the samples until every index and quantile is known to this, e.g. 0.01.",
)
@click.option(
    "--precision",
    type=click.Choice(["float64", "float32"]),
    default="float64",
    show_default=True,
    help="float32 is two to three times faster for many samples; used only where it agrees with float64.",
)
@click.option(
    "--interval",
    type=click.Choice(["equal-tailed", "hdi"]),
    default="equal-tailed",
    show_default=True,
    help="Intervals with equal tails, or the narrowest: highest-density intervals (HDI).",
)
@click.option("--bootstrap", is_flag=True,
              help="Intervals of Sobol' indices from a bootstrap, as other packages have them.")  # fmt: skip
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
    outputs: str,
    quiet: bool,
    samples: int,
    seed: int,
    design: Literal["sobol", "lhs", "random"],
    tolerance: float | None,
    precision: Literal["float64", "float32"],
    interval: Literal["equal-tailed", "hdi"],
    bootstrap: bool,
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
            outputs=outputs,
            progress=progress,
            calibration=calibration,
            with_split=variance_split,
            precision=precision,
            tolerance=tolerance,
            interval=interval,
            with_bootstrap=bootstrap,
        )
    if as_json:
        click.echo(json.dumps(done.summary, indent=2, allow_nan=False))
    elif not quiet:
        from gpustack_mc import summarizing

        style: dict[str, Any] = {} if os.environ.get("NO_COLOR") else {"style": click.style}
        click.echo(summarizing.text(done.summary, done.ownership, outputs=done.shown, **style))
        if variance_split:
            from gpustack_mc import variance_split as parts

            click.echo("\n".join(parts.lines(done.summary["variance_split"])))
    for line in done.failed:
        failure = GpustackError("gate", line)
        click.echo(json.dumps(failure.as_dict()) if as_json else line, err=True)
    return EXIT_GATE if done.failed else 0


@click.command()
@scenario_argument
@set_option
@priors_option
@json_option
def check(scenario: str, overrides: tuple[str, ...], calibration: Path | None, as_json: bool) -> None:
    """Say what is wrong with SCENARIO, or what will be assumed; nothing is computed."""
    from gpustack_mc import checking

    found = checking.assumptions(scenario, overrides, calibration)
    click.echo(json.dumps(found, indent=2) if as_json else checking.text(found))


@click.command()
@click.argument("result", type=click.Path(path_type=Path))
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Where to write [report.html beside the result].")
@click.option("--interactive", is_flag=True, help="With sliders that move the inputs, computed in the browser.")
def report(result: Path, out: Path | None, interactive: bool) -> None:
    """Write RESULT, a result.nc, as one HTML page that needs no network."""
    from gpustack_mc import report, storage
    from gpustack_mc.reopening import open_result

    tree = open_result(result)
    path = out or result.with_name("report.html")
    with storage.replacing(path) as temporary:
        report.write(tree, temporary, with_sliders=interactive)
    click.echo(str(path))


@click.command()
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


@click.command()
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


@click.command()
@click.argument("file", type=click.Path(path_type=Path), default="plan.yaml")
def init(file: Path) -> None:
    """Write a commented scenario to FILE [plan.yaml], to start from; never overwrites."""
    from gpustack_mc import starter

    starter.write(file)
    click.echo(f"{file}: change the values, then gpustack-mc run {file}")
