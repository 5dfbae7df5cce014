"""The scenario to start from: sound as it is and with every option switched on; never overwrites."""

import re

import pytest

from gpustack_mc import starter
from gpustack_mc.cli import main
from gpustack_mc.scenario import load_scenario


def test_it_is_sound_as_it_is():
    problem = load_scenario(starter.TEMPLATE)
    assert problem.inputs["params"].origin == "entered" and problem.inputs["mfu"].origin == "fitted"


def test_it_is_sound_with_every_option(scenario_file):
    text = starter.TEMPLATE.read_text(encoding="utf-8")
    everything = re.sub(r"(?m)^( *)#(?=\w|  [-\w])", r"\1", text)
    assert everything.count("#") < text.count("#") - 20
    problem = load_scenario(scenario_file(everything))
    assert problem.inputs["pue"].origin == "entered" and set(problem.questions) == {"budget", "deadline", "carbon_cap"}
    assert problem.correlated == ("mfu", "capex")


def test_init_writes_and_never_overwrites(tmp_path, monkeypatch, capsys):
    def call(*arguments):
        with pytest.raises(SystemExit) as stop:
            main(["init", *arguments])
        return stop.value.code, *capsys.readouterr()

    monkeypatch.chdir(tmp_path)
    assert call() == (0, "plan.yaml: change the values, then gpustack-mc run plan.yaml\n", "")
    (tmp_path / "plan.yaml").write_text("mine")
    code, out, err = call()
    assert code == 2 and out == "" and err.startswith("plan.yaml: this is there already and is left as it is.")
    assert (tmp_path / "plan.yaml").read_text() == "mine"
    assert call("new/place.yaml")[0] == 0 and (tmp_path / "new" / "place.yaml").exists()
    assert call(".")[0] == 2
