"""What a scenario asks: limits that are to be kept, conditions, and the day on which the run starts."""

import datetime
import re

from gpustack_mc import conditions, schema, units
from gpustack_mc.errors import InputError
from gpustack_mc.problem import QUESTIONS, Condition, outputs_stated
from gpustack_mc.quantities import Quantity
from gpustack_mc.reading import Reader

_DAY = re.compile(r"^\d{4}-\d")


def _day(text: str) -> datetime.date:
    """Read a day; only the form 2027-01-15 is one."""
    if len(text) != 10 or not text.isascii():
        raise ValueError(text)
    return datetime.date.fromisoformat(text)


class Asking(Reader):
    """Reads the questions of a document; collects errors as `Reader` does."""

    def start(self, file: schema.ScenarioFile) -> datetime.date | None:
        """Return the day on which the run starts."""
        if file.start is None:
            return None
        try:
            return _day(file.start)
        except ValueError:
            self.fail(("start",), f"{units.shown(file.start)} is not a day.", "Write it as 2027-01-15.")
            return None

    def asked(self, file: schema.ScenarioFile, questions: dict[str, float]) -> tuple[Condition, ...]:
        """Return the conditions that the scenario asks about."""
        about = conditions.Subject(outputs_stated(file), questions, file.ownership, self.rates)
        found = []
        for i, text in enumerate(file.questions.ask):
            try:
                found.append(conditions.parse_condition(text, about))
            except InputError as error:
                self.fail(("questions", "ask", i), error.message, error.fix, error.code)
        return tuple(found)

    def _deadline(self, text: str, start: datetime.date | None) -> float:
        """Return the days from the start to a date, NaN after a recorded error."""
        path = ("questions", "deadline")
        try:
            day = _day(text)
        except ValueError:
            self.fail(path, f"{units.shown(text)} is not a day.", "Write it as 2027-03-01, or as a time: 45 d.")
            return float("nan")
        if start is None:
            self.fail(path, "is a date, and the scenario does not say when the run starts.", "Add `start: 2027-01-15`.")
            return float("nan")
        if day <= start:
            self.fail(path, f"{day} is not after the start on {start}.", "State a later day.", "deadline-passed")
            return float("nan")
        # A run that starts on a day and ends on a day may use all of both.
        return float((day - start).days + 1)

    def questions(self, file: schema.ScenarioFile, start: datetime.date | None) -> dict[str, float]:
        """Return the limits of the scenario in the unit of their output."""
        limits = {}
        for name in sorted(file.questions.model_fields_set - {"ask"}):
            unit = QUESTIONS[name][1]
            amount = getattr(file.questions, name)
            limit = Quantity(name, "", unit, "", "output", "")
            if name == "deadline" and isinstance(amount, str) and _DAY.match(amount.strip()):
                limits[name] = self._deadline(amount.strip(), start)
                continue
            if amount is None or (not isinstance(amount, str)) or re.fullmatch(r"[\d._eE+-]+", amount.strip()):
                self.fail(
                    ("questions", name),
                    f"{amount} has no unit.",
                    f"Write it with one, such as {amount} {unit}.",
                    "bad-unit",
                )
                continue
            limits[name] = self.number(amount, limit, ("questions", name))
            if limits[name] == 0:
                self.fail(("questions", name), "a limit of 0 is never kept.", "State a limit above 0.")
        return limits
