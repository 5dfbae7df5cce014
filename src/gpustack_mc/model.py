"""The whole model: which equation follows which. Missing or misspelt quantities are a ``TypeError``."""

from collections.abc import Mapping, Sequence

import jax.numpy as jnp

from gpustack_mc import equations as eq
from gpustack_mc import failures, outages
from gpustack_mc.arrays import Real

Values = Mapping[str, Real]


def phase(*, active_params: Real, tokens: Real, context_flop_factor: Real, accelerator_count: Real,
          peak_flop_per_s: Real, mfu: Real, goodput: Real, tdp: Real, gpu_power_fraction: Real, host_power: Real,
          pue: Real) -> dict[str, Real]:  # fmt: skip
    """Work, accelerator-hours, time and energy of one phase of a run."""
    training_flop = eq.training_flop(active_params, tokens)
    accelerator_hours = eq.accelerator_hours(training_flop, context_flop_factor, peak_flop_per_s, mfu, goodput)
    training_days = eq.training_days(accelerator_hours, accelerator_count)
    it_energy_mwh = eq.it_energy_mwh(accelerator_hours, tdp, gpu_power_fraction, host_power)
    return {
        "tokens": tokens,
        "training_flop": training_flop,
        "accelerator_hours": accelerator_hours,
        "training_days": training_days,
        "peak_flop": accelerator_hours * peak_flop_per_s,
        "it_energy_mwh": it_energy_mwh,
        "energy_mwh": eq.energy_mwh(it_energy_mwh, pue),
    }


def run(phases: Sequence[Values], *, tdp: Real, gpu_power_fraction: Real, host_power: Real, pue: Real,
        electricity_price: Real, grid_intensity: Real, embodied_carbon: Real, water_onsite: Real, water_offsite: Real,
        capex: Real, residual_share: Real, lifetime: Real, fleet_utilization: Real, cost_of_capital: Real,
        operations_rate: Real, rental_price: Real, serving_throughput: Real, programme_overhead: Real,
        interruption_rate: Real, carbon_price: Real) -> dict[str, Real]:  # fmt: skip
    """Every output of a run from its phases and inputs.

    Parameters
    ----------
    phases : sequence of mapping
        The keyword arguments of `phase`, one mapping per phase; power and PUE only where they are not the run's.
    **inputs : array_like
        Quantities in the units of `gpustack_mc.quantities`; they broadcast against each other.

    Returns
    -------
    dict of str to Array
        The outputs of `gpustack_mc.quantities`, in its order.
    """
    power = {"tdp": tdp, "gpu_power_fraction": gpu_power_fraction, "host_power": host_power, "pue": pue}
    parts = [phase(**power | dict(values)) for values in phases]
    tokens, training_flop, accelerator_hours, training_days, peak_flop, it_energy_mwh, energy_mwh = (
        sum(part[name] for part in parts)
        for name in ("tokens", "training_flop", "accelerator_hours", "training_days", "peak_flop", "it_energy_mwh",
                     "energy_mwh")
    )  # fmt: skip
    effective_utilization = eq.effective_utilization(training_flop, accelerator_hours, peak_flop / accelerator_hours)

    interruptions = eq.interruptions(accelerator_hours, interruption_rate)

    facility_power_mw = eq.facility_power_mw(energy_mwh, training_days)

    co2e_operational_t = eq.co2e_operational_t(energy_mwh, grid_intensity)
    co2e_embodied_t = eq.co2e_embodied_t(accelerator_hours, embodied_carbon, lifetime, fleet_utilization)
    co2e_t = eq.co2e_t(co2e_operational_t, co2e_embodied_t)
    water_onsite_m3 = eq.water_onsite_m3(it_energy_mwh, water_onsite)
    water_offsite_m3 = eq.water_offsite_m3(energy_mwh, water_offsite)

    electricity_cost_usd = eq.electricity_cost_usd(energy_mwh, electricity_price)
    hardware_cost_usd = eq.hardware_cost_usd(accelerator_hours, capex, residual_share, lifetime, fleet_utilization)
    other_cost_usd = eq.other_cost_usd(accelerator_hours, capex, residual_share, lifetime, fleet_utilization,
                                       cost_of_capital, operations_rate)  # fmt: skip
    carbon_cost_usd = eq.carbon_cost_usd(co2e_t, carbon_price)
    cost_owned_usd = eq.cost_owned_usd(hardware_cost_usd, electricity_cost_usd, other_cost_usd, carbon_cost_usd)
    cost_rented_usd = eq.cost_rented_usd(accelerator_hours, rental_price, carbon_cost_usd)

    serving_kwh_per_million_tokens = eq.serving_kwh_per_million_tokens(tdp, gpu_power_fraction, host_power, pue,
                                                                       serving_throughput)  # fmt: skip
    return {
        "training_flop": training_flop,
        "training_days": training_days,
        "accelerator_hours": accelerator_hours,
        "effective_utilization": effective_utilization,
        "interruptions": interruptions,
        "hours_between_interruptions": eq.hours_between_interruptions(training_days, interruptions),
        "it_energy_mwh": it_energy_mwh,
        "energy_mwh": energy_mwh,
        "facility_power_mw": facility_power_mw,
        "co2e_operational_t": co2e_operational_t,
        "co2e_embodied_t": co2e_embodied_t,
        "co2e_t": co2e_t,
        "water_onsite_m3": water_onsite_m3,
        "water_offsite_m3": water_offsite_m3,
        "electricity_cost_usd": electricity_cost_usd,
        "hardware_cost_usd": hardware_cost_usd,
        "other_cost_usd": other_cost_usd,
        "carbon_cost_usd": carbon_cost_usd,
        "cost_owned_usd": cost_owned_usd,
        "owned_usd_per_accelerator_hour": eq.owned_usd_per_accelerator_hour(cost_owned_usd, accelerator_hours),
        "cost_rented_usd": cost_rented_usd,
        "electricity_share": eq.electricity_share(electricity_cost_usd, cost_owned_usd),
        "usd_per_million_training_tokens": eq.usd_per_million_training_tokens(cost_owned_usd, tokens),
        "serving_usd_per_million_tokens": eq.serving_usd_per_million_tokens(rental_price, serving_throughput),
        "serving_kwh_per_million_tokens": serving_kwh_per_million_tokens,
        "serving_kgco2e_per_million_tokens": eq.serving_kgco2e_per_million_tokens(
            serving_kwh_per_million_tokens, grid_intensity, embodied_carbon, lifetime, fleet_utilization,
            serving_throughput),
        "programme_accelerator_hours": eq.programme_accelerator_hours(accelerator_hours, programme_overhead),
        "programme_energy_mwh": eq.programme_energy_mwh(energy_mwh, programme_overhead),
        "programme_co2e_t": eq.programme_co2e_t(co2e_t, programme_overhead),
        "programme_cost_owned_usd": eq.programme_cost_owned_usd(cost_owned_usd, programme_overhead),
        "programme_cost_rented_usd": eq.programme_cost_rented_usd(cost_rented_usd, programme_overhead),
    }  # fmt: skip


def run_with_checkpoints(phases: Sequence[Values], *, checkpoint_interval: Real, **inputs: Real) -> dict[str, Real]:
    """Every output of a run whose goodput follows from failures and from checkpoints at a stated interval.

    Parameters
    ----------
    phases : sequence of mapping
        As for `run`; with ``goodput`` only where it is known, of what a job that runs has spent.
    checkpoint_interval : array_like
        Working time between two checkpoints, min.
    **inputs : array_like
        ``checkpoint_save_time``, ``restart_time`` and ``unexplained_loss``, besides those of `run`.

    Returns
    -------
    dict of str to Array
        The outputs of `run`, then those of the part ``reliability``; shares and the best interval are averages over
        the accelerator-hours of the phases whose goodput is not known.
    """
    return _checkpointed(phases, [checkpoint_interval for _ in phases], **inputs)


def run_with_best_checkpoints(phases: Sequence[Values], **inputs: Real) -> dict[str, Real]:
    """Every output of a run that checkpoints at the best interval of each phase; see `run_with_checkpoints`."""
    return _checkpointed(phases, [_best(values, **inputs) for values in phases], **inputs)


def _best(values: Values, *, interruption_rate: Real, checkpoint_save_time: Real, **_others: Real) -> Real:
    return failures.best_checkpoint_interval(values["accelerator_count"], interruption_rate, checkpoint_save_time)


def _checkpointed(phases: Sequence[Values], intervals: Sequence[Real], *, interruption_rate: Real,
                  checkpoint_save_time: Real, restart_time: Real, unexplained_loss: Real,
                  **inputs: Real) -> dict[str, Real]:  # fmt: skip
    complete: list[Values] = []
    shares, hours = [], []
    # Weights alone: power, which `phase` needs too, does not change hours.
    no_power = dict.fromkeys(("tdp", "gpu_power_fraction", "host_power", "pue"), 0.0)
    for values, interval in zip(phases, intervals, strict=True):
        if "goodput" in values:
            complete.append(values)
            continue
        failing = (values["accelerator_count"], interruption_rate)
        times = (*failing, interval, checkpoint_save_time, restart_time, unexplained_loss)
        shares.append({
            "expected_goodput": failures.expected_goodput(*times),
            "checkpoint_loss_share": failures.checkpoint_loss_share(*times),
            "lost_work_share": failures.lost_work_share(*times),
            "restart_loss_share": failures.restart_loss_share(*failing, restart_time, unexplained_loss),
            "best_checkpoint_interval": failures.best_checkpoint_interval(*failing, checkpoint_save_time),
        })  # fmt: skip
        complete.append({**values, "goodput": shares[-1]["expected_goodput"]})
        hours.append(phase(**no_power | dict(complete[-1]))["accelerator_hours"])
    weights = [part / sum(hours) for part in hours]
    averages = {name: sum(part[name] * w for part, w in zip(shares, weights, strict=True)) for name in shares[0]}
    return run(complete, interruption_rate=interruption_rate, **inputs) | averages


def run_on_sites(program: str, phases: Sequence[Values], sites: Sequence[Values], mode: str, *, rejoin_time: Real,
                 idle_power_fraction: Real, extra_tokens: Real, gpu_power_fraction: Real, params: Real | None = None,
                 averaging_steps: Real | None = None, exchange_bytes: Real | None = None,
                 global_batch_tokens: Real | None = None, **inputs: Real) -> dict[str, Real]:  # fmt: skip
    """Every output of a run on several sites that fail.

    Parameters
    ----------
    program : str
        The function of this module that holds for accelerators which are always up.
    phases : sequence of mapping
        As that function takes them.
    sites : sequence of mapping
        ``site_count``, ``availability`` and ``mean_outage`` of each site, and ``link_speed`` where exchanges count.
    mode : str
        One of `gpustack_mc.outages.MODES`.
    params, averaging_steps, exchange_bytes, global_batch_tokens : array_like, optional
        Needed where exchanges count.
    **inputs : array_like
        What `program` takes besides.

    Returns
    -------
    dict of str to Array
        The outputs of `program`, then those of the part ``distributed``, and of ``links`` where exchanges count; MFU
        and the share of exchanges are averages over the productive accelerator-hours of the phases.
    """
    shape = jnp.broadcast_shapes(
        jnp.shape(rejoin_time), *(jnp.shape(value) for site in sites for value in site.values())
    )
    of_sites = {name: jnp.stack([jnp.broadcast_to(site[name], shape) for site in sites]) for name in sites[0]}
    count, availability = of_sites["site_count"], of_sites["availability"]
    work = outages.site_work_share(count, availability, of_sites["mean_outage"], rejoin_time, mode=mode)
    waiting = outages.site_waiting_share(count, availability, mode=mode)
    down = outages.site_down_share(count, availability)
    power = outages.held_power_fraction(gpu_power_fraction, idle_power_fraction, waiting, down)
    linked = "link_speed" in of_sites
    time: Real = 0.0
    exchanging: list[Real] = [0.0 for _ in phases]
    if linked:
        if params is None or averaging_steps is None or exchange_bytes is None or global_batch_tokens is None:
            raise TypeError("exchanges need params, averaging_steps, exchange_bytes and global_batch_tokens")
        time = outages.exchange_time(params, exchange_bytes, of_sites["link_speed"])
        exchanging = [
            outages.exchange_share(time, averaging_steps, global_batch_tokens, values["active_params"],
                                   values["context_flop_factor"], values["accelerator_count"],
                                   values["peak_flop_per_s"], values["mfu"])
            for values in phases
        ]  # fmt: skip
    speed = [outages.site_mfu(values["mfu"], share) for values, share in zip(phases, exchanging, strict=True)]
    # Hours follow from the product of MFU and goodput, and goodput may follow from failures yet: what outages take is
    # taken off the MFU of the held accelerators.
    held = [
        {**values, "mfu": outages.site_goodput(mfu, work), "gpu_power_fraction": power,
         "tokens": outages.site_tokens(values["tokens"], extra_tokens)}
        for values, mfu in zip(phases, speed, strict=True)
    ]  # fmt: skip
    found: dict[str, Real] = globals()[program](held, gpu_power_fraction=gpu_power_fraction, **inputs)
    useful = [_useful(values, mfu) for values, mfu in zip(held, speed, strict=True)]
    found |= {
        "site_goodput": sum(useful) / found["accelerator_hours"],
        "site_work_share": work,
        "site_waiting_share": waiting,
        "site_down_share": down,
        "held_power_fraction": power,
        "site_tokens": sum(values["tokens"] for values in held),
    }
    if linked:
        shares = {"site_mfu": speed, "exchange_share": exchanging}
        found |= {
            name: sum(part * weight for part, weight in zip(values, useful, strict=True)) / sum(useful)
            for name, values in shares.items()
        }
        found["exchange_time"] = time
    return found


def _useful(values: Values, mfu: Real) -> Real:
    """Accelerator-hours that a phase would take at an MFU if none were lost."""
    flop = eq.training_flop(values["active_params"], values["tokens"])
    return eq.accelerator_hours(flop, values["context_flop_factor"], values["peak_flop_per_s"], mfu, 1.0)
