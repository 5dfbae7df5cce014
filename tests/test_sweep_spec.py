"""What a sweep says: axes, ranges, tables, and what is wrong with them."""

import textwrap

import pytest

from gpustack_mc.errors import InputError
from gpustack_mc.sweep_spec import duration, read_sweep, shown
from gpustack_mc.sweep_table import read_workloads


@pytest.fixture
def spec(tmp_path):
    def write(axes: str, more: str = "", base: str = "llama-3-70b"):
        text = f"schema_version: 1\nbase: {base}\n{more}\naxes:\n" + textwrap.indent(textwrap.dedent(axes), "  ")
        path = tmp_path / "sweep.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_axes_are_crossed_and_the_last_one_changes_fastest(spec):
    sweep = read_sweep(spec("cluster.count: [64, 128]\nsite.region: [US, FR, SE]\n"))
    assert sweep.count == 6
    assert [sweep.label(i) for i in range(6)] == ["64, US", "64, FR", "64, SE", "128, US", "128, FR", "128, SE"]
    assert sweep.settings(4) == ((("cluster", "count"), 128), (("site", "region"), "FR"))


def test_keys_that_change_together_are_one_axis(spec):
    sweep = read_sweep(
        spec("size: {zip: {workload.params: [1e9, 7e9], workload.tokens: [2e12, 1e13]}}\nmfu: [0.3, 0.4]\n")
    )
    assert sweep.count == 4
    assert sweep.settings(3) == (
        (("workload", "params"), 7e9), (("workload", "tokens"), 1e13), (("inputs", "mfu"), 0.4),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("written", "values"),
    [
        ("{from: 1, to: 2, step: 0.25}", [1, 1.25, 1.5, 1.75, 2]),
        ("{from: 0.1, to: 0.7, step: 0.1}", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]),
        ("{from: 1, to: 1000, points: 4, scale: log}", [1, 10, 100, 1000]),
        ("{from: 0, to: 1, points: 5}", [0, 0.25, 0.5, 0.75, 1]),
        ("{from: 40 USD/MWh, to: 80 USD/MWh, step: 20}", ["40.0 USD/MWh", "60.0 USD/MWh", "80.0 USD/MWh"]),
    ],
)
def test_ranges(spec, written, values):
    (axis,) = read_sweep(spec(f"inputs.electricity_price: {written}\n")).axes
    assert [row[0] for row in axis.rows] == values


def test_a_range_of_accelerators_is_of_whole_numbers(spec):
    (axis,) = read_sweep(spec("cluster.count: {from: 100, to: 1000, points: 5, scale: log}\n")).axes
    assert [row[0] for row in axis.rows] == [100, 178, 316, 562, 1000]


@pytest.mark.parametrize(
    ("axes", "code", "message"),
    [
        ("cluster.count: []\n", "empty-axis", "has no values"),
        ("cluster.count: {from: 5, to: 5, points: 3}\n", "empty-axis", "no linear range"),
        ("cluster.count: {from: 0, to: 5, points: 3, scale: log}\n", "empty-axis", "above 0"),
        ("cluster.count: {from: 1, to: 5, points: 1}\n", "bad-sweep", "not between 2"),
        ("cluster.count: {from: 1, to: 5}\n", "bad-sweep", "needs step or points"),
        ("cluster.count: {from: 1, to: 1e9, step: 1}\n", "bad-sweep", "1,000,000,000 values"),
        ("inputs.electricity_price: {from: 40 USD/MWh, to: 80, points: 3}\n", "mixed-units", "USD/MWh and no unit"),
        ("cluster.count: [8, 8]\n", "double-value", "twice"),
        ("cluster.count: 8\n", "bad-sweep", "neither a list nor a range"),
        ("cluster.count: [8, null]\n", "no-value", "no value"),
        ("clutser.count: [8]\n", "unknown-key", "Did you mean cluster"),
        ("mfu: [0.3]\ninputs.mfu: [0.4]\n", "bad-sweep", "on two axes"),
        ("a: {zip: {cluster.count: [1, 2], mfu: [0.3]}}\n", "bad-sweep", "cluster.count has 2, mfu has 1"),
        ("a: {zip: {}}\n", "bad-sweep", "not a mapping of keys"),
    ],
)
def test_what_is_wrong_with_axes(spec, axes, code, message):
    with pytest.raises(InputError, match=message) as found:
        read_sweep(spec(axes))
    assert found.value.code == code and found.value.place.line


def test_too_many_combinations_are_refused_with_their_number_and_time(spec):
    axes = "".join(
        f"inputs.{name}: {{from: 0.1, to: 0.9, points: 1000}}\n" for name in ("mfu", "goodput", "residual_share")
    )
    with pytest.raises(
        InputError, match=r"1,000,000,000 scenarios \(1,000 x 1,000 x 1,000\) would take about \d+ days"
    ):
        read_sweep(spec(axes))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("schema_version: 1\nbase: llama-3-70b\n", "neither is stated"),
        ("schema_version: 2\nbase: llama-3-70b\naxes: {mfu: [0.3]}\n", "must be 1"),
        ("schema_version: 1\naxes: {mfu: [0.3]}\n", "base: is missing"),
        ("schema_version: 1\nbase: nowhere\naxes: {mfu: [0.3]}\n", "no such file"),
        ("schema_version: 1\nbase: llama-3-70b\naxis: {mfu: [0.3]}\n", "Did you mean axes"),
        ("schema_version: 1\nbase: llama-3-70b\naxes: {}\n", "has no axis"),
        ("schema_version: 1\nbase: llama-3-70b\naxes: {mfu: [0.3]}\noutputs: [cost]\n", "no output 'cost'"),
        ("schema_version: 1\nbase: llama-3-70b\naxes: {mfu: [0.3]}\nportfolio: {budget: 5}\n", "has no unit"),
        ("schema_version: 1\nbase: llama-3-70b\naxes: {mfu: [0.3]}\nportfolio: {deadline: 5 d}\n", "is not known"),
        ("workload: {params: 7e9}\n", "this is one scenario"),
        ("- 1\n", "not a mapping"),
    ],
)
def test_what_is_wrong_with_a_file(tmp_path, text, message):
    path = tmp_path / "sweep.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_sweep(path)


def test_a_base_may_stand_in_the_file_and_overrides_change_it(tmp_path):
    path = tmp_path / "sweep.yaml"
    base = "  schema_version: 1\n  name: x\n  workload: {params: 7e9, tokens: 1e12}\n"
    base += "  cluster: {accelerator: A100, count: 8}\n"
    path.write_text(f"schema_version: 1\nbase:\n{base}axes: {{mfu: [0.3]}}\n", encoding="utf-8")
    sweep = read_sweep(path, ("cluster.count=16",))
    assert sweep.document.data["cluster"]["count"] == 16
    assert sweep.document.place(("workload", "params")).line == 5


@pytest.mark.parametrize(
    ("value", "text"),
    [(7e9, "7e9"), (1024, "1,024"), (0.35, "0.35"), ("FR", "FR"), ({"low": 0.3, "high": 5e9}, "{low: 0.3, high: 5e9}"),
     (1.2345678e12, "1.2345678e12"), (123456789.0, "123456789"), (-0.5, "-0.5")],
)  # fmt: skip
def test_values_are_shown_as_people_write_them(value, text):
    assert shown(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.1, "about 1 seconds"), (300, "about 5 minutes"), (4e6, "about 46 days"), (1e9, "about 32 years")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


# ---- tables -------------------------------------------------------------------------------------------------------

HEADER = "name,params,tokens,accelerator,count,region,date\n"


@pytest.fixture
def table(tmp_path):
    def write(text: str):
        path = tmp_path / "table.csv"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_a_row_becomes_a_scenario(table):
    found = read_workloads(table(HEADER + "a,7e9,2e12,H100,512,US-TX,2026-05\n"))
    ((line, name, settings, reported),) = found.rows
    assert (line, name, reported) == (2, "a", {})
    assert dict(settings) == {
        ("workload", "params"): 7e9, ("workload", "tokens"): 2e12, ("cluster", "count"): 512.0,
        ("cluster", "accelerator"): "H100", ("site", "region"): "US-TX", ("date",): "2026-05",
    }  # fmt: skip


def test_the_columns_of_a_table_of_runs(table):
    header = ("run_id,model,params_total,params_active,tokens,accelerator,n_accelerators,publication_date,kind,"
              "flash_attention,n_layers,accelerator_hours,energy_mwh,note\n")  # fmt: skip
    rows = "x,X,1e11,1e10,1e12,H100,256,2024-01-02,training_run,yes,32,1e6,5,hi\n"
    rows += "b,,1e9,1e9,1e12,A100,8,2023,throughput_benchmark,,,,,\n"
    found = read_workloads(table(header + rows))
    ((_, name, settings, reported),) = found.rows
    assert name == "x" and reported == {"accelerator_hours": 1e6, "energy_mwh": 5.0}
    assert dict(settings)[("workload", "active_params")] == 1e10
    assert dict(settings)[("workload", "flash_attention")] is True and dict(settings)[("workload", "n_layers")] == 32
    ((line, reason),) = found.skipped
    assert line == 3 and "throughput_benchmark" in reason
    assert not found.notes


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("b,7,2e12,H100,512,US,2026\n", "params in billions"),
        ("b,7e9,2000,H100,512,US,2026\n", "tokens in billions"),
        ("b,7B,2e12,H100,512,US,2026\n", "not a number"),
        ("b,7e9,2e12,,512,US,2026\n", "accelerator is missing"),
        ("b,7e9,2e12,H100,-4,US,2026\n", "above zero"),
        ("a,7e9,2e12,H100,512,US,2026\n", "'a' is already on line 2"),
        ("b,7e9,2e12,H100,512,US,2026,x\n", "more cells than the header"),
    ],
)
def test_a_bad_row_is_told_and_the_rest_goes_on(table, row, reason):
    found = read_workloads(table(HEADER + "a,7e9,2e12,H100,512,US,2026\n" + row))
    assert [name for _, name, _, _ in found.rows] == ["a"]
    ((line, told),) = found.skipped
    assert line == 3 and reason in told


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        (HEADER.replace("accel", "acel") + "a,1,1,1,1,1,1\n", "unknown-column", "Did you mean accelerator"),
        ("name,params,tokens\na,1,1\n", "missing-columns", "accelerator, count"),
        ("a;b\n1;2\n", "separator", "commas"),
        ("x,y\n1,2\n", "no-header", "no known column"),
        (HEADER.replace("date", "date,year") + "a,7e9,2e12,H100,1,US,1,1\n", "double-column", "date appears twice"),
        (HEADER, "no-rows", "no rows"),
        ("", "empty-file", "empty"),
        (HEADER + "a,7,2e12,H100,1,US,2026\n", "no-usable-row", "none of the 1 rows"),
    ],
)  # fmt: skip
def test_a_table_that_cannot_be_used(table, text, code, message):
    with pytest.raises(InputError, match=message) as found:
        read_workloads(table(text))
    assert found.value.code == code


def test_columns_that_nothing_reads_are_told(table):
    found = read_workloads(table(HEADER.replace("date", "date,cost center") + "a,7e9,2e12,H100,1,US,2026,x\n"))
    assert found.notes == ["column 'cost_center' is not read"]


def test_the_base_fills_empty_cells(table):
    path = table("name,params,tokens,count\na,7e9,2e12,\n")
    with pytest.raises(InputError, match="accelerator"):
        read_workloads(path)
    base = {"cluster": {"accelerator": "H100", "count": 8}}
    ((_, _, settings, _),) = read_workloads(path, base).rows
    assert ("cluster", "count") not in dict(settings)


def test_parquet(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs gpustack-mc[parquet]")
    import pyarrow as pa

    path = tmp_path / "table.parquet"
    columns = {"name": ["a", "b"], "params": [7e9, None], "tokens": [2_000_000_000_000, 1], "accelerator": ["H100"] * 2,
               "count": [512, 8], "region": ["US", None], "date": [2026, 2026]}  # fmt: skip
    parquet.write_table(pa.table(columns), path)
    found = read_workloads(path)
    assert [row[:2] for row in found.rows] == [(2, "a")] and dict(found.rows[0][2])[("date",)] == "2026"
    assert found.skipped[0].line == 3 and "params is missing" in found.skipped[0].reason


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = tmp_path / "table.parquet"
    path.write_bytes(b"")
    with pytest.raises(InputError, match=r"gpustack-mc\[parquet\]"):
        read_workloads(path)
