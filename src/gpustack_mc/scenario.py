"""From a scenario file to a `Problem`: every quantity of the model with its distribution, origin and source."""

import copy
import datetime
import functools
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpustack_mc import (
    catalog,
    constants,
    formatting,
    losses,
    price_drift,
    priors,
    reliability,
    resale,
    running,
    schema,
    units,
    yamlfile,
)
from gpustack_mc.efficiency import Efficiency, efficiency, planned_run
from gpustack_mc.errors import did_you_mean
from gpustack_mc.facts import facts_of, medians
from gpustack_mc.priors import Facts, Marginal
from gpustack_mc.problem import PHASE_KEYS, Input, Phase, Problem, Published, Running, Source
from gpustack_mc.quantities import BY_NAME
from gpustack_mc.site_inputs import SiteInputs
from gpustack_mc.statements import UNKNOWN

if TYPE_CHECKING:
    from gpustack_mc.pack import Pack


def load_scenario(
    source: str | Path, overrides: Iterable[str] = (), priors: "Pack | Path | str | None" = None
) -> Problem:
    """Read, check and resolve a scenario.

    Parameters
    ----------
    source : str or Path
        A path, or ``-`` for standard input.
    overrides : iterable of str
        ``key=value`` as given to ``--set``; values are YAML.
    priors : Pack or path, optional
        A prior pack, see `gpustack_mc.pack`, that takes the place of shipped priors where it says something.

    Raises
    ------
    InputError
        Anything wrong with the file, with its place and the remedy.
    """
    return resolve(read_document(source, priors), overrides)


def read_document(source: str | Path, priors: "Pack | Path | str | None" = None) -> yamlfile.Document:
    """Read the document of a scenario, which `resolve` may be asked to resolve many times, with these priors."""
    document = yamlfile.parse(*yamlfile.read_text(source))
    if isinstance(priors, str | Path):
        from gpustack_mc import pack

        priors = pack.load(priors)
    return document._replace(pack=priors)


def resolve(
    document: yamlfile.Document, overrides: Iterable[str] = (), predictor: Callable[..., Efficiency] = efficiency
) -> Problem:
    """Check and resolve a scenario whose document was read; the document stays as it is.

    Parameters
    ----------
    document : Document
    overrides : iterable of str
    predictor : callable
        Takes the place of `gpustack_mc.efficiency.efficiency`, for callers that predict many scenarios at once.

    Raises
    ------
    InputError
        As `load_scenario`.
    """
    own = document._replace(data=copy.deepcopy(document.data))
    return _Resolver(own, tuple(overrides), predictor).problem()


class _Resolver(SiteInputs):
    """Gives every quantity of the model its distribution, from the document or from a prior."""

    def __init__(self, document: yamlfile.Document, overrides: tuple[str, ...], predictor: Callable[..., Efficiency]):
        super().__init__(document, overrides)
        self.predictor = predictor

    def problem(self) -> Problem:
        file = self.structure()
        self.rates = self._rates(file)
        accelerator = self._accelerator(file)
        region = self._region(file)
        for problem in reliability.contradictions(file):
            self.fail(*problem)
        self.check_sites(file)
        self.stop_if_wrong()
        entered = self._entered(file)
        inputs = self._scenario_inputs(file, accelerator, entered)
        phases, phase_inputs = self._phases(file, accelerator, inputs)
        self.stop_if_wrong()
        start = self.start(file)
        assert region is not None  # one that is not known was an error
        facts = facts_of(file, accelerator, region, inputs, self._year(file, start))
        middle = medians(inputs | phase_inputs)
        team = self.pack.team_fit if self.pack else None
        predict = functools.partial(self.predictor, file, accelerator, middle, facts.year, team=team)
        job = None
        if file.observed is not None:
            row = planned_run(file, accelerator, middle, facts.year)
            causes = self._causes(file, facts, inputs)
            job = running.observe(self, file, inputs | phase_inputs, phases, row, middle, causes, predict)
        found = job.after if job else predict()
        predicted = self._predicted(file, predict(team=None), found) if team else self._predicted(file, found)
        inputs |= self._prior_inputs(file, facts, entered, predicted)
        if inputs["rental_price"].origin in ("fitted", "calibrated") and "rental_price" not in entered:
            ahead = price_drift.years_ahead(start, facts.year)
            inputs["rental_price"] = price_drift.carried(inputs["rental_price"], ahead)
        if "residual_share" not in entered:
            inputs["residual_share"] = resale.at_end_of_life(inputs["residual_share"], inputs["lifetime"])
        at_sites, sites = self.site_inputs(file, facts)
        inputs |= at_sites
        inputs |= phase_inputs
        rest = running.continued(self, job, inputs, phases) if job else running.Continued(inputs, phases, {}, ())
        inputs, phases, tied, surprises = rest
        correlated, correlation = self._correlation(file, inputs, tied | self._tied(found, inputs))
        questions = self.questions(file, start)
        asked = self.asked(file, questions)
        published = self._published(file)
        self.stop_if_wrong()
        if file.reliability is not None:
            reliability.require_a_rate(inputs, self.located(("inputs", "interruption_rate")))
        order = {name: i for i, name in enumerate(BY_NAME)}
        ordered = dict(sorted(inputs.items(), key=lambda item: ("@" in item[0], order[item[1].quantity.name])))
        text = self.document.text + "".join(f"\n# --set {override}" for override in self.overridden.values())
        text += f"\n# --priors with pack.json of SHA-256 {self.pack.digest}" if self.pack else ""
        return Problem(
            name=file.name,
            text=text,
            digest=hashlib.sha256(text.encode()).hexdigest(),
            file=file,
            inputs=ordered,
            phases=phases,
            correlated=correlated,
            correlation=correlation,
            questions=questions,
            published=published,
            basis=self._basis(file, ordered),
            notes=(*surprises, *self._notes(file, ordered, predicted), *self.site_notes(file)),
            place=self.located,
            running=Running(job.words) if job else None,
            asked=asked,
            year=facts.year,
            start=start,
            overrides=self.overrides,
            written=self.document.text,
            pack_digest=self.pack.digest if self.pack else "",
            sites=sites,
        )

    def _rates(self, file: schema.ScenarioFile) -> dict[str, float]:
        for code, rate in file.exchange_rates.items():
            if not 0 < rate < float("inf"):
                self.fail(("exchange_rates", code), f"{rate} is not a rate.", f"State USD per {code}, above 0.")
        return {code: float(rate) for code, rate in file.exchange_rates.items()}

    def _accelerator(self, file: schema.ScenarioFile) -> catalog.Accelerator | None:
        if file.cluster.accelerator.casefold() == "other":
            return None
        return self._found(catalog.find_accelerator, file.cluster.accelerator, ("cluster", "accelerator"))

    def _region(self, file: schema.ScenarioFile) -> catalog.Region | None:
        return self._found(catalog.find_region, file.site.region, ("site", "region"))

    def _entered(self, file: schema.ScenarioFile) -> dict[str, Any]:
        return {name: getattr(file.inputs, name) for name in sorted(file.inputs.model_fields_set)}

    def _scenario_inputs(
        self, file: schema.ScenarioFile, accelerator: catalog.Accelerator | None, entered: dict[str, Any]
    ) -> dict[str, Input]:
        workload = file.workload
        inputs = {"params": self._input("params", workload.params, ("workload", "params"))}
        if workload.active_params is not None:
            path = ("workload", "active_params")
            inputs["active_params"] = self._input("active_params", workload.active_params, path)
            self._check_active(inputs, path)
        if workload.tokens is not None:
            inputs["tokens"] = self._input("tokens", workload.tokens, ("workload", "tokens"))
        inputs["accelerator_count"] = self._count(file.cluster.count, ("cluster", "count"))
        inputs["peak_flop_per_s"] = self._peak(file.cluster.precision, accelerator, entered, ("cluster", "precision"))
        inputs["tdp"] = self._tdp(accelerator, entered)
        interval = reliability.stated_interval(file, self.fail)
        if interval is not None:
            inputs["checkpoint_interval"] = self._input("checkpoint_interval", interval, reliability.INTERVAL)
        if "carbon_price" in entered:
            inputs["carbon_price"] = self._input("carbon_price", entered["carbon_price"], ("inputs", "carbon_price"))
        else:
            free = Marginal("fixed", {"value": 0.0})
            inputs["carbon_price"] = Input(
                "carbon_price", BY_NAME["carbon_price"], free, "derived", "no price of carbon is stated"
            )
        return inputs

    def _check_active(self, inputs: dict[str, Input], path: yamlfile.Path_) -> None:
        total, active = (inputs[name].marginal for name in ("params", "active_params"))
        if total.is_fixed and active.is_fixed and active.parameters["value"] > total.parameters["value"]:
            found = f"{active.parameters['value']:g} is more than all {total.parameters['value']:g} parameters."
            self.fail(path, found, "active_params counts those used for one token.")

    def _count(self, count: Any, path: yamlfile.Path_, key: str = "accelerator_count") -> Input:
        item = self._input("accelerator_count", count, path, key)
        number = item.marginal.parameters["value"] if item.marginal.is_fixed else 1.0
        if np.isfinite(number) and number != int(number):
            self.fail(path, f"{number:g} is not a whole number of accelerators.")
        return item

    def _peak(
        self,
        precision: str,
        accelerator: catalog.Accelerator | None,
        entered: dict[str, Any],
        path: yamlfile.Path_,
        key: str = "peak_flop_per_s",
    ) -> Input:
        if "peak_flop_per_s" in entered:
            return self._input("peak_flop_per_s", entered["peak_flop_per_s"], ("inputs", "peak_flop_per_s"), key)
        if accelerator is None or (peak := accelerator.peak_flop_per_s[precision]) is None:
            name = accelerator.name if accelerator else "an accelerator of your own"
            self.fail(
                path,
                f"no dense {precision} peak is known for {name}.",
                "State inputs.peak_flop_per_s, or another precision.",
                "unknown-peak",
            )
            return Input(key, BY_NAME["peak_flop_per_s"], UNKNOWN, "cited", "")
        return self._from_data_sheet("peak_flop_per_s", peak, f"dense {precision}", accelerator, key)

    def _from_data_sheet(self, name: str, value: float, what: str, accelerator: catalog.Accelerator, key: str) -> Input:
        source = Source(f"{accelerator.name} data sheet", accelerator.source_url)
        marginal = Marginal("fixed", {"value": value})
        words, year = f"{accelerator.name}, {what}", str(accelerator.release_year)
        return Input(key, BY_NAME[name], marginal, "cited", words, (source,), dated=year)

    def _tdp(self, accelerator: catalog.Accelerator | None, entered: dict[str, Any]) -> Input:
        if "tdp" in entered:
            return self._input("tdp", entered["tdp"], ("inputs", "tdp"))
        if accelerator is None or accelerator.tdp is None:
            name = accelerator.name if accelerator else "an accelerator of your own"
            self.fail(
                ("cluster", "accelerator"),
                f"the maker states no TDP for {name}.",
                "State inputs.tdp, e.g. 250 W.",
                "unknown-tdp",
            )
            return Input("tdp", BY_NAME["tdp"], UNKNOWN, "cited", "")
        return self._from_data_sheet("tdp", accelerator.tdp, "rated", accelerator, "tdp")

    def _phases(
        self,
        file: schema.ScenarioFile,
        accelerator: catalog.Accelerator | None,
        inputs: dict[str, Input],
    ) -> tuple[tuple[Phase, ...], dict[str, Input]]:
        workload = file.workload
        whole = {name: name for name in PHASE_KEYS if name != "goodput" or file.reliability is None}
        if workload.active_params is None:
            whole["active_params"] = "params"
        inputs["context_flop_factor"] = Input(
            "context_flop_factor",
            BY_NAME["context_flop_factor"],
            Marginal("fixed", {"value": 1.0}),
            "derived",
            "context no longer than in the runs the MFU prior was fitted on",
        )
        if (workload.tokens is None) == (workload.phases is None):
            problem = "is missing" if workload.tokens is None else "is stated beside phases"
            self.fail(("workload", "tokens"), f"{problem}.", "State tokens, or phases that have tokens.", "missing-key")
            return (), {}
        if workload.phases is None:
            return (Phase("run", whole),), {}
        phases: list[Phase] = []
        added: dict[str, Input] = {}
        names: set[str] = set()
        for i, phase in enumerate(workload.phases):
            path = ("workload", "phases", i)
            if phase.name in names or not re.fullmatch(r"[\w .-]+", phase.name):
                self.fail((*path, "name"), f"{units.shown(phase.name)} must be unique, of letters, digits, - and _.")
            names.add(phase.name)
            own = self._phase_inputs(file, phase, path, accelerator, inputs)
            added |= own
            phases.append(Phase(phase.name, whole | {item.quantity.name: key for key, item in own.items()}))
        return tuple(phases), added

    def _phase_inputs(
        self,
        file: schema.ScenarioFile,
        phase: schema.Phase,
        path: yamlfile.Path_,
        accelerator: catalog.Accelerator | None,
        inputs: dict[str, Input],
    ) -> dict[str, Input]:
        def key(name: str) -> str:
            return f"{name}@{phase.name}"

        own = [self._input("tokens", phase.tokens, (*path, "tokens"), key("tokens"))]
        for name in ("mfu", "goodput"):
            if getattr(phase, name) is not None:
                own.append(self._input(name, getattr(phase, name), (*path, name), key(name)))
        if phase.count is not None:
            own.append(self._count(phase.count, (*path, "count"), key("accelerator_count")))
        if phase.precision is not None:
            own.append(
                self._peak(
                    phase.precision, accelerator, self._entered(file), (*path, "precision"), key("peak_flop_per_s")
                )
            )
        if phase.sequence_length is not None:
            own.append(
                self._context(
                    file.workload,
                    phase.sequence_length,
                    (*path, "sequence_length"),
                    key("context_flop_factor"),
                    inputs.get("active_params", inputs["params"]),
                )
            )
        return {item.key: item for item in own}

    def _context(self, workload: schema.Workload, length: int, path: yamlfile.Path_, key: str, active: Input) -> Input:
        quantity = BY_NAME["context_flop_factor"]
        # Attention at the run's own context length is in the prediction of MFU.
        reference = workload.sequence_length or catalog.fit_record("utilization")["settings"]["typical_sequence_length"]
        if workload.n_layers is None or workload.d_model is None:
            self.fail(
                path,
                "a context length needs the shape of the model.",
                "State workload.n_layers and workload.d_model.",
                "missing-key",
            )
            return Input(key, quantity, UNKNOWN, "derived", "")
        # Imports jax, which a scenario without long contexts is checked without.
        from gpustack_mc.equations import context_flop_factor

        params = float(priors.quantiles(active.marginal, [0.5])[0])
        factor = context_flop_factor(params, workload.n_layers, workload.d_model, length, reference)
        words = f"causal attention over {length:,} tokens, against {reference:,} in the fitted runs"
        if not quantity.low <= factor <= quantity.high:
            self.fail(
                path, f"this context makes FLOP per token {factor:.3g} times the usual.", "Check the model's shape."
            )
        return Input(key, quantity, Marginal("fixed", {"value": factor}), "derived", words)

    def _causes(self, file: schema.ScenarioFile, facts: Facts, inputs: dict[str, Input]) -> dict[str, Input]:
        """Return the inputs that interruptions and, with reliability, losses of a job that runs follow from."""
        stated = [item for item in reliability.stated_inputs(file) if item.name in losses.NAMES]
        found = {
            item.name: self._prior_input(item.name, item.value, item.path, facts, {})
            for item in stated
            if item.name != "checkpoint_interval"
        }
        self.stop_if_wrong()
        if file.reliability is not None:
            reliability.require_a_rate(found, self.located(("inputs", "interruption_rate")))
            found |= {name: inputs[name] for name in ("checkpoint_interval",) if name in inputs}
        return found

    def _year(self, file: schema.ScenarioFile, start: datetime.date | None) -> int | None:
        if file.date is None and start is not None:
            return start.year
        return None if file.date is None else self._year_of(file.date, ("date",))

    def _correlation(
        self, file: schema.ScenarioFile, inputs: dict[str, Input], tied: dict[tuple[str, str], float]
    ) -> tuple[tuple[str, ...], np.ndarray]:
        """Names and matrix of normal scores: stated rank correlations, and those that `tied` holds already."""
        names = list(dict.fromkeys(name for pair in tied for name in pair))
        pairs: dict[tuple[str, str], float] = {}
        for i, correlation in enumerate(file.correlations):
            first, second = correlation.between
            path = ("correlations", i, "between")
            for step, name in enumerate(correlation.between):
                if name not in inputs:
                    self.fail(
                        (*path, step), f"there is no input {units.shown(name)}.", did_you_mean(name, tuple(inputs))
                    )
                elif inputs[name].marginal.is_fixed:
                    self.fail((*path, step), f"{name} is fixed, so it cannot be correlated.")
                elif name not in names:
                    names.append(name)
            if first == second or (first, second) in pairs or (second, first) in pairs:
                self.fail(path, f"{first} and {second} must be two inputs, each pair once.")
            if (first, second) in tied or (second, first) in tied:
                self.fail(path, f"what was observed ties {first} and {second} already.", "Leave it out.")
            # Spearman's rank correlation of a Gaussian copula (Pearson 1907).
            pairs[first, second] = 2 * np.sin(np.pi * float(correlation.rank) / 6)
        if self.errors or not names:
            return (), np.zeros((0, 0))
        matrix = np.eye(len(names))
        for (first, second), score in (tied | pairs).items():
            i, j = names.index(first), names.index(second)
            matrix[i, j] = matrix[j, i] = score
        smallest = float(np.linalg.eigvalsh(matrix).min())
        if smallest < 1e-9:
            message = (
                f"the correlation matrix of {', '.join(names)} is not positive definite (eigenvalue {smallest:.2g})."
            )
            self.fail(("correlations",), message, "No joint distribution has these correlations; weaken some of them.")
        return tuple(names), matrix

    def _published(self, file: schema.ScenarioFile) -> dict[str, Published]:
        figures = {}
        for name in sorted(file.published.model_fields_set):
            figure = getattr(file.published, name)
            value = self.number(figure.value, BY_NAME[name], ("published", name, "value"))
            figures[name] = Published(value, Source(figure.source, figure.url or ""), figure.outside or "")
        return figures

    def _notes(self, file: schema.ScenarioFile, inputs: dict[str, Input], predicted: dict[str, Input]) -> Iterator[str]:
        """Yield what is easily overlooked: an unlikely entered MFU, and what a contract or a purchase binds."""
        middle = medians(inputs)
        if file.reliability is not None:
            yield from reliability.notes(inputs)
        for name, prediction in predicted.items():
            low, high = priors.quantiles(prediction.marginal, [0.05, 0.95])
            if inputs[name].origin == "entered" and not low <= middle[name] <= high:
                yield (
                    f"your {name} of {middle[name]:.3g} is outside of what {self._whose()} runs at "
                    f"{file.cluster.precision} lead to expect (90%: {low:.2g} – {high:.2g})"
                )
        if price := middle["carbon_price"]:
            yield (
                f"all costs hold the emissions, operational and embodied, at {formatting.with_unit(price, 'USD', 3)} "
                "a tonne"
            )
        years = {"1yr": 1, "3yr": 3}.get(file.market.term)
        count = middle["accelerator_count"]
        if years and file.ownership != "own":
            bound = count * years * constants.HOURS_PER_YEAR * middle["rental_price"]
            yield (
                f"rent is charged for the run alone; a {years}-year contract for {count:,.0f} accelerators binds "
                f"{formatting.with_unit(bound, 'USD', 2)} at the median price"
            )
        if file.ownership != "rent":
            yield (
                f"owned cost is the run's share of the hardware; buying {count:,.0f} accelerators takes "
                f"{formatting.with_unit(count * middle['capex'], 'USD', 2)} at the median price"
            )

    def _whose(self) -> str:
        return "your own" if self.pack is not None and self.pack.team_fit is not None else "published"

    def _basis(self, file: schema.ScenarioFile, inputs: dict[str, Input]) -> dict[str, str]:
        if inputs["grid_intensity"].origin == "entered":
            basis: str = file.site.carbon_basis or "as entered"
        else:
            basis = inputs["grid_intensity"].where["carbon_basis"]
        return {"carbon_accounting": f"{file.site.carbon_accounting}-based", "carbon_basis": basis}
