"""Priors that depend on the site and on the owner: data, fits, and the regions they refer to."""

import csv
import json
import math
from collections import Counter
from functools import cache
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import pytest

from gpustack_mc.fits import electricity_price, grid_intensity, hierarchy, members
from gpustack_mc.fits.members import Scale
from gpustack_mc.fits.refit import read_prior, read_rows, stale
from gpustack_mc.priors import Marginal, quantiles
from gpustack_mc.quantities import BY_NAME

PRIORS = Path(__file__).resolve().parents[1] / "priors"
QUANTITIES = (
    "electricity_price", "grid_intensity", "pue", "water_onsite", "water_offsite", "lifetime", "residual_share",
    "fleet_utilization", "cost_of_capital", "operations_rate", "programme_overhead",
)  # fmt: skip
KINDS = {"world", "country", "us_state", "egrid_subregion", "ca_province", "cloud_region"}


@cache
def record(quantity: str) -> dict:
    return json.loads((PRIORS / quantity / "fit.json").read_text(encoding="utf-8"))


@cache
def regions() -> dict[str, dict[str, str]]:
    with (PRIORS / "regions.csv").open(encoding="utf-8", newline="") as stream:
        return {row["region"]: row for row in csv.DictReader(stream)}


def population(quantity: str, **where: str) -> dict:
    (found,) = [item for item in record(quantity)["populations"] if item["where"] == where]
    return found


def at(quantity: str, probability: float, **where: str) -> float:
    found = population(quantity, **where)
    return float(quantiles(Marginal(found["family"], found["parameters"]), [probability])[0])


def median(quantity: str, **where: str) -> float:
    return at(quantity, 0.5, **where)


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_fit_follows_from_its_data(quantity):
    assert stale(quantity) is None


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_rows_and_sources_resolve(quantity):
    used = {row["id"]: row["source"] for row in read_rows(quantity) if row["use"] == "yes"}
    sources = read_prior(quantity)["sources"]
    for item in record(quantity)["populations"]:
        assert item["rows"], item["where"]
        assert item["n"] == len(item["rows"])
        assert set(item["rows"]) <= used.keys()
        assert {used[name] for name in item["rows"]} == set(item["sources"]) <= sources.keys()


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_every_source_is_cited_by_a_row_or_a_setting(quantity):
    prior = read_prior(quantity)
    cited = {row["source"] for row in read_rows(quantity)}
    for setting in prior["settings"].values():
        source = setting.get("source")
        cited.update(source if isinstance(source, list) else [source])
    assert prior["sources"].keys() - cited == set()


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_rows_name_tier_source_and_place_of_the_number(quantity):
    for row in read_rows(quantity):
        assert row["tier"] in ("A", "S", "D"), row["id"]
        assert row["source_title"], row["id"]
        assert row["source_url"].startswith("http") or row["source_url"] == "no address kept", row["id"]
        assert row["locator"], row["id"]


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_no_row_of_a_source_that_forbids_copying(quantity):
    text = (PRIORS / quantity / "data.csv").read_text(encoding="utf-8")
    for name in ("Green Software Foundation", "Electricity Maps", "leachandrew"):
        assert name not in text


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_draws_stay_within_physical_bounds(quantity):
    table = BY_NAME[quantity]
    for item in record(quantity)["populations"]:
        # one draw in a million may lie outside, as everywhere in the product
        low, high = quantiles(Marginal(item["family"], item["parameters"]), [1e-6, 1 - 1e-6])
        assert table.low <= low < high <= table.high, item["where"]


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_last_resort_exists(quantity):
    wheres = [item["where"] for item in record(quantity)["populations"]]
    if quantity == "grid_intensity":
        assert {} not in wheres
        assert {"carbon_basis": "direct"} in wheres
        assert {"carbon_basis": "lifecycle"} in wheres
    else:
        assert {} in wheres


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_regions_of_populations_and_rows_are_known(quantity):
    named = {item["where"]["region"] for item in record(quantity)["populations"] if "region" in item["where"]}
    named |= {row["region"] for row in read_rows(quantity) if row.get("region")}
    assert named - regions().keys() == set()


def test_regions_form_a_tree_with_one_root():
    table = regions()
    assert [name for name, row in table.items() if not row["parent"]] == ["WORLD"]
    for name, row in table.items():
        assert row["kind"] in KINDS
        seen = [name]
        while table[seen[-1]]["parent"]:
            seen.append(table[seen[-1]]["parent"])
            assert len(seen) <= len(KINDS), f"cycle or too deep: {seen}"
        assert seen[-1] == "WORLD"


def test_regions_are_complete():
    kinds = Counter(row["kind"] for row in regions().values())
    assert kinds["us_state"] == 51  # with the District of Columbia
    assert kinds["egrid_subregion"] == 27
    assert kinds["ca_province"] == 13  # with the territories
    assert kinds["world"] == 1


def test_an_alias_names_one_region():
    names = Counter()
    for row in regions().values():
        names.update({name.lower() for name in [row["region"], *row["aliases"].split(";")] if name})
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize(
    ("name", "parent"),
    [("aws:us-east-1", "US-VA"), ("gcp:us-central1", "US-IA"), ("azure:eastus", "US-VA"), ("EGRID-CAMX", "US"),
     ("CA-QC", "CA"), ("gcp:northamerica-northeast1", "CA-QC"), ("NO", "WORLD"), ("NA", "WORLD")],
)  # fmt: skip
def test_parents(name, parent):
    assert regions()[name]["parent"] == parent


def test_grid_populations_name_their_basis_and_never_mix_it():
    basis = {row["id"]: row["carbon_basis"] for row in read_rows("grid_intensity")}
    for item in record("grid_intensity")["populations"]:
        assert {basis[name] for name in item["rows"]} == {item["where"]["carbon_basis"]}


def test_quebec_is_far_cleaner_than_alberta():
    quebec = median("grid_intensity", region="CA-QC", carbon_basis="direct")
    alberta = median("grid_intensity", region="CA-AB", carbon_basis="direct")
    assert quebec == pytest.approx(1.9, abs=0.05)  # National Inventory Report, 2020, rounded to 0.1
    assert 400 < alberta < 700  # 640 in 2020, falling
    assert quebec < 0.1 * alberta
    # siting there cuts emissions even if both guesses are off
    assert at("grid_intensity", 0.95, region="CA-QC", carbon_basis="direct") < 0.1 * at(
        "grid_intensity", 0.05, region="CA-AB", carbon_basis="direct"
    )


def test_united_states_direct_average():
    assert 330 < median("grid_intensity", region="US", carbon_basis="direct") < 430  # 340-390 in published estimates


def test_france_and_poland_life_cycle():
    assert median("grid_intensity", region="FR", carbon_basis="lifecycle") < 100  # nuclear and hydro, 44 in 2024
    assert median("grid_intensity", region="PL", carbon_basis="lifecycle") > 500  # coal, 615 in 2024


def test_older_values_are_wider():
    def width(**where):
        parameters = population("grid_intensity", **where)["parameters"]
        return parameters["sigma"]

    state = width(region="US-TX", carbon_basis="direct")  # 2016
    subregion = width(region="EGRID-ERCT", carbon_basis="direct")  # 2022
    cloud = width(region="gcp:us-south1", carbon_basis="direct")  # 2024
    assert state > subregion > cloud


def test_state_values_agree_with_the_newer_subregions():
    """Five states share most of a subregion: its newer value must lie in the 90% interval of the older one, moved."""
    pairs = {"US-CA": "CAMX", "US-TX": "ERCT", "US-FL": "FRCC", "US-MI": "RFCM", "US-NC": "SRVC"}
    for state, subregion in pairs.items():
        newer = median("grid_intensity", region=f"EGRID-{subregion}", carbon_basis="direct")
        low, high = (at("grid_intensity", p, region=state, carbon_basis="direct") for p in (0.05, 0.95))
        assert low < newer < high, state


def test_electricity_prices_keep_known_orders():
    california = median("electricity_price", region="US-CA")
    assert california > 2 * median("electricity_price", region="US-NM")  # 0.185 and 0.057 USD/kWh in 2023
    assert california > median("electricity_price", region="US-TX")
    assert median("electricity_price", region="CA-QC") < median("electricity_price", region="CA-ON")
    assert median("electricity_price", region="GB") > median("electricity_price", region="US")


def test_electricity_price_of_the_united_states():
    # industrial averages are 0.077-0.083 in 2023-2025; large buyers contract at 0.05-0.075 before delivery
    assert 0.07 < median("electricity_price", region="US") < 0.09
    assert 0.035 < at("electricity_price", 0.05, region="US") < 0.055
    # Three of the 25 cloud regions of these states are in California, so that the 95% point of all is the 58% point of
    # its sites: 0.185 in 2023, 0.192 at the 1.3% a year of 2010-2025, and 0.21 with exp(0.2 x 0.4) for a spread of 40%.
    assert 0.12 < at("electricity_price", 0.95, region="US") < 0.22


def test_every_state_has_price_and_intensity():
    for name, row in regions().items():
        if row["kind"] == "us_state":
            assert median("electricity_price", region=name) > 0
            assert median("grid_intensity", region=name, carbon_basis="direct") > 0


def test_energy_prices_are_not_taken_for_all_in_prices():
    energy = [row for row in read_rows("electricity_price") if row["role"] == "energy_only" and row["use"] == "yes"]
    assert {row["region"] for row in energy} == {"NO"}
    price = math.exp(fmean(math.log(float(row["usd_per_kwh"])) for row in energy))
    # the US pays about 1.25 and Singapore 1.7 times the price of the energy
    assert 1.2 * price < median("electricity_price", region="NO") < 1.7 * price


def test_pue_orders_and_published_values():
    hyperscaler = median("pue", operator="hyperscaler")
    assert 1.08 < hyperscaler < 1.18  # fleets report 1.08 to 1.18
    assert median("pue", operator="hpc") < hyperscaler < median("pue", operator="colocation")
    assert median("pue", operator="colocation") < median("pue", operator="enterprise")
    assert at("pue", 0.05, operator="hyperscaler") < 1.07  # best sites report 1.04-1.06


def test_water():
    assert 0.15 < median("water_onsite", operator="hyperscaler") < 0.99  # between AWS and Google
    assert at("water_onsite", 0.999999) < 4.0
    # LBNL 4.35-4.52, WRI 3.13 L/kWh
    assert 3.0 < median("water_offsite", region="US") < 4.6
    assert median("water_offsite", region="CA") > median("water_offsite", region="US")  # reservoirs


def test_life_and_residual():
    assert 5.0 <= median("lifetime", operator="hyperscaler") <= 6.0  # latest accounts: 5 to 6 years
    assert at("lifetime", 0.05) < 3.0 and at("lifetime", 0.95) > 6.0  # claims reach down to 1-3 years, accounts to 6
    assert 0.1 < median("residual_share") < 0.35  # 0.35 is the anchor curve one year earlier


def test_owner_priors_cover_published_values():
    covered = {
        "fleet_utilization": (0.54, 0.59, 0.77, 0.80, 0.90),  # Alibaba, Seren, Helios, Meta, neoclouds
        "cost_of_capital": (0.061, 0.0834, 0.11),  # Equinix, Microsoft, CoreWeave's largest facility
        "operations_rate": (0.05, 0.056, 0.094, 0.15),
        "programme_overhead": (1.5, 2.0, 5.6, 10.0),  # OLMo, OPT, Olmo 3, OpenAI
    }
    for quantity, values in covered.items():
        low, high = at(quantity, 0.05), at(quantity, 0.95)
        assert [value for value in values if not low < value < high] == [], quantity


# ---- programs whose populations are one row per region --------------------------------------------------------------
def posed(program):
    quantity = program.__name__.rpartition(".")[2]
    rows = [row for row in read_rows(quantity) if row["use"] == "yes"]
    settings = {name: setting["value"] for name, setting in read_prior(quantity)["settings"].items()}
    return program.problem(rows, settings), rows, settings


def known(problem, **spreads):
    """Posterior with known spreads: what is not named is zero."""
    s = np.array([[spreads.get(name, 0.0) for name in problem.spreads]])
    k = len(problem.effects)
    return hierarchy.Posterior(
        {}, s, np.zeros((1, k)), np.zeros((1, k, k)), tuple(problem.effects), tuple(problem.spreads), 0
    )


def test_a_figure_ages_as_a_random_walk_with_two_years_of_weather():
    problem, _, _ = posed(grid_intensity)
    found = known(problem, **{"steps:high": 0.1, "common:high": 0.05, "year:high": 0.03})

    def variance(*arguments):
        made = members.mixture(found, grid_intensity.forecast(problem, "high", "FI", *arguments))
        return float((made.known + made.run)[0])

    assert variance(4) == pytest.approx(4 * (0.1**2 + 0.05**2) + 2 * 0.03**2)
    assert variance(0) == pytest.approx(2 * 0.03**2)
    # moved by the national mean, which is known for six of ten years: the common part has four left
    assert variance(10, 4) == pytest.approx(10 * 0.1**2 + 4 * 0.05**2 + 2 * 0.03**2)


def test_changes_of_grids_are_those_of_the_series():
    problem, rows, settings = posed(grid_intensity)
    moves = grid_intensity.moves(rows, settings)
    regions = {move.region for move in moves}
    # The changes of a region add up to that from its first to its last value.
    scale = Scale(0.0, settings["ceiling"])
    for region in regions:
        mine = [move for move in moves if move.region == region]
        series = sorted((row for row in rows if row["region"] == region and row["carbon_basis"] == "direct"
                         and row["source"] in {other["source"] for other in rows if other["id"] == mine[0].ids[0]}),
                        key=lambda row: int(row["year"]))  # fmt: skip
        first, last = (scale.forward(float(series[i]["gco2e_per_kwh"])) for i in (0, -1))
        assert sum(move.change for move in mine) == pytest.approx(last - first)
    assert {name.split(":")[1] for name in problem.spreads if name.startswith("steps:")} == {"low", "high"}


@pytest.mark.parametrize("quantity", ["grid_intensity", "electricity_price", "water_offsite"])
def test_a_regions_own_figure_stays_the_centre(quantity):
    """Populations of one row, without a factor, have its value as their median; ages and factors are named in words."""
    column = {"grid_intensity": "gco2e_per_kwh", "electricity_price": "usd_per_kwh", "water_offsite": "ewif_l_per_kwh"}
    values = {row["id"]: float(row[column[quantity]]) for row in read_rows(quantity)}
    alone = [item for item in record(quantity)["populations"] if item["n"] == 1 and "times" not in item["method"]]
    assert len(alone) > 40
    drift = quantity == "electricity_price"  # of three years in the US, 0.013 a year
    for item in alone:
        middle = float(quantiles(Marginal(item["family"], item["parameters"]), [0.5])[0])
        assert middle == pytest.approx(values[item["rows"][0]], rel=0.08 if drift else 1e-4), item["where"]


def test_a_newer_and_a_nearer_price_wins():
    rows = {
        "country_business": [{"id": "a", "region": "FR", "place": "France", "year": "2026", "usd_per_kwh": "0.3",
                              "demand_or_tax_basis": "", "role": "country_business", "source": "s"}],
        "country_industrial": [{"id": name, "region": "FR", "place": "France", "year": year, "usd_per_kwh": "0.1",
                                "demand_or_tax_basis": "", "role": "country_industrial", "source": "s"}
                               for name, year in (("b", "2024"), ("c", "2025"))],
        "country_datacentre": [], "energy_only": [],
    }  # fmt: skip
    (france,) = electricity_price.countries(rows, {"year": 2026})
    assert [row["id"] for row in france.rows] == ["c"]
    assert france.member.center == pytest.approx(math.log(0.1))
    assert france.member.noise == {"sites": 1.0}
    assert france.member.unknown == {"nation": 1.0, "region": 1.0, "source": 1.0}


def test_spread_of_sites_lies_between_the_two_that_enclose_it():
    """Contracts anywhere in the US are too wide, size discounts too narrow."""
    sigma = population("electricity_price", region="CA-QC")["parameters"]["sigma"]
    contracts = [row for row in read_rows("electricity_price") if row["role"] == "contract" and row["use"] == "yes"]
    wide = stdev(math.log(float(row["usd_per_kwh"])) for row in contracts)
    assert 0.1 < sigma < 1.5 * wide  # with four years of changes; 0.26 among contracts
