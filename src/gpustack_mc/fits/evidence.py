r"""Evidence of different weight about owners of several classes: a common case of `gpustack_mc.fits.hierarchy`.

Record :math:`i` of member :math:`m` (a company, a cluster, a cost model) of class :math:`c` with weight :math:`w` is

.. math::
    y_i = \mu + \kappa_c + \frac{a_m + e_i}{\sqrt{w_i}}, \qquad
    \kappa_c \sim N(0, \tau^2), \quad a_m \sim N(0, \sigma_c^2), \quad e_i \sim N(0, \sigma_\mathrm{record}^2),

where :math:`e` is there only for members with several records. A weight of a half doubles the variance. Without
classes there is no :math:`\kappa`; spreads :math:`\sigma_c` of classes are pooled,
:math:`\log\sigma_c = \log\sigma + \omega z_c`, when `pooled_spread` is given. A draw is a new member,
:math:`\mu + \kappa_c + a`; of unknown class, classes are drawn by the weight of their evidence.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from gpustack_mc.fits import hierarchy
from gpustack_mc.fits.hierarchy import WIDE, Effect, Problem
from gpustack_mc.fits.members import Member


class Record(NamedTuple):
    """One record on the working scale."""

    y: float
    member: str
    weight: float
    id: str
    kind: str = ""  # class of owner


def problem(records: Sequence[Record], settings: dict[str, Any]) -> Problem:
    """Problem of records.

    Parameters
    ----------
    records : sequence of Record
    settings : dict
        ``member_sd`` and ``member_weight``: spread expected between members, and observations that it is worth;
        ``record_sd``: scale of that between records of one member; with classes, ``class_sd``: scale of the spread
        between them, and optionally ``pooled_spread``: scale of omega.
    """
    several = {name for name, count in Counter(record.member for record in records).items() if count > 1}
    kinds = sorted({record.kind for record in records})
    own = len(kinds) > 1 and "pooled_spread" in settings
    spreads = {"members": hierarchy.expected(settings["member_sd"], settings["member_weight"])}
    effects = {"mean": Effect(WIDE)}
    if several:
        spreads["records"] = hierarchy.half_normal(settings["record_sd"])
    if len(kinds) > 1:
        spreads["classes"] = hierarchy.half_normal(settings["class_sd"])
        effects |= {f"class:{kind}": Effect("classes") for kind in kinds}
    if own:
        spreads |= {f"members:{kind}": hierarchy.pooled("members", settings["pooled_spread"]) for kind in kinds}
    rows = []
    for record in records:
        spread = f"members:{record.kind}" if own else "members"
        shared = {"mean": 1.0} | ({f"class:{record.kind}": 1.0} if len(kinds) > 1 else {})
        noise = {spread: 1 / record.weight}
        if record.member in several:
            shared[f"member:{record.member}"] = 1 / math.sqrt(record.weight)
            effects[f"member:{record.member}"] = Effect(spread)
            noise = {"records": 1 / record.weight}
        rows.append(hierarchy.Row(record.y, shared, noise, record.member, (record.id,)))
    return Problem(rows, effects, spreads)


def member(posed: Problem, kind: str = "") -> Member:
    """New member of a class."""
    effects = {"mean": 1.0} | ({f"class:{kind}": 1.0} if f"class:{kind}" in posed.effects else {})
    spread = f"members:{kind}" if f"members:{kind}" in posed.spreads else "members"
    return Member(effects, {spread: 1.0})


def anyone(posed: Problem, records: Sequence[Record]) -> list[Member]:
    """New member of unknown class; a member counts once, with the mean weight of its records."""
    held: dict[tuple[str, str], list[float]] = defaultdict(list)
    for record in records:
        held[record.kind, record.member].append(record.weight)
    weight: Counter[str] = Counter()
    for (kind, _), weights in sorted(held.items()):
        weight[kind] += sum(weights) / len(weights)  # type: ignore[assignment]  # sums of weights, not counts
    return [member(posed, kind)._replace(weight=total) for kind, total in weight.items()]
