"""README and documentation: commands run, quoted output is what they print, linked files exist."""

import contextlib
import importlib.util
import io
import json
import re
import shlex
from pathlib import Path

import pytest

from gpustack_mc.cli import main
from gpustack_mc.run import run_scenario
from gpustack_mc.scenario import load_scenario
from gpustack_mc.sweep_spec import read_sweep

_SPEC = importlib.util.spec_from_file_location("refresh", Path(__file__).parents[1] / "docs" / "refresh.py")
refresh = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(refresh)


@pytest.fixture(scope="module")
def readme(root):
    return (root / "README.md").read_text(encoding="utf-8")


def numbers(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*\.?\d*", text)]


def quoted_pages():
    return [page for page in refresh.pages() if refresh.BLOCK.search(page.read_text(encoding="utf-8"))]


# Its fifty commands would take half as long as all other tests; below its figures are held without running them.
QUESTIONS = refresh.ROOT / "docs" / "questions.md"


# The commands of these pages run as a reader runs them, each in a Python of its own; those of the others in this one.
AS_PROCESSES = ["README.md", "docs/how-to/cite.md"]


class HereFolder(refresh.Folder):
    """A folder whose commands run in this process: same command line, no start of Python and no second compilation."""

    def run(self, command):
        printed = io.StringIO()
        with pytest.MonkeyPatch.context() as patched, contextlib.redirect_stdout(printed):
            patched.chdir(self.path)
            for name, value in refresh.SCREEN.items():
                patched.setenv(name, value)
            with pytest.raises(SystemExit) as stop:
                main(shlex.split(command)[1:])
        assert not stop.value.code, command
        return printed.getvalue()


def name_of(page):
    return page.relative_to(refresh.ROOT).as_posix()


def test_pages_that_run_as_processes_quote_commands():
    assert set(AS_PROCESSES) <= {name_of(page) for page in quoted_pages()}


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=[pytest.mark.slow] if p == QUESTIONS else [], id=name_of(p)) for p in quoted_pages()],
)
def test_quoted_output_is_what_the_command_prints(page):
    # The same words; digits may differ by a unit of the last place on another machine.
    words = re.compile(r"[\d.,█]+")
    with (refresh.Folder if name_of(page) in AS_PROCESSES else HereFolder)() as folder:
        for found in refresh.BLOCK.finditer(page.read_text(encoding="utf-8")):
            printed = folder.output_of(found["command"])
            quoted_words, printed_words = (words.sub("", text).split() for text in (found["output"], printed))
            assert quoted_words == printed_words, found["command"]
            assert numbers(printed) == pytest.approx(numbers(found["output"]), rel=0.1, abs=0.02)


def test_public_figures_of_the_questions_are_quoted_as_the_scenarios_state_them():
    """Every figure that a scenario states for an output of a quoted command is quoted, and lies where it is said to."""
    text = QUESTIONS.read_text(encoding="utf-8")
    asked = re.findall(r"^### (\d+)\. ", text, re.MULTILINE)
    assert len(asked) == len(set(asked)) == text.count("**Answer.**") == 28
    held = 0
    for block in refresh.BLOCK.finditer(text):
        found = re.match(r"gpustack-mc run (\S+) .*--outputs (\S+)", block["command"])
        if not found or " --set " in block["command"] or " | " in block["command"]:
            continue
        problem = load_scenario(found[1])
        for name in set(found[2].split(",")) & set(problem.published):
            figure = problem.published[name]
            side = "outside" if figure.outside else "inside"
            assert re.search(rf"^  {name} .*, {side} the 90% interval.*{re.escape(figure.source.title)}",
                             block["output"], re.MULTILINE), (block["command"], name)  # fmt: skip
            held += 1
    assert held > 25


@pytest.mark.parametrize("page", refresh.pages(), ids=name_of)
def test_quoted_commands_exist(page):
    from gpustack_mc.cli import cli

    # In code, at the start of a line or of an inline quotation; "gpustack-mc developers" are no command.
    quoted = "\n".join(re.findall(r"`[^`]+`|```.*?```", page.read_text(encoding="utf-8"), re.DOTALL))
    for command in re.findall(r"^`?(?:uv run )?gpustack-mc ([a-z]+)", quoted, re.MULTILINE):
        assert command in cli.commands, command


def test_the_example_scenario_is_sound(readme, scenario_file):
    text = re.search(r"```yaml\n(.*?)```", readme, re.DOTALL)[1]
    problem = load_scenario(scenario_file(text))
    assert problem.inputs["electricity_price"].marginal.parameters["value"] == pytest.approx(0.07)


def test_the_scenarios_of_the_documentation_are_sound(scenario_file):
    texts = [
        text
        for page in refresh.pages()
        for text in re.findall(r"```yaml\n(schema_version.*?)```", page.read_text("utf-8"), re.DOTALL)
    ]
    assert len(texts) >= 2
    for text in texts:
        is_sweep = re.search("^base:", text, re.MULTILINE)
        (read_sweep if is_sweep else load_scenario)(scenario_file(text))


@pytest.mark.usefixtures("drawing")
def test_the_python_examples_run(readme, root, monkeypatch, tmp_path):
    (tmp_path / "scenarios").symlink_to(root / "scenarios")
    monkeypatch.chdir(tmp_path)
    first, second = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    exec(compile(first.replace("65_536", "1024"), "README.md", "exec"), {})
    run_scenario("scenarios/llama-3-70b.yaml", samples=1024, pictures=[])
    exec(compile(second, "README.md", "exec"), {})


@pytest.mark.usefixtures("drawing")
def test_the_python_examples_of_the_documentation_run(root, monkeypatch):
    page = (root / "docs" / "how-to" / "python.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)).replace("16_384", "1024")
    monkeypatch.chdir(root)
    exec(compile(code, "python.md", "exec"), {})


def test_the_calibration_table_is_the_published_one(readme, root):
    found = json.loads((root / "reports" / "validation" / "validation.json").read_text(encoding="utf-8"))
    rows = {"gpustack-mc": found["metrics"], "6ND at 40% MFU": found["baselines"]["rule_6nd_40"],
            "median of the other teams": found["baselines"]["median_of_other_families"]}  # fmt: skip
    for name, m in rows.items():
        shares = f"{m['coverage']['0.9']:.0%} | {m['mdape']:.0%}"
        assert f"| {name} | {shares} | {m['crps_log']:.3f} | {m['median_p95_over_p5']:.1f} |" in readme
    assert f"on {found['n']} published runs" in readme


def test_the_table_of_what_more_knowledge_gives_is_the_published_one(readme, root):
    found = json.loads((root / "reports" / "validation" / "validation.json").read_text(encoding="utf-8"))["known"]
    names = {"exact_books": "hours are counted exactly", "one_earlier_run": "an earlier run of the team",
             "reported_mfu": "the MFU that the run reports"}  # fmt: skip
    assert set(names) == set(found)
    for key, name in names.items():
        m = found[key]
        row = f"| {name} | {m['n']} | {m['coverage']['0.9']:.0%} | {m['mdape']:.0%} | {m['crps_log']:.3f}"
        assert f"{row} | {m['median_p95_over_p5']:.1f} |" in readme


@pytest.mark.parametrize("page", refresh.pages(), ids=name_of)
def test_linked_files_exist(page):
    links = re.findall(r"\]\((?!http)([^)#\s]+)", page.read_text(encoding="utf-8"))
    generated = refresh.ROOT / "docs" / "generated"
    missing = [link for link in links if not (page.parent / link).exists()]
    # Generated pages are made when the documentation is built, which checks the links to them.
    assert [link for link in missing if generated not in (page.parent / link).resolve().parents] == []
    assert len(links) >= 5 or page != refresh.README
