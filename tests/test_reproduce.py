"""A result is computed again from its file alone, and a difference is found wherever it is."""

import json

import pytest

from gpustack_mc.cli import main
from gpustack_mc.errors import InputError
from gpustack_mc.reproduce import TOLERANCE, reproduce, text
from gpustack_mc.result import write
from gpustack_mc.run import run_scenario

LAID_OVER = ("mfu=0.4", 'questions.budget="15 MUSD"', "cluster.count=4096", "mfu=0.41")


def altered(tree, path, change):
    copy = tree.copy(deep=True)
    change(copy)
    write(copy, path)
    return path


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    """A result that only what was laid over the file explains, the last value of a key winning."""
    out = tmp_path_factory.mktemp("changed")
    done = run_scenario("llama-3-70b", LAID_OVER, samples=1000, seed=7, method="lhs", out=out, pictures=())
    return done.tree, out / "result.nc"


def test_the_same_bytes_from_the_file_alone(changed):
    tree, path = changed
    assert tree["constant_data"]["mfu"] == 0.41
    done = reproduce(path)
    assert done.verdict == "identical" and done.found["changed"] == {}
    # All inputs, all outputs, the statistics and both indices were held against each other.
    held = sum(len(tree[group].data_vars) for group in ("prior", "prior_predictive", "constant_data"))
    assert done.found["variables"] == held + 3


@pytest.mark.parametrize("how", [{"precision": "float32"}, {"tolerance": 0.3}])
def test_precision_and_tolerance_are_those_of_the_result(tmp_path, how):
    run_scenario("nanochat", samples=1024, out=tmp_path, pictures=(), **how)
    done = reproduce(tmp_path / "result.nc")
    # Taken further in steps or at once: sums are put together in another order.
    assert done.verdict in ("identical", "equal")


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: tree["prior_predictive"]["energy_mwh"].values.__setitem__((0, 5), 1.0),
        lambda tree: tree["prior"]["pue"].values.__imul__(1 + 1e-6),
        lambda tree: tree["statistics"]["value"].values.__imul__(1 - 1e-6),
        lambda tree: tree["sensitivity"]["ST"].values.__iadd__(1e-6),
        lambda tree: tree.attrs.__setitem__("seed", 8),
        lambda tree: tree.attrs.__setitem__("overrides", json.dumps(LAID_OVER[:2])),
    ],
    ids=["one draw", "an input", "a statistic", "an index", "the seed", "the scenario"],
)
def test_any_difference_is_found(changed, tmp_path, change):
    done = reproduce(altered(changed[0], tmp_path / "other.nc", change))
    assert done.verdict == "different" and done.found["deviating"]
    assert "NOT the same" in text(done)


def test_rounding_of_another_machine_is_no_difference(changed, tmp_path):
    def rounded(tree):
        tree["prior_predictive"]["energy_mwh"].values[...] *= 1 + TOLERANCE / 100

    done = reproduce(altered(changed[0], tmp_path / "rounded.nc", rounded))
    assert done.verdict == "equal" and 0 < done.found["largest_relative_deviation"] < TOLERANCE


def test_what_has_changed_since_is_named(changed, tmp_path):
    def older(tree):
        tree.attrs["versions"] = json.dumps(json.loads(tree.attrs["versions"]) | {"jax": "0.1.0"})
        tree.attrs["priors_sha256"] = "0" * 64

    done = reproduce(altered(changed[0], tmp_path / "older.nc", older))
    assert set(done.found["changed"]) == {"jax", "priors"}
    assert "jax: 0.1.0 when it was written" in text(done)


def test_a_result_of_another_pack(changed, tmp_path):
    def packed(tree):
        tree.attrs["pack_sha256"] = "ab" * 32

    with pytest.raises(InputError, match=r"abababababab.*--priors") as caught:
        reproduce(altered(changed[0], tmp_path / "packed.nc", packed))
    assert caught.value.code == "other-pack"


@pytest.mark.parametrize("name", ["overrides", "scenario_file", "pack_sha256"])
def test_a_result_that_does_not_say_how_it_was_made(changed, tmp_path, name):
    with pytest.raises(InputError, match="as it was written"):
        reproduce(altered(changed[0], tmp_path / "bare.nc", lambda tree: tree.attrs.pop(name)))


def test_the_command_exits_with_3_where_numbers_differ(changed, tmp_path, capsys):
    def moved(tree):
        tree["prior"]["pue"].values[0, 0] = 2.0

    with pytest.raises(SystemExit) as stop:
        main(["reproduce", str(changed[1])])
    assert stop.value.code == 0 and "same bytes" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", str(altered(changed[0], tmp_path / "moved.nc", moved)), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert stop.value.code == 3 and found["verdict"] == "different" and set(found["deviating"]) == {"prior/pue"}
