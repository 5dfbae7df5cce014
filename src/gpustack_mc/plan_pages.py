"""A plan as Markdown and as one HTML page, both from the same words; the page shares the report's look and escaping."""

import re
import shlex
from pathlib import Path
from typing import Any

from gpustack_mc import memory, plan_text, report, summarizing
from gpustack_mc.arrays import Result
from gpustack_mc.quantities import BY_NAME

# What Markdown would read as markup, at the places where a text of a scenario may stand.
_MARKUP = re.compile(r"([\\`*_\[\]<>|#~&!])")
_SOURCES = 6


def pages(found: dict[str, Any], tree: Result) -> tuple[str, str]:
    """Return a plan as Markdown and as HTML.

    Parameters
    ----------
    found : dict
        From `gpustack_mc.plan.run_plan`.
    tree : xarray.DataTree
        The result that it rests on.
    """
    shown = values(found, tree)
    return _markdown(shown), report.render("plan.html", shown)


def values(found: dict[str, Any], tree: Result) -> dict[str, Any]:
    """Return everything that the pages show, as plain values: those of the report, and those of the plan."""
    summary = found["summary"]
    shown = report.values(tree, summary, None)
    command = shown["reproduce"]["command"].replace("gpustack-mc run", "gpustack-mc plan", 1)
    return shown | {
        "reproduce": shown["reproduce"] | {"command": command + _options(found["options"])},
        "run": plan_text.run_rows(found),
        "scope": "final run",
        "memory": {
            "sentence": plan_text.memory_sentence(found),
            "rows": plan_text.memory_rows(found),
            "notes": plan_text.memory_notes(found),
            "sources": _memory_sources(found),
        },
        "checkpoints": {
            "sentence": plan_text.checkpoint_sentence(found),
            "rows": plan_text.checkpoint_rows(found),
            "notes": plan_text.checkpoint_notes(found),
            "sources": _checkpoint_sources(found),
        },
        "risks": plan_text.risk_rows(found),
        "first": {
            "sentence": plan_text.first_sentence(found),
            "tests": plan_text.tests(found),
            "after": plan_text.after_rows(found),
            "worth": plan_text.worth_sentence(found),
            "cost": BY_NAME[summarizing.main_cost(found["ownership"])].short,
        },
    }


def _options(stated: dict[str, Any]) -> str:
    """Return the options that a plan was made with, as they are typed; those that say nothing are left out."""
    typed = [f"--accuracy {shlex.quote(text)}" for text in stated["accuracies"]]
    typed += [f"--days {stated['days']:g}"] if stated["days"] != 3 else []
    for name in ("memory", "activations", "bytes_per_param"):
        if stated[name] is not None:
            typed.append(f"--{name.replace('_', '-')} {shlex.quote(stated[name])}")
    return "".join(f" {option}" for option in typed)


def _memory_sources(found: dict[str, Any]) -> list[dict[str, str]]:
    if found["memory"] is None or found["memory"]["state"] == "stated":
        return []
    rows = [(row["source_title"], row["source_url"]) for row in memory.table().values()]
    return [{"title": title, "url": url} for title, url in dict.fromkeys(rows)]


def _checkpoint_sources(found: dict[str, Any]) -> list[dict[str, str]]:
    entries = (found["reliability"] or {"inputs": {}})["inputs"].values()
    rows = dict.fromkeys((source["title"], source["url"]) for entry in entries for source in entry["sources"])
    return [{"title": title, "url": url} for title, url in rows]


def _markdown(shown: dict[str, Any]) -> str:
    import jinja2
    import markupsafe

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        finalize=escaped,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # The page is text, whose escaping is that of Markdown and done by `finalize` to every value.
        autoescape=False,
    )
    environment.filters["web"] = report.web_address
    environment.filters["few"] = lambda sources: sources[:_SOURCES]
    environment.filters["address"] = lambda url: markupsafe.Markup(_address(url))
    environment.filters["code"] = lambda text: markupsafe.Markup(" ".join(text.split()))
    return environment.get_template("plan.md").render(shown)


def escaped(value: Any) -> Any:
    """Return a value as Markdown that shows it as it is, on one line; what is marked as safe stays."""
    if hasattr(value, "__html__"):
        return str(value)
    return _MARKUP.sub(r"\\\1", " ".join(str(value).split())) if isinstance(value, str) else value


def _address(url: str) -> str:
    """Return a web address that cannot end the link that it is put into; nothing for any other text."""
    return re.sub(r"[\s<>()\[\]\\`|]", lambda found: f"%{ord(found[0]):02X}", report.web_address(url))
