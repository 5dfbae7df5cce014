"""What a scenario file may hold, as strict frozen models; the published JSON Schema is generated from them.

The models check structure. Units, physical bounds and names of accelerators and regions are checked in
`gpustack_mc.scenario`, where the place in the file and the quantity are known.
"""

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    Tag,
    create_model,
)

from gpustack_mc.quantities import BY_NAME, INPUTS, OBSERVED, outputs_of

SCHEMA_ID = "https://gpustack-mc.github.io/schema/scenario-v1.json"

Amount = Annotated[
    StrictInt | StrictFloat | StrictStr,
    Field(description="A number, or a number with a unit such as '0.08 USD/kWh'", examples=[0.4, "0.08 USD/kWh"]),
]


class Strict(BaseModel):
    """Base of every part: unknown keys are errors, nothing changes after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Interval(Strict):
    """The form people think in: "90% between 0.32 and 0.45"; equal tails on both sides."""

    low: Amount
    high: Amount
    mass: StrictFloat | StrictInt = Field(0.9, description="Probability inside, above 0 and below 1")


class Quantiles(Strict):
    """Exactly two quantiles, for instance a median and a 90th percentile."""

    p05: Amount | None = None
    p10: Amount | None = None
    p25: Amount | None = None
    median: Amount | None = None
    p75: Amount | None = None
    p90: Amount | None = None
    p95: Amount | None = None


class Distribution(Strict):
    """A named distribution with its usual parameters."""

    dist: Literal["normal", "truncated_normal", "lognormal", "logit_normal", "uniform", "log_uniform", "triangular",
                  "pert", "beta", "gamma", "student_t"]  # fmt: skip
    mean: Amount | None = None
    sd: Amount | None = None
    median: Amount | None = Field(None, description="lognormal and logit_normal: instead of mu")
    mu: StrictFloat | StrictInt | None = Field(None, description="Mean of the log or logit")
    sigma: StrictFloat | StrictInt | None = Field(None, description="Standard deviation of the log or logit")
    low: Amount | None = None
    mode: Amount | None = None
    high: Amount | None = None
    a: StrictFloat | StrictInt | None = None
    b: StrictFloat | StrictInt | None = None
    shape: StrictFloat | StrictInt | None = None
    scale: Amount | None = None
    df: StrictFloat | StrictInt | None = None
    loc: Amount | None = None


class FittedPrior(Strict):
    """A shipped prior by name, optionally for another population than the scenario's own."""

    prior: StrictStr = Field(description="Name of the prior: a quantity, see `gpustack-mc priors list`")
    where: dict[str, StrictStr | StrictInt] = Field(default_factory=dict, description="Facts, e.g. {year: 2024}")


class Sample(Strict):
    """An empirical sample: each value is equally likely."""

    sample: list[Amount] = Field(min_length=2, max_length=10_000)


class Choice(Strict):
    """A few alternatives, with weights that need not sum to one."""

    choice: list[Amount] = Field(min_length=1, max_length=1000)
    weights: list[StrictFloat | StrictInt] | None = None


FORMS: dict[str, type[Strict]] = {
    "interval": Interval,
    "quantiles": Quantiles,
    "distribution": Distribution,
    "fitted": FittedPrior,
    "sample": Sample,
    "choice": Choice,
}


def form_of(value: Any) -> str:
    """Name the form of a value from the keys it has, so that an error speaks of one form and not of seven."""
    if not isinstance(value, dict | Strict):
        return "amount"
    keys = set(value) if isinstance(value, dict) else set(value.model_fields_set)
    for key, form in (("dist", "distribution"), ("prior", "fitted"), ("sample", "sample"), ("choice", "choice")):
        if key in keys:
            return form
    return "quantiles" if keys & {"median", "p05", "p10", "p25", "p75", "p90", "p95"} else "interval"


Value = Annotated[
    Annotated[Amount, Tag("amount")]
    | Annotated[Interval, Tag("interval")]
    | Annotated[Quantiles, Tag("quantiles")]
    | Annotated[Distribution, Tag("distribution")]
    | Annotated[FittedPrior, Tag("fitted")]
    | Annotated[Sample, Tag("sample")]
    | Annotated[Choice, Tag("choice")],
    Discriminator(form_of),
]


class Phase(Strict):
    """One phase of the run, for instance pre-training or long-context extension; what it omits is the run's."""

    name: StrictStr = Field(min_length=1, max_length=80)
    tokens: Value
    sequence_length: StrictInt | None = Field(None, gt=0, description="Tokens per sequence; needs n_layers, d_model")
    precision: Literal["bf16", "fp16", "fp8"] | None = None
    count: Value | None = Field(None, description="Accelerators during this phase")
    mfu: Value | None = None
    goodput: Value | None = None


class Workload(Strict):
    """What is trained."""

    params: Value = Field(description="Total parameters, e.g. 70e9")
    active_params: Value | None = Field(None, description="Parameters used for each token, in a mixture of experts")
    tokens: Value | None = Field(None, description="Training tokens; or state phases")
    phases: list[Phase] | None = Field(None, min_length=1, max_length=16)
    architecture: Literal["dense", "moe", "encoder", "ssm"] | None = Field(
        None, description="moe when active_params is stated, else dense"
    )
    n_layers: StrictInt | None = Field(None, gt=0, le=100_000)
    d_model: StrictInt | None = Field(None, gt=0, le=10_000_000)
    sequence_length: StrictInt | None = Field(None, gt=0, le=100_000_000, description="Tokens per sequence")
    global_batch_tokens: StrictInt | StrictFloat | None = Field(None, gt=0, description="Tokens per optimiser step")
    activation_recompute: Literal["none", "selective", "full"] | None = None
    flash_attention: StrictBool | None = None


class Cluster(Strict):
    """What it is trained on."""

    accelerator: StrictStr = Field(description="Name as in `gpustack-mc accelerators`, e.g. H100-SXM-80GB")
    count: Value = Field(description="Accelerators working at the same time")
    precision: Literal["bf16", "fp16", "fp8"] = "bf16"


class Site(Strict):
    """Where it is trained; selects the priors of electricity price, grid, PUE and water."""

    region: StrictStr = Field("WORLD", description="US, US-CA, CA-QC, FR, gcp:europe-west1, ...; see `regions`")
    operator: Literal["hyperscaler", "colocation", "hpc", "enterprise"] | None = None
    carbon_basis: Literal["direct", "lifecycle"] | None = Field(
        None, description="Emissions at the stack only, or with fuel supply and plant construction"
    )
    carbon_accounting: Literal["location", "market"] = "location"


class Market(Strict):
    """Where accelerators are rented; selects the prior of the rental price."""

    provider_kind: Literal["hyperscaler", "neocloud", "marketplace"] | None = None
    term: Literal["on_demand", "1yr", "3yr", "spot"] = "on_demand"


class Correlation(Strict):
    """Rank correlation (Spearman) between two inputs, realised by a Gaussian copula."""

    between: list[StrictStr] = Field(min_length=2, max_length=2)
    rank: StrictFloat | StrictInt = Field(gt=-1, lt=1)


class Questions(Strict):
    """Limits whose probability of being kept is asked for."""

    budget: Amount | None = Field(None, description="Money, e.g. 15 MUSD")
    deadline: Amount | None = Field(None, description="Time, e.g. 30 d, or a date where `start` is stated")
    carbon_cap: Amount | None = Field(None, description="Emissions, e.g. 3000 t")
    energy_cap: Amount | None = Field(None, description="Energy, e.g. 10 GWh")
    power_cap: Amount | None = Field(None, description="Power, e.g. 12 MW")
    ask: list[StrictStr] = Field(
        default_factory=list,
        max_length=50,
        description="Conditions, e.g. 'budget and deadline' or 'programme_cost_owned_usd <= 40 MUSD'",
    )


class Published(Strict):
    """A public figure to hold against the interval."""

    value: Amount
    source: StrictStr
    url: StrictStr | None = None
    outside: StrictStr | None = Field(None, description="Why the 90% interval does not hold it, where it does not")


def _described(name: str) -> str:
    return f"{BY_NAME[name].description} [{BY_NAME[name].unit}]"


_VALUE_OR_NONE = Value | None
Inputs = create_model(
    "Inputs",
    __base__=Strict,
    __doc__="What is known about the inputs; what is not named uses the fitted prior.",
    **{
        name: (_VALUE_OR_NONE, Field(None, description=_described(name)))
        for name in (*(name for name in INPUTS if not BY_NAME[name].part), "peak_flop_per_s", "tdp", "carbon_price")
    },  # type: ignore[call-overload]
)

Convention = Literal["6N_only", "6N+attn_causal", "6N+attn_full", "6N+attn_unspecified", "hw_recompute", "unknown"]
Observed = create_model(
    "Observed",
    __base__=Strict,
    __doc__="What was measured on a job that runs: the rest is forecast from it, and the part already spent is fixed.",
    **{q.name: (Amount | None, Field(None, description=f"{q.description} [{q.unit}]")) for q in OBSERVED},
    mfu_convention=(Convention, Field("unknown", description="What the FLOP of observed.mfu count")),
)  # type: ignore[call-overload]


class Reliability(Strict):
    """Goodput from failures and checkpoints, instead of the goodput that published runs had.

    How often an accelerator interrupts the run is `interruption_rate`, an input like any other.
    """

    checkpoint_interval: Value = Field("best", description=f"{_described('checkpoint_interval')}, or best")
    checkpoint_save_time: Value | None = Field(None, description=_described("checkpoint_save_time"))
    restart_time: Value | None = Field(None, description=_described("restart_time"))
    unexplained_loss: Value | None = Field(None, description=_described("unexplained_loss"))
    checkpointing: Literal["asynchronous", "synchronous"] | None = Field(
        None, description="Whether training goes on while a checkpoint is written; selects the prior of the save time"
    )
    recovery: Literal["in_place", "restart", "manual"] | None = Field(
        None, description="Healthy processes stay alive, the job starts anew by itself, or somebody restarts it"
    )


class SiteShare(Strict):
    """One of several sites that train one model together."""

    name: StrictStr = Field(min_length=1, max_length=80)
    count: StrictInt = Field(gt=0, description="Accelerators there; those of all sites add up to cluster.count")
    availability: Value = Field(description=_described("availability"))
    mean_outage: Value = Field(description=_described("mean_outage"))
    link_speed: Value | None = Field(
        None, description=f"{_described('link_speed')}; stated for all sites or for none, which counts no exchanges"
    )


class Distributed(Strict):
    """A run spread over several sites that fail."""

    mode: Literal["lockstep", "survivors", "local_steps"] = Field(
        description="Works while all sites are up; goes on with those that are; or each alone, averaging now and then"
    )
    sites: list[SiteShare] = Field(min_length=2, max_length=16)
    averaging_steps: StrictInt | None = Field(
        None, gt=0, description=f"{_described('averaging_steps')}; for local_steps, which needs it"
    )
    exchange_bytes: Value | None = Field(None, description=_described("exchange_bytes"))
    rejoin_time: Value | None = Field(None, description=f"{_described('rejoin_time')}; the prior of restart_time")
    idle_power_fraction: Value | None = Field(None, description=_described("idle_power_fraction"))
    extra_tokens: Value | None = Field(None, description=_described("extra_tokens"))


PublishedFigures = create_model(
    "PublishedFigures",
    __base__=Strict,
    __doc__="Public figures for this run, by output.",
    **{name: (Published | None, Field(None, description=_described(name))) for name in outputs_of(("reliability",))},  # type: ignore[call-overload]
)


class ScenarioFile(Strict):
    """One training run to put intervals on."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        json_schema_extra={"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA_ID},
    )

    schema_version: Literal[1]
    name: StrictStr = Field(min_length=1, max_length=200)
    description: StrictStr = ""
    date: StrictStr | StrictInt | None = Field(
        None, description="Year or date of the run; selects prices of that time. Newest data when omitted"
    )
    start: StrictStr | None = Field(
        None, description="Day on which the run starts, e.g. 2027-01-15; a deadline may then be a date"
    )
    accounting: Literal["published", "clean"] = Field(
        "published", description="Hours as published records count them, rounding and extras included, or exactly"
    )
    ownership: Literal["own", "rent", "either"] = Field("either", description="Which cost the answer speaks of")
    workload: Workload
    cluster: Cluster
    site: Site = Site()
    market: Market = Market()
    reliability: Reliability | None = Field(None, description="When stated, goodput follows from it")
    distributed: Distributed | None = Field(None, description="When stated, the run is spread over these sites")
    inputs: Inputs = Inputs()
    observed: Observed | None = Field(None, description="Measured on this job so far; needs days")
    correlations: list[Correlation] = Field(default_factory=list, max_length=400)
    questions: Questions = Questions()
    exchange_rates: dict[Annotated[str, Field(pattern="^[A-Z]{3}$")], StrictFloat | StrictInt] = Field(
        default_factory=dict, description="USD per unit of another currency, e.g. {EUR: 1.08}"
    )
    published: PublishedFigures = PublishedFigures()


PARTS: dict[tuple[str, ...], type[BaseModel]] = {
    (): ScenarioFile,
    ("workload",): Workload,
    ("workload", "phases"): Phase,
    ("cluster",): Cluster,
    ("site",): Site,
    ("market",): Market,
    ("reliability",): Reliability,
    ("distributed",): Distributed,
    ("distributed", "sites"): SiteShare,
    ("inputs",): Inputs,
    ("observed",): Observed,
    ("correlations",): Correlation,
    ("questions",): Questions,
    ("published",): PublishedFigures,
    ("published", "*"): Published,
}


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a scenario file, for editors and other tools."""
    return ScenarioFile.model_json_schema()
