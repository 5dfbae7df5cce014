"""The documentation: every command, quantity, key and prior has its place; the site builds without a warning."""

import ast
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import click
import pytest

from gpustack_mc import catalog
from gpustack_mc.cli import cli
from gpustack_mc.quantities import INPUTS, QUANTITIES
from gpustack_mc.schema import json_schema

DOCS = Path(__file__).parents[1] / "docs"
_SPEC = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
generate = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(generate)


def undocumented(group: click.Group, page: str) -> list[str]:
    """Name commands and options that the page does not tell, or tells without a word on what they do."""
    missing = []
    for path, command in generate._leaves(group, ()):
        name = " ".join(path)
        _, found, rest = page.partition(f"\n## {name}\n")
        section = rest.partition("\n## ")[0]
        if not found or not command.help or " ".join(command.help.split())[:60] not in " ".join(section.split()):
            missing.append(name)
        for parameter in command.params:
            for option in parameter.opts if isinstance(parameter, click.Option) else []:
                if f"{option} " not in section.replace(",", " ").replace("\n", " ") or not (
                    parameter.help or parameter.name == "seed"
                ):
                    missing.append(f"{name} {option}")
    return missing


def test_every_command_and_option_is_told():
    assert undocumented(cli, "\n".join(generate.commands())) == []


def test_an_option_that_is_not_told_is_found():
    page = "\n".join(generate.commands())

    @click.command()
    @click.option("--told", is_flag=True, help="Does this.")
    @click.option("--without-words", is_flag=True)
    @click.option("--hidden", is_flag=True, hidden=True, help="Does that.")
    def extra(**_options: bool) -> None:
        """Do something new."""

    group = click.Group(commands=cli.commands | {"extra": extra})
    assert undocumented(group, page) == ["extra", "extra --told", "extra --without-words", "extra --hidden"]
    helped = f"{page}\n## extra\n\n{extra.get_help(click.Context(extra))}\n"
    assert undocumented(group, helped) == ["extra --without-words", "extra --hidden"]


def test_every_quantity_is_told_with_its_equation():
    page = "\n".join(generate.quantities())
    for quantity in QUANTITIES:
        assert f"`{quantity.name}`" in page and generate.cell(quantity.description) in page
        assert quantity.role != "output" or f"### {quantity.name}\n" in page


def test_every_key_of_a_scenario_is_told():
    page = "\n".join(generate.scenario())
    schema = json_schema()
    for definition in [schema, *schema["$defs"].values()]:
        assert all(f"`{key}`" in page for key in definition.get("properties", {}))


@pytest.mark.parametrize("name", INPUTS)
def test_every_prior_has_a_page_with_its_sources(name):
    page = "\n".join(generate.prior(name))
    fit = catalog.fit_record(name)
    assert all(generate.cell(source["title"]) in page for source in fit["sources"].values())
    assert all(generate.cell(limit) in page for limit in fit["limits"])


def test_cells_hold_any_text():
    assert generate.cell("a|b <c> `d` *e* [f]\n g") == r"a\|b &lt;c&gt; \`d\` \*e\* \[f\] g"


@pytest.mark.usefixtures("drawing")
@pytest.mark.parametrize("path", sorted((DOCS / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_run_and_are_stored_without_outputs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    shown = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        assert cell["outputs"] == [] and cell["execution_count"] is None
        body = ast.parse("".join(cell["source"]).replace("16_384", "1024")).body
        # A notebook shows the value of the last expression of a cell.
        last = [ast.Expression(body.pop().value)] if isinstance(body[-1], ast.Expr) else []
        exec(compile(ast.Module(body, []), path.name, "exec"), names)
        shown += [eval(compile(expression, path.name, "eval"), names) for expression in last]
    assert len(shown) >= 8 and all(value is not None for value in shown)


def test_what_was_measured_of_load_and_coverage_is_told():
    page = generate.load_and_coverage
    text = "\n".join(page.page(generate.table))
    parts = {
        "interval_coverage": ("monte_carlo",),
        "load": ("large",),
        "reproducibility": ("circumstances",),
    }
    # A part that was not measured yet has no section.
    for name in (name for name in parts if (page.REPORTS / f"{name}.json").exists()):
        rows = [row for part in parts[name] for row in page.read(name)[part]]
        assert rows and all(f"| {row['kind'] if isinstance(row, dict) else row} |" in text for row in rows)
    scored = page.read("validation")
    assert f"| {scored['n']} | {scored['metrics']['coverage']['0.9']:.0%} |" in text and "{" not in text


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("sphinx", reason="needs the docs group: uv sync --group docs")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(DOCS), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
