r"""Effective utilisation: MFU and goodput fitted together to totals, throughput, reported MFUs and goodputs.

With :math:`u = 6ND / (3600\, h P)` against the 16-bit peak, the efficiency of run :math:`i` of family :math:`f` (team
and stack) on generation :math:`c` while it is productive is

.. math::
    \eta_i = x_i^\top \beta + \gamma_c + a_f + c_f t_i, \qquad
    \beta_j \sim N(m_j, s_j^2), \quad \gamma_c \sim N(0, \sigma_\gamma^2), \quad a_f \sim N(0, \tau^2), \quad
    c_f \sim N(0, \sigma_c^2), \quad t_i = \min(\log_{10} N_i / N_0,\, 0) .

Some stacks keep their utilisation in small models and others lose half of it: each family has its own slope below the
size :math:`N_0`. Each kind of row measures its own part:

.. math::
    \text{total hours:} \quad & \log u_i = \eta_i + e_i + b B_i - \ell_f + r_i, \qquad
        e^{\ell_f} - 1 \sim \mathrm{Lomax}(\text{mean } \theta, \text{shape } \alpha), \\
    \text{compute-only hours:} \quad & \log u_i = \eta_i + e_i + b B_i + r_i, \\
    \text{throughput:} \quad & \log u_i = x_i^\top \beta + \gamma_c + a'_f + d + e'_i, \\
    \text{reported MFU:} \quad & \log \mathrm{MFU}_i = \eta_i + e_i
        + \log(1 + \rho_k A_i) + \kappa [k = \text{recompute}] + q_i, \\
    \text{goodput:} \quad & 1 / g - 1 \sim \mathrm{Lomax}(\text{mean } \theta, \text{shape } \alpha) .

Lost hours per productive hour, :math:`e^{\ell} - 1`, are the team's: how failures are handled, and which hours are
counted. With a loss per run beside it, 0.87 of the mean loss was the team's, and log scores were lower. The Pareto tail
is that of a few teams that count several times the hours of their run. It is on the hours and not on their log, which
would give the hours of a run no mean.

Here :math:`e \sim N(0, \sigma_e^2)` differs from run to run; :math:`r \sim N(0, \sigma_A^2 + B \sigma_B^2)` and the
shift :math:`b` are of rounded, bounded or second-hand records (:math:`B = 1`); :math:`d` is the gap of tuned
benchmarks, whose families :math:`a'_f \sim N(0, \tau'^2)` and rows :math:`e' \sim N(0, \sigma'^2)` are their own;
:math:`A_i` is attention over :math:`6N` FLOP, :math:`\rho_k` the share of it in the MFU's convention :math:`k`, and
:math:`q \sim N(0, \sigma_q^2)` is wider where the convention is not stated. A total that is an upper bound, or a
goodput that is a lower one, enters as censored. Covariates that are not stated add :math:`\sum_j \beta_j^2 v_{ij}` to
the variance, see `gpustack_mc.fits.utilization_data`.

MFU and goodput of a new run are :math:`e^{\eta + e}` and :math:`e^{-\ell}` of the same joint draw.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import log_ndtr
from numpyro.distributions import transforms
from numpyro.handlers import mask

from gpustack_mc.fits import utilization_data as table

CONVENTIONS_UNSURE = ("6N+attn_unspecified", "hw_recompute", "unknown", "")


def loss_distribution(mean: Any, shape: float) -> dist.Distribution:
    r"""Pareto distribution of the second kind (Lomax).

    .. math:: 1 - F(x) = \left(1 + \frac{x}{(\alpha - 1) m}\right)^{-\alpha}

    Parameters
    ----------
    mean : array
        :math:`m`.
    shape : float
        :math:`\alpha`, above 1.
    """
    scale = (shape - 1) * mean
    return dist.TransformedDistribution(
        dist.Exponential(shape), [transforms.ExpTransform(), transforms.AffineTransform(-scale, scale)]
    )


class Data(NamedTuple):
    """Arrays of the program; rows of all kinds but goodput come first, in one order."""

    mean: np.ndarray  # (rows, terms)
    variance: np.ndarray  # (rows, terms)
    generation: np.ndarray  # (rows,) index
    family: np.ndarray  # (rows,) index into families of runs, or of benchmarks
    families: int
    benchmark_families: int
    log_u: np.ndarray  # (rows,) NaN where hours are missing
    log_mfu: np.ndarray  # (rows,) against the 16-bit peak; NaN where none is reported
    attention: np.ndarray  # (rows,) log(1 + rho A) of the row's convention
    recompute: np.ndarray  # (rows,) MFU counts recomputation
    unsure: np.ndarray  # (rows,) convention not known
    loose: np.ndarray  # (rows,)
    below: np.ndarray  # (rows,) decades below the size from which families differ by a level only
    rows: dict[str, np.ndarray]  # indices of total, bound, compute_only, throughput, mfu, paired
    loss: np.ndarray  # hours lost per productive hour, 1 / goodput - 1
    loss_bound: np.ndarray  # of goodputs that are lower bounds
    labels: dict[str, list[str]]  # names of what the elements of a sampled site are effects of


def _codes(labels: Sequence[str] | np.ndarray) -> tuple[np.ndarray, list[str]]:
    names, codes = np.unique(np.asarray(labels, dtype=str), return_inverse=True)
    return codes, names.tolist()


def _mfu(rows: Sequence[table.Row], settings: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Reported MFUs against the 16-bit peak, and what their conventions add; kernels at their best are no average."""
    reported = table.numbers(rows, "mfu_reported")
    reported[table.flags(rows, "mfu_kind", "peak_benchmark")] = np.nan
    eight_bit = table.flags(rows, "mfu_peak_basis", "fp8")
    ratio = table.numbers(rows, "peak_flop_per_s") / table.numbers(rows, "peak_16bit_flop_per_s")
    counted = np.array([settings["attention_counted"][row["mfu_convention"] or "unknown"] for row in rows])
    return {
        "log_mfu": np.log(np.where(eight_bit, reported * ratio, reported)),
        "attention": np.log1p(counted * table.attention_ratio(rows, settings)),
        "recompute": table.flags(rows, "mfu_convention", "hw_recompute"),
        "unsure": table.flags(rows, "mfu_convention", *CONVENTIONS_UNSURE),
    }


def prepare(rows: Sequence[table.Row], settings: Mapping[str, Any]) -> Data:
    """Arrays of the program from the rows of ``data.csv`` with ``use`` = ``yes``."""
    goodput = [row for row in rows if row["kind"] == "goodput"]
    rows = [row for row in rows if row["kind"] != "goodput"]
    run = table.flags(rows, "kind", "training")
    constants = table.imputation([row for row, yes in zip(rows, run, strict=True) if yes], settings)
    found = table.features(rows, constants, settings)
    names = np.array([row["family"] for row in rows])
    family = np.zeros(len(rows), dtype=int)
    family[run], families = _codes(names[run])
    family[~run], benchmark_families = _codes(names[~run])
    bound = run & table.flags(rows, "hours_basis", "upper_bound")
    alone = table.compute_only(rows)
    reported = _mfu(rows, settings)
    groups = {
        "total": run & ~bound & ~alone,
        "bound": bound,
        "compute_only": run & ~bound & alone,
        "throughput": table.flags(rows, "kind", "throughput"),
        "mfu": table.flags(rows, "kind", "mfu"),
        "paired": run & ~np.isnan(reported["log_mfu"]),
        "converted": table.flags(rows, "kind", "throughput") & ~np.isnan(reported["log_mfu"]),
    }
    limit = table.flags(goodput, "goodput_bound", "lower")
    loss = 1 / table.numbers(goodput, "goodput") - 1
    generations = list(settings["generations"])
    labels = dict.fromkeys(("family_z", "family_slope_z", "family_loss_z"), families)
    labels |= {"benchmark_z": benchmark_families, "run_z": [rows[i]["id"] for i in np.flatnonzero(groups["paired"])]}
    labels |= {"generation_z": generations, "beta": list(table.TERMS)}
    return Data(
        mean=found.mean, variance=found.variance, generation=np.array([generations.index(g) for g in found.generation]),
        family=family, families=len(families), benchmark_families=len(benchmark_families), labels=labels,
        log_u=table.log_utilization(rows), loose=table.loose_record(rows).astype(float),
        below=table.below_saturation(rows, settings),
        rows={name: np.flatnonzero(pick) for name, pick in groups.items()},
        loss=loss[~limit], loss_bound=loss[limit], **reported,
    )  # fmt: skip


def _hyperparameters(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Spreads, shifts and slopes."""
    means, sds = np.array([settings["terms"][name] for name in table.TERMS]).T
    half = {
        "generation_sd": settings["prior_generation_sd"],
        "family_sd": settings["prior_family_sd"],
        "family_slope_sd": settings["prior_family_slope_sd"],
        "run_sd": settings["prior_run_sd"],
        "benchmark_family_sd": settings["prior_benchmark_family_sd"],
        "benchmark_sd": settings["prior_benchmark_sd"],
        "record_sd": settings["prior_record_sd"],
        "mfu_sd": settings["prior_mfu_sd"][0],
        "mfu_sd_unsure": settings["prior_mfu_sd"][1],
    }
    shifts = {
        "record_shift": settings["prior_record_shift"],
        "benchmark_gap": settings["prior_benchmark_gap"],
        "recompute_shift": settings["prior_recompute_shift"],
    }
    p = {"beta": numpyro.sample("beta", dist.Normal(means, sds).to_event(1))}
    p |= {name: numpyro.sample(name, dist.HalfNormal(scale)) for name, scale in half.items()}
    p |= {name: numpyro.sample(name, dist.Normal(*prior)) for name, prior in shifts.items()}
    p["loss_mean"] = numpyro.sample("loss_mean", dist.LogNormal(*settings["prior_loss"]))
    return p


def _effects(data: Data, settings: Mapping[str, Any], p: dict[str, Any]) -> tuple[Any, ...]:
    """Effects of generation, family (level, slope, loss) and benchmark family; scaled draws: many have one row."""
    with numpyro.plate("generations", len(settings["generations"])):
        generation = p["generation_sd"] * numpyro.sample("generation_z", dist.Normal(0.0, 1.0))
    with numpyro.plate("families", data.families):
        family = p["family_sd"] * numpyro.sample("family_z", dist.Normal(0.0, 1.0))
        slope = p["family_slope_sd"] * numpyro.sample("family_slope_z", dist.Normal(0.0, 1.0))
        # Normal scores of the loss: an exponential one, unbounded only upwards, made NUTS diverge.
        score = numpyro.sample("family_loss_z", dist.Normal(0.0, 1.0))
        shape = settings["loss_shape"]
        loss = jnp.log1p(p["loss_mean"] * (shape - 1) * jnp.expm1(-log_ndtr(-score) / shape))
    with numpyro.plate("benchmark_families", data.benchmark_families):
        benchmark = p["benchmark_family_sd"] * numpyro.sample("benchmark_z", dist.Normal(0.0, 1.0))
    return generation, family, slope, loss, benchmark


def model(data: Data, settings: Mapping[str, Any], keep: Any = None, observed: bool = True) -> None:
    """Generate rows of every kind, as in the docstring of the module.

    Parameters
    ----------
    data : Data
    settings : mapping
        Plain values of ``prior.yaml``.
    keep : array of bool, shape (rows,), optional
        Rows whose likelihood counts; all when omitted. It may be traced, so that leaving out a family compiles once.
    observed : bool
        Condition on the data; False draws them (bounds are then not drawn).
    """
    keep = jnp.ones(len(data.mean), dtype=bool) if keep is None else keep
    p = _hyperparameters(settings)
    generation, family, slope, loss, benchmark = _effects(data, settings, p)
    shared = data.mean @ p["beta"] + generation[data.generation]
    unknown = data.variance @ p["beta"] ** 2
    total, paired = data.rows, data.rows["paired"]
    with numpyro.plate("paired", len(paired)):
        own = numpyro.sample("run_z", dist.Normal(0.0, 1.0))
    # Runs with a reported MFU share their run effect with it; that of the others is part of their noise.
    drawn = jnp.zeros(len(data.mean)).at[paired].set(p["run_sd"] * own)
    left = jnp.full(len(data.mean), 1.0).at[paired].set(0.0)
    own_family = data.family * np.isin(np.arange(len(data.mean)), _runs(data))
    efficiency = shared + family[own_family] + slope[own_family] * data.below + drawn
    center = efficiency + p["record_shift"] * data.loose
    variance = left * p["run_sd"] ** 2 + settings["exact_record_sd"] ** 2 + data.loose * p["record_sd"] ** 2 + unknown
    tuned = shared + p["benchmark_gap"] + benchmark[data.family * (~np.isin(np.arange(len(data.mean)), _runs(data)))]
    noise = jnp.where(data.unsure, p["mfu_sd_unsure"], p["mfu_sd"])
    convention = data.attention + p["recompute_shift"] * data.recompute

    def see(name: str, rows: np.ndarray, distribution: dist.Distribution, values: np.ndarray) -> None:
        with numpyro.plate(f"{name}_rows", len(rows)), mask(mask=keep[rows]):
            numpyro.sample(name, distribution, obs=values[rows] if observed else None)

    sd = jnp.sqrt(variance)
    rows = total["total"]
    whole = center - loss[own_family]
    see("total", rows, dist.Normal(whole[rows], sd[rows]), data.log_u)
    rows = total["compute_only"]
    see("compute_only", rows, dist.Normal(center[rows], sd[rows]), data.log_u)
    rows = total["throughput"]
    see("throughput", rows, dist.Normal(tuned[rows], p["benchmark_sd"]), data.log_u)
    rows = total["mfu"]
    spread = jnp.hypot(p["benchmark_sd"], noise[rows])
    see("mfu", rows, dist.Normal((tuned + convention)[rows], spread), data.log_mfu)
    see("paired_mfu", paired, dist.Normal((efficiency + convention)[paired], noise[paired]), data.log_mfu)
    rows = total["converted"]
    see("converted", rows, dist.Normal(convention[rows], noise[rows]), data.log_mfu - data.log_u)
    with numpyro.plate("jobs", len(data.loss)):
        lost = loss_distribution(p["loss_mean"], settings["loss_shape"])
        numpyro.sample("loss", lost, obs=data.loss if observed else None)
    if observed:
        _bounds(data, settings, p, whole, sd, keep)


def _runs(data: Data) -> np.ndarray:
    return np.concatenate([data.rows[name] for name in ("total", "bound", "compute_only")])


def _bounds(data: Data, settings: Mapping[str, Any], p: dict[str, Any], whole: Any, sd: Any, keep: Any) -> None:
    r"""Add hours at most :math:`h`, that is utilisation at least :math:`u`, and goodput at least :math:`g`."""
    rows = data.rows["bound"]
    tail = log_ndtr((whole[rows] - data.log_u[rows]) / sd[rows])
    numpyro.factor("bounded_total", jnp.where(keep[rows], tail, 0.0).sum())
    exceeded = jnp.log1p(data.loss_bound / ((settings["loss_shape"] - 1) * p["loss_mean"])) * -settings["loss_shape"]
    numpyro.factor("bounded_loss", jnp.log(-jnp.expm1(exceeded)).sum())
