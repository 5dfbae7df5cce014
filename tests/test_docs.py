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


def leaves(group: click.Group):
    for command in group.commands.values():
        yield from leaves(command) if isinstance(command, click.Group) else [command]


def test_every_command_and_option_is_told():
    page = "\n".join(generate.commands())
    for command in leaves(cli):
        assert command.help and " ".join(command.help.split())[:60] in " ".join(page.split())
        for parameter in command.params:
            for option in parameter.opts if isinstance(parameter, click.Option) else []:
                assert option in page
            assert not isinstance(parameter, click.Option) or parameter.help or parameter.name in ("seed",)


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


@pytest.mark.parametrize("path", sorted((DOCS / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_run_and_are_stored_without_outputs(path, tmp_path, monkeypatch):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

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
    plt.close("all")
    assert len(shown) >= 8 and all(value is not None for value in shown)


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("sphinx", reason="needs the docs group: uv sync --group docs")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(DOCS), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
