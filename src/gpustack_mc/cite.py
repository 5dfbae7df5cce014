"""A result as text to paste: a paragraph with intervals, scope and basis, and BibTeX of what it rests on."""

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from gpustack_mc import formatting, summarizing
from gpustack_mc.arrays import Result

# As in CITATION.cff, which is not in the wheel.
TITLE = "gpustack-mc: credible intervals for the time, energy, CO2 and cost of training an AI model"
AUTHOR = "The gpustack-mc developers"
# An input is a main source when it brings this much of the variance of time, energy, emissions or cost.
_MAIN = 0.05
# More inputs than this are counted and not listed.
_LISTED = 8
_JUDGED = ("training_days", "energy_mwh", "co2e_t")
_ANNEX_XI = (
    "eu-ai-act",
    "Regulation (EU) 2024/1689 (Artificial Intelligence Act), Annex XI",
    "https://eur-lex.europa.eu/eli/reg/2024/1689/oj",
    "Section 1, point 2, letters (d) and (e)",
)


class Citation(NamedTuple):
    """What `cite` returns.

    Attributes
    ----------
    style : str
        One of `STYLES`.
    text : str
        The paragraph.
    bibtex : str
        Entries for the tool and for the main sources.
    """

    style: str
    text: str
    bibtex: str


def cite(tree: Result, style: str = "model-card", found: dict[str, Any] | None = None) -> Citation:
    """Return the paragraph of a style and the BibTeX of a result.

    Parameters
    ----------
    tree : xarray.DataTree
    style : {"model-card", "impact-statement", "energy-disclosure"}
        ``energy-disclosure`` follows Annex XI, section 1, point 2 (d) and (e) of the EU AI Act.
    found : dict, optional
        The summary of the result, when it is at hand.
    """
    found = found or summarizing.summarise(tree)
    text = STYLES[style](found, tree.attrs["ownership"])
    entries = [_tool(found), *_sources(found, tree.attrs["ownership"])]
    if style == "energy-disclosure":
        entries.append(_entry(*_ANNEX_XI))
    return Citation(style, text, "\n\n".join(entries))


# ---- paragraphs --------------------------------------------------------------------------------------------------


def _model_card(found: dict[str, Any], ownership: str) -> str:
    v = _said(found)
    return (
        f"Training {found['name']} ({_what(found)}) is estimated to take {v['accelerator_hours']} accelerator-hours "
        f"over {v['training_days']}, {v['energy_mwh']} of electricity at the facility, and to emit "
        f"{v['co2e_operational_t']} CO2e from electricity ({_basis(found)}) and {v['co2e_embodied_t']} CO2e as its "
        f"share of making the hardware. {_money(found, ownership)} {_scope()} {_method(found)}"
    )


def _impact_statement(found: dict[str, Any], ownership: str) -> str:
    v = _said(found)
    return (
        f"We estimate that training {found['name']} ({_what(found)}) uses {v['energy_mwh']} of electricity and emits "
        f"{v['co2e_t']} CO2e, operational ({_basis(found)}) and embodied. {_largest(found)}"
        f"With experiments and failed runs the programme is estimated at {v['programme_energy_mwh']} and "
        f"{v['programme_co2e_t']} CO2e. {_scope()} {_method(found)}"
    )


def _energy_disclosure(found: dict[str, Any], ownership: str) -> str:
    v = _said(found)
    return (
        f"Computational resources and training time (Annex XI, section 1, point 2(d)): {found['name']} "
        f"({_what(found)}); {v['training_flop']}, counting 6 per active parameter and token; "
        f"{v['accelerator_hours']} accelerator-hours; training time {v['training_days']}. "
        f"Energy consumption (point 2(e)): {v['energy_mwh']} for training, estimated from the computational resources "
        f"and not metered. It covers accelerators, hosts, network and the overhead of the facility (PUE "
        f"{summarizing.with_interval(found['inputs']['pue'])}); use of the model is not part of it. "
        f"{_largest(found, 'energy_mwh')}With experiments and failed runs the energy is estimated at "
        f"{v['programme_energy_mwh']}. {_scope()} {_method(found)}"
    )


STYLES: dict[str, Callable[[dict[str, Any], str], str]] = {
    "model-card": _model_card,
    "impact-statement": _impact_statement,
    "energy-disclosure": _energy_disclosure,
}


def _said(found: dict[str, Any]) -> dict[str, str]:
    said = {name: summarizing.with_interval(entry) for name, entry in found["outputs"].items()}
    # "7.0 M h (4.1 – 13) accelerator-hours" says the unit twice.
    said["accelerator_hours"] = said["accelerator_hours"].replace(" M h", " million").replace(" h", "")
    return said


def _what(found: dict[str, Any]) -> str:
    inputs = found["inputs"]
    tokens = sum(entry["median"] for key, entry in inputs.items() if key.partition("@")[0] == "tokens")
    chip = inputs["peak_flop_per_s"]
    name = chip["prior"].partition(",")[0] if chip["origin"] == "cited" else "accelerators"
    size, count = (formatting.count(inputs[key]["median"]) for key in ("params", "accelerator_count"))
    active = f", {formatting.count(inputs['active_params']['median'])} active" if "active_params" in inputs else ""
    return f"{size} parameters{active}, {formatting.count(tokens)} tokens, {count} {name}"


def _basis(found: dict[str, Any]) -> str:
    basis = found["basis"]
    return f"{basis['carbon_accounting']}, {basis['carbon_basis']} emission factors"


def _money(found: dict[str, Any], ownership: str) -> str:
    owned, rented = (
        summarizing.with_interval(found["outputs"][name]) for name in ("cost_owned_usd", "cost_rented_usd")
    )
    said = {"own": f"{owned} on owned hardware", "rent": f"{rented} rented"}
    return f"The cost is estimated at {said.get(ownership, f'{owned} on owned hardware or {rented} rented')}."


def _largest(found: dict[str, Any], output: str = "co2e_t") -> str:
    ranked = summarizing.ranking(found, output)
    if not ranked:
        return ""
    name, index = ranked[0]
    return f"The largest part of the uncertainty comes from {name.replace('+', ' with ')} ({index['ST']:.0%}). "


def _scope() -> str:
    return (
        "Scope: the final training run, accelerator time included that did not advance it; "
        f"not included: {'; '.join(summarizing.NOT_INCLUDED)}."
    )


def _method(found: dict[str, Any]) -> str:
    entered = [key for key, entry in found["inputs"].items() if entry["origin"] == "entered"]
    stated = ", ".join(entered) if len(entered) <= _LISTED else f"{len(entered)} inputs"
    others = sum(entry["origin"] in ("fitted", "assumed") for entry in found["inputs"].values())
    fitted = f"; {others} other inputs from priors fitted to public data" if others else ""
    if all(entry["sd"] == 0 for entry in found["outputs"].values()):
        form = "Figures are point values: every input is fixed."
    else:
        kind = {"equal-tailed": "equal-tailed credible", "hdi": "highest-density"}[found["interval"]]
        form = f"Figures are medians with 90% {kind} intervals in brackets."
    return (
        f"{form} Computed with gpustack-mc {found['versions'].get('gpustack-mc', '')} from a scenario that states "
        f"{stated}{fitted} (seed {found['seed']}, {found['samples']:,} samples, scenario SHA-256 "
        f"{found['scenario_sha256'][:12]})."
    )


# ---- BibTeX ------------------------------------------------------------------------------------------------------


def _tool(found: dict[str, Any]) -> str:
    version = found["versions"].get("gpustack-mc", "")
    return "\n".join(
        [
            "@software{gpustack-mc,",
            f"  author = {{{{{AUTHOR}}}}},",
            f"  title = {{{TITLE}}},",
            f"  version = {{{_escaped(version)}}}",
            "}",
        ]
    )


def _sources(found: dict[str, Any], ownership: str) -> list[str]:
    """Return an entry for each source of the inputs that bring most of the variance, with what it was used for."""
    outputs = (*_JUDGED, summarizing.main_cost(ownership))
    main: dict[str, float] = {}
    for output in outputs:
        for block, index in summarizing.ranking(found, output):
            for name in block.split("+"):
                main[name] = max(main.get(name, 0.0), index["ST"])
    used: dict[tuple[str, str], list[str]] = {}
    collected: dict[tuple[str, str], str] = {}
    for name in sorted((name for name, most in main.items() if most >= _MAIN), key=lambda name: -main[name]):
        entry = found["inputs"][name]
        for source in entry["sources"]:
            place = (source["title"], source["url"])
            used.setdefault(place, []).append(name)
            collected[place] = entry["collected"]
    keys = _keys(title for title, _ in used)
    return [
        _entry(key, title, url, f"source of {', '.join(names)}" + _as_of(collected[title, url]))
        for key, ((title, url), names) in zip(keys, used.items(), strict=True)
    ]


def _as_of(collected: str) -> str:
    return f"; as collected on {collected}" if collected else ""


def _entry(key: str, title: str, url: str, note: str) -> str:
    web = url.startswith(("https://", "http://"))
    place = f"  url = {{{_url(url)}}}," if web else f"  howpublished = {{gpustack-mc, {_escaped(url)}}},"
    return "\n".join(
        [f"@misc{{{key},", f"  title = {{{_escaped(title)}}},", place, f"  note = {{{_escaped(note)}}}", "}"]
    )


def _keys(titles: Iterable[str]) -> list[str]:
    """Return citation keys that are short, readable and unique."""
    keys: list[str] = []
    for title in titles:
        words = re.findall(r"[A-Za-z0-9]+", title.encode("ascii", "ignore").decode())[:4]
        base = "-".join(word.lower() for word in words) or "source"
        taken = sum(key == base or key.startswith(f"{base}-x") for key in keys)
        keys.append(f"{base}-x{taken + 1}" if taken else base)
    return keys


def _escaped(text: str) -> str:
    """Return text that TeX prints as it is; unbalanced braces would end the entry."""
    special = {"\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {character: f"\\{character}" for character in "&%$#_"}
    return "".join(special.get(character, character) for character in " ".join(text.split()))


def _url(url: str) -> str:
    """Return an address without what would end the entry."""
    return url.replace("{", "%7B").replace("}", "%7D").replace("\\", "%5C").replace(" ", "%20")
