"""The README: its commands run, its quoted output is what they print, its files exist."""

import json
import re
import sys

import pytest

from gpustack_mc.run import run_scenario
from gpustack_mc.scenario import load_scenario


@pytest.fixture(scope="module")
def readme(root):
    return (root / "README.md").read_text(encoding="utf-8")


def numbers(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*\.?\d*", text)]


def test_quoted_output_is_what_the_command_prints(readme, root):
    sys.path.insert(0, str(root / "docs"))
    try:
        import refresh
    finally:
        sys.path.pop(0)
    found = refresh.BLOCK.search(readme)
    printed = refresh.output_of(found["command"], pictures=False)
    # The same words; digits may differ by a unit of the last place on another machine.
    words = re.compile(r"[\d.,█]+")
    quoted_words, printed_words = (words.sub("", text).split() for text in (found["output"], printed))
    assert quoted_words == printed_words
    assert numbers(printed) == pytest.approx(numbers(found["output"]), rel=0.1, abs=0.02)


def test_the_example_scenario_is_sound(readme, scenario_file):
    text = re.search(r"```yaml\n(.*?)```", readme, re.DOTALL)[1]
    problem = load_scenario(scenario_file(text))
    assert problem.inputs["electricity_price"].marginal.parameters["value"] == pytest.approx(0.07)


def test_the_python_examples_run(readme, root, monkeypatch, tmp_path):
    (tmp_path / "scenarios").symlink_to(root / "scenarios")
    monkeypatch.chdir(tmp_path)
    first, second = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    exec(compile(first.replace("65_536", "1024"), "README.md", "exec"), {})
    run_scenario("scenarios/llama-3-70b.yaml", samples=1024, pictures=[])
    exec(compile(second, "README.md", "exec"), {})


def test_the_calibration_table_is_the_published_one(readme, root):
    found = json.loads((root / "reports" / "validation" / "validation.json").read_text(encoding="utf-8"))
    rows = {"gpustack-mc": found["metrics"], "6ND at 40% MFU": found["baselines"]["rule_6nd_40"],
            "median of the other teams": found["baselines"]["median_of_other_families"]}  # fmt: skip
    for name, m in rows.items():
        shares = f"{m['coverage']['0.9']:.0%} | {m['mdape']:.0%}"
        assert f"| {name} | {shares} | {m['crps_log']:.3f} | {m['median_p95_over_p5']:.1f} |" in readme
    assert f"on {found['n']} published runs" in readme


def test_linked_files_exist(readme, root):
    links = re.findall(r"\]\((?!http)([^)#]+)", readme)
    assert len(links) >= 5
    assert [link for link in links if not (root / link).exists()] == []
