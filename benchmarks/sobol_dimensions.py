"""How even pairs of dimensions of the design are: correlations of normal scores against those of independent draws.

Run ``python benchmarks/sobol_dimensions.py`` (half a minute). For ranges of inputs, by the number of their dimension,
the table gives the root mean square correlation over eight seeds, in units of that of as many independent draws: over
all pairs and of the worst pair, with the 16 replicates of a design together; and the mean over all replicates of the
pair where that is largest, which would show a bias: with so many replicates, of the worst pair, it is noise as well.
"""

import sys

import numpy as np
from scipy.special import ndtri

from gpustack_mc.design import make_design, points

SEEDS = 8


def correlations(design, dimensions):
    """Correlations of all pairs of columns, those of sample A and of B, by replicate: (replicates, pairs)."""
    names = [f"x{i}" for i in dimensions]
    found = []
    for replicate in range(design.replicates):
        u = [points(design, names, dimensions, replicate, 0, design.length, block) for block in (0, 1)]
        every = np.corrcoef(ndtri(np.concatenate(u)))
        found.append(every[np.triu_indices(len(every), 1)])
    return np.array(found)


def main() -> None:
    """Write the table to standard output."""
    sys.stdout.write("samples  inputs     all pairs  worst pair  mean of the worst\n")
    for samples in (2**14, 2**16):
        for first, last in ((0, 23), (48, 64), (100, 124), (160, 184)):
            found = np.array([correlations(make_design(samples, seed=s), range(first, last)) for s in range(SEEDS)])
            together = np.sqrt((found.mean(axis=1) ** 2).mean(axis=0) * samples)
            worst = np.abs(found.mean(axis=(0, 1))).max()
            numbers = f"{np.sqrt((together**2).mean()):9.2f}  {together.max():10.2f}  {worst:17.4f}"
            sys.stdout.write(f"{samples:7,}  {first:3}-{last - 1:<6}{numbers}\n")


if __name__ == "__main__":
    main()
