"""What Python code uses: a scenario in, labelled arrays with units out. The package itself offers these functions.

>>> import gpustack_mc as mc
>>> tree = mc.simulate(mc.load_scenario("llama-3-70b"), samples=1024)
>>> mc.summary(tree)["cost_owned_usd"].attrs["units"]
'USD'
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import xarray as xr

from gpustack_mc import hdi, summarizing
from gpustack_mc.design import make_design
from gpustack_mc.problem import Problem
from gpustack_mc.propagation import simulate as _propagate
from gpustack_mc.reopening import open_result
from gpustack_mc.result import to_datatree
from gpustack_mc.scenario import load_scenario

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["compare", "load_scenario", "open_result", "sensitivity", "simulate", "summary", "table"]


def simulate(
    scenario: Problem | str | Path,
    *,
    samples: int = 65_536,
    seed: int = 0,
    method: Literal["sobol", "lhs", "random"] = "sobol",
    interval: hdi.Kind = "equal-tailed",
) -> xr.DataTree:
    """Propagate the inputs of a scenario through the cost model.

    Parameters
    ----------
    scenario : Problem, str or Path
        From `load_scenario`, or what that takes.
    samples : int
        Rounded up to what the design needs.
    seed : int
        The same seed gives the same draws.
    method : {"sobol", "lhs", "random"}
        Scrambled Sobol' points, Latin hypercube or plain Monte Carlo.
    interval : {"equal-tailed", "hdi"}
        Which intervals tables, texts and pictures of the result show; highest-density ones stand beside the quantiles
        in `summary`.

    Returns
    -------
    xarray.DataTree
        Draws of the inputs in ``prior``, of the outputs in ``prior_predictive``, with dimensions (chain, draw) and the
        unit of each variable in its attribute ``units``; ArviZ reads it as it is.

    Raises
    ------
    InputError
        The scenario is wrong.
    """
    problem = scenario if isinstance(scenario, Problem) else load_scenario(scenario)
    return to_datatree(_propagate(problem, make_design(samples, method, seed), with_hdi=interval == "hdi"))


def summary(tree: xr.DataTree) -> xr.Dataset:
    """Return mean, standard deviation and quantiles of every variable, each with its Monte Carlo error.

    Parameters
    ----------
    tree : xarray.DataTree
        From `simulate` or `open_result`; what `compare` returns holds its own statistics.

    Returns
    -------
    xarray.Dataset
        One variable for each input that varies and each output, in its own unit, over the dimension ``statistic``:
        ``mean``, ``sd``, ``q0.05``, ``q0.25``, ``q0.5``, ``q0.75``, ``q0.95`` and, as ``*_error``, the standard errors;
        with highest-density intervals their ends too: ``hdi0.5_low``, ``hdi0.5_high``, ``hdi0.9_low``, ``hdi0.9_high``.
        They are over all draws, also over those that a large run does not keep.

    Raises
    ------
    ValueError
        This is a comparison.
    """
    _require_single(tree)
    table: Any = tree["statistics"]["value"]
    found = {}
    for key in table["variable"].values:
        group = "prior" if key in tree["prior"].data_vars else "prior_predictive"
        about = {name: tree[group][key].attrs[name] for name in ("units", "long_name")}
        found[str(key)] = table.sel(variable=key, drop=True).assign_attrs(about)
    return xr.Dataset(
        found, attrs={"interval": hdi.kind_of(tree.attrs), "comment": tree["statistics"].attrs.get("comment", "")}
    )


def sensitivity(tree: xr.DataTree, *, scale: Literal["raw", "log"] = "raw") -> xr.Dataset:
    """Return first-order and total Sobol' indices with their 90% intervals.

    Parameters
    ----------
    tree : xarray.DataTree
        From `simulate` or `open_result`.
    scale : {"raw", "log"}
        Whether the variance is that of the outputs or of their logarithms.

    Returns
    -------
    xarray.Dataset
        ``S1``, ``ST`` and, with ``_lower`` and ``_upper``, the ends of their intervals, over (output, input);
        ``status`` names outputs that have none.

    Raises
    ------
    ValueError
        No input varies, so that there are no indices; or this is a comparison.
    """
    _require_single(tree)
    if "sensitivity" not in tree.children:
        raise ValueError("no input varies, so nothing can be sensitive to it")
    return tree["sensitivity"].to_dataset().sel(scale=scale, drop=True)


def table(tree: xr.DataTree) -> "pd.DataFrame":
    """Return the main outputs as people write them, for a notebook: scaled units, digits that the samples support.

    Parameters
    ----------
    tree : xarray.DataTree
        From `simulate` or `open_result`.

    Returns
    -------
    pandas.DataFrame
        Text: ``median``, ``50% interval`` and ``90% interval`` (equal-tailed; ``50% HDI`` and ``90% HDI`` of a result
        with these), one row for each of the outputs that ``gpustack-mc run`` prints. The numbers themselves are in
        `summary`.

    Raises
    ------
    ValueError
        This is a comparison.
    """
    import pandas as pd

    _require_single(tree)
    found = summarizing.summarise(tree)
    rows = summarizing.headline_table(found, tree.attrs["ownership"])
    labels = pd.Index([summarizing.label_of(name, found) for name in rows], name="final run")
    what = hdi.NAMES[found["interval"]]
    return pd.DataFrame(list(rows.values()), index=labels, columns=["median", f"50% {what}", f"90% {what}"])


def compare(
    scenarios: Sequence[Problem | str | Path] | Mapping[str, Problem | str | Path],
    *,
    samples: int = 65_536,
    seed: int = 0,
    coupling: Literal["common", "independent"] = "common",
) -> xr.DataTree:
    """Draw several scenarios together, so that what they share cancels from their difference.

    Parameters
    ----------
    scenarios : sequence or mapping of Problem, str or Path
        From `load_scenario`, or what that takes; at least two. The keys of a mapping are the names of the scenarios.
        All others are compared with the first.
    samples : int
        Rounded up to what the design needs.
    seed : int
        The same seed gives the same draws.
    coupling : {"common", "independent"}
        Whether inputs that differ between scenarios lie at the same quantile or know nothing of each other; see
        `gpustack_mc.coupling`.

    Returns
    -------
    xarray.DataTree
        ``prior`` and ``prior_predictive`` hold the draws with dimensions (chain, draw, scenario): draw i of one
        scenario belongs to draw i of the others. ``difference`` (in the unit of the output) and ``ratio`` hold, for
        each scenario but the first, mean, quantiles and their Monte Carlo errors against the first, over (scenario,
        statistic); ``probability_lower`` that the scenario is below the first, and ``probability_lowest`` that it is
        the lowest of all, with ties divided. Every variable has its unit in ``units``.

    Raises
    ------
    InputError
        A scenario is wrong, there are fewer than two, or they do not count the same things.
    """
    from gpustack_mc import comparing

    if isinstance(scenarios, str | Path):
        scenarios = [scenarios]
    each = scenarios.values() if isinstance(scenarios, Mapping) else scenarios
    problems = [scenario if isinstance(scenario, Problem) else load_scenario(scenario) for scenario in each]
    names = list(map(str, scenarios)) if isinstance(scenarios, Mapping) else None
    return comparing.paired_tree(problems, make_design(samples, "sobol", seed), coupling, names)


def _require_single(tree: xr.DataTree) -> None:
    if tree.attrs.get("kind") == "comparison":
        raise ValueError("this is a comparison: its numbers are in the groups difference, ratio and probability_*")
