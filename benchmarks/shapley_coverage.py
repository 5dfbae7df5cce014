"""Measure how often the 90% intervals of Shapley effects, and of indices of correlated inputs, hold the exact value.

Run ``python benchmarks/shapley_coverage.py [scrambles]`` (default 200, about 8 minutes on two cores). The models have
closed forms: Ishigami's (independent inputs), a sum and a product of four inputs of which three are correlated. For
each sample size and index the table gives the coverage of the worst, average and best input over the scrambles, and the
root-mean-square error and mean half width of the input with the largest error. With 200 scrambles an interval of
exact coverage 0.90 measures 0.86 to 0.94 (two standard errors).
"""

import sys
from pathlib import Path

import numpy as np

from gpustack_mc.copula import Copula
from gpustack_mc.cube import FunctionCube
from gpustack_mc.design import make_design
from gpustack_mc.group_indices import group_indices
from gpustack_mc.shapley import shapley_effects

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from problems import DEPENDENT, ishigami

LOG_SAMPLES = (12, 14, 16)


def cases():
    """Name, cube, mean, and exact Shapley effects, first-order and total indices of each model."""
    problem = ishigami()
    pair = problem.total[2]
    effects = problem.first + np.array([pair / 2, 0, pair / 2])
    cube = FunctionCube(lambda x: problem.function(x)[None], problem.names, quantile=problem.quantile)
    yield "ishigami", cube, problem.mean, (effects, problem.first, problem.total)
    for name, model in DEPENDENT.items():
        count = len(model.names)
        cube = FunctionCube(model.function, model.names, Copula(count, range(count), model.correlation))
        ends = [[index([i]) for i in range(count)] for index in (model.first, model.total)]
        yield name, cube, model.mean, (model.shapley(), *map(np.array, ends))


def intervals(cube, design, mean):
    """Estimate, low and high, each (inputs,), by index."""
    players = {name: (name,) for name in cube.names}
    effects = shapley_effects(cube, design, players)
    found, _ = group_indices(cube, design, players, np.array([mean]))
    return [
        [part[:, 0] for part in parts]
        for parts in (effects, (found.first, found.first_low, found.first_high),
                      (found.total, found.total_low, found.total_high))
    ]  # fmt: skip


def row(estimate, low, high, exact):
    """Coverage (lowest, mean, highest over inputs), and error and half width of the input of largest error."""
    # An index of exactly 0 is estimated as 0, up to rounding.
    covered = ((low <= exact + 1e-12) & (exact - 1e-12 <= high)).mean(axis=0)
    error = np.sqrt(((estimate - exact) ** 2).mean(axis=0))
    half = (high - low).mean(axis=0) / 2
    worst = error.argmax()
    return f"{covered.min():.3f} {covered.mean():.3f} {covered.max():.3f}  {error[worst]:.5f} {half[worst]:.5f}"


def main(scrambles: int) -> None:
    """Write the table to standard output."""
    sys.stdout.write(f"{scrambles} scrambles of 16 replicates\n")
    sys.stdout.write(f"{'model':18} samples index   lowest mean highest  error   half width\n")
    for name, cube, mean, exact in cases():
        for log_samples in LOG_SAMPLES:
            runs = [intervals(cube, make_design(2**log_samples, seed=seed), mean) for seed in range(scrambles)]
            by_index = np.array(runs).transpose(1, 2, 0, 3)
            for index, parts, truth in zip(("Shapley", "first", "total"), by_index, exact, strict=True):
                sys.stdout.write(f"{name:18} 2^{log_samples}    {index:7} {row(*parts, truth)}\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
