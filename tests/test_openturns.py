"""OpenTURNS's estimators on our own points. The package is in the group `bench` of the dependencies."""

import pytest

from gpustack_mc import salib_bridge
from gpustack_mc.design import make_design
from gpustack_mc.scenario import load_scenario
from gpustack_mc.sensitivities import Wanted, run_sensitivity

OUTPUTS = ("cost_rented_usd", "energy_mwh")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # SWIG types without __module__
def test_openturns_finds_our_indices_on_our_design():
    ot = pytest.importorskip("openturns")
    problem = load_scenario("llama-3-70b")
    ours = run_sensitivity("llama-3-70b", (), Wanted(outputs=OUTPUTS, scale="raw", regional=False, tornado=False),
                           samples=2**12, seed=3, with_files=False)  # fmt: skip
    values = salib_bridge.cross_sample(problem, make_design(2**12, seed=3))
    y = salib_bridge.evaluate(problem, values, OUTPUTS)
    names = salib_bridge.to_salib(problem)["names"]
    count = len(names)

    def in_blocks(rows):
        # SALib has A, the mixtures and B of each point together; OpenTURNS all of A, all of B, then the mixtures.
        by_point = rows.reshape(2**12, count + 2, -1)
        order = [0, count + 1, *range(1, count + 1)]
        return by_point[:, order].swapaxes(0, 1).reshape(-1, by_point.shape[2])

    design = ot.Sample(in_blocks(values))
    for name, row in zip(OUTPUTS, y.T, strict=True):
        output = ot.Sample(in_blocks((row - row.mean())[:, None]))
        first = ot.SaltelliSensitivityAlgorithm(design, output, 2**12).getFirstOrderIndices()
        total = ot.JansenSensitivityAlgorithm(design, output, 2**12).getTotalOrderIndices()
        for i, key in enumerate(names):
            found = ours["outputs"][name]["inputs"][key]
            # The same estimator of Jansen, but for the variance: that of A alone instead of A and B, which with 4,096
            # points is known to a few per cent.
            assert total[i] == pytest.approx(found["ST"], rel=0.05, abs=1e-3), (name, key)
            # Two estimators on the same points: their difference has an error of 1/sqrt(4096), at most.
            assert first[i] == pytest.approx(found["S1"], abs=1 / 64), (name, key)
