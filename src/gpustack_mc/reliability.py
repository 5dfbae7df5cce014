"""What a scenario says of failures and checkpoints: which inputs then exist, what contradicts them, what to note."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gpustack_mc import constants, formatting, priors
from gpustack_mc.problem import Input
from gpustack_mc.quantities import BY_NAME, INPUTS
from gpustack_mc.schema import ScenarioFile
from gpustack_mc.yamlfile import Path_

BEST = "best"


class Stated(NamedTuple):
    """An input that a scenario has: its name, what is stated of it (None for the prior), and where."""

    name: str
    value: Any
    path: Path_


def is_word(value: Any) -> bool:
    """Whether a stated interval is a text without a number."""
    return isinstance(value, str) and not any(character.isdigit() for character in value)


def stated_inputs(file: ScenarioFile) -> Iterator[Stated]:
    """Yield the inputs that a scenario has: its goodput, or that from which goodput follows, never both."""
    for name in INPUTS:
        if BY_NAME[name].part:
            if file.reliability is not None:
                yield Stated(name, getattr(file.reliability, name), ("reliability", name))
        elif name != "goodput" or file.reliability is None:
            yield Stated(name, getattr(file.inputs, name), ("inputs", name))


def contradictions(file: ScenarioFile) -> Iterator[tuple[Path_, str, str]]:
    """Yield where a goodput is stated beside what it follows from: place, problem and remedy."""
    if file.reliability is None:
        return
    places: list[tuple[Path_, Any]] = [(("inputs", "goodput"), file.inputs.goodput)]
    places += [
        (("workload", "phases", i, "goodput"), phase.goodput) for i, phase in enumerate(file.workload.phases or ())
    ]
    for path, goodput in places:
        if goodput is not None:
            yield path, "goodput follows from reliability, which is stated too.", "Remove one of the two."


def notes(inputs: Mapping[str, Input]) -> Iterator[str]:
    """Yield how often the run is interrupted, and what that means for a stated checkpoint interval."""
    middle, often = priors.quantiles(inputs["interruption_rate"].marginal, [0.5, 0.95])
    count = float(priors.quantiles(inputs["accelerator_count"].marginal, [0.5])[0])
    usual, worst = (1 / (rate * count) if rate > 0 else float("inf") for rate in (middle, often))
    found = f"an interruption is expected every {_time(usual)}"
    yield found if worst == usual else f"{found} at the median rate, every {_time(worst)} at its 95% quantile"
    if "checkpoint_interval" in inputs:
        minutes = float(priors.quantiles(inputs["checkpoint_interval"].marginal, [0.5])[0])
        if minutes / constants.MINUTES_PER_HOUR > worst:
            yield (
                f"with {_time(minutes / constants.MINUTES_PER_HOUR)} between checkpoints hardly any work is saved at "
                f"the 95% quantile of the interruption rate; `checkpoint_interval: best` adapts to the rate"
            )


def _time(hours: float) -> str:
    return formatting.with_unit(hours / constants.HOURS_PER_DAY, "day", 2)
