"""Refitting the utilisation program: what is written, and what the commands say; chains are stood in for."""

import json
import shutil

import jax
import numpy as np
import pytest
from numpyro.handlers import seed, trace

from gpustack_mc.fits import chain_checks, refit, utilization_checks, utilization_fit, utilization_start
from gpustack_mc.fits import utilization as program
from gpustack_mc.fits.draws_file import read_columns
from gpustack_mc.fits.utilization_predict import read_draws

CHAINS, DRAWS = 4, 25


def prior_draws(data, settings, *arguments):
    """Draws from the prior in place of chains, and two divergences."""

    def one(key):
        sites = trace(seed(program.model, key)).get_trace(data, settings)
        return {
            name: site["value"] for name, site in sites.items() if site["type"] == "sample" and not site["is_observed"]
        }

    with jax.enable_x64(True):
        drawn = jax.vmap(one)(jax.random.split(jax.random.key(0), CHAINS * DRAWS))
    return {name: np.asarray(value).reshape(CHAINS, DRAWS, *value.shape[1:]) for name, value in drawn.items()}, 2


@pytest.fixture(scope="module")
def refitted(root, tmp_path_factory):
    """Return the folder of a new fit and its record."""
    folder = tmp_path_factory.mktemp("refit")
    for name in ("prior.yaml", "data.csv"):
        shutil.copy(root / "priors" / "utilization" / name, folder)
    text = (folder / "prior.yaml").read_text(encoding="utf-8")
    sizes = {"chains": CHAINS, "samples": DRAWS, "draws": 40}
    for name, value in sizes.items():
        before, after = text.split(f"\n  {name}: {{value: ", 1)
        text = f"{before}\n  {name}: {{value: {value}{after[after.index(',') :]}"
    (folder / "prior.yaml").write_text(text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(utilization_fit, "sample", prior_draws)
        record = utilization_fit.refit(folder)
    return folder, record


def test_a_new_fit_is_written_whole_and_fresh(refitted):
    folder, record = refitted
    text = json.dumps(record, indent=1, sort_keys=True, ensure_ascii=False)
    assert (folder / "fit.json").read_text(encoding="utf-8") == text + "\n"
    assert utilization_fit.stale(folder) is None
    columns = read_columns((folder / "draws.csv").read_text(encoding="utf-8"))
    assert {len(column) for column in columns.values()} == {40}
    # Every stored column is summarised, except the uniform ones that complete a draw.
    uniform = {name for name in columns if name.endswith("_uniform")}
    assert set(record["summary"]) == set(columns) - uniform and len(uniform) == 2
    low, middle, high = record["summary"]["run_sd"]
    assert [low, middle, high] == pytest.approx(np.quantile(columns["run_sd"], [0.05, 0.5, 0.95]), rel=1e-4)
    assert len(read_draws(columns).scalar["run_sd"]) == 40


def test_a_new_fit_says_what_it_follows_from(refitted):
    folder, record = refitted
    _, rows = utilization_fit.read_prior(folder)
    used = [row for row in rows if row["use"] == "yes"]
    assert sum(record["rows"].values()) == len(used)
    assert record["families"] == len({row["family"] for row in used if row["kind"] == "training"})
    assert record["diagnostics"]["divergences"] == 2
    assert record["problem"] == "2 divergent steps; raise target_accept in prior.yaml"


def test_starts_are_the_ends_of_the_chains(refitted):
    folder, _ = refitted
    kept = utilization_start.read(folder)["sites"]["run_sd"]
    settings = utilization_fit.plain(utilization_fit.read_prior(folder)[0])
    rows = [row for row in utilization_fit.read_prior(folder)[1] if row["use"] == "yes"]
    chains, _ = prior_draws(program.prepare(rows, settings), settings)
    # A spread is sampled on the log scale; five digits are kept.
    np.testing.assert_allclose(np.ravel(kept["ends"]), np.log(chains["run_sd"][:, -1]), rtol=1e-4)
    assert np.ravel(kept["variance"])[0] == pytest.approx(np.log(chains["run_sd"]).var(), rel=1e-4)


def test_the_parameters_whose_priors_matter_most_are_drawn(tmp_path):
    matter = {"a": 0.1, "b": 0.5, "c": 0.3, "d": 0.0, "e": 0.4, "f": 0.2}
    found = utilization_checks.most_sensitive({name: {"prior": value} for name, value in matter.items()})
    assert found == ["b", "e", "c", "f"]
    # One normal mean: a normal prior and rows of the same weight.
    rng = np.random.default_rng(0)
    posterior = {name: rng.normal(0.5, 0.7, size=(4, 100)) for name in found}
    tree = chain_checks.densities_tree(posterior, -0.5 * posterior["b"] ** 2, -0.5 * (posterior["b"] - 1) ** 2)
    small, large = tmp_path / "small.png", tmp_path / "large.png"
    utilization_checks.picture(tree, found[:1], small)
    utilization_checks.picture(tree, found[:2], large)
    # One row of panels for each parameter.
    heights = [int.from_bytes(path.read_bytes()[20:24]) for path in (small, large)]
    assert heights == [pytest.approx(2.4 * 110, abs=1), pytest.approx(2 * 2.4 * 110, abs=1)]


# ---- what the commands say -------------------------------------------------------------------------------------------
RECORD = {"diagnostics": {"draws": 4000}, "seconds": 1.5, "problem": None}


@pytest.mark.parametrize(
    ("problem", "code", "out", "err"),
    [(None, 0, "utilization: 4000 draws in ", ""), ("R-hat 1.2", 3, "", "utilization: R-hat 1.2\n")],
)
def test_refit_names_the_utilisation_like_any_other(monkeypatch, capsys, problem, code, out, err):
    monkeypatch.setattr(utilization_fit, "refit_shipped", lambda: RECORD | {"problem": problem})
    assert refit.main(["utilization"]) == code
    said = capsys.readouterr()
    assert said.out.startswith(out) and said.err == err


def test_refit_without_a_name_refits_everything_in_turn(monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(refit, "refit", lambda name: asked.append(name) or {"populations": [1, 2]})
    monkeypatch.setattr(utilization_fit, "refit_shipped", lambda: asked.append("utilization") or RECORD)
    assert refit.main([]) == 0
    assert asked == [*refit.quantities_with_prior(), "utilization"]
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == asked
    assert all(": 2 populations in " in line for line in lines[:-1])


@pytest.mark.parametrize(("problem", "code"), [(None, 0), ("too few draws", 3)])
def test_the_program_itself_is_a_command(monkeypatch, capsys, problem, code):
    monkeypatch.setattr(utilization_fit, "refit_shipped", lambda: RECORD | {"problem": problem})
    assert utilization_fit.main() == code
    said = capsys.readouterr()
    assert said.out == "utilization: {'draws': 4000} in 1.5 s\n"
    assert said.err == (f"{problem}\n" if problem else "")


def test_the_shipped_fit_is_refitted_in_the_checkout(monkeypatch, root):
    asked = []
    monkeypatch.setattr(utilization_fit, "refit", lambda folder, picture: asked.append((folder, picture)))
    utilization_fit.refit_shipped()
    published = root / "reports" / "validation" / "prior_sensitivity.png"
    assert asked == [(root / "priors" / "utilization", published)]
