"""Mutation testing: whether the tests of the core notice a single wrong operator, number or comparison.

    python benchmarks/mutation.py                      # equations, failures, scoring, sobol
    python benchmarks/mutation.py equations --every 5  # every fifth mutant, for a quick look

Each mutant changes one place of one module: an operator for its counterpart, a comparison for its neighbour, a number
for another, a condition for its opposite. A mutant is killed when the tests named for its module fail or compute for
more than a minute. Mutation tools that start an interpreter for every mutant spend five seconds
on importing JAX each time; this one imports the libraries once and forks, and the program is imported afterwards,
mutated. Writes ``reports/validation/mutation.json`` with every survivor by line.
"""

import argparse
import ast
import copy
import importlib
import importlib.abc
import importlib.util
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "gpustack_mc"
RESULT = ROOT / "reports" / "validation" / "mutation.json"
# The tests that a module answers for by itself; those of the whole program would kill more, and hide what is missing.
TESTS = {
    "equations": ["test_equations.py", "test_model.py"],
    "failures": ["test_failures.py", "test_equations.py"],
    "scoring": ["test_scoring.py"],
    "sobol": ["test_sobol.py"],
}
LONGEST = 60
LIBRARIES = ("jax.scipy.special", "numpyro.distributions", "pint", "pytest", "scipy.integrate", "scipy.stats", "xarray")
_OPERATORS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.MatMult: ast.Mult,
}
_COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


def mutants(tree: ast.Module) -> Iterator[tuple[int, str, ast.Module]]:
    """Yield line, what was changed, and the changed module, for every single change."""
    for number, _ in enumerate(_places(tree)):
        changed = copy.deepcopy(tree)
        node = list(_places(changed))[number]
        for said in _change(node):
            yield node.lineno, said, ast.fix_missing_locations(copy.deepcopy(changed))


def _places(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield what may be changed: nothing in annotations, documentation and messages of errors."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.Raise):
                continue
            if isinstance(
                child, ast.BinOp | ast.Compare | ast.BoolOp | ast.UnaryOp | ast.AugAssign | ast.IfExp | ast.If
            ):
                yield child
            elif isinstance(child, ast.Constant) and type(child.value) in (int, float, bool):
                yield child
            yield from _places(child)


def _change(node: ast.AST) -> Iterator[str]:
    """Change a node in place, once for every way there is, and say how."""
    if isinstance(node, ast.BinOp | ast.AugAssign):
        old = type(node.op)
        node.op = _OPERATORS[old]()
        yield f"{old.__name__} -> {type(node.op).__name__}"
    elif isinstance(node, ast.Compare):
        old = type(node.ops[0])
        node.ops[0] = _COMPARISONS[old]()
        yield f"{old.__name__} -> {type(node.ops[0]).__name__}"
    elif isinstance(node, ast.BoolOp):
        old = type(node.op)
        node.op = ast.Or() if old is ast.And else ast.And()
        yield f"{old.__name__} -> {type(node.op).__name__}"
    elif isinstance(node, ast.UnaryOp):
        old = type(node.op)
        if old in (ast.USub, ast.Invert):
            node.op = ast.UAdd()
            yield f"{old.__name__} dropped"
        elif old is ast.Not:
            node.operand = ast.UnaryOp(ast.Not(), node.operand)
            yield "Not dropped"
    elif isinstance(node, ast.IfExp | ast.If):
        node.test = ast.UnaryOp(ast.Not(), node.test)
        yield "condition reversed"
    elif isinstance(node, ast.Constant):
        old = node.value
        for new in (not old,) if isinstance(old, bool) else (old + 1, old * 2) if old not in (0, 1) else (old + 1,):
            node.value = new
            yield f"{old} -> {new}"


class _Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from a changed tree."""

    def __init__(self, module: str, tree: ast.Module):
        self.module, self.tree = f"gpustack_mc.{module}", tree

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        if name != self.module:
            return None
        origin = str(SOURCE / f"{name.rpartition('.')[2]}.py")
        return importlib.util.spec_from_file_location(name, origin, loader=self)

    def exec_module(self, module: object) -> None:
        exec(compile(self.tree, module.__file__, "exec"), module.__dict__)

    def get_source(self, name: str) -> str:
        """Tests that read the source of an equation see the one that runs."""
        return ast.unparse(self.tree)


def start(module: str, tree: ast.Module) -> int:
    """Run the module's tests on a changed module in a child process, whose id is returned; 0 says they passed."""
    child = os.fork()
    if child:
        return child
    try:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1), os.dup2(silence, 2)
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, LONGEST)
        sys.meta_path.insert(0, _Mutated(module, tree))
        import pytest

        tests = [str(ROOT / "tests" / name) for name in TESTS[module]]
        with tempfile.TemporaryDirectory() as folder:
            # Libraries that were imported before the fork cannot have their assertions rewritten, and need not.
            options = ["-W", "ignore::pytest.PytestAssertRewriteWarning", "-p", "no:cacheprovider"]
            code = pytest.main(["-x", "-q", *options, f"--basetemp={folder}/t", *tests])
        os._exit(int(code))
    except BaseException:
        os._exit(70)


def verdicts(module: str, chosen: list[tuple[int, str, ast.Module]], jobs: int) -> list[bool]:
    """Return which mutants live, running `jobs` of them at a time."""
    running, lives = {}, [False] * len(chosen)
    for number, (_, _, tree) in enumerate(chosen):
        if len(running) == jobs:
            _collect(running, lives)
        running[start(module, tree)] = number
    while running:
        _collect(running, lives)
    return lives


def _collect(running: dict[int, int], lives: list[bool]) -> None:
    child, status = os.wait()
    lives[running.pop(child)] = status == 0


def say(line: str) -> None:
    """Print at once: a run takes many minutes."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run all mutants and write what survives."""
    parser = argparse.ArgumentParser()
    parser.add_argument("modules", nargs="*", default=list(TESTS))
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    # Imported before any fork, and not used: an XLA client does not survive a fork.
    for library in LIBRARIES:
        importlib.import_module(library)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp()
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for module in asked.modules:
        tree = ast.parse((SOURCE / f"{module}.py").read_text(encoding="utf-8"))
        if os.waitpid(start(module, tree), 0)[1]:
            sys.exit(f"{module}: its tests fail without any change")
        chosen = list(mutants(tree))[asked.first :: asked.every]
        began, alive = time.monotonic(), []
        for (line, said, _), lives in zip(chosen, verdicts(module, chosen, asked.jobs), strict=True):
            if lives:
                alive.append({"line": line, "change": said})
                say(f"{module}.py:{line}: {said} survives")
        killed = len(chosen) - len(alive)
        found[module] = {"mutants": len(chosen), "killed": killed, "survivors": alive, "tests": TESTS[module]}
        say(f"{module}: {killed} of {len(chosen)} killed, {time.monotonic() - began:.0f} s")
    if asked.every == 1 and not asked.first:
        RESULT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
