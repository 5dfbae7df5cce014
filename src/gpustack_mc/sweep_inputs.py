"""From what a scenario of a sweep changes to the numbers that the compiled model takes, without reading anything twice.

Reading a scenario takes 20 ms, most of it for the prediction of MFU and for finding populations of priors. Scenarios of
a sweep share nearly all of it: those that differ in plain numbers only (size, tokens, count, a stated input) have one
*template*, which is read as any scenario is. From it a scenario differs in the numbers themselves, in priors that are
regressions on them, and in its predicted MFU, which is made for a whole chunk at once. Whatever is not so simple (a job
that runs, phases, a prior pack) is read in full.
"""

import datetime
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from pydantic import TypeAdapter, ValidationError

from gpustack_mc import answering, catalog, priors, schema
from gpustack_mc.efficiency import Efficiency, efficiency, planned_run
from gpustack_mc.errors import InputError
from gpustack_mc.facts import covariates, facts_of, medians
from gpustack_mc.mfu_tables import mfu_tables
from gpustack_mc.priors import Kernel, StatementError
from gpustack_mc.problem import PHASE_KEYS, Problem, Term
from gpustack_mc.quantities import BY_NAME, DIMENSION, INPUTS, Quantity
from gpustack_mc.scenario import resolve
from gpustack_mc.shapes import MODEL_INPUTS, dimension
from gpustack_mc.statements import Statements
from gpustack_mc.sweep_plans import Group, Member, Planned, Survey, same, size_of
from gpustack_mc.sweep_spec import Setting, Sweep
from gpustack_mc.yamlfile import Document, Path_

_WORKLOAD: dict[Path_, str] = {
    ("workload", "params"): "params",
    ("workload", "active_params"): "active_params",
    ("workload", "tokens"): "tokens",
    ("cluster", "count"): "accelerator_count",
}
# Stated, these change what the priors and the prediction of MFU are asked for, or another input: resale follows life.
_STRUCTURAL = ("peak_flop_per_s", "tdp", "interruption_rate", "lifetime")
_DIVISORS = ("mfu", "goodput", "lifetime", "fleet_utilization", "serving_throughput")
# Of 20 kB each.
MOST_TEMPLATES = 5000
MOST_STATED = 20_000
_VALUE = TypeAdapter(schema.Value)


class _Regression(NamedTuple):
    slot: str
    population: Mapping[str, Any]
    quantity: Quantity


class _Template(NamedTuple):
    file: schema.ScenarioFile
    year: int | None
    asks: dict[str, tuple[Term, ...]]
    group: Group
    kernels: dict[str, Kernel]
    regressions: tuple[_Regression, ...]
    middle: dict[str, float]
    row: dict[str, Any] | None
    accelerator: catalog.Accelerator | None
    clean: bool


def applied(document: Document, settings: Iterable[Setting]) -> Document:
    """Return a document with other values; only what changes is copied.

    Raises
    ------
    InputError
        A path leads through what is no mapping.
    """
    data = dict(document.data)
    copied: set[Path_] = {()}
    for path, value in settings:
        node: Any = data
        for depth, step in enumerate(path[:-1], start=1):
            inner = node.get(step, {}) if isinstance(node, dict) else _entry(node, step, path, document)
            if path[:depth] not in copied:
                inner = dict(inner) if isinstance(inner, dict) else list(inner) if isinstance(inner, list) else inner
                node[step] = inner
                copied.add(path[:depth])
            node = inner
        if not isinstance(node, dict):
            _entry(node, path[-1], path, document)
        node[path[-1]] = value
    return document._replace(data=data)


def _entry(node: Any, step: Any, path: Path_, document: Document) -> Any:
    if isinstance(node, list) and isinstance(step, int) and step < len(node):
        return node[step]
    dotted = ".".join(str(part) for part in path)
    raise InputError("bad-key", f"the base scenario has no {dotted} to change.", "", document.place(path))


class Loader:
    """Makes the scenarios of one sweep ready.

    Parameters
    ----------
    sweep : Sweep
    """

    def __init__(self, sweep: Sweep):
        self.sweep, self.document = sweep, sweep.document
        self.templates: OrderedDict[Any, _Template] = OrderedDict()
        self.stated: OrderedDict[Any, Kernel | None] = OrderedDict()
        self.goodputs: dict[bool, Efficiency] = {}
        self.interned: Mapping[Group, Mapping[str, Kernel]] = {}
        data = self.document.data if isinstance(self.document.data, dict) else {}
        workload = data.get("workload")
        phases = isinstance(workload, dict) and "phases" in workload
        # The population of a prior that is named may be a regression.
        named = any(isinstance(value, dict) and "prior" in value for value in _inputs_of(data))
        self.simple = not phases and not named and "observed" not in data and self.document.pack is None
        self.structural = {("inputs", name) for name in _STRUCTURAL}
        rates = data.get("exchange_rates")
        self.rates = {k: v for k, v in rates.items() if _plain(v)} if isinstance(rates, dict) else {}

    # ---- one scenario ----

    def problem(self, number: int) -> Problem:
        """Read a scenario in full, as ``gpustack-mc run`` would.

        Raises
        ------
        InputError
            It is wrong.
        """
        return resolve(applied(self.document, self._settings(number)))

    def _settings(self, number: int) -> tuple[Setting, ...]:
        """Return what a scenario changes, and its name."""
        return *self.sweep.settings(number), (("name",), self.sweep.label(number) or self.sweep.name)

    def member(self, number: int) -> Member:
        """Make one scenario ready.

        Raises
        ------
        InputError
            It is wrong.
        """
        settings = self.sweep.settings(number)
        split = self._split(settings)
        if split is None:
            return _whole(self.problem(number))
        numbers, stated, key = split
        template = self._template(key, number)
        return self._filled(template, numbers, stated) or _whole(self.problem(number))

    def _split(self, settings: Sequence[Setting]) -> tuple[dict[str, float], dict[str, Kernel], Any] | None:
        """Tell plain numbers from what makes another template; None where the scenario must be read in full."""
        if not self.simple:
            return None
        numbers: dict[str, float] = {}
        stated: dict[str, Kernel] = {}
        rest: list[Any] = []
        for path, value in settings:
            if path in _WORKLOAD and _plain(value):
                numbers[_WORKLOAD[path]] = float(value)
                rest.append(path)
            elif len(path) == 2 and path[0] == "inputs" and path[1] in BY_NAME and path not in self.structural:
                kernel = self._stated(path[1], value)
                if kernel is None:
                    return None
                stated[path[1]] = kernel
                rest.append((path, kernel.form == "fixed"))
            elif path[:2] in (("workload", "phases"), ("observed",)) or path[0] == "observed":
                return None
            elif path == ("date",) and isinstance(value, str):
                # Priors know years, so that runs of one year have one template; what is no date has its own.
                rest.append((path, _year(value) or value))
            else:
                rest.append((path, repr(value)))
        if not all(_possible(name, value) for name, value in numbers.items()):
            return None
        return numbers, stated, tuple(rest)

    def _stated(self, name: str, value: Any) -> Kernel | None:
        """Return the kernel of a stated value; None where it is wrong or a fitted prior."""
        key = (name, repr(value))
        if key not in self.stated:
            self.stated[key] = self._statement(name, value)
            if len(self.stated) > MOST_STATED:
                self.stated.popitem(last=False)
        return self.stated[key]

    def _statement(self, name: str, value: Any) -> Kernel | None:
        if isinstance(value, dict) and schema.form_of(value) == "fitted":
            return None
        quantity = BY_NAME[name]
        if _plain(value):
            return _fixed(float(value)) if _possible(name, float(value)) else None
        reader = Statements(self.document.place)
        reader.rates = self.rates
        try:
            marginal, _ = reader.marginal(_VALUE.validate_python(value), quantity, ("inputs", name))
            reader.stop_if_wrong()
        except (InputError, ValidationError):
            return None
        return priors.kernel(marginal)

    # ---- templates ----

    def _template(self, key: Any, number: int) -> _Template:
        found = self.templates.get(key)
        if found is None:
            found = self._read(resolve(applied(self.document, self._settings(number)), predictor=self._predictor))
            self.templates[key] = found
            if len(self.templates) > MOST_TEMPLATES:
                self.templates.popitem(last=False)
        else:
            self.templates.move_to_end(key)
        return found

    def _predictor(self, file: schema.ScenarioFile, accelerator: Any, middle: Any, year: Any, *rest: Any,
                   **more: Any) -> Efficiency:  # fmt: skip
        """Predict goodput, which is the same for all new teams, and leave MFU for later."""
        if file.observed is not None or rest or any(value is not None for value in more.values()):
            return efficiency(file, accelerator, middle, year, *rest, **more)
        clean = _is_clean(file)
        if clean not in self.goodputs:
            self.goodputs[clean] = efficiency(file, accelerator, middle, year)
        return self.goodputs[clean]

    def _read(self, problem: Problem) -> _Template:
        group, kernels = _slots(problem)
        file = problem.file
        accelerator = None
        if file.cluster.accelerator.casefold() != "other":
            accelerator = catalog.find_accelerator(file.cluster.accelerator)
        middle = medians({key: item for key, item in problem.inputs.items() if key in _MIDDLE})
        mfu = problem.inputs["mfu"]
        predicted = mfu.origin == "fitted" and "mfu" not in file.inputs.model_fields_set
        if predicted:
            kernels.pop("mfu")
        return _Template(
            file,
            problem.year,
            terms_of(problem),
            group,
            self._common(group, kernels),
            tuple(_regressions(problem, accelerator)),
            middle,
            planned_run(file, accelerator, middle, problem.year) if predicted else None,
            accelerator,
            _is_clean(file),
        )

    def _filled(self, template: _Template, numbers: dict[str, float], stated: dict[str, Kernel]) -> Member | None:
        """Return a scenario of a template; None where something of it is wrong."""
        middle = template.middle | numbers
        if middle.get("active_params", 0.0) > middle["params"]:
            return None
        kernels = template.kernels | {name: kernel for name, kernel in stated.items() if name in template.group.slots}
        for name, value in numbers.items():
            if name in template.group.slots:
                kernels[name] = _fixed(value)
        if "active_params" not in middle and "active_params" in template.group.slots and "params" in numbers:
            kernels["active_params"] = _fixed(numbers["params"])
        if template.regressions:
            found = self._covariates(template, middle)
            for slot, population, quantity in template.regressions:
                marginal = priors.predict(population, found)
                try:
                    Statements(self.document.place).check_tails(marginal, quantity, "")
                except StatementError:
                    return None
                kernels[slot] = priors.kernel(marginal)
        planned = None
        if template.row is not None:
            own = {"params_active": middle.get("active_params", middle["params"]), "tokens": middle["tokens"],
                   "n_accelerators": middle["accelerator_count"]}  # fmt: skip
            planned = Planned(tuple((template.row | own).items()), middle["peak_flop_per_s"], template.clean)
        return Member(template.group, kernels, planned, template.asks)

    @staticmethod
    def _covariates(template: _Template, middle: Mapping[str, float]) -> dict[str, float]:
        file = template.file
        moe = file.workload.architecture
        return covariates(
            params=middle["params"],
            active_params=middle.get("active_params", middle["params"]),
            peak_flop_per_s=middle["peak_flop_per_s"],
            count=middle["accelerator_count"],
            moe=file.workload.active_params is not None if moe is None else moe == "moe",
            precision=file.cluster.precision,
            accelerator=template.accelerator,
            year=template.year,
        )

    # ---- all of them ----

    def survey(self) -> Survey:
        """Go through all scenarios and collect what occurs, and what all share.

        Scenarios that are wrong, or must be read in full, are left out; `sweep_plans.plan_for` takes them in.
        """
        survey = Survey()
        seen: set[Any] = set()
        for number in range(self.sweep.count):
            split = self._split(self.sweep.settings(number))
            if split is None:
                continue
            numbers, stated, key = split
            survey.state(stated)
            mark = (key, bool(numbers), tuple(sorted((name, k.form, size_of(k)) for name, k in stated.items())))
            if mark in seen:
                continue
            try:
                member = self.member(number)
            except InputError:
                continue
            seen.add(mark)
            # Other numbers make other predictions from a regression.
            own = [slot for slot, *_ in self._template(key, number).regressions] if numbers else []
            survey.add(member, own)
        self.interned = survey.shared()
        for known, template in self.templates.items():
            self.templates[known] = template._replace(kernels=self._common(template.group, template.kernels))
        return survey

    def _common(self, group: Group, kernels: dict[str, Kernel]) -> dict[str, Kernel]:
        """Return kernels in which those that all scenarios share are the same objects, so that they compare at once."""
        shared = self.interned.get(group, {})
        return {key: shared[key] if key in shared and same(k, shared[key]) else k for key, k in kernels.items()}


_MIDDLE = ("params", "active_params", "tokens", "accelerator_count", "peak_flop_per_s")
_ORDER = {name: i for i, name in enumerate(BY_NAME)}


def completed(members: Sequence[Member]) -> list[dict[str, Kernel]]:
    """Return all kernels of scenarios, MFU predicted; equal runs are predicted once."""
    wanted: dict[bool, dict[tuple[Any, ...], int]] = {False: {}, True: {}}
    for member in members:
        if member.planned:
            own = wanted[member.planned.clean]
            own.setdefault((member.planned.row, member.planned.peak), len(own))
    tables = {
        clean: mfu_tables([dict(row) for row, _ in own], [peak for _, peak in own], clean)
        for clean, own in wanted.items()
        if own
    }
    found = []
    for member in members:
        kernels = member.kernels
        if member.planned:
            planned = member.planned
            table = tables[planned.clean][wanted[planned.clean][planned.row, planned.peak]]
            kernels = kernels | {"mfu": Kernel("table", (table,))}
        found.append(kernels)
    return found


# ---- from a problem ---------------------------------------------------------------------------------------------


def _whole(problem: Problem) -> Member:
    group, kernels = _slots(problem)
    return Member(group, kernels, None, terms_of(problem))


def _slots(problem: Problem) -> tuple[Group, dict[str, Kernel]]:
    """Split a problem into what it shares with others and its numbers.

    A dense model with a stated size has its size as active parameters, so that it goes with mixtures of experts.
    """
    if problem.sites is not None:
        message = "a run that is spread over several sites cannot be swept."
        raise InputError(
            "not-in-a-sweep", message, "Run it alone with `gpustack-mc run`.", problem.place(("distributed",))
        )
    params = problem.inputs["params"].marginal
    rename = {"params": "active_params"} if "active_params" not in problem.inputs and params.is_fixed else {}
    phases = tuple(tuple((name, rename.get(key, key)) for name, key in p.keys.items()) for p in problem.phases)
    keys = {key for phase in problem.phases for key in phase.keys.values()}
    keys |= {name for name in MODEL_INPUTS if name in problem.inputs and name not in PHASE_KEYS}
    kernels = {rename.get(key, key): priors.kernel(problem.inputs[key].marginal) for key in keys}
    slots = tuple(sorted(kernels, key=lambda key: ("@" in key, _ORDER[key.partition("@")[0]], key)))
    original = {new: old for old, new in rename.items()}
    streams = tuple(dimension(problem.inputs[key], problem) if key not in original else DIMENSION[key] for key in slots)
    group = Group(problem.program, problem.outputs, slots, phases, streams, problem.correlated,
                  np.ascontiguousarray(problem.correlation, dtype=float).tobytes())  # fmt: skip
    return group, kernels


def _regressions(problem: Problem, accelerator: catalog.Accelerator | None) -> Iterable[_Regression]:
    """Yield the fitted inputs whose distribution depends on the numbers of the scenario."""
    file = problem.file
    region = catalog.find_region(file.site.region)
    facts = facts_of(file, accelerator, region, problem.inputs, problem.year)
    for name, item in problem.inputs.items():
        stated = name in file.inputs.model_fields_set or item.origin not in ("fitted", "assumed") or item.carried
        if name not in INPUTS or name in catalog.JOINT or stated:
            continue
        population = priors.select(catalog.fit_record(name), facts).population
        if "regression" in population["parameters"]:
            yield _Regression(name, population, item.quantity)


def _inputs_of(data: Mapping[str, Any]) -> Iterable[Any]:
    inputs = data.get("inputs")
    return inputs.values() if isinstance(inputs, dict) else ()


def _is_clean(file: schema.ScenarioFile) -> bool:
    return file.accounting == "clean" or file.reliability is not None


def _fixed(value: float) -> Kernel:
    return Kernel("fixed", (np.asarray(value),))


def _year(text: str) -> str | None:
    try:
        return str(datetime.date.fromisoformat(text).year) if len(text) == 10 and text.isascii() else None
    except ValueError:
        return None


def terms_of(problem: Problem) -> dict[str, tuple[Term, ...]]:
    """Return what a scenario asks, by the name of the question, as comparisons that must all hold."""
    limits = answering.limits_as_terms(problem.questions, problem.file.ownership)
    return limits | {asked.text: asked.terms for asked in problem.asked}


def _plain(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _possible(name: str, value: float) -> bool:
    """Whether a number passes the checks of a scenario; what does not is read in full, for the message."""
    quantity = BY_NAME[name]
    if not quantity.low <= value <= quantity.high or (value == 0 and name in _DIVISORS):
        return False
    return name != "accelerator_count" or value == int(value)
