"""One scenario from file to results: the whole of ``gpustack-mc run`` as one function."""

import importlib
import json
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gpustack_mc import storage
from gpustack_mc.design import make_design
from gpustack_mc.errors import InputError
from gpustack_mc.scenario import load_scenario
from gpustack_mc.simulate import simulate

if TYPE_CHECKING:
    import xarray as xr

# More would take hours and no output is known better than by a billion samples.
MOST_SAMPLES = 2**30


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
    with_plots: bool = True,
    with_files: bool = True,
    progress: Callable[[float], None] = lambda share: None,
) -> Done:
    """Run a scenario and write ``result.nc``, ``summary.json`` and the pictures, each whole or not at all.

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
    with_plots, with_files : bool
        Whether to draw, and whether to write at all.
    progress : callable
        Called with the share of the sampling that is done.

    Raises
    ------
    GpustackError
        Bad input, or results that cannot be written.
    """
    if not 1 <= samples <= MOST_SAMPLES:
        raise InputError(
            "bad-samples", f"--samples {samples:,} is not between 1 and {MOST_SAMPLES:,}.", "65536 gives three digits."
        )
    problem = load_scenario(source, overrides)
    folder = out if out is not None else Path("reports") / storage.slug(_stem(source, problem.name))
    if with_files:
        storage.require_folder(folder)
    later = ["gpustack_mc.summary", "gpustack_mc.result", "h5netcdf", "matplotlib.backends.backend_agg", "arviz_plots"]
    _load_meanwhile(*later[: 2 if not with_files else 3 if not with_plots else 5])
    simulation = simulate(problem, make_design(samples, method, seed), progress=progress)

    from gpustack_mc.result import to_datatree
    from gpustack_mc.summary import summarise

    tree = to_datatree(simulation)
    files = [folder / name for name in _file_names(with_plots)] if with_files else []
    summary = summarise(tree, [str(file) for file in files])
    if with_files:
        _write(tree, summary, folder, with_plots)
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


def _file_names(with_plots: bool) -> list[str]:
    return ["result.nc", "summary.json", *(("intervals.png", "inputs.png", "sensitivity.png") if with_plots else ())]


def _write(tree: "xr.DataTree", summary: dict[str, Any], folder: Path, with_plots: bool) -> None:
    from gpustack_mc.result import write

    with storage.replacing(folder / "result.nc") as path:
        write(tree, path)
    storage.write_text(folder / "summary.json", json.dumps(summary, indent=2, allow_nan=False) + "\n")
    if with_plots:
        from gpustack_mc import figures

        for name, draw in (
            ("intervals.png", figures.interval_plot),
            ("inputs.png", figures.input_plot),
            ("sensitivity.png", figures.sensitivity_plot),
        ):
            with storage.replacing(folder / name) as path:
                figures.save(draw(tree), path)
