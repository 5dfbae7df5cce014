"""What an observation makes of a scenario: the first phase is spent and known, the rest is forecast from it.

The accelerator-hours spent are count times days, whatever MFU and goodput they had apart. Where power was metered the
energy spent is known as well; else it is as uncertain as the power of the rest, which it shares.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from gpustack_mc import catalog, formatting, losses, metering, observed, priors
from gpustack_mc.efficiency import Efficiency, log_peak_ratio
from gpustack_mc.fits.utilization_predict import Evidence
from gpustack_mc.fits.utilization_running import Window, shape_of_window
from gpustack_mc.observed import SO_FAR, Observation
from gpustack_mc.priors import Marginal
from gpustack_mc.problem import PHASE_KEYS, Input, Phase
from gpustack_mc.quantities import BY_NAME
from gpustack_mc.schema import ScenarioFile
from gpustack_mc.statements import Statements

# Standard deviations of a prior beyond which a reading is pointed out: one in twenty.
_SURPRISE = 1.96
# Beyond these the priors are refuted, and a posterior would be the edge of what they hold.
_REFUTED, _MISFIT = 4.0, 3.0
REST = "rest"


class Job(NamedTuple):
    """What was observed, and what it makes of MFU and goodput.

    Attributes
    ----------
    seen : Observation
    before, after : Efficiency
        Without and with what was observed; the latter is of the rest.
    words : tuple of str
        What the rest is conditioned on, one line each.
    causes : dict of str to Marginal
        What interruptions and losses make of the inputs that they follow from.
    correlations : dict of (str, str) to float
        Between normal scores of these, and of MFU.
    notes : tuple of str
        What of them was not to be expected.
    """

    seen: Observation
    before: Efficiency
    after: Efficiency
    words: tuple[str, ...]
    causes: Mapping[str, Marginal] = MappingProxyType({})
    correlations: Mapping[tuple[str, str], float] = MappingProxyType({})
    notes: tuple[str, ...] = ()


class Continued(NamedTuple):
    """A scenario after the observation.

    Attributes
    ----------
    inputs : dict of str to Input
    phases : tuple of Phase
        The first is spent.
    correlations : dict of (str, str) to float
        Between normal scores of inputs that the observation ties together.
    notes : tuple of str
        What of it was not to be expected.
    """

    inputs: dict[str, Input]
    phases: tuple[Phase, ...]
    correlations: dict[tuple[str, str], float]
    notes: tuple[str, ...]


def observe(
    reader: Statements, file: ScenarioFile, inputs: Mapping[str, Input], phases: Sequence[Phase],
    row: Mapping[str, Any], middle: Mapping[str, float], causes: Mapping[str, Input],
    predict: Callable[..., Efficiency],
) -> Job:  # fmt: skip
    """Read what was observed and condition MFU and goodput on it, or what goodput follows from.

    Parameters
    ----------
    reader, file, inputs, phases, row
        As for `gpustack_mc.observed.read`.
    middle : mapping of str to float
        Medians of the workload and of the peak.
    causes : mapping of str to Input
        The rate of interruptions, and what else goodput follows from where the scenario states reliability.
    predict : callable
        `gpustack_mc.efficiency.efficiency` of this scenario, to be given evidence and window.

    Raises
    ------
    InputError
        The observation is incomplete, contradicts itself, or cannot be.
    """
    reader.stop_if_wrong()
    seen = observed.read(reader, file, inputs, phases, row)
    known = {name: item.marginal for name, item in causes.items()}
    often = float(priors.quantiles(known["interruption_rate"], [0.5])[0])
    rate = _rate(reader, seen, known["interruption_rate"])
    known["interruption_rate"] = rate.marginal
    notes: tuple[str, ...] = () if rate.surprise <= _SURPRISE else (
        f"the {formatting.plural(int(seen.interruptions or 0), 'interruption')} so far are {rate.surprise:.1f} "
        "standard deviations from what the rate leads to expect",
    )  # fmt: skip
    before = predict()
    if file.reliability is None:
        after = predict(*evidence(seen, row, middle, float(priors.quantiles(rate.marginal, [0.5])[0])))
        return Job(seen, before, after, words(seen, before, often), known, notes=notes)
    points = losses.prior_points(known, seen.count)
    before = before._replace(goodput=points.goodput())
    found, after = _by_failures(reader, seen, points, known, predict(_told(seen, row, middle)))
    if found.surprising:
        low, high = found.rest.expected
        notes += (
            f"the productive share so far of {seen.goodput:.3f} is outside of what the failures and checkpoints lead "
            f"to expect of the days so far (90%: {low:.3f} – {high:.3f})",
        )
    notes += ("goodput, its losses and the best checkpoint interval are those of the rest",)
    causes_now = known | {name: item for name, item in found.rest.marginals.items() if name != "mfu"}
    return Job(seen, before, after, words(seen, before, often), causes_now, found.rest.correlations, notes)


def _rate(reader: Statements, seen: Observation, prior: Marginal) -> losses.Given:
    """Condition the rate of interruptions on their count, where it was stated."""
    if seen.interruptions is None:
        return losses.Given(prior, 0.0)
    found = losses.rate_given(prior, seen.interruptions, seen.hours, catalog.observed_settings()["rate_change"])
    if found.surprise > _REFUTED:
        low, high = priors.quantiles(prior, [0.05, 0.95]) * seen.hours
        reader.fail(
            ("observed", "interruptions"),
            f"{seen.interruptions:g}, but the interruption_rate leads to expect {low:.2g} to {high:.2g}.",
            "Check it, or state inputs.interruption_rate of this cluster.",
            "contradiction",
        )
        reader.stop_if_wrong()
    return found


class _Caused(NamedTuple):
    """Losses by failures, and whether those so far were to be expected."""

    rest: losses.Rest
    surprising: bool


def _by_failures(
    reader: Statements, seen: Observation, points: losses.Prior, known: Mapping[str, Marginal], told: Efficiency
) -> tuple[_Caused, Efficiency]:
    """Condition what goodput follows from on the losses so far, and MFU where these are not known apart from it."""
    settings = catalog.observed_settings()
    apart = seen.speed_utilization is not None and seen.goodput is not None
    progress = losses.Progress(
        seen.hours, -float(np.log(seen.goodput)) if apart and seen.goodput else None, float(np.log(seen.utilization))
    )
    found = losses.rest_of_run(
        points, {**known, "mfu": told.mfu}, progress, change_sd=settings["loss_change"],
        resolution=settings["loss_resolution"],
        record_sd=catalog.fit_record("utilization")["settings"]["exact_record_sd"],
    )  # fmt: skip
    if not found.possible:
        what = f"a productive share of {seen.goodput:.3f}" if apart else f"{seen.utilization:.3f} of the peak in all"
        low, high = priors.quantiles(points.goodput(), [0.05, 0.95])
        reader.fail(
            ("observed",),
            f"{what} is not what the failures and checkpoints of reliability can make (90%: {low:.3f} – {high:.3f}).",
            "State restart_time or unexplained_loss of this job wider, or leave reliability out.",
            "contradiction",
        )
        reader.stop_if_wrong()
    low, high = found.expected
    words = f"{told.words}; then the days so far"
    after = told._replace(mfu=found.marginals.get("mfu", told.mfu), words=words, epistemic={})
    return _Caused(found, apart and not low <= seen.goodput <= high), after


def evidence(
    seen: Observation, row: Mapping[str, Any], middle: Mapping[str, float], interruption_rate: float
) -> tuple[tuple[Evidence, ...], Window]:
    """Return what the fit is told: the speed or the MFU, and the losses so far.

    Parameters
    ----------
    seen : Observation
    row : mapping
        From `gpustack_mc.efficiency.planned_run`.
    middle : mapping of str to float
        Medians of the workload and of the peak.
    interruption_rate : float
        Per accelerator-hour, at the median.
    """
    to_16_bit = log_peak_ratio(row, middle)
    told = _told(seen, row, middle)
    so_far, left = interruptions(seen, interruption_rate)
    shape = shape_of_window(so_far, left, catalog.observed_settings()["loss_change"])
    if seen.speed_utilization is not None and seen.goodput is not None:
        return told, Window(shape, loss=-float(np.log(seen.goodput)))
    return told, Window(shape, log_utilization=float(np.log(seen.utilization)) - to_16_bit)


def _told(seen: Observation, row: Mapping[str, Any], middle: Mapping[str, float]) -> tuple[Evidence, ...]:
    """What is known of the speed while it trains."""
    to_16_bit = log_peak_ratio(row, middle)
    if seen.speed_utilization is not None:
        return (Evidence(row, "compute_only", np.log(seen.speed_utilization) - to_16_bit, same_run=True),)
    if seen.mfu is not None:
        counted = {**row, "mfu_convention": seen.convention}
        return (Evidence(counted, "mfu", np.log(seen.mfu) - to_16_bit, same_run=True),)
    return ()


def interruptions(seen: Observation, interruption_rate: float) -> tuple[float, float]:
    """Interruptions to expect in the days so far, and in the rest at the same speed."""
    so_far = seen.hours * interruption_rate
    return so_far, so_far * seen.left / seen.tokens


def continued(reader: Statements, job: Job, inputs: Mapping[str, Input], phases: Sequence[Phase]) -> Continued:
    """Return inputs and phases of the run with its first part fixed and the rest conditioned.

    Parameters
    ----------
    reader : Statements
        Told when the priors cannot make what was metered.
    job : Job
    inputs : mapping of str to Input
        With MFU and goodput of the rest.
    phases : sequence of Phase
        As planned.
    """
    reader.stop_if_wrong()
    seen = job.seen
    found = dict(inputs)
    for name, marginal in job.causes.items():
        if marginal is not inputs[name].marginal:
            what = f"{inputs[name].prior}, given the days so far".lstrip(", ")
            found[name] = inputs[name]._replace(marginal=marginal, prior=what, epistemic=None)
    correlations: dict[tuple[str, str], float] = dict(job.correlations)
    notes = [*_unexpected(seen, job.before), *job.notes]
    keys = {name: name for name in PHASE_KEYS} | {"active_params": phases[0].keys["active_params"]}
    for name, value, words in _spent(seen):
        keys[name] = f"{name}@{SO_FAR}"
        found[keys[name]] = _fixed(keys[name], value, words)
    if seen.watts:
        metered = _metered(reader, seen, found, keys)
        found, correlations = found | metered.inputs, correlations | metered.correlations
        notes += metered.notes
    return Continued(*_rest(seen, found, phases, Phase(SO_FAR, keys)), correlations, tuple(notes))


def _unexpected(seen: Observation, before: Efficiency) -> Iterator[str]:
    """Yield what of the speed is outside of what published runs lead to expect."""
    low, high = priors.quantiles(before.mfu, [0.05, 0.95])
    value, what = seen.speed_utilization, "speed while it trains"
    if value is None:
        value, what = seen.utilization, "progress over the days so far"
        low *= priors.quantiles(before.goodput, [0.05])[0]
    if not low <= value <= high:
        yield (
            f"the job's {what} is {value:.2g} of the peak, outside of what published runs lead to expect (90%: "
            f"{low:.2g} – {high:.2g}); if it is no slip, it is what counts"
        )


class _Power(NamedTuple):
    inputs: dict[str, Input]
    correlations: dict[tuple[str, str], float]
    notes: list[str]


def _metered(reader: Statements, seen: Observation, inputs: Mapping[str, Input], keys: dict[str, str]) -> _Power:
    """Condition the power of the rest, and name in `keys` that of the spent phase, which is known."""
    settings = catalog.observed_settings()
    prior = {name: inputs[name].marginal for name in metering.POWER}
    sds = {scope: settings[f"{scope}_power_sd"] for scope in seen.watts}
    found = metering.condition(prior, seen.tdp, seen.watts, sds)
    if found.surprise > _REFUTED or found.misfit > _MISFIT:
        reader.fail(
            ("observed",),
            f"{_reading(seen)} per accelerator is not what the stated or known boards, hosts and PUE can make.",
            "Check unit, scope and cluster.count, or state inputs.gpu_power_fraction, host_power or pue of this site.",
            "contradiction",
        )
        reader.stop_if_wrong()
    scopes = " and ".join(f"{scope} power" for scope in seen.watts)
    moved = {
        name: inputs[name]._replace(
            marginal=marginal, prior=f"{inputs[name].prior}, given the {scopes} so far".lstrip(", ")
        )
        for name, marginal in found.marginals.items()
    }
    middle = {name: float(priors.quantiles({**inputs, **moved}[name].marginal, [0.5])[0]) for name in prior}
    for name, value in metering.split(seen.watts, seen.tdp, middle).items():
        keys[name] = f"{name}@{SO_FAR}"
        moved[keys[name]] = _fixed(keys[name], value, "metered so far")
    surprising = [
        f"the {scopes} so far is {found.surprise:.1f} standard deviations from what measured sites lead to expect"
    ]
    return _Power(moved, found.correlations, surprising if found.surprise > _SURPRISE else [])


def _reading(seen: Observation) -> str:
    return " and ".join(f"{formatting.number(value, 3)} W of {scope} power" for scope, value in seen.watts.items())


def _spent(seen: Observation) -> list[tuple[str, float, str]]:
    """Quantities of the spent phase: MFU and goodput are such that the hours are those spent."""
    goodput = seen.goodput if seen.goodput is not None and seen.utilization <= seen.goodput else 1.0
    words = "tokens over the days so far" + ("" if goodput == 1.0 else ", over the productive share")
    whole = "as observed" if seen.goodput is not None else "not known apart from the MFU so far"
    return [
        ("tokens", seen.tokens, "done so far"),
        ("mfu", seen.utilization / goodput, words),
        ("goodput", goodput, whole),
    ]


def _fixed(key: str, value: float, words: str) -> Input:
    return Input(key, BY_NAME[key.partition("@")[0]], Marginal("fixed", {"value": value}), "derived", words)


def _rest(
    seen: Observation, inputs: dict[str, Input], phases: Sequence[Phase], spent: Phase
) -> tuple[dict[str, Input], tuple[Phase, ...]]:
    """Drop phases that are done, and take from the one that runs what is done of it."""
    now = phases[seen.phase]
    name = now.name if len(phases) > 1 else REST
    key = f"tokens@{name}"
    stated = inputs[now.keys["tokens"]]
    gone = {key for phase in phases[: seen.phase] for key in phase.keys.values() if "@" in key} | {"tokens"}
    kept = {key: item for key, item in inputs.items() if key not in gone}
    kept[key] = Input(key, stated.quantity, seen.rest, stated.origin, f"{stated.prior}, less those done".lstrip(", "))
    rest = Phase(name, now.keys | {"tokens": key})
    return kept, (spent, rest, *phases[seen.phase + 1 :])


def words(seen: Observation, before: Efficiency, interruption_rate: float) -> tuple[str, ...]:
    """Say what the rest is conditioned on, and beside it what was to be expected."""
    lines = [
        f"spent: {formatting.with_unit(seen.days, 'day', 3, exact=True)}, {formatting.count(seen.tokens)} tokens, "
        f"{formatting.with_unit(seen.hours, 'h', 4)} of all accelerators, {seen.utilization:.3f} of the peak in all"
    ]
    if seen.speed_utilization is not None:
        lines.append(f"speed while it trains: {seen.speed_utilization:.3f} of the peak ({_expected(before.mfu)})")
    elif seen.mfu is not None:
        lines.append(f"logged MFU: {seen.mfu:.3g}, {seen.convention} ({_expected(before.mfu)} in 6N_only)")
    so_far, _ = interruptions(seen, interruption_rate)
    chance = f"{formatting.number(so_far, 2)} interruptions were to be expected in that time"
    if seen.interruptions is not None:
        chance += f" and {seen.interruptions:g} happened"
    if seen.speed_utilization is not None and seen.goodput is not None:
        lines.append(f"productive share: {seen.goodput:.3f} ({_expected(before.goodput)}); {chance}")
    else:
        lines.append(f"losses so far: not known apart from the speed; {chance}")
    settings = catalog.observed_settings()
    for scope, value in seen.watts.items():
        drawn = f"{scope} power: {formatting.number(value, 3)} W per accelerator"
        lines.append(f"{drawn}, a measure of the rest to {settings[f'{scope}_power_sd']:.0%} (one standard deviation)")
    return tuple(lines)


def _expected(marginal: Marginal) -> str:
    low, high = priors.quantiles(marginal, [0.05, 0.95])
    return f"before: {low:.2f} to {high:.2f}, 90%"
