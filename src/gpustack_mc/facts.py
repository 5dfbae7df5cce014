"""What a scenario says about itself, in the terms in which fitted priors choose a population."""

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
    stated = {"operator": file.site.operator, "provider_kind": file.market.provider_kind}
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
    size = float(np.log10(middle.get("active_params", middle["params"]) / 1e9))
    covariates = {
        "log10_active_params_b": size,
        "size_below_1b": min(size, 0.0),
        "log10_params_b": float(np.log10(middle["params"] / 1e9)),
        "log10_peak_tflops": float(np.log10(middle["peak_flop_per_s"] / 1e12)),
        "log10_count": float(np.log10(middle["accelerator_count"])),
        "moe": float(moe),
        "fp8": float(file.cluster.precision == "fp8"),
        "fp16": float(file.cluster.precision == "fp16"),
    }
    if accelerator:
        covariates["log10_bandwidth_tb_s"] = float(np.log10(accelerator.memory_bandwidth_tb_s))
        covariates["release_year_minus_2022"] = float(accelerator.release_year - 2022)
        covariates[f"generation={accelerator.generation}"] = 1.0
    if year is not None:
        covariates["year_minus_2024"] = float(year - 2024)
    return covariates


def _carbon_bases(file: ScenarioFile, region: Region) -> tuple[str, ...]:
    """Order the carbon bases: the stated one alone; else direct first where the region itself has such figures."""
    if file.site.carbon_basis:
        return (file.site.carbon_basis,)
    ladder = catalog.region_ladder(region)
    wheres = [population["where"] for population in catalog.fit_record("grid_intensity")["populations"]]
    direct = any(where["carbon_basis"] == "direct" and where.get("region") in ladder for where in wheres)
    return ("direct", "lifecycle") if direct else ("lifecycle", "direct")
