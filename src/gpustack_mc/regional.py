r"""Which inputs put an output beyond a limit: a rule that is found on draws, and how much of the region it explains.

Runs are divided by a limit of the output. For each input, the two-sample Kolmogorov-Smirnov distance between its
values inside and outside the region says how much it matters there (regionalised sensitivity analysis, Spear &
Hornberger 1980), and the value at which the two distribution functions are furthest apart is the best single cut: it
maximises the share of the region that it catches less the share of all other runs that it catches too. A second cut, on
another input, is found the same way in the plane of the two (a box of two edges, as in PRIM; Friedman & Fisher 1999).

Rules are found on one half of the replicates and measured on the other, so that no share is flattered by the search.

References
----------
R. C. Spear, G. M. Hornberger (1980), Eutrophication in Peel Inlet II, Water Research 14, 43-49. J. H. Friedman, N. I.
Fisher (1999), Bump hunting in high-dimensional data, Statistics and Computing 9, 123-143.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from gpustack_mc.arrays import Bools, Floats, Integers
from gpustack_mc.ratios import Ratio, pooled

# Edges that are tried along each input, at equally probable values.
EDGES = 64
# Inputs that the search of pairs looks at.
PAIRED = 6
# Critical value of the Kolmogorov-Smirnov distance at 1%, times the root of the effective number of draws.
_CRITICAL = 1.63
# A second cut has to be worth it, and so has the first.
WORTH = 0.05
# A region with fewer draws than this in either half has no rule that could be trusted.
FEWEST = 100


class Cut(NamedTuple):
    """One edge of a rule: `name` is ``below`` or ``above`` a value in its unit."""

    name: str
    side: str
    value: float


class Rule(NamedTuple):
    """Cuts that hold together, and what they say about a region; each share has its 90% Monte Carlo interval.

    Attributes
    ----------
    cuts : tuple of Cut
    caught : Ratio
        Share of the region that fulfils the rule (coverage, recall).
    others : Ratio
        Share of the other runs that fulfils it.
    inside : Ratio
        Share of the runs that fulfil the rule that lie in the region (density, precision).
    """

    cuts: tuple[Cut, ...]
    caught: Ratio
    others: Ratio
    inside: Ratio


class Region(NamedTuple):
    """The runs on the rarer side of a limit, and what they have in common.

    Attributes
    ----------
    limit : float
        In the unit of the output.
    side : {"over", "within"}
        Whether the region is what lies above the limit, or what keeps it.
    share : Ratio
        Of all runs that lie in the region.
    distances : dict of str to float
        Kolmogorov-Smirnov distance of each input, largest first; those within the noise of 1% left out.
    rules : tuple of Rule
        With one cut, and with two where the second is worth it; empty where nothing tells the region apart.
    """

    limit: float
    side: str
    share: Ratio
    distances: dict[str, float]
    rules: tuple[Rule, ...]


def region(values: Floats, inputs: Floats, names: Sequence[str], limit: float, replicates: int) -> Region:
    """Describe the runs whose output lies above a limit, or those that keep it where they are fewer.

    Parameters
    ----------
    values : ndarray, shape (n,)
        Draws of the output, replicates one after the other.
    inputs : ndarray, shape (inputs, n)
        Draws of the inputs.
    names : sequence of str
    limit : float
    replicates : int

    Returns
    -------
    Region
    """
    beyond = values > limit
    side = "over" if beyond.mean() <= 0.5 else "within"
    beyond = beyond if side == "over" else ~beyond
    parts = beyond.reshape(replicates, -1)
    share = pooled(parts.sum(axis=1).astype(float), np.full(replicates, float(parts.shape[1])))
    learning = np.repeat(np.arange(replicates) % 2 == 0, parts.shape[1]) if replicates > 1 else np.ones_like(beyond)
    testing = ~learning if replicates > 1 else learning
    if min(beyond[learning].sum(), (~beyond[learning]).sum()) < FEWEST:
        return Region(limit, side, share, {}, ())
    edges = np.quantile(inputs[:, learning], np.linspace(0, 1, EDGES + 1)[1:-1], axis=1).T
    bins = np.stack([np.searchsorted(edge, row, side="right") for edge, row in zip(edges, inputs, strict=True)])
    search = _Search(bins[:, learning], beyond[learning], edges, names)
    rules = [_measured(cuts, inputs, names, beyond, testing, replicates) for cuts in search.rules()]
    return Region(limit, side, share, search.distances(), tuple(rules))


class _Search:
    """Finds cuts on binned draws: a bin number b means that the value lies above b edges."""

    def __init__(self, bins: Integers, beyond: Bools, edges: Floats, names: Sequence[str]):
        self.bins, self.beyond, self.edges, self.names = bins, beyond, edges, names
        inside, outside = (self._cumulative(bins[:, side]) for side in (beyond, ~beyond))
        self.gap = inside - outside  # (inputs, edges): how much likelier the region is to lie below an edge
        self.order = np.argsort(-np.abs(self.gap).max(axis=1), kind="stable")

    def _cumulative(self, bins: Integers) -> Floats:
        counts = np.stack([np.bincount(row, minlength=EDGES)[:EDGES] for row in bins])
        shares: Floats = counts.cumsum(axis=1)[:, : EDGES - 1] / bins.shape[1]
        return shares

    def distances(self) -> dict[str, float]:
        inside, outside = self.beyond.sum(), (~self.beyond).sum()
        noise = _CRITICAL * np.sqrt((inside + outside) / (inside * outside))
        found = {self.names[i]: float(np.abs(self.gap[i]).max()) for i in self.order}
        return {name: distance for name, distance in found.items() if distance > noise}

    def rules(self) -> list[tuple[Cut, ...]]:
        """Best rule of one cut, and the best of two if that is worth a second."""
        known = [i for i in self.order if self.names[i] in self.distances()]
        if not known or abs(self.gap[known[0]]).max() < WORTH:
            return []
        first = known[0]
        edge = int(np.abs(self.gap[first]).argmax())
        best = float(np.abs(self.gap[first, edge]))
        found: list[tuple[Cut, ...]] = [(self._cut(first, edge, self.gap[first, edge] > 0),)]
        pairs = [self._pair(i, j) for i, j in combinations(known[:PAIRED], 2)]
        if pairs:
            gain, cuts = max(pairs, key=lambda pair: pair[0])
            found += [cuts] if gain > best + WORTH else []
        return found

    def _cut(self, i: int, edge: int, below: bool) -> Cut:
        return Cut(self.names[i], "below" if below else "above", float(self.edges[i, edge]))

    def _pair(self, i: int, j: int) -> tuple[float, tuple[Cut, ...]]:
        """Best corner of the plane of two inputs, each cut on the side on which the region lies."""
        below = [self.gap[k, np.abs(self.gap[k]).argmax()] > 0 for k in (i, j)]
        # Mirrored where the region lies above, so that the corner always starts at bin 0.
        a, b = (self.bins[k] if side else EDGES - 1 - self.bins[k] for k, side in zip((i, j), below, strict=True))
        tables = []
        for side in (self.beyond, ~self.beyond):
            counts = np.bincount(a[side] * EDGES + b[side], minlength=EDGES**2).reshape(EDGES, EDGES)
            tables.append(counts.cumsum(axis=0).cumsum(axis=1)[:-1, :-1] / side.sum())
        gap = tables[0] - tables[1]
        place = np.unravel_index(gap.argmax(), gap.shape)
        edges = [int(at) if side else EDGES - 2 - int(at) for at, side in zip(place, below, strict=True)]
        cuts = tuple(self._cut(k, edge, side) for k, edge, side in zip((i, j), edges, below, strict=True))
        # The input that matters more is named first.
        return float(gap[place]), cuts


def fulfils(cuts: Sequence[Cut], inputs: Floats, names: Sequence[str]) -> Bools:
    """Say for each draw, inputs of shape (inputs, n), whether all cuts hold."""
    found = np.ones(inputs.shape[1], dtype=bool)
    for cut in cuts:
        row = inputs[list(names).index(cut.name)]
        found &= row < cut.value if cut.side == "below" else row >= cut.value
    return found


def _measured(
    cuts: tuple[Cut, ...], inputs: Floats, names: Sequence[str], beyond: Bools, testing: Bools,
    replicates: int,
) -> Rule:  # fmt: skip
    held = fulfils(cuts, inputs, names)[testing]
    beyond = beyond[testing]
    halves = max(replicates // 2, 1)

    def share(of: Bools, among: Bools) -> Ratio:
        count, whole = (part.reshape(halves, -1).sum(axis=1).astype(float) for part in (of & among, among))
        return pooled(count, whole)

    return Rule(cuts, share(held, beyond), share(held, ~beyond), share(beyond, held))
