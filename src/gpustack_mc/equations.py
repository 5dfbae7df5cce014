r"""The cost model, one pure elementwise function per quantity.

A function is named after the quantity it returns and its parameters after the quantities it uses, in the units of
`gpustack_mc.quantities`. Arrays broadcast; there are no defaults, no branches on strings, no state. Each docstring
gives the equation, what it assumes and where it comes from.
"""

import jax.numpy as jnp

from gpustack_mc import constants as c
from gpustack_mc.arrays import Real


def context_flop_factor(active_params: Real, n_layers: Real, d_model: Real, sequence_length: Real,
                        reference_sequence_length: Real) -> Real:  # fmt: skip
    r"""FLOP per token at a context length, relative to the lengths that the MFU prior was fitted on.

    .. math:: \chi = \frac{6 N_\mathrm{a} + 6\,\ell\,d\,s}{6 N_\mathrm{a} + 6\,\ell\,d\,s_0}

    Assumes full causal attention in every layer: a token attends to half of the context on average, so that the
    forward and backward passes add :math:`6 \ell d s` FLOP per token. Attention at the reference length :math:`s_0`
    is already inside the MFU prior, which counts 6N only.

    References
    ----------
    Chowdhery et al. (2022), PaLM, arXiv:2204.02311, appendix B (12 LHQT for full attention; causal halves it).
    """
    reference = 6 * active_params + 6 * n_layers * d_model * reference_sequence_length
    return (6 * active_params + 6 * n_layers * d_model * sequence_length) / reference


def training_flop(active_params: Real, tokens: Real) -> Real:
    r"""Floating-point operations of training.

    .. math:: F = 6 N_\mathrm{a} D

    Assumes 2 FLOP per active parameter and token forward and 4 backward; embeddings, attention scores and recomputed
    activations are not counted (MFU convention "6N only").

    References
    ----------
    Kaplan et al. (2020), arXiv:2001.08361, section 2.1; Hoffmann et al. (2022), arXiv:2203.15556, appendix F.
    """
    return c.FLOP_PER_PARAM_AND_TOKEN * active_params * tokens


def accelerator_hours(training_flop: Real, context_flop_factor: Real, peak_flop_per_s: Real, mfu: Real,
                      goodput: Real) -> Real:  # fmt: skip
    r"""Accelerator-hours, including those that do not advance the run.

    .. math:: h = \frac{\chi F}{3600\, P \mu g}

    Assumes that MFU does not depend on the count within the range of the fit, so that the count cancels.

    References
    ----------
    Chowdhery et al. (2022), arXiv:2204.02311, section 4.1 (MFU); Google Cloud (2024), ML productivity goodput.
    """
    return context_flop_factor * training_flop / (peak_flop_per_s * mfu * goodput) / c.SECONDS_PER_HOUR


def training_days(accelerator_hours: Real, accelerator_count: Real) -> Real:
    r"""Time from start to end.

    .. math:: t = \frac{h}{24\, n}

    Assumes that all accelerators are held for the whole run.
    """
    return accelerator_hours / accelerator_count / c.HOURS_PER_DAY


def effective_utilization(training_flop: Real, accelerator_hours: Real, peak_flop_per_s: Real) -> Real:
    r"""Training FLOP over the peak FLOP of all accelerator-hours: what the bill sees.

    .. math:: \eta = \frac{F}{3600\, P h}
    """
    return training_flop / (accelerator_hours * c.SECONDS_PER_HOUR * peak_flop_per_s)


def interruptions(accelerator_hours: Real, interruption_rate: Real) -> Real:
    r"""Unexpected interruptions to expect during the run.

    .. math:: I = \lambda h

    Assumes that any accelerator stops the whole job, at a constant rate. How much time they cost is in goodput.

    References
    ----------
    Llama Team (2024), arXiv:2407.21783, section 3.3.4.
    """
    return accelerator_hours * interruption_rate


def hours_between_interruptions(training_days: Real, interruptions: Real) -> Real:
    r"""Mean time between unexpected interruptions.

    .. math:: m = \frac{24\, t}{I}
    """
    return training_days * c.HOURS_PER_DAY / interruptions


def it_energy_mwh(accelerator_hours: Real, tdp: Real, gpu_power_fraction: Real, host_power: Real) -> Real:
    r"""Energy of accelerators, hosts and network.

    .. math:: Q_\mathrm{IT} = 10^{-6}\, h\, (W_\mathrm{tdp} \phi + W_\mathrm{host})

    Assumes that mean power is the same in productive and unproductive hours.

    References
    ----------
    Patterson et al. (2021), arXiv:2104.10350, section 2.5.
    """
    return accelerator_hours * (tdp * gpu_power_fraction + host_power) / c.WATTS_PER_MEGAWATT


def energy_mwh(it_energy_mwh: Real, pue: Real) -> Real:
    r"""Energy of the facility.

    .. math:: Q = Q_\mathrm{IT}\, \mathrm{PUE}

    References
    ----------
    ISO/IEC 30134-2:2016 (PUE); Patterson et al. (2021), arXiv:2104.10350, section 2.5.
    """
    return it_energy_mwh * pue


def facility_power_mw(energy_mwh: Real, training_days: Real) -> Real:
    r"""Average facility power during the run.

    .. math:: W = \frac{Q}{24\, t}
    """
    return energy_mwh / (training_days * c.HOURS_PER_DAY)


def co2e_operational_t(energy_mwh: Real, grid_intensity: Real) -> Real:
    r"""Emissions of the electricity used.

    .. math:: M_\mathrm{op} = 10^{-3}\, Q \gamma

    Assumes that the run draws the yearly average mix. Whether `grid_intensity` is location- or market-based, direct
    or life-cycle, is a choice of the scenario and is printed with the result.

    References
    ----------
    GHG Protocol Scope 2 Guidance (2015), chapter 4; Luccioni et al. (2023), JMLR 24(253), section 4.
    """
    return energy_mwh * c.KILOWATT_HOURS_PER_MEGAWATT_HOUR * grid_intensity / c.GRAMS_PER_TONNE


def co2e_embodied_t(accelerator_hours: Real, embodied_carbon: Real, lifetime: Real, fleet_utilization: Real) -> Real:
    r"""The run's share of the emissions of making the hardware.

    .. math:: M_\mathrm{em} = 10^{-3}\, \frac{h E}{8766\, L u}

    Assumes that emissions are spread evenly over the busy hours of the hardware's life.

    References
    ----------
    Luccioni et al. (2023), JMLR 24(253), section 4.1; Gupta et al. (2022), ACT, ISCA, equation 1.
    """
    busy_hours = lifetime * c.HOURS_PER_YEAR * fleet_utilization
    return accelerator_hours * embodied_carbon / busy_hours / c.KILOGRAMS_PER_TONNE


def co2e_t(co2e_operational_t: Real, co2e_embodied_t: Real) -> Real:
    r"""Operational and embodied emissions.

    .. math:: M = M_\mathrm{op} + M_\mathrm{em}
    """
    return co2e_operational_t + co2e_embodied_t


def water_onsite_m3(it_energy_mwh: Real, water_onsite: Real) -> Real:
    r"""Water used for cooling on site.

    .. math:: V_\mathrm{on} = Q_\mathrm{IT}\, \omega_\mathrm{on}

    References
    ----------
    The Green Grid (2011), white paper 35 (WUE is per kWh of IT energy); Li et al. (2023), arXiv:2304.03271, eq. 1.
    """
    return it_energy_mwh * c.KILOWATT_HOURS_PER_MEGAWATT_HOUR * water_onsite / c.LITRES_PER_CUBIC_METRE


def water_offsite_m3(energy_mwh: Real, water_offsite: Real) -> Real:
    r"""Water consumed at the power plants.

    .. math:: V_\mathrm{off} = Q\, \omega_\mathrm{off}

    References
    ----------
    Li et al. (2023), arXiv:2304.03271, equation 2.
    """
    return energy_mwh * c.KILOWATT_HOURS_PER_MEGAWATT_HOUR * water_offsite / c.LITRES_PER_CUBIC_METRE


def electricity_cost_usd(energy_mwh: Real, electricity_price: Real) -> Real:
    r"""Cost of the electricity.

    .. math:: K_\mathrm{el} = 10^{3}\, Q\, p_\mathrm{el}
    """
    return energy_mwh * c.KILOWATT_HOURS_PER_MEGAWATT_HOUR * electricity_price


def hardware_cost_usd(accelerator_hours: Real, capex: Real, residual_share: Real, lifetime: Real,
                      fleet_utilization: Real) -> Real:  # fmt: skip
    r"""Loss of value of the owned hardware over the run.

    .. math:: K_\mathrm{hw} = \frac{h\, C (1 - \rho)}{8766\, L u}

    Assumes straight-line loss of value, charged to the busy hours.

    References
    ----------
    Cottier et al. (2024), arXiv:2405.21015, section 2.2 (amortised hardware cost).
    """
    busy_hours = lifetime * c.HOURS_PER_YEAR * fleet_utilization
    return accelerator_hours * capex * (1 - residual_share) / busy_hours


def other_cost_usd(accelerator_hours: Real, capex: Real, residual_share: Real, lifetime: Real, fleet_utilization: Real,
                   cost_of_capital: Real, operations_rate: Real) -> Real:  # fmt: skip
    r"""Cost of the capital bound in the owned hardware, and of operating it.

    .. math:: K_\mathrm{ot} = \frac{h}{8766\, u} (\frac{C (1 - \rho) (\varphi(r L) - 1)}{L} + r \rho C + o C)

    The bracket is what a year of ownership costs above the straight-line loss of value, with continuous compounding
    and the annuity factor :math:`\varphi(x) = x / (1 - e^{-x})`; the run bears :math:`h / (8766\, u)` of these years.

    References
    ----------
    Brealey, Myers & Allen, Principles of Corporate Finance, chapter 6 (equivalent annual cost).
    """
    x = cost_of_capital * lifetime
    # The series keeps the value and its gradient finite at a rate of exactly zero.
    small = jnp.abs(x) < 1e-4
    safe = jnp.where(small, 1.0, x)
    annuity_minus_one = jnp.where(small, x / 2 + x * x / 12, safe / -jnp.expm1(-safe) - 1)
    loss_of_value = (1 - residual_share) * annuity_minus_one / lifetime
    per_year = loss_of_value + cost_of_capital * residual_share + operations_rate
    return accelerator_hours / (c.HOURS_PER_YEAR * fleet_utilization) * capex * per_year


def carbon_cost_usd(co2e_t: Real, carbon_price: Real) -> Real:
    r"""Cost of the emissions at a stated price.

    .. math:: K_\mathrm{C} = M\, p_\mathrm{C}

    Assumes that operational and embodied emissions bear the same price, and that the prices of electricity and
    hardware do not hold it already.
    """
    return co2e_t * carbon_price


def cost_owned_usd(hardware_cost_usd: Real, electricity_cost_usd: Real, other_cost_usd: Real,
                   carbon_cost_usd: Real) -> Real:  # fmt: skip
    r"""Cost on owned hardware.

    .. math:: K_\mathrm{own} = K_\mathrm{hw} + K_\mathrm{el} + K_\mathrm{ot} + K_\mathrm{C}
    """
    return hardware_cost_usd + electricity_cost_usd + other_cost_usd + carbon_cost_usd


def owned_usd_per_accelerator_hour(cost_owned_usd: Real, accelerator_hours: Real) -> Real:
    r"""Cost of one owned accelerator-hour, to hold against a rental price.

    .. math:: k_\mathrm{own} = K_\mathrm{own} / h
    """
    return cost_owned_usd / accelerator_hours


def cost_rented_usd(accelerator_hours: Real, rental_price: Real, carbon_cost_usd: Real) -> Real:
    r"""Cost on rented accelerators; electricity, host and network are inside the price.

    .. math:: K_\mathrm{rent} = h\, p_\mathrm{rent} + K_\mathrm{C}
    """
    return accelerator_hours * rental_price + carbon_cost_usd


def electricity_share(electricity_cost_usd: Real, cost_owned_usd: Real) -> Real:
    r"""Electricity over the cost on owned hardware.

    .. math:: s_\mathrm{el} = K_\mathrm{el} / K_\mathrm{own}
    """
    return electricity_cost_usd / cost_owned_usd


def usd_per_million_training_tokens(cost_owned_usd: Real, tokens: Real) -> Real:
    r"""Cost on owned hardware per million training tokens.

    .. math:: k_D = 10^6\, K_\mathrm{own} / D
    """
    return cost_owned_usd / tokens * c.TOKENS_PER_MILLION


def serving_usd_per_million_tokens(rental_price: Real, serving_throughput: Real) -> Real:
    r"""Rental cost per million output tokens served.

    .. math:: k_\mathrm{srv} = \frac{10^6\, p_\mathrm{rent}}{3600\, \theta}

    Assumes that the serving fleet is fully used at the stated throughput; idle capacity is not counted.
    """
    return rental_price / (serving_throughput * c.SECONDS_PER_HOUR) * c.TOKENS_PER_MILLION


def serving_kwh_per_million_tokens(tdp: Real, gpu_power_fraction: Real, host_power: Real, pue: Real,
                                   serving_throughput: Real) -> Real:  # fmt: skip
    r"""Facility energy per million output tokens served.

    .. math::
        q_\mathrm{srv} = \frac{10^6\, (W_\mathrm{tdp} \phi + W_\mathrm{host})\, \mathrm{PUE}}{3.6\times10^6\, \theta}

    Assumes that an accelerator draws the same power serving as training.
    """
    kilowatts = (tdp * gpu_power_fraction + host_power) * pue / c.WATTS_PER_KILOWATT
    return kilowatts / (serving_throughput * c.SECONDS_PER_HOUR) * c.TOKENS_PER_MILLION


def serving_kgco2e_per_million_tokens(serving_kwh_per_million_tokens: Real, grid_intensity: Real,
                                      embodied_carbon: Real, lifetime: Real, fleet_utilization: Real,
                                      serving_throughput: Real) -> Real:  # fmt: skip
    r"""Operational and embodied emissions per million output tokens served.

    .. math:: m_\mathrm{srv} = 10^{-3} q_\mathrm{srv} \gamma + \frac{10^6\, E}{3600\, \theta\, 8766\, L u}
    """
    operational = serving_kwh_per_million_tokens * grid_intensity / c.GRAMS_PER_KILOGRAM
    hours = c.TOKENS_PER_MILLION / (serving_throughput * c.SECONDS_PER_HOUR)
    return operational + hours * embodied_carbon / (lifetime * c.HOURS_PER_YEAR * fleet_utilization)


def programme_accelerator_hours(accelerator_hours: Real, programme_overhead: Real) -> Real:
    r"""Accelerator-hours of the whole programme.

    .. math:: h_\kappa = \kappa h

    Assumes that experiments and failed runs use accelerators as the final run does; so do the other programme totals.

    References
    ----------
    Morrison et al. (2025), arXiv:2503.05804, section 4.
    """
    return accelerator_hours * programme_overhead


def programme_energy_mwh(energy_mwh: Real, programme_overhead: Real) -> Real:
    r"""Energy of the whole programme.

    .. math:: Q_\kappa = \kappa Q
    """
    return energy_mwh * programme_overhead


def programme_co2e_t(co2e_t: Real, programme_overhead: Real) -> Real:
    r"""Emissions of the whole programme.

    .. math:: M_\kappa = \kappa M
    """
    return co2e_t * programme_overhead


def programme_cost_owned_usd(cost_owned_usd: Real, programme_overhead: Real) -> Real:
    r"""Cost of the whole programme on owned hardware.

    .. math:: K_{\mathrm{own},\kappa} = \kappa K_\mathrm{own}
    """
    return cost_owned_usd * programme_overhead


def programme_cost_rented_usd(cost_rented_usd: Real, programme_overhead: Real) -> Real:
    r"""Cost of the whole programme on rented accelerators.

    .. math:: K_{\mathrm{rent},\kappa} = \kappa K_\mathrm{rent}
    """
    return cost_rented_usd * programme_overhead
