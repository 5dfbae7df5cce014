"""Which sensitivity indices are told: those of an output, or of its logarithm where its variance says nothing.

With a heavy tail the variance of an output is that of its few largest draws. The indices of its logarithm still rank
the inputs; nothing else about the output is told on the log scale.
"""

from typing import Any, Literal

# Indices whose intervals are wider than this rank nothing; those of the logarithm do.
WIDEST = 0.3
# The total indices of independent inputs add up to at least 1: estimates that do not rest on too few draws.
SMALLEST_SUM = 0.9

Scale = Literal["raw", "log"]


def scale(summary: dict[str, Any], output: str) -> Scale:
    """Return the scale on which the indices of an output are told.

    Parameters
    ----------
    summary : dict
        From `gpustack_mc.summarizing.summarise`.
    output : str

    Returns
    -------
    {"raw", "log"}
        ``log`` when the raw indices cannot be right and those of the logarithm exist: an interval is wider than
        `WIDEST`, or all total indices together are below 1.
    """
    found = _known(summary["sensitivity"].get(output, {}))
    if not found or not _known(summary["sensitivity_log"].get(output, {})):
        return "raw"
    intervals = [index["ST_interval_90"] for index in found]
    wide = any(low is not None and high - low > WIDEST for low, high in intervals)
    return "log" if wide or sum(index["ST"] for index in found) < SMALLEST_SUM else "raw"


def indices(summary: dict[str, Any], output: str) -> dict[str, Any]:
    """Return the indices of an output by input, on its `scale`."""
    found: dict[str, Any] = summary["sensitivity_log" if scale(summary, output) == "log" else "sensitivity"]
    of_output: dict[str, Any] = found.get(output, {})
    return of_output


def _known(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [index for index in found.values() if index["ST"] is not None]
