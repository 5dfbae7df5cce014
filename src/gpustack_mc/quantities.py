"""The only table of quantities: name, symbol, unit, description, role, domain, bounds.

Everything that needs to name a quantity (scenario keys, priors, attributes of the result, axis labels, the JSON
Schema, the documentation) reads this table. Units are written so that both pint and people can read them.
"""

from collections.abc import Collection
from typing import Literal, NamedTuple

Role = Literal["scenario", "input", "output", "observed"]
Scope = Literal["", "final run", "programme", "serving", "per accelerator"]
Scale = Literal["log", "logit", "log_above_one"]


class Quantity(NamedTuple):
    """One quantity of the cost model.

    Attributes
    ----------
    name : str
        Key used in scenarios, results and as parameter name of the equations.
    symbol : str
        LaTeX symbol used in the equations.
    unit : str
        Unit of every stored number, parsable by pint; ``"1"`` for pure numbers.
    description : str
        One sentence that a newcomer understands.
    role : {"scenario", "input", "output", "observed"}
        ``scenario``: stated by the user or looked up from it; ``input``: has a prior; ``output``: computed;
        ``observed``: measured on a job that runs.
    domain : str
        Subject area; also the default group for grouped sensitivity indices.
    low, high : float
        Physical bounds, both admissible values.
    reason : str
        Why the bounds hold; printed when a value violates them.
    scope : str
        What an output covers.
    scale : {"log", "logit", "log_above_one"}
        Scale on which "90% between a and b" becomes a normal distribution.
    label : str
        Short label for tables and axes; see `short`.
    part : str
        Part of a scenario without which the quantity does not exist; empty for what every scenario has.
    """

    name: str
    symbol: str
    unit: str
    description: str
    role: Role
    domain: str
    low: float = 0.0
    high: float = float("inf")
    reason: str = "it cannot be negative"
    scope: Scope = ""
    scale: Scale = "log"
    label: str = ""
    part: str = ""

    @property
    def short(self) -> str:
        """Short label for tables and axes."""
        return self.label or self.name.replace("_", " ")


_SHARE = "it is a share: 38% is written 0.38"
_PEAK_SHARE = "MFU is a share of peak FLOP/s: 38% is written 0.38"

# The order of the inputs is part of the file format: an input's rank fixes its dimension of the Sobol' sequence, so
# that a new input must come after the others and never between them, else every draw would change.
QUANTITIES: tuple[Quantity, ...] = (
    # ---- stated by the scenario -----------------------------------------------------------------------------------
    Quantity("params", r"N", "1", "Total parameters of the model", "scenario", "workload", 1e4, 1e16,
             "no model has fewer than 10,000 or more than 1e16 parameters; 7 billion is written 7e9"),
    Quantity("active_params", r"N_\mathrm{a}", "1", "Parameters used for each token (all of them in a dense model)",
             "scenario", "workload", 1e4, 1e16,
             "no model has fewer than 10,000 or more than 1e16 parameters; 7 billion is written 7e9"),
    Quantity("tokens", r"D", "token", "Training tokens, counted once for each time they are processed", "scenario",
             "workload", 1e4, 1e19,
             "no run processes fewer than 10,000 or more than 1e19 tokens; 2 trillion is written 2e12"),
    Quantity("context_flop_factor", r"\chi", "1",
             "FLOP per token relative to the context lengths that the MFU prior was fitted on", "scenario",
             "workload", 0.5, 1e4, "attention adds to the 6N FLOP per token; it cannot remove most of them"),
    Quantity("peak_flop_per_s", r"P", "FLOP/s", "Dense peak of one accelerator at the training precision", "scenario",
             "hardware", 1e9, 1e19, "dense peaks of accelerators lie between 1e9 and 1e19 FLOP/s"),
    Quantity("tdp", r"W_\mathrm{tdp}", "W", "Rated board power of one accelerator (TDP)", "scenario", "hardware", 1.0,
             1e5, "one accelerator is rated between 1 W and 100 kW"),
    Quantity("accelerator_count", r"n", "1", "Accelerators working on the run at the same time", "scenario",
             "hardware", 1.0, 1e9, "a run needs at least 1 and no cluster has 1e9 accelerators"),
    Quantity("checkpoint_interval", r"\tau", "min", "Working time between two checkpoints", "scenario", "efficiency",
             1e-3, 1e6, "checkpoints are between 60 milliseconds and two years apart", part="reliability"),
    Quantity("carbon_price", r"p_\mathrm{C}", "USD/tCO2e",
             "Price of the run's emissions, operational and embodied; 0 unless stated", "scenario", "price", 0.0, 1e5,
             "emissions are priced between 0 and 100,000 USD/tCO2e"),
    Quantity("site_count", r"n_j", "1", "Accelerators of one site", "scenario", "sites", 1.0, 1e9,
             "a site has at least 1 accelerator", part="distributed"),
    Quantity("availability", r"a", "1", "Share of time in which a site is up", "scenario", "sites", 1e-3, 1.0,
             "a site is up for some of the time and at most all of it: 98% is written 0.98", scale="logit",
             part="distributed"),
    Quantity("mean_outage", r"m", "h", "Mean length of an outage of a site", "scenario", "sites", 1e-4, 1e5,
             "an outage takes between a third of a second and eleven years", part="distributed"),
    Quantity("link_speed", r"B", "Gbit/s", "Data per time over a site's link to the others, as it is reached",
             "scenario", "sites", 1e-6, 1e6, "a link carries between 1 kbit/s and 1 Pbit/s", part="distributed"),
    Quantity("rejoin_time", r"R", "min", "Time from a change of sites until work goes on, with work that is repeated",
             "scenario", "sites", 0.0, 1e6, "rejoining takes between 0 and two years", part="distributed"),
    Quantity("idle_power_fraction", r"\phi_0", "1", "Board power of an idle accelerator over its TDP", "scenario",
             "sites", 0.0, 1.0, "an idle board draws less than its TDP", part="distributed"),
    Quantity("exchange_bytes", r"b", "byte", "Data exchanged between sites for each parameter", "scenario", "sites",
             0.01, 100.0, "a parameter is exchanged in between a tenth of a bit and 100 bytes", part="distributed"),
    Quantity("averaging_steps", r"H", "1", "Optimiser steps between two exchanges", "scenario", "sites", 1.0, 1e7,
             "sites exchange after at least 1 step", part="distributed"),
    Quantity("global_batch_tokens", r"G", "token", "Tokens of one optimiser step on all sites", "scenario", "sites",
             1.0, 1e13, "a step takes at least one token", part="distributed"),
    Quantity("extra_tokens", r"\epsilon", "1",
             "Tokens that the way of averaging needs besides, over those stated; 0 unless stated", "scenario", "sites",
             0.0, 100.0, "it is a share of the tokens: 5% more is written 0.05", part="distributed"),
    # ---- uncertain inputs: each has a folder in priors/ ------------------------------------------------------------
    Quantity("mfu", r"\mu", "1",
             "Model FLOP utilisation while the run is productive, counting 6 FLOP per active parameter and token",
             "input", "efficiency", 0.0, 1.0, _PEAK_SHARE, scale="logit"),
    Quantity("goodput", r"g", "1", "Share of accelerator time that advances the run (no restarts, idle, lost work)",
             "input", "efficiency", 0.0, 1.0, _SHARE, scale="logit"),
    Quantity("gpu_power_fraction", r"\phi", "1", "Mean board power of the accelerators over their TDP", "input",
             "hardware", 0.0, 1.5, "measured board power stays below 1.5 times TDP"),
    Quantity("host_power", r"W_\mathrm{host}", "W",
             "IT power per accelerator besides its board: CPU, memory, network, storage, fans", "input", "hardware",
             0.0, 1e4, "one accelerator's share of its host draws less than 10 kW"),
    Quantity("pue", r"\mathrm{PUE}", "1", "Facility energy over IT energy (power usage effectiveness)", "input",
             "energy", 1.0, 5.0, "PUE is facility energy over IT energy, so it is at least 1",
             scale="log_above_one"),
    Quantity("electricity_price", r"p_\mathrm{el}", "USD/kWh", "Price of a kilowatt-hour at the site, all charges",
             "input", "price", -1.0, 10.0, "electricity costs between -1 and 10 USD/kWh"),
    Quantity("grid_intensity", r"\gamma", "gCO2e/kWh", "Emissions per kilowatt-hour of the grid at the site", "input",
             "carbon", 0.0, 3000.0, "even pure lignite power stays below 3000 gCO2e/kWh"),
    Quantity("embodied_carbon", r"E", "kgCO2e",
             "Emissions of making one accelerator with its share of the server", "input", "carbon", 0.0, 1e5,
             "making one accelerator emits between 0 and 100 t"),
    Quantity("water_onsite", r"\omega_\mathrm{on}", "L/kWh", "Water used for cooling per kWh of IT energy (WUE)",
             "input", "water", 0.0, 50.0, "cooling evaporates less than 50 L/kWh"),
    Quantity("water_offsite", r"\omega_\mathrm{off}", "L/kWh", "Water consumed at power plants per kWh of electricity",
             "input", "water", 0.0, 500.0, "power plants consume less than 500 L/kWh"),
    Quantity("capex", r"C", "USD", "Purchase price of one accelerator with its share of server and network",
             "input", "finance", 0.0, 1e7, "one accelerator costs between 0 and 10 million USD"),
    Quantity("residual_share", r"\rho", "1", "Resale value at the end of life over the purchase price", "input",
             "finance", 0.0, 1.0, _SHARE, scale="logit"),
    Quantity("lifetime", r"L", "year", "Years until the hardware is replaced", "input", "finance", 0.1, 50.0,
             "hardware is kept between 0.1 and 50 years"),
    Quantity("fleet_utilization", r"u", "1", "Share of the hardware's life in which it is busy with any job", "input",
             "finance", 0.0, 1.0, _SHARE, scale="logit"),
    Quantity("cost_of_capital", r"r", "1/year", "Yearly cost of the money bound in the hardware, as a rate", "input",
             "finance", 0.0, 1.0, "it is a yearly rate: 8% is written 0.08"),
    Quantity("operations_rate", r"o", "1/year",
             "Yearly cost of operating owned hardware besides electricity, over its purchase price", "input",
             "finance", 0.0, 1.0, "it is a yearly rate: 5% is written 0.05"),
    Quantity("rental_price", r"p_\mathrm{rent}", "USD/h", "Price of one accelerator-hour when rented", "input",
             "price", 0.0, 1000.0, "one accelerator-hour costs between 0 and 1000 USD"),
    Quantity("serving_throughput", r"\theta", "token/s", "Output tokens served per second and accelerator", "input",
             "serving", 0.0, 1e12, "2 FLOP per parameter and token: 1e17 FLOP/s over 1e5 parameters, the smallest "
             "language models, are 5e11 tokens per second"),
    Quantity("programme_overhead", r"\kappa", "1",
             "Compute of the whole programme (experiments, failed runs, evaluation) over that of the final run",
             "input", "programme", 1.0, 1000.0, "the programme includes its final run, so it is at least 1",
             scale="log_above_one"),
    Quantity("interruption_rate", r"\lambda", "1/h",
             "Unexpected interruptions of the job per accelerator and hour", "input", "efficiency", 0.0, 1.0,
             "an accelerator does not fail more than once an hour"),
    Quantity("checkpoint_save_time", r"\delta", "s", "Time for which training stands still to save a checkpoint",
             "input", "efficiency", 0.0, 1e6, "training stands still for less than twelve days to save",
             part="reliability"),
    Quantity("restart_time", r"R", "min",
             "Time from an interruption until work resumes: detection, replacement, start and loading", "input",
             "efficiency", 0.0, 1e6, "a restart takes between 0 and two years", part="reliability"),
    Quantity("unexplained_loss", r"\zeta", "1",
             "Share of time lost to what failures and checkpoints do not explain: manual stops, evaluation, stragglers",
             "input", "efficiency", 0.0, 1.0, _SHARE, scale="logit", part="reliability"),
    # ---- outputs -------------------------------------------------------------------------------------------------
    Quantity("training_flop", r"F", "FLOP", "Floating-point operations of the run, 6 per active parameter and token",
             "output", "workload", scope="final run", label="compute"),
    Quantity("training_days", r"t", "day", "Time from start to end of the run", "output", "time",
             scope="final run", label="run time"),
    Quantity("accelerator_hours", r"h", "h", "Accelerator-hours, including unproductive time", "output", "time",
             scope="final run", label="accelerator-hours"),
    Quantity("effective_utilization", r"\eta", "1", "Training FLOP over peak FLOP of all accelerator-hours", "output",
             "efficiency", high=1.0, scope="final run"),
    Quantity("interruptions", r"I", "1", "Unexpected interruptions to expect during the run", "output", "efficiency",
             scope="final run"),
    Quantity("hours_between_interruptions", r"m", "h", "Mean time between unexpected interruptions", "output",
             "efficiency", scope="final run"),
    Quantity("it_energy_mwh", r"Q_\mathrm{IT}", "MWh", "Energy of accelerators, hosts and network", "output",
             "energy", scope="final run"),
    Quantity("energy_mwh", r"Q", "MWh", "Energy of the facility for the run", "output", "energy",
             scope="final run", label="energy"),
    Quantity("facility_power_mw", r"W", "MW", "Average facility power during the run", "output", "energy",
             scope="final run", label="average power"),
    Quantity("co2e_operational_t", r"M_\mathrm{op}", "tCO2e", "Emissions of the electricity used", "output", "carbon",
             scope="final run", label="CO2e, operational"),
    Quantity("co2e_embodied_t", r"M_\mathrm{em}", "tCO2e", "The run's share of the emissions of making the hardware",
             "output", "carbon", scope="final run", label="CO2e, embodied"),
    Quantity("co2e_t", r"M", "tCO2e", "Operational and embodied emissions", "output", "carbon",
             scope="final run", label="CO2e, with embodied"),
    Quantity("water_onsite_m3", r"V_\mathrm{on}", "m^3", "Water used for cooling on site", "output", "water",
             scope="final run", label="water, on site"),
    Quantity("water_offsite_m3", r"V_\mathrm{off}", "m^3", "Water consumed at power plants", "output", "water",
             scope="final run", label="water, power plants"),
    Quantity("electricity_cost_usd", r"K_\mathrm{el}", "USD", "Cost of the electricity", "output", "cost", low=-1e15,
             scope="final run", label="cost of electricity"),
    Quantity("hardware_cost_usd", r"K_\mathrm{hw}", "USD", "Loss of value of the owned hardware over the run",
             "output", "cost", scope="final run", label="cost of hardware"),
    Quantity("other_cost_usd", r"K_\mathrm{ot}", "USD", "Cost of capital and operation of the owned hardware",
             "output", "cost", scope="final run", label="other cost"),
    Quantity("carbon_cost_usd", r"K_\mathrm{C}", "USD", "Cost of the emissions at the stated carbon price", "output",
             "cost", scope="final run", label="cost of carbon"),
    Quantity("cost_owned_usd", r"K_\mathrm{own}", "USD",
             "Cost on owned hardware: hardware, electricity, other, carbon where it is priced", "output", "cost",
             low=-1e15, scope="final run", label="cost, owned"),
    Quantity("owned_usd_per_accelerator_hour", r"k_\mathrm{own}", "USD/h", "Cost of one owned accelerator-hour",
             "output", "cost", low=-1e6, scope="per accelerator"),
    Quantity("cost_rented_usd", r"K_\mathrm{rent}", "USD", "Cost on rented accelerators", "output", "cost",
             scope="final run", label="cost, rented"),
    Quantity("electricity_share", r"s_\mathrm{el}", "1", "Electricity over the cost on owned hardware", "output",
             "cost", low=-1e6, high=1e6, scope="final run"),
    Quantity("usd_per_million_training_tokens", r"k_D", "USD", "Cost on owned hardware per million training tokens",
             "output", "cost", low=-1e15, scope="final run"),
    Quantity("serving_usd_per_million_tokens", r"k_\mathrm{srv}", "USD",
             "Rental cost per million output tokens served", "output", "cost", scope="serving"),
    Quantity("serving_kwh_per_million_tokens", r"q_\mathrm{srv}", "kWh",
             "Facility energy per million output tokens served", "output", "energy", scope="serving"),
    Quantity("serving_kgco2e_per_million_tokens", r"m_\mathrm{srv}", "kgCO2e",
             "Operational and embodied emissions per million output tokens served", "output", "carbon",
             scope="serving"),
    Quantity("programme_accelerator_hours", r"h_\kappa", "h", "Accelerator-hours of the whole programme", "output",
             "time", scope="programme", label="programme accelerator-hours"),
    Quantity("programme_energy_mwh", r"Q_\kappa", "MWh", "Energy of the whole programme", "output", "energy",
             scope="programme", label="programme energy"),
    Quantity("programme_co2e_t", r"M_\kappa", "tCO2e", "Emissions of the whole programme", "output", "carbon",
             scope="programme", label="programme CO2e, with embodied"),
    Quantity("programme_cost_owned_usd", r"K_{\mathrm{own},\kappa}", "USD",
             "Cost of the whole programme on owned hardware", "output", "cost", low=-1e15, scope="programme",
             label="programme cost, owned"),
    Quantity("programme_cost_rented_usd", r"K_{\mathrm{rent},\kappa}", "USD",
             "Cost of the whole programme on rented accelerators", "output", "cost", scope="programme",
             label="programme cost, rented"),
    # ---- outputs of scenarios that state `reliability` ------------------------------------------------------------
    Quantity("expected_goodput", r"\bar g", "1",
             "Share of accelerator time that advances the run, as failures, checkpoints and other causes leave it",
             "output", "efficiency", high=1.0, scope="final run", label="goodput", part="reliability"),
    Quantity("checkpoint_loss_share", r"s_\delta", "1", "Share of accelerator time that saving checkpoints takes",
             "output", "efficiency", high=1.0, scope="final run", label="lost to checkpoints", part="reliability"),
    Quantity("lost_work_share", r"s_\mathrm{w}", "1",
             "Share of accelerator time whose work a failure undid before it was saved", "output", "efficiency",
             high=1.0, scope="final run", label="lost to repeated work", part="reliability"),
    Quantity("restart_loss_share", r"s_R", "1", "Share of accelerator time spent in restarts", "output", "efficiency",
             high=1.0, scope="final run", label="lost to restarts", part="reliability"),
    Quantity("best_checkpoint_interval", r"\tau^*", "min", "Working time between checkpoints that gives most goodput",
             "output", "efficiency", scope="final run", label="best checkpoint interval", part="reliability"),
    # ---- outputs of scenarios that state `distributed`, and of those whose links are stated -----------------------
    Quantity("site_goodput", r"g_\mathrm{site}", "1",
             "Share of held accelerator time that advances the run, on all sites", "output", "efficiency", high=1.0,
             scope="final run", label="goodput, all sites", part="distributed"),
    Quantity("site_work_share", r"w", "1", "Share of held accelerator time in which outages let the run advance",
             "output", "sites", high=1.0, scope="final run", label="left by outages", part="distributed"),
    Quantity("site_waiting_share", r"s_\mathrm{wait}", "1",
             "Share of held accelerator time in which a site waits for others", "output", "sites", high=1.0,
             scope="final run", label="waiting for other sites", part="distributed"),
    Quantity("site_down_share", r"s_\mathrm{down}", "1", "Share of held accelerator time in which a site is down",
             "output", "sites", high=1.0, scope="final run", label="site down", part="distributed"),
    Quantity("held_power_fraction", r"\phi_\mathrm{held}", "1",
             "Mean board power of held accelerators over their TDP, idle ones included", "output", "hardware",
             scope="final run", part="distributed"),
    Quantity("site_tokens", r"D_\mathrm{site}", "token",
             "Training tokens with those that the way of averaging needs besides", "output", "workload",
             scope="final run", label="tokens, all sites", part="distributed"),
    Quantity("site_mfu", r"\mu_\mathrm{site}", "1",
             "Model FLOP utilisation while the run is productive, exchanges between the sites included", "output",
             "efficiency", high=1.0, scope="final run", label="MFU with exchanges", part="links"),
    Quantity("exchange_time", r"t_\mathrm{x}", "s", "Time of one exchange of the model between the sites", "output",
             "sites", scope="final run", label="one exchange between sites", part="links"),
    Quantity("exchange_share", r"s_\mathrm{x}", "1", "Share of working time that exchanges between the sites take",
             "output", "sites", high=1.0, scope="final run", label="lost to exchanges", part="links"),
)  # fmt: skip

# What a scenario may state of a job that runs. No quantity of the model: inputs are conditioned on it.
OBSERVED: tuple[Quantity, ...] = (
    Quantity("days", r"t_0", "day", "Time since the start of the run, with all that was not productive", "observed",
             "time", 1e-3, 3650.0, "a job runs for a minute to ten years; leave out `observed` before"),
    Quantity("tokens", r"D_0", "token", "Tokens trained on so far, those lost to restarts left out", "observed",
             "workload", 1.0, 1e19, "a job that runs has trained on some tokens"),
    Quantity("tokens_per_second", r"\dot D", "token/s", "Tokens per second of the whole job while it trains",
             "observed", "efficiency", 1e-3, 1e13, "it is the speed of the whole job, above 0"),
    Quantity("step_time", r"\tau", "s", "Seconds per optimiser step while it trains; needs global_batch_tokens",
             "observed", "efficiency", 1e-6, 1e6, "a step takes between a microsecond and 11 days"),
    Quantity("mfu", r"\mu_0", "1", "MFU that the job logs while it trains, in mfu_convention", "observed", "efficiency",
             1e-4, 1.0, _PEAK_SHARE),
    Quantity("goodput", r"g_0", "1", "Productive share of the days so far", "observed", "efficiency", 1e-3, 1.0,
             _SHARE),
    Quantity("interruptions", r"I_0", "1", "Unexpected interruptions of the job in the days so far", "observed",
             "efficiency", 0.0, 1e9, "a job was interrupted 0 times or more"),
    Quantity("board_power", r"W_\mathrm{b}", "W", "Mean power of one accelerator's board so far", "observed", "energy",
             1.0, 1e5, "one board draws between 1 W and 100 kW"),
    Quantity("it_power", r"W_\mathrm{IT}", "MW", "Mean IT power of the whole job so far: boards, hosts, network",
             "observed", "energy", 1e-9, 1e6, "a job draws some power"),
    Quantity("facility_power", r"W", "MW", "Mean facility power of the whole job so far, with cooling and losses",
             "observed", "energy", 1e-9, 1e6, "a job draws some power"),
    Quantity("board_energy", r"Q_\mathrm{b}", "MWh", "Energy of all boards so far", "observed", "energy", 1e-12, 1e12,
             "a job uses some energy"),
    Quantity("it_energy", r"Q_\mathrm{IT}", "MWh", "IT energy of the whole job so far", "observed", "energy", 1e-12,
             1e12, "a job uses some energy"),
    Quantity("facility_energy", r"Q", "MWh", "Facility energy of the whole job so far", "observed", "energy", 1e-12,
             1e12, "a job uses some energy"),
)  # fmt: skip

BY_NAME: dict[str, Quantity] = {quantity.name: quantity for quantity in QUANTITIES}
INPUTS: tuple[str, ...] = tuple(q.name for q in QUANTITIES if q.role == "input")
# What every scenario has; `outputs_of` adds what belongs to parts that only some state.
OUTPUTS: tuple[str, ...] = tuple(q.name for q in QUANTITIES if q.role == "output" and not q.part)
SCENARIO: tuple[str, ...] = tuple(q.name for q in QUANTITIES if q.role == "scenario")
# The first dimensions of a Sobol' sequence fill space best, so they go to the inputs that nearly always vary.
DIMENSION: dict[str, int] = {name: i for i, name in enumerate(INPUTS)} | {n: 40 + i for i, n in enumerate(SCENARIO)}


def outputs_of(parts: Collection[str]) -> tuple[str, ...]:
    """Return the outputs of a scenario that states some parts, in the order of the table."""
    return tuple(q.name for q in QUANTITIES if q.role == "output" and (not q.part or q.part in parts))
