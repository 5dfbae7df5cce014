"""Decisions that depend on a scenario: alternatives with their net benefit in every draw."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gpustack_mc import catalog, conditions, formatting, units
from gpustack_mc.design import Design
from gpustack_mc.errors import InputError, Place, did_you_mean
from gpustack_mc.problem import Problem
from gpustack_mc.propagation import Draws, propagate
from gpustack_mc.quantities import BY_NAME
from gpustack_mc.scenario import resolve
from gpustack_mc.yamlfile import Document

DECISIONS = ("own-or-rent", "go", "site")
# What differs between two sites although the same prior describes it.
SITE_INPUTS = ("pue", "electricity_price", "grid_intensity", "water_onsite", "water_offsite")
MOST_SITES = 10
# Inputs of other sites take dimensions of the Sobol' sequence that no input and no measurement takes.
_SITE_DIMENSION = 440


class Decision(NamedTuple):
    """Alternatives with their net benefits, and what may be known about them.

    Attributes
    ----------
    name, words : str
        As chosen, and the question in words.
    options : tuple of str
    benefits : ndarray, shape (options, n)
        USD.
    known : dict of str to ndarray, shape (n,)
        Uncertain inputs; those of one site are called "pue in FR".
    """

    name: str
    words: str
    options: tuple[str, ...]
    benefits: np.ndarray
    known: dict[str, np.ndarray]


def decision(
    document: Document,
    overrides: Iterable[str],
    problem: Problem,
    design: Design,
    draws: Draws,
    *,
    name: str | None = None,
    sites: Sequence[str] = (),
) -> Decision | None:
    """Return the decision that is meant; None when nothing says which.

    Parameters
    ----------
    document, overrides, problem, design, draws
        The scenario and its draws.
    name, sites
        As for `gpustack_mc.measure.run_measure`.

    Raises
    ------
    InputError
        There is no such decision, or what it needs is not stated.
    """
    ownership = problem.file.ownership
    worth = problem.questions.get("budget")
    if name is None:
        name = "site" if sites else "own-or-rent" if ownership == "either" else "go" if worth is not None else None
    if name is None:
        return None
    if name not in DECISIONS:
        fix = did_you_mean(name, DECISIONS)
        raise InputError("unknown-decision", f"{units.shown(name)} is no decision.", fix, Place("--decision"))
    if sites and name != "site":
        raise InputError("bad-option", f"sites do not matter to {name}.", "Leave them out.", Place("--site"))
    if name == "site":
        return _site(document, tuple(overrides), problem, design, sites)
    known = dict(zip(draws.varying, draws.inputs, strict=True))
    if name == "own-or-rent":
        benefits = -np.stack([draws.output("cost_owned_usd"), draws.output("cost_rented_usd")])
        return Decision(name, "own or rent", ("own", "rent"), benefits, known)
    if worth is None:
        fix = "Add --budget, or questions.budget to the scenario."
        raise InputError("no-budget", "nothing says what the run is worth.", fix, Place("--decision"))
    output = conditions.cost(conditions.subject(problem), Place("--decision"))
    gain = worth - draws.output(output)
    said = f"go ahead or not, with a run worth {formatting.with_unit(worth, 'USD', 4, exact=True)}"
    cost = BY_NAME[output].short.replace(",", "")
    return Decision(name, f"{said} against its {cost}", ("go", "no go"), np.stack([gain, np.zeros_like(gain)]), known)


def _site(
    document: Document, overrides: tuple[str, ...], problem: Problem, design: Design, sites: Sequence[str]
) -> Decision:
    """Choose the site with the least cost on owned hardware; what belongs to a site is drawn for each."""
    if problem.file.ownership == "rent":
        fix = "Add --set ownership=own."
        raise InputError("bad-option", "the rent does not depend on the site.", fix, Place("--decision"))
    if not 2 <= len(set(sites)) <= MOST_SITES or len(set(sites)) < len(sites):
        fix = "Name them as --site US-TX --site CA-QC."
        raise InputError("bad-sites", f"{len(set(sites))} sites are no choice.", fix, Place("--site"))
    costs: list[np.ndarray] = []
    known: dict[str, np.ndarray] = {}
    for number, word in enumerate(sites):
        region = _region(word)
        here = resolve(document, (*overrides, f"site.region={region}"))
        own = {key: f"{key} in {region}" for key in SITE_INPUTS if here.inputs[key].origin != "entered"}
        streams = {
            key: (name, _SITE_DIMENSION + len(SITE_INPUTS) * number + SITE_INPUTS.index(key))
            for key, name in own.items()
        }
        draws = propagate(here, design, streams=streams)
        costs.append(draws.output("cost_owned_usd"))
        known |= _renamed(draws, own)
    words = f"the site with the least cost of {', '.join(sites)}"
    return Decision("site", words, tuple(sites), -np.stack(costs), known)


def _region(word: str) -> str:
    try:
        return catalog.find_region(word).id
    except InputError as error:
        raise InputError(error.code, error.message, error.fix, Place("--site")) from None


def _renamed(draws: Draws, own: Mapping[str, str]) -> dict[str, np.ndarray]:
    return {own.get(key, key): values for key, values in zip(draws.varying, draws.inputs, strict=True)}
