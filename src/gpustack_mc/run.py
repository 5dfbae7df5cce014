"""One scenario from file to results: the whole of ``gpustack-mc run`` as one function."""

import contextlib
import functools
import importlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gpustack_mc import constants, drivers, hdi, reliability, storage
from gpustack_mc.arrays import Result
from gpustack_mc.conditions import Gate, outputs_listed, parse_condition, parse_gate, subject
from gpustack_mc.design import Design, Method, make_design
from gpustack_mc.errors import InputError, option_place
from gpustack_mc.loading import load_meanwhile
from gpustack_mc.problem import Problem
from gpustack_mc.propagation import Precision, Simulation, simulate
from gpustack_mc.scenario import load_scenario
from gpustack_mc.tables import Tree

if TYPE_CHECKING:
    import xarray as xr

# Fewer have no tails to speak of, and no Monte Carlo error that is one.
FEWEST_SAMPLES = 256
# More would take hours and no output is known better than by a billion samples.
MOST_SAMPLES = 2**30
# Of a bootstrap, as other packages have it.
RESAMPLES = 100
# What one core draws in a second, in float64; to say how long more would take.
SAMPLES_PER_CORE_SECOND = 500_000
# Pictures by file name, and the module and function that draw each.
PICTURES = {
    "intervals": ("figures", "interval_plot"),
    "inputs": ("figures", "input_plot"),
    "sensitivity": ("figures", "sensitivity_plot"),
    "checkpoints": ("checkpoint_figures", "checkpoint_plot"),
}


class Done(NamedTuple):
    """What a run leaves.

    Attributes
    ----------
    result : Tree
    summary : dict
        As printed with ``--json``.
    ownership : {"own", "rent", "either"}
    failed : tuple of str
        One line for each gate that the result does not pass.
    shown : tuple of str
        Outputs that were named; empty for the whole report.
    """

    result: Tree
    summary: dict[str, Any]
    ownership: str
    failed: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()

    @property
    def tree(self) -> "xr.DataTree":
        """The result for xarray."""
        return self.result.as_datatree()


def run_scenario(
    source: str | Path,
    overrides: Iterable[str] = (),
    *,
    samples: int = 65_536,
    seed: int = 0,
    method: Method = "sobol",
    out: Path | None = None,
    pictures: Sequence[str] = ("intervals", "sensitivity"),
    with_report: bool = False,
    with_files: bool = True,
    ask: Iterable[str] = (),
    fail_if: Iterable[str] = (),
    outputs: str = "",
    progress: Callable[[float], None] = lambda share: None,
    calibration: Path | None = None,
    with_split: bool = False,
    precision: Precision = "float64",
    tolerance: float | None = None,
    interval: hdi.Kind = "equal-tailed",
    with_bootstrap: bool = False,
) -> Done:
    """Run a scenario and write ``result.nc``, ``summary.json``, pictures and report, all of them or none.

    Parameters
    ----------
    source : str or Path
        A scenario file, the name of a shipped one, or ``-``.
    overrides : iterable of str
        ``key=value``.
    samples, seed, method
        Of the design, see `gpustack_mc.design.make_design`.
    out : Path, optional
        Folder of the results; ``reports/<name of the file>`` when omitted.
    pictures : sequence of str
        Which of `PICTURES` to draw; ``checkpoints`` joins them when the scenario states ``reliability``.
    with_report : bool
        Whether to write ``report.html`` as well.
    with_files : bool
        Whether to write at all.
    ask : iterable of str
        Conditions whose probability is asked for, besides those of the scenario; see `gpustack_mc.conditions`.
    fail_if : iterable of str
        Gates, such as ``P(budget) < 0.9``; `Done.failed` says which the result does not pass.
    outputs : str
        Names of outputs with commas: `Done.shown`.
    progress : callable
        Called with the share of the sampling that is done.
    calibration : Path, optional
        Folder of a prior pack.
    with_split : bool
        Whether to tell apart what is not known about populations and what differs from run to run, see
        `gpustack_mc.variance_split`.
    precision : {"float64", "float32"}
        Of the model, see `gpustack_mc.propagation.simulate`.
    tolerance : float, optional
        Double `samples` until all has settled to this, see `gpustack_mc.settling`.
    interval : {"equal-tailed", "hdi"}
        Which intervals are told; a result with highest-density ones holds the quantiles too.
    with_bootstrap : bool
        Whether the intervals of indices come from a bootstrap over points, see `gpustack_mc.sobol.bootstrapped`.

    Raises
    ------
    GpustackError
        Bad input, or results that cannot be written.
    """
    _require_sound(samples, method, tolerance)
    problem, gates = _asked(load_scenario(source, overrides, calibration), ask, fail_if)
    shown = outputs_listed(outputs, problem.outputs)
    if pictures and problem.file.reliability is not None:
        pictures = [*pictures, "checkpoints"]
    folder = out if out is not None else Path("reports") / storage.slug(storage.stem(source, problem.name))
    made = with_files and not folder.exists()
    if with_files:
        storage.require_folder(folder)
    try:
        design = make_design(samples, method, seed)
        if design.samples != samples:
            note = f"{samples:,} samples are rounded up to {design.samples:,}, as {method} points need"
            problem = problem._replace(notes=(*problem.notes, note))
        sampled = functools.partial(
            _simulated, problem, design, tolerance, progress=progress, precision=precision,
            with_hdi=interval == "hdi", resamples=RESAMPLES * with_bootstrap,
        )  # fmt: skip
        done = _run(problem, folder, sampled, pictures, with_report, with_files, with_split)
    except BaseException:
        if made:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
    return done._replace(failed=_failed(done.result, gates), shown=shown)


def _asked(problem: Problem, ask: Iterable[str], fail_if: Iterable[str]) -> tuple[Problem, tuple[Gate, ...]]:
    """Add the conditions of the command line to those of the scenario, and read the gates."""
    about = subject(problem)
    added = tuple(parse_condition(text, about, option_place("--ask", text)) for text in ask)
    return problem._replace(asked=problem.asked + added), tuple(parse_gate(text, about) for text in fail_if)


def _failed(tree: Tree, gates: Iterable[Gate]) -> tuple[str, ...]:
    from gpustack_mc import answering

    return tuple(line for gate in gates if (line := answering.failure(tree, gate)))


def _require_sound(samples: int, method: str, tolerance: float | None) -> None:
    """Refuse designs that say nothing or take too long."""
    if samples < FEWEST_SAMPLES:
        found = f"--samples {samples:,} is below {FEWEST_SAMPLES}, too few to know an interval or its error."
        raise InputError("bad-samples", found, "65536 gives three digits.")
    if samples > MOST_SAMPLES:
        hours = samples / SAMPLES_PER_CORE_SECOND / (os.cpu_count() or 1) / constants.SECONDS_PER_HOUR
        found = (
            f"--samples {samples:,} would take about {hours:,.0f} hours here, in the 0.5 GB of memory that every large "
            f"run needs; to keep its draws would need {samples * 400 / 1e12:,.1f} TB."
        )
        raise InputError("bad-samples", found, f"The most are {MOST_SAMPLES:,}; 65536 gives three digits.")
    if tolerance is not None and not 0 < tolerance < 1:
        found = f"--tolerance {tolerance:g} is not between 0 and 1."
        raise InputError("bad-tolerance", found, "0.01 gives two digits of an index.")
    if tolerance is not None and method == "lhs":
        found = "--tolerance doubles the samples, and a Latin hypercube of twice the size is another one."
        raise InputError("bad-tolerance", found, "Use --design sobol.")


def _simulated(problem: Problem, design: Design, tolerance: float | None, **options: Any) -> Simulation:
    """Sample, and note in the result what the options came to."""
    if tolerance is None:
        found = simulate(problem, design, **options)
        notes: tuple[str, ...] = ()
    else:
        from gpustack_mc.settling import simulate_until

        found, reached = simulate_until(problem, design, tolerance, **options)
        notes = (reached.note(),)
    if found.precision != options["precision"]:
        used = f"{options['precision']} differs from {found.precision} on this scenario, so {found.precision} was used"
        notes += (used,)
    if options["resamples"]:
        notes += (
            f"intervals of Sobol' indices are those of a bootstrap over points ({options['resamples']} resamples), "
            "which knows nothing of how evenly Sobol' points lie",
        )
    return found._replace(problem=problem._replace(notes=(*problem.notes, *notes)))


def _run(
    problem: Problem,
    folder: Path,
    sampled: Callable[[], Simulation],
    pictures: Sequence[str],
    with_report: bool,
    with_files: bool,
    with_split: bool = False,
) -> Done:
    later = ["gpustack_mc.summarizing", "gpustack_mc.result"]
    later += ["h5py"] if with_files else []
    later += ["xarray"] if with_files and (pictures or with_report) else []
    later += ["matplotlib.backends.backend_agg", "arviz_plots"] if with_files and (pictures or with_report) else []
    later += ["gpustack_mc.report", "jinja2"] if with_files and with_report else []
    load_meanwhile(*later)
    simulation = sampled()
    if problem.file.reliability is not None:
        goodput = simulation.outputs[problem.outputs.index("expected_goodput")]
        reliability.require_progress(goodput, problem.place(("reliability",)))

    from gpustack_mc.result import to_tree
    from gpustack_mc.summarizing import summarise

    tree = to_tree(simulation)
    names = ["result.nc", "summary.json", *(f"{name}.png" for name in pictures), *["report.html"] * with_report]
    files = [folder / name for name in names] if with_files else []
    summary = summarise(tree, [str(file) for file in files])
    if with_split:
        from gpustack_mc import variance_split
        from gpustack_mc.summarizing import HEADLINE

        summary["variance_split"] = variance_split.split(problem, simulation.design, HEADLINE)
    if with_files:
        _write(tree, summary, files, pictures, problem.file.ownership)
    return Done(tree, summary, problem.file.ownership)


def _write(
    result: Tree, summary: dict[str, Any], files: Sequence[Path], pictures: Sequence[str], ownership: str
) -> None:
    """Write all files, or leave the folder as it was."""
    from gpustack_mc.result import write

    with storage.replacing_all(files) as (stored, text, *others):
        write(result, stored)
        text.write_text(json.dumps(summary, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        drawn = {}
        tree: Result = result.as_datatree() if others else result
        for name, path in zip(pictures, others, strict=False):
            from gpustack_mc import pages

            module, function = PICTURES[name]
            options = {"scale": scale_of(summary, ownership)} if name == "sensitivity" else {}
            drawn[name] = getattr(importlib.import_module(f"gpustack_mc.{module}"), function)(tree, **options)
            pages.save(drawn[name], path)
        for path in others[len(pictures) :]:
            from gpustack_mc import report

            report.write(tree, path, summary, drawn.get("intervals"))


def scale_of(summary: dict[str, Any], ownership: str) -> drivers.Scale:
    """Return the scale of the sensitivity picture: that of the indices which the text tells."""
    return drivers.scale(summary, "cost_rented_usd" if ownership == "rent" else "cost_owned_usd")
