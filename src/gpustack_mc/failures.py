r"""Goodput from failures and checkpoints: equations under the rules of `gpustack_mc.equations`.

A job on :math:`n` accelerators, each interrupting it at the constant rate :math:`\lambda`, works for an interval
:math:`\tau`, then stands still for :math:`\delta` while it saves. A failure at any time loses what was not saved and
costs a restart of length :math:`R`, during which it can fail again. The failures are a Poisson process, so that the
expected time of one saved interval is exact (the complete cost function of Daly 2006):

.. math::
    T = \frac{e^{\lambda n R}}{\lambda n} \left(e^{\lambda n (\tau + \delta)} - 1\right)

:math:`T` is the sum of :math:`\tau`, of :math:`\delta`, of the work and saving that failures undo, and of restarts;
each of the shares below is one of these terms over :math:`T`. Unlike first-order formulas (Young 1974) they stay
between 0 and 1 when failures come faster than checkpoints. Of all time, the share :math:`\zeta` is lost to other causes
and the mechanism holds in the rest.

References
----------
Young (1974), A first order approximation to the optimum checkpoint interval, Communications of the ACM 17(9).
Daly (2006), A higher order estimate of the optimum checkpoint interval for restart dumps, Future Generation Computer
Systems 22(3), doi:10.1016/j.future.2004.11.016.
"""

import jax.numpy as jnp

from gpustack_mc import constants as c
from gpustack_mc.arrays import Real

# Keeps run times finite where failures leave no progress that float64 can hold.
LEAST_GOODPUT = 1e-100
# From the start below, Newton's steps reach float64 precision in six for any argument; two more cost nothing.
_NEWTON_STEPS = 8


def best_checkpoint_interval(accelerator_count: Real, interruption_rate: Real, checkpoint_save_time: Real) -> Real:
    r"""Working time between checkpoints at which goodput is highest.

    .. math::
        \tau^* = \frac{1 + W_0\!\left(-e^{-1 - \lambda n \delta}\right)}{\lambda n}
        \approx \sqrt{\frac{2 \delta}{\lambda n}}

    with the principal branch :math:`W_0` of Lambert's function. It is the exact maximum of `expected_goodput`, of which
    Daly gives a series; the square root is Young's first order, for saving times far below the time between failures.
    The restart time does not matter. With :math:`y = -\log(1 - \lambda n \tau^*)` the condition is
    :math:`y + e^{-y} = 1 + \lambda n \delta`, a convex equation that Newton's steps solve from above.

    References
    ----------
    Daly (2006), doi:10.1016/j.future.2004.11.016, optimum of the complete cost function; Young (1974).
    """
    saving = accelerator_count * interruption_rate * checkpoint_save_time / c.SECONDS_PER_HOUR
    y = saving + jnp.sqrt(2 * saving)
    for _ in range(_NEWTON_STEPS):
        y = y - (y + jnp.expm1(-y) - saving) / -jnp.expm1(-y)
    return -jnp.expm1(-y) / (accelerator_count * interruption_rate) * c.MINUTES_PER_HOUR


def expected_goodput(accelerator_count: Real, interruption_rate: Real, checkpoint_interval: Real,
                     checkpoint_save_time: Real, restart_time: Real, unexplained_loss: Real) -> Real:  # fmt: skip
    r"""Share of accelerator time that advances the run.

    .. math::
        \bar g = (1 - \zeta)\, e^{-\lambda n R}\, \frac{\lambda n \tau}{e^{\lambda n (\tau + \delta)} - 1}

    Assumes failures at a constant rate that stop the whole job, and that work resumes from the last checkpoint. Below
    1e-100 it is 1e-100: such a run never ends, and its time stays a number.

    References
    ----------
    Daly (2006), doi:10.1016/j.future.2004.11.016, complete cost function.
    """
    failing = accelerator_count * interruption_rate
    work, saving, restart = _hours(checkpoint_interval, checkpoint_save_time, restart_time)
    productive = failing * work / jnp.expm1(failing * (work + saving))
    return jnp.maximum((1 - unexplained_loss) * jnp.exp(-failing * restart) * productive, LEAST_GOODPUT)


def checkpoint_loss_share(accelerator_count: Real, interruption_rate: Real, checkpoint_interval: Real,
                          checkpoint_save_time: Real, restart_time: Real, unexplained_loss: Real) -> Real:  # fmt: skip
    r"""Share of accelerator time that saving checkpoints takes.

    .. math::
        s_\delta = (1 - \zeta)\, e^{-\lambda n R}\, \frac{\lambda n \delta}{e^{\lambda n (\tau + \delta)} - 1}

    Counts the checkpoints that were completed; time in others is repeated work.
    """
    failing = accelerator_count * interruption_rate
    work, saving, restart = _hours(checkpoint_interval, checkpoint_save_time, restart_time)
    saved = failing * saving / jnp.expm1(failing * (work + saving))
    return (1 - unexplained_loss) * jnp.exp(-failing * restart) * saved


def lost_work_share(accelerator_count: Real, interruption_rate: Real, checkpoint_interval: Real,
                    checkpoint_save_time: Real, restart_time: Real, unexplained_loss: Real) -> Real:  # fmt: skip
    r"""Share of accelerator time whose work a failure undid before it was saved.

    .. math::
        s_\mathrm{w} = (1 - \zeta)\, e^{-\lambda n R}
        \left(1 - \frac{\lambda n (\tau + \delta)}{e^{\lambda n (\tau + \delta)} - 1}\right)
    """
    failing = accelerator_count * interruption_rate
    work, saving, restart = _hours(checkpoint_interval, checkpoint_save_time, restart_time)
    kept = failing * (work + saving) / jnp.expm1(failing * (work + saving))
    return (1 - unexplained_loss) * jnp.exp(-failing * restart) * (1 - kept)


def restart_loss_share(accelerator_count: Real, interruption_rate: Real, restart_time: Real,
                       unexplained_loss: Real) -> Real:  # fmt: skip
    r"""Share of accelerator time spent in restarts, from the failure until work resumes.

    .. math:: s_R = (1 - \zeta) \left(1 - e^{-\lambda n R}\right)
    """
    failing = accelerator_count * interruption_rate * restart_time / c.MINUTES_PER_HOUR
    return (1 - unexplained_loss) * -jnp.expm1(-failing)


def _hours(checkpoint_interval: Real, checkpoint_save_time: Real, restart_time: Real) -> tuple[Real, Real, Real]:
    """Return the three times in hours."""
    return (
        checkpoint_interval / c.MINUTES_PER_HOUR,
        checkpoint_save_time / c.SECONDS_PER_HOUR,
        restart_time / c.MINUTES_PER_HOUR,
    )
