r"""From rows of runs to the covariates of the utilisation program: what a planner knows, and how unknowns are averaged.

Each covariate of a row has a mean :math:`x` and a variance :math:`v`: a stated covariate has :math:`v = 0`, one that is
not stated has the moments of its distribution given what *is* stated. With a slope :math:`\beta` the row's mean is then
:math:`\beta x`, and :math:`\beta^2 v` joins its variance. For a yes/no covariate with probability :math:`p` that is the
mixture of the two cases with its first two moments (:math:`x = p`, :math:`v = p(1-p)`). The slopes are below 0.4, so
that the two cases overlap and a normal of the same moments describes their mixture. An own level for "not stated" was
not chosen: whether a report states a detail says something about the report, not about the run.

The number of accelerators, when not stated, is predicted from the compute of the run,

.. math:: \log_{10} n \sim N\!\left(a + b \log_{10} (6ND / P),\; s^2\right),

fitted to the training rows that state it; the single-node probability, the tokens per accelerator and step and the
count itself follow from it.
"""

from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from gpustack_mc.arrays import Bools, Floats
from gpustack_mc.constants import FLOP_PER_PARAM_AND_TOKEN, SECONDS_PER_HOUR

BILLION = 1e9
TERMS = (
    "intercept", "log10_size", "log10_size_below_1b", "log10_size_below_1b_hopper", "moe", "encoder", "state_space",
    "fp8", "attention", "single_node", "full_recompute", "no_flash_attention", "log_tokens_per_step", "log10_count",
)  # fmt: skip
"""Covariates of the program, in the order of their coefficients; each has a prior in ``settings.terms``."""

_COMPUTE_ONLY_BASES = ("step_time_x_steps", "throughput_x_tokens", "rate_x_tokens")
_LOOSE_BASES = ("upper_bound", "plan")

Row = Mapping[str, Any]


class Features(NamedTuple):
    r"""Covariates of rows.

    Attributes
    ----------
    mean, variance : ndarray, shape (rows, len(TERMS))
    generation : list of str
    log_attention : ndarray, shape (rows,)
        :math:`\log(1 + 12 L d s / 6N)`, what the full-attention convention adds to log MFU.
    """

    mean: Floats
    variance: Floats
    generation: list[str]
    log_attention: Floats


def number(row: Row, key: str) -> float:
    """Value of a cell as a float, NaN when it is empty or the row has no such cell."""
    value = row.get(key)
    return float("nan") if value in (None, "", "unknown") else float(value)


def numbers(rows: Sequence[Row], key: str) -> Floats:
    """One column as floats, NaN where empty."""
    return np.array([number(row, key) for row in rows])


def flags(rows: Sequence[Row], key: str, *values: str) -> Bools:
    """Whether a text cell is one of `values`."""
    return np.array([row.get(key) in values for row in rows])


def log_utilization(rows: Sequence[Row]) -> Floats:
    r"""Return :math:`\log u = \log \frac{6ND}{3600\, h P}`, against the 16-bit peak; NaN where hours are missing."""
    flop = FLOP_PER_PARAM_AND_TOKEN * numbers(rows, "params_active") * numbers(rows, "tokens")
    peak = numbers(rows, "peak_16bit_flop_per_s")
    return np.log(flop / (numbers(rows, "accelerator_hours") * SECONDS_PER_HOUR * peak))


def log_hours_at_full_use(rows: Sequence[Row]) -> Floats:
    r"""Return :math:`\log \frac{6ND}{3600\,P}` (log h): log hours are this minus log utilisation."""
    flop = FLOP_PER_PARAM_AND_TOKEN * numbers(rows, "params_active") * numbers(rows, "tokens")
    return np.log(flop / (SECONDS_PER_HOUR * numbers(rows, "peak_16bit_flop_per_s")))


def attention_ratio(rows: Sequence[Row], settings: Mapping[str, Any]) -> Floats:
    r"""FLOP of full attention over :math:`6N`: :math:`12 L d s / 6N = 2 L d s / N` (PaLM, appendix B).

    Without layers and width, :math:`N = 12 L d^2` and a typical :math:`d / L` give :math:`s / 6d`.
    """
    params, layers, width = (numbers(rows, key) for key in ("params_active", "n_layers", "d_model"))
    length = numbers(rows, "sequence_length")
    length = np.where(np.isnan(length), settings["typical_sequence_length"], length)
    typical_width = (settings["typical_width_over_layers"] * params / 12) ** (1 / 3)
    return np.where(np.isnan(layers * width), length / (6 * typical_width), 2 * layers * width * length / params)


def loose_record(rows: Sequence[Row]) -> Bools:
    """Rounded, bounded, planned or second-hand records."""
    return np.array([row.get("tier") != "A" for row in rows]) | flags(rows, "hours_basis", *_LOOSE_BASES)


def below_saturation(rows: Sequence[Row], settings: Mapping[str, float]) -> Floats:
    """Decades of size below ``saturating_params``, at most 0: how much a family's own slope counts."""
    return np.minimum(np.log10(numbers(rows, "params_active") / settings["saturating_params"]), 0.0)


def compute_only(rows: Sequence[Row]) -> Bools:
    """Hours without downtime: step times or throughput times tokens, or said so."""
    return flags(rows, "hours_basis", *_COMPUTE_ONLY_BASES) | flags(rows, "hours_cover", "compute-only")


def family_votes(families: Sequence[str] | np.ndarray) -> Floats:
    """Weights that sum to one and give each family the same total."""
    families = np.asarray(families)
    names, inverse, counts = np.unique(families, return_inverse=True, return_counts=True)
    return 1 / (counts[inverse] * len(names))


def _share(yes: Bools, among: Bools, families: np.ndarray) -> float:
    return float(family_votes(families[among]) @ yes[among])


def imputation(rows: Sequence[Row], settings: Mapping[str, Any]) -> dict[str, float]:
    """Constants that stand in for covariates that are not stated, from training rows; one vote per family.

    Only planner's columns and the record's quality are read, never hours or utilisation.
    """
    families = np.array([row["family"] for row in rows])
    count = numbers(rows, "n_accelerators")
    size = np.log10(_compute(rows))
    known = ~np.isnan(count)
    weight = family_votes(families[known])
    slope, level = np.polyfit(size[known], np.log10(count[known]), 1, w=np.sqrt(weight))
    residual = np.log10(count[known]) - level - slope * size[known]
    recompute = np.array([row.get("activation_recompute") not in (None, "") for row in rows])
    late = _years(rows) >= settings["flash_attention_year"]
    attention = np.array([row.get("flash_attention") not in (None, "") for row in rows]) & late
    per_step = numbers(rows, "global_batch_tokens") / count
    small = (numbers(rows, "params_active") < settings["small_model_params"]) & ~np.isnan(per_step)
    log_tokens = np.log(per_step[small])
    mean_tokens = family_votes(families[small]) @ log_tokens
    everyone = np.ones(len(rows), dtype=bool)
    return {
        "count_level": float(level),
        "count_slope": float(slope),
        "count_sd": float(np.sqrt(weight @ residual**2)),
        "share_full_recompute": _share(flags(rows, "activation_recompute", "full"), recompute, families),
        "share_no_flash_attention": _share(flags(rows, "flash_attention", "no"), attention, families),
        "log_tokens_per_step": float(mean_tokens),
        "log_tokens_per_step_sd": float(np.sqrt(family_votes(families[small]) @ (log_tokens - mean_tokens) ** 2)),
        "share_loose_record": _share(loose_record(rows), everyone, families),
        "share_compute_only": _share(compute_only(rows), everyone, families),
    }


def _compute(rows: Sequence[Row]) -> Floats:
    """Accelerator-seconds at full use; rows without tokens get the smallest, they state their count if they matter."""
    flop = FLOP_PER_PARAM_AND_TOKEN * numbers(rows, "params_active") * numbers(rows, "tokens")
    return flop / numbers(rows, "peak_16bit_flop_per_s")


def _years(rows: Sequence[Row]) -> Floats:
    """Date of publication in years; mid-year when only the year is stated, NaN without a date."""
    found = []
    for row in rows:
        text = str(row.get("publication_date") or "")
        year = float(text[:4]) if text[:4].isdigit() else float("nan")
        month = float(text[5:7]) if text[5:7].isdigit() else 6.5
        found.append(year + (month - 0.5) / 12)
    return np.array(found)


def _yes_no(yes: Bools, known: Bools, probability: Floats | float) -> tuple[Floats, Floats]:
    p = np.broadcast_to(probability, yes.shape)
    return np.where(known, yes, p), np.where(known, 0.0, p * (1 - p))


def _count_terms(
    rows: Sequence[Row], constants: Mapping[str, float], settings: Mapping[str, Any]
) -> dict[str, tuple[Floats, Floats]]:
    """Single node, count, and tokens per accelerator and step, with the count predicted where it is not stated."""
    stated = np.log10(numbers(rows, "n_accelerators"))
    known = ~np.isnan(stated)
    with np.errstate(invalid="ignore"):
        expected = constants["count_level"] + constants["count_slope"] * np.log10(_compute(rows))
    # A throughput row states its count if it matters; without compute nothing but the typical count is left.
    expected = np.where(np.isnan(expected), np.log10(settings["typical_count"]), expected)
    log_count = np.where(known, stated, expected)
    doubt = np.where(known, 0.0, constants["count_sd"] ** 2)
    limit = np.log10(settings["single_node_accelerators"])
    below = np.array([NormalDist(mean, constants["count_sd"]).cdf(limit) for mean in expected])
    batch = numbers(rows, "global_batch_tokens")
    no_batch = np.isnan(batch)
    small = numbers(rows, "params_active") < settings["small_model_params"]
    reference = np.log(settings["reference_tokens_per_step"])
    with np.errstate(invalid="ignore"):
        from_batch = np.log(batch) - np.log(10) * log_count
    log_tokens = np.where(no_batch, constants["log_tokens_per_step"], from_batch) - reference
    spread = np.where(no_batch, constants["log_tokens_per_step_sd"] ** 2, np.log(10) ** 2 * doubt)
    reach = settings["log_tokens_per_step_reach"]
    return {
        "single_node": _yes_no(log_count <= limit, known, below),
        "log10_count": (log_count - np.log10(settings["typical_count"]), doubt),
        "log_tokens_per_step": (
            np.where(small, np.clip(log_tokens, -reach, reach), 0.0),
            np.where(small, np.minimum(spread, constants["log_tokens_per_step_sd"] ** 2), 0.0),
        ),
    }


def features(rows: Sequence[Row], constants: Mapping[str, float], settings: Mapping[str, Any]) -> Features:
    """Covariates of rows of ``data.csv``, or of scenarios written with the same keys.

    Read are ``params_active``, ``tokens``, ``generation``, ``peak_16bit_flop_per_s``, ``architecture``, ``precision``,
    and where stated ``n_accelerators``, ``sequence_length``, ``n_layers``, ``d_model``, ``global_batch_tokens``,
    ``activation_recompute``, ``flash_attention``, ``publication_date``. Rows of ``kind`` throughput or mfu keep the
    terms that describe long runs (recompute, flash attention, tokens per step, single node) at zero: benchmarks are
    tuned, and the program's benchmark gap takes these up.

    Parameters
    ----------
    rows : sequence of mapping
    constants : mapping
        From `imputation`.
    settings : mapping
        Plain values of ``prior.yaml``.
    """
    params = numbers(rows, "params_active")
    log_size = np.log10(params / BILLION)
    below = np.minimum(log_size, 0.0)
    hopper = flags(rows, "generation", "hopper")
    run = ~flags(rows, "kind", "throughput", "mfu")
    log_attention = np.log1p(attention_ratio(rows, settings))
    recompute_known = np.array([row.get("activation_recompute") not in (None, "", "unknown") for row in rows])
    flash_known = np.array([row.get("flash_attention") not in (None, "", "unknown") for row in rows])
    early = _years(rows) < settings["flash_attention_year"]
    columns: dict[str, tuple[Any, Any]] = {
        "intercept": (np.ones(len(rows)), np.zeros(len(rows))),
        "log10_size": (log_size, 0.0),
        "log10_size_below_1b": (below, 0.0),
        "log10_size_below_1b_hopper": (below * hopper, 0.0),
        "moe": (flags(rows, "architecture", "moe"), 0.0),
        "encoder": (flags(rows, "architecture", "encoder"), 0.0),
        "state_space": (flags(rows, "architecture", "ssm"), 0.0),
        "fp8": (flags(rows, "precision", "fp8"), 0.0),
        "attention": (log_attention, 0.0),
        "full_recompute": _yes_no(
            flags(rows, "activation_recompute", "full"), recompute_known, constants["share_full_recompute"]
        ),
        "no_flash_attention": _yes_no(
            flags(rows, "flash_attention", "no"),
            flash_known,
            np.where(early, 1.0, constants["share_no_flash_attention"]),
        ),
        **_count_terms(rows, constants, settings),
    }
    for name in ("full_recompute", "no_flash_attention", "log_tokens_per_step", "single_node"):
        mean, variance = columns[name]
        columns[name] = (np.where(run, mean, 0.0), np.where(run, variance, 0.0))
    full = [np.broadcast_arrays(columns[name][0], columns[name][1], params) for name in TERMS]
    return Features(
        np.column_stack([part[0] for part in full]).astype(float),
        np.column_stack([part[1] for part in full]).astype(float),
        [str(row["generation"]) for row in rows],
        log_attention,
    )
