"""Pages that pictures are drawn on: style, colours, text that is measured before it is drawn, and files.

Every picture is a `matplotlib.figure.Figure` that pyplot does not know of, drawn under matplotlib's default style:
the user's style, backend and open figures neither change nor matter. Positions are in inches and every text is measured
before the page is laid out, so that nothing overlaps or is cut whatever the names and numbers are.
"""

import contextlib
import functools
import html
import io
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, and a tint of its sky blue that stays apart from the blue in grey.
BLUE, TINT, VERMILLION, INK, GREY, LINE, BAND = (
    "#0072B2", "#B9DDF3", "#D55E00", "#1A1A1A", "#595959", "#D9D9D9", "#F5F5F5")  # fmt: skip
PUBLISHED = "#A34700"
# Colours of pictures within a page, by what they stand for there.
_ROLES = {"#FFFFFF": "paper", INK: "ink", GREY: "muted", LINE: "line", BAND: "band", BLUE: "blue", TINT: "tint",
          VERMILLION: "mark", PUBLISHED: "mark-ink"}  # fmt: skip
_FONT = "DejaVu Sans"  # comes with matplotlib, so that pictures look alike everywhere

# Inches.
MARGIN = 0.25
LABELS = 3.5
_MESSAGE_WIDTH = 10.0
DPI = 120


def save(figure: "Figure", path: Path, *, dpi: float = DPI) -> None:
    """Write a picture as PNG with bytes that depend on the picture alone.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
    path : Path
        Written in place; wrap the call in `gpustack_mc.storage.replacing`.
    dpi : float
        Dots per inch.
    """
    with own_style():
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
    with own_style():
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


@contextlib.contextmanager
def own_style() -> Iterator[None]:
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


def drawable(text: str) -> str:
    """Return text on one line without control characters, and with a box for what the font lacks."""
    kept = (c if c.isspace() or unicodedata.category(c)[0] != "C" else "" for c in str(text))
    return "".join(c if ord(c) in _glyphs() else "□" for c in " ".join("".join(kept).split()))


@functools.cache
def measure(size: float, weight: str) -> Callable[[str], float]:
    """Return a function from text to its width in inches."""
    from matplotlib.backends.backend_agg import RendererAgg
    from matplotlib.font_manager import FontProperties

    dpi = 4 * 72
    renderer, font = RendererAgg(1, 1, dpi), FontProperties(family=_FONT, size=size, weight=weight)
    # Hinting at the resolution of the picture moves widths by up to two per cent.
    return lambda text: 1.02 * renderer.get_text_width_height_descent(text, font, ismath=False)[0] / dpi


def fit(text: str, width: float, size: float, weight: str = "normal") -> str:
    """Cut text with an ellipsis where it is wider than `width` inches."""
    measured = measure(size, weight)
    if measured(text) <= width:
        return text
    while text and measured(text + "…") > width:
        text = text[:-1]
    return text.rstrip() + "…"


def wrap(text: str, width: float, size: float, lines: int, weight: str = "normal") -> list[str]:
    """Break text into at most `lines` lines of `width` inches; wider words are broken, the last line is cut."""
    measured = measure(size, weight)
    words = drawable(text).split(" ")
    done: list[str] = []
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
    return [*done, fit(" ".join(words), width, size, weight)] if words else done


class Block(NamedTuple):
    """Lines of one size, ready to be put on a page."""

    lines: list[str]
    size: float
    weight: str = "normal"
    color: str = INK

    @property
    def height(self) -> float:
        """Inches."""
        return len(self.lines) * self.step

    @property
    def step(self) -> float:
        """Inches from line to line."""
        return 1.3 * self.size / 72


def make_page(
    width: float, header: Sequence[str], middle: float, caption: str, margin: float = MARGIN
) -> tuple["Figure", float]:
    """Make a figure with title, subtitle and caption around `middle` inches; also return the top of the middle."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    room = width - 2 * margin
    title = Block(wrap(header[0], room, 12, 2, "bold"), 12, "bold")
    subtitle = Block(wrap(header[1], room, 9, 2), 9, color=GREY)
    below = Block(wrap(caption, room, 8, 6 if width > 6 else 14) if caption else [], 8, color=GREY)
    gap = 0.08
    height = 2 * margin + title.height + gap + subtitle.height + middle + below.height
    figure = Figure(figsize=(width, height), facecolor="white")
    FigureCanvasAgg(figure)
    top = height - margin
    for block in (title, subtitle):
        write(figure, margin, top, block)
        top -= block.height + (gap if block is title else 0)
    write(figure, margin, margin + below.height, below)
    return figure, top


def write(figure: "Figure", x: float, top: float, block: Block) -> None:
    """Write lines from `top` inches downwards."""
    width, height = figure.get_size_inches()
    for i, line in enumerate(block.lines):
        figure.text(x / width, (top - i * block.step) / height, line, va="top", fontsize=block.size,
                    fontweight=block.weight, color=block.color, parse_math=False)  # fmt: skip


def message(
    header: Sequence[str], message: str, caption: str, width: float = _MESSAGE_WIDTH, margin: float = MARGIN
) -> "Figure":
    """Return a page that says why there is nothing to draw."""
    figure, top = make_page(width, header, 0.7, caption, margin)
    write(figure, margin, top - 0.22, Block(wrap(message, width - 2 * margin, 10, 2), 10))
    return figure


def place_axes(figure: "Figure", left: float, top: float, width: float, height: float) -> "Axes":
    """Add axes at a place in inches, without frame and ticks."""
    whole_width, whole_height = figure.get_size_inches()
    axes = figure.add_axes(
        (left / whole_width, (top - height) / whole_height, width / whole_width, height / whole_height)
    )
    axes.set_facecolor("none")
    axes.tick_params(length=0, labelsize=8, colors=GREY, labelleft=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return axes


def label_rows(axes: "Axes", labels: Sequence[tuple[str, str, str]], row: float) -> None:
    """Write (description, key, note) of each row into axes that count rows from the top and inches from the left."""
    room = LABELS - 0.15
    axes.set_xlim(0, LABELS)
    axes.set_xticks([])
    for i, (description, key, note) in enumerate(labels):
        ending = f" · {note}" if note else ""
        # A long key gives way, so that unit and origin stay readable.
        key = fit(drawable(key), max(room - measure(7, "normal")(ending), 0.8), 7)
        blocks = [Block(wrap(description, room, 8, 2), 8), Block([fit(key + ending, room, 7)], 7, color=GREY)]
        y = i - sum(block.height for block in blocks) / row / 2
        for block in blocks:
            for line in block.lines:
                axes.text(0.05, y, line, fontsize=block.size, color=block.color, va="top", parse_math=False)
                y += block.step / row


def label_above(axes: "Axes", labels: Sequence[str], row: float, room: float) -> None:
    """Write the label of each row at its top, on axes that lie over those with `bands`; `room` inches wide."""
    axes.set(xlim=(0, room), xticks=[], ylim=(len(labels) - 0.5, -0.5), yticks=[], zorder=2)
    for i, label in enumerate(labels):
        y = i - 0.5 + 0.04 / row
        paper = {"facecolor": "white" if i % 2 else BAND, "edgecolor": "none", "pad": 1}
        for line in (block := Block(wrap(label, room - 0.1, 8, 2), 8)).lines:
            axes.text(0.05, y, line, fontsize=block.size, color=block.color, va="top", parse_math=False, bbox=paper)
            y += block.step / row


def bands(axes: "Axes", rows: int) -> None:
    """Shade every other row and count rows from the top."""
    axes.set_ylim(rows - 0.5, -0.5)
    axes.set_yticks([])
    for i in range(0, rows, 2):
        axes.axhspan(i - 0.5, i + 0.5, color=BAND, linewidth=0, zorder=0)


def legend(figure: "Figure", handles: Sequence[Any], left: float, top: float, columns: int = 0) -> None:
    """Put a legend below `top` inches, in one line unless a number of columns is given."""
    width, height = figure.get_size_inches()
    figure.legend(handles=handles, loc="upper left", bbox_to_anchor=(left / width, (top - 0.12) / height),
                  ncols=columns or len(handles), frameon=False, fontsize=8, labelcolor=GREY, borderpad=0,
                  borderaxespad=0, handlelength=1.8, columnspacing=1.8)  # fmt: skip
