"""Two or more scenarios held against each other on the same draws: the whole of ``gpustack-mc compare``."""

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gpustack_mc import comparison, comparison_text, conditions, storage, yamlfile
from gpustack_mc.comparison import Case, Compared
from gpustack_mc.coupling import Choice, label
from gpustack_mc.design import Design, make_design
from gpustack_mc.errors import InputError, option_place
from gpustack_mc.loading import load_meanwhile
from gpustack_mc.paired import Pairing, shared_outputs
from gpustack_mc.problem import Problem
from gpustack_mc.quantities import BY_NAME
from gpustack_mc.scenario import load_scenario
from gpustack_mc.summarizing import HEADLINE

if TYPE_CHECKING:
    import xarray as xr

MOST_SCENARIOS = 12
FEWEST_SAMPLES = 256
MOST_SAMPLES = 2**18
# All draws of all scenarios are kept: so many take 1.4 GB of memory, and 0.4 GB in paired.nc.
MOST_DRAWS = 3 * 2**18
_COSTS = {"own": "cost_owned_usd", "rent": "cost_rented_usd"}
_LONGEST_NAME = 60


class Done(NamedTuple):
    """What a comparison leaves: the object printed with ``--json``, and the text for people."""

    summary: dict[str, Any]
    text: str


def run_comparison(
    sources: Sequence[str | Path],
    overrides: Iterable[str] = (),
    vary: Iterable[str] = (),
    *,
    outputs: str = "",
    independent: bool = False,
    samples: int = 65_536,
    seed: int = 0,
    out: Path | None = None,
    with_files: bool = True,
    with_plots: bool = True,
    calibration: Path | None = None,
) -> Done:
    """Compare scenarios and write ``paired.nc``, ``comparison.json`` and ``comparison.png``, all or none.

    Parameters
    ----------
    sources : sequence of str or Path
        Scenario files or names of shipped ones; the others are compared with the first.
    overrides : iterable of str
        ``key=value`` for all of them.
    vary : iterable of str
        ``key=value,value``: variants of the one scenario; several keys give all combinations.
    outputs : str
        Names of outputs with commas; the main ones when empty.
    independent : bool
        Take inputs that differ as independent, not at the same quantile; see `gpustack_mc.coupling`.
    samples, seed
        Of the design, see `gpustack_mc.design.make_design`.
    out : Path, optional
        Folder of the results.
    with_files, with_plots : bool
        Whether to write at all, and to draw.
    calibration : Path, optional
        A prior pack for all of them, see `gpustack_mc.pack`.

    Raises
    ------
    GpustackError
        Bad input, scenarios that do not count alike, or results that cannot be written.
    """
    if not FEWEST_SAMPLES <= samples <= MOST_SAMPLES:
        found = f"--samples {samples:,} is not between {FEWEST_SAMPLES} and {MOST_SAMPLES:,}."
        raise InputError("bad-samples", found, "65536 gives three digits.")
    cases = tuple(load_cases(sources, tuple(overrides), tuple(vary), calibration))
    _require_room(len(cases), samples)
    rows, notes = rows_of([case.problem for case in cases], outputs)
    require_alike([case.problem for case in cases], [name for row in rows for name in row.names])
    folder = out if out is not None else Path("reports") / _folder_name(sources, cases)
    if with_files:
        storage.require_folder(folder)
    later = ["gpustack_mc.result", *["h5py"] * with_files]
    load_meanwhile(
        *later, *["matplotlib.backends.backend_agg", "gpustack_mc.decision_figures"] * (with_files and with_plots)
    )
    choice: Choice = "independent" if independent else "common"
    design = make_design(samples, "sobol", seed)
    problems = [case.problem for case in cases]
    pairing = Pairing(problems, design, choice)
    places = [tuple(pairing.names.index(name) for name in row.names) for row in rows]
    other: Choice = "common" if independent else "independent"
    bracket = Pairing(problems, design, other).draws() if _unknown(pairing) else None
    compared = Compared(cases, rows, notes, pairing.draws(), pairing.indices(places), choice, bracket)
    names = ["paired.nc", "comparison.json", *(["comparison.png"] if with_plots else [])]
    files = [folder / name for name in names] if with_files else []
    summary = comparison.summarise(compared, [str(file) for file in files])
    if with_files:
        _write(compared, summary, files)
    return Done(summary, comparison_text.text(summary))


def paired_tree(
    problems: Sequence[Problem], design: Design, choice: Choice = "common", names: Sequence[str] | None = None
) -> "xr.DataTree":
    """Draw scenarios together and return the draws with what they say, see `gpustack_mc.comparison.with_statistics`.

    Parameters
    ----------
    problems : sequence of Problem
        The others are compared with the first.
    design : Design
    choice : {"common", "independent"}
        See `gpustack_mc.coupling`.
    names : sequence of str, optional
        Of the scenarios; their own, behind a letter, when omitted.

    Raises
    ------
    InputError
        There are not between 2 and `MOST_SCENARIOS`, they do not count alike, or their draws are more than
        `MOST_DRAWS`.
    """
    if len(problems) < 2:
        raise InputError("one-scenario", "there is nothing to compare with.", "Name a second scenario.")
    if len(problems) > MOST_SCENARIOS:
        found = f"there are {len(problems)} scenarios to compare."
        raise InputError("too-many", found, f"Compare 2 to {MOST_SCENARIOS}.")
    _require_room(len(problems), design.samples)
    require_alike(problems, shared_outputs(problems))
    cases = tuple(Case(label(i), problem.name, problem) for i, problem in enumerate(problems))
    pairing = Pairing(problems, design, choice)
    compared = Compared(cases, (), (), pairing.draws(), None, choice, None)
    return comparison.with_statistics(
        comparison.to_datatree(compared), names or [f"{case.label}: {case.name}" for case in cases]
    )


def _require_room(scenarios: int, samples: int) -> None:
    """Refuse draws that would not fit."""
    if scenarios * samples > MOST_DRAWS:
        found = f"--samples {samples:,} of {scenarios} scenarios are too many to keep."
        # As many as Sobol' points come in.
        fix = f"Use at most {1 << (MOST_DRAWS // scenarios).bit_length() - 1:,}, or compare fewer at a time."
        raise InputError("bad-samples", found, fix)


def _unknown(pairing: Pairing) -> bool:
    """Whether some inputs differ in a way whose correlation is a choice."""
    return any(difference.how in ("common", "independent") for difference in pairing.coupling.differences)


def _folder_name(sources: Sequence[str | Path], cases: Sequence[Case]) -> str:
    stems = [storage.stem(source, case.problem.name) for source, case in zip(sources, cases, strict=False)]
    return storage.slug("compare " + " ".join(stems))


def _write(compared: Compared, summary: dict[str, Any], files: Sequence[Path]) -> None:
    from gpustack_mc.result import write

    with storage.replacing_all(files) as (draws, text, *picture):
        write(comparison.to_tree(compared), draws)
        text.write_text(json.dumps(summary, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        for path in picture:
            from gpustack_mc import decision_figures, pages

            pages.save(decision_figures.comparison_plot(summary), path)


# ---- what is compared --------------------------------------------------------------------------------------------


def load_cases(
    sources: Sequence[str | Path],
    overrides: tuple[str, ...],
    vary: tuple[str, ...],
    calibration: Path | None = None,
) -> Iterator[Case]:
    """Read the scenarios, or the variants of the one scenario.

    Raises
    ------
    InputError
        One of them is wrong, or there are not between 2 and `MOST_SCENARIOS`.
    """
    if len(sources) > 1 and vary:
        raise InputError("bad-vary", "--vary makes variants of one scenario, and there are several.",
                         "Name one scenario, or leave --vary out.")  # fmt: skip
    if len(sources) == 1 and not vary:
        raise InputError("one-scenario", "there is nothing to compare with.",
                         "Name a second scenario, or vary this one: --vary site.region=US-CA,CA-QC.")  # fmt: skip
    variants = list(itertools.product(*(variants_of(text) for text in vary)))
    # One value against the scenario as it is.
    variants = [(), *variants] if len(variants) == 1 and vary else variants
    count = len(variants) if vary else len(sources)
    if not 2 <= count <= MOST_SCENARIOS:
        raise InputError("too-many", f"there are {count} scenarios to compare.", f"Compare 2 to {MOST_SCENARIOS}.")
    for i in range(count):
        source, changes = (sources[0], variants[i]) if vary else (sources[i], ())
        problem = load_scenario(source, overrides + changes, calibration)
        said = ", ".join(change.partition("=")[0].rpartition(".")[2] + " " + change.partition("=")[2].strip()
                         for change in changes)  # fmt: skip
        name = said or ("as in the file" if vary else problem.name)
        yield Case(label(i), name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 3] + "...", problem)


def variants_of(text: str) -> list[str]:
    """Split ``key=value,value`` into one override per value; commas inside brackets belong to the value.

    Raises
    ------
    InputError
        It has no key, or a value is empty.
    """
    key, equals, values = text.partition("=")
    place = option_place("--vary", text)
    if not equals or not key.strip():
        raise InputError("bad-vary", "not of the form key=value,value.", "Write --vary site.region=US-CA,CA-QC.", place)
    parts, depth, quote = [""], 0, ""
    for character in values:
        quote = "" if character == quote else character if not quote and character in "'\"" else quote
        depth += 0 if quote else (character in "{[") - (character in "}]")
        if character == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += character
    if not all(part.strip() for part in parts):
        raise InputError("bad-vary", "a value is empty.", "Write --vary site.region=US-CA,CA-QC.", place)
    for part in parts:
        yamlfile.parse_value(part, str(place))
    return [f"{key.strip()}={part.strip()}" for part in parts]


def rows_of(problems: Sequence[Problem], outputs: str) -> tuple[tuple[comparison.Row, ...], tuple[str, ...]]:
    """Choose the outputs that are compared, and say where two costs of different kinds meet.

    Parameters
    ----------
    problems : sequence of Problem
    outputs : str
        Names with commas; the main ones when empty.

    Raises
    ------
    InputError
        An output is unknown, or it is not clear which cost is meant.
    """
    if outputs.strip():
        named = conditions.outputs_listed(outputs, shared_outputs(problems))
        return tuple(_row(name, problems) for name in named), ()
    stated = {problem.file.ownership for problem in problems}
    shared = shared_outputs(problems)
    plain = [name for name in (*HEADLINE, "expected_goodput") if name in shared and name not in _COSTS.values()]
    if len(stated - {"either"}) < 2:
        kind = next(iter(stated - {"either"}), None)
        costs = [_COSTS[kind]] if kind else list(_COSTS.values())
        notes = (f"the scenarios that do not say which cost they mean take {BY_NAME[costs[0]].short}",)
        return tuple(_row(name, problems) for name in [*plain, *costs]), notes if len(stated) > 1 else ()
    if "either" in stated:
        raise InputError("unclear-cost", "some scenarios own, some rent, and some do not say.",
                         "State `ownership: own` or `rent` in each.")  # fmt: skip
    names = tuple(_COSTS[problem.file.ownership] for problem in problems)
    said = ", ".join(f"{label(i)} {BY_NAME[name].short.partition(', ')[2]}" for i, name in enumerate(names))
    cost = comparison.Row("cost_usd", "cost, owned or rented", "USD", "final run", names)
    note = f"the cost is {said}: an owned run bears its share of the hardware, a rented one the price of its hours"
    return (*(_row(name, problems) for name in plain), cost), (note,)


def _row(name: str, problems: Sequence[Problem]) -> comparison.Row:
    quantity = BY_NAME[name]
    return comparison.Row(name, quantity.short, quantity.unit, quantity.scope, (name,) * len(problems))


def require_alike(problems: Sequence[Problem], names: Sequence[str]) -> None:
    """Refuse scenarios whose numbers do not count the same things.

    Raises
    ------
    InputError
        Carbon is on different bases, or hours are counted by different books.
    """
    books = [problem.file.accounting for problem in problems]
    if len(set(books)) > 1:
        raise InputError(
            "different-scope",
            f"hours are counted in different ways: {_by_label(books)}.",
            "Count them alike: --set accounting=clean.",
        )
    if not any(BY_NAME[name].domain == "carbon" for name in names):
        return
    for key, fix in (
        ("carbon_accounting", "--set site.carbon_accounting=location"),
        ("carbon_basis", "--set site.carbon_basis=direct, or =lifecycle"),
    ):
        found = [problem.basis[key] for problem in problems]
        if len(set(found)) > 1:
            raise InputError(
                "different-scope",
                f"carbon is counted in different ways: {_by_label(found)}.",
                f"Count it alike: {fix}; or compare other outputs: --outputs cost_owned_usd,training_days.",
            )


def _by_label(values: Sequence[str]) -> str:
    return ", ".join(f"{label(i)} {value}" for i, value in enumerate(values))
