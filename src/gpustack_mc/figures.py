"""Pictures of a result: intervals of outputs and inputs, and what drives them.

Every picture is a `matplotlib.figure.Figure` that pyplot does not know of, drawn under matplotlib's default style:
the user's style, backend and open figures neither change nor matter. Positions are in inches and every text is measured
before the page is laid out, so that nothing overlaps or is cut whatever the names and numbers are.
"""

import contextlib
import functools
import html
import io
import json
import math
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import xarray as xr

from gpustack_mc import formatting
from gpustack_mc.quantities import BY_NAME
from gpustack_mc.summary import HEADLINE, OTHER_OWNERSHIP

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# One row each, in this order; outputs with a published figure join those of their domain.
OUTPUT_ROWS = tuple(name for name in HEADLINE if name != "co2e_operational_t")
SENSITIVITY_PANELS = ("training_days", "energy_mwh", "co2e_t", "cost_owned_usd", "cost_rented_usd")
SENSITIVITY_ROWS = 12
# An index below this is drawn as a hairline: such inputs are named in the caption instead.
_NEGLIGIBLE = 0.005
# A sentence with more numbers than this is not listened to.
_SPOKEN = 9

_QUANTILES = ("q0.05", "q0.25", "q0.5", "q0.75", "q0.95")
_LOW, _MEDIAN, _HIGH = 0, 2, 4

# Okabe and Ito's palette, and a tint of its sky blue that stays apart from the blue in grey.
_BLUE, _TINT, _VERMILLION, _INK, _GREY, _LINE, _BAND = (
    "#0072B2", "#B9DDF3", "#D55E00", "#1A1A1A", "#595959", "#D9D9D9", "#F5F5F5")  # fmt: skip
_PUBLISHED = "#A34700"
# Colours of pictures within a page, by what they stand for there.
_ROLES = {"#FFFFFF": "paper", _INK: "ink", _GREY: "muted", _LINE: "line", _BAND: "band", _BLUE: "blue", _TINT: "tint",
          _VERMILLION: "mark", _PUBLISHED: "mark-ink"}  # fmt: skip
_FONT = "DejaVu Sans"  # comes with matplotlib, so that pictures look alike everywhere

# Inches.
_MARGIN = 0.25
_LABELS = 3.5
_FOREST_WIDTH = 10.0
_FOREST_ROW = 0.56
_FOREST_ROOM = _FOREST_WIDTH - 2 * _MARGIN - _LABELS
_PANELS_WIDTH = 11.0
_PANELS_ROW = 0.5
_PANEL_GAP = 0.2
_DPI = 120

Which = Literal["outputs", "inputs", "sensitivity"]


class _Row(NamedTuple):
    """One variable of an interval plot; `values` and `errors` are five quantiles and their Monte Carlo errors."""

    key: str
    description: str
    note: str
    unit: str
    values: np.ndarray
    errors: np.ndarray
    varies: bool
    published: float | None

    def text(self, i: int) -> str:
        """Write quantile `i` with its unit, as the table of the report does."""
        low, high = self.values[_LOW], self.values[_HIGH]
        digits = formatting.digits_for(self.values[i], low, high, np.nan_to_num(self.errors[i]), self.unit)
        step = formatting.step_for(self.values[_MEDIAN], self.unit)
        return formatting.with_unit(self.values[i], self.unit, digits, step)

    @property
    def published_text(self) -> str:
        """Write the published value with as many of up to four digits as it has."""
        value = float(self.published or 0)
        digits = next((d for d in (1, 2, 3) if math.isclose(float(f"{value:.{d}g}"), value, rel_tol=1e-9)), 4)
        return f"published {formatting.with_unit(value, self.unit, digits)}"


# ---- pictures ----------------------------------------------------------------------------------------------------


def interval_plot(tree: xr.DataTree) -> "Figure":
    """Draw median, 50% and 90% equal-tailed interval of the main outputs, with published figures as marks.

    Parameters
    ----------
    tree : xarray.DataTree
        From `gpustack_mc.result.to_datatree`. The summaries over all draws that it holds are drawn, so that the picture
        agrees with every table of the same result.

    Returns
    -------
    matplotlib.figure.Figure
        Not known to pyplot. Outputs without spread are named in the caption.
    """
    said = "Outputs: median, 50% and 90% equal-tailed intervals, each row relative to its own median"
    return _forest(_output_rows(tree), tree, said, "No output varies: every input that matters is fixed.")


def input_plot(tree: xr.DataTree) -> "Figure":
    """Draw median, 50% and 90% equal-tailed interval of the inputs that vary, widest first, with unit and origin.

    Parameters
    ----------
    tree : xarray.DataTree
        From `gpustack_mc.result.to_datatree`.

    Returns
    -------
    matplotlib.figure.Figure
    """
    rows = sorted(_input_rows(tree), key=_relative_width, reverse=True)
    said = "Inputs, widest first: median, 50% and 90% equal-tailed intervals, each row relative to its own median"
    return _forest(rows, tree, said, "No input varies: every input is fixed.")


def sensitivity_plot(tree: xr.DataTree, scale: Literal["raw", "log"] = "raw") -> "Figure":
    """Draw first-order inside total Sobol' indices of the main outputs, with their 90% intervals.

    Parameters
    ----------
    tree : xarray.DataTree
        From `gpustack_mc.result.to_datatree`.
    scale : {"raw", "log"}
        Whether the variance is that of the outputs or of their logarithms.

    Returns
    -------
    matplotlib.figure.Figure
        Inputs as rows, sorted by their largest total index; one panel per output.
    """
    what = "of the logarithm of each output" if scale == "log" else "of each output"
    said = f"Share of the variance {what} that an input explains: alone, and with its interactions"
    header = [tree.attrs["name"], said]
    if "sensitivity" not in tree:
        with _own_style():
            return _message(header, "No sensitivity indices: no input varies, or they were not computed.", "")
    found = tree["sensitivity"].to_dataset().sel(scale=scale)
    panels = _panels(tree)
    shown, rest = _ranked(found, panels)
    caption = ["First-order inside total Sobol' index; whiskers: 90% interval of the Monte Carlo error. "
               "Inputs sorted by their largest total index."]  # fmt: skip
    if rest:
        largest = max(_largest(found, panels, name) for name in rest)
        counted = "1 input with a total index" if len(rest) == 1 else f"{len(rest)} inputs with total indices"
        limit = f"of at most {largest:.2g}" if largest >= 0.001 else "below 0.001"
        caption.append(f"Not drawn: {counted} {limit}: {', '.join(rest)}.")
    with _own_style():
        if not shown:
            return _message(header, "None of these outputs varies.", "")
        return _draw_panels(tree, found, panels, shown, header, " ".join(caption))


def alt_text(tree: xr.DataTree, which: Which) -> str:
    """Return what a picture shows as one plain sentence.

    Parameters
    ----------
    tree : xarray.DataTree
    which : {"outputs", "inputs", "sensitivity"}
    """
    name = " ".join(str(tree.attrs["name"]).split()).rstrip(".")
    if which == "sensitivity":
        return f"Bars of Sobol' indices for {name}: {_spoken_drivers(tree)}."
    rows = _output_rows(tree) if which == "outputs" else sorted(_input_rows(tree), key=_relative_width, reverse=True)
    drawn = [row for row in rows if row.varies]
    if not drawn:
        return f"Interval plot of the {which} of {name}, empty because none of them varies."
    said = [f"{r.key} {r.text(_MEDIAN)} ({r.text(_LOW)} to {r.text(_HIGH)})" for r in drawn[:_SPOKEN]]
    said += [f"and {len(drawn) - _SPOKEN} more"] if len(drawn) > _SPOKEN else []
    return f"Interval plot of the {which} of {name}, median and 90% interval: {'; '.join(said)}."


def save(figure: "Figure", path: Path, *, dpi: float = _DPI) -> None:
    """Write a picture as PNG with bytes that depend on the picture alone.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
    path : Path
        Written in place; wrap the call in `gpustack_mc.storage.replacing`.
    dpi : float
        Dots per inch.
    """
    with _own_style():
        # Matplotlib writes its version into every PNG; without it, equal pictures are equal files.
        figure.savefig(path, format="png", dpi=dpi, metadata={"Software": None})


def svg(figure: "Figure", name: str, title: str) -> str:
    """Return a picture as inline SVG whose colours follow the page, for light, dark and print.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
    name : str
        Prefix of the ids, so that several pictures fit on one page.
    title : str
        What the picture shows, for those who cannot see it.

    Returns
    -------
    str
        An ``<svg>`` element. White, ink, grey and the other colours are the custom properties ``--paper``, ``--ink``,
        ``--muted``, ``--line``, ``--band``, ``--blue``, ``--tint``, ``--mark`` and ``--mark-ink`` of the page.
    """
    buffer = io.StringIO()
    with _own_style():
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :].strip()
    text = re.sub(r"<metadata>.*?</metadata>\s*|<!--.*?-->\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text)
    for color, role in _ROLES.items():
        text = text.replace(color.lower(), f"var(--{role})")
    # Sizes in points would keep the picture from following the width of the page.
    head, rest = text.split(">", 1)
    head = re.sub(r'\s(width|height)="[^"]*"', "", head)
    label = f'<title id="{name}-title">{html.escape(title)}</title>'
    return f'{head} role="img" aria-labelledby="{name}-title">{label}{rest}'


# ---- from the tree to rows ---------------------------------------------------------------------------------------


def _output_rows(tree: xr.DataTree) -> list[_Row]:
    published = json.loads(tree.attrs["published"])
    names = [*OUTPUT_ROWS, *(name for name in published if name not in OUTPUT_ROWS)]
    domains = [BY_NAME[name].domain for name in names]
    names.sort(key=lambda name: domains.index(BY_NAME[name].domain))
    skip = OTHER_OWNERSHIP.get(tree.attrs["ownership"])
    return [_row(tree, "prior_predictive", name, published) for name in names if name != skip or name in published]


def _input_rows(tree: xr.DataTree) -> list[_Row]:
    return [_row(tree, "prior", str(key), {}) for key in tree["prior"].data_vars]


def _row(tree: xr.DataTree, group: str, key: str, published: dict[str, Any]) -> _Row:
    statistics, attrs = tree["statistics"]["value"].sel(variable=key), tree[group][key].attrs
    values = statistics.sel(statistic=list(_QUANTILES)).values
    errors = statistics.sel(statistic=[f"{name}_error" for name in _QUANTILES]).values
    spread, middle = float(statistics.sel(statistic="sd")), float(statistics.sel(statistic="mean"))
    notes = [_readable_unit(attrs["units"]), *(attrs[k] for k in ("origin", "scope") if k in attrs)]
    notes += [", ".join(attrs[k] for k in ("carbon_accounting", "carbon_basis"))] if "carbon_basis" in attrs else []
    return _Row(
        key=key,
        description=_description(attrs, key),
        note=" · ".join(notes),
        unit=attrs["units"],
        values=values,
        errors=errors,
        # The rounding of sums over draws is no spread.
        varies=spread > 1e-9 * abs(middle),
        published=published[key]["value"] if key in published else None,
    )


def _description(attrs: dict[str, Any], key: str) -> str:
    """Return the long name without the phase, which the key beside it says."""
    return str(attrs["long_name"]).removesuffix(f", {key.partition('@')[2]}")


def _readable_unit(unit: str) -> str:
    return "pure number" if unit == "1" else unit.replace("^3", "³")


def _relative_width(row: _Row) -> float:
    low, high = row.values[_LOW], row.values[_HIGH]
    return math.log(high / low) if low > 0 else math.inf


def _panels(tree: xr.DataTree) -> list[str]:
    skip = OTHER_OWNERSHIP.get(tree.attrs["ownership"])
    return [name for name in SENSITIVITY_PANELS if name != skip]


def _largest(found: xr.Dataset, panels: Sequence[str], name: str) -> float:
    """Return the largest total index of an input over the panels; constant outputs have none."""
    return float(np.nan_to_num(found["ST"].sel(output=list(panels), input=name).values).max())


def _ranked(found: xr.Dataset, panels: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split inputs into those that are drawn, largest first, and the rest."""
    sizes = {str(name): _largest(found, panels, name) for name in found["input"].values}
    order = sorted(sizes, key=lambda name: -sizes[name])
    shown = [name for name in order[:SENSITIVITY_ROWS] if sizes[name] >= _NEGLIGIBLE]
    return shown, [name for name in order if name not in shown]


def _spoken_drivers(tree: xr.DataTree) -> str:
    if "sensitivity" not in tree:
        return "there are none, because no input varies or they were not computed"
    total = tree["sensitivity"]["ST"].sel(scale="raw")
    said = []
    for output in _panels(tree):
        indices = total.sel(output=output)
        if np.isfinite(indices.values).any():
            most = indices.idxmax("input").item()
            said.append(f"{output} depends most on {most} (total index {float(indices.max()):.2f})")
        else:
            said.append(f"{output} does not vary")
    return "; ".join(said)


# ---- text that is measured before it is drawn --------------------------------------------------------------------


@contextlib.contextmanager
def _own_style() -> Iterator[None]:
    """Use matplotlib's defaults and our font inside the block, whatever the user's style is."""
    import matplotlib.style

    own = {"font.family": [_FONT], "text.usetex": False, "axes.unicode_minus": True, "svg.hashsalt": "gpustack-mc"}
    with matplotlib.style.context(["default", own]):
        yield


@functools.cache
def _glyphs() -> frozenset[int]:
    """Return the code points that the font can draw, upright and bold."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    fonts = [get_font(findfont(FontProperties(family=_FONT, weight=weight))) for weight in ("normal", "bold")]
    return frozenset.intersection(*(frozenset(font.get_charmap()) for font in fonts))


def _drawable(text: str) -> str:
    """Return text on one line without control characters, and with a box for what the font lacks."""
    kept = (c if c.isspace() or unicodedata.category(c)[0] != "C" else "" for c in str(text))
    return "".join(c if ord(c) in _glyphs() else "□" for c in " ".join("".join(kept).split()))


@functools.cache
def _measure(size: float, weight: str) -> Callable[[str], float]:
    """Return a function from text to its width in inches."""
    from matplotlib.backends.backend_agg import RendererAgg
    from matplotlib.font_manager import FontProperties

    dpi = 4 * 72
    renderer, font = RendererAgg(1, 1, dpi), FontProperties(family=_FONT, size=size, weight=weight)
    # Hinting at the resolution of the picture moves widths by up to two per cent.
    return lambda text: 1.02 * renderer.get_text_width_height_descent(text, font, ismath=False)[0] / dpi


def _fit(text: str, width: float, size: float, weight: str = "normal") -> str:
    """Cut text with an ellipsis where it is wider than `width` inches."""
    measured = _measure(size, weight)
    if measured(text) <= width:
        return text
    while text and measured(text + "…") > width:
        text = text[:-1]
    return text.rstrip() + "…"


def _wrap(text: str, width: float, size: float, lines: int, weight: str = "normal") -> list[str]:
    """Break text into at most `lines` lines of `width` inches; wider words are broken, the last line is cut."""
    measured = _measure(size, weight)
    words, done = _drawable(text).split(" "), []
    while words and len(done) < lines - 1:
        count = 1
        while count < len(words) and measured(" ".join(words[: count + 1])) <= width:
            count += 1
        line, words = " ".join(words[:count]), words[count:]
        if measured(line) > width:
            end = len(line)
            while end > 1 and measured(line[:end]) > width:
                end -= 1
            line, words = line[:end], [line[end:], *words]
        done.append(line)
    return [*done, _fit(" ".join(words), width, size, weight)] if words else done


class _Block(NamedTuple):
    """Lines of one size, ready to be put on a page."""

    lines: list[str]
    size: float
    weight: str = "normal"
    color: str = _INK

    @property
    def height(self) -> float:
        return len(self.lines) * self.step

    @property
    def step(self) -> float:
        return 1.3 * self.size / 72


def _page(width: float, header: Sequence[str], middle: float, caption: str) -> tuple["Figure", float]:
    """Make a figure with title, subtitle and caption around `middle` inches; also return the top of the middle."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    room = width - 2 * _MARGIN
    title = _Block(_wrap(header[0], room, 12, 2, "bold"), 12, "bold")
    subtitle = _Block(_wrap(header[1], room, 9, 2), 9, color=_GREY)
    below = _Block(_wrap(caption, room, 8, 6) if caption else [], 8, color=_GREY)
    gap = 0.08
    height = 2 * _MARGIN + title.height + gap + subtitle.height + middle + below.height
    figure = Figure(figsize=(width, height), facecolor="white")
    FigureCanvasAgg(figure)
    top = height - _MARGIN
    for block in (title, subtitle):
        _write(figure, _MARGIN, top, block)
        top -= block.height + (gap if block is title else 0)
    _write(figure, _MARGIN, _MARGIN + below.height, below)
    return figure, top


def _write(figure: "Figure", x: float, top: float, block: _Block) -> None:
    """Write lines from `top` inches downwards."""
    width, height = figure.get_size_inches()
    for i, line in enumerate(block.lines):
        figure.text(x / width, (top - i * block.step) / height, line, va="top", fontsize=block.size,
                    fontweight=block.weight, color=block.color, parse_math=False)  # fmt: skip


def _message(header: Sequence[str], message: str, caption: str) -> "Figure":
    """Return a page that says why there is nothing to draw."""
    figure, top = _page(_FOREST_WIDTH, header, 0.7, caption)
    _write(figure, _MARGIN, top - 0.22, _Block([message], 10))
    return figure


def _axes(figure: "Figure", left: float, top: float, width: float, height: float) -> "Axes":
    """Add axes at a place in inches, without frame and ticks."""
    whole_width, whole_height = figure.get_size_inches()
    axes = figure.add_axes(
        (left / whole_width, (top - height) / whole_height, width / whole_width, height / whole_height)
    )
    axes.set_facecolor("none")
    axes.tick_params(length=0, labelsize=8, colors=_GREY, labelleft=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return axes


def _label_rows(axes: "Axes", labels: Sequence[tuple[str, str, str]], row: float) -> None:
    """Write (description, key, note) of each row into axes that count rows from the top and inches from the left."""
    room = _LABELS - 0.15
    axes.set_xlim(0, _LABELS)
    axes.set_xticks([])
    for i, (description, key, note) in enumerate(labels):
        ending = f" · {note}" if note else ""
        # A long key gives way, so that unit and origin stay readable.
        key = _fit(_drawable(key), max(room - _measure(7, "normal")(ending), 0.8), 7)
        blocks = [_Block(_wrap(description, room, 8, 2), 8), _Block([_fit(key + ending, room, 7)], 7, color=_GREY)]
        y = i - sum(block.height for block in blocks) / row / 2
        for block in blocks:
            for line in block.lines:
                axes.text(0.05, y, line, fontsize=block.size, color=block.color, va="top", parse_math=False)
                y += block.step / row


def _bands(axes: "Axes", rows: int) -> None:
    """Shade every other row and count rows from the top."""
    axes.set_ylim(rows - 0.5, -0.5)
    axes.set_yticks([])
    for i in range(0, rows, 2):
        axes.axhspan(i - 0.5, i + 0.5, color=_BAND, linewidth=0, zorder=0)


# ---- intervals ---------------------------------------------------------------------------------------------------


class _Span(NamedTuple):
    """Where one row lies on the ratio axis, as natural logarithms.

    Attributes
    ----------
    quantiles : numpy.ndarray
    left, right : float
        Beyond these the values of the ends are written.
    mark : float or None
        Of the published value.
    shape : {"", "D", "<", ">"}
        Of the mark; an arrow where the value lies beyond it.
    clipped : bool
        Whether the lower end is 0 or below, so that its place is not its value.
    """

    quantiles: np.ndarray
    left: float
    right: float
    mark: float | None
    shape: str
    clipped: bool


def _forest(rows: Sequence[_Row], tree: xr.DataTree, said: str, nothing: str) -> "Figure":
    drawn = [row for row in rows if row.varies and row.values[_MEDIAN] > 0]
    header = [tree.attrs["name"], said]
    with _own_style():
        if not drawn:
            said = "No median is above 0." if any(row.varies for row in rows) else nothing
            return _message(header, said, _forest_caption(rows))
        spans, limits = _spans(drawn, _FOREST_ROOM)
        caption = _forest_caption(rows, far=any(span.shape in ("<", ">") for span in spans))
        return _draw_forest(drawn, spans, limits, header, caption)


def _forest_caption(rows: Sequence[_Row], far: bool = False) -> str:
    parts = []
    constant = [row for row in rows if not row.varies]
    if constant:
        said = (f"{row.key} {row.text(_MEDIAN)}" + (f" ({row.published_text})" if row.published is not None else "")
                for row in constant)  # fmt: skip
        parts.append(f"Without spread: {', '.join(said)}.")
    hidden = [row for row in rows if row.varies and row.values[_MEDIAN] <= 0]
    if hidden:
        said = (f"{row.key} {row.text(_MEDIAN)} ({row.text(_LOW)} to {row.text(_HIGH)})" for row in hidden)
        parts.append(f"Not drawn, because a median of 0 or below has no ratios: {', '.join(said)}.")
    if any(row.varies and row.values[_LOW] <= 0 < row.values[_MEDIAN] for row in rows):
        parts.append("An arrow at an interval's end: it reaches 0 or below, which a ratio axis cannot show.")
    if far:
        parts.append("A triangle: the published value lies farther out than it is drawn.")
    return " ".join(parts)


def _draw_forest(rows: Sequence[_Row], spans: Sequence[_Span], limits: tuple[float, float], header: Sequence[str],
                 caption: str) -> "Figure":  # fmt: skip
    legend, foot = 0.42, 0.5
    height = len(rows) * _FOREST_ROW
    figure, top = _page(_FOREST_WIDTH, header, legend + height + foot, caption)
    labels = _axes(figure, _MARGIN, top - legend, _LABELS, height)
    forest = _axes(figure, _MARGIN + _LABELS, top - legend, _FOREST_ROOM, height)
    for axes in (labels, forest):
        _bands(axes, len(rows))
    _label_rows(labels, [(row.description, row.key, row.note) for row in rows], _FOREST_ROW)
    _arviz_forest(figure, labels, forest, [span.quantiles for span in spans], np.arange(len(spans)))
    _ratio_axis(forest, limits, _FOREST_ROOM)
    for i, (row, span) in enumerate(zip(rows, spans, strict=True)):
        _row_texts(forest, i, row, span, limits)
    _forest_legend(figure, top, any(row.published is not None for row in rows))
    return figure


def _arviz_forest(
    figure: "Figure",
    labels: "Axes",
    forest: "Axes",
    logs: Sequence[np.ndarray],
    y: Sequence[float] | np.ndarray,
    color: str = _BLUE,
    thickness: float = 5.5,
) -> None:
    """Draw lines and dots with ArviZ, on axes that exist already, from five logarithms for each place `y`.

    The quantiles are handed over instead of draws: they are those of all draws, also of those that were not kept, and
    ArviZ would take longer over 65,536 draws than everything else here together.
    """
    import arviz as az

    ratios = xr.DataArray(np.exp(logs), dims=("row", "quantile"))
    ratios = ratios.assign_coords(row=np.arange(len(logs)))

    def interval(low: int, high: int) -> xr.Dataset:
        ends = ratios.isel(quantile=[low, high]).rename(quantile="ci_bound")
        return ends.assign_coords(ci_bound=["lower", "upper"]).to_dataset(name="ratio")

    median = ratios.isel(quantile=_MEDIAN).to_dataset(name="ratio")
    draws = median.expand_dims(chain=1, draw=1)
    viz = xr.Dataset(
        {
            "figure": ((), np.array(figure, dtype=object)),
            "plot": (("column",), np.array([labels, forest], dtype=object)),
        },
        coords={"column": ["labels", "forest"]},
    )
    # PlotCollection.grid would make the figure with pyplot, which keeps it and may open a window.
    aes = {"y": ["row"], "overlay": ["row"]}
    collection = az.PlotCollection(
        draws, xr.DataTree(viz), aes=aes, backend="matplotlib", y=np.asarray(y), overlay=[None] * len(logs)
    )
    az.plot_forest(
        draws,
        sample_dims=["chain", "draw"],
        combined=True,
        labels=[],
        plot_collection=collection,
        point_estimate="median",
        ci_kind="eti",
        ci_probs=(0.5, 0.9),
        stats={"trunk": interval(1, 3), "twig": interval(_LOW, _HIGH), "point_estimate": median},
        visuals={
            "twig": {"color": color, "width": 1.3, "solid_capstyle": "butt"},
            "trunk": {"color": color, "width": thickness, "solid_capstyle": "butt"},
            "point_estimate": {"facecolor": "white", "edgecolor": color, "size": 20, "width": 1.4, "zorder": 4},
            "ticklabels": False,
            "remove_axis": False,
        },
    )


def _spans(rows: Sequence[_Row], room: float) -> tuple[list[_Span], tuple[float, float]]:
    """Place rows on the log axis, and find limits between which their texts fit as well.

    The room that a text takes depends on the limits and the limits on the texts: a few rounds settle it.
    """
    ratios = [row.values / row.values[_MEDIAN] for row in rows]
    positive = np.concatenate([ratio[ratio > 0] for ratio in ratios])
    floor = positive.min() * 0.8
    logs = [np.log(np.where(ratio > 0, ratio, floor)) for ratio in ratios]
    marks = [_mark(row, max(max(abs(log[_LOW]), log[_HIGH]) for log in logs)) for row in rows]
    widths = [[_measure(8, "normal")(row.text(i)) + 0.2 for i in (_LOW, _HIGH)] for row in rows]
    known = [mark for mark in marks if mark is not None]
    low, high = -1e-6, 1e-6
    spans: list[_Span] = []
    for _ in range(60):
        per_inch = (high - low) / room
        spans = [
            _span(row, log, mark, width, per_inch)
            for row, log, mark, width in zip(rows, logs, marks, widths, strict=True)
        ]
        edge = 0.12 * per_inch  # half a mark and some air
        low = min(span.left - width[0] * per_inch for span, width in zip(spans, widths, strict=True))
        high = max(span.right + width[1] * per_inch for span, width in zip(spans, widths, strict=True))
        low, high = min([low, *(mark - edge for mark in known)]), max([high, *(mark + edge for mark in known)])
    return spans, (low, high)


def _log_published(row: _Row) -> float:
    ratio = (row.published or 0.0) / row.values[_MEDIAN]
    return math.log(ratio) if ratio > 0 else -math.inf


def _mark(row: _Row, reach: float) -> float | None:
    """Return the log ratio of a published value; one that would squeeze all intervals is put just outside them."""
    if row.published is None:
        return None
    log = _log_published(row)
    return log if abs(log) <= max(2 * reach, math.log(2)) else math.copysign(1.3 * reach, log)


def _span(row: _Row, log: np.ndarray, mark: float | None, widths: Sequence[float], per_inch: float) -> _Span:
    left, right = log[_LOW], log[_HIGH]
    half = 0.07 * per_inch  # of the mark
    if mark is not None:
        # A mark outside the interval would lie on the text of that end: the text goes beyond the mark.
        if left - (widths[0] * per_inch + half) < mark < left + half:
            left = min(left, mark - half)
        if right - half < mark < right + widths[1] * per_inch + half:
            right = max(right, mark + half)
    return _Span(log, left, right, mark, _shape(row, mark), bool(row.values[_LOW] <= 0))


def _shape(row: _Row, mark: float | None) -> str:
    if mark is None or row.published is None:
        return ""
    if mark == _log_published(row):
        return "D"
    return ">" if mark > 0 else "<"


def _ratio_axis(axes: "Axes", limits: tuple[float, float], room: float) -> None:
    from matplotlib.ticker import NullLocator

    axes.set_xscale("log")
    axes.set_xlim(*np.exp(limits))
    ticks = _ratio_ticks(limits, room)
    axes.set_xticks(ticks, [_ratio_label(tick) for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(axis="x", color=_LINE, linewidth=0.7)
    axes.axvline(1, color=_GREY, linewidth=0.8, zorder=1)
    axes.set_xlabel("ratio to the row's median (no unit, log scale)", fontsize=8, color=_GREY)
    axes.set_axisbelow(True)


def _ratio_ticks(limits: tuple[float, float], room: float) -> list[float]:
    """Choose the finest set of simple factors whose labels do not touch."""
    low, high = limits
    reach = math.exp(max(-low, high))
    steps = [[1 + k * step for k in range(1, 60)] for step in (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)]
    powers = [[base**k for k in range(1, 2 + int(math.log(reach, base)))] for base in (2, 4, 10, 100, 1e3, 1e6)]
    for factors in (*steps, *powers):
        # A set that ends before the axis does would leave a part of it without ticks.
        if factors[-1] < reach and factors in steps:
            continue
        ticks = sorted({1.0, *factors, *(1 / factor for factor in factors)})
        inside = [tick for tick in ticks if low <= math.log(tick) <= high]
        gaps = np.diff(np.log(inside)) * room / (high - low)
        if len(inside) < 2 or gaps.min() >= 0.62:
            return inside
    return [1.0]


def _ratio_label(tick: float) -> str:
    if math.isclose(tick, 1):
        return "median"
    factor = max(tick, 1 / tick)
    written = formatting.count(factor) if factor > 999 else f"{factor:.4g}"
    return f"×{written}" if tick > 1 else f"÷{written}"


def _row_texts(axes: "Axes", y: int, row: _Row, span: _Span, limits: tuple[float, float]) -> None:
    """Write the values at the ends, the median above and the published value below the line."""
    # The paper behind a text keeps grid lines from striking it through.
    paper = {"facecolor": _BAND if y % 2 == 0 else "white", "edgecolor": "none", "pad": 1}

    def write(log: float, text: str, offset: tuple[float, float], align: str, **style: Any) -> None:
        axes.annotate(text, (math.exp(log), y), offset, textcoords="offset points", ha=align, va="center",
                      parse_math=False, zorder=1.5, bbox=paper, **({"fontsize": 8, "color": _INK} | style))  # fmt: skip

    write(span.left, row.text(_LOW), (-8 if span.clipped else -5, 0), "right")
    write(span.right, row.text(_HIGH), (5, 0), "left")
    write(0.0, row.text(_MEDIAN), (0, 12), "center", fontweight="bold")
    if span.clipped:
        axes.plot(math.exp(span.quantiles[_LOW]), y, marker="<", markersize=5, color=_BLUE)
    if span.mark is None:
        return
    axes.plot(math.exp(span.mark), y, marker=span.shape, markersize=6.5, color=_VERMILLION, markeredgecolor="white",
              markeredgewidth=0.8, zorder=5, gid=f"published:{row.key}")  # fmt: skip
    half = (_measure(7.5, "normal")(row.published_text) / 2 + 0.04) * (limits[1] - limits[0]) / _FOREST_ROOM
    centre = float(np.clip(span.mark, limits[0] + half, limits[1] - half))
    write(centre, row.published_text, (0, -12), "center", fontsize=7.5, color=_PUBLISHED)


def _forest_legend(figure: "Figure", top: float, published: bool) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], linestyle="none", marker="o", markersize=4.5, markerfacecolor="white", markeredgecolor=_BLUE,
               markeredgewidth=1.4, label="median"),
        Line2D([], [], color=_BLUE, linewidth=5.5, solid_capstyle="butt", label="50% interval"),
        Line2D([], [], color=_BLUE, linewidth=1.3, solid_capstyle="butt", label="90% interval"),
    ]  # fmt: skip
    if published:
        handles.append(Line2D([], [], linestyle="none", marker="D", markersize=6.5, color=_VERMILLION,
                              markeredgecolor="white", label="published value"))  # fmt: skip
    _legend(figure, handles, _MARGIN + _LABELS, top)


def _legend(figure: "Figure", handles: Sequence[Any], left: float, top: float) -> None:
    width, height = figure.get_size_inches()
    figure.legend(handles=handles, loc="upper left", bbox_to_anchor=(left / width, (top - 0.12) / height),
                  ncols=len(handles), frameon=False, fontsize=8, labelcolor=_GREY, borderpad=0, borderaxespad=0,
                  handlelength=1.8, columnspacing=1.8)  # fmt: skip


# ---- sensitivity -------------------------------------------------------------------------------------------------


def _draw_panels(tree: xr.DataTree, found: xr.Dataset, panels: Sequence[str], shown: Sequence[str],
                 header: Sequence[str], caption: str) -> "Figure":  # fmt: skip
    width = (_PANELS_WIDTH - 2 * _MARGIN - _LABELS - (len(panels) - 1) * _PANEL_GAP) / len(panels)
    titles = [_panel_title(tree, output, width) for output in panels]
    above = max(sum(block.height for block in title) for title in titles)
    legend, foot, height = 0.46, 0.5, len(shown) * _PANELS_ROW
    figure, top = _page(_PANELS_WIDTH, header, legend + above + 0.06 + height + foot, caption)
    _panels_legend(figure, top)
    top -= legend
    labels = _axes(figure, _MARGIN, top - above - 0.06, _LABELS, height)
    _bands(labels, len(shown))
    _label_rows(labels, [_block_label(tree, name) for name in shown], _PANELS_ROW)
    for i, (output, title) in enumerate(zip(panels, titles, strict=True)):
        left = _MARGIN + _LABELS + i * (width + _PANEL_GAP)
        # Titles end on one line, just above their panels.
        y = top - above + sum(block.height for block in title)
        for block in title:
            _write(figure, left, y, block)
            y -= block.height
        axes = _axes(figure, left, top - above - 0.06, width, height)
        _bands(axes, len(shown))
        _panel(axes, found.sel(output=output, input=list(shown)))
    axis_title = "share of the output's variance (no unit)"
    first = _MARGIN + _LABELS
    x = first + (_PANELS_WIDTH - _MARGIN - first - _measure(8, "normal")(axis_title)) / 2
    _write(figure, x, top - above - 0.06 - height - 0.22, _Block([axis_title], 8, color=_GREY))
    return figure


def _panel_title(tree: xr.DataTree, output: str, width: float) -> list[_Block]:
    description = tree["prior_predictive"][output].attrs["long_name"]
    return [
        _Block(_wrap(description, width, 8, 4, "bold"), 8, "bold"),
        _Block([_fit(output, width, 7)], 7, color=_GREY),
    ]


def _block_label(tree: xr.DataTree, name: str) -> tuple[str, str, str]:
    if name in tree["prior"]:
        attrs = tree["prior"][name].attrs
        return _description(attrs, name), name, attrs["origin"]
    return name.replace("+", " + "), "correlated inputs", "taken together"


def _panel(axes: "Axes", found: xr.Dataset) -> None:
    """Draw the indices of one output."""
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "", "0.5", "", "1"])
    axes.grid(axis="x", color=_LINE, linewidth=0.7)
    axes.set_axisbelow(True)
    status = str(found["status"].item())
    if not np.isfinite(found["ST"].values).any():
        note = "does not vary" if status == "constant" else "no index:\nnot finite"
        axes.text(0.5, 0.5, note, transform=axes.transAxes, ha="center", va="center", fontsize=8, color=_GREY,
                  backgroundcolor="white")  # fmt: skip
        return
    y = np.arange(found.sizes["input"])
    # The whisker of the total index lies on the light strip above the dark bar.
    for index, thickness, color, shift in (("ST", 0.64, _TINT, 0.23), ("S1", 0.26, _BLUE, 0.0)):
        # Estimates may lie a Monte Carlo error outside the only values that mean something.
        value, low, high = (np.clip(found[index + end].values, 0, 1) for end in ("", "_lower", "_upper"))
        some = value >= _NEGLIGIBLE
        axes.barh(y[some], value[some], thickness, color=color, edgecolor=_BLUE, linewidth=0.6, zorder=2, clip_on=False,
                  label=index)  # fmt: skip
        known = np.isfinite(low) & (high >= _NEGLIGIBLE)
        around = np.maximum([value - low, high - value], 0)[:, known]
        axes.errorbar(value[known], y[known] - shift, xerr=around, fmt="none", ecolor=_INK, elinewidth=1, capsize=1.6,
                      capthick=1, zorder=3).lines[2][0].set_clip_on(False)  # fmt: skip


def _panels_legend(figure: "Figure", top: float) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor=_BLUE, edgecolor=_BLUE, linewidth=0.6, label="first-order: the input alone"),
        Patch(facecolor=_TINT, edgecolor=_BLUE, linewidth=0.6, label="total: with its interactions"),
        Line2D([], [], color=_INK, linewidth=1.1, label="90% interval of the Monte Carlo error"),
    ]
    _legend(figure, handles, _MARGIN + _LABELS, top)
