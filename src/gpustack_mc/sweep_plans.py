"""What scenarios of a sweep have in common: which are run together, which formulas occur, which draws are shared."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpustack_mc.priors import Kernel
from gpustack_mc.problem import Term
from gpustack_mc.sweep_model import Plan


class Group(NamedTuple):
    """What scenarios have in common that are propagated together.

    Attributes
    ----------
    program : str
    outputs : tuple of str
        Outputs that they have.
    slots : tuple of str
        Inputs that the model reads, in the order of the table of quantities.
    phases : tuple of tuple of (str, str)
    streams : tuple of int
        Dimension of the design of each slot; its name is the slot's.
    correlated : tuple of str
    correlation : bytes
        Of float64, k x k.
    """

    program: str
    outputs: tuple[str, ...]
    slots: tuple[str, ...]
    phases: tuple[tuple[tuple[str, str], ...], ...]
    streams: tuple[int, ...]
    correlated: tuple[str, ...]
    correlation: bytes


class Planned(NamedTuple):
    """A run whose MFU is to be predicted; see `gpustack_mc.mfu_tables`."""

    row: tuple[tuple[str, Any], ...]
    peak: float
    clean: bool


class Member(NamedTuple):
    """One scenario, ready for a batch.

    Attributes
    ----------
    group : Group
    kernels : dict of str to Kernel
        By slot; without ``mfu`` where it is still to be predicted.
    planned : Planned or None
    asks : dict of str to tuple of Term
        Its questions by their names, as comparisons that must all hold.
    """

    group: Group
    kernels: dict[str, Kernel]
    planned: Planned | None
    asks: Mapping[str, tuple[Term, ...]]


class Survey:
    """Collects what occurs in a sweep, scenario by scenario; only one of those that are alike has to be added."""

    def __init__(self) -> None:
        self.forms: dict[Group, dict[str, dict[str, int]]] = {}
        self.kernels: dict[Group, dict[str, Kernel | None]] = {}
        self.stated: dict[str, Kernel | None] = {}
        self.asks: dict[str, tuple[Term, ...]] = {}

    def state(self, stated: Mapping[str, Kernel]) -> None:
        """Note what one scenario states; every scenario has to be told of."""
        for name, kernel in stated.items():
            known = self.stated.setdefault(name, kernel)
            if known is not None and known is not kernel and not same(known, kernel):
                self.stated[name] = None

    def add(self, member: Member, own: Collection[str]) -> None:
        """Note a scenario, and slots whose distributions differ among those that are like it."""
        _note(self.forms.setdefault(member.group, {}), member)
        self.asks |= {name: terms for name, terms in member.asks.items() if name not in self.asks}
        known = self.kernels.setdefault(member.group, {})
        for slot in member.group.slots:
            kernel = None if slot in own else member.kernels.get(slot)
            first = known.setdefault(slot, kernel)
            if first is not None and (kernel is None or not same(first, kernel)):
                known[slot] = None

    def shared(self) -> dict[Group, dict[str, Kernel]]:
        """Return the slots of each group that vary and have one distribution in all scenarios."""
        differ = {name for name, kernel in self.stated.items() if kernel is None}
        return {
            group: {slot: k for slot, k in known.items() if k is not None and k.form != "fixed" and slot not in differ}
            for group, known in self.kernels.items()
        }

    def plans(self, outputs: Sequence[str]) -> dict[Group, tuple[Plan, dict[str, Kernel]]]:
        """Return the plan of each group, and the distributions of the slots that it shares."""
        shared = self.shared()
        return {
            group: (_plan(group, found, outputs, tuple(shared[group])), shared[group])
            for group, found in self.forms.items()
        }


def plan_for(group: Group, members: Sequence[Member], known: Mapping[Group, tuple[Plan, Mapping[str, Kernel]]],
             outputs: Sequence[str]) -> Plan:  # fmt: skip
    """Return the plan of a group, widened where some member has what the sweep's plan does not know."""
    forms: dict[str, dict[str, int]] = {}
    shared: tuple[str, ...] = ()
    if group in known:
        plan, kernels = known[group]
        sizes = dict(plan.sizes)
        forms = {key: {form: sizes.get(key, 0) for form in some} for key, some in plan.slots}
        shared = tuple(key for key in plan.shared if all(_has(member, key, kernels[key]) for member in members))
    for member in members:
        _note(forms, member)
    return _plan(group, forms, outputs, shared)


def _has(member: Member, key: str, kernel: Kernel) -> bool:
    own = member.kernels.get(key)
    return own is kernel or (own is not None and same(own, kernel))


def same(one: Kernel, other: Kernel) -> bool:
    """Whether two kernels are the same distribution."""
    return one.form == other.form and all(map(np.array_equal, one.arrays, other.arrays))


def _note(forms: dict[str, dict[str, int]], member: Member) -> None:
    for key in member.group.slots:
        # A prediction of MFU is a table.
        kernel = member.kernels.get(key)
        form, size = (kernel.form, size_of(kernel)) if kernel else ("table", 0)
        if form != "fixed":
            found = forms.setdefault(key, {})
            found[form] = max(found.get(form, 0), size)


def size_of(kernel: Kernel) -> int:
    """Number of values of a discrete distribution, to the next power of two, so that few shapes occur."""
    return 1 << (len(kernel.arrays[1]) - 1).bit_length() if kernel.form == "discrete" else 0


def _plan(group: Group, forms: Mapping[str, Mapping[str, int]], outputs: Sequence[str],
          shared: tuple[str, ...]) -> Plan:  # fmt: skip
    return Plan(
        group.program,
        tuple(name for name in outputs if name in group.outputs),
        tuple((key, tuple(sorted(forms.get(key, ())))) for key in group.slots),
        group.phases,
        tuple((key, forms[key]["discrete"]) for key in group.slots if "discrete" in forms.get(key, ())),
        shared,
    )
