r"""What was measured on a job that runs: read, turned into shares of the peak and watts, and held against itself.

With :math:`n` accelerators of peak :math:`P` and :math:`N` active parameters, the speed :math:`\dot D` while the job
trains, and the tokens :math:`D_0` done in :math:`t_0` days, say

.. math::
    u_\mathrm{trains} = \frac{6 N \dot D}{n P}, \qquad u_0 = \frac{6 N D_0}{86400\, n P t_0}, \qquad
    g_0 = u_0 / u_\mathrm{trains} .

Each observes the efficiency, the product, or the losses; what follows from them is in `gpustack_mc.running`.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpustack_mc import catalog, formatting, metering, priors
from gpustack_mc.constants import FLOP_PER_PARAM_AND_TOKEN, HOURS_PER_DAY, SECONDS_PER_HOUR, WATTS_PER_MEGAWATT
from gpustack_mc.fits.utilization_data import attention_ratio
from gpustack_mc.priors import Marginal
from gpustack_mc.problem import Input, Phase
from gpustack_mc.quantities import BY_NAME, OBSERVED
from gpustack_mc.schema import ScenarioFile
from gpustack_mc.statements import Statements

SECONDS_PER_DAY = SECONDS_PER_HOUR * HOURS_PER_DAY
SO_FAR = "so far"
"""Name of the phase that is spent."""
_EXAMPLES = {"W": "590 W", "MW": "1.3 MW", "MWh": "312 MWh", "s": "4 s"}
_DATE = re.compile(r"\d{4}-\d{1,2}(-\d{1,2})?$")
_METERED = tuple(f"{scope}_{kind}" for scope in metering.SCOPES for kind in ("power", "energy"))
_SHARED = ("accelerator_count", "peak_flop_per_s", "mfu", "goodput")


class Observation(NamedTuple):
    r"""What was measured, in the units of `gpustack_mc.quantities`.

    Attributes
    ----------
    days, tokens, left : float
        Spent, done, and (at the median) to be done.
    count, peak, tdp, active_params : float
        Of the job.
    utilization : float
        :math:`u_0`, of all hours so far.
    speed_utilization : float or None
        :math:`u_\mathrm{trains}`; None when the speed is neither stated nor follows.
    mfu : float or None
        As logged.
    convention : str
        Of the MFU.
    goodput : float or None
        Productive share so far.
    interruptions : float or None
        How often the job was interrupted so far.
    watts : dict of str to float
        Mean power per accelerator by scope.
    phase : int
        Index of the phase that runs now.
    rest : Marginal
        Tokens that are left of that phase.
    """

    days: float
    tokens: float
    left: float
    count: float  # type: ignore[assignment]  # the field, not the method of a tuple
    peak: float
    tdp: float
    active_params: float
    utilization: float
    speed_utilization: float | None
    mfu: float | None
    convention: str
    goodput: float | None
    interruptions: float | None
    watts: dict[str, float]
    phase: int
    rest: Marginal

    @property
    def hours(self) -> float:
        """Accelerator-hours spent."""
        return self.count * self.days * HOURS_PER_DAY


def read(
    reader: Statements, file: ScenarioFile, inputs: Mapping[str, Input], phases: Sequence[Phase], row: Mapping[str, Any]
) -> Observation:
    """Return what was observed; the scenario states something.

    Parameters
    ----------
    reader : Statements
        Collects the errors.
    file : ScenarioFile
    inputs : mapping of str to Input
        Workload and accelerators, those of the phases included.
    phases : sequence of Phase
    row : mapping
        The run as the fit reads it, see `gpustack_mc.efficiency.planned_run`.

    Raises
    ------
    InputError
        Something is missing, is no number, or contradicts something else.
    """
    reading = _Reading(reader, file, inputs, phases, row)
    found = reading.observation()
    reader.stop_if_wrong()
    return found


class _Reading:
    """One reading of ``observed``; every step may record errors and the next ones then stop."""

    def __init__(
        self, reader: Statements, file: ScenarioFile, inputs: Mapping[str, Input], phases: Sequence[Phase],
        row: Mapping[str, Any],
    ):  # fmt: skip
        self.reader, self.file, self.inputs, self.phases, self.row = reader, file, inputs, phases, row
        self.observed: Any = file.observed  # a model of pydantic whose fields are made from a table
        self.settings = catalog.observed_settings()
        self.stated = self._amounts()

    def fail(self, name: str, message: str, fix: str = "", code: str = "contradiction") -> None:
        self.reader.fail(("observed", name) if name else ("observed",), message, fix, code)

    def observation(self) -> Observation:
        self._require()
        count, peak, tdp = (self._known(name) for name in ("accelerator_count", "peak_flop_per_s", "tdp"))
        active = self._known(self.phases[0].keys["active_params"])
        self.reader.stop_if_wrong()
        seconds = self.stated["days"] * SECONDS_PER_DAY
        speed = self._speed()
        tokens = self._tokens(speed, seconds)
        self.reader.stop_if_wrong()
        work, phase, rest, left = self._walk(tokens)
        self.reader.stop_if_wrong()
        flop = FLOP_PER_PARAM_AND_TOKEN * active / (count * peak)
        utilization = self._possible(flop * work / seconds, "tokens", "observed.tokens, observed.days, cluster.count")
        factor = self._value(self.phases[phase].keys["context_flop_factor"])
        fast = None if speed is None else self._possible(flop * factor * speed, self._speed_key(), "its unit")
        goodput = self._goodput(speed, tokens, seconds)
        if fast is None and goodput is not None:
            fast = self._possible(utilization / goodput, "goodput", "observed.tokens, observed.days")
        watts = self._watts(count, tdp, seconds / SECONDS_PER_HOUR)
        self.reader.stop_if_wrong()
        self._check_mfu(fast, utilization)
        return Observation(
            self.stated["days"], tokens, left, count, peak, tdp, active, utilization, fast, self.stated.get("mfu"),
            self.observed.mfu_convention, goodput, self.stated.get("interruptions"), watts, phase, rest,
        )  # fmt: skip

    # ---- reading ----

    def _amounts(self) -> dict[str, float]:
        by_name = {quantity.name: quantity for quantity in OBSERVED}
        found = {}
        for name in sorted(self.observed.model_fields_set & set(by_name), key=list(by_name).index):
            amount, quantity = getattr(self.observed, name), by_name[name]
            bare = not isinstance(amount, str) or amount.strip().replace(".", "").replace("_", "").isdigit()
            if name in (*_METERED, "step_time") and bare:
                fix = f"Write it with one, as in {_EXAMPLES[quantity.unit]}."
                self.fail(name, f"{amount} has no unit.", fix, "bad-unit")
                continue
            if name == "days" and _DATE.match(str(amount)):
                fix = "State how many days the job has run, e.g. days: 12."
                self.fail(name, f"{amount} is a date.", fix, "bad-unit")
                continue
            found[name] = self.reader.number(amount, quantity, ("observed", name))
            if name == "interruptions" and found[name] % 1 > 0:
                self.fail(name, f"{found[name]:g} is not a whole number of interruptions.", "Count them.", "bad-value")
        return found

    def _require(self) -> None:
        if "days" not in self.observed.model_fields_set:
            self.fail("", "days is missing.", "State how long the job has run, e.g. days: 12.", "missing-key")
        if "mfu" in self.file.inputs.model_fields_set:
            self.reader.fail(("inputs", "mfu"), "would overrule what was observed.", "Leave it out.", "contradiction")
        for index, phase in enumerate(self.phases):
            if phase.name == SO_FAR:
                path = ("workload", "phases", index, "name")
                self.reader.fail(
                    path, f"{SO_FAR!r} is the part that has run.", "Name the phase otherwise.", "bad-value"
                )
        observed = self.observed.model_fields_set
        if "mfu_convention" in observed and "mfu" not in observed:
            self.fail("mfu_convention", "there is no observed.mfu.", "State it, or leave this out.", "missing-key")
        self.reader.stop_if_wrong()

    def _value(self, key: str) -> float:
        return float(priors.quantiles(self.inputs[key].marginal, [0.5])[0])

    def _known(self, key: str) -> float:
        if not self.inputs[key].marginal.is_fixed:
            path = {
                "accelerator_count": ("cluster", "count"), "params": ("workload", "params"),
                "active_params": ("workload", "active_params"),
            }.get(key, ("inputs", key))  # fmt: skip
            message = "a job that runs has a known value of this, not a distribution."
            self.reader.fail(path, message, "State a number.", "contradiction")
        return self._value(key)

    # ---- speed, tokens, goodput ----

    def _speed_key(self) -> str:
        return "tokens_per_second" if "tokens_per_second" in self.stated else "step_time"

    def _speed(self) -> float | None:
        """Tokens per second while the job trains."""
        speed = self.stated.get("tokens_per_second")
        if "step_time" not in self.stated:
            return speed
        batch = self.file.workload.global_batch_tokens
        if batch is None:
            fix = "State workload.global_batch_tokens, or observed.tokens_per_second instead."
            self.fail("step_time", "needs the tokens of a step.", fix, "missing-key")
            return None
        by_step = batch / self.stated["step_time"]
        if speed is not None and self._differ(by_step, speed):
            what = f"{batch:.4g} tokens in {self.stated['step_time']:.4g} s are {by_step:.4g} token/s"
            self.fail("step_time", f"{what}, not {speed:.4g}.", "State one of them.")
        return by_step if speed is None else speed

    def _differ(self, first: float, second: float, setting: str = "contradiction") -> bool:
        return bool(abs(np.log(first / second)) > self.settings[setting])

    def _tokens(self, speed: float | None, seconds: float) -> float:
        share = self.stated.get("goodput")
        if "tokens" not in self.stated:
            if speed is None or share is None:
                fix = "State observed.tokens, or tokens_per_second with goodput."
                self.fail("", "how far the run is, is not said.", fix, "missing-key")
                return float("nan")
            return speed * seconds * share
        tokens = self.stated["tokens"]
        if speed is not None and share is not None and self._differ(tokens, speed * seconds * share):
            made = f"{speed:.4g} token/s x {seconds:.4g} s x {share:.3g} make {speed * seconds * share:.4g} tokens"
            self.fail("tokens", f"{tokens:.4g}, but {made}.", "Check speed, days and goodput.")
        return tokens

    def _goodput(self, speed: float | None, tokens: float, seconds: float) -> float | None:
        if "goodput" in self.stated:
            return self.stated["goodput"]
        if speed is None:
            return None
        share = tokens / (speed * seconds)
        if share > 1 and self._differ(share, 1.0):
            made = f"at {speed:.4g} token/s all of {seconds:.4g} s make {speed * seconds:.4g}"
            self.fail("tokens", f"{tokens:.4g}, but {made}.", "Check speed and days.")
        return min(share, 1.0)

    def _possible(self, utilization: float, name: str, check: str) -> float:
        if not 0 < utilization <= 1:
            self.fail(name, f"this would be {utilization:.3g} of the peak.", f"Check {check}.", "out-of-bounds")
            return float("nan")
        return utilization

    def _check_mfu(self, fast: float | None, slow: float) -> None:
        """Hold a stated MFU against the speed, which measures the same thing without a convention."""
        if "mfu" not in self.stated:
            return
        if fast is None:
            if self.stated["mfu"] < slow and self._differ(self.stated["mfu"], slow):
                found = f"{self.stated['mfu']:.3g}, but tokens over days are {slow:.3g} of the peak with all losses."
                self.fail("mfu", found, "Check observed.tokens, observed.days and cluster.precision.")
            return
        convention = self.observed.mfu_convention
        settings = catalog.fit_record("utilization")["settings"]
        counted = settings["attention_counted"][convention]
        expected = fast * (1 + counted * float(attention_ratio([self.row], settings)[0]))
        if self._differ(self.stated["mfu"], expected, "mfu_contradiction"):
            found = f"{self.stated['mfu']:.3g}, but the speed is {fast:.3g} of the peak in 6N FLOP."
            self.fail("mfu", found, "Check mfu_convention, cluster.precision and the speed.")

    # ---- phases ----

    def _walk(self, tokens: float) -> tuple[float, int, Marginal, float]:
        """Work done in tokens of the reference context, the phase that runs, and what is left of it and in all."""
        work, done = 0.0, tokens
        for index, phase in enumerate(self.phases):
            marginal = self.inputs[phase.keys["tokens"]].marginal
            self._require_shared(phase, index)
            least = float(priors.quantiles(marginal, [1e-6])[0])
            factor = self._value(phase.keys["context_flop_factor"])
            if marginal.is_fixed and done >= least and index + 1 < len(self.phases):
                work, done = work + factor * least, done - least
                continue
            if done >= least:
                whole = formatting.count(tokens - done + least)
                of = f"of {whole}" if marginal.is_fixed else f"of what may be as few as {whole}"
                found = f"{formatting.count(tokens)} tokens are done {of}; nothing is left to forecast."
                self.fail("tokens" if "tokens" in self.stated else "", found, "Check workload.tokens.")
            rest = _less(marginal, done)
            later = sum(self._value(other.keys["tokens"]) for other in self.phases[index + 1 :])
            return work + factor * done, index, rest, float(priors.quantiles(rest, [0.5])[0]) + later
        raise AssertionError("a run has phases")

    def _require_shared(self, phase: Phase, index: int) -> None:
        own = [name for name in _SHARED if phase.keys.get(name, name) != name]
        if own:
            path = ("workload", "phases", index)
            message = f"{phase.name} has run or runs now, so its {own[0]} is that of the job."
            self.reader.fail(path, message, "State it in cluster, or leave it out.", "contradiction")

    # ---- power ----

    def _watts(self, count: float, tdp: float, hours: float) -> dict[str, float]:
        """Mean power per accelerator by scope, from powers and energies."""
        found: dict[str, float] = {}
        for scope in metering.SCOPES:
            power, energy = self.stated.get(f"{scope}_power"), self.stated.get(f"{scope}_energy")
            if power is not None and scope != "board":
                power = power * WATTS_PER_MEGAWATT / count
            used = None if energy is None else energy * WATTS_PER_MEGAWATT / (hours * count)
            if power is not None and used is not None and self._differ(power, used):
                made = f"the energy over the days so far is {used:.4g} W per accelerator"
                self.fail(f"{scope}_energy", f"{made}, the power {power:.4g} W.", "Check their units and scopes.")
            value = power if used is None else used
            if value is not None:
                found[scope] = value
        self._check_watts(found, tdp)
        return found

    def _check_watts(self, watts: Mapping[str, float], tdp: float) -> None:
        def key(scope: str) -> str:
            return f"{scope}_energy" if f"{scope}_energy" in self.stated else f"{scope}_power"

        most = tdp * BY_NAME["gpu_power_fraction"].high
        if watts.get("board", 0.0) > most:
            found = f"{watts['board']:.4g} W per board is more than {BY_NAME['gpu_power_fraction'].high:g} x TDP."
            self.fail(key("board"), found, "It is the mean of one board, not of a node.", "out-of-bounds")
        limits = {"it": most + BY_NAME["host_power"].high}
        limits["facility"] = limits["it"] * BY_NAME["pue"].high
        for scope, limit in limits.items():
            if watts.get(scope, 0.0) > limit:
                found = f"this is {watts[scope]:.4g} W per accelerator, which no site draws."
                self.fail(key(scope), found, "Check the unit, and cluster.count.", "out-of-bounds")
        present = [scope for scope in metering.SCOPES if scope in watts]
        for narrow, wide in itertools.pairwise(present):
            if watts[wide] < watts[narrow]:
                found = f"{watts[wide]:.4g} W per accelerator is less than the {watts[narrow]:.4g} W of {narrow}_power."
                self.fail(key(wide), found, "A wider scope draws more.")


def _less(marginal: Marginal, amount: float) -> Marginal:
    """Distribution of a quantity less a known amount."""
    if marginal.is_fixed:
        return Marginal("fixed", {"value": marginal.parameters["value"] - amount})
    if marginal.family in ("sample", "choice"):
        values = [value - amount for value in marginal.parameters["values"]]
        return Marginal(marginal.family, {**marginal.parameters, "values": values})
    return Marginal("tabulated", {"values": (metering.table(marginal) - amount).tolist()})
