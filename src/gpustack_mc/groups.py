"""Groups of inputs: those of the table of quantities, by domain, and those that a user names."""

from collections.abc import Mapping, Sequence

from gpustack_mc import units
from gpustack_mc.errors import InputError, Place, did_you_mean, option_place
from gpustack_mc.problem import Problem
from gpustack_mc.quantities import BY_NAME

REST = "rest"


def by_domain(problem: Problem, varying: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Group the inputs that vary by their domain, in the order of the table of quantities.

    Parameters
    ----------
    problem : Problem
    varying : sequence of str
        Keys of the inputs that vary.

    Returns
    -------
    dict of str to tuple of str
        By domain; together all of `varying`, each once.
    """
    domains = list(dict.fromkeys(quantity.domain for quantity in BY_NAME.values()))
    found = {
        domain: tuple(key for key in varying if problem.inputs[key].quantity.domain == domain) for domain in domains
    }
    return {domain: keys for domain, keys in found.items() if keys}


def from_options(texts: Sequence[str], problem: Problem, varying: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Read the groups that a user names.

    Parameters
    ----------
    texts : sequence of str
        Each ``name=input,input``. An input that belongs to phases stands for all of them.
    problem : Problem
    varying : sequence of str
        Keys of the inputs that vary.

    Returns
    -------
    dict of str to tuple of str
        What is in no group makes up the last one, ``rest``.

    Raises
    ------
    InputError
        A group is empty, names an unknown or fixed input, or shares an input with another group.
    """
    found: dict[str, tuple[str, ...]] = {}
    owner: dict[str, str] = {}
    for text in texts:
        name, keys = _read(text, problem, varying)
        if name == REST:
            raise InputError("bad-group", f"{REST} is what no group holds.", "Choose another name.", _place(text))
        if name in found:
            fix = "Give each group a name of its own."
            raise InputError("bad-group", f"there is a group {units.shown(name)} already.", fix, _place(text))
        for key in keys:
            if key in owner:
                message = f"{key} is in the group {units.shown(owner[key])} as well."
                raise InputError("overlapping-groups", message, "Leave it in one of them.", _place(text))
            owner[key] = name
        found[name] = keys
    rest = tuple(key for key in varying if key not in owner)
    return found | ({REST: rest} if rest else {})


def _place(text: str) -> Place:
    return option_place("--group", text)


def _read(text: str, problem: Problem, varying: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    name, equals, listed = (part.strip() for part in text.partition("="))
    if not equals or not name:
        raise InputError("bad-group", "this is no group.", "Write NAME=INPUT,INPUT, such as site=pue,grid_intensity.",
                         _place(text))  # fmt: skip
    keys: list[str] = []
    for word in filter(None, (part.strip() for part in listed.split(","))):
        keys += _named(word, text, problem, varying)
    if not keys:
        raise InputError("empty-group", f"the group {units.shown(name)} names no input.", "Name one or more.",
                         _place(text))  # fmt: skip
    return name, tuple(dict.fromkeys(keys))


def _named(word: str, text: str, problem: Problem, varying: Sequence[str]) -> list[str]:
    """Return the inputs that a word of a group stands for."""
    alike = [key for key in problem.inputs if key == word or key.partition("@")[0] == word]
    found = [key for key in alike if key in varying]
    if found:
        return found
    if alike:
        fix = "Leave it out, or state how uncertain it is."
        raise InputError("fixed-input", f"{word} is fixed, so it explains no variance.", fix, _place(text))
    raise InputError("unknown-input", f"there is no input {units.shown(word)}.",
                     did_you_mean(word, tuple(varying)), _place(text))  # fmt: skip


def alone(varying: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """Make every input a group of its own."""
    return {key: (key,) for key in varying}
