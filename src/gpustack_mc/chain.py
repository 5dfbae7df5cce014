"""The graph of the model: which quantity is computed from which, read from the equations themselves.

A function of `gpustack_mc.equations` or `gpustack_mc.failures` is named after the quantity that it returns and its
parameters after those that it uses, so its signature is its place in the graph and its docstring is its equation. The
files are read and not imported: what is told about the model needs no JAX.
"""

import ast
import functools
import re
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from gpustack_mc import notation
from gpustack_mc.quantities import BY_NAME

_FILES = [Path(__file__).with_name(name) for name in ("equations.py", "failures.py", "outages.py")]
# Where a scenario states no such input, it follows from an equation.
FOLLOWS = {"goodput": "expected_goodput", "checkpoint_interval": "best_checkpoint_interval"}
# On several sites, what an equation takes is that of the held accelerators.
ON_SITES = {
    ("accelerator_hours", "goodput"): "site_goodput",
    ("accelerator_hours", "mfu"): "site_mfu",
    ("it_energy_mwh", "gpu_power_fraction"): "held_power_fraction",
    ("training_flop", "tokens"): "site_tokens",
}
_MATH = re.compile(r"\.\. math::(.*?)(?:\n[ \t]*\n|\Z)", re.DOTALL)


class Step(NamedTuple):
    """One equation of the model.

    Attributes
    ----------
    name : str
        The quantity that it returns.
    uses : tuple of str
        The quantities that it takes.
    meaning : str
        First line of its docstring.
    latex : str
        The right-hand side or the whole equation, as its docstring gives it.
    assumes : str
        What it assumes; empty when it says nothing.
    references : str
        Where it comes from; empty for an identity.
    """

    name: str
    uses: tuple[str, ...]
    meaning: str
    latex: str
    assumes: str
    references: str


@functools.cache
def steps() -> dict[str, Step]:
    """Return all equations by the quantity that they return, in the order of the files."""
    bodies = (ast.parse(file.read_text(encoding="utf-8")).body for file in _FILES)
    found = (_step(node) for body in bodies for node in body if isinstance(node, ast.FunctionDef))
    return {step.name: step for step in found if step.name in BY_NAME}


def _step(node: ast.FunctionDef) -> Step:
    text = ast.get_docstring(node) or ""
    body, _, references = text.partition("References\n----------\n")
    math = _MATH.search(body)
    assumes = re.search(r"^Assumes (.*?)(?:\n\n|\Z)", body, re.DOTALL | re.MULTILINE)
    return Step(
        node.name,
        tuple(argument.arg for argument in node.args.args),
        body.split("\n", 1)[0].strip(),
        " ".join(math[1].split()) if math else "",
        _words(assumes[0]) if assumes else "",
        _words(references),
    )


def _words(text: str) -> str:
    """Return text on one line, with inline formulas as plain text."""
    return " ".join(re.sub(r":math:`([^`]*)`", lambda found: notation.plain(found[1]), text).split())


def steps_to(output: str, follows: Collection[str] = ()) -> list[Step]:
    """Return the equations that lead to a quantity, each after those that it needs, the quantity's own last.

    Parameters
    ----------
    output : str
        A quantity with an equation.
    follows : collection of str
        Those of `FOLLOWS` that follow from their equation, and the outputs of `ON_SITES` that there are.
    """
    order: dict[str, Step] = {}

    def visit(name: str) -> None:
        step = steps().get(name)
        if step is None or name in order or BY_NAME[name].role != "output":
            return
        uses = tuple(_followed(name, used, follows) for used in step.uses)
        for used in uses:
            visit(used)
        order[name] = step._replace(uses=uses)

    visit(output)
    return list(order.values())


def _followed(step: str, used: str, follows: Collection[str]) -> str:
    """Return the quantity that an equation takes in the place of another."""
    on_sites = ON_SITES.get((step, used), "")
    return on_sites if on_sites in follows else FOLLOWS[used] if used in follows else used


def inputs_of(output: str, follows: Collection[str] = ()) -> list[str]:
    """Return the quantities that a chain starts from, in the order of the table of quantities; see `steps_to`."""
    chain = steps_to(output, follows)
    computed = {step.name for step in chain}
    used = {name for step in chain for name in step.uses} - computed
    return [name for name in BY_NAME if name in used]
