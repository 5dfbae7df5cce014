"""Many scenarios at once: the whole of ``gpustack-mc sweep``."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from gpustack_mc import interruption, result, storage, sweep_text, sweep_zarr
from gpustack_mc.design import make_design
from gpustack_mc.errors import GpustackError, InputError, Place, option_place
from gpustack_mc.portfolio_spec import PortfolioSpec
from gpustack_mc.sweep_engine import CHUNK, SAMPLES, Chunk, Engine, Settings
from gpustack_mc.sweep_spec import Sweep, find_outputs, read_sweep
from gpustack_mc.sweep_store import (
    CHANCES,
    MOST_DRAWS,
    RECORD,
    RESULTS,
    SKIPPED,
    TABLE,
    InterruptedSweep,
    Skip,
    Store,
    digest_of,
    gathered,
    write_dataset,
    write_tables,
)  # fmt: skip

Compute = Callable[[Sequence[int]], Iterator[tuple[int, Chunk]]]


class Done(NamedTuple):
    """What a sweep leaves: the object printed with ``--json``, and the text for people."""

    summary: dict[str, Any]
    text: str


def run_sweep(
    source: str | Path,
    overrides: Iterable[str] = (),
    *,
    outputs: str = "",
    samples: int = 16_384,
    seed: int = 0,
    sensitivity: bool = False,
    draws: bool = False,
    out: Path | None = None,
    total: bool = False,
    with_plots: bool = True,
    calibration: Path | None = None,
    scheduler: str = "",
    form: str = "netcdf",
    progress: Callable[[float], None] = lambda share: None,
) -> Done:
    """Run all scenarios of a sweep; go on where an interrupted one was.

    Parameters
    ----------
    source : str or Path
        A YAML file with a base and axes or a table, or a table of workloads.
    overrides : iterable of str
        ``key=value`` for the base scenario.
    outputs : str
        Names with commas, or ``all``; those of the file, else the main ones, when empty.
    samples, seed
        Of the design that all scenarios share.
    sensitivity : bool
        Whether to compute Sobol' indices of every scenario.
    draws : bool
        Whether to keep all draws of the outputs.
    out : Path, optional
        Folder of the results.
    total : bool
        Whether to add the scenarios up, also where the file does not say so.
    with_plots : bool
        Whether to draw pictures.
    calibration : Path, optional
        A prior pack, see `gpustack_mc.pack`.
    scheduler : str
        Address of a Dask scheduler whose workers run the chunks.
    form : {"netcdf", "zarr"}
        Of the dataset.
    progress : callable
        Called with the share of the scenarios that are done.

    Raises
    ------
    GpustackError
        Bad input, or results that cannot be written; chunks that were finished are kept.
    """
    overrides = tuple(overrides)
    sweep = read_sweep(source, overrides, calibration)
    if outputs:
        place = option_place("--outputs", outputs)
        sweep = sweep._replace(outputs=find_outputs(
            outputs, lambda message, fix: InputError("unknown-output", message, fix, place)))  # fmt: skip
    if total and sweep.portfolio is None:
        sweep = sweep._replace(portfolio=PortfolioSpec({}, False), text=sweep.text + "\n# --total")
    limits = _limits(sweep)
    settings = Settings(_design(samples, seed), sensitivity, draws)
    _require_room(sweep, settings)
    folder = out if out is not None else Path("reports") / storage.slug(f"sweep {storage.stem(source, sweep.name)}")
    if form == "zarr":
        sweep_zarr.require_zarr()
    store = Store(folder, digest_of(sweep, settings, form), form)
    store.open()
    if store.complete:
        return _kept(folder / RECORD)
    engine = Engine(sweep, settings)
    _compute(store, engine, scheduler, progress)
    return _finish(store, engine, with_plots, limits)


def _kept(record: Path) -> Done:
    """Tell a sweep that is done from its record, which anyone may have changed since."""
    try:
        summary = json.loads(record.read_text(encoding="utf-8"))
        # Also what the text of a short sweep leaves out: `--json` has it.
        sweep_text.text({key: value for key, value in summary.items() if key != "each"})
        if len(summary["skipped"]) > summary["skipped_count"]:
            raise ValueError("more is listed than was skipped")
        return Done(summary, sweep_text.text(summary))
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        fix = "Remove this folder, or choose another with --out, and run the sweep again."
        raise InputError("damaged-sweep", "this file is damaged or was changed.", fix, Place(str(record))) from error


def _design(samples: int, seed: int) -> Any:
    if not SAMPLES[0] <= samples <= SAMPLES[1]:
        raise InputError("bad-samples", f"--samples {samples:,} is not between {SAMPLES[0]} and {SAMPLES[1]:,}.",
                         "16384 gives a median to about half a percent.")  # fmt: skip
    return make_design(samples, "sobol", seed)


def _limits(sweep: Sweep) -> dict[str, float]:
    """Return the limits of the portfolio, refusing one of too many scenarios before anything is run."""
    if sweep.portfolio is None:
        return {}
    from gpustack_mc import portfolio

    if sweep.count > portfolio.MOST:
        fix = f"Take at most {portfolio.MOST}: totals need how every two of them are correlated."
        raise InputError("too-many", f"a portfolio of {sweep.count:,} scenarios.", fix)
    return portfolio.limits_of(sweep.portfolio)


def _require_room(sweep: Sweep, settings: Settings) -> None:
    """Refuse draws that would not fit."""
    numbers = sweep.count * len(sweep.outputs) * settings.design.samples
    if settings.draws and numbers > MOST_DRAWS:
        size, most = numbers * 8 / 2**30, MOST_DRAWS * 8 / 2**30
        fix = "Keep fewer: --outputs, --samples, or run single scenarios with `gpustack-mc run`."
        raise InputError("too-many-draws", f"the draws would take {size:,.3g} GiB, more than {most:g}.", fix)


def _compute(store: Store, engine: Engine, scheduler: str, progress: Callable[[float], None]) -> None:
    missing = store.missing(engine.chunks, engine.empty)
    done = engine.chunks - len(missing)
    progress(done / engine.chunks)

    def kept() -> str:
        return f"interrupted; {min(done * CHUNK, engine.sweep.count):,} of {engine.sweep.count:,} scenarios are kept."

    again = "Run the same command again to go on."
    try:
        interruption.say(f"{kept()} {again}")
        for number, chunk in _engine_of(engine, store, scheduler)(missing):
            store.write(number, chunk)
            done += 1
            interruption.say(f"{kept()} {again}")
            progress(done / engine.chunks)
    except KeyboardInterrupt:
        raise InterruptedSweep("interrupted", kept(), again) from None
    finally:
        interruption.say()


def _engine_of(engine: Engine, store: Store, scheduler: str) -> Compute:
    if not scheduler:
        return engine.compute
    from gpustack_mc.cluster import on_cluster

    return on_cluster(scheduler, engine, store.digest)


# ---- the end ------------------------------------------------------------------------------------------------------


def _finish(store: Store, engine: Engine, with_plots: bool, limits: dict[str, float]) -> Done:
    dataset, skipped = gathered(store, engine)
    if len(skipped) >= engine.sweep.count + len(engine.sweep.unread):
        raise InputError("no-scenario", f"no scenario could be run; the first: {skipped[0].reason}")
    names = [TABLE, *([CHANCES] if engine.layout.questions else []), *([SKIPPED] if skipped else [])]
    pictures = _pictures(dataset) if with_plots else {}
    files = [store.folder / name for name in (*names, *pictures, RECORD)]
    result_file = store.folder / store.result
    summary = _summary(dataset, skipped, engine, store) | {"files": [str(file) for file in (result_file, *files)]}
    if engine.sweep.portfolio is not None:
        from gpustack_mc import portfolio

        running = np.flatnonzero(np.isfinite(dataset["value"].values).any(axis=(1, 2)))
        problems = [engine.loader.problem(int(number)) for number in running]
        summary["portfolio"] = portfolio.totals(problems, engine.settings.design, engine.sweep.portfolio, limits)
    try:
        is_file = store.result == RESULTS["netcdf"]
        wanted = [result_file, *files] if is_file else files
        with storage.replacing_all(wanted) as written:
            paths = dict(zip([file.name for file in wanted], written, strict=True))
            if is_file:
                write_dataset(dataset, paths[store.result])
            else:
                sweep_zarr.write_zarr(dataset, result_file, CHUNK)
            write_tables(dataset, skipped, paths)
            for name, figure in pictures.items():
                from gpustack_mc import pages

                pages.save(figure, paths[name])
            paths[RECORD].write_text(json.dumps(summary, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    except GpustackError as error:
        raise store.unwritten(error) from error
    store.remove_chunks()
    return Done(summary, sweep_text.text(summary))


def _pictures(dataset: xr.Dataset) -> dict[str, Any]:
    from gpustack_mc import sweep_figures

    return sweep_figures.pictures(dataset)


def _summary(dataset: xr.Dataset, skipped: Sequence[Skip], engine: Engine, store: Store) -> dict[str, Any]:
    sweep, design = engine.sweep, engine.settings.design
    return {
        "schema_version": 1,
        "kind": "sweep",
        "digest": store.digest,
        "name": sweep.name,
        "scenarios": sweep.count,
        "axes": json.loads(dataset.attrs["axes"]),
        "table": sweep.table,
        "ran": sweep.count - sum(skip.name != "" for skip in skipped),
        "skipped": [skip._asdict() for skip in skipped[:100]],
        "skipped_count": len(skipped),
        "notes": list(sweep.notes),
        "seed": design.seed,
        "samples": design.samples,
        "interval": "equal-tailed",
        **sweep_text.digest(dataset),
        "versions": result.versions(),
    }
