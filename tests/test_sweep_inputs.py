"""Scenarios made from templates against the same scenarios read in full."""

import numpy as np
import pytest

from gpustack_mc import catalog, priors
from gpustack_mc.design import make_design, points
from gpustack_mc.efficiency import draws, efficiency, planned_run, published_record
from gpustack_mc.errors import InputError
from gpustack_mc.facts import medians
from gpustack_mc.fits import utilization_predict as program
from gpustack_mc.mfu_tables import mfu_tables, quantile_table
from gpustack_mc.priors import Kernel
from gpustack_mc.propagation import propagate as propagate_one
from gpustack_mc.scenario import load_scenario, read_document
from gpustack_mc.sweep_inputs import Loader, applied, completed, terms_of
from gpustack_mc.sweep_model import Plan, batch_size, cube, points_of, propagate, stacked
from gpustack_mc.sweep_plans import plan_for
from gpustack_mc.sweep_spec import Axis, Sweep


def sweep_of(base: str, **axes) -> Sweep:
    keys = {key.replace("__", "."): values for key, values in axes.items()}
    made = tuple(
        Axis(key, (key,), (tuple(key.split(".")),), tuple((value,) for value in values)) for key, values in keys.items()
    )
    return Sweep("test", read_document(base), made, (), (), (), (), None, "")


GRIDS = {
    "numbers": (
        "llama-3-70b",
        dict(workload__params=[7e9, 4e11], workload__tokens=[1e12, 2e13], cluster__count=[64, 20_000]),
    ),
    "facts": (
        "llama-3-70b",
        dict(
            cluster__accelerator=["H100-SXM-80GB", "MI300X", "TPUv4"],
            site__region=["US-TX", "FR", "WORLD"],
            date=[2023, "2026-05"],
            workload__params=[1e9, 8e10],
        ),
    ),
    "stated": (
        "llama-3-70b",
        dict(
            inputs__mfu=[0.4, {"low": 0.3, "high": 0.5}],
            inputs__pue=[1.1, {"low": 1.1, "high": 1.4}],
            inputs__electricity_price=["70 USD/MWh", {"choice": [0.05, 0.1, 0.2]}],
            workload__params=[7e9, 4e11],
        ),
    ),
    "carried": (
        "llama-3-70b",
        dict(
            date=[2026, 2029],
            cluster__accelerator=["H100-SXM-80GB", "MI250X", "TPUv4"],
            inputs__lifetime=[3, {"low": 6, "high": 9}],
            workload__params=[7e9, 4e11],
        ),
    ),
    "moe": ("olmoe-1b-7b", dict(workload__active_params=[1e9, 5e9], cluster__precision=["bf16", "fp8"])),
    "checkpoints": (
        "llama-3-70b",
        dict(
            reliability__checkpoint_interval=["30 min", "best"],
            cluster__count=[64, 16_384],
            inputs__interruption_rate=[0.01, {"low": 0.01, "high": 0.1}],
        ),
    ),
    "phases": ("deepseek-v3", dict(cluster__count=[1024, 4096])),
    "a job that runs": ("bloom-176b-running", dict(cluster__count=[384, 512])),
    "own peak": (
        "llama-3-70b",
        dict(inputs__peak_flop_per_s=["800 TFLOP/s", "1.2 PFLOP/s"], workload__params=[7e9, 8e10]),
    ),
    "another population": (
        "llama-3-70b",
        dict(inputs__rental_price=[{"prior": "rental_price", "where": {"year": 2023}}], workload__params=[7e9, 8e10]),
    ),
}


@pytest.mark.parametrize("grid", GRIDS)
def test_a_template_gives_what_reading_in_full_gives(grid):
    base, axes = GRIDS[grid]
    loader = Loader(sweep_of(base, **axes))
    members = [loader.member(number) for number in range(loader.sweep.count)]
    for number, (member, kernels) in enumerate(zip(members, completed(members), strict=True)):
        problem = loader.problem(number)
        wanted = {key: priors.kernel(item.marginal) for key, item in problem.inputs.items()}
        for slot in member.group.slots:
            expected = wanted.get(slot) or wanted["params"]
            if slot == "mfu" and member.planned:
                continue  # test_mfu_tables
            assert kernels[slot].form == expected.form, slot
            for got, array in zip(kernels[slot].arrays, expected.arrays, strict=True):
                np.testing.assert_array_equal(got, array, err_msg=slot)
        assert member.asks == terms_of(problem)
        if member.planned:
            row = dict(member.planned.row)
            name = problem.file.cluster.accelerator
            chip = None if name == "other" else catalog.find_accelerator(name)
            middle = medians(problem.inputs)
            assert row == planned_run(problem.file, chip, middle, problem.year)
            assert member.planned.peak == middle["peak_flop_per_s"]


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        (dict(workload__params=[7e9, 7.0]), "below 10000"),
        (dict(cluster__count=[8, 8.5]), "whole number"),
        (dict(site__region=["US", "Atlantis"]), "Atlantis"),
        (dict(inputs__mfu=[0.4, 38]), "38% is written 0.38"),
        (dict(inputs__mfu=[0.4, 0]), "divides by it"),
        (dict(inputs__pue=[1.1, {"low": 1.4, "high": 1.1}]), "must be below"),
        (dict(inputs__electricity_price=["70 USD/MWh", "70 EUR/MWh"]), "EUR"),
        (dict(workload__active_params=[7e9, 7e12]), "is more than all"),
        (dict(workload__tokens__x=[1]), "no workload.tokens.x to change"),
    ],
)
def test_what_is_wrong_with_one_scenario_is_what_a_run_would_say(axes, message):
    loader = Loader(sweep_of("llama-3-70b", **axes))
    last = loader.sweep.count - 1
    for number in range(last):
        loader.member(number)
    with pytest.raises(InputError, match=message):
        loader.member(last)
    if last:
        loader.member(0)


def test_settings_change_a_copy():
    document = read_document("deepseek-v3")
    before = repr(document.data)
    changed = applied(document, [(("cluster", "count"), 1), (("workload", "phases", 0, "tokens"), 2e12)])
    assert repr(document.data) == before
    assert changed.data["cluster"]["count"] == 1 and changed.data["workload"]["phases"][0]["tokens"] == 2e12


# ---- predicted MFU ------------------------------------------------------------------------------------------------


def planned(name):
    problem = load_scenario(name)
    chip = catalog.find_accelerator(problem.file.cluster.accelerator)
    return problem, chip, planned_run(problem.file, chip, medians(problem.inputs), problem.year)


@pytest.mark.parametrize("name", ["llama-3-70b", "gpt-3", "deepseek-v3", "nanochat", "palm-540b"])
@pytest.mark.parametrize("clean", [False, True])
def test_mfu_tables_hold_the_mixture_of_the_posterior(name, clean):
    from scipy.special import ndtr

    problem, _, row = planned(name)
    peak = medians(problem.inputs)["peak_flop_per_s"]
    table = mfu_tables([row], [peak], clean)[0]
    fit = catalog.fit_record("utilization")
    record = program.CLEAN if clean else published_record(fit["constants"])
    found = program.predict(draws(), [row], fit["constants"], fit["settings"], record=record).log_mfu
    w, m, s = found.weights[0], found.means[0] + np.log(row["peak_16bit_flop_per_s"] / peak), found.sds[0]
    z = np.linspace(-priors.TABLE_Z, priors.TABLE_Z, priors.TABLE_SIZE)
    share = ndtr((np.log(table)[:, None] - m) / s) @ w / (ndtr(-m / s) @ w)
    assert (np.diff(table) >= 0).all() and table[-1] <= 1
    # A tenth of the error that 16,384 draws have: sqrt(p (1 - p) / n) is at most 0.004.
    np.testing.assert_allclose(share, ndtr(z), atol=4e-4)


def test_mfu_tables_agree_with_the_prediction_of_one_run():
    problem, chip, row = planned("llama-3-70b")
    middle = medians(problem.inputs)
    one = efficiency(problem.file, chip, middle, problem.year)
    table = mfu_tables([row], [middle["peak_flop_per_s"]], False)[0]
    z = np.linspace(-priors.TABLE_Z, priors.TABLE_Z, priors.TABLE_SIZE)
    inside = np.abs(z) < 2
    # `efficiency` makes its table of points, whose distribution function is off by up to 1e-3: 0.1% of MFU here.
    np.testing.assert_allclose(table[inside], np.array(one.mfu.parameters["values"])[inside], rtol=2e-3)


def test_one_normal_component_is_a_lognormal():
    z = np.linspace(-priors.TABLE_Z, priors.TABLE_Z, priors.TABLE_SIZE)
    table = quantile_table(np.ones(1), np.array([-3.0]), np.array([0.3]))
    # Truncation at one lies ten standard deviations out; what is left is the rounding of ndtri.
    np.testing.assert_allclose(table, np.exp(-3.0 + 0.3 * z), rtol=1e-6)


# ---- the batch ----------------------------------------------------------------------------------------------------

NAMES = ("deepseek-v3", "llama-3.1-405b-checkpoints", "bloom-176b-running", "olmoe-1b-7b")


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_gives_the_draws_of_a_single_run(name):
    """Formulas, streams, copulas, phases and programs."""
    design = make_design(256, seed=3)
    loader = Loader(sweep_of(name, **{"date": [2024]}))
    problem = loader.problem(0)
    loader.simple = False  # read in full, so that the MFU table is the very same
    member = loader.member(0)
    plan = plan_for(member.group, [member], {}, member.group.outputs)
    got = run([member.kernels], member.group, plan, design)[0]
    np.testing.assert_allclose(got, propagate_one(problem, design).outputs, rtol=1e-12)


def run(kernels, group, plan, design):
    streams = dict(zip(group.slots, group.streams, strict=True))
    numbers = [streams[slot] for slot in plan.varying]
    u = np.concatenate(
        [points(design, plan.varying, numbers, r, 0, design.length) for r in range(design.replicates)], axis=1
    )
    places = [plan.varying.index(key) for key in group.correlated]
    matrix = np.frombuffer(group.correlation).reshape(len(places), len(places))
    arrays = stacked(plan, kernels, batch_size(design.samples))
    found = propagate(plan, arrays, points_of(plan, {}, cube(u, places, matrix)))
    return np.stack(found, axis=1)


def test_scenarios_of_many_forms_share_a_shape_and_keep_their_draws():
    """The fixed, the lognormal, the tabulated and the discrete value of one input, beside each other."""
    design = make_design(256, seed=0)
    values = [1.2, {"low": 1.1, "high": 1.4}, {"dist": "beta", "a": 2, "b": 3, "low": 1, "high": 2},
              {"choice": [1.1, 1.2, 1.5], "weights": [1, 2, 1]}, {"sample": [1.05, 1.1, 1.2, 1.3, 1.7]}]  # fmt: skip
    loader = Loader(sweep_of("llama-3-70b", inputs__pue=values, inputs__mfu=[0.4]))
    members = [loader.member(number) for number in range(len(values))]
    assert len({member.group for member in members}) == 1
    plan = plan_for(members[0].group, members, {}, members[0].group.outputs)
    assert dict(plan.slots)["pue"] == ("discrete", "lognormal", "table")
    got = run(completed(members), members[0].group, plan, design)
    for k in range(len(values)):
        np.testing.assert_allclose(got[k], propagate_one(loader.problem(k), design).outputs, rtol=1e-12)


def test_the_last_batch_is_padded_with_its_last_scenario():
    plan = Plan("run", ("co2e_t",), (("pue", ()),), (), ())
    found = stacked(
        plan, [{"pue": Kernel("fixed", (np.asarray(1.1),))}, {"pue": Kernel("fixed", (np.asarray(1.2),))}], 4
    )
    assert found["pue"]["fixed"].tolist() == [1.1, 1.2, 1.2, 1.2]
