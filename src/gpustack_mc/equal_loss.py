r"""A smaller model trained longer, to the loss of a larger one, and the served tokens from which it pays.

With the parametric scaling law :math:`L = E + A N^{-\alpha} + B D^{-\beta}`, a model of :math:`N_2` parameters reaches
the loss of :math:`N_1` parameters on :math:`D_1` tokens with

.. math:: D_2 = \left( D_1^{-\beta} + \frac{A}{B} (N_1^{-\alpha} - N_2^{-\alpha}) \right)^{-1/\beta},

if that exists: below some size no number of tokens is enough. The smaller model has trained dearer and serves cheaper;
for each draw it has made up for its training after

.. math:: S = 10^6\, \frac{X_2 - X_1}{x_1 - x_2}

served tokens, with :math:`X` what training takes and :math:`x` what a million served tokens take.

References
----------
Hoffmann et al. (2022), arXiv:2203.15556, equation 10; Besiroglu et al. (2024), arXiv:2404.10102; Sardana et al. (2023),
arXiv:2401.00448 (accounting for serving).
"""

import csv
import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from gpustack_mc import catalog, formatting
from gpustack_mc import constants as c
from gpustack_mc.design import Design
from gpustack_mc.errors import InputError, Place
from gpustack_mc.facts import medians
from gpustack_mc.problem import Problem
from gpustack_mc.propagation import Draws, propagate
from gpustack_mc.scenario import resolve
from gpustack_mc.yamlfile import Document

# What training takes, what a million served tokens take, and how many units of the second are one of the first.
PAIRS = {
    "energy": ("energy_mwh", "serving_kwh_per_million_tokens", c.KILOWATT_HOURS_PER_MEGAWATT_HOUR),
    "carbon": ("co2e_t", "serving_kgco2e_per_million_tokens", c.KILOGRAMS_PER_TONNE),
    "cost": ("cost_rented_usd", "serving_usd_per_million_tokens", 1.0),
}
PROBABILITIES = (0.05, 0.25, 0.5, 0.75, 0.95)


class Law(NamedTuple):
    """A fitted scaling law, without its irreducible loss, which is the same for both models."""

    name: str
    a: float
    b: float
    alpha: float
    beta: float
    largest_params: float
    source: str
    url: str

    def tokens(self, params: float, tokens: float, other: float) -> float:
        """Tokens with which `other` parameters reach the loss of `params` on `tokens`; infinite if none do."""
        left = tokens**-self.beta + self.a / self.b * (params**-self.alpha - other**-self.alpha)
        return left ** (-1 / self.beta) if left > 0 else float("inf")


@functools.cache
def laws() -> tuple[Law, ...]:
    """Return the published laws; the first is used."""
    with (catalog.folder("priors") / "scaling_laws.csv").open(encoding="utf-8", newline="") as stream:
        return tuple(
            Law(row["law"], float(row["A"]), float(row["B"]), float(row["alpha"]), float(row["beta"]),
                float(row["largest_params"]), row["source_title"], row["source_url"])
            for row in csv.DictReader(stream)
        )  # fmt: skip


def equal_loss(
    document: Document, overrides: Iterable[str], problem: Problem, design: Design, other: float
) -> dict[str, Any]:
    """Hold a scenario's model against another size trained to the same loss, JSON-ready.

    Raises
    ------
    InputError
        The law does not cover the scenario, or no number of tokens is enough.
    """
    place = Place("--instead")
    middle = medians(problem.inputs)
    params, tokens = middle["params"], middle["tokens"]
    _require(problem, place)
    if not 1e4 <= other < params:
        fix = f"State fewer than the scenario's {formatting.count(params)}."
        raise InputError("bad-value", f"{other:g} parameters are not a smaller model.", fix, place)
    law = laws()[0]
    longer = law.tokens(params, tokens, other)
    if not np.isfinite(longer) or longer > 1e19:
        message = f"no number of tokens brings {formatting.count(other)} parameters to the loss of the scenario."
        raise InputError("unreachable", message, f"That is what {law.source} says; try more.", place)
    changes = [f"workload.params={float(other)!r}", f"workload.tokens={float(longer)!r}"]
    smaller = resolve(document, (*overrides, *changes))
    first, second = propagate(problem, design), propagate(smaller, design)
    return {
        "schema_version": 1,
        "name": problem.name,
        "for": "served_tokens",
        "instead": {"params": float(other), "tokens": longer, "of_params": params, "of_tokens": tokens},
        "law": {"name": law.name, "source": law.source, "url": law.url},
        "tokens_by_law": {each.name: _finite(each.tokens(params, tokens, other)) for each in laws()},
        "training_ratio": _quantiles(second.output("energy_mwh") / first.output("energy_mwh")),
        "break_even": {name: _break_even(first, second, *pair) for name, pair in PAIRS.items()},
        "notes": _notes(law, params, other, longer),
    }


def _require(problem: Problem, place: Place) -> None:
    workload = problem.file.workload
    if workload.active_params is not None or workload.architecture not in (None, "dense"):
        raise InputError("bad-option", "the scaling law was fitted on dense models.", "Leave it out.", place)
    if workload.phases is not None:
        raise InputError("bad-option", "the scenario states tokens by phase.", "State tokens as one number.", place)
    if problem.inputs["serving_throughput"].origin == "entered":
        fix = "Leave inputs.serving_throughput out: its prior depends on the size."
        raise InputError("bad-option", "the throughput is stated, so that both sizes serve alike.", fix, place)


def _break_even(first: Draws, second: Draws, training: str, serving: str, factor: float) -> dict[str, Any]:
    more = factor * (second.output(training) - first.output(training))
    saved = first.output(serving) - second.output(serving)
    with np.errstate(divide="ignore"):
        served = np.where(saved > 0, c.TOKENS_PER_MILLION * np.maximum(more, 0.0) / saved, np.inf)
    return {
        **_quantiles(served),
        "probability_from_the_start": float(((more <= 0) & (saved > 0)).mean()),
        "probability_never": float((saved <= 0).mean()),
    }


def _quantiles(values: np.ndarray) -> dict[str, Any]:
    low, lower, middle, upper, high = (
        _finite(float(f"{end:.12g}")) for end in np.quantile(values, PROBABILITIES, method="inverted_cdf")
    )
    return {"median": middle, "interval_50": [lower, upper], "interval_90": [low, high]}


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _notes(law: Law, params: float, other: float, longer: float) -> list[str]:
    notes = [f"equal loss by {law.source}; its coefficients are taken as they are, without their standard errors"]
    if params > law.largest_params:
        largest = formatting.count(law.largest_params)
        notes.append(f"the law was fitted on models up to about {largest} parameters: extrapolated")
    ratio = longer / other
    notes.append(f"{ratio:,.0f} tokens per parameter; repeated data, where there are not so many, are worth less")
    return notes
