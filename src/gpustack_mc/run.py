"""One scenario from file to results: the whole of ``gpustack-mc run`` as one function."""

import contextlib
import importlib
import json
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gpustack_mc import storage
from gpustack_mc.design import Design, make_design
from gpustack_mc.errors import InputError
from gpustack_mc.problem import Problem
from gpustack_mc.scenario import load_scenario
from gpustack_mc.simulate import simulate

if TYPE_CHECKING:
    import xarray as xr

# Fewer have no tails to speak of, and no Monte Carlo error that is one.
FEWEST_SAMPLES = 256
# More would take hours and no output is known better than by a billion samples.
MOST_SAMPLES = 2**30
# Pictures by file name, and the function of `gpustack_mc.figures` that draws each.
PICTURES = {"intervals": "interval_plot", "inputs": "input_plot", "sensitivity": "sensitivity_plot"}


class Done(NamedTuple):
    """What a run leaves.

    Attributes
    ----------
    tree : xarray.DataTree
    summary : dict
        As printed with ``--json``.
    ownership : {"own", "rent", "either"}
    """

    tree: "xr.DataTree"
    summary: dict[str, Any]
    ownership: str


def run_scenario(
    source: str | Path,
    overrides: Iterable[str] = (),
    *,
    samples: int = 65_536,
    seed: int = 0,
    method: str = "sobol",
    out: Path | None = None,
    pictures: Sequence[str] = ("intervals", "sensitivity"),
    with_report: bool = False,
    with_files: bool = True,
    progress: Callable[[float], None] = lambda share: None,
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
        Which of `PICTURES` to draw.
    with_report : bool
        Whether to write ``report.html`` as well.
    with_files : bool
        Whether to write at all.
    progress : callable
        Called with the share of the sampling that is done.

    Raises
    ------
    GpustackError
        Bad input, or results that cannot be written.
    """
    if not FEWEST_SAMPLES <= samples <= MOST_SAMPLES:
        found = f"--samples {samples:,} is not between {FEWEST_SAMPLES} and {MOST_SAMPLES:,}."
        raise InputError("bad-samples", found, "65536 gives three digits.")
    problem = load_scenario(source, overrides)
    folder = out if out is not None else Path("reports") / storage.slug(_stem(source, problem.name))
    made = with_files and not folder.exists()
    if with_files:
        storage.require_folder(folder)
    try:
        return _run(problem, folder, make_design(samples, method, seed), pictures, with_report, with_files, progress)
    except BaseException:
        if made:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def _run(
    problem: Problem,
    folder: Path,
    design: Design,
    pictures: Sequence[str],
    with_report: bool,
    with_files: bool,
    progress: Callable[[float], None],
) -> Done:
    later = ["gpustack_mc.summary", "gpustack_mc.result"]
    later += ["h5py"] if with_files else []
    later += ["matplotlib.backends.backend_agg", "arviz_plots"] if with_files and (pictures or with_report) else []
    later += ["gpustack_mc.report", "jinja2"] if with_files and with_report else []
    _load_meanwhile(*later)
    simulation = simulate(problem, design, progress=progress)

    from gpustack_mc.result import to_datatree
    from gpustack_mc.summary import summarise

    tree = to_datatree(simulation)
    names = ["result.nc", "summary.json", *(f"{name}.png" for name in pictures), *["report.html"] * with_report]
    files = [folder / name for name in names] if with_files else []
    summary = summarise(tree, [str(file) for file in files])
    if with_files:
        _write(tree, summary, files, pictures)
    return Done(tree, summary, problem.file.ownership)


def _load_meanwhile(*modules: str) -> None:
    """Import in the background what is needed after the sampling, which leaves the interpreter idle for seconds.

    A failure is left to the import that needs the module.
    """

    def load() -> None:
        for name in modules:
            try:
                importlib.import_module(name)
            except ImportError:
                return

    threading.Thread(target=load, daemon=True).start()


def _stem(source: str | Path, name: str) -> str:
    return name if str(source) == "-" else Path(source).stem


def _write(tree: "xr.DataTree", summary: dict[str, Any], files: Sequence[Path], pictures: Sequence[str]) -> None:
    """Write all files, or leave the folder as it was."""
    from gpustack_mc.result import write

    with storage.replacing_all(files) as (result, text, *others):
        write(tree, result)
        text.write_text(json.dumps(summary, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        drawn = {}
        for name, path in zip(pictures, others, strict=False):
            from gpustack_mc import figures

            drawn[name] = getattr(figures, PICTURES[name])(tree)
            figures.save(drawn[name], path)
        for path in others[len(pictures) :]:
            from gpustack_mc import report

            report.write(tree, path, summary, drawn.get("intervals"))
