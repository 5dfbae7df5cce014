"""YAML 1.2 text to plain data that remembers the line and column of every key and value.

ruamel.yaml composes the node graph; this module turns it into dicts, lists and scalars within limits on size, depth
and aliases, so that a hostile file is refused and not expanded. No tag ever constructs anything but plain data.
"""

import os
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

from gpustack_mc import catalog
from gpustack_mc.errors import InputError, Place

MAX_BYTES = 250_000
MAX_NODES = 20_000
MAX_DEPTH = 24

Path_ = tuple[str | int, ...]

_INT = re.compile(r"[-+]?[0-9][0-9_]*$|0o[0-7]+$|0x[0-9a-fA-F]+$")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?$")
_PLAIN_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null", "timestamp", "merge")}
_SPECIAL = {".inf": float("inf"), "+.inf": float("inf"), "-.inf": float("-inf"), ".nan": float("nan")}


class Document(NamedTuple):
    """Plain data with the place of each of its parts.

    Attributes
    ----------
    data : object
        Dicts, lists, strings, numbers, booleans, None.
    name : str
        File name used in messages; ``<stdin>`` for standard input.
    text : str
        The source, kept for the provenance of the result.
    keys, values : dict
        Path to (line, column), counted from 1, of a key and of a value.
    pack : object
        The prior pack that the document is resolved with, None for the shipped priors.
    """

    data: Any
    name: str
    text: str
    keys: dict[Path_, tuple[int, int]]
    values: dict[Path_, tuple[int, int]]
    pack: Any = None

    def place(self, path: Path_, *, key: bool = False) -> Place:
        """Return where a path stands; of an absent one, where its nearest parent stands."""
        if key and path in self.keys:
            return Place(self.name, *self.keys[path])
        while path and path not in self.values:
            path = path[:-1]
        return Place(self.name, *self.values.get(path, (1, 1)))


def read_text(source: str | Path) -> tuple[str, str]:
    """Read a scenario's text from a path, or from standard input when the source is ``-``.

    Returns
    -------
    text, name : str

    Raises
    ------
    InputError
        The file is missing, a folder, unreadable, too large, empty or not UTF-8 text.
    """
    if str(source) == "-" and sys.stdin is None:
        raise InputError("no-input", "there is no standard input.", "Name a file.", Place("<stdin>"))
    if str(source) == "-":
        raw, name = sys.stdin.buffer.read(MAX_BYTES + 1), "<stdin>"
    else:
        name = str(source)
        path = shipped_path(source)
        try:
            if path.is_dir():
                found = sorted(str(p) for p in path.glob("*.yaml"))[:3]
                hint = f"Name one of its files: {', '.join(found)}." if found else "Name a YAML file."
                raise InputError("is-a-folder", "this is a folder, not a scenario.", hint, Place(name))
            with path.open("rb") as stream:
                raw = stream.read(MAX_BYTES + 1)
        except FileNotFoundError:
            fix = "`gpustack-mc scenarios` lists the ones that are shipped."
            raise InputError("no-such-file", "there is no such file.", fix, Place(name)) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise InputError("unreadable", f"cannot read it: {reason}.", "", Place(name)) from None
    if len(raw) > MAX_BYTES:
        raise InputError(
            "too-large",
            f"larger than {MAX_BYTES / 1e3:.0f} kB, which no scenario is.",
            "A scenario describes one run.",
            Place(name),
        )
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        message = f"byte {raw[error.start]:#04x} is not UTF-8 text."
        raise InputError("not-text", message, "Save the file as UTF-8.", Place(name, line)) from None
    if "\x00" in text:
        raise InputError("not-text", "this is a binary file.", "A scenario is YAML text.", Place(name))
    if not text.strip():
        raise InputError(
            "empty", "the file is empty.", "`gpustack-mc schema` shows what a scenario holds.", Place(name)
        )
    return text, name


def shipped_path(source: str | Path) -> Path:
    """Return the path itself, or that of the shipped scenario which it names when there is no such file."""
    path = Path(source)
    if os.path.lexists(path) or path.parent.name not in ("", "scenarios"):
        return path
    return catalog.shipped_scenarios().get(path.name.removesuffix(".yaml"), path)


def parse(text: str, name: str) -> Document:
    """Parse YAML 1.2 text.

    Raises
    ------
    InputError
        The text is not YAML, holds several documents, duplicate keys, custom tags, or is too deep or too large
        once its aliases are expanded.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError
    from ruamel.yaml.reader import ReaderError

    try:
        loader = YAML(typ="safe", pure=True)
        loader.version = (1, 2)
        _refuse_deep(loader, text, name)
        root = YAML(typ="safe", pure=True).compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Place(name, mark.line + 1, mark.column + 1) if mark else Place(name)
        raise InputError("not-yaml", _yaml_problem(error), "", place) from None
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        place = Place(name, line, error.position - (text.rfind("\n", 0, error.position) + 1) + 1)
        message = f"the character U+{ord(text[error.position]):04X} is not allowed in YAML."
        raise InputError("not-yaml", message, "Remove it.", place) from None
    except YAMLError as error:
        raise InputError("not-yaml", f"not valid YAML: {str(error).splitlines()[0]}", "", Place(name)) from None
    if root is None:
        raise InputError("empty", "the file holds only comments.", "", Place(name))
    document = Document(None, name, text, {}, {})
    data = _Builder(document).build(root, (), 0)
    return document._replace(data=data)


def parse_value(text: str, name: str) -> Any:
    """Parse one YAML value given on the command line."""
    return parse(text, name).data


def _refuse_deep(loader: Any, text: str, name: str) -> None:
    """Refuse deep nesting before the recursive composer sees it."""
    depth = 0
    for count, event in enumerate(loader.parse(text)):
        if count > 2 * MAX_NODES:
            raise InputError(
                "too-large",
                f"more than {MAX_NODES:,} values.",
                "A scenario describes one run.",
                Place(name, event.start_mark.line + 1, event.start_mark.column + 1),
            )
        kind = type(event).__name__
        depth += kind in ("MappingStartEvent", "SequenceStartEvent")
        depth -= kind in ("MappingEndEvent", "SequenceEndEvent")
        if depth > MAX_DEPTH:
            mark = event.start_mark
            raise InputError(
                "too-deep",
                f"nested more than {MAX_DEPTH} levels deep.",
                "A scenario needs four.",
                Place(name, mark.line + 1, mark.column + 1),
            )


def _yaml_problem(error: Any) -> str:
    problem = str(error.problem or error.context or "not valid YAML")
    if "\\t" in problem or "'\\t'" in problem:
        return "a tab is used for indentation; YAML allows only spaces."
    if "expected a single document" in str(error.context or ""):
        return "the file holds more than one document (---); keep one."
    if "undefined alias" in problem:
        return f"{problem}; an alias (*name) must follow its anchor (&name)."
    return f"not valid YAML: {problem}."


class _Builder:
    """Turns nodes into data, filling in the places of one document."""

    def __init__(self, document: Document):
        self.document = document
        self.nodes = 0

    def build(self, node: Any, path: Path_, depth: int) -> Any:
        line, column = node.start_mark.line + 1, node.start_mark.column + 1
        place = Place(self.document.name, line, column)
        self.nodes += 1
        if self.nodes > MAX_NODES or depth > MAX_DEPTH:
            message = f"more than {MAX_NODES:,} values once aliases (*name) are expanded."
            raise InputError("too-large", message, "A scenario describes one run.", place)
        self.document.values.setdefault(path, (line, column))
        kind = type(node).__name__
        if kind == "ScalarNode":
            return _scalar(node, place)
        if not str(node.tag or "").startswith(("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")):
            raise InputError("tag", f"the tag {node.tag} is not allowed.", "Write plain values.", place)
        if kind == "SequenceNode":
            return [self.build(item, (*path, i), depth + 1) for i, item in enumerate(node.value)]
        return self._mapping(node, path, depth)

    def _mapping(self, node: Any, path: Path_, depth: int) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line, column = key_node.start_mark.line + 1, key_node.start_mark.column + 1
            place = Place(self.document.name, line, column)
            key = _scalar(key_node, place) if type(key_node).__name__ == "ScalarNode" else None
            if key_node.tag == "tag:yaml.org,2002:merge" or key == "<<":
                raise InputError("tag", "merge keys (<<) are not part of YAML 1.2.", "Write the keys out.", place)
            found = repr(key_node.value)[:60] if type(key_node).__name__ == "ScalarNode" else "a list or mapping"
            if not isinstance(key, str):
                raise InputError(
                    "bad-key", f"a key must be a word, found {found}.", "Quote it, or write a mapping of words.", place
                )
            if key in mapping:
                first = self.document.keys[(*path, key)][0]
                raise InputError("duplicate-key", f"{key} appears twice (first on line {first}).", "Keep one.", place)
            self.document.keys[(*path, key)] = (line, column)
            mapping[key] = self.build(value_node, (*path, key), depth + 1)
        return mapping


def _scalar(node: Any, place: Place) -> Any:
    """Resolve a scalar by the YAML 1.2 core schema, whatever the library would make of it."""
    text = node.value
    tag = str(node.tag or "")
    if tag != "!" and tag not in _PLAIN_TAGS:
        raise InputError("tag", f"the tag {tag} is not allowed.", "Write a plain value.", place)
    if node.style in ("'", '"', "|", ">"):
        return text
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text in ("true", "True", "TRUE", "false", "False", "FALSE"):
        return text.lower() == "true"
    if _INT.match(text):
        base = 8 if text.startswith("0o") else 16 if text.startswith("0x") else 10
        digits = text.replace("_", "")
        # As a float a huge integer overflows to inf, which is refused where it stands.
        return int(digits, base) if len(digits) <= 18 else float(digits) if base == 10 else float("inf")
    if _FLOAT.match(text):
        return float(text.replace("_", ""))
    return _SPECIAL.get(text.lower(), text)
