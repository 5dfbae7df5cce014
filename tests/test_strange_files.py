"""Files that are none, have no end, or are not where they are said to be: refused at once, by every reader."""

import os

import pytest

from gpustack_mc import pack, run_table
from gpustack_mc.errors import MOST_OF_FIX, MOST_OF_MESSAGE, InputError, Place
from gpustack_mc.reopening import open_result
from gpustack_mc.run_table import read_runs
from gpustack_mc.sweep_spec import read_sweep
from gpustack_mc.sweep_table import read_workloads
from gpustack_mc.user_table import read_table

TABLES = {"calibrate": read_table, "validate": read_runs, "sweep": read_workloads}


@pytest.fixture
def pipe(tmp_path):
    path = tmp_path / "pipe.csv"
    os.mkfifo(path)
    return path


def refusal(read, path):
    with pytest.raises(InputError) as caught:
        read(path)
    return caught.value


@pytest.mark.parametrize("read", TABLES.values(), ids=TABLES)
def test_a_table_without_end(read, pipe, tmp_path):
    """A pipe would wait for a writer for ever, and zeros fill the memory."""
    endless = tmp_path / "endless.csv"
    endless.symlink_to("/dev/zero")
    for path in (pipe, endless):
        assert refusal(read, path).code == "not-a-file"


@pytest.mark.parametrize("read", TABLES.values(), ids=TABLES)
def test_a_table_larger_than_any(read, tmp_path, monkeypatch):
    path = tmp_path / "runs.csv"
    path.write_text("run_id,tokens\n", encoding="utf-8")
    monkeypatch.setattr(run_table, "MOST_BYTES", 10)
    assert refusal(read, path).code == "too-large"


@pytest.mark.parametrize("read", TABLES.values(), ids=TABLES)
@pytest.mark.parametrize(
    ("name", "code"), [("a\0b.csv", "cannot-read"), ("x" * 5000 + ".csv", "cannot-read"), ("no.csv", "missing-file")]
)
def test_a_name_that_no_file_has(read, tmp_path, name, code):
    error = refusal(read, tmp_path / name)
    assert error.code == code and len(str(error)) < 500


def test_a_result_that_is_a_pipe_or_has_no_name(pipe, tmp_path):
    assert refusal(open_result, pipe).code == "not-a-result"
    assert refusal(open_result, tmp_path / "a\0b.nc").code == "unreadable"
    assert refusal(open_result, tmp_path / ("x" * 5000)).code == "unreadable"


def test_a_pack_larger_than_any(tmp_path, monkeypatch):
    (tmp_path / "pack.json").write_text("{}" + " " * 100, encoding="utf-8")
    monkeypatch.setattr(pack, "_MOST_BYTES", 50)
    assert refusal(pack.load, tmp_path).code == "too-large"


SWEEP = "schema_version: 1\nname: s\nbase: nanochat\n"


@pytest.mark.parametrize("name", ["no.csv", "'<script>alert(1)</script>.csv'", "../../no.csv", '"a\\0b.csv"'])
def test_a_table_that_a_sweep_names_and_is_not_there(tmp_path, name):
    spec = tmp_path / "sweep.yaml"
    spec.write_text(f"{SWEEP}table: {name}\n", encoding="utf-8")
    error = refusal(read_sweep, spec)
    assert error.code == "missing-file" and error.place[:2] == (str(spec), 4)


@pytest.mark.parametrize("value", [".nan", ".inf", "-1e999", "{low: .nan, high: 1}", "[.inf]"])
def test_an_axis_that_is_not_finite_has_a_name_all_the_same(tmp_path, value):
    """Which scenarios cannot be run is told one by one, when they are read."""
    spec = tmp_path / "sweep.yaml"
    spec.write_text(f"{SWEEP}axes: {{inputs.pue: [1.1, {value}]}}\n", encoding="utf-8")
    sweep = read_sweep(spec)
    assert sweep.label(0) == "1.1" and ("nan" in sweep.label(1) or "inf" in sweep.label(1))


def test_an_error_is_a_line_however_long_what_it_quotes_is():
    error = InputError("x", "a" * 9000, "b" * 9000, Place("c" * 9000, 3))
    # Message, remedy, file, and some characters between them.
    assert len(str(error)) < MOST_OF_MESSAGE + MOST_OF_FIX + 350
    assert ":3: " in str(error)
    assert error.as_dict()["error"]["message"] == "a" * 9000
