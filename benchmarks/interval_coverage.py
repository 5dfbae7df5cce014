"""Measure how often every kind of interval that the commands print holds the value it is about.

    python benchmarks/interval_coverage.py                    # a quarter of an hour on two cores
    python benchmarks/interval_coverage.py run compare --scrambles 20

Each command answers a shipped scenario again and again, every time on another scramble of its points, and with few of
them, so that the Monte Carlo error is large. An interval covers when it holds the answer of sixteen to sixty times
as many points, averaged over four other scrambles, or the exact one where there is a closed form. Credible intervals,
which are about the world and not about an estimate, are scored on published runs by ``gpustack-mc validate`` and by
simulation in ``calibration_ranks.py``. Tornado bars and expected widths are printed without an interval, so that there
is none to be measured.

Writes ``reports/validation/interval_coverage.json``, of which only the named studies change; 3 when the mean over the
quantities of a kind leaves `ALLOWED`.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpustack_mc import portfolio, regional, scoring
from gpustack_mc.answering import WITHIN
from gpustack_mc.comparing import run_comparison
from gpustack_mc.compilation import use_cache
from gpustack_mc.cube import FunctionCube
from gpustack_mc.design import make_design
from gpustack_mc.group_indices import group_indices
from gpustack_mc.measure import run_measure
from gpustack_mc.portfolio_spec import PortfolioSpec
from gpustack_mc.propagation import propagate
from gpustack_mc.run import run_scenario
from gpustack_mc.scenario import load_scenario
from gpustack_mc.second_order import second_order
from gpustack_mc.sensitivities import Wanted, run_sensitivity
from gpustack_mc.sites import run_sites
from gpustack_mc.sobol import t_quantile
from gpustack_mc.solving import run_solve
from gpustack_mc.sweep import run_sweep

sys.path.insert(0, str(Path(__file__).parent))

import shapley_coverage

REPORTS = Path(__file__).parents[1] / "reports" / "validation"
RESULT = REPORTS / "interval_coverage.json"
SCRAMBLES = 100
# Fewer are for a quick look, and are not written.
FEWEST = 40
SAMPLES = 4096
REFERENCES = 4
# Seeds of the references, which no measured run has.
FIRST_REFERENCE = 10**6
# Mean coverage over the quantities of a kind. One quantity on 100 scrambles would show 0.90 within 0.06; quantities of
# one run move together, so that their mean is hardly known better. What is left is for estimates that are not normal.
ALLOWED = (0.85, 0.96)
# A standard error that is given as a number, in JSON or as digits, is read with Student's t of 16 replicates.
ERRORS = t_quantile(16, 0.90)
# Chances beyond are printed as bounds, without an interval.
BOUNDS = (0.001, 0.999)
HEADLINE = ("training_days", "energy_mwh", "co2e_t", "cost_owned_usd", "cost_rented_usd")
SCENARIO = "llama-3-70b"
H100_B200 = "cluster.accelerator=H100-SXM-80GB,B200-SXM"


class Told(NamedTuple):
    """An estimate with its interval, and the value it is about where that is known.

    Attributes
    ----------
    value, low, high : float
    exact : float, optional
    """

    value: float
    low: float
    high: float
    exact: float | None = None


# By kind of interval and quantity.
Answers = Iterator[tuple[tuple[str, str], Told]]


def within(value: float, error: float | None, factor: float = ERRORS) -> Told:
    """An interval from a standard error; none for what is known without one."""
    half = factor * (error or 0.0)
    return Told(value, value - half, value + half)


def between(entry: Mapping[str, Any], name: str) -> Told:
    """An interval whose ends are given."""
    low, high = entry[f"{name}_interval_90"]
    return Told(entry[name], low, high)


def spreads(kind: str, name: str, entry: Mapping[str, Any]) -> Answers:
    """Median and both ends of a 90% interval."""
    errors = entry["monte_carlo_error"]
    yield (kind, f"{name} 50%"), within(entry["median"], errors["median"])
    for label, value, error in zip(("5%", "95%"), entry["interval_90"], errors["interval_90"], strict=True):
        yield (kind, f"{name} {label}"), within(value, error)


def chances(kind: str, name: str, entry: Mapping[str, Any]) -> Answers:
    """A probability, as it is printed with ±."""
    yield (kind, name), within(entry["probability"], entry["monte_carlo_error"], WITHIN)


# ---- studies: what a command says on one scramble ----------------------------------------------------------------


def of_run(samples: int, seed: int) -> Answers:
    """Quantiles and means of outputs, chances of keeping limits, Sobol' indices of outputs and of their logarithms."""
    found = run_scenario(SCENARIO, samples=samples, seed=seed, with_files=False).summary
    for name in HEADLINE:
        entry = found["outputs"][name]
        yield from spreads("quantiles of an output", name, entry)
        yield ("mean of an output", name), within(entry["mean"], entry["monte_carlo_error"]["mean"])
        for scale in ("sensitivity", "sensitivity_log"):
            for key, index in found[scale][name].items():
                for which, words in (("S1", "first-order"), ("ST", "total")):
                    yield (f"{words} Sobol' indices", f"{scale} {name} {key}"), between(index, which)
    for name, entry in found["questions"].items():
        yield from chances("chance of keeping limits", name, entry)


def of_running(samples: int, seed: int) -> Answers:
    """What remains of a job that has begun."""
    found = run_scenario("bloom-176b-running", samples=samples, seed=seed, with_files=False).summary
    for name, entry in found["running"]["remaining"].items():
        yield from spreads("what remains of a running job", name, entry)


def of_compare(samples: int, seed: int) -> Answers:
    """Differences, ratios, the chance that one is lower, and what drives the difference."""
    done = run_comparison([SCENARIO], vary=[H100_B200], samples=samples, seed=seed, with_files=False).summary
    for name, entry in done["comparisons"][0]["outputs"].items():
        yield from spreads("difference of two scenarios", name, entry["difference"])
        yield from spreads("ratio of two scenarios", name, entry["ratio"])
        for key in (key for key in entry if key.startswith("other_lower")):
            yield from chances("chance that one scenario is lower", f"{key} {name}", entry[key])
        for scale in ("sensitivity_difference", "sensitivity_log_ratio"):
            for key, index in entry[scale].items():
                for which in ("S1", "ST") if isinstance(index, dict) else ():
                    yield ("Sobol' indices of a difference", f"{scale} {which} {name} {key}"), between(index, which)
    for name, cases in done["lowest"].items():
        for label, entry in cases.items():
            yield from chances("chance of being lowest", f"{label} {name}", entry)


def of_sites(samples: int, seed: int) -> Answers:
    """The chance that a site is best, and how far it lies above the best."""
    regions = "CA-QC,CA-AB,US-NM"
    found = run_sites("llama-3-70b-us", regions=regions, samples=samples, seed=seed, with_files=False).summary
    for region, rows in found["regions"].items():
        for criterion in found["criteria"]:
            for how in ("best_if_independent", "best_if_together"):
                yield from chances("chance of being the best site", f"{region} {criterion} {how}", rows[criterion][how])
            yield from spreads("ratio to the best site", f"{region} {criterion}", rows[criterion]["above_best"])


def of_measure(samples: int, seed: int) -> Answers:
    """What knowing some inputs is worth for a decision."""
    found = run_measure(SCENARIO, samples=samples, seed=seed, together=["fleet_utilization,rental_price"])

    def told(entry: Mapping[str, Any]) -> Told:
        return within(entry["value"], entry["monte_carlo_error"], WITHIN)

    decision = found["decision"]
    yield ("value of perfect information", decision["name"]), told(decision["perfect_information_usd"])
    yield ("value of knowing some inputs (EVPPI)", "together"), told(decision["together"][0]["value_usd"])
    for key, values in decision["inputs"].items():
        for how in ("perfect", "measured"):
            yield ("value of knowing some inputs (EVPPI)", f"{key} {how}"), told(values[how])


def of_solve(samples: int, seed: int) -> Answers:
    """The value at which a condition holds with a stated chance, and the chance of the scenario as it is."""
    cases = {"count": {"limits": {"deadline": "30 d"}}, "tokens": {"limits": {"budget": "15 MUSD"}}}
    for variable, options in cases.items():
        found = run_solve(SCENARIO, ["ownership=rent"], variable=variable, samples=samples, seed=seed, **options)
        (solution,) = found["solutions"]
        yield ("solution for a stated chance", variable), Told(solution["value"], *solution["monte_carlo_interval_90"])
        yield from chances("chance of keeping limits", f"solve {variable}", found["scenario"])
    served = run_solve(SCENARIO, variable="served_tokens", samples=samples, seed=seed)
    for name, entry in served["break_even"].items():
        errors = entry["monte_carlo_error"]
        among = {"median": errors[2], "interval_90": (errors[0], errors[4])}
        yield from spreads("served tokens to break even", name, entry | {"monte_carlo_error": among})


def of_sensitivity(samples: int, seed: int) -> Answers:
    """Group indices, Shapley effects and shares of what is not known, as the command gives them."""
    wanted = Wanted(shapley=True, tornado=False, regional=False)
    found = run_sensitivity(SCENARIO, (), wanted, samples=samples, seed=seed, with_files=False)
    for name, entry in found["outputs"].items():
        for key, index in entry["groups"].items():
            for which in ("S1", "ST"):
                yield ("Sobol' indices of groups", f"{which} {name} {key}"), between(index, which)
        for key, index in (*entry["inputs"].items(), *entry["groups"].items()):
            yield ("Shapley effects", f"{name} {key}"), between(index, "shapley")
        yield ("sum of first-order indices", name), between(entry["sum_of_S1"], "S1")
        for part in ("population", "between"):
            if isinstance(share := entry["variance_split"].get(part), dict) and share["share"] is not None:
                told = Told(share["share"], *share["interval_90"])
                yield ("share of variance not known or from run to run", f"{name} {part}"), told


def of_region(samples: int, seed: int) -> Answers:
    """What a rule about the runs beyond a limit catches; every scramble finds a rule of its own, measured anew."""
    problem, replicates = load_scenario(SCENARIO), 16
    draws = propagate(problem, make_design(samples, seed=seed))
    many = _many()
    for name, limit in (("training_days", 45.0), ("cost_owned_usd", 15e6)):
        found = regional.region(draws.output(name), draws.inputs, draws.varying, limit, replicates)
        beyond = (many.output(name) > limit) == (found.side == "over")
        yield ("share of runs in a region", name), Told(*map(float, found.share), exact=float(beyond.mean()))
        for rule in found.rules:
            held = regional.fulfils(rule.cuts, many.inputs, many.varying)
            exact = {"caught": held[beyond].mean(), "others": held[~beyond].mean(), "inside": beyond[held].mean()}
            for what, value in exact.items():
                told = Told(*map(float, getattr(rule, what)), exact=float(value))
                yield ("shares of a rule for a region", f"{name} {len(rule.cuts)} {what}"), told


_kept: list[Any] = []


def _many() -> Any:
    """Draws that are enough to be the truth about a rule, made once."""
    if not _kept:
        _kept.append(propagate(load_scenario(SCENARIO), make_design(2**20, seed=FIRST_REFERENCE)))
    return _kept[0]


SWEEP = """
schema_version: 1
name: Coverage
base: llama-3-70b
axes:
  cluster.accelerator: [H100-SXM-80GB, B200-SXM]
"""


def of_sweep(samples: int, seed: int) -> Answers:
    """Quantiles and chances of the scenarios of a sweep, and their total."""
    import xarray as xr

    with tempfile.TemporaryDirectory() as name:
        path, out = Path(name) / "sweep.yaml", Path(name) / "out"
        path.write_text(SWEEP, encoding="utf-8")
        done = run_sweep(path, samples=samples, seed=seed, out=out, with_plots=False).summary
        for scenario, row in done["each"].items():
            for output, entry in row.items():
                yield from spreads("quantiles of a sweep", f"{scenario} {output}", entry)
        with xr.open_dataset(out / "sweep.nc", engine="h5netcdf") as stored:
            shares, errors = stored["probability"].values, stored["probability_error"].values
    for place in np.ndindex(shares.shape):
        told = within(float(shares[place]), float(errors[place]), WITHIN)
        yield ("chances of a sweep", str(place)), told
    problems = [load_scenario(SCENARIO, [f"cluster.accelerator={one}"]) for one in ("H100-SXM-80GB", "B200-SXM")]
    spec = PortfolioSpec({"budget": "30 MUSD"}, False)
    found = portfolio.totals(problems, make_design(samples, seed=seed), spec, portfolio.limits_of(spec))
    for output, entry in found["totals"].items():
        yield from spreads("total of several runs", output, entry)
    for limit, entry in found["chances"].items():
        yield from chances("chance that a total keeps its limit", limit, entry)
    for key, index in found["drivers"]["inputs"].items():
        told = Told(index["total"], *index["interval_90"])
        yield ("Sobol' indices of a total", key), told


def of_closed_forms(samples: int, seed: int) -> Answers:
    """Second-order and group indices and Shapley effects of models whose indices are known."""
    problem = shapley_coverage.ishigami()
    cube = FunctionCube(lambda x: problem.function(x)[None], problem.names, quantile=problem.quantile)
    design, centre = make_design(samples, seed=seed), np.array([problem.mean])
    _, sums = group_indices(cube, design, {name: (name,) for name in problem.names}, centre)
    pairs = second_order(cube, design, problem.names, sums.base, centre)
    known = {("x0", "x2"): problem.total[2]}
    for i, names in enumerate(pairs.names):
        told = Told(*(float(part[i, 0]) for part in pairs.index), exact=float(known.get(names, 0.0)))
        yield ("second-order indices (closed form)", f"ishigami {names}"), told
    for name, each, mean, exact in shapley_coverage.cases():
        found = shapley_coverage.intervals(each, design, mean)
        for index, parts, truth in zip(("Shapley effects", "first-order", "total"), found, exact, strict=True):
            kind = index if index.startswith("Shapley") else "Sobol' indices, correlated inputs"
            for i, told in enumerate(zip(*parts, strict=True)):
                yield (f"{kind} (closed form)", f"{name} {index} x{i}"), Told(*map(float, told), exact=float(truth[i]))


def of_scores(samples: int, seed: int) -> Answers:
    """The standard errors beside the scores of validation: families of runs that share a part of their error."""
    rng = np.random.default_rng([seed, 7])
    # As many families as are published, a third of them with several runs.
    sizes = np.where(np.arange(71) % 3 == 0, 3, 1)
    families = np.repeat(np.arange(71).astype(str), sizes)
    errors = np.repeat(rng.normal(size=71), sizes) * 0.25 + rng.normal(size=len(families)) * 0.25
    sd = np.hypot(0.25, 0.25)
    cases = {"mean absolute error": (np.abs(errors), np.mean, sd * np.sqrt(2 / np.pi)),
             "coverage": ((np.abs(errors) < 1.645 * sd).astype(float), np.mean, 0.9)}  # fmt: skip
    for name, (values, statistic, exact) in cases.items():
        error = scoring.cluster_bootstrap(values, families, statistic, repeats=200, seed=seed)
        told = within(float(statistic(values)), error, 1.645)
        yield ("scores of validation ± 1.645 standard errors", name), told._replace(exact=float(exact))


class Study(NamedTuple):
    """A function that answers on one scramble; its samples, and those of a reference (0: exact values are known)."""

    answer: Callable[[int, int], Answers]
    command: str
    samples: int
    reference: int


STUDIES = {
    "run": Study(of_run, "run", SAMPLES, 2**18),
    "running": Study(of_running, "run", SAMPLES, 2**16),
    "compare": Study(of_compare, "compare", SAMPLES, 2**16),
    "sites": Study(of_sites, "sites", SAMPLES, 2**17),
    "measure": Study(of_measure, "measure", SAMPLES, 2**16),
    "solve": Study(of_solve, "solve", SAMPLES, 2**16),
    "sensitivity": Study(of_sensitivity, "sensitivity", SAMPLES, 2**16),
    "region": Study(of_region, "sensitivity", 2**14, 0),
    "sweep": Study(of_sweep, "sweep", SAMPLES, 2**16),
    "closed forms": Study(of_closed_forms, "sensitivity", SAMPLES, 0),
    "scores": Study(of_scores, "validate", 0, 0),
}


# ---- coverage ----------------------------------------------------------------------------------------------------


def answers(name: str, samples: int, seed: int, keep: Path | None) -> list[tuple[tuple[str, str], Told]]:
    """Answers on one scramble, from the folder `keep` where they are there."""
    path = keep / f"{name.replace(' ', '-')}-{samples}-{seed}.json" if keep else None
    if path and path.exists():
        return [((kind, what), Told(*told)) for kind, what, told in json.loads(path.read_text(encoding="utf-8"))]
    found = list(STUDIES[name].answer(samples, seed))
    if path:
        path.write_text(json.dumps([(*key, told) for key, told in found]), encoding="utf-8")
    return found


def coverage(name: str, scrambles: int, references: int = REFERENCES, keep: Path | None = None) -> list[dict[str, Any]]:
    """Return a row for each kind of interval of a study."""
    study = STUDIES[name]
    truth: dict[tuple[str, str], list[float]] = {}
    for seed in range(FIRST_REFERENCE, FIRST_REFERENCE + references) if study.reference else ():
        for key, told in answers(name, study.reference, seed, keep):
            truth.setdefault(key, []).append(told.value)
    found: dict[tuple[str, str], list[tuple[bool, float, float]]] = {}
    for seed in range(scrambles):
        for key, told in answers(name, study.samples, seed, keep):
            exact = told.exact if told.exact is not None else float(np.mean(truth.get(key, [np.nan])))
            found.setdefault(key, []).append((told.low <= exact <= told.high, told.high - told.low, exact))
    rows = []
    for kind in dict.fromkeys(kind for kind, _ in found):
        named = {quantity: np.array(values, dtype=float) for (k, quantity), values in found.items() if k == kind}
        told = {quantity: values for quantity, values in named.items() if _has_interval(kind, values)}
        if told:
            rows.append(_row(kind, study, told, truth))
    return rows


def _has_interval(kind: str, values: np.ndarray) -> bool:
    """Whether something is left to chance: an index that is 0 but for rounding has no error, a bound is printed alone.

    Quantities that few scrambles tell of, such as rules of two cuts, say nothing.
    """
    widths, exact = values[:, 1], values[:, 2]
    if kind.startswith("chance") and not BOUNDS[0] <= exact.mean() <= BOUNDS[1]:
        return False
    return len(values) >= 20 and bool(np.nanmedian(widths) > 1e-12 * max(1.0, abs(float(exact.mean()))))


def _row(
    kind: str, study: Study, told: Mapping[str, np.ndarray], truth: Mapping[tuple[str, str], list[float]]
) -> dict[str, Any]:
    shares = {quantity: float(values[:, 0].mean()) for quantity, values in told.items()}
    covered = np.array(list(shares.values()))
    doubts = [
        np.std(truth[kind, quantity], ddof=1) / np.sqrt(len(truth[kind, quantity])) / (values[:, 1].mean() / 2)
        for quantity, values in told.items()
        if len(truth.get((kind, quantity), ())) > 1
    ]
    return {
        "kind": kind,
        "command": study.command,
        "samples": study.samples,
        "scrambles": max(len(values) for values in told.values()),
        "quantities": len(covered),
        "lowest": round(float(covered.min()), 4),
        "lowest_of": min(shares, key=shares.__getitem__),
        "mean": round(float(covered.mean()), 4),
        "highest": round(float(covered.max()), 4),
        # Of the half width of the interval; what the references do not know blurs the coverage by as much.
        "reference_error": round(float(np.median(doubts)), 4) if doubts else 0.0,
    }


def merged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each kind, where two commands print it."""
    together: dict[str, dict[str, Any]] = {}
    for row in rows:
        old = together.get(row["kind"])
        if old is None:
            together[row["kind"]] = row
            continue
        count = old["quantities"] + row["quantities"]
        mean = (old["mean"] * old["quantities"] + row["mean"] * row["quantities"]) / count
        low = min((old, row), key=lambda one: one["lowest"])
        together[row["kind"]] = old | {
            "command": f"{old['command']}, {row['command']}", "quantities": count, "mean": round(mean, 4),
            "lowest": low["lowest"], "lowest_of": low["lowest_of"], "highest": max(old["highest"], row["highest"]),
        }  # fmt: skip
    return list(together.values())


def main(arguments: list[str] | None = None) -> int:
    """Measure the named studies, or all, and write them; 3 when a kind is outside what is allowed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("studies", nargs="*", default=list(STUDIES))
    parser.add_argument("--scrambles", type=int, default=SCRAMBLES)
    parser.add_argument("--keep", type=Path, help="folder of answers, with which an interrupted study goes on")
    asked = parser.parse_args(arguments)
    if asked.keep:
        asked.keep.mkdir(exist_ok=True)
    use_cache()
    studies: dict[str, Any] = {}
    for name in asked.studies:
        began = time.perf_counter()
        rows = coverage(name, asked.scrambles, keep=asked.keep)
        studies[name] = {"scrambles": asked.scrambles, "seconds": round(time.perf_counter() - began, 1), "rows": rows}
        for row in rows:
            shown = "{quantities:4}  {lowest:.3f} {mean:.3f} {highest:.3f}  {reference_error:.3f}  {lowest_of}"
            sys.stdout.write(f"{row['kind']:55} {shown.format(**row)}\n")
        sys.stdout.write(f"{name}: {studies[name]['seconds']:.0f} s\n")
        sys.stdout.flush()
    # Read afterwards: studies may run side by side.
    studies = (json.loads(RESULT.read_text(encoding="utf-8"))["studies"] if RESULT.exists() else {}) | studies
    rows = merged([row for name in STUDIES for row in studies.get(name, {"rows": []})["rows"]])
    if asked.scrambles >= FEWEST:
        kept = {
            "mass": 0.9, "replicates": 16, "allowed_mean": ALLOWED, "scenario": SCENARIO, "monte_carlo": rows,
            "studies": {name: studies[name] for name in STUDIES if name in studies},
            "versions": {name: version(name) for name in ("gpustack-mc", "numpy", "jax")},
        }  # fmt: skip
        RESULT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8", newline="\n")
    outside = [row["kind"] for row in rows if not ALLOWED[0] <= row["mean"] <= ALLOWED[1]]
    sys.stdout.write(f"outside {ALLOWED[0]} to {ALLOWED[1]}: {', '.join(outside) or 'none'}\n")
    return 3 if outside else 0


if __name__ == "__main__":
    sys.exit(main())
