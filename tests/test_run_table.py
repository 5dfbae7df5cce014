"""A user's table of runs: what is read, and what is said of files and rows that cannot be used."""

import time

import pytest

from gpustack_mc.errors import InputError
from gpustack_mc.run_table import read_runs

HEADER = "run_id,params_active,tokens,accelerator,accelerator_hours"
GOOD = "a,7e9,1e12,A100-SXM-80GB,100000"


@pytest.fixture
def table(tmp_path):
    def write(*lines: str, header: str = HEADER):
        path = tmp_path / "runs.csv"
        path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
        return path

    return write


def test_a_row_gets_its_accelerator_and_family(table):
    rows, skipped = read_runs(table(GOOD))
    assert not skipped
    (row,) = rows
    assert (row["run_id"], row["family"], row["line"]) == ("a", "a", 2)
    assert (row["generation"], row["peak_16bit_flop_per_s"]) == ("ampere", 312e12)
    assert (row["params_active"], row["tokens"], row["accelerator_hours"]) == (7e9, 1e12, 1e5)


def test_columns_in_any_order_and_unknown_ones(table):
    header = " Accelerator ,colour,TOKENS,id,params_total,accelerator_hours,n_accelerators,precision,family"
    rows, _ = read_runs(table("A100,red,1e12,x,7e9,1e5,64,BF16,us", header=header))
    assert rows[0]["params_active"] == 7e9
    assert (rows[0]["n_accelerators"], rows[0]["precision"], rows[0]["family"]) == (64.0, "bf16", "us")


def test_names_that_calibrate_knows_are_read_as_well(table):
    from gpustack_mc import run_columns, run_table

    rows, _ = read_runs(
        table("x,7e9,1e12,A100,1e5,2025-03", header="id,params,tokens,accelerator,accelerator_hours,date")
    )
    assert (rows[0]["params_active"], rows[0]["publication_date"]) == (7e9, "2025-03")
    assert run_table.ALIASES.items() <= run_columns.NAMES.items()


def test_alias_of_an_accelerator_byte_order_mark_and_carriage_returns(tmp_path):
    path = tmp_path / "excel.csv"
    path.write_bytes(b"\xef\xbb\xbf" + f"{HEADER}\r\n\r\na,7e9,1e12,a100 80gb,1e5\r\n".encode())
    rows, _ = read_runs(path)
    assert (rows[0]["accelerator"], rows[0]["line"]) == ("A100-SXM-80GB", 3)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("b,7e9,1e12,A100-SXM-80GB,", "accelerator_hours is missing"),
        ("b,7e9,1e12,A100-SXM-80GB,unknown", "accelerator_hours is missing"),
        ("b,7e9,1e12,A100-SXM-80GB,0", "accelerator_hours is 0: it must be above zero"),
        ("b,7e9,1e12,A100-SXM-80GB,-5", "must be above zero"),
        ("b,7,1e12,A100-SXM-80GB,1e5", "params in billions? write 7e9"),
        ("b,7B,1e12,A100-SXM-80GB,1e5", "params_active is not a number: '7B'"),
        ("b,7e9,nan,A100-SXM-80GB,1e5", "tokens is not a number"),
        ("b,7e9,inf,A100-SXM-80GB,1e5", "tokens is not a number"),
        ("b,7e9,1_000,A100-SXM-80GB,1e5", "tokens is not a number"),
        ("b,7e9,1000,A100-SXM-80GB,1e5", "tokens in billions? write 2e12"),
        ("b,7e9,1e12,A100-SXM-80GB,0.1", "hours in millions or per accelerator?"),
        ("b,7e9,1e12,A100-SXM-80GB,1e9", "below 0.001"),
        ("b,7e9,1e12,A1000-SXM-80GB,1e5", "Did you mean A100-SXM-80GB"),
        ("b,7e9,1e12,,1e5", "accelerator is missing"),
        ("a,7e9,1e12,A100-SXM-80GB,1e5", "run id 'a' is already on line 2"),
        ("b,7e9,1e12,A100-SXM-80GB,1,000", "more cells than the header"),
        ("b", "accelerator_hours is missing"),
    ],
)
def test_a_row_that_cannot_be_used_says_why(table, line, said):
    rows, skipped = read_runs(table(GOOD, line))
    assert [row["run_id"] for row in rows] == ["a"]
    assert skipped[0].line == 3
    assert said in skipped[0].reason
    assert "\n" not in skipped[0].reason


def test_optional_numbers_and_kinds_are_checked(table):
    header = f"{HEADER},kind,n_accelerators"
    _, skipped = read_runs(
        table(f"{GOOD},training_run,", f"b{GOOD[1:]},throughput_benchmark,8", f"c{GOOD[1:]},,many", header=header)
    )
    assert [skip.line for skip in skipped] == [3, 4]
    assert "throughput_benchmark" in skipped[0].reason
    assert "n_accelerators is not a number" in skipped[1].reason


def test_eight_bit_numbers_may_pass_the_16_bit_peak(table):
    # 6 * 7e9 * 1e12 FLOP in 25,000 h are 1.5 times the 16-bit peak.
    header = f"{HEADER},precision"
    rows, skipped = read_runs(
        table("a,7e9,1e12,A100,25000,fp8", "b,7e9,1e12,A100,25000,bf16", "c,7e9,1e12,A100,15000,fp8", header=header)
    )
    assert [row["run_id"] for row in rows] == ["a"]
    assert ["above 1:" in skip.reason for skip in skipped] == [True, False]
    assert "above 2:" in skipped[1].reason


def test_a_mixture_of_experts_needs_its_active_parameters(table):
    header = "id,params_total,tokens,accelerator,accelerator_hours,architecture"
    rows, skipped = read_runs(table("a,7e9,1e12,A100,1e5,dense", "b,7e9,1e12,A100,1e5,moe", header=header))
    assert [row["run_id"] for row in rows] == ["a"]
    assert "params_active is missing" in skipped[0].reason


def test_lines_count_through_quoted_line_breaks(table):
    header = f"{HEADER},note"
    rows, skipped = read_runs(table(f'{GOOD},"one\ntwo"', "b,7e9,1e12,A100,0,", header=header))
    assert rows[0]["line"] == 2
    assert skipped[0].line == 4


def test_rows_without_id_are_known_by_their_line(table):
    header = HEADER.replace("run_id,", "")
    rows, _ = read_runs(table(GOOD[2:], GOOD[2:], header=header))
    assert [row["run_id"] for row in rows] == ["line 2", "line 3"]


# ---- whole files ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("content", "code", "line", "said"),
    [
        (b"", "empty-file", None, "empty"),
        (b"\n \n", "empty-file", None, "empty"),
        (b"\xef\xbb\xbf", "empty-file", None, "empty"),
        (HEADER.encode(), "no-rows", None, "no rows"),
        (b"1,2,3\n4,5,6\n", "no-header", 1, "no known column"),
        (b"a;7e9;1e12;A100;1e5\n", "separator", 1, "commas"),
        (f"{HEADER}\na,7e9,1e12,A100,0\n".encode(), "no-usable-row", 2, "above zero"),
        (f"{HEADER}\na,7e9,1e12,A100,1e5\nb\xe9,".encode("latin-1"), "not-utf8", 3, "0xe9"),
        (f"{HEADER}\n".encode("utf-16"), "not-utf8", 1, "UTF-8"),
        (b"run_id,params_active,tokens,accelerator,gpu_hours\n", "missing-columns", 1, "gpu_hours"),
        (b"run_id,params_active,tokns,accelerator,accelerator_hours\n", "missing-columns", 1, "mean tokns"),
        (f"{HEADER},tokens\n".encode(), "double-column", 1, "tokens appears twice"),
        (f'{HEADER}\na,7e9,1e12,A100,"{"9" * 140000}'.encode(), "csv", 2, "quote"),
    ],
)
def test_a_file_that_cannot_be_used_says_where_and_why(tmp_path, content, code, line, said):
    path = tmp_path / "runs.csv"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_runs(path)
    error = caught.value
    assert error.code == code
    assert (error.place.file, error.place.line) == (str(path), line)
    assert said in str(error)
    assert error.fix
    assert "\n" not in str(error)


def test_missing_file_and_folder(tmp_path):
    for path, code in ((tmp_path / "none.csv", "missing-file"), (tmp_path, "folder")):
        with pytest.raises(InputError) as caught:
            read_runs(path)
        assert caught.value.code == code
        assert caught.value.place.file == str(path)


def test_a_hundred_thousand_rows(table):
    path = table(*(f"r{i},7e9,1e12,A100-SXM-80GB,{100000 + i % 1000}" for i in range(100_000)))
    start = time.process_time()
    rows, skipped = read_runs(path)
    assert len(rows) == 100_000
    assert not skipped
    assert time.process_time() - start < 10
