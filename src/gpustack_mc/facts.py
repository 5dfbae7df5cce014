"""What a scenario says about itself, in the terms in which fitted priors choose a population."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gpustack_mc import catalog, priors
from gpustack_mc.catalog import Accelerator, Region
from gpustack_mc.priors import Facts
from gpustack_mc.problem import Input
from gpustack_mc.schema import ScenarioFile


def facts_of(
    file: ScenarioFile, accelerator: Accelerator | None, region: Region, inputs: dict[str, Input], year: int | None
) -> Facts:
    """Return the ladders and covariates of a scenario.

    Parameters
    ----------
    file : ScenarioFile
    accelerator : Accelerator or None
        None for an accelerator of the user's own, which no prior knows.
    region : Region
    inputs : dict of str to Input
        The workload and the accelerator, resolved.
    year : int or None
        Year of the run.
    """
    moe = _is_moe(file)
    ladders: dict[str, tuple[str, ...]] = {
        "region": catalog.region_ladder(region),
        "term": (file.market.term,),
        "architecture": ("moe" if moe else "dense",),
        "precision": (file.cluster.precision,),
        "carbon_basis": _carbon_bases(file, region),
    }
    if accelerator:
        ladders["accelerator"] = accelerator.ladder
    stated: dict[str, str | None] = {"operator": file.site.operator, "provider_kind": file.market.provider_kind}
    if file.reliability is not None:
        stated |= {"checkpointing": file.reliability.checkpointing, "recovery": file.reliability.recovery}
    for name, value in stated.items():
        if value:
            ladders[name] = (value,)
    return Facts(ladders, _covariates(file, accelerator, inputs, moe, year), year)


def medians(inputs: dict[str, Input]) -> dict[str, float]:
    """Return the median of each input; the tokens of phases add up to those of the run."""
    middle = {key: float(priors.quantiles(item.marginal, [0.5])[0]) for key, item in inputs.items()}
    in_phases = [value for key, value in middle.items() if key.startswith("tokens@")]
    return middle | ({"tokens": sum(in_phases)} if in_phases else {})


def _is_moe(file: ScenarioFile) -> bool:
    if file.workload.architecture is None:
        return file.workload.active_params is not None
    return file.workload.architecture == "moe"


def _covariates(
    file: ScenarioFile, accelerator: Accelerator | None, inputs: dict[str, Input], moe: bool, year: int | None
) -> dict[str, float]:
    """Numbers for regressions, at the median of what is uncertain; what is unknown is absent."""
    middle = medians(inputs)
    return covariates(
        params=middle["params"],
        active_params=middle.get("active_params", middle["params"]),
        peak_flop_per_s=middle["peak_flop_per_s"],
        count=middle["accelerator_count"],
        moe=moe,
        precision=file.cluster.precision,
        accelerator=accelerator,
        year=year,
    )


def covariates(
    *, params: float | None = None, active_params: float | None = None, peak_flop_per_s: float | None = None,
    count: float | None = None, moe: bool | None = None, precision: str | None = None,
    accelerator: Accelerator | None = None, year: int | None = None,
) -> dict[str, float]:  # fmt: skip
    """Return the numbers that regressions of fitted priors ask for; of what is None there are none."""
    found: dict[str, float] = {}
    if active_params is not None:
        size = float(np.log10(active_params / 1e9))
        found |= {"log10_active_params_b": size, "size_below_1b": min(size, 0.0)}
    if params is not None:
        found["log10_params_b"] = float(np.log10(params / 1e9))
    if peak_flop_per_s is not None:
        found["log10_peak_tflops"] = float(np.log10(peak_flop_per_s / 1e12))
    if count is not None:
        found["log10_count"] = float(np.log10(count))
    if moe is not None:
        found["moe"] = float(moe)
    if precision is not None:
        found |= {"fp8": float(precision == "fp8"), "fp16": float(precision == "fp16")}
    if accelerator:
        found["log10_bandwidth_tb_s"] = float(np.log10(accelerator.memory_bandwidth_tb_s))
        found["release_year_minus_2022"] = float(accelerator.release_year - 2022)
        found[f"generation={accelerator.generation}"] = 1.0
    if year is not None:
        found["year_minus_2024"] = float(year - 2024)
    return found


# What is taken for granted where a scenario says nothing.
UNSTATED = Facts(
    {
        "region": ("WORLD",),
        "term": ("on_demand",),
        "architecture": ("dense",),
        "precision": ("bf16",),
        "carbon_basis": ("direct", "lifecycle"),
    },
    covariates(moe=False, precision="bf16"),
)


def stated_facts(row: Mapping[str, Any]) -> Facts:
    """Return what a row of a table says of itself; facts that it does not state are absent.

    Parameters
    ----------
    row : mapping
        Any of ``accelerator`` (its known name), ``region`` (its id), ``operator``, ``provider_kind``, ``term``,
        ``carbon_basis``, ``architecture``, ``precision``, ``year``, ``params``, ``active_params``,
        ``n_accelerators``; empty for what is not stated.
    """
    ladders: dict[str, tuple[str, ...]] = {
        key: (str(row[key]),)
        for key in ("operator", "provider_kind", "term", "carbon_basis", "architecture", "precision")
        if row.get(key)
    }
    accelerator = catalog.accelerators()[row["accelerator"]] if row.get("accelerator") else None
    if accelerator:
        ladders["accelerator"] = accelerator.ladder
    if row.get("region"):
        ladders["region"] = catalog.region_ladder(catalog.regions()[row["region"]])

    def number(key: str) -> float | None:
        return float(row[key]) if row.get(key) not in (None, "") else None

    precision = str(row.get("precision") or "bf16")
    year = number("year")
    params, active = number("params"), number("active_params")
    known = covariates(
        params=params,
        active_params=active if active is not None else params,
        peak_flop_per_s=accelerator.peak_flop_per_s[precision] if accelerator else None,
        count=number("n_accelerators"),
        moe=row["architecture"] == "moe" if row.get("architecture") else None,
        precision=row.get("precision") or None,
        accelerator=accelerator,
        year=None if year is None else int(year),
    )
    return Facts(ladders, known, None if year is None else int(year))


def overlaid(below: Facts, above: Facts) -> Facts:
    """Return facts of which those in `above` win."""
    kept = dict(below.covariates)
    if "accelerator" in above.ladders:
        kept = {key: value for key, value in kept.items() if not key.startswith("generation=")}
    year = above.year if above.year is not None else below.year
    return Facts(below.ladders | above.ladders, kept | above.covariates, year)


def _carbon_bases(file: ScenarioFile, region: Region) -> tuple[str, ...]:
    """Order the carbon bases: the stated one alone; else direct first where the region itself has such figures."""
    if file.site.carbon_basis:
        return (file.site.carbon_basis,)
    ladder = catalog.region_ladder(region)
    wheres = [population["where"] for population in catalog.fit_record("grid_intensity")["populations"]]
    direct = any(where["carbon_basis"] == "direct" and where.get("region") in ladder for where in wheres)
    return ("direct", "lifecycle") if direct else ("lifecycle", "direct")
