"""Opening a result: what was written comes back, and a stranger's file is refused in one line."""

import json
import os

import h5py
import pytest
import xarray as xr

from gpustack_mc import reopening, report, simulate, summarizing
from gpustack_mc.cli import main
from gpustack_mc.errors import InputError
from gpustack_mc.reopening import open_result, result_of
from gpustack_mc.result import SCHEMA_VERSION, write


def test_a_result_comes_back_as_it_was(llama):
    tree, path = llama
    again = open_result(path)
    assert again.identical(tree)
    assert result_of(path).identical(tree)


def test_a_published_figure_may_be_of_a_part_that_only_some_scenarios_state(tmp_path):
    """Goodput is an output where failures are stated, and this scenario has its published value."""
    tree = simulate("llama-3.1-405b-checkpoints", samples=256)
    assert "expected_goodput" in json.loads(tree.attrs["published"])
    write(tree, tmp_path / "result.nc")
    assert open_result(tmp_path / "result.nc").identical(tree)
    assert "best_checkpoint_interval" in report.page(tree)


def altered(tree, path, change):
    copy = tree.copy(deep=True)
    change(copy)
    write(copy, path)
    return path


def refusal(path) -> InputError:
    with pytest.raises(InputError) as caught:
        open_result(path)
    assert len(str(caught.value).splitlines()) == 1 and caught.value.fix
    return caught.value


@pytest.mark.parametrize("share", [0.01, 0.5, 0.9, 0.999])
def test_a_file_that_is_cut_off(llama, tmp_path, share):
    whole = llama[1].read_bytes()
    path = tmp_path / "cut.nc"
    path.write_bytes(whole[: int(share * len(whole))])
    assert refusal(path).code == "damaged-result"


def test_files_of_others(tmp_path):
    text, empty, other, nothing = (tmp_path / name for name in ("text.nc", "empty.nc", "other.nc", "none.nc"))
    text.write_text("not a result")
    empty.touch()
    xr.Dataset({"a": ("x", [1.0, 2.0])}).to_netcdf(other, engine="h5netcdf")
    assert [refusal(path).code for path in (text, empty, other)] == ["not-a-result"] * 3
    assert refusal(nothing).code == "no-such-file"
    assert refusal(tmp_path).code == "is-a-folder"


def test_a_file_of_two_gigabytes_is_refused_unread(llama, tmp_path):
    path = tmp_path / "huge.nc"
    path.write_bytes(llama[1].read_bytes())
    os.truncate(path, 2 * 10**9)
    error = refusal(path)
    assert error.code == "too-large" and "2.0 GB" in error.message


def test_a_small_file_that_claims_to_be_huge(llama, tmp_path):
    path = tmp_path / "bomb.nc"
    path.write_bytes(llama[1].read_bytes())
    with h5py.File(path, "r+") as file:
        file.create_dataset("bomb", shape=(10**6, 10**6), dtype="f8", chunks=(1000, 1000), compression="gzip")
    assert path.stat().st_size < 10**7
    assert refusal(path).code == "too-large"


def test_another_version(llama, tmp_path):
    def newer(tree):
        tree.attrs["gpustack_mc_schema"] = SCHEMA_VERSION + 1

    error = refusal(altered(llama[0], tmp_path / "newer.nc", newer))
    assert error.code == "result-version" and f"format {SCHEMA_VERSION + 1}" in error.message


def set_attribute(name, value):
    def change(tree):
        tree.attrs[name] = value

    return change


def without_output(tree):
    tree["prior_predictive"].dataset = tree["prior_predictive"].to_dataset().drop_vars("energy_mwh")


def without_group(tree):
    del tree["statistics"]


def strange_source(tree):
    tree["prior"]["pue"].attrs["sources"] = json.dumps([{"title": 3}])


def strange_input(tree):
    tree["prior"].dataset = tree["prior"].to_dataset().rename(pue="<b>pue")


def attribute_of(group, name, attribute, value):
    def change(tree):
        tree[group][name].attrs[attribute] = value

    return change


def without(group, name):
    def change(tree):
        tree[group].dataset = tree[group].to_dataset().drop_vars(name)

    return change


def two_values(tree):
    constants = tree["constant_data"].to_dataset()
    tree["constant_data"].dataset = constants.assign(tdp=("x", [1.0, 2.0], constants["tdp"].attrs))


def not_finite(tree):
    values = tree["statistics"]["value"].copy(deep=True)
    values.loc[{"variable": "energy_mwh", "statistic": "q0.95"}] = float("nan")
    tree["statistics"].dataset = tree["statistics"].to_dataset().assign(value=values)


def half_a_job(tree):
    tree["so_far"] = xr.DataTree(tree["prior_predictive"].to_dataset()[["training_days"]])


HALF_A_CHARACTER = json.dumps([{"title": "\ud800", "url": ""}])
ASKED = '[["x", [{"output": "%s", "op": "%s", "limit": %s, "name": ""}]]]'


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (set_attribute("start", "tomorrow"), "the attribute start"),
        (set_attribute("start", 3), "the attribute start"),
        (set_attribute("overrides", '{"mfu": 1}'), "the attribute overrides"),
        (set_attribute("pack_sha256", 3), "the attribute pack_sha256"),
        (set_attribute("seed", -1), "the attribute seed"),
        (set_attribute("notes", "[" * 100_000), "the attribute notes"),
        (set_attribute("asked", ASKED % ("colour", "<=", 3)), "known conditions"),
        (set_attribute("asked", ASKED % ("energy_mwh", "=", 3)), "known conditions"),
        (set_attribute("asked", ASKED % ("energy_mwh", "<=", "NaN")), "known conditions"),
        (set_attribute("asked", '[["x", []]]'), "known conditions"),
        (attribute_of("prior", "pue", "sources", HALF_A_CHARACTER), "the origin of pue"),
        (attribute_of("prior", "pue", "missed", "[3]"), "the origin of pue"),
        (attribute_of("prior_predictive", "energy_mwh", "long_name", 3), "the unit and meaning of energy_mwh"),
        (attribute_of("prior_predictive", "energy_mwh", "scope", [1, 2]), "the unit and meaning of energy_mwh"),
        (two_values, "the value of tdp"),
        (without("constant_data", "tokens"), "the input tokens"),
        (not_finite, "its statistics"),
        (half_a_job, "a part of the job that runs"),
        (set_attribute("notes", "no json"), "the attribute notes"),
        (set_attribute("basis", "[]"), "the attribute basis"),
        (set_attribute("seed", "zero"), "the attribute seed"),
        (set_attribute("ownership", "stolen"), "a known ownership"),
        (set_attribute("questions", '{"colour": 3}'), "known questions"),
        (set_attribute("published", '{"energy_mwh": {"value": "many"}}'), "sound published figures"),
        (without_output, "the output energy_mwh"),
        (without_group, "the group statistics"),
        (strange_source, "the origin of pue"),
        (strange_input, "a known meaning for the input '<b>pue'"),
    ],
)
def test_what_is_missing_is_named(llama, tmp_path, change, said):
    error = refusal(altered(llama[0], tmp_path / "altered.nc", change))
    assert error.code == "damaged-result" and error.message == f"this file lacks {said}."


def test_text_that_is_not_utf8_is_found_wherever_it_stands():
    """h5py reads such bytes as surrogates, which no page can be written with."""
    sound = xr.DataTree.from_dict({"/a": xr.Dataset({"x": ((), 1.0, {"unit": "m³"})}, attrs={"name": "café"})})
    assert not reopening._has_broken_text(sound)
    broken = sound.copy(deep=True)
    broken["a"].attrs["name"] = "caf\udce9"
    assert reopening._has_broken_text(broken)
    sound["a"]["x"].attrs["unit"] = "\udcb2"
    assert reopening._has_broken_text(sound)


def test_whatever_is_missing_is_refused_or_does_not_matter(llama, tmp_path):
    """Without any one attribute or variable a file is refused, or its report can be made: nothing breaks later."""
    tree, _ = llama
    drawn = report.figures.interval_plot(tree)

    def holds(changed):
        try:
            found = open_result(altered(changed, tmp_path / "without.nc", lambda tree: None))
        except InputError:
            return
        report.values(found, summarizing.summarise(found), drawn)

    for name in tree.attrs:
        less = tree.copy()
        del less.attrs[name]
        holds(less)
    for group, name in (("prior", "pue"), ("constant_data", "tdp")):
        for attribute in tree[group][name].attrs:
            less = tree.copy(deep=True)
            del less[group][name].attrs[attribute]
            holds(less)
    for group in ("sensitivity", "statistics"):
        for name in tree[group].data_vars:
            less = tree.copy()
            less[group].dataset = tree[group].to_dataset().drop_vars(name)
            holds(less)


def test_set_belongs_to_scenarios(llama):
    with pytest.raises(InputError, match="--set changes a scenario, and this is a result"):
        result_of(llama[1], ["mfu=0.4"])


def test_the_command_refuses_in_one_line(tmp_path, capsys):
    path = tmp_path / "text.nc"
    path.write_text("not a result")
    with pytest.raises(SystemExit) as stop:
        main(["report", str(path)])
    out, err = capsys.readouterr()
    assert stop.value.code == 2 and out == ""
    assert err == f"{path}: this file is not a result of gpustack-mc. `gpustack-mc run` writes result.nc.\n"
    assert not (tmp_path / "report.html").exists()
