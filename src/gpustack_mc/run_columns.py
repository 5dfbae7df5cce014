"""The columns of a user's table of runs: what each means, its unit, and which input it informs.

The documentation, the messages of ``gpustack-mc calibrate`` and the reader follow from this one table.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from gpustack_mc.quantities import BY_NAME, INPUTS


class Column(NamedTuple):
    """One column.

    Attributes
    ----------
    name : str
    unit : str
        ``"1"`` for pure numbers, empty for text.
    informs : str
        Input that a value is evidence of; ``utilisation`` for MFU and goodput together; empty for what describes the
        run.
    description : str
    low, high : float
        Values outside are refused.
    aliases : tuple of str
        Other names under which the column is found.
    """

    name: str
    unit: str
    informs: str
    description: str
    low: float = 0.0
    high: float = float("inf")
    aliases: tuple[str, ...] = ()


UTILIZATION = "utilisation"

_DESCRIBING = (
    Column("run_id", "", "", "Name of the run; each its own", aliases=("id",)),
    Column("params_active", "1", "", "Parameters used for each token, e.g. 7e9", 1e5, 1e16),
    Column("params_total", "1", "", "All parameters; those of a dense model are all active", 1e5, 1e16, ("params",)),
    Column("tokens", "token", "", "Tokens that were trained on, e.g. 2e12", 1e6, 1e19),
    Column("accelerator", "", "", "Name as in `gpustack-mc accelerators`"),
    Column("n_accelerators", "1", "", "Accelerators working at the same time", 1.0, 1e9, ("accelerator_count",)),
    Column("architecture", "", "", "dense, moe, encoder or ssm"),
    Column("precision", "", "", "bf16, fp16 or fp8"),
    Column("sequence_length", "token", "", "Tokens per sequence", 1.0, 1e8),
    Column("n_layers", "1", "", "Layers", 1.0, 1e5),
    Column("d_model", "1", "", "Width", 1.0, 1e7),
    Column("global_batch_tokens", "token", "", "Tokens per optimiser step", 1.0, 1e12),
    Column("activation_recompute", "", "", "none, selective or full"),
    Column("flash_attention", "", "", "yes or no"),
    Column("publication_date", "", "", "Year or date of the run", aliases=("date",)),
    Column("region", "", "", "Site, as in `gpustack-mc regions`"),
    Column("operator", "", "", "Of the site: hyperscaler, colocation, hpc or enterprise"),
    Column("provider_kind", "", "", "Of rented accelerators: hyperscaler, neocloud or marketplace"),
    Column("term", "", "", "Of the rent: on_demand, 1yr, 3yr or spot"),
    Column("carbon_basis", "", "", "Of grid_intensity: direct or lifecycle"),
    Column("kind", "", "", "training_run, or empty; other kinds of rows are not runs"),
    Column("tier", "", "", "A: exact books; B: rounded or second-hand; empty: exact"),
    Column("hours_basis", "", "", "How the hours came about; plan and upper_bound are not exact"),
    Column("hours_cover", "", "", "compute-only: without downtime"),
    Column("mfu_convention", "", "", "What the MFU counts: 6N_only, 6N+attn_full, 6N+attn_causal, hw_recompute"),
    Column("mfu_kind", "", "", "peak_benchmark: of a kernel, which is no average of a run"),
    Column("mfu_peak_basis", "", "", "fp8: the MFU is a share of the fp8 peak"),
    Column("energy_basis", "", "", "What energy_mwh covers: measured_gpu, measured_it, measured_facility"),
)

_MEASURED = (
    Column("accelerator_hours", "h", UTILIZATION, "Hours of all accelerators together, with downtime", 0.0, 1e12),
    Column("wall_clock_days", "day", UTILIZATION, "Duration, where accelerator_hours are missing", 0.0, 1e5),
    Column("tokens_per_second", "token/s", UTILIZATION, "Throughput of the cluster while productive", 0.0, 1e12),
    Column("tokens_per_second_per_accelerator", "token/s", UTILIZATION, "The same per accelerator", 0.0, 1e9),
    Column("step_time_s", "s", UTILIZATION, "Time of a step of global_batch_tokens", 0.0, 1e6),
    Column("mfu_reported", "1", UTILIZATION, "MFU while productive; say mfu_convention", 0.001, 1.0, ("mfu",)),
    Column("goodput", "1", "goodput", "Productive share of the accelerator time", 0.001, 1.0, ("goodput_reported",)),
    Column("mean_gpu_power_w", "W", "gpu_power_fraction", "Mean board power of one accelerator", 1.0, 1e5),
    Column("mean_system_power_w_per_accelerator", "W", "host_power", "Mean IT power per accelerator, boards, hosts "
           "and network", 1.0, 1e5, ("it_power_w_per_accelerator",)),
    Column("facility_power_w_per_accelerator", "W", "host_power", "Mean facility power per accelerator; needs pue",
           1.0, 1e5),
    Column("energy_mwh", "MWh", "gpu_power_fraction, host_power", "Energy of the run; say energy_basis", 0.0, 1e9),
)  # fmt: skip

_ALIASES: dict[str, tuple[str, ...]] = {
    "grid_intensity": ("grid_gco2_per_kwh",),
    "electricity_price": ("electricity_usd_per_kwh",),
    "rental_price": ("rental_usd_per_hour",),
    "capex": ("capex_usd",),
}
# Any other input may be a column of its own, in its unit; MFU and goodput are among the columns above.
_INPUTS = tuple(
    Column(q.name, q.unit, q.name, q.description, q.low, q.high, _ALIASES.get(q.name, ()))
    for q in (BY_NAME[name] for name in INPUTS)
    if q.name not in ("mfu", "goodput")
)

COLUMNS: dict[str, Column] = {column.name: column for column in (*_DESCRIBING, *_MEASURED, *_INPUTS)}
MEASURED: tuple[str, ...] = tuple(column.name for column in COLUMNS.values() if column.informs)
NAMES: dict[str, str] = {
    alias: column.name for column in COLUMNS.values() for alias in (column.name, *column.aliases)
}  # fmt: skip
"""From every name or alias in a header to the column's name."""

# Energy that is hours times a nominal power says nothing of power.
ENERGY_SCOPES = {
    "measured_gpu": "board", "board": "board", "measured_it": "it", "it": "it", "measured_system": "it",
    "measured_facility": "facility", "facility": "facility",
}  # fmt: skip

# ---- CodeCarbon -----------------------------------------------------------------------------------------------------
CODECARBON = ("duration", "emissions", "energy_consumed", "gpu_energy", "gpu_count", "gpu_model")
"""Columns by which CodeCarbon's ``emissions.csv`` is recognised.

Units as in https://docs.codecarbon.io/latest/logging/output: seconds, kg, kWh. Its energies already hold the factor
``pue`` that its user may have set.
"""

CODECARBON_SAYS = (
    "CodeCarbon's log: gpu_energy tells the board power, and a pue above 1 the PUE. CPU and memory are modelled there, "
    "and emissions follow from a table of countries, so that they say nothing of host power and grid; parameters and "
    "tokens, which MFU needs, are not in it."
)


def from_codecarbon(cells: Mapping[str, str]) -> dict[str, str]:
    """Write a row of ``emissions.csv`` with the columns of `COLUMNS`; cells that are no numbers stay for the reader."""
    found = {
        "run_id": cells.get("run_id", "") or cells.get("project_name", ""),
        "publication_date": cells.get("timestamp", "")[:10],
        "accelerator": cells.get("gpu_model", ""),
        "n_accelerators": cells.get("gpu_count", ""),
        "region": cells.get("country_iso_code", ""),
    }
    try:
        hours = float(cells.get("duration", "")) / 3600
        pue = float(cells.get("pue") or 1.0)
        energy, count = float(cells.get("gpu_energy", "")), float(cells.get("gpu_count", ""))
    except ValueError:
        return found
    if hours > 0 and count > 0 and pue > 0 and energy > 0:
        found["mean_gpu_power_w"] = repr(1000 * energy / (pue * hours * count))
        found["tracked_hours"] = repr(hours)
    if pue > 1:
        found["pue"] = repr(pue)
    return found


def chip_names(model: str) -> tuple[str, ...]:
    """Names under which the accelerator of ``8 x NVIDIA H100 80GB HBM3`` may be known, from most to least specific."""
    whole = re.sub(r"^\s*\d+\s*x\s+", "", model.strip())
    plain = re.sub(r"\s+HBM\d\w*$", "", whole)
    return tuple(dict.fromkeys((whole, plain, re.sub(r"^(NVIDIA|AMD|Tesla)\s+", "", plain))))
