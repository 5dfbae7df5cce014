r"""A run on several sites that fail: equations under the rules of `gpustack_mc.equations`.

Site :math:`j` has :math:`n_j` accelerators and is up for the share :math:`a_j` of the time, independently of others.
Up times and outages alternate and are exponential, with means :math:`m_j` of an outage and
:math:`m_j a_j / (1 - a_j)` of an up time: it fails at the rate :math:`u_j = (1 - a_j) / (a_j m_j)` and comes back at
the rate :math:`d_j = 1 / m_j`. Each time work starts anew it takes :math:`R` to rejoin: to notice, to load, to repeat
what was lost. Shares are those of the long run, exact for these processes (alternating renewal; the times in a state
of the Markov chain are exponential, and of a time :math:`T` with rate :math:`q` the share
:math:`E[(T - R)^+] / E[T] = e^{-q R}` is left).

What belongs to a site (`site_count`, `availability`, `mean_outage`, `link_speed`) has the sites along its first axis;
everything else broadcasts against the rest.

References
----------
Ross, Introduction to Probability Models, chapters 6 and 7 (continuous-time Markov chains, alternating renewal).
"""

import jax
import jax.numpy as jnp

from gpustack_mc import constants as c
from gpustack_mc.arrays import Floats, Real

MODES = ("lockstep", "survivors", "local_steps")


def site_work_share(site_count: Real, availability: Real, mean_outage: Real, rejoin_time: Real, *, mode: str) -> Real:
    r"""Share of held accelerator time in which outages let the run advance.

    .. math::
        w = \prod_j a_j\, e^{-R \sum_j u_j} \; (\mathrm{lockstep}), \quad
        \sum_j \frac{n_j}{n} a_j e^{-u_j R} \prod_{i \ne j} (a_i e^{-u_i R} + (1 - a_i) e^{-d_i R})
        \; (\mathrm{survivors}), \quad
        \sum_j \frac{n_j}{n} a_j e^{-u_j R} \; (\mathrm{local})

    In lockstep the run works while all sites are up. With survivors those that are up work on, and all rejoin at every
    change. With local steps each site works and rejoins alone.

    Assumes that sites fail independently, that speed is proportional to the accelerators at work, and that the run is
    long against an outage.
    """
    rejoining = rejoin_time / c.MINUTES_PER_HOUR
    failing = (1 - availability) / (availability * mean_outage)
    works = availability * jnp.exp(-failing * rejoining)
    if mode == "lockstep":
        return jnp.prod(works, axis=0)
    if mode == "survivors":
        either = works + (1 - availability) * jnp.exp(-rejoining / mean_outage)
        works = works / either * jnp.prod(either, axis=0)
    return jnp.sum(site_count * works, axis=0) / jnp.sum(site_count, axis=0)


def site_waiting_share(site_count: Real, availability: Real, *, mode: str) -> Real:
    r"""Share of held accelerator time in which a site is up and waits for others.

    .. math:: s_\mathrm{wait} = \sum_j \frac{n_j}{n} a_j - \prod_j a_j

    In lockstep; in the other modes no site waits.
    """
    up = jnp.sum(site_count * availability, axis=0) / jnp.sum(site_count, axis=0)
    return up - jnp.prod(availability, axis=0) if mode == "lockstep" else 0 * up


def site_down_share(site_count: Real, availability: Real) -> Real:
    r"""Share of held accelerator time in which a site is down.

    .. math:: s_\mathrm{down} = 1 - \sum_j \frac{n_j}{n} a_j
    """
    return 1 - jnp.sum(site_count * availability, axis=0) / jnp.sum(site_count, axis=0)


def held_power_fraction(gpu_power_fraction: Real, idle_power_fraction: Real, site_waiting_share: Real,
                        site_down_share: Real) -> Real:  # fmt: skip
    r"""Mean board power of held accelerators over their TDP, idle ones included.

    .. math::
        \phi_\mathrm{held} = \phi (1 - s_\mathrm{wait} - s_\mathrm{down}) + \phi_0 (s_\mathrm{wait} + s_\mathrm{down})

    Assumes that accelerators of a site that waits or is down idle, and that hosts draw the same power all the time.
    """
    idle = site_waiting_share + site_down_share
    return gpu_power_fraction * (1 - idle) + idle_power_fraction * idle


def exchange_time(params: Real, exchange_bytes: Real, link_speed: jax.Array | Floats) -> Real:
    r"""Time of one exchange of the model between the sites.

    .. math:: t_\mathrm{x} = \frac{2 (k - 1)}{k}\, \frac{8 b N}{10^9 \min_j B_j}

    Assumes a ring all-reduce over :math:`k` sites, whose slowest link all wait for.

    References
    ----------
    Patarasuk & Yuan (2009), Journal of Parallel and Distributed Computing 69, 117-124 (bandwidth-optimal all-reduce).
    """
    sites = link_speed.shape[0]
    bits = params * exchange_bytes * c.BITS_PER_BYTE
    return 2 * (sites - 1) / sites * bits / (jnp.min(link_speed, axis=0) * c.BITS_PER_GIGABIT)


def exchange_share(exchange_time: Real, averaging_steps: Real, global_batch_tokens: Real, active_params: Real,
                   context_flop_factor: Real, accelerator_count: Real, peak_flop_per_s: Real,
                   mfu: Real) -> Real:  # fmt: skip
    r"""Share of working time that exchanges between the sites take.

    .. math::
        s_\mathrm{x} = \frac{t_\mathrm{x}}{t_\mathrm{x} + H t_1}, \quad t_1 = \frac{6 \chi N_\mathrm{a} G}{n P \mu}

    Assumes that nothing is computed during an exchange, and takes the step time with all sites at work, which is the
    shortest: it is never less than the share while some are down.
    """
    flop = c.FLOP_PER_PARAM_AND_TOKEN * context_flop_factor * active_params * global_batch_tokens
    step = flop / (accelerator_count * peak_flop_per_s * mfu)
    return exchange_time / (exchange_time + averaging_steps * step)


def site_mfu(mfu: Real, exchange_share: Real) -> Real:
    r"""Model FLOP utilisation while the run is productive, exchanges between the sites included.

    .. math:: \mu_\mathrm{site} = \mu (1 - s_\mathrm{x})
    """
    return mfu * (1 - exchange_share)


def site_goodput(goodput: Real, site_work_share: Real) -> Real:
    r"""Share of held accelerator time that advances the run: goodput, less what outages of sites take.

    .. math:: g_\mathrm{site} = g\, w

    Assumes that what is lost while the sites work is lost in the same proportion.
    """
    return goodput * site_work_share


def site_tokens(tokens: Real, extra_tokens: Real) -> Real:
    r"""Training tokens with those that the way of averaging needs besides.

    .. math:: D_\mathrm{site} = D (1 + \epsilon)

    Assumes what the scenario states: no law here says how many more tokens a way of averaging needs.
    """
    return tokens * (1 + extra_tokens)
