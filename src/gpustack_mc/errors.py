"""What goes wrong for a user, said as where, what and what to do."""

from difflib import get_close_matches
from typing import Any, NamedTuple

# Characters of an error that are printed; JSON holds all of them.
MOST_OF_MESSAGE, MOST_OF_FIX = 400, 300


class Place(NamedTuple):
    """Where in a file something stands; line and column count from 1."""

    file: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        return ":".join(str(part) for part in self if part is not None)


def printable(text: str) -> str:
    """Return a text from a file without the characters that steer a terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)


def shortened(text: str, most: int) -> str:
    """Return a text cut to what fits a line; a file or an option may hold any length of it."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def option_place(option: str, text: str) -> Place:
    """Return the place of an option's value: cut to what fits a line, without characters that steer a terminal."""
    return Place(f"{option} {shortened(printable(text), 80)}")


class GpustackError(Exception):
    """A failure that is explained to the user in one line, without a traceback.

    Attributes
    ----------
    code : str
        Stable name of the kind of error, for programs.
    message : str
        What was found.
    fix : str
        What to do.
    place : Place or None
        Where.
    exit_code : int
        1 for a failed run, 2 for bad input.
    """

    exit_code = 1

    def __init__(self, code: str, message: str, fix: str = "", place: Place | None = None):
        self.code, self.message, self.fix, self.place = code, message, fix, place
        super().__init__(str(self))

    def __str__(self) -> str:
        where = f"{self.place._replace(file=shortened(self.place.file, 300))}: " if self.place else ""
        ending = f" {shortened(self.fix, MOST_OF_FIX)}" if self.fix else ""
        # A value quoted from a file may hold line breaks; the promise is one line.
        return printable(" ".join(f"{where}{shortened(self.message, MOST_OF_MESSAGE)}{ending}".split()))

    def as_dict(self) -> dict[str, Any]:
        """Return the form printed with ``--json``."""
        where = self.place._asdict() if self.place else None
        return {"error": {"code": self.code, "message": self.message, "where": where, "fix": self.fix}}


class InputError(GpustackError):
    """The user's scenario, option or file is wrong."""

    exit_code = 2


class InputErrors(InputError):
    """Several things are wrong with one file; prints as the first one and says how many follow."""

    def __init__(self, errors: list[InputError]):
        self.errors = sorted(errors, key=lambda error: (error.place or Place("")).line or 0)
        first = self.errors[0]
        more = len(self.errors) - 1
        fix = first.fix + (f" ({more} more: see `gpustack-mc check`)" if more else "")
        super().__init__(first.code, first.message, fix.strip(), first.place)

    def as_dict(self) -> dict[str, Any]:
        """Return the form printed with ``--json``: the first error, and all of them under ``errors``."""
        return {**self.errors[0].as_dict(), "errors": [error.as_dict()["error"] for error in self.errors]}


def did_you_mean(word: object, known: list[str] | tuple[str, ...], *, count: int = 3) -> str:
    """Return the sentence that offers the known names nearest to a mistyped one."""
    by_lower = {name.lower(): shortened(name, 60) for name in known}
    near = [by_lower[match] for match in get_close_matches(str(word).lower(), by_lower, n=count, cutoff=0.5)]
    if near:
        return f"Did you mean {' or '.join(near)}?"
    listed = ", ".join(shortened(name, 60) for name in known[:12]) + (", ..." if len(known) > 12 else "")
    return f"Known: {listed}."
