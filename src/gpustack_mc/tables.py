"""Labelled arrays in a tree, as little of `xarray.DataTree` as a result needs before anyone looks at it with xarray.

xarray imports pandas, which takes longer than propagating a scenario. What is here answers to the same names, so that
summaries read a `Tree` and a `xarray.DataTree` alike.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Union

import numpy as np

if TYPE_CHECKING:
    import xarray as xr

AnyTree = Union["Tree", "xr.DataTree"]


class Variable(NamedTuple):
    """An array with named dimensions, attributes, and labels along those dimensions that have them."""

    dims: tuple[str, ...]
    values: np.ndarray
    attrs: Mapping[str, Any]
    labels: Mapping[str, np.ndarray]

    def sel(self, **chosen: Any) -> "Variable":
        """Take one label of each named dimension, which vanishes.

        Raises
        ------
        KeyError
            There is no such label.
        """
        values, dims = self.values, list(self.dims)
        for dimension, label in chosen.items():
            (found,) = np.nonzero(self.labels[dimension] == label)
            if not len(found):
                raise KeyError(label)
            values = np.take(values, found[0], axis=dims.index(dimension))
            dims.remove(dimension)
        return Variable(tuple(dims), values, self.attrs, {d: self.labels[d] for d in dims if d in self.labels})

    def __getitem__(self, dimension: str) -> "Variable":  # type: ignore[override]  # as xarray does, not as a tuple
        """Return the labels of a dimension."""
        return Variable((dimension,), self.labels[dimension], {}, {})

    def __float__(self) -> float:
        return float(self.values)


class Table:
    """Variables that share dimensions.

    Parameters
    ----------
    data : mapping of str to (dimensions, values, attributes)
    coords : mapping of str to array_like
        Labels of dimensions.
    attrs : mapping
    """

    def __init__(
        self,
        data: Mapping[str, tuple[tuple[str, ...], Any, Mapping[str, Any]]] = {},
        coords: Mapping[str, Any] | None = None,
        attrs: Mapping[str, Any] | None = None,
    ):
        self.attrs = dict(attrs or {})
        self.coords = {name: np.asarray(labels) for name, labels in (coords or {}).items()}
        self.data_vars = {
            name: Variable(dims, np.asarray(values), about, {d: self.coords[d] for d in dims if d in self.coords})
            for name, (dims, values, about) in data.items()
        }

    @property
    def variables(self) -> dict[str, Variable]:
        """Data and coordinates."""
        coords = {name: Variable((name,), labels, {}, {}) for name, labels in self.coords.items()}
        return self.data_vars | coords

    @property
    def sizes(self) -> dict[str, int]:
        """Lengths of the dimensions."""
        return {d: n for v in self.variables.values() for d, n in zip(v.dims, v.values.shape, strict=True)}

    def __contains__(self, name: object) -> bool:
        return name in self.data_vars or name in self.coords

    def __getitem__(self, name: str) -> Variable:
        return self.variables[name]

    def sel(self, **chosen: Any) -> "Table":
        """Take one label of each named dimension in every variable."""
        found = {name: variable.sel(**chosen) for name, variable in self.data_vars.items()}
        data = {name: (variable.dims, variable.values, variable.attrs) for name, variable in found.items()}
        return Table(data, {name: labels for name, labels in self.coords.items() if name not in chosen}, self.attrs)

    def as_dataset(self) -> "xr.Dataset":
        """Return the same as `xarray.Dataset`."""
        import xarray as xr

        data = {
            name: (variable.dims, variable.values, dict(variable.attrs)) for name, variable in self.data_vars.items()
        }
        return xr.Dataset(data, coords=self.coords, attrs=self.attrs)


class Tree:
    """Tables by the name of their group; the attributes of the root are those of the whole."""

    def __init__(self, groups: Mapping[str, Table], attrs: Mapping[str, Any]):
        self.groups, self.attrs = dict(groups), dict(attrs)

    def __contains__(self, group: object) -> bool:
        return group in self.groups

    def __getitem__(self, group: str) -> Table:
        return self.groups[group]

    def tables(self) -> Iterator[tuple[str, Table]]:
        """Yield the path of each group and its table, the root first."""
        yield "/", Table(attrs=self.attrs)
        yield from ((f"/{name}", table) for name, table in self.groups.items())

    def as_datatree(self) -> "xr.DataTree":
        """Return the same as `xarray.DataTree`."""
        import xarray as xr

        return xr.DataTree.from_dict({path: table.as_dataset() for path, table in self.tables()})


def tables_of(tree: AnyTree) -> Iterator[tuple[str, Any]]:
    """Yield path and table, or data tree node, of each group of a tree of either kind."""
    if isinstance(tree, Tree):
        yield from tree.tables()
    else:
        yield from ((node.path, node) for node in tree.subtree)
