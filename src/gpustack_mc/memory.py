r"""Does the state of a model fit on the accelerators of a cluster: weights, gradients, optimizer, activations.

A parameter has :math:`w` bytes of weights, :math:`g` of gradients and :math:`o` of optimizer state. Sharded over the
:math:`n` accelerators, an accelerator holds between :math:`(w + g + o) N` bytes (everything replicated) and
:math:`(w + g + o) N / n` (everything sharded), so that below :math:`n_0 = \lceil (w + g + o) N / M \rceil` accelerators
with :math:`M` bytes of memory no sharding helps. Activations come on top: those of one sequence of :math:`s` tokens
through :math:`\ell` layers of width :math:`d` take :math:`a \ell d s` bytes, or with full recomputation
:math:`a_0 \ell d s` for the inputs of the layers and :math:`a d s` for the one that is recomputed.

The bytes are those of ``priors/model_state.csv``. Buffers of communication, fragmentation and what drivers take are not
counted; a gigabyte is 1e9 bytes, as data sheets count.

References
----------
Rajbhandari et al. (2020), ZeRO, arXiv:1910.02054; Korthikanti et al. (2022), arXiv:2205.05198.
"""

import csv
import functools
import math
from typing import Any, NamedTuple

from gpustack_mc import catalog, formatting
from gpustack_mc.errors import InputError, Place

GIGABYTE = 1e9


class State(NamedTuple):
    """Bytes of model state per parameter."""

    weights: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.weights + self.gradients + self.optimizer


class Shape(NamedTuple):
    """What activations depend on; None where the scenario does not say."""

    n_layers: int | None
    d_model: int | None
    sequence_length: int | None
    recompute: str | None


@functools.cache
def table() -> dict[str, dict[str, str]]:
    """Return the rows of ``priors/model_state.csv`` by item."""
    with (catalog.folder("priors") / "model_state.csv").open(encoding="utf-8", newline="") as stream:
        return {row["item"]: row for row in csv.DictReader(stream)}


def usual_state() -> State:
    """Return the bytes per parameter of Adam in mixed precision with gradients in fp32."""
    return State(*(float(table()[item]["value"]) for item in State._fields))


def activation_bytes(shape: Shape) -> float | None:
    """Return the activations of one sequence on one accelerator; None when the scenario does not state the shape.

    Attention scores are taken as not kept, as with flash attention; sequence and tensor parallelism divide it further.
    """
    if shape.n_layers is None or shape.d_model is None or shape.sequence_length is None:
        return None
    kept, recomputed = (float(table()[item]["value"]) for item in ("activations_kept", "activations_recomputed"))
    tokens_by_width = shape.sequence_length * shape.d_model
    if shape.recompute == "full":
        return tokens_by_width * (recomputed * shape.n_layers + kept)
    return tokens_by_width * kept * shape.n_layers


def least_count(params: float, state: State, memory: float) -> int:
    """Return the fewest accelerators with `memory` bytes that hold the state, everything sharded."""
    # A quotient that is whole but for rounding must not ask for one accelerator more.
    return max(math.ceil(params * state.total / memory * (1 - 1e-12)), 1)


def fit(
    params: float, count: float, memory: float, state: State, activations: float | None, place: Place
) -> dict[str, Any]:
    """Say how the state of a model fits.

    Parameters
    ----------
    params : float
        All parameters, those of every expert included.
    count : float
        Accelerators.
    memory : float
        Bytes of one accelerator.
    state : State
    activations : float or None
        Bytes that an accelerator keeps for activations; None when unknown.
    place : Place
        Where the count is stated, for the error.

    Returns
    -------
    dict
        JSON-ready, sizes in GB: the parts of the state, what each way of sharding leaves on an accelerator and whether
        it fits, the least counts, the least degree of model parallelism.

    Raises
    ------
    InputError
        The state alone does not fit, however it is sharded.
    """
    fewest = least_count(params, state, memory)
    if count < fewest:
        raise InputError("does-not-fit", _refusal(params, count, memory, state),
                         f"At least {fewest:,} such accelerators hold it.", place)  # fmt: skip
    room = memory - (activations or 0.0)
    held = {
        "replicated": state.total * params,
        "optimizer sharded": (state.weights + state.gradients + state.optimizer / count) * params,
        "optimizer and gradients sharded": (state.weights + (state.gradients + state.optimizer) / count) * params,
        "all sharded": state.total * params / count,
    }
    return {
        "params": params,
        "count": count,
        "memory_gb": memory / GIGABYTE,
        "bytes_per_param": state._asdict() | {"total": state.total},
        "state_gb": {part: size * params / GIGABYTE for part, size in state._asdict().items()}
        | {"total": state.total * params / GIGABYTE},
        "checkpoint_gb": (state.weights + state.optimizer) * params / GIGABYTE,
        "activations_gb": None if activations is None else activations / GIGABYTE,
        "ways": [
            {"sharding": way, "state_gb": size / GIGABYTE, "left_gb": (room - size) / GIGABYTE, "fits": size <= room}
            for way, size in held.items()
        ],
        "least_count": fewest,
        "least_count_with_activations": least_count(params, state, room) if room > 0 else None,
        "model_parallel": _model_parallel(params, count, room, state),
    }


def _refusal(params: float, count: float, memory: float, state: State) -> str:
    size, held = (formatting.number(value / GIGABYTE, 3) for value in (params * state.total, count * memory))
    what = f"{formatting.count(params)} parameters at {state.total:g} bytes of weights, gradients and optimizer state"
    return (
        f"{what} take {size} GB, and {formatting.plural(int(count), 'accelerator')} hold{'s' * (count == 1)} {held} GB."
    )


def _model_parallel(params: float, count: float, room: float, state: State) -> int | None:
    """Return the least power of two over which weights and gradients must be split, the optimizer being sharded."""
    rest = room - state.optimizer * params / count
    if rest <= 0:
        return None
    degree = 2 ** max(math.ceil(math.log2((state.weights + state.gradients) * params / rest)), 0)
    return degree if degree <= count else None
