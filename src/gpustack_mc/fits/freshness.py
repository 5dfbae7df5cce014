"""What a stored fit follows from, as hashes: a fit with others is stale."""

import ast
import hashlib
from pathlib import Path

_OF_TYPES = ("typing", "collections.abc", "numpy.typing", "gpustack_mc.arrays")
"""Modules whose names say of what kind something is, and compute nothing."""


def digest(content: bytes) -> str:
    """SHA-256 of bytes, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def statements(path: Path) -> bytes:
    """Code that decides what is computed: neither better words nor better types make a fit stale.

    Left out are comments, docstrings, and types where nothing reads them when the program runs: those of arguments and
    results of functions without decorators, of variables of modules and functions, and of the fields of a
    `typing.NamedTuple`, whose names and order stay. Other classes and decorated functions keep theirs, since a
    decorator or a base class may read them. What a name of `typing` is used for besides stays where it is used.
    """
    tree = _WithoutTypes().visit(ast.parse(path.read_text(encoding="utf-8")))
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            node.body = [item for item in body if not _is_text(item)] or [ast.Pass()]  # type: ignore[attr-defined]
    return ast.unparse(ast.fix_missing_locations(tree)).encode()


class _WithoutTypes(ast.NodeTransformer):
    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        named = [base.id for base in node.bases if isinstance(base, ast.Name)] == ["NamedTuple"]
        for item in node.body:
            if not isinstance(item, ast.AnnAssign):
                self.visit(item)
            elif named and not node.decorator_list:
                item.annotation = ast.Constant(...)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        if not node.decorator_list:
            node.returns = None
            several = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            for argument in (*several, node.args.vararg, node.args.kwarg):
                if argument is not None:
                    argument.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        if node.value is None or not node.simple:
            return node
        return ast.Assign([node.target], node.value)

    def visit_Import(self, node: ast.Import) -> ast.Import | None:
        node.names = [name for name in node.names if name.name not in _OF_TYPES]
        return node if node.names else None

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom | None:
        return None if node.module in _OF_TYPES else node


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
