"""What a type checker knows of the public functions, which are loaded when they are first asked for.

`.ci/run` checks it, in the checkout and against the installed wheel: an ignore that ignores nothing is an error, and so
is a type that is not the one asserted. Nobody runs it.
"""

from typing import assert_type

import xarray as xr

import gpustack_mc as mc
from gpustack_mc.problem import Problem

scenario = mc.load_scenario("llama-3-70b")
assert_type(scenario, Problem)
assert_type(scenario.name, str)

tree = mc.simulate(scenario, samples=1024, seed=1, method="lhs")
assert_type(tree, xr.DataTree)
assert_type(mc.open_result("reports/llama-3-70b/result.nc"), xr.DataTree)
assert_type(mc.summary(tree), xr.Dataset)
assert_type(mc.sensitivity(tree, scale="log"), xr.Dataset)
assert_type(mc.compare({"here": scenario, "there": "bloom-176b"}, coupling="independent"), xr.DataTree)
mc.table(tree).to_html()

mc.simulate(scenario, method="sobl")  # type: ignore[arg-type]  # no such method
mc.simulate(scenario, sample=1024)  # type: ignore[call-arg]  # samples
mc.sensitivity(tree, scale="ln")  # type: ignore[arg-type]  # raw or log
mc.compare(scenario)  # type: ignore[arg-type]  # at least two
mc.simulated(scenario)  # type: ignore[attr-defined]  # a misspelt function
