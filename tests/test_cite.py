"""Citations: the paragraph holds the numbers of the result with scope and basis, and the BibTeX parses."""

import json
import re
import tomllib

import pytest

from gpustack_mc import __version__, cite, summarizing, yamlfile
from gpustack_mc.api import simulate
from gpustack_mc.cli import cli, main

ENTRY = re.compile(r"@(software|misc)\{([a-z0-9-]+),\n((?:  \w+ = \{.*\},?\n)+)\}")


def entries(bibtex: str) -> dict[str, dict[str, str]]:
    found = {}
    for _, key, fields in ENTRY.findall(bibtex):
        assert key not in found
        found[key] = dict(re.findall(r"  (\w+) = \{(.*)\},?\n", fields))
    assert len(found) == bibtex.count("@")
    return found


@pytest.mark.parametrize("style", cite.STYLES)
def test_paragraphs_hold_numbers_scope_and_basis(llama, style):
    found = summarizing.summarise(llama[0])
    text = cite.cite(llama[0], style).text
    assert "\n" not in text and "  " not in text
    assert summarizing.with_interval(found["outputs"]["energy_mwh"]) in text
    assert "90% equal-tailed credible intervals" in text and "Scope: the final training run" in text
    assert "seed 0" in text and found["scenario_sha256"][:12] in text
    if style != "energy-disclosure":
        assert "location-based, direct emission factors" in text


def test_the_energy_disclosure_answers_annex_xi(llama):
    """Section 1, point 2(d): computational resources, training time; (e): energy, known or estimated, and how."""
    found = summarizing.summarise(llama[0])["outputs"]
    citation = cite.cite(llama[0], "energy-disclosure")
    for name in ("training_flop", "training_days", "energy_mwh"):
        assert summarizing.with_interval(found[name]) in citation.text
    assert "estimated from the computational resources and not metered" in citation.text
    assert entries(citation.bibtex)["eu-ai-act"]["url"] == "https://eur-lex.europa.eu/eli/reg/2024/1689/oj"


def test_bibtex_names_the_tool_and_the_main_sources(llama):
    found = entries(cite.cite(llama[0]).bibtex)
    assert found["gpustack-mc"]["version"] == __version__
    notes = " ".join(entry.get("note", "") for entry in found.values())
    # 57% of the owned cost's variance comes from the one, next to none from the other.
    assert r"fleet\_utilization" in notes and "residual" not in notes
    assert all(entry.get("url", "https://").startswith("https://") for entry in found.values())


def test_braces_and_signs_are_escaped():
    entry = cite._entry("key", "50% of {this} & that_one \\ #1", "https://a.b/{c}", "note")
    assert r"title = {50\% of \{this\} \& that\_one \textbackslash{} \#1}" in entry
    assert "url = {https://a.b/%7Bc%7D}" in entry
    assert cite._keys(["A b", "A b", "模型", ""]) == ["a-b", "a-b-x2", "source", "source-x2"]


def test_fixed_results_claim_no_interval():
    text = cite.cite(simulate("worked-7b", samples=256)).text
    assert "point values: every input is fixed" in text and "interval" not in text


def test_title_and_author_are_those_of_the_citation_file(root):
    data = yamlfile.parse(*yamlfile.read_text(root / "CITATION.cff")).data
    assert data["title"] == cite.TITLE and data["authors"][0]["name"] == cite.AUTHOR
    assert tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"] == data["version"] == __version__


def test_every_style_can_be_asked_for():
    style = next(option for option in cli.commands["cite"].params if option.name == "style")
    assert list(style.type.choices) == list(cite.STYLES)


def test_the_command(llama, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["cite", str(llama[1]), "--style", "impact-statement", "--json"])
    assert stop.value.code == 0
    found = json.loads(capsys.readouterr().out)
    assert found["style"] == "impact-statement" and entries(found["bibtex"])
    with pytest.raises(SystemExit):
        main(["cite", str(llama[1])])
    out = capsys.readouterr().out
    assert out.startswith("Training Llama 3 70B (") and "\n\n@software{gpustack-mc," in out
    with pytest.raises(SystemExit) as stop:
        main(["cite", str(llama[1]), "--style", "poem"])
    assert stop.value.code == 2 and "'poem' is not one of" in capsys.readouterr().err
