"""``draws.csv``: one column per parameter, one row per joint draw."""

import io
from collections.abc import Mapping

import numpy as np

_DIGITS = 5


def read_columns(text: str) -> dict[str, np.ndarray]:
    """Columns of ``draws.csv``."""
    header, *lines = text.splitlines()
    if not lines:
        raise ValueError("draws.csv has no rows")
    values = np.loadtxt(io.StringIO("\n".join(lines)), delimiter=",", ndmin=2)
    return dict(zip(header.split(","), values.T, strict=True))


def write_columns(columns: Mapping[str, np.ndarray]) -> str:
    """Text of ``draws.csv``, five digits each."""
    rows = zip(*columns.values(), strict=True)
    lines = [",".join(columns), *(",".join(f"{value:.{_DIGITS}g}" for value in row) for row in rows)]
    return "\n".join(lines) + "\n"
