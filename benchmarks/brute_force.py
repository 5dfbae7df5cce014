"""Hold every kind of answer against plain Monte Carlo in NumPy.

Run ``python benchmarks/brute_force.py [draws]`` (default 2^21, about a minute on one core): it prints a table and
writes ``reports/validation/decisions.json``. The answers are those of the commands at their usual sample sizes. The
brute force shares nothing with them but the scenario's distributions: independent pseudo-random draws, SciPy's quantile
functions, the model written out once more, no Sobol' points, no compilation, no regression, no root finding on order
statistics.

`error` is the difference in the unit of the answer, `allowed` four standard errors of it, from 16 batches of the brute
force and the 16 replicates of the answer.
"""

import datetime
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import special, stats

from gpustack_mc import catalog
from gpustack_mc.answering import answers
from gpustack_mc.comparing import run_comparison
from gpustack_mc.coupling import couple
from gpustack_mc.design import make_design
from gpustack_mc.measure import run_measure
from gpustack_mc.problem import Problem
from gpustack_mc.propagation import simulate
from gpustack_mc.result import to_datatree
from gpustack_mc.scenario import load_scenario
from gpustack_mc.sites import run_sites
from gpustack_mc.solving import run_solve
from gpustack_mc.summarizing import summarise

REPORT = Path(__file__).parents[1] / "reports" / "validation" / "decisions.json"
DRAWS = 2**21
BATCHES = 16
STANDARD_ERRORS = 4.0
SCENARIO = "llama-3-70b"
# What `solve` asks for when nothing else is said.
CHANCE = 0.9
Draws = dict[str, np.ndarray]


class Check(NamedTuple):
    """One answer beside that of brute force.

    Attributes
    ----------
    what : str
    answer, brute_force : float
    allowed : float
        Largest difference that sampling explains.
    unit : str
    """

    what: str
    answer: float
    brute_force: float
    allowed: float
    unit: str

    @property
    def error(self) -> float:
        """Answer less brute force."""
        return self.answer - self.brute_force


# ---- draws, and the model once more ------------------------------------------------------------------------------


def at_scores(marginal: Any, z: np.ndarray) -> np.ndarray:
    """Quantile function of a distribution at normal scores, with SciPy's distributions."""
    p, u = marginal.parameters, None
    match marginal.family:
        case "fixed":
            return np.full(z.shape, float(p["value"]))
        case "normal":
            return p["mean"] + p["sd"] * z
        case "lognormal":
            return p.get("shift", 0.0) + np.exp(p["mu"] + p["sigma"] * z)
        case "logit_normal":
            low, high = p.get("low", 0.0), p.get("high", 1.0)
            return low + (high - low) * special.expit(p["mu"] + p["sigma"] * z)
        case "tabulated":
            values = np.asarray(p["values"], dtype=float)
            return np.interp(z, np.linspace(-6.5, 6.5, len(values)), values)
    u = special.ndtr(z)
    match marginal.family:
        case "uniform":
            return stats.uniform.ppf(u, p["low"], p["high"] - p["low"])
        case "log_uniform":
            return stats.loguniform.ppf(u, p["low"], p["high"])
        case "beta":
            low, high = p.get("low", 0.0), p.get("high", 1.0)
            return stats.beta.ppf(u, p["a"], p["b"], low, high - low)
        case "sample" | "choice":
            order = np.argsort(p["values"])
            weights = np.asarray(p.get("weights") or np.ones(len(order)), dtype=float)[order]
            return np.asarray(p["values"], dtype=float)[order][np.searchsorted(weights.cumsum() / weights.sum(), u)]
    raise ValueError(f"no brute force for {marginal.family}")


def inputs_of(problem: Problem, z: Mapping[str, np.ndarray], n: int) -> Draws:
    """Draws of every input of a scenario at given normal scores, correlated as the scenario says."""
    scores = {key: z[key] for key in problem.inputs if key in z}
    if problem.correlated:
        together = np.linalg.cholesky(problem.correlation) @ np.stack([z[key] for key in problem.correlated])
        scores |= dict(zip(problem.correlated, together, strict=True))
    zero = np.zeros(n)
    return {key: at_scores(item.marginal, scores.get(key, zero)) for key, item in problem.inputs.items()}


def scores_for(problems: list[Problem], rng: np.random.Generator, n: int) -> Draws:
    """Independent normal scores for every uncertain input of some scenarios, one for each name."""
    keys = sorted({key for p in problems for key, item in p.inputs.items() if not item.marginal.is_fixed})
    return {key: rng.standard_normal(n) for key in keys}


def goodput_of(n: np.ndarray, x: Draws) -> np.ndarray:
    """Goodput at the best checkpoint interval (Daly 2006) with Lambert's function."""
    rate = n * x["interruption_rate"]
    save, restart = x["checkpoint_save_time"] / 3600, x["restart_time"] / 60
    interval = (1 + special.lambertw(-np.exp(-1 - rate * save)).real) / rate
    worked = rate * interval / np.expm1(rate * (interval + save))
    return (1 - x["unexplained_loss"]) * np.exp(-rate * restart) * worked


def model(problem: Problem, x: Draws) -> Draws:
    """The outputs that are asked about, in plain NumPy and with its own constants."""
    hours = days = work = 0.0
    for phase in problem.phases:
        of = {name: x[key] for name, key in phase.keys.items()}
        good = of["goodput"] if "goodput" in of else goodput_of(of["accelerator_count"], x)
        flop = 6 * of["active_params"] * of["tokens"]
        part = of["context_flop_factor"] * flop / (of["peak_flop_per_s"] * of["mfu"] * good) / 3600
        hours, days, work = hours + part, days + part / of["accelerator_count"] / 24, work + part * good
    busy = 8766 * x["lifetime"] * x["fleet_utilization"]
    it = hours * (x["tdp"] * x["gpu_power_fraction"] + x["host_power"]) / 1e6
    energy = it * x["pue"]
    financed = x["cost_of_capital"] * x["lifetime"]
    annuity = np.divide(financed, -np.expm1(-financed), out=np.ones_like(financed), where=financed > 0)
    yearly = (1 - x["residual_share"]) * annuity / x["lifetime"]
    yearly = yearly + x["cost_of_capital"] * x["residual_share"] + x["operations_rate"]
    operational = energy * x["grid_intensity"] / 1e3
    carbon = operational + hours * x["embodied_carbon"] / busy / 1e3
    rented = hours * x["rental_price"] + carbon * x["carbon_price"]
    owned = hours * x["capex"] * yearly / (8766 * x["fleet_utilization"])
    owned = owned + 1e3 * energy * x["electricity_price"] + carbon * x["carbon_price"]
    return {
        "accelerator_hours": hours,
        "training_days": days,
        "expected_goodput": work / hours,
        "energy_mwh": energy,
        "facility_power_mw": energy / (24 * days),
        "co2e_operational_t": operational,
        "co2e_t": carbon,
        "water_m3": it * x["water_onsite"] + energy * x["water_offsite"],
        "cost_owned_usd": owned,
        "cost_rented_usd": rented,
        "programme_cost_rented_usd": rented * x["programme_overhead"],
    }


def outputs_of(problem: Problem, rng: np.random.Generator, n: int) -> Draws:
    """Outputs of independent draws of one scenario."""
    return model(problem, inputs_of(problem, scores_for([problem], rng, n), n))


# ---- numbers with their errors -----------------------------------------------------------------------------------


def batches(values: np.ndarray, statistic: Callable[[np.ndarray], float]) -> tuple[float, float]:
    """A statistic of all draws, and its standard error from batches."""
    parts = [statistic(part) for part in np.array_split(values, BATCHES, axis=-1)]
    return float(statistic(values)), float(np.std(parts, ddof=1) / math.sqrt(BATCHES))


def check(what: str, answer: float, error: float | None, brute: tuple[float, float], unit: str, floor=0.0) -> Check:
    """Hold an answer with its standard error against brute force with its own."""
    allowed = STANDARD_ERRORS * math.hypot(error or 0.0, brute[1]) + floor
    return Check(what, float(answer), brute[0], allowed, unit)


def share(held: np.ndarray) -> tuple[float, float]:
    """A share of draws, with the error of the binomial distribution."""
    p = float(held.mean())
    return p, math.sqrt(max(p * (1 - p), 1 / len(held)) / len(held))


def quantile_checks(what: str, entry: Mapping[str, Any], values: np.ndarray, unit: str) -> Iterator[Check]:
    """The median and both ends of a 90% interval."""
    errors = entry["monte_carlo_error"]
    found = {0.05: (entry["interval_90"][0], errors["interval_90"][0]), 0.5: (entry["median"], errors["median"]),
             0.95: (entry["interval_90"][1], errors["interval_90"][1])}  # fmt: skip
    for p, (answer, error) in found.items():
        brute = batches(values, lambda part, p=p: np.quantile(part, p))
        yield check(f"{what}, {p:.0%} quantile", answer, error, brute, unit)


# ---- the answers -------------------------------------------------------------------------------------------------


def run_checks(draws: int, samples: int, rng: np.random.Generator) -> Iterator[Check]:
    """Questions of ``run``, alone and joint, and the intervals they are asked of."""
    asked = {
        SCENARIO: [],
        "gpt-4-class": [],
        "llama-3.1-405b-checkpoints": ["questions.ask=['expected_goodput >= 0.85']"],
    }
    for name, more in asked.items():
        problem = load_scenario(name, more)
        tree = to_datatree(simulate(problem, make_design(samples), with_sensitivity=False))
        found, outputs = summarise(tree), outputs_of(problem, rng, draws)
        limits = {"budget": 0.0} | problem.questions
        kept = {
            "budget_owned": outputs["cost_owned_usd"] <= limits["budget"],
            "budget_rented": outputs["cost_rented_usd"] <= limits["budget"],
            "deadline": outputs["training_days"] <= limits["deadline"],
            "expected_goodput >= 0.85": outputs["expected_goodput"] >= 0.85,
        }
        kept |= {f"all_{kind}": kept[f"budget_{kind}"] & kept["deadline"] for kind in ("owned", "rented")}
        for key, answer in answers(tree).items():
            brute = share(kept[key])
            yield check(f"run {name}: P({key})", answer["probability"], answer["monte_carlo_error"], brute, "1")
        rows = ["expected_goodput"] if more else ["training_days", "energy_mwh", "co2e_t", "cost_owned_usd"]
        for row in rows:
            entry = found["outputs"][row]
            yield from quantile_checks(f"run {name}: {row}", entry, outputs[row], entry["unit"])


def solve_checks(draws: int, samples: int, rng: np.random.Generator) -> Iterator[Check]:
    """Values at which a chance is reached: bisection on fixed pseudo-random draws."""
    own = ["ownership=rent"]
    cases = {
        "count": (own, {"limits": {"deadline": "30 d"}}, lambda o: o["training_days"] <= 30, "cluster.count"),
        "tokens": (own, {"limits": {"budget": "15 MUSD"}}, lambda o: o["cost_rented_usd"] <= 15e6, "workload.tokens"),
        "rental_price": ([], {}, lambda o: o["cost_owned_usd"] <= o["cost_rented_usd"], "inputs.rental_price"),
        "mfu": (own, {"limits": {"deadline": "45 d"}}, lambda o: o["training_days"] <= 45, "inputs.mfu"),
    }
    for variable, (overrides, options, holds, key) in cases.items():
        found = run_solve(SCENARIO, overrides, variable=variable, samples=samples, **options)
        (solution,) = found["solutions"]
        value, (low, high) = solution["value"], solution["monte_carlo_interval_90"]
        scores = scores_for([load_scenario(SCENARIO, overrides)], rng, draws)

        def held(x: float, overrides=overrides, key=key, holds=holds, scores=scores) -> np.ndarray:
            problem = load_scenario(SCENARIO, [*overrides, f"{key}={round(x) if key == 'cluster.count' else repr(x)}"])
            return holds(model(problem, inputs_of(problem, scores, draws)))

        place, widths = math.log(value), (0.02, 0.002) if draws > 2**18 else (0.02,)
        # A chord over a few percent, and one over a tenth of it about its root: the chance may bend in between.
        for width in widths:
            ends = (place - width, place + width)
            sides = np.stack([held(math.exp(end)) for end in ends]).astype(float)
            place = _chord(sides, ends)
            brute = batches(sides, lambda part, ends=ends: math.exp(_chord(part, ends)))
        floor = 0.25 * widths[-1] * value
        yield check(f"solve {SCENARIO}: {variable}", value, (high - low) / 3.5, brute, found["unit"], floor)


def _chord(held: np.ndarray, ends: tuple[float, float]) -> float:
    """Where the chance, linear between two values, is the one that is asked for; held is (2, draws)."""
    chances = held.mean(axis=-1)
    return ends[0] + (CHANCE - chances[0]) * (ends[1] - ends[0]) / (chances[1] - chances[0])


def compare_checks(draws: int, samples: int, rng: np.random.Generator) -> Iterator[Check]:
    """Chances, differences and ratios of two accelerators."""
    vary = "cluster.accelerator=H100-SXM-80GB,B200-SXM"
    found = run_comparison([SCENARIO], vary=[vary], samples=samples, with_files=False).summary
    problems = [load_scenario(SCENARIO, [f"cluster.accelerator={name}"]) for name in vary.partition("=")[2].split(",")]
    rho = next(d.correlation for d in couple(problems, "common").differences if d.key == "mfu")
    z = scores_for(problems, rng, draws)
    other = z | {"mfu": rho * z["mfu"] + math.sqrt(1 - rho**2) * rng.standard_normal(draws)}
    first, second = (model(p, inputs_of(p, s, draws)) for p, s in zip(problems, (z, other), strict=True))
    for name in ("training_days", "energy_mwh", "cost_owned_usd", "cost_rented_usd"):
        entry = found["comparisons"][0]["outputs"][name]
        answer, a, b = entry["other_lower"], first[name], second[name]
        yield check(f"compare: P(B below A) in {name}", answer["probability"], answer["monte_carlo_error"],
                    share(b < a), "1")  # fmt: skip
        yield from quantile_checks(f"compare: B - A in {name}", entry["difference"], b - a, entry["unit"])
        yield from quantile_checks(f"compare: B / A in {name}", entry["ratio"], b / a, "1")
    yield from _later_checks(draws, samples, rng)


def _later_checks(draws: int, samples: int, rng: np.random.Generator) -> Iterator[Check]:
    """Now against later: the price of one provider on two days of one path of yearly drifts."""
    base = ["date=2026", "ownership=rent"]
    vary = "start=2026-12-15,2028-06-01"
    found = run_comparison([SCENARIO], base, vary=[vary], samples=samples, with_files=False).summary
    problem, known = load_scenario(SCENARIO, base), catalog.price_drift_settings()
    reference = datetime.date.fromisoformat(f"{known['reference']}-15")
    days = [datetime.date.fromisoformat(day) for day in vary.partition("=")[2].split(",")]
    first, second = ((day - reference).days / 365.25 for day in days)
    mean = known["mean"] + known["mean_sd"] * rng.standard_normal(draws)
    until = [known["year_sd"] * math.sqrt(years) * rng.standard_normal(draws) for years in (first, second - first)]
    x = inputs_of(problem, scores_for([problem], rng, draws), draws)
    costs = [model(problem, x)["cost_rented_usd"] * np.exp(mean * years + drifted)
             for years, drifted in ((first, until[0]), (second, until[0] + until[1]))]  # fmt: skip
    entry = found["comparisons"][0]["outputs"]["cost_rented_usd"]
    answer, what = entry["other_lower"], "compare: now and later, cost_rented_usd"
    yield check(f"{what}, P(B below A)", answer["probability"], answer["monte_carlo_error"], share(costs[1] < costs[0]),
                "1")  # fmt: skip
    yield from quantile_checks(f"{what}, B - A", entry["difference"], costs[1] - costs[0], entry["unit"])
    yield from quantile_checks(f"{what}, B / A", entry["ratio"], costs[1] / costs[0], "1")


def site_checks(draws: int, samples: int, rng: np.random.Generator) -> Iterator[Check]:
    """Chances of being best, with what differs between regions independent and at the same quantile."""
    regions = ["CA-QC", "CA-AB", "US-NM"]
    source = "llama-3-70b-us"
    found = run_sites(source, regions=",".join(regions), samples=samples, with_files=False).summary["regions"]
    problems = [load_scenario(source, [f"site.region={region}", "site.carbon_basis=direct"]) for region in regions]
    outputs = {"cost": "cost_owned_usd", "carbon": "co2e_operational_t", "water": "water_m3"}
    differing = ("electricity_price", "grid_intensity", "water_offsite", "water_onsite", "pue")
    for how, field in (("independent", "best_if_independent"), ("same quantile", "best_if_together")):
        z = scores_for(problems, rng, draws)
        drawn = []
        groups: dict[str, np.ndarray] = {}
        for problem in problems:
            own = dict(z)
            for key in differing if how == "independent" else ():
                # Equal distributions of one population are one unknown number in both regions.
                name = f"{key} {problem.inputs[key].marginal} {sorted(problem.inputs[key].where.items())}"
                name += f" {sorted(problem.inputs[key].missed)}"
                own[key] = groups.setdefault(name, rng.standard_normal(draws))
            drawn.append(model(problem, inputs_of(problem, own, draws)))
        for criterion, output in outputs.items():
            values = np.stack([part[output] for part in drawn])
            best = values <= values.min(axis=0) * (1 + 1e-12)
            best = best / best.sum(axis=0)
            for region, row in zip(regions, best, strict=True):
                answer = found[region][criterion][field]
                yield check(f"sites: P({region} best in {criterion}), {how}", answer["probability"],
                            answer["monte_carlo_error"], share(row), "1")  # fmt: skip


def measure_checks(draws: int, samples: int, rng: np.random.Generator) -> Iterator[Check]:
    """Values of information by nested Monte Carlo: a sample of its own for every value that might be learned."""
    sets = ["fleet_utilization", "rental_price", "capex", "fleet_utilization,rental_price"]
    found = run_measure(SCENARIO, samples=samples, together=sets[-1:])
    decision, problem = found["decision"], load_scenario(SCENARIO)
    everything = outputs_of(problem, rng, draws)
    costs = np.stack([everything["cost_owned_usd"], everything["cost_rented_usd"]])
    whole = decision["perfect_information_usd"]
    brute = batches(costs, lambda c: c.mean(axis=1).min() - c.min(axis=0).mean())
    yield check("measure: value of perfect information", whole["value"], whole["monte_carlo_error"], brute, "USD")
    entries = {name: decision["inputs"][name]["perfect"] for name in sets[:-1]}
    entries[sets[-1]] = decision["together"][0]["value_usd"]
    outer = 2 ** int(math.log2(draws) / 2 + 1)
    inner = draws // outer
    for name, entry in entries.items():
        z = scores_for([problem], rng, draws)
        for key in name.split(","):
            z[key] = np.repeat(_strata(rng, outer), inner)
        drawn = model(problem, inputs_of(problem, z, draws))
        gain = (drawn["cost_owned_usd"] - drawn["cost_rented_usd"]).reshape(outer, inner)
        # The larger of two estimates of one mean is biased by their noise: halves of the inner sample tell by how much.
        kept = [np.minimum(part.mean(axis=1), 0) for part in (gain, gain[:, ::2], gain[:, 1::2])]
        without_bias = 2 * kept[0] - (kept[1] + kept[2]) / 2
        gains = np.stack([gain.mean(axis=1), without_bias])
        value = batches(gains, lambda g: min(g[0].mean(), 0.0) - g[1].mean())
        # The regression has eight terms: what it cannot follow is a hundredth of the value of everything.
        yield check(f"measure: value of knowing {name}", entry["value"], entry["monte_carlo_error"], value, "USD",
                    0.01 * whole["value"])  # fmt: skip
    yield _width_check(found, problem, draws, rng)


def _strata(rng: np.random.Generator, n: int) -> np.ndarray:
    """A stratified sample of normal scores in random order, every batch of which is stratified as well."""
    numbers = np.arange(n).reshape(-1, BATCHES).T
    return special.ndtri((np.concatenate([rng.permutation(part) for part in numbers]) + rng.random(n)) / n)


def _width_check(found: Mapping[str, Any], problem: Problem, draws: int, rng: np.random.Generator) -> Check:
    """Expected width of the interval of the owned cost once MFU is known."""
    outer = 2 ** (int(math.log2(draws) / 2) - 2)
    z = scores_for([problem], rng, draws)
    z["mfu"] = np.repeat(_strata(rng, outer), draws // outer)
    costs = model(problem, inputs_of(problem, z, draws))["cost_owned_usd"].reshape(outer, -1)
    low, high = np.quantile(costs, [0.05, 0.95], axis=1)
    entry = found["expected_width_90"]["mfu"]["perfect"]["cost_owned_usd"]
    brute = batches(high - low, lambda part: part.mean())
    # Quantiles within bins of 256 draws are a half percent off in the mean.
    return check("measure: expected width of the owned cost, MFU known", entry["value"], entry["monte_carlo_error"],
                 brute, "USD", 0.005 * entry["value"])  # fmt: skip


CHECKS = {"run": run_checks, "solve": solve_checks, "compare": compare_checks, "sites": site_checks,
          "measure": measure_checks}  # fmt: skip
SAMPLES = {"run": 65_536, "solve": 65_536, "compare": 65_536, "sites": 16_384, "measure": 65_536}


def main(draws: int) -> int:
    """Print the table and write the report; 1 when an answer is further off than sampling explains."""
    rng = np.random.default_rng(20_261_130)
    found = [one for name, checks in CHECKS.items() for one in checks(draws, SAMPLES[name], rng)]
    longest = max(len(one.what) for one in found)
    header = f"{'':{longest}}  {'answer':>12} {'brute force':>12} {'error':>10} {'allowed':>10}\n"
    lines = [
        f"{one.what:{longest}}  {one.answer:12.5g} {one.brute_force:12.5g} {one.error:10.2g} {one.allowed:10.2g}"
        f"{'' if abs(one.error) <= one.allowed else '  FAR'}\n"
        for one in found
    ]
    sys.stdout.writelines([f"{draws:,} draws\n", header, *lines])
    far = [one.what for one in found if abs(one.error) > one.allowed]
    report = {
        "draws": draws,
        "samples": SAMPLES,
        "standard_errors_allowed": STANDARD_ERRORS,
        "far": far,
        "checks": [one._asdict() | {"error": one.error} for one in found],
    }
    REPORT.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 1 if far else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else DRAWS))
