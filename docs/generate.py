"""Write the pages that come from the package and its measurements: commands, quantities, priors, gallery, trials."""

import json
import math
import shutil
import sys
from pathlib import Path
from typing import Any

import click

from gpustack_mc import catalog, chain, listing, notation
from gpustack_mc.cli import cli
from gpustack_mc.quantities import BY_NAME, INPUTS, QUANTITIES
from gpustack_mc.schema import json_schema

sys.path.insert(0, str(Path(__file__).parent))

import load_and_coverage

FOLDER = Path(__file__).parent / "generated"
# Enough for two digits; the pictures are to be looked at, not read off.
SAMPLES = 4096
EXAMPLE = "llama-3-70b"
# A prior with more populations than this is told by its most and least.
LISTED = 60


def cell(value: object) -> str:
    """Return text that may stand in a cell of a Markdown table."""
    text = " ".join(str(value).split())
    for character in "\\`*<>|[]":
        text = text.replace(
            character, f"\\{character}" if character not in "<>" else {"<": "&lt;", ">": "&gt;"}[character]
        )
    return text


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    """Return the lines of a Markdown table whose cells are Markdown already."""
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows), ""]


# ---- commands ----------------------------------------------------------------------------------------------------


def commands() -> list[str]:
    """Return the page of all commands, as click tells them."""
    lines = ["# Commands", "", "Every command takes `--help`. Exit codes are in [](../reference/files.md).", ""]
    for name, command in _leaves(cli, ()):
        context = click.Context(command, info_name=" ".join(("gpustack-mc", *name)), max_content_width=100)
        lines += [f"## {' '.join(name)}", "", "```text", command.get_help(context), "```", ""]
    return lines


def _leaves(group: click.Group, above: tuple[str, ...]) -> list[tuple[tuple[str, ...], click.Command]]:
    found = []
    for name, command in sorted(group.commands.items()):
        path = (*above, name)
        found += _leaves(command, path) if isinstance(command, click.Group) else [(path, command)]
    return found


# ---- scenario files ----------------------------------------------------------------------------------------------


def scenario() -> list[str]:
    """Return the page of all keys of a scenario, from the JSON Schema."""
    schema = json_schema()
    lines = ["# Keys of a scenario", "", "From the JSON Schema, which editors read as well: `gpustack-mc schema`.", ""]
    lines += _object("the file", schema, schema)
    for name, definition in sorted(schema.get("$defs", {}).items()):
        if "properties" in definition:
            lines += _object(name, definition, schema)
    return lines


def _object(name: str, definition: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    required = set(definition.get("required", []))
    rows = [
        [f"`{key}`", "yes" if key in required else "", cell(_kind(value)), cell(value.get("description", ""))]
        for key, value in definition["properties"].items()
    ]
    about = cell(definition.get("description", ""))
    return [f"## {name}", "", about, "", *table(["key", "needed", "value", "meaning"], rows)]


def _kind(value: dict[str, Any]) -> str:
    if "$ref" in value:
        return value["$ref"].rpartition("/")[2]
    if "anyOf" in value:
        return " or ".join(dict.fromkeys(_kind(part) for part in value["anyOf"] if part.get("type") != "null"))
    if "enum" in value or "const" in value:
        return ", ".join(map(str, value.get("enum", [value.get("const")])))
    if value.get("type") == "array":
        return f"list of {_kind(value.get('items', {}))}"
    return str(value.get("type", "any"))


# ---- quantities --------------------------------------------------------------------------------------------------


def quantities() -> list[str]:
    """Return the page of all quantities with their equations."""
    lines = ["# Quantities and equations", ""]
    titles = {"scenario": "Stated by the scenario", "input": "Uncertain inputs", "output": "Outputs"}
    for role, title in titles.items():
        rows = [
            [
                _name(q.name),
                notation.mathml(q.symbol, "inline"),
                cell(q.unit),
                cell(q.description),
                _bounds(q.low, q.high),
            ]
            for q in QUANTITIES
            if q.role == role
        ]
        lines += [f"## {title}", "", *table(["name", "symbol", "unit", "meaning", "bounds"], rows)]
    lines += ["## Equations", ""]
    for step in chain.steps().values():
        lines += [f"### {step.name}", "", cell(step.meaning), "", notation.mathml(step.latex), ""]
        lines += [f"Uses {', '.join(f'`{name}`' for name in step.uses)}.", ""]
        lines += [cell(step.assumes), ""] if step.assumes else []
        lines += [f"*{cell(step.references)}*", ""] if step.references else []
    return lines


def _name(name: str) -> str:
    return f"[`{name}`](priors/{name}.md)" if name in INPUTS else f"`{name}`"


def _bounds(low: float, high: float) -> str:
    return f"{low:g} to {high:g}" if high < math.inf else f"from {low:g}"


# ---- priors ------------------------------------------------------------------------------------------------------


def prior(name: str) -> list[str]:
    """Return the page of one prior: populations with pictures, sources, limits."""
    fit = listing.prior(name)
    quantity = BY_NAME[name]
    data = catalog.fit_path(name).parent.name
    lines = [f"# {name}", "", f"{cell(fit['title'])} [{cell(quantity.unit)}]. {cell(quantity.description)}.", ""]
    lines += [cell(fit["description"]), "", f"Data, fit and settings: `priors/{data}/`, fitted {fit['date']}.", ""]
    lines += _populations(fit) if fit["populations"] else _posterior(fit)
    lines += ["## Sources", "", *(f"- {_source(source)}" for source in fit["sources"].values()), ""]
    return [*lines, "## Limits", "", *(f"- {cell(limit)}" for limit in fit["limits"]), ""]


def _source(source: dict[str, str]) -> str:
    web = source["url"].startswith(("https://", "http://"))
    title = (
        f"[{cell(source['title'])}](<{source['url']}>)" if web else f"{cell(source['title'])}, {cell(source['url'])}"
    )
    return f"{title} ({cell(source['licence'])})"


def _populations(fit: dict[str, Any]) -> list[str]:
    known = [population for population in fit["populations"] if "quantiles" in population]
    known.sort(key=lambda population: population["quantiles"]["p50"])
    ends = [value for population in known for value in population["quantiles"].values() if value > 0]
    rows = []
    for population in _thinned(known):
        q = population["quantiles"]
        where = ", ".join(f"{key}={value}" for key, value in population["where"].items()) or "otherwise"
        rows.append([cell(where), cell(population["label"]), str(population["n"]), f"{q['p50']:.3g}",
                     f"{q['p05']:.3g} to {q['p95']:.3g}", _strip(q, min(ends), max(ends))])  # fmt: skip
    header = ["where", "population", "rows", "median", "90% interval", "picture"]
    lines = ["## Populations", "", *table(header, rows)] if rows else []
    if len(known) > LISTED:
        said = f"Shown are {LISTED} of {len(known)} populations, evenly from the lowest median to the highest;"
        lines += [f"{said} `gpustack-mc priors show {fit['quantity']}` lists all.", ""]
    regressions = [population for population in fit["populations"] if "quantiles" not in population]
    for population in regressions:
        terms = ", ".join(f"`{term}`" for term in population["parameters"]["regression"]["terms"])
        lines += [f"{cell(population['label'])}: a regression on {terms}, n={population['n']}.", ""]
    return lines


def _thinned(populations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if len(populations) <= LISTED:
        return populations
    return [populations[round(i * (len(populations) - 1) / (LISTED - 1))] for i in range(LISTED)]


def _posterior(fit: dict[str, Any]) -> list[str]:
    rows = [[f"`{cell(key)}`", f"{m:.3g}", f"{a:.3g} to {b:.3g}"] for key, (a, m, b) in fit["summary"].items()]
    said = f"Joint posterior of {fit['families']} families of runs; each scenario gets its own prediction from it."
    return ["## Posterior", "", said, "", *table(["parameter", "median", "90% interval"], rows)]


def _strip(q: dict[str, float], low: float, high: float) -> str:
    """Return a row of an interval plot; all populations of a prior share one log axis."""
    span = math.log(high / low) or 1.0
    a, m, b = (round(100 * max(0.0, math.log(max(q[key], low) / low) / span), 1) for key in ("p05", "p50", "p95"))
    whole = 'vector-effect="non-scaling-stroke"'
    return (
        '<svg class="strip" viewBox="0 0 100 12" preserveAspectRatio="none" aria-hidden="true">'
        f'<line x1="{a}" x2="{b}" y1="6" y2="6" stroke="var(--blue)" stroke-width="3" {whole}/>'
        f'<line x1="{m}" x2="{m}" y1="1" y2="11" stroke="var(--ink)" stroke-width="2" {whole}/>'
        "</svg>"
    )


# ---- gallery -----------------------------------------------------------------------------------------------------


def gallery() -> list[str]:
    """Return the page of the shipped scenarios, each run, with its sentence and its picture."""
    from gpustack_mc import figures, pages, summarizing
    from gpustack_mc.compilation import use_cache
    from gpustack_mc.design import make_design
    from gpustack_mc.propagation import simulate
    from gpustack_mc.result import to_datatree
    from gpustack_mc.scenario import load_scenario

    use_cache()
    lines = ["# Gallery", "", f"The shipped scenarios, run with {SAMPLES:,} samples.", ""]
    for name in catalog.shipped_scenarios():
        problem = load_scenario(name)
        tree = to_datatree(simulate(problem, make_design(SAMPLES), with_sensitivity=False))
        said = summarizing.sentence(summarizing.summarise(tree), tree.attrs["ownership"])
        picture = pages.svg(figures.interval_plot(tree), name.replace(".", "-"), figures.alt_text(tree, "outputs"))
        lines += [f"## {cell(problem.name)}", "", cell(said), "", cell(problem.file.description), ""]
        lines += [f"`gpustack-mc run {name}`", "", f'<div class="picture">{_one_line(picture)}</div>', ""]
    return lines


def _one_line(picture: str) -> str:
    """Return a picture without line breaks: a blank line would end the HTML block of a Markdown page."""
    return " ".join(picture.split())


def example_report() -> str:
    """Return the report of a shipped scenario with sliders, as `gpustack-mc report --interactive` writes it."""
    from gpustack_mc import report
    from gpustack_mc.api import simulate

    return report.page(simulate(EXAMPLE, samples=4 * SAMPLES), with_sliders=True)


# ---- what it survives --------------------------------------------------------------------------------------------

REPORTS = Path(__file__).parents[1] / "reports" / "validation"


def survives() -> list[str]:
    """Return the page of what was tried against the program: hostile input, faults, wrong code."""
    lines = ["# What it survives", ""]
    lines += [
        "A forecast that is quietly wrong, half written or lost is worse than none. Three programs try to get one. "
    ]
    lines += ["Their last results are in `reports/validation/`; nothing below is written by hand.", ""]
    for title, file, page in (("Hostile input", "fuzz", _fuzz), ("Faults", "faults", _faults),
                              ("Wrong code", "mutation", _mutation)):  # fmt: skip
        path = REPORTS / f"{file}.json"
        lines += [f"## {title}", ""]
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
        lines += page(found) if found else [f"Not run on this version yet: `python benchmarks/{file}.py`.", ""]
    return lines


def _fuzz(found: dict[str, Any]) -> list[str]:
    bad = f"{found['findings']:,}" if found["findings"] else "None"
    said = (
        f"`python benchmarks/fuzz.py` made {found['inputs']:,} inputs from sound ones, with other values, keys, "
        f"structure or bytes. {bad} of them did anything but what is allowed: an answer, or one line that names the "
        "file and, where there is one, the line, with an exit code that is documented. A traceback, a crash, ten "
        "seconds of computing, a gigabyte of memory, markup of a file in a page, and a file outside of the output "
        "folder would each be a finding. Commands are run with random options on such files."
    )
    rows = [
        [cell(kind), f"{each['inputs']:,}", f"{each['answers'].get('answered', 0):,}", f"{each['findings_count']:,}",
         f"{each['slowest_cpu_seconds']:.1f}", f"{each['largest_growth_mb']:,}", f"{each['seed']}"]
        for kind, each in found["kinds"].items()
    ]  # fmt: skip
    header = [
        "input",
        "tried",
        "answered, the others refused",
        "findings",
        "slowest, s of CPU",
        "most memory, MB",
        "seed",
    ]
    return [said, "", *table(header, rows)]


def _faults(found: dict[str, Any]) -> list[str]:
    said = (
        "`python benchmarks/faults.py` breaks runs from outside and looks at what is left. *Old* and *new* are results "
        "that are whole: all files of one run; *mixed* or *lost* would be neither."
    )
    return [
        said,
        "",
        *table(["fault", "what was found"], [[cell(name), cell(_told(each))] for name, each in found.items()]),
    ]


def _told(counts: dict[str, Any]) -> str:
    parts = [
        f"{key}: ({_told(value)})" if isinstance(value, dict) else f"{key} {value}" for key, value in counts.items()
    ]
    return ", ".join(parts)


def _mutation(found: dict[str, Any]) -> list[str]:
    said = (
        "`python benchmarks/mutation.py` changes one operator, number or condition of the core at a time and runs the "
        "tests that answer for it. A change that no test notices survives."
    )
    rows = [
        [f"`{name}`", f"{each['mutants']:,}", f"{each['killed']:,}", f"{each['killed'] / each['mutants']:.0%}",
         cell(", ".join(each["tests"]))]
        for name, each in found.items()
    ]  # fmt: skip
    return [said, "", *table(["module", "changes", "noticed", "share", "tests"], rows)]


def main() -> None:
    """Write all generated pages anew."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    for folder in ("priors", "extra"):
        (FOLDER / folder).mkdir(parents=True)
    (FOLDER / "extra" / "example-report.html").write_text(example_report(), encoding="utf-8")
    written = {"commands": commands(), "scenario": scenario(), "quantities": quantities(), "gallery": gallery()}
    written["load-and-coverage"] = load_and_coverage.page(table)
    written["survives"] = survives()
    written |= {f"priors/{name}": prior(name) for name in INPUTS}
    entries = ["```{toctree}", ":maxdepth: 1", "", *INPUTS, "```", ""]
    written["priors/index"] = ["# Priors", "", "One page for each uncertain input.", "", *entries]
    for page, lines in written.items():
        (FOLDER / f"{page}.md").write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
