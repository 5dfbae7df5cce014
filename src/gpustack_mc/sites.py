"""Regions ranked for one run, draw by draw: the whole of ``gpustack-mc sites``."""

import fnmatch
import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from gpustack_mc import catalog, sites_text, storage
from gpustack_mc.catalog import Region
from gpustack_mc.comparison import chance, lowest, spread
from gpustack_mc.coupling import Choice
from gpustack_mc.design import Design, make_design
from gpustack_mc.errors import InputError, did_you_mean, option_place
from gpustack_mc.paired import Pairing
from gpustack_mc.problem import Problem
from gpustack_mc.quantities import BY_NAME
from gpustack_mc.scenario import read_document, resolve
from gpustack_mc.yamlfile import Document

MOST_REGIONS = 400
SAMPLES = (256, 2**17)
# Of all regions together: all that there are at the usual number of samples.
MOST_DRAWS = MOST_REGIONS * 2**14
WORLD = "WORLD"
# What is computed for each region besides the criteria.
_MORE = ("cost_owned_usd", "cost_rented_usd", "electricity_cost_usd", "electricity_share", "energy_mwh", "co2e_t",
         "co2e_operational_t", "water_onsite_m3", "water_offsite_m3")  # fmt: skip
_UNRANKED = ("rank", "best_if_independent", "best_if_together", "median", "interval_50", "interval_90", "above_best")
By = Literal["cost", "carbon", "water"]


class Criterion(NamedTuple):
    """What regions are ranked on.

    Attributes
    ----------
    key : {"cost", "carbon", "water"}
    label : str
        For tables, with its scope and basis.
    unit : str
    outputs : tuple of str
        Outputs that it is the sum of.
    inputs : tuple of str
        Inputs that must be known for the region.
    """

    key: str
    label: str
    unit: str
    outputs: tuple[str, ...]
    inputs: tuple[str, ...]


class Done(NamedTuple):
    """What a ranking leaves: the object printed with ``--json``, and the text for people."""

    summary: dict[str, Any]
    text: str


def run_sites(
    source: str | Path,
    overrides: Iterable[str] = (),
    *,
    regions: str = "",
    kind: str = "",
    by: By = "cost",
    carbon_basis: str = "",
    samples: int = 16_384,
    seed: int = 0,
    out: Path | None = None,
    with_files: bool = True,
    with_plots: bool = True,
    calibration: Path | None = None,
) -> Done:
    """Rank regions for one scenario and write ``sites.json`` and ``sites.png``, both or none.

    Parameters
    ----------
    source : str or Path
        A scenario file or the name of a shipped one.
    overrides : iterable of str
        ``key=value``.
    regions : str
        Ids or names with commas; ``*`` stands for any part of an id.
    kind : str
        All regions of a kind, such as ``us_state``.
    by : {"cost", "carbon", "water"}
        Order of the table.
    carbon_basis : {"", "direct", "lifecycle"}
        The one basis of all carbon figures; when empty, that of the scenario, else the one with more data.
    samples, seed
        Of the design.
    out : Path, optional
        Folder of the results.
    with_files, with_plots : bool
        Whether to write at all, and to draw.
    calibration : Path, optional
        A prior pack, see `gpustack_mc.pack`.

    Raises
    ------
    GpustackError
        Bad input, or results that cannot be written.
    """
    if not SAMPLES[0] <= samples <= SAMPLES[1]:
        raise InputError("bad-samples", f"--samples {samples:,} is not between {SAMPLES[0]} and {SAMPLES[1]:,}.",
                         "16384 gives a chance to half a percent.")  # fmt: skip
    wanted = find_regions(regions, kind)
    problems, others = _problems(read_document(source, calibration), tuple(overrides), wanted, carbon_basis)
    called = storage.slug(f"sites {storage.stem(source, problems[0].name)}")
    folder = out if out is not None else Path("reports") / called
    if with_files:
        storage.require_folder(folder)
    if samples * len(wanted) > MOST_DRAWS:
        raise InputError("bad-samples", f"--samples {samples:,} for {len(wanted)} regions are too many.",
                         f"Use at most {MOST_DRAWS // len(wanted):,}.")  # fmt: skip
    design = make_design(samples, "sobol", seed)
    draws = _Draws(
        problems, wanted, design, *(Pairing(problems, design, choice).outputs(_MORE) for choice in get_args(Choice))
    )
    files = [folder / name for name in ("sites.json", *(["sites.png"] if with_plots else []))] if with_files else []
    summary = _summary(draws, by, others) | {"files": [str(file) for file in files]}
    if with_files:
        _write(summary, files)
    return Done(summary, sites_text.text(summary))


def _write(summary: dict[str, Any], files: Sequence[Path]) -> None:
    with storage.replacing_all(files) as (first, *picture):
        first.write_text(json.dumps(summary, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        for path in picture:
            from gpustack_mc import decision_figures, pages

            pages.save(decision_figures.site_plot(summary), path)


# ---- which regions, on which basis -------------------------------------------------------------------------------


def find_regions(regions: str, kind: str) -> list[Region]:
    """Return the regions that a user names.

    Raises
    ------
    InputError
        One is unknown, a pattern fits none, or there are fewer than two or too many.
    """
    known, found = catalog.regions(), []
    place = option_place("--regions", regions)
    if kind:
        kinds = list(dict.fromkeys(region.kind for region in known.values()))
        if kind not in kinds:
            raise InputError("unknown-kind", f"{kind[:60]!r} is not a kind of region.", did_you_mean(kind, kinds),
                             option_place("--kind", kind))  # fmt: skip
        found += [region for region in known.values() if region.kind == kind]
    for word in (word.strip() for word in regions.split(",") if word.strip()):
        if "*" not in word:
            try:
                found.append(catalog.find_region(word))
            except InputError as error:
                raise InputError(error.code, error.message, error.fix, place) from None
            continue
        fitting = [r for r in known.values() if fnmatch.fnmatchcase(r.id.casefold(), word.casefold())]
        if not fitting:
            raise InputError("unknown-region", f"no region is called like {word[:60]!r}.",
                             "`gpustack-mc regions` lists all.", place)  # fmt: skip
        found += fitting
    unique = list({region.id: region for region in found}.values())
    if len(unique) < 2:
        raise InputError("few-regions", f"{len(unique)} regions cannot be ranked.",
                         "Name two or more: --regions US-CA,CA-QC,'gcp:*', or --kind us_state.")  # fmt: skip
    if len(unique) > MOST_REGIONS:
        raise InputError("too-many", f"{len(unique)} regions are too many.", f"Rank at most {MOST_REGIONS}.", place)
    return unique


def _problems(
    document: Document, overrides: tuple[str, ...], regions: Sequence[Region], basis: str
) -> tuple[list[Problem], dict[str, int]]:
    """Resolve the scenario once for each region, all on one carbon basis; also how many have data on each basis."""
    plain = resolve(document, overrides)
    stated = basis or plain.file.site.carbon_basis or ""
    if plain.inputs["grid_intensity"].origin == "entered":
        return [resolve(document, (*overrides, f"site.region={region.id}")) for region in regions], {}
    places = {candidate: [_known_at(region, candidate) for region in regions] for candidate in ("direct", "lifecycle")}
    having = {candidate: sum(place is not None for place in found) for candidate, found in places.items()}
    # Figures of a region itself count before those of its country, which would not tell two states apart.
    own = {c: sum(p == r.id for p, r in zip(places[c], regions, strict=True)) for c in places}
    chosen = f"site.carbon_basis={stated or max(having, key=lambda candidate: (own[candidate], having[candidate]))}"
    return [resolve(document, (*overrides, f"site.region={region.id}", chosen)) for region in regions], having


def _known_at(region: Region, basis: str) -> str | None:
    """Return the region, or the area around it below the world, whose grid has figures on a basis."""
    wheres = [population["where"] for population in catalog.fit_record("grid_intensity")["populations"]]
    known = {where.get("region", WORLD) for where in wheres if where["carbon_basis"] == basis}
    areas = [area for area in catalog.region_ladder(region) if area != WORLD or region.id == WORLD]
    return next((area for area in areas if area in known), None)


def data_of(problem: Problem, name: str, region: Region) -> str | None:
    """Return the region whose data an input rests on; None where only figures of the world exist for it.

    A value that the user states is good for any region.
    """
    item = problem.inputs[name]
    if item.origin in ("entered", "derived"):
        return region.id
    found = item.where.get("region", WORLD)
    return found if found != WORLD or region.id == WORLD else None


def _criteria(problem: Problem) -> tuple[Criterion, ...]:
    rent = problem.file.ownership == "rent"
    cost = "cost_rented_usd" if rent else "cost_owned_usd"
    carbon = BY_NAME["co2e_operational_t"]
    basis = f"{problem.basis['carbon_accounting']}, {problem.basis['carbon_basis']}"
    priced = ("grid_intensity",) if not _is_zero(problem, "carbon_price") else ()
    return (
        Criterion("cost", BY_NAME[cost].short, "USD", (cost,), (*(() if rent else ("electricity_price",)), *priced)),
        Criterion("carbon", f"{carbon.short}, {basis}", carbon.unit, (carbon.name,), ("grid_intensity",)),
        Criterion("water", "water, on site and power plants", "m^3", ("water_onsite_m3", "water_offsite_m3"),
                  ("water_offsite",)),
    )  # fmt: skip


def _is_zero(problem: Problem, name: str) -> bool:
    marginal = problem.inputs[name].marginal
    return marginal.is_fixed and marginal.parameters["value"] == 0


# ---- summary -----------------------------------------------------------------------------------------------------


class _Draws(NamedTuple):
    """Outputs `_MORE` of all regions, each (regions, outputs, draws), under both couplings of what differs."""

    problems: Sequence[Problem]
    regions: Sequence[Region]
    design: Design
    common: np.ndarray
    independent: np.ndarray

    def of(self, criterion: Criterion) -> tuple[np.ndarray, np.ndarray]:
        """Return the draws of a criterion, (regions, draws), under both."""
        places = [_MORE.index(name) for name in criterion.outputs]
        return self.common[:, places].sum(axis=1), self.independent[:, places].sum(axis=1)


def _summary(draws: _Draws, by: By, having: dict[str, int]) -> dict[str, Any]:
    from gpustack_mc.result import versions

    problems, design = draws.problems, draws.design
    criteria = _criteria(problems[0])
    rows: dict[str, dict[str, Any]] = {}

    def outputs(k: int) -> dict[str, Any]:
        return {
            name: {"unit": BY_NAME[name].unit, "scope": BY_NAME[name].scope}
            | spread(draws.common[k, i], design.replicates)
            for i, name in enumerate(_MORE)
        }

    with ThreadPoolExecutor() as executor:
        found = list(executor.map(outputs, range(len(draws.regions))))
    for region, more in zip(draws.regions, found, strict=True):
        rows[region.id] = {"name": region.name, "kind": region.kind, "outputs": more}
    for criterion in criteria:
        _rank(criterion, draws, rows)
    order = sorted(rows, key=lambda name: (rows[name][by]["rank"] is None, rows[name][by]["rank"] or 0))
    return {
        "schema_version": 1,
        "kind": "sites",
        "name": problems[0].name,
        "ownership": problems[0].file.ownership,
        "seed": design.seed,
        "samples": design.samples,
        "interval": "equal-tailed",
        "basis": problems[0].basis,
        "regions_with_data_by_basis": having,
        "by": by,
        "criteria": {c.key: {"label": c.label, "unit": c.unit, "scope": "final run", "outputs": list(c.outputs)}
                     for c in criteria},
        "regions": {name: rows[name] for name in order},
        "notes": _notes(problems, criteria),
        "versions": versions(),
    }  # fmt: skip


def _rank(criterion: Criterion, draws: _Draws, rows: dict[str, Any]) -> None:
    """Add rank, chance of being best and interval of one criterion; regions without data get none of them."""
    replicates = draws.design.replicates
    common, independent = draws.of(criterion)
    data = [
        {name: data_of(problem, name, region) for name in criterion.inputs}
        for problem, region in zip(draws.problems, draws.regions, strict=True)
    ]
    ranked = [k for k in range(len(data)) if None not in data[k].values()]
    medians = {k: float(np.median(common[k])) for k in ranked}
    together, apart = (
        dict(zip(ranked, lowest(v[ranked]), strict=True)) if ranked else {} for v in (common, independent)
    )
    first = min(medians, key=medians.__getitem__, default=None)
    for k, region in enumerate(draws.regions):
        lacking = [name for name, found in data[k].items() if found is None]
        about = {"region": region.id, "data": data[k], "lacking": lacking}
        if k not in medians:
            rows[region.id][criterion.key] = about | dict.fromkeys(
                (
                    "rank",
                    "best_if_independent",
                    "best_if_together",
                    "median",
                    "interval_50",
                    "interval_90",
                    "above_best",
                )
            )
            continue
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = independent[k] / independent[first]
        rows[region.id][criterion.key] = about | {
            # Equal medians share a rank.
            "rank": sum(median < medians[k] for median in medians.values()) + 1,
            "best_if_independent": chance(apart[k], replicates),
            "best_if_together": chance(together[k], replicates),
            **spread(common[k], replicates),
            "above_best": spread(ratio, replicates),
        }


def _notes(problems: Sequence[Problem], criteria: Sequence[Criterion]) -> list[str]:
    notes = []
    for criterion in criteria:
        entered = [name for name in criterion.inputs if problems[0].inputs[name].origin == "entered"]
        if entered and len(entered) == len(criterion.inputs):
            notes.append(f"{criterion.key} is the same everywhere, because the scenario states {', '.join(entered)}")
        if not criterion.inputs:
            notes.append("a rental price does not depend on the region here, so the cost is the same everywhere")
    return notes
