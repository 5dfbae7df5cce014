"""The whole model: which equation follows which. Missing or misspelt quantities are a ``TypeError``."""

from collections.abc import Mapping, Sequence

import jax

from gpustack_mc import equations as eq

Values = Mapping[str, jax.Array | float]


def phase(*, active_params, tokens, context_flop_factor, accelerator_count, peak_flop_per_s, mfu, goodput):
    """Work, accelerator-hours and time of one phase of a run."""
    training_flop = eq.training_flop(active_params, tokens)
    accelerator_hours = eq.accelerator_hours(training_flop, context_flop_factor, peak_flop_per_s, mfu, goodput)
    training_days = eq.training_days(accelerator_hours, accelerator_count)
    return {
        "tokens": tokens,
        "training_flop": training_flop,
        "accelerator_hours": accelerator_hours,
        "training_days": training_days,
        "peak_flop": accelerator_hours * peak_flop_per_s,
    }


def run(phases: Sequence[Values], *, tdp, gpu_power_fraction, host_power, pue, electricity_price, grid_intensity,
        embodied_carbon, water_onsite, water_offsite, capex, residual_share, lifetime, fleet_utilization,
        cost_of_capital, operations_rate, rental_price, serving_throughput, programme_overhead,
        interruption_rate, carbon_price):  # fmt: skip
    """Every output of a run from its phases and inputs.

    Parameters
    ----------
    phases : sequence of mapping
        The keyword arguments of `phase`, one mapping per phase.
    **inputs : array_like
        Quantities in the units of `gpustack_mc.quantities`; they broadcast against each other.

    Returns
    -------
    dict of str to Array
        The outputs of `gpustack_mc.quantities`, in its order.
    """
    parts = [phase(**values) for values in phases]
    tokens, training_flop, accelerator_hours, training_days, peak_flop = (
        sum(part[name] for part in parts)
        for name in ("tokens", "training_flop", "accelerator_hours", "training_days", "peak_flop")
    )
    effective_utilization = eq.effective_utilization(training_flop, accelerator_hours, peak_flop / accelerator_hours)

    interruptions = eq.interruptions(accelerator_hours, interruption_rate)

    it_energy_mwh = eq.it_energy_mwh(accelerator_hours, tdp, gpu_power_fraction, host_power)
    energy_mwh = eq.energy_mwh(it_energy_mwh, pue)
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
