"""The report: complete, self-contained, escaped, and well-behaved in a real browser where there is one."""

import html.parser
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from gpustack_mc import answering, report, strips, summarizing
from gpustack_mc.api import simulate
from gpustack_mc.cli import main
from gpustack_mc.quantities import OUTPUTS
from gpustack_mc.run import run_scenario

VOID = {"meta", "link", "br", "img", "input", "hr"}
NASTY = """<script>alert(1)</script> "quotes" & 'more' ‮ 模型 𝕏"""


class Page(html.parser.HTMLParser):
    """What a test asks of a page: elements with their attributes, text, ids, and whether every tag is closed."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == [], self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, (tag, self.open[-3:])
        self.open.pop()

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.elements if name == tag]


@pytest.fixture(scope="module")
def page(llama):
    return Page(report.page(llama[0]))


@pytest.fixture(scope="module")
def nasty(llama):
    """A result of a stranger: every free text in it is hostile, and long."""
    tree = llama[0].copy(deep=True)
    name = (NASTY + "x" * 200)[:200]
    tree.attrs |= {"name": name, "description": name, "scenario": name, "notes": json.dumps([name])}
    figure = {"value": 1.0, "source": name, "url": "javascript:alert(1)", "outside": name}
    tree.attrs["published"] = json.dumps({"energy_mwh": figure})
    tree.attrs["versions"] = json.dumps({name: name})
    for variable in [*tree["prior"].data_vars.values(), *tree["constant_data"].data_vars.values()]:
        sources = json.dumps([{"title": name, "url": "javascript:alert(1)", "licence": name}] * 2)
        variable.attrs |= {"prior": name, "long_name": name, "sources": sources, "missed": json.dumps([name]),
                           "dated": name, "collected": name}  # fmt: skip
    tree["prior"]["mfu"][:] = np.where(tree["prior"]["mfu"] < 0.3, 0.2, 0.4)
    return tree


def test_the_page_says_what_the_summary_says(llama, page):
    found = summarizing.summarise(llama[0])
    said = page.text
    assert summarizing.sentence(found, "either") in said
    assert summarizing.driver_sentence(found, "either") in said
    for name, cells in summarizing.headline_table(found, "either").items():
        assert summarizing.label_of(name, found) in said
        assert all(cell in said for cell in cells)
    for answer in found["questions"].values():
        assert answering.percent(answer["probability"]) in said
    for entry in found["inputs"].values():
        assert entry["description"] in said and entry["prior"] in said
        assert all(" ".join(source["title"].split()) in said for source in entry["sources"])
    for name in OUTPUTS:
        assert name in said
    assert all(what in said for what in summarizing.NOT_INCLUDED)
    assert found["scenario_sha256"] in said and found["priors_sha256"] in said and "--seed 0 --samples 4096" in said
    assert "published 6.4 M h" in said and "inside the 90% interval" in said


def test_origin_and_age_of_every_assumption(llama, page):
    rows = report.values(llama[0], summarizing.summarise(llama[0]), report.figures.interval_plot(llama[0]))[
        "assumptions"
    ]
    by_key = {row["key"]: row for row in rows}
    assert by_key["params"]["origin"] == "entered" and by_key["mfu"]["origin"] == "fitted"
    assert by_key["tdp"]["origin"] == "cited" and by_key["context_flop_factor"]["origin"] == "derived"
    assert by_key["pue"]["age"].startswith("data of 2019–2025, newest ")
    assert by_key["interruption_rate"]["age"].startswith("undated rows, collected 20")
    # What moves the cost most is told first.
    assert rows[0]["key"] == "fleet_utilization"


def test_nothing_is_asked_of_any_server(page):
    links = [attrs["href"] for attrs in page.all("a")]
    assert len([link for link in links if link.startswith("https://")]) > 30
    assert all(attrs["href"] == "data:," for attrs in page.all("link"))
    assert not page.all("script") and not page.all("img") and not page.all("iframe")
    policy = next(m["content"] for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy
    for _, attrs in page.elements:
        assert not any(name.startswith("on") for name in attrs)


def test_no_style_asks_for_a_file(llama):
    text = report.page(llama[0])
    assert "@import" not in text and not re.search(r"url\((?!#)", text)
    assert len(text.encode()) < 2_000_000


def test_what_a_screen_reader_needs(page):
    assert page.all("html")[0]["lang"] == "en"
    assert [len(page.all(tag)) for tag in ("h1", "main", "header", "footer", "nav")] == [1] * 5
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    for attrs in page.all("section"):
        assert attrs["aria-labelledby"] in ids
    assert all(attrs.get("scope") in ("col", "row") for attrs in page.all("th"))
    for attrs in page.all("svg"):
        labelled = attrs.get("aria-label") or attrs.get("aria-labelledby")
        assert attrs.get("aria-hidden") == "true" or (attrs.get("role") == "img" and labelled) or not attrs.get("class")
    targets = [attrs["href"][1:] for attrs in page.all("a") if attrs["href"].startswith("#")]
    assert targets and set(targets) <= set(ids)


def test_hostile_names_are_text(nasty):
    page = Page(report.page(nasty))
    assert not page.all("script")
    # Every free text is there, as text.
    assert page.text.count("<script>alert(1)</script>") > 100
    # An address that is none is shown as text.
    assert all(attrs["href"].startswith(("https://", "http://", "#")) for attrs in page.all("a"))
    assert "a few values" in page.text


def test_a_result_without_spread_has_a_report():
    page = Page(report.page(simulate("worked-7b", samples=256)))
    assert "every input is fixed, so there is no interval" in page.text
    assert "No input varies, so nothing drives the outputs." in page.text


def test_correlated_inputs_have_a_report(scenario_file):
    path = scenario_file(
        """\
schema_version: 1
name: Correlated
ownership: rent
workload: {params: 7e9, tokens: 2e12}
cluster: {accelerator: H100-SXM-80GB, count: 512}
correlations: [{between: [mfu, goodput], rank: 0.5}]
"""
    )
    page = Page(report.page(simulate(path, samples=512)))
    assert "mfu + goodput" in page.text and "Correlated inputs, taken together" in page.text


def test_overrides_are_part_of_the_command(scenario_file, llama):
    tree = llama[0].copy()
    tree.attrs["overrides"] = json.dumps(["mfu=0.4", "questions.budget=50 USD"])
    tree.attrs["pack_sha256"] = "ab" * 32
    reproduce = report._reproduce(tree, summarizing.summarise(tree))
    assert reproduce["command"].endswith("--set mfu=0.4 --set 'questions.budget=50 USD' --priors my-priors")
    assert "--set" not in reproduce["scenario"]


# ---- small pictures ----------------------------------------------------------------------------------------------


def test_strips_share_an_axis_of_ratios():
    rows = [[5.0, 8.0, 10.0, 12.5, 20.0], [100.0, 100.0, 100.0, 100.0, 100.0]]
    (wide, none), ticks = strips.ratio_strips(rows, [10.0, None])
    assert none is None
    # A log axis around the median is symmetrical for symmetrical ratios.
    assert wide.ends[2] == 50 and wide.mark == 50
    assert wide.ends[0] + wide.ends[4] == pytest.approx(100, abs=0.02)
    assert wide.ends[1] + wide.ends[3] == pytest.approx(100, abs=0.02)
    assert [label for _, label in ticks] == ["÷1.5", "median", "×1.5"]
    far, _ = strips.ratio_strips(rows[:1], [1e6])
    assert far[0].mark == 100 and far[0].beyond


def test_the_outline_of_a_density_is_that_of_the_distribution():
    """A standard normal: highest in the middle, and at one standard deviation exp(-1/2) of that."""
    from scipy import stats

    draws = stats.norm.ppf((np.arange(65_536) + 0.5) / 65_536)
    shape = strips.density(draws, log_scale=False)
    points = [tuple(map(float, pair.split(","))) for pair in re.findall(r"[\d.]+,[\d.]+", shape.path)]
    x, y = np.array(points[1:-1]).T
    at = np.interp(50 + 100 / (2 * 2.5758), x, 100 - y)  # the axis ends at 2.5758 standard deviations
    # Steps of a fortieth of the mass and smoothing flatten the peak by some per cent.
    assert at / (100 - y.min()) == pytest.approx(np.exp(-0.5), abs=0.04)
    assert shape.median == pytest.approx(50, abs=0.1) and not shape.log
    assert strips.density(np.repeat([1.0, 2.0], 500), log_scale=True) is None
    assert strips.density(np.exp(2 * draws), log_scale=True).log


def test_a_heap_at_the_end_does_not_hide_the_rest():
    draws = np.concatenate([np.linspace(0.5, 0.9, 3000), np.full(1000, 0.999)])
    shape = strips.density(draws, log_scale=False)
    heights = [100 - float(pair.split(",")[1]) for pair in re.findall(r"[\d.]+,[\d.]+", shape.path)]
    assert np.median(heights) > 10


# ---- the commands ------------------------------------------------------------------------------------------------


def test_run_writes_a_report_unless_told_not_to(tmp_path, llama, capsys):
    def files(*options):
        out = tmp_path / "-".join(("out", *options))
        with pytest.raises(SystemExit):
            main(["run", "llama-3-70b", "--samples", "512", "-q", "-o", str(out), *options])
        return sorted(os.listdir(out))

    assert "report.html" in files()
    assert "report.html" not in files("--no-report")
    assert files("--no-plots") == ["result.nc", "summary.json"]


def test_report_from_the_file_alone_is_that_of_the_run(tmp_path, monkeypatch, capsys):
    done = run_scenario("nanochat", samples=512, out=tmp_path / "out", with_report=True)
    written = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert str(tmp_path / "out" / "report.html") in done.summary["files"]
    monkeypatch.chdir(tmp_path)
    shutil.move("out/result.nc", "alone.nc")
    with pytest.raises(SystemExit):
        main(["report", "alone.nc", "-o", "again.html"])
    assert capsys.readouterr().out == "again.html\n"
    assert Path("again.html").read_text(encoding="utf-8") == written


def test_a_report_that_cannot_be_written(llama, tmp_path, capsys):
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as stop:
        main(["report", str(llama[1]), "-o", str(tmp_path / "file" / "report.html")])
    assert stop.value.code == 1
    assert "cannot write" in capsys.readouterr().err
