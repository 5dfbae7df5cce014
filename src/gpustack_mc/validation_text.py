"""What `gpustack-mc validate` says to people: a sentence, tables for a terminal, and the page ``validation.md``."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from gpustack_mc import scoring
from gpustack_mc.published_runs import settings, training_rows
from gpustack_mc.validation_known import KNOWN
from gpustack_mc.validation_scores import PLAIN, REFIT

_LINES = 5  # first skipped rows that are named


def summary(result: Mapping[str, Any]) -> str:
    """Say in one sentence how good the predictions were, and whether the fit knew the runs."""
    covered, error = result["metrics"]["coverage"]["0.9"], result["metrics"]["mdape"]
    n = result["n"]
    scored = (
        f"{covered:.0%} fell inside the 90% interval; for half of the runs the predicted median was "
        f"within {error:.1%} of the reported accelerator-hours."
    )
    if result["method"] == REFIT:
        return f"Of {n:,} {_runs(n)} that the fit never saw, {scored}"
    seen = _seen(result)
    known = f", of which {seen:,} {'was' if seen == 1 else 'were'} in the data that it was fitted to" if seen else ""
    return f"Of {n:,} {_runs(n)} predicted by the shipped fit{known}, {scored}"


def _runs(n: int) -> str:
    return "run" if n == 1 else "runs"


def _seen(result: Mapping[str, Any]) -> int:
    known = {(row["id"], float(row["accelerator_hours"])) for row in training_rows()}
    return sum((row["run_id"], row["reported"]) in known for row in result["rows"])


_COLUMNS = ("", "median miss", "mean |log error|", "CRPS (log)", "log score", "cover 50/80/90%", "p95/p5")
_GROUP_COLUMNS = ("", "runs", "median miss", "CRPS (log)", "of the median of others", "90% coverage")
_KNOWN_COLUMNS = ("known besides", "runs", "median miss", "mean |log error|", "CRPS (log)", "90% coverage", "p95/p5")
_NAMES = {
    "rule_6nd_40": "6ND at 40%",
    "median_of_other_families": "median of other families",
    **scoring.SUBSETS,
}


def _with_error(value: float, error: float | None) -> str:
    return f"{value:.3f}" if error is None else f"{value:.3f} ± {error:.3f}"


def _metric_rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    found = [("this prior", result["metrics"])]
    found += [(_NAMES[name], baseline) for name, baseline in result["baselines"].items()]
    return [
        (
            name,
            *(
                _with_error(entry[key], entry["standard_errors"][key])
                for key in ("mdape", "mean_abs_log_error", "crps_log", "log_score")
            ),
            " / ".join(f"{value:.2f}" for value in entry["coverage"].values()),
            f"{entry['median_p95_over_p5']:.2f}",
        )
        for name, entry in found
    ]


def _known_rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Scores when more is known, over all runs and over those of batch 1; none for a user's own table."""
    return [
        (
            KNOWN[name] + suffix,
            f"{entry['n']:,}",
            _with_error(entry["mdape"], entry["standard_errors"]["mdape"]),
            f"{entry['mean_abs_log_error']:.3f}",
            f"{entry['crps_log']:.3f}",
            f"{entry['coverage']['0.9']:.2f}",
            f"{entry['median_p95_over_p5']:.2f}",
        )
        for name, found in result.get("known", {}).items()
        for suffix, entry in (("", found), (", batch 1", found["batch_1"]))
    ]


_ENERGY_COLUMNS = ("measured machine or run", "accelerator", "measured W", "median W", "90% interval")


def _energy_rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Measured and predicted IT power per accelerator; none for a user's own table."""
    return [
        (
            row["unit"],
            row["accelerator"],
            f"{row['measured_w']:.0f}",
            f"{row['median_w']:.0f}",
            "{:.0f} – {:.0f}".format(*row["interval_90"]),
        )
        for row in result.get("energy", {"rows": []})["rows"]
    ]


def _energy_sentence(found: Mapping[str, Any]) -> str:
    return (
        f"Energy once the hours are known, that is IT power per accelerator, of {found['n']} machines and runs that "
        f"were measured, each from fits without it: mean |log error| {found['mean_abs_log_error']:.3f}, "
        f"{found['coverage']['0.9']:.0%} inside the 90% interval, median p95/p5 {found['median_p95_over_p5']:.2f}."
    )


def _energy_markdown(result: Mapping[str, Any]) -> list[str]:
    rows = _energy_rows(result)
    if not rows:
        return []
    return ["## Energy given hours", _energy_sentence(result["energy"]), _markdown_table(_ENERGY_COLUMNS, rows)]


def _group_rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for column, entries in result["groups"].items():
        if column != "subset" and set(entries) == {"not stated"}:
            continue
        for name, entry in entries.items():
            label = _NAMES.get(name, name) if column == "subset" else f"{column} {name}"
            other = entry["baselines"]["median_of_other_families"]["crps_log"]
            share = f"{entry['crps_log'] / other:.0%}"
            cover = f"{entry['coverage']['0.9']:.2f}"
            rows.append((label, f"{entry['n']:,}", f"{entry['mdape']:.3f}", f"{entry['crps_log']:.3f}", share, cover))
    return rows


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [
        "  ".join(cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(cells))
        for cells in (list(zip(row, widths, strict=True)) for row in [header, *rows])
    ]
    return "\n".join(line.rstrip() for line in lines)


def _skipped_text(result: Mapping[str, Any]) -> str:
    """Count the rows that were not used, by reason, and name the first ones."""
    skipped = result["skipped"]
    if not skipped:
        return f"All {result['n']:,} rows were used." if result["method"] == PLAIN else ""
    total = result["n"] + len(skipped)
    verb = "was" if len(skipped) == 1 else "were"
    lines = [f"{result['n']:,} of {total:,} rows were used; {len(skipped):,} {verb} not:"]
    counts = Counter(entry["reason"] for entry in skipped)
    first: dict[str, int] = {}
    for entry in skipped:
        first.setdefault(entry["reason"], entry["line"])
    for reason, count in counts.most_common(_LINES):
        more = f" (and {count - 1:,} more)" if count > 1 else ""
        lines.append(f"  line {first[reason]}{more}: {reason}")
    if len(counts) > _LINES:
        lines.append(f"  and {len(counts) - _LINES:,} other reasons: see --json.")
    return "\n".join(lines)


def text(result: Mapping[str, Any]) -> str:
    """Return the tables for a terminal."""
    parts = [summary(result), _table(_COLUMNS, _metric_rows(result)), _table(_GROUP_COLUMNS, _group_rows(result))]
    if known := _known_rows(result):
        parts.append(_table(_KNOWN_COLUMNS, known))
    if energy := _energy_rows(result):
        parts += [_energy_sentence(result["energy"]), _table(_ENERGY_COLUMNS, energy)]
    return "\n\n".join([*parts, *filter(None, [_skipped_text(result)])])


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


_MADE = {
    REFIT: (
        "Made by `gpustack-mc validate --refit --out DIR`. Each family of runs (a team and its stack) was left out in "
        "turn, the utilisation program was fitted to all other rows, and the left-out runs were predicted from what a "
        "planner knows: parameters, tokens, accelerator, count, precision, architecture, date, and sequence length, "
        "layers, width, batch, recomputation and flash attention where stated. How the reported hours were counted was "
        "not read."
    ),
    PLAIN: (
        "Made by `gpustack-mc validate --data FILE --out DIR`: the runs in the file, predicted by the shipped fit from "
        "what a planner knows. Nothing was refitted."
    ),
}


def _gain(name: str, baseline: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    errors = baseline["standard_errors"]
    crps = _with_error(baseline["crps_log"] - model["crps_log"], errors["crps_log_difference"])
    log_score = _with_error(model["log_score"] - baseline["log_score"], errors["log_score_difference"])
    return f"- {_NAMES[name]}: CRPS higher by {crps}, log score lower by {log_score}, run by run"


def _known_markdown(result: Mapping[str, Any]) -> list[str]:
    rows = _known_rows(result)
    if not rows:
        return []
    words = (
        "Each family is predicted by a fit that never saw it, and then told one thing. Unlike above, how the predicted "
        "hours are counted is known: exactly or loosely, with downtime or without. Batch 1 is the first set of runs "
        "that was collected, batch 2 a later one."
    )
    return ["## When more is known", words, _markdown_table(_KNOWN_COLUMNS, rows)]


def markdown(result: Mapping[str, Any]) -> str:
    """Return the page ``validation.md``."""
    gains = [_gain(name, entry, result["metrics"]) for name, entry in result["baselines"].items()]
    versions = ", ".join(f"{name} {value[:12]}" for name, value in result["versions"].items())
    parts = [
        "# Predicted against reported accelerator-hours",
        summary(result),
        _markdown_table(_COLUMNS, _metric_rows(result)),
        "± is one standard error by a bootstrap over families. CRPS and log score are on natural-log hours. The rule's "
        f"spread is {settings()['rule_sd']} in log hours; it states none itself.",
        "\n".join(gains),
        "![Predicted against reported accelerator-hours](predicted.png)",
        "![Calibration](calibration.png)",
        "## Groups",
        _markdown_table(_GROUP_COLUMNS, _group_rows(result)),
        "'of the median of others' is the CRPS relative to that of the median of other families; below 100% is better.",
        *_known_markdown(result),
        *_energy_markdown(result),
        "## How it was made",
        _MADE[result["method"]],
        _skipped_text(result),
        f"`validation.json` holds every run with its intervals. Versions: {versions}.",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"
