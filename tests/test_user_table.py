"""A user's table for calibrate: what a row measures, CodeCarbon's log, and what is said of rows that cannot be used."""

import math

import pytest

from gpustack_mc.errors import InputError
from gpustack_mc.run_columns import COLUMNS, MEASURED, NAMES, chip_names
from gpustack_mc.user_table import IT_POWER, read_table

HEADER = "run_id,params_active,tokens,accelerator,accelerator_hours"
GOOD = "a,7e9,1e12,A100-SXM-80GB,100000"
U = 6 * 7e9 * 1e12 / (1e5 * 3600 * 312e12)


@pytest.fixture
def table(tmp_path):
    def write(*lines: str, header: str = HEADER):
        path = tmp_path / "runs.csv"
        path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
        return read_table(path)

    return write


def only(found):
    (run,) = found.runs
    return run


def test_hours_tell_utilisation(table):
    run = only(table(GOOD))
    assert run.utilization == (("total", pytest.approx(math.log(U))),)
    assert (run.line, run.run_id, run.row["tier"], run.row["generation"]) == (2, "a", "A", "ampere")


@pytest.mark.parametrize(
    ("more", "cells", "expected"),
    [
        ("hours_cover", "compute-only", [("compute_only", U)]),
        ("hours_basis", "throughput_x_tokens", [("compute_only", U)]),
        # With the goodput the lost time is known, and the rest is utilisation of the productive time.
        ("goodput", "0.9", [("compute_only", U / 0.9)]),
        ("mfu,mfu_convention", "0.5,6N_only", [("total", U), ("mfu", 0.5)]),
        ("tokens_per_second_per_accelerator", "3000", [("total", U), ("compute_only", 6 * 7e9 * 3000 / 312e12)]),
        ("tokens_per_second,n_accelerators", "6e5,200", [("total", U), ("compute_only", 6 * 7e9 * 3000 / 312e12)]),
        ("step_time_s,n_accelerators,global_batch_tokens", "7,200,4.2e6",
         [("total", U), ("compute_only", 6 * 7e9 * 3000 / 312e12)]),
    ],
)  # fmt: skip
def test_what_a_row_says_of_utilisation(table, more, cells, expected):
    run = only(table(f"{GOOD},{cells}", header=f"{HEADER},{more}"))
    assert [(kind, pytest.approx(math.exp(value))) for kind, value in run.utilization] == expected


def test_duration_stands_in_for_hours(table):
    run = only(table("a,7e9,1e12,A100,10,500", header="id,params,tokens,accelerator,wall_clock_days,n_accelerators"))
    assert math.exp(run.utilization[0][1]) == pytest.approx(6 * 7e9 * 1e12 / (10 * 24 * 500 * 3600 * 312e12))


@pytest.mark.parametrize(
    ("more", "cells", "expected"),
    [
        ("mean_gpu_power_w", "320", [("gpu_power_fraction", 0.8)]),
        ("mean_gpu_power_w,it_power_w_per_accelerator", "320,600", [("gpu_power_fraction", 0.8), ("host_power", 280)]),
        ("it_power_w_per_accelerator", "600", [(IT_POWER, 600)]),
        ("facility_power_w_per_accelerator,pue", "660,1.1", [("pue", 1.1), (IT_POWER, 600)]),
        ("energy_mwh,energy_basis", "32,measured_gpu", [("gpu_power_fraction", 0.8)]),
        ("energy_mwh,energy_basis", "60,measured_it", [(IT_POWER, 600)]),
        ("grid_gco2_per_kwh", "57", [("grid_intensity", 57)]),
        ("electricity_price,rental_price,lifetime", "0.07,2.1,5",
         [("electricity_price", 0.07), ("lifetime", 5), ("rental_price", 2.1)]),
    ],
)  # fmt: skip
def test_what_a_row_says_of_other_inputs(table, more, cells, expected):
    run = only(table(f"{GOOD},{cells}", header=f"{HEADER},{more}"))
    assert [(name, pytest.approx(value)) for name, value in run.measured] == expected


def test_a_measurement_needs_nothing_else(table):
    found = table("0.07,US-TX", "0.08,texas", header="electricity_price,region")
    assert [run.facts["region"] for run in found.runs] == ["US-TX", "US-TX"]
    assert [run.run_id for run in found.runs] == ["line 2", "line 3"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("b,7e9,1e12,A100,0", "accelerator_hours is 0: it must be above zero"),
        ("b,7e9,1e12,A100,0.1", "hours in millions or per accelerator?"),
        ("b,7e9,1e12,A100,1e9", "below 0.001"),
        ("b,7e9,1e12,A100,1e308", "above 1e+12: in h."),
        ("b,7,1e12,A100,1e5", "params in billions? write 7e9"),
        ("b,7e9,1000,A100,1e5", "tokens in billions? write 2e12"),
        ("b,7e9,1e12,A1000,1e5", "Did you mean A100"),
        ("b,7e9,1e12,A100,nan", "is not a number: 'nan'"),
        ("b,7e9,1e12,A100,1_000", "is not a number"),
        ("a,7e9,1e12,A100,1e5", "run id 'a' is already on line 2"),
        ("b,7e9,1e12,A100,1,000", "more cells than the header"),
        ("b,7e9,1e12,,1e5", "hours tell utilisation only with accelerator"),
        ("b,,,A100,1e5", "hours tell utilisation only with params_active and tokens"),
        ("b,7e9,1e12,A100,", "no measurement on this line"),
    ],
)
def test_a_row_that_cannot_be_used_says_why(table, line, said):
    found = table(GOOD, line)
    assert [run.run_id for run in found.runs] == ["a"]
    assert found.skipped[0].line == 3
    assert said in found.skipped[0].reason


@pytest.mark.parametrize(
    ("more", "cell", "said"),
    [
        ("precision", "bf61", "Did you mean bf16"),
        ("mean_gpu_power_w", "2500", "power of several accelerators? write that of one"),
        ("energy_mwh,energy_basis", "32000000,measured_gpu", "kWh for MWh?"),
        ("mean_gpu_power_w,it_power_w_per_accelerator", "390,380", "not above board power"),
        ("region", "Atlantis", "not a known region"),
        ("date", "yesterday", "not a date"),
        ("kind", "throughput_benchmark", "not a training run"),
        ("mfu_convention", "PaLM", "mfu_convention is 'PaLM'"),
    ],
)
def test_a_cell_without_which_the_row_says_something_else_sets_it_aside(table, more, cell, said):
    found = table(f"{GOOD}{',' * (1 + more.count(','))}", f"b{GOOD[1:]},{cell}", header=f"{HEADER},{more}")
    assert len(found.runs) == 1
    assert (found.skipped[0].line, said in found.skipped[0].reason) == (3, True), found.skipped


@pytest.mark.parametrize(
    ("more", "cell", "said"),
    [
        ("mfu", "38", "38% is written 0.38"),
        ("goodput", "1.2", "above 1"),
        ("goodput", "1e-300", "below 0.001: a share"),
        ("mfu", "1e-300", "below 0.001: a share"),
        ("pue", "0.9", "at least 1"),
        ("electricity_price", "71", "between -1 and 10 USD/kWh"),
        ("sequence_length", "long", "sequence_length is not a number"),
        ("flash_attention", "maybe", "flash_attention is 'maybe'"),
    ],
)
def test_a_cell_that_the_rest_does_not_need_costs_itself_alone(table, more, cell, said):
    found = table(f"{GOOD},{cell}", header=f"{HEADER},{more}")
    assert not found.skipped and [unused.line for unused in found.unused] == [2]
    assert said in found.unused[0].reason
    # The row is used as if the cell were empty.
    assert found.runs[0] == table(f"{GOOD},", header=f"{HEADER},{more}").runs[0]


def test_a_wrong_cell_that_is_needed_is_named_with_what_needs_it(table):
    found = table("a,7e9,200,A100,1e5,1.2", header=f"{HEADER},pue")
    assert found.runs[0].utilization == () and found.runs[0].measured == (("pue", 1.2),)
    reasons = [unused.reason for unused in found.unused]
    assert reasons[0] == "hours tell utilisation only with tokens." and "tokens in billions" in reasons[1]


@pytest.mark.parametrize(
    ("more", "cells", "said"),
    [
        ("energy_mwh", "32", "needs energy_basis"),
        ("energy_mwh,energy_basis", "32,tdp_times_hours", "is no measurement"),
        ("energy_mwh,energy_basis", "32,codecarbon (GPU measured)", "give its emissions.csv"),
        ("facility_power_w_per_accelerator", "700", "only with pue"),
        ("mfu,mfu_kind", "0.6,peak_benchmark", "no average of a run"),
        ("step_time_s", "7", "only with n_accelerators and global_batch_tokens"),
    ],
)
def test_what_a_used_row_cannot_tell_is_said(table, more, cells, said):
    found = table(f"{GOOD},{cells}", header=f"{HEADER},{more}")
    assert len(found.runs) == 1
    assert (found.unused[0].line, said in found.unused[0].reason) == (2, True), found.unused


@pytest.mark.parametrize(
    ("content", "code", "line", "said"),
    [
        (b"", "empty-file", None, "--columns` lists all"),
        (HEADER.encode(), "no-rows", None, "no rows"),
        (b"red,green\n1,2\n", "no-header", 1, "no known column"),
        (b"run_id,tokens\na,1e12\n", "missing-columns", 1, "accelerator_hours"),
        (b"run_id,acclerator_hours\na,5\n", "missing-columns", 1, "Did you mean accelerator_hours?"),
        (b"run_id;pue\na;1.2\n", "separator", 1, "commas"),
        (b"pue,pue\n1,1\n", "double-column", 1, "pue appears twice"),
        (b"mfu,mfu_reported\n1,1\n", "double-column", 1, "mfu_reported appears twice"),
        (b"run_id,pue\na,1.2\nb\xe9,1.3\n", "not-utf8", 3, "UTF-8"),
        (b"run_id,pue\na,0.2\n", "no-usable-row", 2, "below 1"),
        (b'run_id,pue\na,1.2\n"b,1.3\nc,1.4\n', "csv", 3, "a quote is opened and never closed"),
    ],
)
def test_a_file_that_cannot_be_used_says_where_and_why(tmp_path, content, code, line, said):
    path = tmp_path / "runs.csv"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_table(path)
    assert (caught.value.code, caught.value.place.line, caught.value.exit_code) == (code, line, 2)
    assert said in str(caught.value)


def test_quotes_that_are_no_cell_are_read_and_a_name_cannot_steer_a_terminal(table):
    """Only a quote that swallows the rest is refused; \\x1b[31m would turn a terminal red."""
    found = table('5" disk,1.2', '"b"x,1.3', "\x1b[31mred\x00,1.4", header="run_id,pue")
    assert [run.run_id for run in found.runs] == ['5" disk', "bx", "?[31mred?"]


def test_a_column_that_looks_like_one_that_is_read_is_named(table):
    found = table(f"{GOOD},0.07", header=f"{HEADER},electricity_prise")
    assert "Did you mean electricity_price?" in found.notes[0]


def test_the_shared_columns_of_published_runs_are_read_as_they_are(root):
    """The shipped rows have the columns of a published table; all full runs with hours must be usable."""
    import csv

    path = root / "priors" / "utilization" / "data.csv"
    with path.open(encoding="utf-8", newline="") as stream:
        wanted = {row["id"] for row in csv.DictReader(stream) if row["kind"] == "training" and row["use"] == "yes"}
    found = read_table(path)
    used = {run.run_id for run in found.runs if any(kind != "mfu" for kind, _ in run.utilization)}
    assert wanted <= used, wanted - used


# ---- CodeCarbon -----------------------------------------------------------------------------------------------------
CODECARBON = (
    "timestamp,project_name,run_id,duration,emissions,emissions_rate,cpu_power,gpu_power,ram_power,cpu_energy,"
    "gpu_energy,ram_energy,energy_consumed,country_name,country_iso_code,region,cpu_count,cpu_model,gpu_count,"
    "gpu_model,tracking_mode,on_cloud,pue"
)


def tracked(run_id="r1", hours=20.0, kwh=98.56, count=8, model="8 x NVIDIA H100 80GB HBM3", pue="1.1"):
    return (
        f"2025-03-01T10:00:00,codecarbon,{run_id},{hours * 3600},30,0,42.5,4500,377,0.85,{kwh},7.5,106.8,Germany,DEU,"
        f"hesse,128,AMD EPYC,{count},{model},machine,N,{pue}"
    )


def test_codecarbon_tells_board_power_without_its_pue_factor(table):
    found = table(tracked(), header=CODECARBON)
    run = only(found)
    # 98.56 kWh / 1.1 over 20 h of 8 boards are 560 W, 0.8 of 700 W
    assert dict(run.measured) == {"gpu_power_fraction": pytest.approx(0.8), "pue": 1.1}
    assert (run.facts["accelerator"], run.facts["region"], run.facts["year"]) == ("H100-SXM-80GB", "DE", 2025)
    assert not run.utilization
    assert "parameters and tokens" in found.notes[0]


def test_codecarbon_rows_that_tell_nothing(tmp_path):
    path = tmp_path / "emissions.csv"
    rows = [tracked(), tracked("r2", 10, 49), tracked("r2", 11, 54), tracked("r3", 0.05, 0.2),
            tracked("r4", model="1 x RTX 4090"), tracked("r5", kwh=0, count="", model="", pue="1.0")]  # fmt: skip
    path.write_text("\n".join([CODECARBON, *rows]) + "\n", encoding="utf-8")
    found = read_table(path, shortest_hours=0.1)
    assert [(run.run_id, run.line) for run in found.runs] == [("r1", 2), ("r2", 4)]
    said = {skip.line: skip.reason for skip in found.skipped}
    assert "logged again on line 4" in said[3]
    assert "shorter than 6 minutes" in said[5]
    assert "not a known accelerator" in said[6]
    assert "no board power" in said[7]


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("8 x NVIDIA A100-SXM4-40GB", "A100-SXM-40GB"),
        ("1 x NVIDIA A100 80GB PCIe", "A100-PCIe"),
        ("4 x NVIDIA H100 80GB HBM3", "H100-SXM-80GB"),
        ("2 x Tesla V100-SXM2-16GB", "V100-SXM2"),
    ],
)
def test_names_of_the_driver_are_found(table, model, name):
    run = only(table(tracked(model=model, kwh=20), header=CODECARBON))
    assert run.facts["accelerator"] == name
    assert chip_names(model)[0] == model.split(" x ")[1]


# ---- the table of columns -------------------------------------------------------------------------------------------
def test_every_column_is_described_and_every_name_is_one_columns():
    assert all(column.description for column in COLUMNS.values())
    assert len(NAMES) == sum(1 + len(column.aliases) for column in COLUMNS.values())
    assert {"accelerator_hours", "mfu_reported", "electricity_price", "capex"} <= set(MEASURED)
