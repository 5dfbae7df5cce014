"""Command lines, sound and not: every command with every option, on files of which some were changed."""

import contextlib
import io
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import hostile
from hostile import Make, Random, Use, pick

# Options that ask for minutes of computing, or for a network.
LEFT_OUT = ("refit", "scheduler", "help")
EXIT_CODES = (0, 1, 2, 3)
# What may fail although the input is sound, in the words of the error.
FAILURES = ("cannot write", "not enough memory")
FEWEST = {"measure": "4096", "plan": "4096", "sensitivity": "1024"}
FILES = ("plan.yaml", "sweep.yaml", "runs.csv", "result.nc", "pack")
# Commands that take longest come least often.
RARE = {"sensitivity": 0.4, "measure": 0.4, "plan": 0.3, "report": 0.5, "calibrate": 0.5, "compare": 0.6, "sites": 0.6}
SOUND: dict[str, tuple[str, ...]] = {
    "scenario": ("plan.yaml", "plan.yaml", "nanochat", "-", "result.nc", "llama-3-70b"),
    "scenarios": ("plan.yaml", "nanochat", "worked-70b"),
    "spec": ("sweep.yaml", "runs.csv"),
    "result": ("result.nc",),
    "table": ("runs.csv",),
    "output": ("energy_mwh", "cost_owned_usd", "mfu"),
    "outputs": ("energy_mwh", "cost_owned_usd,co2e_t", "all"),
    "file": ("new.yaml", "out/new.yaml"),
    "word": ("US", "de"),
    "name": ("mfu", "pue", "rental_price"),
    "where": ("accelerator=H100", "region=US-TX"),
    "overrides": ("mfu=0.4", "cluster.count=64", "inputs.pue=1.2", "site.region=CA-QC", "questions.budget=1 MUSD"),
    "samples": ("256", "512"),
    "seed": ("0", "7"),
    "tolerance": ("0.5",),
    "out": ("out",),
    "svg": ("out/chain.svg",),
    "calibration": ("pack",),
    "data": ("runs.csv",),
    "ask": ("energy_mwh <= 3 GWh", "budget and deadline"),
    "fail_if": ("P(energy_mwh <= 3 GWh) < 0.9", "p95(cost_owned_usd) > 20 MUSD"),
    "vary": ("ownership=own,rent", "cluster.count=8,16"),
    "regions": ("US-TX,US-CA", "gcp:europe-*"),
    "kind": ("us_state",),
    "variable": ("count", "mfu", "params", "tokens", "served-tokens"),
    "such_that": ("P(training_days <= 30 d) >= 0.9",),
    "probability": ("0.8",),
    "tokens_per_param": ("20",),
    "instead": ("3e9",),
    "price_drift": ("-18%", "-25% to 0%"),
    "between": ("8", "4096"),
    "accuracies": ("mfu=5%", "10%"),
    "decision": ("own-or-rent", "go", "site"),
    "sites": ("US-TX", "CA-QC"),
    "together": ("mfu,goodput",),
    "days": ("3",),
    "memory": ("80 GB",),
    "activations": ("8 GB",),
    "bytes_per_param": ("2,4,12",),
    "group": ("site=pue,electricity_price",),
    "budget": ("15 MUSD",),
    "deadline": ("45 d", "2027-03-01"),
    "carbon_cap": ("3000 t",),
    "energy_cap": ("10 GWh",),
    "power_cap": ("12 MW",),
}


def leaves(group: click.Group, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield all commands with the words that call them."""
    for name, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            yield from leaves(command, (*above, name))
        else:
            yield (*above, name), command


def value(random: Random, parameter: click.Parameter) -> str:
    """Return a value of an option or argument, hostile once in five times."""
    if random.random() < 0.2:
        return pick(random, hostile.HOSTILE).replace("\0", "")
    if isinstance(parameter.type, click.Choice):
        return str(pick(random, list(parameter.type.choices)))
    return pick(random, SOUND.get(parameter.name or "", ("x",)))


def command_line(random: Random, words: tuple[str, ...], command: click.Command) -> list[str]:
    """Return a command line: arguments, some options, and some tokens changed."""
    line = list(words)
    flags = {each.name for each in command.params}
    for parameter in command.params:
        if parameter.name in LEFT_OUT:
            continue
        if isinstance(parameter, click.Argument):
            count = 1 if parameter.nargs == 1 else int(random.integers(1, 4))
            if parameter.required or random.random() < 0.5:
                line += [value(random, parameter) for _ in range(count)]
        elif parameter.required or random.random() < 0.12:
            flag = pick(random, [*parameter.opts, *parameter.secondary_opts])
            line += [flag, *(value(random, parameter) for _ in range(0 if parameter.is_flag else parameter.nargs))]
    if "samples" in flags and "--samples" not in line:
        line += ["--samples", FEWEST.get(words[0], "256")]
    if "out" in flags and "-o" not in line and "--out" not in line and random.random() < 0.5:
        line += ["-o", "out"]
    while random.random() < 0.2:
        at, how = int(random.integers(len(words), len(line) + 1)), int(random.integers(4))
        token = line[at : at + 1]
        changed = (token * 2, [], [pick(random, hostile.HOSTILE)], [*token, pick(random, ("--json", "-q", "--", "-x"))])
        line[at : at + 1] = changed[how]
    return [token.replace("\0", "") for token in line]


def commands(folder: Path) -> tuple[Make, Use]:
    """Command lines, run in a folder of their own in the way the program runs them."""
    from gpustack_mc import calibration, cli
    from gpustack_mc.run import run_scenario

    # So deep that a way up from it stays inside the folder.
    origin, here = folder / "origin", folder / "a" / "b" / "c" / "here"
    scenario = (hostile.ROOT / "scenarios" / "nanochat.yaml").read_text(encoding="utf-8")
    runs = list(csv_rows(hostile.ROOT / "docs" / "how-to" / "my_runs.csv"))
    if not origin.exists():
        calibration.command(hostile.ROOT / "docs" / "how-to" / "my_runs.csv", origin / "pack", False, False, print)
        run_scenario("nanochat", samples=256, out=origin, pictures=())
        (origin / "summary.json").unlink()
        (origin / "plan.yaml").write_text(scenario, encoding="utf-8")
        (origin / "sweep.yaml").write_text(hostile.SMALL_SWEEP, encoding="utf-8")
        shutil.copy(hostile.ROOT / "docs" / "how-to" / "my_runs.csv", origin / "runs.csv")
    every = list(leaves(cli.cli))
    weights = np_weights([RARE.get(words[0], 1.0) for words, _ in every])
    keys = hostile.scenario_keys()
    calibration._sampled_anew = _not_sampled_anew

    def make(random: Random) -> list[str]:
        os.chdir(folder)
        shutil.rmtree(folder / "a", ignore_errors=True)
        here.parent.mkdir(parents=True)
        shutil.copytree(origin, here)
        os.chdir(here)
        if random.random() < 0.3:
            data = hostile.YAML(typ="safe", pure=True).load(scenario)
            data["name"] = pick(random, hostile.MARKUP)
            data["description"] = pick(random, hostile.MARKUP)
            if random.random() < 0.3:
                data = hostile.restructured(random, data, keys)
            Path("plan.yaml").write_text(hostile.dumped(data), encoding="utf-8")
            Path("sweep.yaml").write_bytes(hostile.changed_yaml(random, hostile.SMALL_SWEEP, hostile.SWEEP_KEYS))
            Path("runs.csv").write_bytes(hostile.changed_table(random, runs, runs[0]))
        words, command = every[int(random.choice(len(every), p=weights))]
        return command_line(random, words, command)

    def use(line: list[str]) -> str:
        before = set(_listing(folder))
        out, err, code = run(cli, line)
        found = judged(line, out, err, code)
        if found:
            return f"{found}: {' '.join(line)[:300]!r}"
        for path in set(_listing(folder)) - before:
            inside = path.relative_to(here) if path.is_relative_to(here) else None
            if inside is None and not any(token.startswith("..") for token in line):
                return f"{path} was written by {' '.join(line)[:300]!r}"
            if path.suffix in (".html", ".svg", ".md") and (found := hostile.page_findings(path)):
                return f"{found}: {' '.join(line)[:300]!r}"
        if code:
            raise Refused(_code(err, line) if code != 3 else "gate")
        return ""

    return make, use


class Refused(Exception):
    """A command line that was refused as it should be; says why."""


def _not_sampled_anew(*arguments: Any) -> Any:
    """Stand for the minute of sampling that is announced for runs which leave the shipped draws no weight."""
    from gpustack_mc.errors import GpustackError

    error = GpustackError("diagnostics", "sampling anew is left out here.")
    error.exit_code = 3
    raise error


def csv_rows(path: Path) -> list[list[str]]:
    """Return the cells of a table."""
    import csv

    return list(csv.reader(path.read_text(encoding="utf-8").splitlines()))


def np_weights(weights: list[float]) -> list[float]:
    """Return weights that add up to one."""
    return [weight / sum(weights) for weight in weights]


def run(cli: Any, line: list[str]) -> tuple[str, str, Any]:
    """Run a command line in this process; return what it printed and its exit code."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
    stdin, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(Path("plan.yaml").read_bytes()), "utf-8")
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            cli.main(line)
        code: Any = None
    except SystemExit as stop:
        code = stop.code
    finally:
        sys.stdin = stdin
    out.flush(), err.flush()
    return out.buffer.getvalue().decode(), err.buffer.getvalue().decode(), code


def judged(line: list[str], out: str, err: str, code: Any) -> str:
    """Return what is wrong with the answer to a command line."""
    if type(code) is not int or code not in EXIT_CODES:
        return f"exit code {code}"
    told = err.splitlines()
    if "Traceback" in err or not all(each.isprintable() for each in told):
        return f"a traceback or control characters: {err[-200:]!r}"
    if code in (1, 2) and (not told or not told[-1].strip()):
        return f"exit code {code} without a word"
    if code in (1, 2) and "--json" in line and line[0] != "schema":
        try:
            error = json.loads(told[-1])["error"]
        except (ValueError, KeyError, TypeError):
            return f"an error that is not JSON: {told[-1][:200]}"
        if code == 1 and not error["message"].startswith(FAILURES):
            return f"exit code 1: {error['message']}"
    elif code in (1, 2) and line[:1] != ["check"] and len(told[-1]) > 1000:
        return f"an error of {len(told[-1])} characters"
    elif code == 1 and not any(words in told[-1] for words in FAILURES):
        return f"exit code 1: {told[-1][:200]}"
    if code == 0 and not out.strip() and not {"-q", "--quiet"} & set(line):
        return "nothing printed"
    return ""


def _code(err: str, line: list[str]) -> str:
    """Return the kind of an error, where it is told, else the first words of it."""
    try:
        return json.loads(err.splitlines()[-1])["error"]["code"]
    except (ValueError, KeyError, TypeError, IndexError):
        return f"{line[0]} refused"


def _listing(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        for name in names:
            if not name.startswith("batch"):
                yield Path(parent, name)
