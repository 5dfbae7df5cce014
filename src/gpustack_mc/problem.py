"""A scenario made ready for propagation: every quantity that enters the model, with its origin and source."""

import datetime
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from gpustack_mc.errors import Place
from gpustack_mc.priors import Marginal
from gpustack_mc.quantities import Quantity, outputs_of
from gpustack_mc.schema import ScenarioFile

# What `gpustack_mc.model.phase` takes; everything else belongs to the whole run.
PHASE_KEYS = (
    "active_params",
    "tokens",
    "context_flop_factor",
    "accelerator_count",
    "peak_flop_per_s",
    "mfu",
    "goodput",
)

# What a question limits, and the unit it is stored in; "cost" is the owned or the rented cost.
QUESTIONS = {
    "budget": ("cost", "USD"),
    "deadline": ("training_days", "day"),
    "carbon_cap": ("co2e_t", "tCO2e"),
    "energy_cap": ("energy_mwh", "MWh"),
    "power_cap": ("facility_power_mw", "MW"),
}


class Source(NamedTuple):
    """Where a number comes from."""

    title: str
    url: str
    licence: str = ""


class Input(NamedTuple):
    """One quantity that enters the model.

    Attributes
    ----------
    key : str
        The quantity's name; with ``@phase`` when it belongs to one phase only.
    quantity : Quantity
    marginal : Marginal
    origin : {"entered", "calibrated", "fitted", "cited", "assumed", "derived"}
        Stated by the user, fitted to the user's own runs, fitted to published data, from a data sheet, judged from the
        rows named, or computed from the others.
    prior : str
        One line: which population or statement this is.
    sources : tuple of Source
    where : dict of str to str
        Facts of the population, e.g. ``{"region": "US-CA"}``; empty for what is not a fitted prior.
    missed : tuple of str
        Facts of the scenario for which the prior knew only something more general.
    dated : str
        Years that the data are from, e.g. ``2019-2025``; empty where they are not known.
    collected : str
        When the data were collected and the prior was fitted.
    epistemic : float or None
        Share of the variance, on the working scale, that a better-known population would remove; None where it is not
        told apart from how members of the population differ.
    carried : float
        Years by which a price was carried on from the newest ones, see `gpustack_mc.price_drift`; age to which a resale
        value was carried, see `gpustack_mc.resale`; 0 where neither was.
    """

    key: str
    quantity: Quantity
    marginal: Marginal
    origin: str
    prior: str
    sources: tuple[Source, ...] = ()
    where: Mapping[str, str] = MappingProxyType({})
    missed: tuple[str, ...] = ()
    dated: str = ""
    collected: str = ""
    epistemic: float | None = None
    carried: float = 0.0


class Phase(NamedTuple):
    """A phase's name and, for each parameter of `gpustack_mc.model.phase`, the key of the input it takes.

    Power and PUE are named only where they are not those of the run.
    """

    name: str
    keys: dict[str, str]


class Sites(NamedTuple):
    """Where a run is spread over several sites.

    Attributes
    ----------
    mode : str
        One of ``lockstep``, ``survivors``, ``local_steps``.
    keys : tuple of dict of str to str
        For each site, the key of the input for each of its quantities.
    """

    mode: str
    keys: tuple[dict[str, str], ...]


class Published(NamedTuple):
    """A public figure for one output."""

    value: float
    source: Source
    outside: str


class Running(NamedTuple):
    """A job that runs: the first phase is what it has spent.

    Attributes
    ----------
    words : tuple of str
        What the forecast of the rest is conditioned on, one line each.
    """

    words: tuple[str, ...]


class Term(NamedTuple):
    """One comparison of an output with a limit in its unit, or with another output.

    `name` is the question that the limit comes from, if it comes from one.
    """

    output: str
    op: str
    limit: float | str
    name: str = ""


class Condition(NamedTuple):
    """Comparisons that must all hold; `text` is how it is written."""

    text: str
    terms: tuple[Term, ...]


class Problem(NamedTuple):
    """A scenario made ready for propagation.

    Attributes
    ----------
    name, text, digest : str
        The scenario's name, its YAML text and the SHA-256 of that text with its overrides.
    file : ScenarioFile
    inputs : dict of str to Input
        In the order of the table of quantities; phase inputs last.
    phases : tuple of Phase
    correlated : tuple of str
        Keys with a stated rank correlation.
    correlation : ndarray, shape (k, k)
        Correlation of their normal scores.
    questions : dict of str to float
        Limits in the unit of their output.
    published : dict of str to Published
    basis : dict of str to str
        Choices that every number depends on: carbon basis, accounting.
    notes : tuple of str
        What the user should know before trusting the answer.
    place : callable
        Where a path of the file stands, for later errors.
    running : Running or None
        Of a job that runs.
    asked : tuple of Condition
        Further conditions whose probability is asked for.
    year : int or None
        Year of the run, from its date or its start.
    start : datetime.date or None
        Day on which the run starts.
    overrides : tuple of str
        ``key=value`` that were laid over the file.
    written : str
        The YAML text as its file has it.
    pack_digest : str
        SHA-256 of the prior pack's record, empty without one.
    sites : Sites or None
        The sites that it is spread over.
    """

    name: str
    text: str
    digest: str
    file: ScenarioFile
    inputs: dict[str, Input]
    phases: tuple[Phase, ...]
    correlated: tuple[str, ...]
    correlation: np.ndarray
    questions: dict[str, float]
    published: dict[str, Published]
    basis: dict[str, str]
    notes: tuple[str, ...]
    place: Callable[..., Place]
    running: Running | None = None
    asked: tuple[Condition, ...] = ()
    year: int | None = None
    start: datetime.date | None = None
    overrides: tuple[str, ...] = ()
    written: str = ""
    pack_digest: str = ""
    sites: Sites | None = None

    @property
    def program(self) -> str:
        """Name of the function of `gpustack_mc.model` that this scenario is propagated through."""
        if self.file.reliability is None:
            return "run"
        return "run_with_checkpoints" if "checkpoint_interval" in self.inputs else "run_with_best_checkpoints"

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs, in the order of the table of quantities."""
        return outputs_stated(self.file)


def outputs_stated(file: ScenarioFile) -> tuple[str, ...]:
    """Return the outputs of a scenario: those of all, and those of the parts that it states."""
    sites = file.distributed
    parts = {"reliability": file.reliability is not None, "distributed": sites is not None}
    parts["links"] = sites is not None and sites.sites[0].link_speed is not None
    return outputs_of([part for part, stated in parts.items() if stated])
