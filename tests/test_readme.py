"""The README: its commands run, its quoted output is what they print, its files exist."""

import re
import sys

import pytest

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


def test_the_python_example_runs(readme, root, monkeypatch):
    monkeypatch.chdir(root)
    code = re.search(r"```python\n(.*?)```", readme, re.DOTALL)[1].replace("65_536", "1024")
    exec(compile(code, "README.md", "exec"), {})


def test_linked_files_exist(readme, root):
    links = re.findall(r"\]\((?!http)([^)#]+)", readme)
    assert len(links) >= 5
    assert [link for link in links if not (root / link).exists()] == []
