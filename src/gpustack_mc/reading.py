"""A scenario document with its overrides: structure, and where each part stands."""

import unicodedata
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import ValidationError

from gpustack_mc import schema, units, yamlfile
from gpustack_mc.errors import InputError, Place, did_you_mean, option_place
from gpustack_mc.statements import Statements


class Reader(Statements):
    """One document with its overrides, checked for structure.

    Parameters
    ----------
    document : Document
    overrides : tuple of str
        ``key=value``.

    Raises
    ------
    InputError
        The document is not a mapping, or an override does not fit it.
    """

    def __init__(self, document: yamlfile.Document, overrides: tuple[str, ...]):
        super().__init__(self.located)
        self.document = document
        self.overrides = overrides
        self.overridden: dict[yamlfile.Path_, str] = {}
        if not isinstance(document.data, dict):
            raise InputError(
                "not-a-scenario",
                "this is not a mapping of keys to values.",
                "`gpustack-mc schema` shows what a scenario holds.",
                Place(document.name, 1, 1),
            )
        for override in overrides:
            self._override(override)

    # ---- overrides and places ----

    def _override(self, override: str) -> None:
        key, equals, text = override.partition("=")
        place = _set_place(override)
        if not equals or not key.strip():
            raise InputError("bad-override", "not of the form key=value.", "Write --set mfu=0.4.", place)
        path: list[str | int] = [
            int(part) if part.isascii() and part.isdigit() else part for part in key.strip().split(".")
        ]
        if len(path) > yamlfile.MAX_DEPTH:
            raise InputError("bad-override", "nested too deep.", "A scenario needs four levels.", place)
        for part, fields in (("inputs", schema.Inputs), ("reliability", schema.Reliability)):
            if path[0] not in schema.ScenarioFile.model_fields and path[0] in fields.model_fields:
                path.insert(0, part)
        value = yamlfile.parse_value(text, str(place)) if text.strip() else None
        node: Any = self.document.data
        for step in path[:-1]:
            if isinstance(node, dict) and isinstance(step, str):
                node = node.setdefault(step, {})
            elif isinstance(node, list) and isinstance(step, int) and step < len(node):
                node = node[step]
            else:
                raise InputError("bad-override", f"there is no {key.strip()} to set.", "", place)
        try:
            node[path[-1]] = value
        except (TypeError, IndexError):
            raise InputError("bad-override", f"there is no {key.strip()} to set.", "", place) from None
        self.overridden[tuple(path)] = override

    def located(self, path: yamlfile.Path_, *, key: bool = False) -> Place:
        """Return where a path stands: in the file, or in the override that set it."""
        for depth in range(len(path), 0, -1):
            if path[:depth] in self.overridden:
                return _set_place(self.overridden[path[:depth]])
        if path not in self.document.keys:
            for overridden, override in self.overridden.items():
                if overridden[: len(path)] == path != ():
                    return _set_place(override)
        return self.document.place(path, key=key)

    # ---- structure ----

    def structure(self) -> schema.ScenarioFile:
        """Validate the structure.

        Raises
        ------
        InputError
            Keys or kinds of values are wrong.
        """
        for path in _where(self.document.data, lambda value: value is None):
            self.fail(path, "has no value.", "Give one, or remove the key.", "no-value", key=True)
        for path in _where(self.document.data, _is_unprintable):
            self.fail(path, "holds control characters.", "Remove them.", "control-character")
        self.stop_if_wrong()
        try:
            return schema.ScenarioFile.model_validate(self.document.data)
        except ValidationError as error:
            seen: set[yamlfile.Path_] = set()
            for detail in error.errors(include_url=False):
                path = self._path_of(detail["loc"])
                if path not in seen:
                    seen.add(path)
                    self._explain(path, detail)
            self.stop_if_wrong()
            raise

    def _path_of(self, loc: tuple[str | int, ...]) -> yamlfile.Path_:
        """Drop from pydantic's location what is not in the file: tags of unions, and ``[key]``."""
        node, path = self.document.data, []
        for step in loc:
            if isinstance(node, dict) and step in node:
                node = node[step]
            elif isinstance(node, list) and isinstance(step, int) and step < len(node):
                node = node[step]
            elif step in schema.FORMS or step in ("amount", "int", "float", "str", "[key]") or isinstance(step, int):
                continue
            else:
                node = None
            path.append(step)
        return tuple(path)

    def _explain(self, path: yamlfile.Path_, detail: Any) -> None:
        kind, found = detail["type"], units.shown(detail.get("input"))
        if kind == "extra_forbidden":
            known = self._known_keys(path, detail["loc"])
            parent = ".".join(str(step) for step in path[:-1])
            inside = f" in {parent}" if parent else ""
            message = f"unknown key {str(path[-1])[:60]!r}{inside}."
            self.errors.append(
                InputError("unknown-key", message, did_you_mean(path[-1], known), self.place(path, key=True))
            )
        elif kind == "missing":
            self.fail(path, "is missing.", _MISSING.get(str(path[-1]), ""), "missing-key")
        elif kind == "literal_error":
            self.fail(path, f"{found} is not one of {detail['ctx']['expected']}.")
        elif kind in ("int_type", "float_type", "string_type"):
            wanted = (
                "a number, a number with a unit, or a distribution"
                if "amount" in detail["loc"]
                else _WANTED.get(kind, "a value")
            )
            self.fail(path, f"{found} is not {wanted}.")
        elif kind in ("model_type", "model_attributes_type", "dict_type"):
            self.fail(path, f"{found} is not a mapping of keys to values.")
        else:
            self.fail(path, f"{found}: {detail['msg'][0].lower()}{detail['msg'][1:]}.")

    def _known_keys(self, path: yamlfile.Path_, loc: tuple[str | int, ...]) -> list[str]:
        for step in reversed(loc[:-1]):
            if step in schema.FORMS and step not in path:
                return list(schema.FORMS[step].model_fields)
        parent = tuple(step for step in path[:-1] if isinstance(step, str))
        if parent[:1] == ("published",) and len(parent) == 2:
            parent = ("published", "*")
        return list(schema.PARTS.get(parent, schema.ScenarioFile).model_fields)


def _set_place(override: str) -> Place:
    return option_place("--set", override)


def _where(data: Any, condition: Callable[[Any], bool], path: yamlfile.Path_ = ()) -> Iterator[yamlfile.Path_]:
    """Yield the paths of values that fulfil a condition."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for step, value in items:
        if condition(value):
            yield (*path, step)
        else:
            yield from _where(value, condition, (*path, step))


def _is_unprintable(value: Any) -> bool:
    """Whether a text holds what neither a terminal nor a file should get; line breaks and tabs are fine."""
    return isinstance(value, str) and any(
        (unicodedata.category(character) in ("Cc", "Cs") and character not in "\n\t") or character in _DIRECTION
        for character in value
    )


# Characters that make a text read in another order than it is written.
_DIRECTION = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_WANTED = {"int_type": "a whole number", "float_type": "a number", "string_type": "text"}
_MISSING = {
    "schema_version": "Add `schema_version: 1`.",
    "name": "Add a name, e.g. `name: 7B on 2T tokens`.",
    "workload": "Add e.g. `workload: {params: 7e9, tokens: 2e12}`.",
    "cluster": "Add e.g. `cluster: {accelerator: H100-SXM-80GB, count: 1024}`.",
}
