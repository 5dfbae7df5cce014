"""The picture of a calibration: each input before and after."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpustack_mc import priors


def before_after(moved: Sequence[Any]) -> bytes:
    """PNG."""
    return b""
