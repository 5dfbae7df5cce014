r"""The LaTeX of the equations as plain text and as MathML, without a TeX.

Only what the docstrings of the equations use is understood: ``\frac``, ``\sqrt``, ``\bar``, ``\mathrm``, sub- and
superscripts, Greek letters, spaces and a few signs. Anything else is an error, so that an equation is never shown
wrong.
"""

import html
import re
import unicodedata
from collections.abc import Iterator
from typing import Any

_TOKEN = re.compile(r"\\[a-zA-Z]+|\\[,;! ]|[0-9]+(?:\.[0-9]+)?|[^\s]")
_SIGNS = {r"\times": "×", r"\cdot": "·", r"\ell": "ℓ", r"\varphi": "φ", r"\phi": "ϕ", r"\approx": "≈",
          r"\sum": "∑", r"\prod": "∏", r"\min": "min", r"\ne": "≠"}  # fmt: skip
# Sizes and positions, which text does not have.
_SILENT = {r"\left", r"\right", r"\!"}
_SPACES = {r"\,", r"\;", r"\ ", r"\quad"}
_SUPERSCRIPT = str.maketrans("0123456789-+", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺")

# A node is ("text", string), ("word", string), ("space",), ("row", nodes), ("frac", over, under), ("root", inside),
# ("sub"|"sup", base, index) or ("subsup", base, below, above).
Node = tuple[Any, ...]


class NotationError(ValueError):
    """A command that is not understood."""


def plain(latex: str) -> str:
    r"""Return LaTeX as text, e.g. ``10⁻⁶ h (W_tdp φ + W_host)``."""
    return re.sub(r"\s+", " ", _plain(_parse(latex))).strip()


def mathml(latex: str, display: str = "block") -> str:
    """Return LaTeX as a MathML element, which browsers typeset and screen readers read."""
    return f'<math display="{display}"><mrow>{_mathml(_parse(latex))}</mrow></math>'


# ---- reading -----------------------------------------------------------------------------------------------------


def _parse(latex: str) -> Node:
    tokens = _TOKEN.findall(latex)
    nodes = list(_nodes(iter(tokens)))
    return ("row", nodes)


def _nodes(tokens: Iterator[str]) -> Iterator[Node]:
    """Yield nodes up to the closing brace; sub- and superscripts bind to the node before them."""
    held: Node | None = None
    for token in tokens:
        if token == "}":
            break
        if token in _SILENT:
            continue
        if token in "_^":
            held = _scripted(held or ("text", ""), "sub" if token == "_" else "sup", _one(tokens))
            continue
        if held is not None:
            yield held
        held = _node(token, tokens)
    if held is not None:
        yield held


def _one(tokens: Iterator[str]) -> Node:
    return _node(next(tokens, ""), tokens)


def _node(token: str, tokens: Iterator[str]) -> Node:
    if token == "{":
        return ("row", list(_nodes(tokens)))
    if token in _SPACES:
        return ("space",)
    if token == r"\frac":
        return ("frac", _one(tokens), _one(tokens))
    if token == r"\sqrt":
        return ("root", _one(tokens))
    if token == r"\bar":
        return ("text", f"{_plain(_one(tokens))}\N{COMBINING MACRON}")
    if token == r"\mathrm":
        return ("word", _plain(_one(tokens)).replace(" ", ""))
    if token in _SIGNS:
        return ("text", _SIGNS[token])
    if token.startswith("\\"):
        return ("text", _greek(token[1:]))
    return ("text", token)


def _greek(name: str) -> str:
    case = "CAPITAL" if name[0].isupper() else "SMALL"
    try:
        return unicodedata.lookup(f"GREEK {case} LETTER {'LAMDA' if name.lower() == 'lambda' else name.upper()}")
    except KeyError:
        raise NotationError(rf"\{name} is not understood") from None


def _scripted(base: Node, kind: str, index: Node) -> Node:
    if base[0] == "sub" and kind == "sup":
        return ("subsup", base[1], base[2], index)
    if base[0] == "sup" and kind == "sub":
        return ("subsup", base[1], index, base[2])
    return (kind, base, index)


# ---- writing -----------------------------------------------------------------------------------------------------


def _plain(node: Node) -> str:
    match node:
        case ("text", text):
            return f" {text} " if text in "=+-×·≈" else ", " if text == "," else text
        case ("word", text):
            return str(text)
        case ("space",):
            return " "
        case ("row", nodes):
            return _plain_row(nodes)
        case ("frac", over, under):
            return f"{_grouped(over)} / {_grouped(under)}"
        case ("root", inside):
            return f"√({_plain(inside).strip()})"
        case ("sub", base, index):
            return f"{_plain(base)}_{_index(index)}"
        case ("sup", base, index):
            return f"{_plain(base)}{_power(index)}"
        case (_, base, below, above):
            return f"{_plain(base)}_{_index(below)}{_power(above)}"
    raise NotationError(f"{node!r} is not understood")


def _plain_row(nodes: list[Node]) -> str:
    """Join the nodes; letters and numbers that stand side by side are factors, and get a space."""
    parts: list[str] = []
    for i, node in enumerate(nodes):
        before = nodes[i - 1] if i else None
        # A bracket after φ holds its argument; after any other letter it is a factor.
        opens = node == ("text", "(") and before != ("text", "φ")
        sign = node[0] == "text" and node[1] in "=+-×·≈,()[]/" and not opens
        factor = before is not None and not sign and not (before[0] == "text" and before[1] in "([/,")
        parts.append((" " if factor else "") + _unary(node, before))
    return "".join(parts)


def _unary(node: Node, before: Node | None) -> str:
    """Return a node as text; a minus that follows nothing or an opening bracket is a sign."""
    if node == ("text", "-") and (before is None or before == ("text", "(")):
        return "-"
    return _plain(node)


def _grouped(node: Node) -> str:
    text = re.sub(r"\s+", " ", _plain(node)).strip()
    return text if re.fullmatch(r"[^\s+/-]+|\([^()]*\)", text) else f"({text})"


def _index(node: Node) -> str:
    text = _plain(node).replace(" ", "")
    return text if re.fullmatch(r"\w+", text) else f"({text})"


def _power(node: Node) -> str:
    text = _plain(node).replace(" ", "")
    if text == "*":
        return text
    raised = text.translate(_SUPERSCRIPT)
    return raised if re.fullmatch(r"[-+0-9]+", text) else f"^({text})"


def _mathml(node: Node) -> str:
    match node:
        case ("text", text):
            tag = "mn" if text[0].isdigit() else "mi" if text[:1].isalpha() else "mo"
            return f"<{tag}>{html.escape(text.replace('-', '−'))}</{tag}>" if text else "<mrow></mrow>"
        case ("word", text):
            return f'<mi mathvariant="normal">{html.escape(text)}</mi>' if len(text) == 1 else f"<mi>{text}</mi>"
        case ("space",):
            return '<mspace width="0.17em"></mspace>'
        case ("row", nodes):
            return f"<mrow>{''.join(map(_mathml, nodes))}</mrow>"
        case ("frac", over, under):
            return f"<mfrac>{_mathml(over)}{_mathml(under)}</mfrac>"
        case ("root", inside):
            return f"<msqrt>{_mathml(inside)}</msqrt>"
        case ("sub", base, index):
            return f"<msub>{_mathml(base)}{_mathml(index)}</msub>"
        case ("sup", base, index):
            return f"<msup>{_mathml(base)}{_mathml(index)}</msup>"
        case (_, base, below, above):
            return f"<msubsup>{_mathml(base)}{_mathml(below)}{_mathml(above)}</msubsup>"
    raise NotationError(f"{node!r} is not understood")
