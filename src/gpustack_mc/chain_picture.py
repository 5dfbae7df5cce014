"""The chain of an explanation as a picture: inputs on the left, the output on the right, an arrow for each use.

Rows are given to the inputs in the order in which the steps need them, and a step stands beside the middle of what it
needs first, so that boxes never overlap, whatever the model.
"""

import html
from typing import Any, NamedTuple

from gpustack_mc import notation, summarizing
from gpustack_mc.quantities import BY_NAME

_ROW, _HEIGHT, _GAP, _MARGIN = 54, 46, 40, 8
_BOLD, _REGULAR = 7.2, 6.6  # width of a character in a usual sans serif, on average
_NARROWEST = 150
# A longer value is written without its interval, which the title of the box holds.
_LONGEST = 25
_SIGN = {"entered": "✎", "fitted": "●", "cited": "❏", "assumed": "△", "derived": "="}

_STYLE = """
svg { --paper: #ffffff; --ink: #1a1a1a; --muted: #595959; --line: #c4c9cd; --band: #f5f5f5; --blue: #0072b2;
  --tint: #b9ddf3; font-family: system-ui, "DejaVu Sans", sans-serif; background: var(--paper); }
@media (prefers-color-scheme: dark) { svg { --paper: #1b1f23; --ink: #e9ecee; --muted: #a9b1b8; --line: #4a5259;
  --band: #22272c; --blue: #56b4e9; --tint: #1f4a66; } }
"""


class _Box(NamedTuple):
    """One quantity: where it stands, and what is written on it."""

    name: str
    column: int
    row: float
    lines: tuple[str, str]
    title: str
    share: float | None
    is_input: bool


def svg(found: dict[str, Any]) -> str:
    """Return an explanation as an ``<svg>`` element that takes its colours from the page.

    Parameters
    ----------
    found : dict
        From `gpustack_mc.explain.explain`.
    """
    return _drawn(found, "")


def svg_file(found: dict[str, Any]) -> str:
    """Return an explanation as an SVG file with colours of its own, for light and dark."""
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{_drawn(found, f"<style>{_STYLE}</style>")}\n'


def _drawn(found: dict[str, Any], style: str) -> str:
    boxes = _placed(found)
    columns = max(box.column for box in boxes.values()) + 1
    rows = max(box.row for box in boxes.values()) + 1
    texts = [(_BOLD * len(box.lines[0]), _REGULAR * len(box.lines[1])) for box in boxes.values()]
    width = max(_NARROWEST, *(max(text) + 20 for text in texts))
    whole, height = columns * (width + _GAP) - _GAP + 2 * _MARGIN, rows * _ROW - (_ROW - _HEIGHT) + 2 * _MARGIN
    goal = found["steps"][-1]
    said = f"How {goal['description']} follows from {len(found['inputs'])} inputs in {len(found['steps'])} steps"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole:.0f} {height:.0f}" role="img" '
        f'aria-labelledby="chain-title"><title id="chain-title">{html.escape(said)}</title>{style}'
    ]
    for name, used in _arrows(found):
        parts.append(_arrow(boxes[used], boxes[name], width))
    parts += [_box(box, width) for box in boxes.values()]
    return "".join(parts) + "</svg>"


def _arrows(found: dict[str, Any]) -> list[tuple[str, str]]:
    steps = {step["name"] for step in found["steps"]}
    arrows = []
    for step in found["steps"]:
        for used in step["uses"]:
            arrows += [(step["name"], key) for key in ([used] if used in steps else _keys(used, found))]
    return arrows


def _keys(name: str, found: dict[str, Any]) -> list[str]:
    """Return the inputs that stand for a quantity; in a dense model all parameters are active."""
    keys = [item["name"] for item in found["inputs"] if item["name"].partition("@")[0] == name]
    return keys or ["params"]


def _placed(found: dict[str, Any]) -> dict[str, _Box]:
    """Give every quantity a column, the longest way from an input, and a row."""
    steps = {step["name"]: step for step in found["steps"]}
    inputs = {item["name"]: item for item in found["inputs"]}
    uses: dict[str, list[str]] = {}
    for name, used in _arrows(found):
        uses.setdefault(name, []).append(used)
    column: dict[str, int] = {}
    for name in steps:
        column[name] = 1 + max((column.get(used, 0) for used in uses[name]), default=0)
    boxes: dict[str, _Box] = {}
    free = iter(range(len(inputs) + len(steps)))

    def place(name: str, before: int) -> float:
        if name in inputs:
            row = float(next(free))
            boxes[name] = _input_box(inputs[name], before - 1, row)
            return row
        rows = [place(used, column[name]) for used in uses[name] if used not in boxes]
        row = (min(rows) + max(rows)) / 2 if rows else float(next(free))
        boxes[name] = _step_box(steps[name], column[name], row)
        return row

    place(found["output"], column[found["output"]])
    return boxes


def _step_box(step: dict[str, Any], column: int, row: float) -> _Box:
    title = f"{step['description']}: {step['equation']}; {summarizing.with_interval(step)}"
    label = f"{notation.plain(step['symbol'])}  {BY_NAME[step['name']].short}"
    return _Box(step["name"], column, row, (label, _value(step)), title, step["share"], False)


def _input_box(item: dict[str, Any], column: int, row: float) -> _Box:
    title = f"{item['description']}; {summarizing.with_interval(item)}; {item['origin']}"
    title += f": {item['prior']}" if item["prior"] else ""
    label = f"{_SIGN.get(item['origin'], '')} {notation.plain(item['symbol'])}  {item['name'].replace('_', ' ')}"
    return _Box(item["name"], column, row, (label, _value(item)), title, item["share"], True)


def _value(entry: dict[str, Any]) -> str:
    value = summarizing.with_interval(entry)
    return value if len(value) <= _LONGEST else value.partition(" (")[0]


def _corner(box: _Box, width: float) -> tuple[float, float]:
    return _MARGIN + box.column * (width + _GAP), _MARGIN + box.row * _ROW


def _arrow(start: _Box, end: _Box, width: float) -> str:
    x1, y1 = _corner(start, width)
    x2, y2 = _corner(end, width)
    x1, y1, y2 = x1 + width, y1 + _HEIGHT / 2, y2 + _HEIGHT / 2
    bend = max((x2 - x1) / 2, _GAP / 2)
    curve = f"M{x1:.1f} {y1:.1f}C{x1 + bend:.1f} {y1:.1f} {x2 - bend:.1f} {y2:.1f} {x2:.1f} {y2:.1f}"
    return f'<path d="{curve}" fill="none" stroke="var(--muted)" stroke-opacity="0.55" stroke-width="1.2"/>'


def _box(box: _Box, width: float) -> str:
    x, y = _corner(box, width)
    first, second = (html.escape(line) for line in box.lines)
    fill = "var(--paper)" if box.is_input else "var(--band)"
    edge = "var(--line)" if box.is_input else "var(--blue)"
    share = box.share or 0.0
    told = "" if box.share is None else f"; share of the variance {share:.2f}"
    said = html.escape(box.title + told)
    return (
        f'<g><title>{said}</title><rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{_HEIGHT}" rx="6" '
        f'fill="{fill}" stroke="{edge}"/>'
        f'<rect x="{x + 1:.1f}" y="{y + _HEIGHT - 5:.1f}" width="{(width - 2) * share:.1f}" height="4" rx="2" '
        f'fill="var(--blue)"/>'
        f'<text x="{x + 10:.1f}" y="{y + 18:.1f}" font-size="12" font-weight="600" fill="var(--ink)">{first}</text>'
        f'<text x="{x + 10:.1f}" y="{y + 34:.1f}" font-size="12" fill="var(--muted)">{second}</text></g>'
    )
