"""What a scenario says of failures and checkpoints: which inputs then exist, what contradicts them, what to note."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from gpustack_mc import constants, formatting, priors, units
from gpustack_mc.arrays import Result
from gpustack_mc.errors import InputError, Place
from gpustack_mc.problem import Input
from gpustack_mc.quantities import BY_NAME, INPUTS
from gpustack_mc.schema import ScenarioFile
from gpustack_mc.yamlfile import Path_

# Rows of the table of results that these scenarios have besides those of all.
ROWS = (
    "expected_goodput",
    "checkpoint_loss_share",
    "lost_work_share",
    "restart_loss_share",
    "best_checkpoint_interval",
)
INTERVAL = ("reliability", "checkpoint_interval")
BEST = "best"
# A run with less goodput than this takes longer than any hardware lasts: it never ends.
NO_PROGRESS = 1e-4


class Stated(NamedTuple):
    """An input that a scenario has: its name, what is stated of it (None for the prior), and where."""

    name: str
    value: Any
    path: Path_


def stated_interval(file: ScenarioFile, fail: Callable[..., None]) -> Any:
    """Return the stated checkpoint interval, None where it is the best one or the scenario has none."""
    value = None if file.reliability is None else file.reliability.checkpoint_interval
    if isinstance(value, str) and not any(character.isdigit() for character in value):
        if value != BEST:
            fail(INTERVAL, f"{units.shown(value)} is neither a time nor best.", "Write 30 min, or best.")
        return None
    return value


def stated_inputs(file: ScenarioFile) -> Iterator[Stated]:
    """Yield the inputs that a scenario has: its goodput, or that from which goodput follows, never both."""
    for name in INPUTS:
        if BY_NAME[name].part:
            if file.reliability is not None:
                yield Stated(name, getattr(file.reliability, name), ("reliability", name))
        elif name != "goodput" or file.reliability is None:
            yield Stated(name, getattr(file.inputs, name), ("inputs", name))


def contradictions(file: ScenarioFile) -> Iterator[tuple[Path_, str, str, str]]:
    """Yield what does not go together: place, problem, remedy and code of the error."""
    if file.reliability is None:
        for name in sorted(file.published.model_fields_set):
            if BY_NAME[name].part:
                fix = "State reliability, or leave it out."
                yield ("published", name), "only a scenario with reliability has it.", fix, "contradiction"
        return
    places: list[tuple[Path_, Any]] = [(("inputs", "goodput"), dict(file.inputs)["goodput"])]
    places += [
        (("workload", "phases", i, "goodput"), phase.goodput) for i, phase in enumerate(file.workload.phases or ())
    ]
    for path, goodput in places:
        if goodput is not None:
            message = "goodput follows from reliability, which is stated too."
            yield path, message, "Remove one of the two.", "contradiction"


def require_a_rate(inputs: Mapping[str, Input], place: Place) -> None:
    """Raise an InputError where no interruption is expected, so that nothing follows from reliability."""
    if priors.quantiles(inputs["interruption_rate"].marginal, [1e-6])[0] == 0:
        found, fix = (
            "interruption_rate: 0 leaves nothing to follow from reliability.",
            "State a rate above 0, or goodput.",
        )
        raise InputError("out-of-bounds", found, fix, place)


def require_progress(goodput: np.ndarray, place: Place) -> None:
    """Raise an InputError when the run never ends in most draws of its goodput, shape (draws,)."""
    if (share := float(np.mean(goodput < NO_PROGRESS))) > 0.5:
        found = f"in {share:.0%} of the draws failures come so fast that the run never ends."
        fix = "State fewer accelerators, a lower inputs.interruption_rate, or checkpoint_interval: best."
        raise InputError("no-progress", found, fix, place)


def afterthoughts(tree: Result) -> Iterator[str]:
    """Yield what only the draws of a result tell: that the run never ends in some of them."""
    if "expected_goodput" in tree["prior_predictive"]:
        share = float(np.mean(tree["prior_predictive"]["expected_goodput"].values < NO_PROGRESS))
        if share > 0:
            said = f"{share:.1%}" if share >= 1e-3 else "less than 0.1%"
            yield f"in {said} of the draws failures come so fast that the run never ends"


def notes(inputs: Mapping[str, Input]) -> Iterator[str]:
    """Yield how often the run is interrupted, and what that means for its checkpoint interval."""
    middle, often = priors.quantiles(inputs["interruption_rate"].marginal, [0.5, 0.95])
    count = float(priors.quantiles(inputs["accelerator_count"].marginal, [0.5])[0])
    usual, worst = (1 / (rate * count) if rate > 0 else float("inf") for rate in (middle, often))
    found = f"an interruption is expected every {_time(usual)}"
    yield found if worst == usual else f"{found} at the median rate, every {_time(worst)} at its 95% quantile"
    if "checkpoint_interval" not in inputs:
        saving = float(priors.quantiles(inputs["checkpoint_save_time"].marginal, [0.5])[0])
        young = math.sqrt(2 * saving / constants.SECONDS_PER_HOUR * usual)
        yield f"checkpoints are taken at the best interval of each draw, about {_time(young)} at the medians"
    else:
        minutes = float(priors.quantiles(inputs["checkpoint_interval"].marginal, [0.5])[0])
        if minutes / constants.MINUTES_PER_HOUR > worst:
            yield (
                f"with {_time(minutes / constants.MINUTES_PER_HOUR)} between checkpoints hardly any work is saved at "
                f"the 95% quantile of the interruption rate; `checkpoint_interval: best` adapts to the rate"
            )


def _time(hours: float) -> str:
    if hours * constants.MINUTES_PER_HOUR < 1:
        return f"{formatting.number(hours * constants.SECONDS_PER_HOUR, 2)} s"
    return formatting.with_unit(hours / constants.HOURS_PER_DAY, "day", 2)
