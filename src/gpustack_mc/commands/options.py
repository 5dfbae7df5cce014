"""Options that several commands share, and the bar they show."""

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

EXIT_GATE = 3

scenario_argument = click.argument("scenario")
set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a value of the scenario, e.g. --set mfu=0.4 or --set cluster.count=4096.",
)
priors_option = click.option(
    "--priors",
    "calibration",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Priors calibrated on your own runs, see `gpustack-mc calibrate`.",
)
samples_option = click.option(
    "--samples", type=int, default=65_536, show_default=True, help="Monte Carlo samples, rounded up."
)
seed_option = click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object; errors are JSON on stderr.")


_LIMITS = {
    "budget": "15 MUSD",
    "deadline": "45 d, or 2027-03-01",
    "carbon_cap": "3000 t",
    "energy_cap": "10 GWh",
    "power_cap": "12 MW",
}


def limit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add one option for each question that a scenario may ask; the command gets them as `limits`."""

    @functools.wraps(command)
    def with_limits(**arguments: Any) -> Any:
        stated = {name: arguments.pop(name) for name in _LIMITS}
        limits = tuple(f"questions.{name}={value}" for name, value in stated.items() if value is not None)
        return command(**arguments, limits=limits)

    for name, example in reversed(_LIMITS.items()):
        flag = "--" + name.replace("_", "-")
        with_limits = click.option(flag, metavar="LIMIT", help=f"Ask for the chance to keep it, e.g. {example}.")(
            with_limits
        )
    return with_limits


class ProgressBar:
    """A bar on stderr while a terminal is attached to it; called with the share of the work that is done."""

    def __init__(self, shown: bool):
        self.shown = shown and sys.stderr.isatty()

    def __enter__(self) -> Callable[[float], None]:
        return self

    def __call__(self, share: float) -> None:
        """Draw the bar at a share between 0 and 1."""
        if self.shown:
            filled = round(30 * share)
            click.echo(f"\r  sampling {'█' * filled}{'·' * (30 - filled)} {share:4.0%}", nl=False, err=True)

    def __exit__(self, *error: object) -> None:
        if self.shown:
            click.echo("\r" + " " * 50 + "\r", nl=False, err=True)
