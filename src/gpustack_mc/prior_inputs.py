"""Inputs that a scenario does not state: from a fitted prior, from the user's own pack, or from another population."""

import datetime
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpustack_mc import catalog, formatting, priors, reliability, schema, units, yamlfile
from gpustack_mc.asking import Asking
from gpustack_mc.efficiency import Efficiency
from gpustack_mc.errors import InputError, did_you_mean
from gpustack_mc.priors import Facts, Marginal, StatementError
from gpustack_mc.problem import Input, Source
from gpustack_mc.quantities import BY_NAME, INPUTS
from gpustack_mc.statements import UNKNOWN

if TYPE_CHECKING:
    from gpustack_mc.pack import Pack


class PriorInputs(Asking):
    """Fills the inputs of a document from priors; collects errors as `Reader` does."""

    def __init__(self, document: yamlfile.Document, overrides: tuple[str, ...]):
        super().__init__(document, overrides)
        self.pack: Pack | None = document.pack

    def _found[Found](self, find: Callable[[str], Found], word: str, path: yamlfile.Path_) -> Found | None:
        try:
            return find(word)
        except InputError as error:
            self.fail(path, error.message, error.fix, error.code)
            return None

    def _input(self, name: str, value: Any, path: yamlfile.Path_, key: str | None = None) -> Input:
        quantity = BY_NAME[name]
        marginal, words = self.marginal(value, quantity, path)
        return Input(key or name, quantity, marginal, "entered", words)

    def _year_of(self, value: Any, path: yamlfile.Path_) -> int | None:
        text = str(value)
        try:
            whole = text if len(text) == 10 else f"{text}-01" if len(text) == 7 else f"{text}-01-01"
            year = datetime.date.fromisoformat(whole).year if text.isascii() else 0
        except ValueError:
            year = 0
        if not 1990 <= year <= 2100:
            self.fail(path, f"{units.shown(value)} is not a date.", "Write 2026 or 2026-11-30.")
            return None
        return year

    def _prior_inputs(
        self, file: schema.ScenarioFile, facts: Facts, entered: dict[str, Any], predicted: dict[str, Input]
    ) -> dict[str, Input]:
        stated = reliability.stated_inputs(file)
        inputs = {name: self._prior_input(name, value, path, facts, predicted) for name, value, path in stated}
        if file.site.carbon_accounting == "market" and "grid_intensity" not in entered:
            self.fail(
                ("site", "carbon_accounting"),
                "market-based emissions depend on your contracts.",
                "State inputs.grid_intensity.",
                "missing-key",
            )
        return inputs

    def _prior_input(
        self, name: str, value: Any, path: yamlfile.Path_, facts: Facts, predicted: dict[str, Input]
    ) -> Input:
        if value is None:
            return predicted.get(name) or self._fitted(name, name, facts, path, self.pack)
        if isinstance(value, schema.FittedPrior):
            return self._other_population(name, value, facts, path)
        return self._input(name, value, path)

    def _predicted(
        self, file: schema.ScenarioFile, found: Efficiency, told: Efficiency | None = None
    ) -> dict[str, Input]:
        """MFU and goodput, which are fitted jointly; MFU alone when goodput follows from failures."""
        fit = catalog.fit_record("utilization")
        source = Source(f"{len(fit['sources'])} reports of runs, see `gpustack-mc priors show mfu`", fit["data_file"])
        marginals = {"mfu": found.mfu} | ({"goodput": found.goodput} if file.reliability is None else {})
        shipped = {
            name: Input(
                name,
                BY_NAME[name],
                marginal,
                "fitted",
                found.words,
                (source,),
                dated=catalog.years(name),
                collected=fit["date"],
                epistemic=found.epistemic.get(name),
            )
            for name, marginal in marginals.items()
        }
        if told is None or self.pack is None or self.pack.team_fit is None:
            return shipped
        runs = f"your {formatting.plural(self.pack.team_fit.runs, 'run')}"
        return {name: self._calibrated(item, getattr(told, name), runs) for name, item in shipped.items()}

    def _calibrated(self, shipped: Input, marginal: Marginal, what: str) -> Input:
        """Return an input that the user's own runs moved; it says what it would be without them."""
        low, middle, high = (float(value) for value in priors.quantiles(shipped.marginal, [0.05, 0.5, 0.95]))
        words = f"on {what}; shipped prior {formatting.median_and_interval(middle, low, high, shipped.quantity.unit)}"
        assert self.pack is not None  # it holds the runs
        source = Source(f"{self.pack.record['table']}, in {self.pack.folder}", str(self.pack.folder))
        return shipped._replace(
            marginal=marginal,
            origin="calibrated",
            prior=words,
            sources=(source, *shipped.sources),
            missed=(),
            epistemic=None,
        )

    def _fitted(self, name: str, prior: str, facts: Facts, path: yamlfile.Path_, pack: "Pack | None" = None) -> Input:
        quantity = BY_NAME[name]
        fit = catalog.fit_record(prior)
        try:
            selection = priors.select(fit, facts)
            self.check_tails(selection.marginal, quantity, f"the prior of {prior}")
        except StatementError as problem:
            self.fail(path, str(problem), code="no-prior")
            return Input(name, quantity, UNKNOWN, "fitted", "")
        population = selection.population
        sources = tuple(
            Source(fit["sources"][key]["title"], fit["sources"][key]["url"], fit["sources"][key]["licence"])
            for key in population["sources"]
        )
        origin = "assumed" if population["method"].startswith("judged") else "fitted"
        item = Input(
            name,
            quantity,
            selection.marginal,
            origin,
            f"{population['label']} (n={population['n']})",
            sources,
            population["where"],
            selection.missed,
            catalog.years(prior, population["rows"]),
            fit["date"],
            priors.epistemic_share(population, facts.covariates),
        )
        found = pack.calibrated(prior, facts, selection) if pack else None
        if found is None:
            return item
        return self._calibrated(item, found.marginal, f"your {formatting.plural(found.count, 'measurement')}")

    def _other_population(self, name: str, value: schema.FittedPrior, facts: Facts, path: yamlfile.Path_) -> Input:
        if value.prior in catalog.JOINT:
            self.fail((*path, "prior"), f"{value.prior} is predicted from the whole scenario.", "Leave it out.")
        elif value.prior not in INPUTS:
            self.fail(
                (*path, "prior"), f"there is no prior {units.shown(value.prior)}.", did_you_mean(value.prior, INPUTS)
            )
        elif BY_NAME[value.prior].unit != BY_NAME[name].unit:
            message = f"the prior of {value.prior} is in {BY_NAME[value.prior].unit}, not in {BY_NAME[name].unit}."
            self.fail((*path, "prior"), message)
        else:
            fit = catalog.fit_record(value.prior)
            facts = self._with(facts, value.where, fit, path)
            return self._fitted(name, value.prior, facts, path)
        return Input(name, BY_NAME[name], UNKNOWN, "fitted", "")

    def _with(self, facts: Facts, where: dict[str, Any], fit: dict[str, Any], path: yamlfile.Path_) -> Facts:
        """Replace facts by those of a ``where`` in the scenario, refusing those that the prior does not know."""
        ladders, year = dict(facts.ladders), facts.year
        for key, value in where.items():
            known = {p["where"][key] for p in fit["populations"] if key in p["where"]}
            if key not in fit["ladder"]:
                self.fail((*path, "where", key), "this prior does not depend on it.", did_you_mean(key, fit["ladder"]))
            elif key == "year":
                year = self._year_of(value, (*path, "where", key))
            elif key == "region":
                region = self._found(catalog.find_region, str(value), (*path, "where", key))
                ladders[key] = catalog.region_ladder(region) if region else ()
            elif key == "accelerator":
                accelerator = self._found(catalog.find_accelerator, str(value), (*path, "where", key))
                ladders[key] = accelerator.ladder if accelerator else ()
            elif value not in known:
                self.fail(
                    (*path, "where", key), f"{units.shown(value)} has no data.", did_you_mean(value, sorted(known))
                )
            else:
                ladders[key] = (str(value),)
        return Facts(ladders, facts.covariates, year)

    def _tied(self, found: Efficiency, inputs: dict[str, Input]) -> dict[tuple[str, str], float]:
        """Correlation of MFU and goodput where evidence ties them together, unless one of them is stated."""
        both = [inputs[name] for name in ("mfu", "goodput") if name in inputs]
        uncertain = [item for item in both if item.origin in ("fitted", "calibrated") and not item.marginal.is_fixed]
        return {("mfu", "goodput"): found.correlation} if found.correlation and len(uncertain) == 2 else {}
