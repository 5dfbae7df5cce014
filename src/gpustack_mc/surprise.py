"""Runs that the shipped prior did not expect: tail probabilities of each, and of all together."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpustack_mc.fits import team
from gpustack_mc.fits.utilization_predict import Draws, Evidence, level_and_slope, observations

# Runs whose joint distribution is formed; a covariance of more takes seconds.
_MOST_TOGETHER = 200
_CHUNK = 512
_NAMED = 5

_KINDS = {"total": "hours", "compute_only": "throughput or compute-only hours", "mfu": "MFU"}


class Surprise(NamedTuple):
    """Something that had a small probability.

    Attributes
    ----------
    quantity : str
    run_id : str
        Empty for all runs together.
    pit : float or None
        Probability under the prior of a smaller value; None for all runs together.
    tail : float
        Two-sided tail probability.
    text : str
        One sentence.
    """

    quantity: str
    run_id: str
    pit: float | None
    tail: float
    text: str


def _one(quantity: str, run_id: str, pit: float, what: str) -> Surprise:
    side = f"above its {min(100 * pit, 99.99):.4g}th" if pit > 0.5 else f"below its {max(100 * pit, 0.01):.2g}th"
    words = f"the {what} of run {run_id!r} lie{'' if what == 'hours' else 's'} {side} percentile of the shipped prior"
    return Surprise(quantity, run_id, pit, 2 * min(pit, 1 - pit), f"{words}; it is kept. Check its units.")


def _together(quantity: str, count: int, tail: float, what: str) -> Surprise:
    words = f"all {count} {what} together are as far out as {tail:.1g} of what the shipped prior expects"
    return Surprise(quantity, "", None, tail, f"{words}; your runs differ from the published ones, or from each other.")


def pit_of_runs(
    draws: Draws, evidence: Sequence[Evidence], constants: Mapping[str, float], settings: Mapping[str, Any]
) -> np.ndarray:
    """Probability, under the shipped prior of a run of a new family, of less utilisation; shape (items,)."""
    from scipy.special import ndtr

    p = draws.scalar
    found = []
    for start in range(0, len(evidence), _CHUNK):
        items = evidence[start : start + _CHUNK]
        mean, noise, unknown = observations(draws, items, constants, settings)
        level, slope = level_and_slope([item.row for item in items], settings).T[:, :, None]
        family = (level * p["family_sd"]) ** 2 + (slope * p["family_slope_sd"]) ** 2
        variance = noise + unknown + family + p["run_sd"] ** 2
        values = np.array([[item.value] for item in items])
        found.append(ndtr((values - mean) / np.sqrt(variance)).mean(axis=1))
    return np.concatenate(found)


def tail_of_runs(
    draws: Draws, evidence: Sequence[Evidence], constants: Mapping[str, float], settings: Mapping[str, Any]
) -> float:
    r"""Tail probability of the Mahalanobis distance of all observations from what the shipped prior expects.

    The covariance is that of the mixture over draws: noise, run and family effects in each draw, and the spread of the
    draws' expectations; the distance is referred to :math:`\chi^2_n`.
    """
    from scipy.special import chdtrc

    step = max(1, -(-len(evidence) // _MOST_TOGETHER))
    items = list(evidence)[::step]
    p = draws.scalar
    mean, noise, unknown = observations(draws, items, constants, settings)
    runs = np.array([item.run or f"\0{i}" for i, item in enumerate(items)])
    same = (runs[:, None] == runs[None, :]).astype(float)
    own = (p["run_sd"] ** 2 + unknown).mean(axis=1)
    covariance = np.diag(noise.mean(axis=1)) + same * np.sqrt(own[:, None] * own[None, :])
    g = level_and_slope([item.row for item in items], settings)
    family = np.diag([(p[name] ** 2).mean() for name in ("family_sd", "family_slope_sd")])
    covariance += g @ family @ g.T + np.atleast_2d(np.cov(mean))
    gap = np.array([item.value for item in items]) - mean.mean(axis=1)
    return float(chdtrc(len(items), gap @ np.linalg.solve(covariance, gap)))


def of_runs(
    draws: Draws, evidence: Sequence[Evidence], names: Mapping[str, str], constants: Mapping[str, float],
    settings: Mapping[str, Any], limit: float,
) -> list[Surprise]:  # fmt: skip
    """Runs whose hours, throughput or MFU had a tail probability below `limit`, worst first, and all runs together."""
    pits = pit_of_runs(draws, evidence, constants, settings)
    tails = 2 * np.minimum(pits, 1 - pits)
    worst = [i for i in np.argsort(tails) if tails[i] < limit]
    # Less utilisation is more hours.
    found = [
        _one("utilization", names[item.run], float(1 - pit if item.kind == "total" else pit), _KINDS[item.kind])
        for item, pit in ((evidence[i], pits[i]) for i in worst[:_NAMED])
    ]
    if len(worst) > _NAMED:
        chance = f"{limit * len(evidence):.0f} expected by chance"
        more = f"{len(worst):,} of {len(evidence):,} observations are below {limit:g}; {chance}."
        found.append(Surprise("utilization", "", None, float(tails[worst[_NAMED]]), more))
    if len(evidence) > 1:
        tail = tail_of_runs(draws, evidence, constants, settings)
        if tail < limit:
            found.append(_together("utilization", len(evidence), tail, "observations of utilisation"))
    return found


def of_measurements(
    quantity: str, scored: Sequence[tuple[str, float, int]], share: float, limit: float
) -> list[Surprise]:
    """Measurements, as (run, normal score, count), with a tail probability below `limit`, and all together."""
    from scipy.special import ndtr

    pits = [(float(ndtr(score)), run_id) for run_id, score, _ in scored]
    worst = sorted((2 * min(pit, 1 - pit), run_id, pit) for pit, run_id in pits if 2 * min(pit, 1 - pit) < limit)
    found = [_one(quantity, run_id, pit, quantity) for _, run_id, pit in worst[:_NAMED]]
    if len(scored) > 1:
        tail = team.joint_tail(team.scored([score for _, score, _ in scored], [n for *_, n in scored]), share)
        if tail < limit:
            found.append(_together(quantity, len(scored), tail, f"measurements of {quantity}"))
    return found
