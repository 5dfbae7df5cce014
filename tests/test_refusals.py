"""What is refused, in which words and at which place: branches that the tests of their own commands do not reach."""

import errno
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import special

from gpustack_mc import cli, conditions, coupling, pack, priors, scoring, shapley, solving, user_table
from gpustack_mc.cube import FunctionCube
from gpustack_mc.design import make_design
from gpustack_mc.errors import InputError
from gpustack_mc.fits import draws_file, populations
from gpustack_mc.run_table import read_runs
from gpustack_mc.scenario import load_scenario
from gpustack_mc.sweep_table import read_workloads
from gpustack_mc.targets import Target


@pytest.fixture
def say(capsys):
    """Run the command line; return its exit code and the lines on stderr."""

    def call(*arguments):
        with pytest.raises(SystemExit) as stop:
            cli.main([str(argument) for argument in arguments])
        return stop.value.code, capsys.readouterr().err.splitlines()

    return call


# ---- what goes wrong around a command --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (MemoryError(), "out-of-memory", "not enough memory. Use fewer --samples."),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            "cannot-write",
            "cannot write the output: No space left on device. Free some space, or send the output elsewhere.",
        ),
        (OSError("a reason"), "cannot-write",
         "cannot write the output: a reason. Free some space, or send the output elsewhere."),
    ],
)  # fmt: skip
def test_a_machine_that_gives_out_is_one_line(say, monkeypatch, error, code, line):
    def fails(*arguments, **options):
        raise error

    monkeypatch.setattr(cli.cli, "main", fails)
    assert say("scenarios") == (1, [line])
    exit_code, (as_json,) = say("scenarios", "--json")
    assert exit_code == 1
    assert json.loads(as_json)["error"]["code"] == code


def test_the_reader_of_the_output_may_leave(monkeypatch):
    def fails(*arguments, **options):
        raise BrokenPipeError

    moved = []
    monkeypatch.setattr(cli.cli, "main", fails)
    monkeypatch.setattr(cli.os, "dup2", lambda source, target: moved.append(target))
    monkeypatch.setattr(cli.sys, "stdout", SimpleNamespace(fileno=lambda: 77))
    with pytest.raises(SystemExit) as stop:
        cli.main(["scenarios"])
    # What Python writes to it when it ends goes nowhere instead of into a closed pipe.
    assert (stop.value.code, moved) == (0, [77])


# ---- options ---------------------------------------------------------------------------------------------------------
def test_a_condition_has_a_length():
    about = conditions.subject(load_scenario("llama-3-70b"))
    longest = " and ".join(["training_days <= 30 d"] * 1000)
    with pytest.raises(InputError, match=r"this condition is too long\. Ask several\.") as refused:
        conditions.parse_condition(longest, about)
    assert refused.value.code == "bad-question"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("300%", "300% a year is out of range"),
        ("-18", "-18 a year is out of range"),
        ("-18 USD", "Write -18% where it falls by 18% a year"),
    ],
)
def test_a_price_drift_is_a_share_a_year(text, said):
    against_rent = Target((conditions.Term("cost_owned_usd", "<=", "cost_rented_usd"),), 0.9)
    with pytest.raises(InputError, match=said) as refused:
        solving._drift(text, against_rent, SimpleNamespace())
    assert (refused.value.code, str(refused.value.place)) == ("bad-value", "--price-drift")


def test_a_group_of_fixed_inputs_is_refused(say):
    code, (line,) = say("sensitivity", "llama-3-70b", "--group", "a=mfu", "--set", "mfu=0.4", "--no-files")
    assert code == 2
    assert "mfu is fixed, so it explains no variance. Leave it out, or state how uncertain it is." in line
    assert "--group" in line


# ---- scenarios that cannot be paired ---------------------------------------------------------------------------------
def test_differing_correlations_say_where_they_come_from():
    problems = [SimpleNamespace(file=SimpleNamespace(correlations=each)) for each in ([("a",)], [("b",)])]
    with pytest.raises(InputError) as refused:
        coupling.couple(problems, "common")
    said = (
        "the scenarios state different correlations, so that their draws cannot be paired. "
        "State the same `correlations` in all of them."
    )
    assert (refused.value.code, str(refused.value)) == ("different-correlations", said)


# ---- tables ----------------------------------------------------------------------------------------------------------
READERS = {
    "runs": read_runs,
    "own runs": user_table.read_table,
    "workloads": lambda path: read_workloads(path, {}),
}
HEADERS = {
    "runs": "run_id,params_active,tokens,accelerator,accelerator_hours",
    "own runs": "run_id,params_active,tokens,accelerator,accelerator_hours",
    "workloads": "name,params,tokens,accelerator,count,region",
}


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize(
    ("change", "code", "said", "line"),
    [
        (
            lambda header: header.replace(",", ";") + "\n1;2\n",
            "separator",
            "the columns are not separated by commas",
            1,
        ),
        (lambda header: header.replace(",", "\t") + "\n", "separator", "Save with commas", 1),
        (lambda header: header + "\n", "no-rows", "a header and no rows", None),
        (lambda header: header + "\n\n\n", "no-rows", "per line", None),
        (lambda header: "", "empty-file", "the file is empty", None),
        (lambda header: header + '\na,7e9,"1e12\n', "csv", "a quote is opened and never closed", 2),
        (lambda header: header + "\na\n", "no-usable-row", "none of the 1 rows can be", 2),
        (lambda header: "colour,taste\nred,sweet\n", "no-header", "the first line holds no known column", 1),
        (lambda header: header + ",tokens\n", "double-column", "column tokens appears twice. Remove one.", 1),
    ],
)
def test_a_table_that_cannot_be_used(tmp_path, kind, change, code, said, line):
    path = tmp_path / "table.csv"
    path.write_text(change(HEADERS[kind]), encoding="utf-8")
    with pytest.raises(InputError) as refused:
        READERS[kind](path)
    assert refused.value.code == code
    assert said in str(refused.value)
    assert (refused.value.place.file, refused.value.place.line) == (str(path), line)


@pytest.mark.parametrize("kind", READERS)
def test_a_table_that_is_no_text_file(tmp_path, kind):
    with pytest.raises(InputError, match=r"this is a folder\. Give a CSV file in it\.") as refused:
        READERS[kind](tmp_path)
    assert refused.value.code == "folder"
    path = tmp_path / "table.csv"
    path.write_bytes(HEADERS[kind].encode() + b"\nM\xfcnchen,1\n")
    with pytest.raises(InputError, match=r"byte \d+ \(0xfc\) is not UTF-8\. Save the file as UTF-8") as refused:
        READERS[kind](path)
    assert (refused.value.code, refused.value.place.line) == ("not-utf8", 2)


def test_what_is_called_parquet_and_is_not(tmp_path):
    pytest.importorskip("pyarrow", reason="needs the extra parquet")
    path = tmp_path / "table.parquet"
    path.write_bytes(b"PAR1 and nothing else")
    with pytest.raises(InputError, match=r"this is not Parquet: .*Check the file\.") as refused:
        read_workloads(path, {})
    assert (refused.value.code, refused.value.place.file) == ("cannot-read", str(path))


def test_parquet_without_its_reader_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"pip install 'gpustack-mc\[parquet\]', or save the table as CSV") as refused:
        read_workloads(tmp_path / "table.parquet", {})
    assert refused.value.code == "no-pyarrow"


# ---- records ---------------------------------------------------------------------------------------------------------
def test_a_pack_names_its_own_files_only(tmp_path):
    with pytest.raises(ValueError, match=r"'\.\./pack\.json' is no file of a pack"):
        pack._content(tmp_path, {"../pack.json": "0" * 64})


@pytest.mark.parametrize("text", ["a,b", "a,b\n"])
def test_draws_need_rows(text):
    with pytest.raises(ValueError, match=r"draws\.csv has no rows"):
        draws_file.read_columns(text)


# ---- numbers without a meaning ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("values", "shift", "said"),
    [
        ([], 0.0, "values must be finite and above 0.0, got []"),
        ([1.0, 0.0], 0.0, "values must be finite and above 0.0, got [1.0, 0.0]"),
        ([1.5, 0.5], 1.0, "values must be finite and above 1.0"),
        ([1.0, float("nan")], 0.0, "values must be finite"),
        ([2.0], 0.0, "one value has no spread: give prior_sd and prior_weight"),
    ],
)
def test_a_lognormal_needs_values_with_a_spread(values, shift, said):
    with pytest.raises(ValueError) as refused:
        populations.predictive_log_normal(values, shift=shift)
    assert said in str(refused.value)


def test_programming_mistakes_are_named():
    with pytest.raises(ValueError, match="unknown kernel 'beta'"):
        priors.quantile("beta", (), np.zeros(1), np.zeros(1), np, special.ndtri)
    with pytest.raises(ValueError, match=r"the method must be one of sobol, .*, not 'halton'"):
        make_design(64, method="halton")
    with pytest.raises(ValueError, match="an input belongs to two players"):
        shapley.shapley_effects(FunctionCube(lambda x: x[:1], ["a", "b"]), make_design(64), {"x": ["a"], "y": ["a"]})
    empty = scoring.RowScores(*(np.empty(0) for _ in range(6)))
    with pytest.raises(ValueError, match="no rows to score"):
        scoring.metrics(empty._replace(intervals={}))
