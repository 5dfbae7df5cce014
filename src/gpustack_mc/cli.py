"""The command ``gpustack-mc``: parse, call one library function, print. Heavy libraries load inside the commands."""

import json
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import click

from gpustack_mc import __version__, interruption
from gpustack_mc.commands import decide, forecast, lists, many, trust
from gpustack_mc.commands.sensitivity import sensitivity
from gpustack_mc.errors import GpustackError, InputErrors

HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(context_settings=HELP)
@click.version_option(__version__, prog_name="gpustack-mc")
def cli() -> None:
    """Credible intervals for the time, energy, CO2 and cost of training an AI model."""


_COMMANDS = (
    *(forecast.run, forecast.check, forecast.report, forecast.explain, forecast.cite, forecast.init),
    *(decide.compare, decide.sites, decide.solve, decide.measure, decide.plan, sensitivity, many.sweep),
    *(trust.validate, trust.calibrate, trust.priors, trust.reproduce),
    *(lists.quantities, lists.accelerators, lists.regions, lists.scenarios, lists.schema),
)
for _command in _COMMANDS:
    cli.add_command(_command)


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line; every failure is one line on stderr and an exit code."""
    # Overflows end as infinities, which are refused with a place; NumPy's own words would break the one line.
    warnings.filterwarnings("ignore", category=RuntimeWarning)
    arguments = list(sys.argv[1:] if args is None else args)
    as_json = "--json" in arguments
    try:
        code = cli.main(arguments, prog_name="gpustack-mc", standalone_mode=False)
    except GpustackError as error:
        code = _fail(error, as_json, arguments)
    except click.exceptions.Exit as stop:
        code = stop.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo(interruption.WORDS, err=True)
        code = interruption.EXIT_INTERRUPTED
    except click.ClickException as error:
        code = _usage(error, as_json)
    except BrokenPipeError:
        # The reader of our output has gone, e.g. `| head`; Python must not complain about it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as error:
        fix = "Free some space, or send the output elsewhere."
        failure = GpustackError("cannot-write", f"cannot write the output: {error.strerror or error}.", fix)
        code = _fail(failure, as_json, arguments)
    except MemoryError:
        failure = GpustackError("out-of-memory", "not enough memory.", "Use fewer --samples.")
        code = _fail(failure, as_json, arguments)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(error: GpustackError, as_json: bool, arguments: list[str]) -> int:
    if as_json:
        click.echo(json.dumps(error.as_dict()), err=True)
    elif isinstance(error, InputErrors) and arguments[:1] == ["check"]:
        for each in error.errors:
            click.echo(str(each), err=True)
    else:
        click.echo(str(error), err=True)
    return error.exit_code


def _usage(error: click.ClickException, as_json: bool) -> int:
    hint = ""
    if isinstance(error, click.UsageError) and error.ctx is not None:
        hint = f"See `{error.ctx.command_path} --help`."
    said = error.format_message()
    failure: Any = GpustackError("usage", said if said.endswith((".", "?")) else f"{said}.", hint)
    click.echo(json.dumps(failure.as_dict()) if as_json else str(failure), err=True)
    return error.exit_code


if __name__ == "__main__":
    main()
