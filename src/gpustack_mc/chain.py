"""The graph of the model: which quantity is computed from which, read from the equations themselves.

A function of `gpustack_mc.equations` is named after the quantity that it returns and its parameters after those that
it uses, so its signature is its place in the graph and its docstring is its equation. The file is read and not
imported: what is told about the model needs no JAX.
"""

import ast
import functools
import re
from pathlib import Path
from typing import NamedTuple

from gpustack_mc import notation
from gpustack_mc.quantities import BY_NAME

_FILE = Path(__file__).with_name("equations.py")
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
    """Return all equations by the quantity that they return, in the order of the file."""
    tree = ast.parse(_FILE.read_text(encoding="utf-8"))
    found = (_step(node) for node in tree.body if isinstance(node, ast.FunctionDef))
    return {step.name: step for step in found}


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


def steps_to(output: str) -> list[Step]:
    """Return the equations that lead to a quantity, each after those that it needs, the quantity's own last.

    Parameters
    ----------
    output : str
        A quantity with an equation.
    """
    order: dict[str, Step] = {}

    def visit(name: str) -> None:
        step = steps().get(name)
        if step is None or name in order or BY_NAME[name].role != "output":
            return
        for used in step.uses:
            visit(used)
        order[name] = step

    visit(output)
    return list(order.values())


def inputs_of(output: str) -> list[str]:
    """Return the quantities that a chain starts from, in the order of the table of quantities."""
    chain = steps_to(output)
    computed = {step.name for step in chain}
    used = {name for step in chain for name in step.uses} - computed
    return [name for name in BY_NAME if name in used]
