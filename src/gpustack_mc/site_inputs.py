"""A run spread over several sites: its inputs, what contradicts them, and what is known of how they learn."""

import csv
import functools
import math
import re
from collections.abc import Iterator
from typing import Any

from gpustack_mc import catalog, schema, units
from gpustack_mc.prior_inputs import PriorInputs
from gpustack_mc.priors import Facts, Marginal
from gpustack_mc.problem import Input, Sites, Source
from gpustack_mc.quantities import BY_NAME

# Rows of the table of results that these scenarios have besides those of all.
ROWS = ("site_goodput", "site_work_share", "site_waiting_share", "site_down_share", "exchange_time", "exchange_share")
_PLACE = ("distributed",)
Problem_ = tuple[tuple[str | int, ...], str, str]


@functools.cache
def findings() -> tuple[dict[str, str], ...]:
    """Return what was published about learning on several sites, from ``priors/local_averaging.csv``."""
    with (catalog.folder("priors") / "local_averaging.csv").open(encoding="utf-8", newline="") as stream:
        return tuple(csv.DictReader(stream))


class SiteInputs(PriorInputs):
    """Reads the part ``distributed`` of a document; collects errors as `Reader` does."""

    def check_sites(self, file: schema.ScenarioFile) -> None:
        """Record what does not go together."""
        if file.distributed is not None:
            for path, message, fix in _contradictions(file, file.distributed):
                self.fail(path, message, fix, "contradiction")

    def site_inputs(self, file: schema.ScenarioFile, facts: Facts) -> tuple[dict[str, Input], Sites | None]:
        """Return the inputs of the sites, and which belongs to which."""
        stated = file.distributed
        if stated is None:
            return {}, None
        inputs, keys = {}, []
        for i, site in enumerate(stated.sites):
            values = {"site_count": site.count, "availability": site.availability, "mean_outage": site.mean_outage}
            values |= {} if site.link_speed is None else {"link_speed": site.link_speed}
            own = {}
            for name, value in values.items():
                step = "count" if name == "site_count" else name
                item = self._input(name, value, (*_PLACE, "sites", i, step), f"{name}@{site.name}")
                inputs[item.key], own[name] = item, item.key
            keys.append(own)
        inputs |= {item.key: item for item in self._shared(file, stated, facts)}
        return inputs, Sites(stated.mode, tuple(keys))

    def _shared(self, file: schema.ScenarioFile, stated: schema.Distributed, facts: Facts) -> Iterator[Input]:
        """Yield what all sites have in common."""
        yield self._rejoining(stated, facts)
        yield self._idle_power(stated)
        if stated.extra_tokens is None:
            yield _fixed("extra_tokens", 0.0, "derived", "none are stated")
        else:
            yield self._input("extra_tokens", stated.extra_tokens, (*_PLACE, "extra_tokens"))
        if stated.sites[0].link_speed is None:
            return
        if stated.exchange_bytes is None:
            source = next(row for row in findings() if row["id"] == "opendiloco-2024")
            size = catalog.distributed_settings()["exchange_bytes"]
            cited = Source(source["source_title"], source["source_url"], source["licence"])
            yield _fixed("exchange_bytes", size, "assumed", "16 bits for each parameter", (cited,))
        else:
            yield self._input("exchange_bytes", stated.exchange_bytes, (*_PLACE, "exchange_bytes"))
        if stated.mode != "local_steps":
            yield _fixed("averaging_steps", 1.0, "derived", f"{stated.mode} exchanges after every step")
        else:
            yield self._input("averaging_steps", stated.averaging_steps, (*_PLACE, "averaging_steps"))
        yield self._input("global_batch_tokens", file.workload.global_batch_tokens, ("workload", "global_batch_tokens"))

    def _rejoining(self, stated: schema.Distributed, facts: Facts) -> Input:
        path = (*_PLACE, "rejoin_time")
        if stated.rejoin_time is None:
            return self._fitted("rejoin_time", "restart_time", facts, path)
        if isinstance(stated.rejoin_time, schema.FittedPrior):
            return self._other_population("rejoin_time", stated.rejoin_time, facts, path)
        return self._input("rejoin_time", stated.rejoin_time, path)

    def _idle_power(self, stated: schema.Distributed) -> Input:
        path = (*_PLACE, "idle_power_fraction")
        if stated.idle_power_fraction is not None:
            return self._input("idle_power_fraction", stated.idle_power_fraction, path)
        settings = catalog.distributed_settings()
        interval = schema.Interval(low=settings["idle_power_low"], high=settings["idle_power_high"])
        judged = self._input("idle_power_fraction", interval, path)
        sources = (
            Source("AcmeTrace", "https://github.com/InternLM/AcmeTrace"),
            Source("Morrison 2025", "https://arxiv.org/abs/2503.05804"),
        )
        return judged._replace(origin="assumed", prior="judged from two boards (n=2)", sources=sources)

    def site_notes(self, file: schema.ScenarioFile) -> Iterator[str]:
        """Yield what the numbers of a run on several sites leave out."""
        stated = file.distributed
        if stated is None:
            return
        if stated.sites[0].link_speed is None:
            yield "exchanges between the sites take no time here, because no link_speed is stated"
        if stated.mode != "local_steps" and stated.averaging_steps is not None:
            yield f"averaging_steps does not count: {stated.mode} exchanges after every step"
        if stated.mode == "lockstep":
            return
        known = "; ".join(
            f"{row['finding']} [{row['source_title']}]" for row in findings() if row["mode"] == stated.mode
        )
        asked = "state extra_tokens to add to the run what you expect"
        asked = asked if stated.extra_tokens is None else "the run holds the extra_tokens that you state"
        mode = stated.mode.replace("_", " ")
        yield f"what the mode {mode} costs in learning is reported and not modelled; {asked}. Published: {known}"


def _fixed(name: str, value: float, origin: str, words: str, sources: tuple[Source, ...] = ()) -> Input:
    return Input(name, BY_NAME[name], Marginal("fixed", {"value": value}), origin, words, sources)


def _contradictions(file: schema.ScenarioFile, stated: schema.Distributed) -> Iterator[Problem_]:
    """Yield what does not go together: place, problem, remedy."""
    if file.observed is not None:
        yield ("observed",), "a job that runs on several sites is not forecast.", "Remove observed, or distributed."
    for i, phase in enumerate(file.workload.phases or ()):
        if phase.count is not None:
            found = "the sites take part in every phase."
            yield ("workload", "phases", i, "count"), found, "Remove the count of the phase, or distributed."
    yield from _counts(file, stated)
    yield from _names(stated)
    yield from _links(file, stated)


def _counts(file: schema.ScenarioFile, stated: schema.Distributed) -> Iterator[Problem_]:
    total, count = sum(site.count for site in stated.sites), file.cluster.count
    if isinstance(count, str) or not isinstance(count, int | float):
        if not isinstance(count, str):
            yield ("cluster", "count"), "sites need a count that is a plain number.", f"Write {total}."
            return
        try:
            count = units.to_number(count, "1", {})
        except units.UnitProblem:
            # Told where the count itself is read.
            return
    # A count that is not finite, or none, is told where it stands.
    if total != count and 0 < count < math.inf:
        found = f"the counts add up to {total:,}, and cluster.count is {count:,g}."
        yield (*_PLACE, "sites"), found, "Make them agree."


def _names(stated: schema.Distributed) -> Iterator[Problem_]:
    seen: set[str] = set()
    for i, site in enumerate(stated.sites):
        if site.name in seen or not re.fullmatch(r"[\w .-]+", site.name):
            found = f"{units.shown(site.name)} must be unique, of letters, digits, - and _."
            yield (*_PLACE, "sites", i, "name"), found, ""
        seen.add(site.name)


def _links(file: schema.ScenarioFile, stated: schema.Distributed) -> Iterator[Problem_]:
    if stated.mode == "local_steps" and stated.averaging_steps is None:
        yield (*_PLACE, "mode"), "local_steps needs averaging_steps.", "State after how many steps the sites average."
    linked: list[Any] = [site.link_speed is not None for site in stated.sites]
    if any(linked) and not all(linked):
        missing = linked.index(False)
        found = f"{stated.sites[missing].name} has no link_speed, and others have."
        yield (*_PLACE, "sites", missing), found, "State it for all sites or for none."
    if any(linked) and file.workload.global_batch_tokens is None:
        found = "the time of exchanges needs workload.global_batch_tokens."
        yield (*_PLACE, "sites", linked.index(True), "link_speed"), found, "State the tokens of one optimiser step."
    if not any(linked) and stated.exchange_bytes is not None:
        found = "without link_speed no exchange is counted."
        yield (*_PLACE, "exchange_bytes"), found, "State link_speed for each site, or remove it."
