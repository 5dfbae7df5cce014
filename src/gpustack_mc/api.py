"""What Python code uses: a scenario in, labelled arrays with units out.

>>> from gpustack_mc.api import load_scenario, sensitivity, simulate, summary
>>> tree = simulate(load_scenario("llama-3-70b"), samples=1024)
>>> summary(tree)["cost_owned_usd"].attrs["units"]
'USD'
"""

from pathlib import Path
from typing import Literal

import xarray as xr

from gpustack_mc.design import make_design
from gpustack_mc.problem import Problem
from gpustack_mc.propagation import simulate as _propagate
from gpustack_mc.reopening import open_result
from gpustack_mc.result import to_datatree
from gpustack_mc.scenario import load_scenario

__all__ = ["load_scenario", "open_result", "sensitivity", "simulate", "summary"]


def simulate(
    scenario: Problem | str | Path,
    *,
    samples: int = 65_536,
    seed: int = 0,
    method: Literal["sobol", "lhs", "random"] = "sobol",
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
    return to_datatree(_propagate(problem, make_design(samples, method, seed)))


def summary(tree: xr.DataTree) -> xr.Dataset:
    """Return mean, standard deviation and quantiles of every variable, each with its Monte Carlo error.

    Parameters
    ----------
    tree : xarray.DataTree
        From `simulate` or `open_result`.

    Returns
    -------
    xarray.Dataset
        One variable for each input that varies and each output, in its own unit, over the dimension ``statistic``:
        ``mean``, ``sd``, ``q0.05``, ``q0.25``, ``q0.5``, ``q0.75``, ``q0.95`` and, as ``*_error``, the standard errors.
        They are over all draws, also over those that a large run does not keep.
    """
    table = tree["statistics"]["value"]
    found = {}
    for key in table["variable"].values:
        group = "prior" if key in tree["prior"].data_vars else "prior_predictive"
        about = {name: tree[group][key].attrs[name] for name in ("units", "long_name")}
        found[str(key)] = table.sel(variable=key, drop=True).assign_attrs(about)
    return xr.Dataset(found, attrs={"interval": "equal-tailed", "comment": tree["statistics"].attrs.get("comment", "")})


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
        No input varies, so that there are no indices.
    """
    if "sensitivity" not in tree.children:
        raise ValueError("no input varies, so nothing can be sensitive to it")
    return tree["sensitivity"].to_dataset().sel(scale=scale, drop=True)
