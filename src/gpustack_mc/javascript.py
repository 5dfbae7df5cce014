"""An elementwise function of Python as one of JavaScript, by tracing it with JAX.

The function is traced on scalars, so that what JAX sees is a straight list of arithmetic, and every step becomes one
line. Only what elementwise models use is understood; anything else is an error, so that no page computes something
else than Python does.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Literal

# Both languages compute in IEEE double precision; NaN passes through each of these in both.
_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "===",
          "ne": "!==", "and": "&&", "or": "||"}  # fmt: skip
_CALLS = {"exp": "exp", "expm1": "expm1", "log": "log", "log1p": "log1p", "sqrt": "sqrt", "abs": "abs",
          "max": "max", "min": "min", "pow": "pow", "integer_pow": "pow", "tanh": "tanh", "floor": "floor",
          "sign": "sign"}  # fmt: skip


class TranslationError(ValueError):
    """The function does something that is not understood."""


def translate(function: Callable[..., Sequence[Any]], inputs: Sequence[str], name: str) -> str:
    """Return a JavaScript function that evaluates a Python function for many draws.

    Parameters
    ----------
    function : callable
        Takes as many scalars as there are `inputs` and returns a sequence of scalars; made of `jax.numpy`.
    inputs : sequence of str
        A JavaScript identifier for each scalar; the reader sees them, nothing else depends on them.
    name : str
        Of the JavaScript function.

    Returns
    -------
    str
        ``function name(x, y, n)``: x and y are arrays of arrays, one for each input and each output; y is filled for
        draws 0 to n - 1.

    Raises
    ------
    TranslationError
        The function is not elementwise arithmetic.
    """
    for each in (name, *inputs):
        if not re.fullmatch(r"[a-z]\w*_\w+|[a-z]+", each, re.ASCII) or each in ("x", "y", "n", "i"):
            raise TranslationError(f"{each!r} is no identifier")
    with jax.enable_x64(True):
        closed = jax.make_jaxpr(function)(*(jax.ShapeDtypeStruct((), float) for _ in inputs))
    writer = _Writer()
    results = writer.run(closed.jaxpr, closed.consts, list(inputs))
    body = [f"const {each} = x[{i}][i];" for i, each in enumerate(inputs) if writer.uses(each, results)]
    body += writer.lines
    body += [f"y[{i}][i] = {result};" for i, result in enumerate(results)]
    lines = "\n".join(f"    {line}" for line in body)
    return f"function {name}(x, y, n) {{\n  for (let i = 0; i < n; i++) {{\n{lines}\n  }}\n}}\n"


class _Writer:
    """Writes the steps of a program, one line each; functions within it are written out where they are called."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.read: set[str] = set()

    def uses(self, name: str, results: Sequence[str]) -> bool:
        return name in self.read or name in results

    def run(self, jaxpr: Any, constants: Sequence[Any], arguments: Sequence[str]) -> list[str]:
        """Write a program and return what it returns, as names or numbers."""
        names = {var: _number(value) for var, value in zip(jaxpr.constvars, constants, strict=True)}
        names |= dict(zip(jaxpr.invars, arguments, strict=True))

        def text(atom: Any) -> str:
            return _number(atom.val) if isinstance(atom, Literal) else names[atom]

        for equation in jaxpr.eqns:
            arguments = [text(atom) for atom in equation.invars]
            inner = equation.params.get("jaxpr") or equation.params.get("call_jaxpr")
            if inner is not None:
                found = self.run(inner.jaxpr, inner.consts, arguments)
                names |= dict(zip(equation.outvars, found, strict=True))
                continue
            self.read.update(arguments)
            value = _value(equation.primitive.name, arguments, equation.params)
            if value in arguments:
                names[equation.outvars[0]] = value
                continue
            names[equation.outvars[0]] = f"v{len(self.lines)}"
            self.lines.append(f"const v{len(self.lines)} = {value};")
        return [text(atom) for atom in jaxpr.outvars]


def _value(primitive: str, arguments: Sequence[str], params: dict[str, Any]) -> str:
    """Return one step as an expression."""
    if primitive in _INFIX:
        return f" {_INFIX[primitive]} ".join(arguments)
    if primitive in _CALLS:
        power = [str(params["y"])] if primitive == "integer_pow" else []
        return f"Math.{_CALLS[primitive]}({', '.join([*arguments, *power])})"
    if primitive == "neg":
        return f"-{arguments[0]}" if not arguments[0].startswith("-") else f"-({arguments[0]})"
    if primitive == "not":
        return f"!{arguments[0]}"
    if primitive == "select_n" and len(arguments) == 3:
        which, no, yes = arguments
        return f"{which} ? {yes} : {no}"
    if primitive in ("convert_element_type", "copy", "stop_gradient", "optimization_barrier") and _is_float(params):
        return arguments[0]
    raise TranslationError(f"{primitive} of {len(arguments)} arguments is not understood")


def _is_float(params: dict[str, Any]) -> bool:
    return bool(np.dtype(params.get("new_dtype", float)).kind == "f")


def _number(value: Any) -> str:
    """Return a constant as JavaScript reads it, to the last digit."""
    array = np.asarray(value)
    if array.shape:
        raise TranslationError(f"a constant of shape {array.shape} is not understood")
    if array.dtype.kind == "b":
        return "true" if array else "false"
    number = float(array)
    if not np.isfinite(number):
        return "NaN" if np.isnan(number) else f"{'-' if number < 0 else ''}Infinity"
    return repr(number)
