"""Rooms and arrows: what may import what, and what a cached executable came from."""

import ast

import pytest
from rooms import ROOMS

from gpustack_mc import compilation


def modules(root):
    return {
        path.stem: path
        for path in (root / "src" / "gpustack_mc").glob("*.py")
        if path.stem not in ("__init__", "__main__", "cli")
    }


def own_imports(path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gpustack_mc"):
            inside = (node.module or "").split(".")[1:]
            found |= {inside[0]} if inside else {alias.name for alias in node.names}
    return found - {"__version__"}


def test_every_module_has_its_room(root):
    assert set(modules(root)) == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_imports_follow_the_arrows(root, room):
    # Names of types are for every room.
    assert own_imports(modules(root)[room]) - {"arrays"} <= ROOMS[room]


def test_only_one_module_compiles_and_one_for_many_scenarios(root):
    """One scenario at a time, and many at a time, whose batch axis asks for kernels of its own."""
    users = {
        name
        for name, path in modules(root).items()
        if any(
            isinstance(node, ast.Attribute) and node.attr == "jit"
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        )
    }
    assert users == {"compilation", "sweep_model"}


def test_a_cached_executable_knows_all_sources_that_it_came_from(root):
    """Else a changed equation would go on being computed as it was."""
    paths, wanted, found = modules(root), ["kernels"], set()
    while wanted:
        name = wanted.pop()
        if name in found or name not in paths:
            continue
        found.add(name)
        wanted += own_imports(paths[name])
    assert {"equations", "outages", "priors"} < found
    assert found <= set(compilation._SOURCES)
