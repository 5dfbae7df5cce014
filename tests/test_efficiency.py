"""MFU and goodput of a scenario: what is stated counts, the parts multiply to the joint prediction."""

import numpy as np
import pytest

from gpustack_mc import catalog, priors
from gpustack_mc.efficiency import draws, efficiency, planned_run
from gpustack_mc.fits import utilization_predict as program
from gpustack_mc.scenario import load_scenario

BASE = """\
schema_version: 1
name: Test
workload: {params: 7e9, tokens: 2e12}
cluster: {accelerator: H100-SXM-80GB, count: 512}
"""


@pytest.fixture
def band(scenario_file):
    def found(name: str, *overrides: str) -> np.ndarray:
        problem = load_scenario(scenario_file(BASE), overrides)
        return priors.quantiles(problem.inputs[name].marginal, [0.05, 0.5, 0.95])

    return found


def middle_of(problem):
    return {key: float(priors.quantiles(item.marginal, [0.5])[0]) for key, item in problem.inputs.items()}


def test_independent_parts_reproduce_the_joint_prediction(scenario_file):
    """MFU and goodput enter the model as two independent inputs; their product must be the fitted utilisation."""
    problem = load_scenario(scenario_file(BASE))
    chip = catalog.find_accelerator("H100-SXM-80GB")
    found = efficiency(problem.file, chip, middle_of(problem), None)
    fit = catalog.fit_record("utilization")
    record = program.Record(fit["constants"]["share_loose_record"], fit["constants"]["share_compute_only"])
    row = planned_run(problem.file, chip, middle_of(problem), None)
    joint = program.predict(draws(), [row], fit["constants"], fit["settings"], record=record).log_utilization
    u = (np.arange(2000) + 0.5) / 2000
    mfu, goodput = (priors.quantiles(part, u) for part in (found.mfu, found.goodput))
    product = np.sort(np.outer(mfu, goodput).ravel())
    for p in (0.05, 0.5, 0.95):
        # Their correlation in the posterior is -0.015, which moves these quantiles by about 1%.
        assert np.quantile(product, p) == pytest.approx(float(np.exp(joint.quantile(p)[0])), rel=0.015)


def test_what_is_stated_moves_the_prediction(band):
    plain = band("mfu")[1]
    assert band("mfu", "workload.activation_recompute=full")[1] < plain
    assert band("mfu", "workload.flash_attention=false")[1] < plain
    assert band("mfu", "cluster.accelerator=A100-SXM-80GB")[1] != plain
    assert band("mfu", "workload.active_params=2e9")[1] < plain  # a mixture of experts


def test_exact_books_promise_more_and_narrower(band):
    published, clean = (band("goodput", f"accounting={kind}") for kind in ("published", "clean"))
    assert clean[1] > published[1]


def test_fp8_is_counted_against_its_own_peak(band):
    bf16, fp8 = band("mfu")[1], band("mfu", "cluster.precision=fp8")[1]
    # The fp8 peak is twice as high, and fp8 runs reach 1.36 times the bf16 speed at the median of the fit.
    assert 0.5 < fp8 / bf16 < 0.85


def test_an_unknown_generation_is_wider(band):
    stated = ["cluster.accelerator=other", "peak_flop_per_s=989e12", "tdp=700", "capex=20000", "rental_price=1.5",
              "serving_throughput=300", "host_power=200"]  # fmt: skip
    known, unknown = (np.log(band("mfu", *more)) for more in ([], stated))
    assert unknown[2] - unknown[0] > known[2] - known[0]


def test_shares_stay_shares(band):
    for name in ("mfu", "goodput"):
        assert 0 < band(name)[0] < band(name)[2] <= 1
