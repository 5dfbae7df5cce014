"""``gpustack-mc sensitivity``: which inputs, and which groups of them, make the outputs of a scenario uncertain."""

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpustack_mc import drivers, groups, salib_bridge, sobol, storage, units, variance_split
from gpustack_mc.cube import LogCube, ModelCube, chunks, each_replicate, sample
from gpustack_mc.design import Design, make_design
from gpustack_mc.errors import InputError, Place, did_you_mean
from gpustack_mc.group_indices import Sums, alone_together, group_indices
from gpustack_mc.problem import QUESTIONS, Problem
from gpustack_mc.quantities import BY_NAME
from gpustack_mc.ratios import Ratio
from gpustack_mc.regional import Region, region
from gpustack_mc.scenario import load_scenario
from gpustack_mc.second_order import second_order
from gpustack_mc.shapley import shapley_effects
from gpustack_mc.tornado import tornado

SAMPLES = (1024, 2**24)
# Draws that regions, intervals and the choice of a scale are read from; sums go over all samples, chunk by chunk.
KEPT_DRAWS = 2**18
# The region that is described when the scenario states no limit of an output: its largest tenth.
TAIL = 0.9
# Interactions are sought among inputs whose total index exceeds their first-order index by this.
INTERACTING = 0.002
_COSTS = {"own": ("cost_owned_usd",), "rent": ("cost_rented_usd",), "either": ("cost_owned_usd", "cost_rented_usd")}
_OTHERS = ("training_days", "energy_mwh", "co2e_t")
NOTHING = Ratio(*(np.zeros(()),) * 3)
SALIB_FILES = ("salib.json", "salib.npz")


class Wanted(NamedTuple):
    """What of a sensitivity analysis is wanted.

    Attributes
    ----------
    outputs : tuple of str
        Names as the user wrote them; the cost, run time, energy and carbon when empty.
    domains : bool
        Whether to group inputs by domain; where `groups` are named they take the place of the domains.
    groups : tuple of str
        As `gpustack_mc.groups.from_options` reads them.
    second_order, tornado, regional : bool
    shapley : bool or None
        None: where inputs are correlated.
    scale : {"auto", "raw", "log"}
        Whose variance is divided: that of an output or of its logarithm; ``auto`` takes the logarithm where the
        variance of the output rests on too few draws.
    salib : bool
        Whether to write the scenario for SALib as well, see `gpustack_mc.salib_bridge.write`.
    """

    outputs: tuple[str, ...] = ()
    domains: bool = True
    groups: tuple[str, ...] = ()
    second_order: bool = False
    shapley: bool | None = None
    tornado: bool = True
    regional: bool = True
    scale: str = "auto"
    salib: bool = False


def run_sensitivity(
    source: str | Path,
    overrides: Iterable[str] = (),
    wanted: Wanted | None = None,
    *,
    samples: int = 65_536,
    seed: int = 0,
    out: Path | None = None,
    with_files: bool = True,
    calibration: Path | None = None,
) -> dict[str, Any]:
    """Say what makes the outputs of a scenario uncertain.

    Parameters
    ----------
    source, overrides
        As for `gpustack_mc.scenario.load_scenario`.
    wanted : Wanted
    samples, seed
        Of the design.
    out : Path, optional
        Folder for ``sensitivity.json`` and pictures; ``reports/<name of the file>`` when omitted.
    with_files : bool
        Whether to write at all.
    calibration : Path, optional
        A prior pack, see `gpustack_mc.pack`.

    Returns
    -------
    dict
        As printed with ``--json``.

    Raises
    ------
    InputError
        The scenario or an option is wrong, or an output does not vary.
    """
    wanted = wanted or Wanted()
    problem = load_scenario(source, overrides, calibration)
    if not SAMPLES[0] <= samples <= SAMPLES[1]:
        message = f"{samples:,} is not between {SAMPLES[0]:,} and {SAMPLES[1]:,}."
        raise InputError("bad-samples", message, "65536 knows an index to about 0.01.", Place("--samples"))
    outputs = _outputs(wanted.outputs, problem)
    cube = ModelCube(problem, outputs)
    if not cube.names:
        raise InputError("all-fixed", "every input is fixed: nothing varies.", "State how uncertain one is.",
                         Place("sensitivity"))  # fmt: skip
    named = groups.from_options(wanted.groups, problem, cube.names)
    sets = named if wanted.groups else groups.by_domain(problem, cube.names) if wanted.domains else {}
    if wanted.salib:
        if not with_files:
            raise InputError("bad-option", "it writes files.", "Leave out --no-files.", Place("--salib"))
        salib_bridge.to_salib(problem)
    folder = out if out is not None else Path("reports") / storage.slug(storage.stem(source, problem.name))
    made = with_files and not folder.exists()
    if with_files:
        storage.require_folder(folder)
    try:
        found = _Analysis(problem, cube, outputs, sets, wanted, make_design(samples, seed=seed)).found()
        if with_files:
            _write(found, folder, problem, wanted)
    except BaseException:
        if made:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
    return found


def _outputs(names: Sequence[str], problem: Problem) -> tuple[str, ...]:
    """Return the outputs that the user names, or the main ones."""
    costs = _COSTS[problem.file.ownership]
    found: list[str] = []
    for name in names:
        plain = name.strip().replace("-", "_")
        if plain == "cost":
            found += costs
        elif plain in problem.outputs:
            found.append(plain)
        elif plain in problem.inputs:
            raise InputError("unknown-output", f"{plain} is an input.", "Name an output, such as cost.",
                             Place("sensitivity"))  # fmt: skip
        else:
            fix = f"{did_you_mean(plain, problem.outputs)} `gpustack-mc quantities` lists all."
            raise InputError("unknown-output", f"the scenario has no output {units.shown(name)}.", fix,
                             Place("sensitivity"))  # fmt: skip
    return tuple(dict.fromkeys(found)) or (*costs, *_OTHERS)


def _joined(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Lay draws of inputs and outputs, each (variables, n), side by side."""
    inputs, outputs = (np.concatenate(part, axis=1) for part in zip(*parts, strict=True))
    return inputs, outputs


class _Analysis:
    """One analysis: what all its parts share."""

    def __init__(
        self, problem: Problem, cube: ModelCube, outputs: Sequence[str], sets: Mapping[str, Sequence[str]],
        wanted: Wanted, design: Design,
    ):  # fmt: skip
        self.problem, self.cube, self.sets, self.wanted, self.design = problem, cube, sets, wanted, design
        self.x, self.y = self.draws()
        varies = [np.ptp(row) > 1e-12 * np.abs(row).max() for row in self.y]
        self.constant = [name for name, some in zip(outputs, varies, strict=True) if not some]
        if self.constant and (wanted.outputs or not any(varies)):
            raise _constant(self.constant[0], self.y[outputs.index(self.constant[0])])
        self.outputs = [name for name, some in zip(outputs, varies, strict=True) if some]
        cube.rows = [problem.outputs.index(name) for name in self.outputs]
        self.y = self.y[varies]
        self.both = LogCube(cube)
        self.singles = dict(groups.alone(cube.names))
        correlated = cube.copula.correlated
        # A stated correlation of 0 ties nothing.
        self.correlated = [cube.names[i] for i in correlated if cube.copula.divides(np.arange(len(cube.names)) == i)]

    def draws(self) -> tuple[np.ndarray, np.ndarray]:
        """Draws of the inputs and the outputs, the first `KEPT_DRAWS`, replicates one after the other."""

        def replicate(number: int) -> tuple[np.ndarray, np.ndarray]:
            ends = chunks(self.design, KEPT_DRAWS // self.design.replicates)
            runs = [self.cube.run(sample(self.cube, self.design, number, *some)) for some in ends]
            return _joined(runs)

        return _joined(each_replicate(self.design, replicate))

    def found(self) -> dict[str, Any]:
        """Put all parts together."""
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.where(self.y > 0, np.log(self.y), np.nan)
        centre = sobol.pilot_centre(np.concatenate([self.y, logs]))
        together = self.singles | {f"group {name}": keys for name, keys in self.sets.items()}
        indices, sums = group_indices(self.both, self.design, together, centre)
        half = len(self.outputs)
        entries = {name: self.entry(indices, sums, i, half) for i, name in enumerate(self.outputs)}
        rows = {name: i + (half if entry["scale"] == "log" else 0) for i, (name, entry) in enumerate(entries.items())}
        for add in self.parts(sums, centre):
            add(entries, rows)
        return {
            "schema_version": 1,
            "name": self.problem.name,
            "seed": self.design.seed,
            "samples": self.design.samples,
            "ownership": self.problem.file.ownership,
            "mass": 0.9,
            "correlated": self.correlated,
            "groups": {name: list(keys) for name, keys in self.sets.items()},
            "outputs": entries,
            "constant_outputs": self.constant,
            "notes": self.notes(entries),
            "files": [],
        }

    def parts(self, sums: Sums, centre: np.ndarray) -> list[Any]:
        """Return what adds the wanted parts to the entries."""
        wanted = self.wanted
        parts = [self.add_split]
        if wanted.shapley or (wanted.shapley is None and self.correlated):
            parts.append(self.add_shapley)
        if wanted.second_order:
            parts.append(partial(self.add_pairs, sums, centre))
        if wanted.tornado:
            parts.append(self.add_tornado)
        if wanted.regional:
            parts.append(self.add_regions)
        return parts

    def entry(self, indices: sobol.Indices, sums: Sums, row: int, half: int) -> dict[str, Any]:
        """Describe one output: its interval, and the indices of inputs and groups on both scales."""
        name, quantity = self.outputs[row], BY_NAME[self.outputs[row]]
        low, middle, high = (float(q) for q in np.quantile(self.y[row], [0.05, 0.5, 0.95]))
        inputs = {scale: self.table(indices, 0, row + shift) for scale, shift in (("raw", 0), ("log", half))}
        scale = self.scale(name, inputs)
        place = row + (half if scale == "log" else 0)
        count = len(self.singles)
        entry = {
            "unit": quantity.unit, "description": quantity.description, "scope": quantity.scope,
            "median": middle, "interval_90": [low, high], "scale": scale,
            "inputs": inputs[scale], "groups": dict(zip(self.sets, self.table(indices, count, place).values(),
                                                        strict=True)),
        }  # fmt: skip
        entry["inputs_log" if scale == "raw" else "inputs_raw"] = inputs["log" if scale == "raw" else "raw"]
        if not self.correlated:
            entry["sum_of_S1"] = _share(alone_together(sums, range(count)).at(place), "S1")
        return entry

    def table(self, indices: sobol.Indices, start: int, column: int) -> dict[str, Any]:
        """Indices of the inputs (start 0) or of the groups (start: number of inputs) of one column."""
        names = list(self.singles) if start == 0 else list(self.sets)

        def one(i: int) -> dict[str, Any]:
            parts = {"S1": (indices.first, indices.first_low, indices.first_high),
                     "ST": (indices.total, indices.total_low, indices.total_high)}  # fmt: skip
            cells = [_share(Ratio(*(part[i, column] for part in three)), key) for key, three in parts.items()]
            return cells[0] | cells[1]

        return {name: one(start + i) for i, name in enumerate(names)}

    def scale(self, name: str, inputs: Mapping[str, Any]) -> str:
        """Return the scale on which an output is told."""
        known = any(index["ST"] is not None for index in inputs["log"].values())
        if self.wanted.scale == "log" and not known:
            below = float((self.y[self.outputs.index(name)] <= 0).mean())
            raise InputError("no-logarithm", f"{name} is not above 0 for {below:.2g} of the draws.",
                             "Use --scale raw.", Place("--scale log"))  # fmt: skip
        if self.wanted.scale != "auto":
            return self.wanted.scale
        if known and any(_width(index) > drivers.WIDEST for index in inputs["raw"].values()):
            return "log"
        if self.correlated:
            # Their total indices need not add up to 1, so that only widths say whether the draws are too few.
            return "raw"
        return drivers.scale({"sensitivity": {name: inputs["raw"]}, "sensitivity_log": {name: inputs["log"]}}, name)

    # ---- the parts ----

    def add_split(self, entries: dict[str, Any], rows: Mapping[str, int]) -> None:
        """Add how much is not known about populations, and how much differs from run to run."""
        for name, split in variance_split.split(self.problem, self.design, self.outputs).items():
            entries[name]["variance_split"] = split

    def add_shapley(self, entries: dict[str, Any], rows: Mapping[str, int]) -> None:
        """Add Shapley effects of the inputs, and of the groups."""
        for key, players in (("inputs", self.singles), ("groups", self.sets)):
            # What changes no draw of any output gets nothing, without a run.
            idle = [player for player in players if self.idle(player, key, entries)]
            some = {player: keys for player, keys in players.items() if player not in idle}
            effects = shapley_effects(self.both, self.design, some) if some else None
            for name, row in rows.items():
                shares = {player: effects.at(i, row) for i, player in enumerate(some)} if effects else {}
                for player in players:
                    entries[name][key][player] |= _share(shares.get(player, NOTHING), "shapley")

    def idle(self, player: str, key: str, entries: Mapping[str, Any]) -> bool:
        """Whether an input or a group without partners outside changes no output at all."""
        members = np.isin(self.cube.names, (self.singles if key == "inputs" else self.sets)[player])
        return not self.cube.copula.divides(members) and all(
            entry[key][player]["ST"] == 0.0 for entry in entries.values()
        )

    def add_pairs(self, sums: Sums, centre: np.ndarray, entries: dict[str, Any], rows: Mapping[str, int]) -> None:
        """Add the second-order indices of inputs that interact at all and have no partners."""
        tables = [entry["inputs"] for entry in entries.values()]
        some = [
            key
            for key in self.singles
            if key not in self.correlated
            and any((table[key]["ST"] or 0.0) - (table[key]["S1"] or 0.0) > INTERACTING for table in tables)
        ]
        pairs = second_order(self.both, self.design, some, sums.base, centre) if len(some) > 1 else None
        for name, row in rows.items():
            told = [
                {"inputs": list(both)} | _share(pairs.index.at(i, row), "S2")
                for i, both in enumerate(pairs.names) if pairs.above_noise[i, row]
            ] if pairs else []  # fmt: skip
            entries[name]["second_order"] = sorted(told, key=lambda pair: -pair["S2"])
            entries[name]["pairs_examined"] = len(pairs.names) if pairs else 0

    def add_tornado(self, entries: dict[str, Any], rows: Mapping[str, int]) -> None:
        """Add what each output is when an input is held at its ends."""
        found = tornado(self.cube, self.design)
        for column, name in enumerate(self.outputs):
            entries[name]["tornado"] = {
                key: {
                    end: {
                        "input": float(found.held[side, i]),
                        "median": float(found.median[side, i, column]),
                        "median_error": _number(found.median_error[side, i, column]),
                        "mean": float(found.mean[side, i, column]),
                        "mean_error": _number(found.mean_error[side, i, column]),
                    }
                    for side, end in enumerate(("at_5", "at_95"))
                } | {"unit": self.problem.inputs[key].quantity.unit}
                for i, key in enumerate(self.cube.names)
            }  # fmt: skip

    def add_regions(self, entries: dict[str, Any], rows: Mapping[str, int]) -> None:
        """Add what the runs beyond a limit have in common."""
        for row, name in enumerate(self.outputs):
            limit, question = self.limit(name)
            about = partial(region, self.y[row], self.x, self.cube.names, replicates=self.design.replicates)
            found = about(limit=limit)
            if question and not found.rules:
                entries[name]["asked_region"] = _region(found, question)
                found, question = about(limit=float(np.quantile(self.y[row], TAIL))), ""
            entries[name]["region"] = _region(found, question)

    def limit(self, output: str) -> tuple[float, str]:
        """Return the limit whose excess is described, and the question that states it."""
        for question, limit in self.problem.questions.items():
            asked = QUESTIONS[question][0]
            if output == asked or (asked == "cost" and output in _COSTS[self.problem.file.ownership]):
                return limit, question
        return float(np.quantile(self.y[self.outputs.index(output)], TAIL)), ""

    def notes(self, entries: Mapping[str, Any]) -> list[str]:
        """Say what must be known to read the numbers."""
        notes = []
        if self.correlated:
            notes.append(
                f"{', '.join(self.correlated)} are correlated: S1 of such an input holds what it shares with the "
                "others, ST leaves that out, and neither adds up over inputs; Shapley effects add up to 1."
            )
        logs = [name for name, entry in entries.items() if entry["scale"] == "log"]
        if logs and self.wanted.scale == "auto":
            notes.append(f"{', '.join(logs)}: shares are of the variance of the logarithm, because that of the "
                         "output itself rests on too few draws.")  # fmt: skip
        notes += [f"{name} does not vary: no input explains it." for name in self.constant]
        if self.wanted.second_order and self.correlated:
            notes.append("second-order indices are of independent inputs only.")
        return notes


def _constant(name: str, values: np.ndarray) -> InputError:
    quantity = BY_NAME[name]
    unit = "" if quantity.unit == "1" else f" {quantity.unit}"
    message = f"{name} is {values[0]:.4g}{unit} in every draw: no input explains what does not vary."
    return InputError("constant-output", message, "Ask for another output, or state how uncertain its inputs are.",
                      Place("sensitivity"))  # fmt: skip


def _number(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def _width(index: Mapping[str, Any]) -> float:
    ends = [index[f"{name}_interval_90"] for name in ("S1", "ST")]
    return max((high - low for low, high in ends if low is not None), default=0.0)


def _share(ratio: Ratio, name: str) -> dict[str, Any]:
    """Write a share of the variance with its interval; None where it is not known."""
    return {name: _number(ratio.value), f"{name}_interval_90": [_number(ratio.low), _number(ratio.high)]}


def _region(found: Region, question: str) -> dict[str, Any]:
    return {
        "limit": found.limit,
        "question": question,
        "side": found.side,
        **_share(found.share, "share_of_runs"),
        "ks_distance": found.distances,
        "rules": [
            {
                "cuts": [cut._asdict() for cut in rule.cuts],
                **_share(rule.caught, "share_of_region"),
                **_share(rule.others, "share_of_others"),
                **_share(rule.inside, "probability_inside"),
            }
            for rule in found.rules
        ],
    }


def _write(found: dict[str, Any], folder: Path, problem: Problem, wanted: Wanted) -> None:
    """Write the numbers, the pictures and what SALib reads, all of them or none."""
    names = ["sensitivity.json", "drivers.png", *["tornado.png"] * wanted.tornado, *SALIB_FILES * wanted.salib]
    paths = [folder / name for name in names]
    found["files"] = [str(path) for path in paths]
    with storage.replacing_all(paths) as files:
        file = dict(zip(names, files, strict=True))
        file["sensitivity.json"].write_text(json.dumps(found, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        if wanted.salib:
            salib_bridge.write(problem, list(found["outputs"]), found["seed"], *(file[name] for name in SALIB_FILES))
        from gpustack_mc import pages, sensitivity_figure

        pages.save(sensitivity_figure.driver_plot(found), file["drivers.png"])
        if wanted.tornado:
            pages.save(sensitivity_figure.tornado_plot(found), file["tornado.png"])
