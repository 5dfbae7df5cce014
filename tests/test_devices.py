"""Runs on several devices, which JAX makes of one processor, against one device."""

import os
import subprocess
import sys

import numpy as np
import pytest

# Streams most of the draws, so that all kernels run.
PROGRAM = """
import sys
import jax, numpy as np
from gpustack_mc import compilation, sampling
from gpustack_mc.design import make_design
from gpustack_mc.propagation import propagate, simulate
from gpustack_mc.scenario import load_scenario
from gpustack_mc.cube import ModelCube
from gpustack_mc.group_indices import group_indices

sampling.KEPT_DRAWS, sampling.ANALYSED_POINTS = 2**14, 2**12
assert jax.local_device_count() == int(sys.argv[2])
compilation.use_cache()
problem = load_scenario("llama-3-70b")
found = simulate(problem, make_design(2**15, replicates=2))
cube = ModelCube(problem, ["cost_owned_usd", "co2e_t"])
groups = {"all": cube.names, "first": cube.names[:1]}
indices, _ = group_indices(cube, make_design(2**11, replicates=2), groups, np.zeros(2))
divided = sum(len(key[-1]) > 1 for key in compilation._memory)
np.savez(sys.argv[1], inputs=found.inputs, outputs=found.outputs, statistics=found.output_statistics.rows(),
         total=found.sensitivity.raw.total, first=found.sensitivity.log.first, groups=indices.total,
         divided=divided, compiled=compilation.compilations)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("devices")

    def call(devices):
        path = folder / f"{devices}.npz"
        flags = f"--xla_force_host_platform_device_count={devices}"
        known = {"XLA_FLAGS": flags, "GPUSTACK_MC_CACHE": str(folder / "cache"), "JAX_PLATFORMS": "cpu"}
        subprocess.run([sys.executable, "-c", PROGRAM, str(path), str(devices)], env=os.environ | known, check=True)
        return np.load(path)

    return call


def test_two_devices_give_the_results_of_one(run):
    one, two = run(1), run(2)
    assert (one["divided"], two["divided"]) == (0, 5)
    for name in ("inputs", "outputs", "statistics", "total", "first", "groups"):
        # Each point goes through the same operations; a compiler may take another order of additions for other lengths.
        np.testing.assert_allclose(two[name], one[name], rtol=1e-12, atol=1e-12, err_msg=name)
    # What was compiled for two devices is taken from the cache for two devices.
    assert two["compiled"] > 0 and run(2)["compiled"] == 0
