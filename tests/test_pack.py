"""Prior packs: plain files with hashes, and what becomes of those that somebody changed."""

# Fixtures are imported, and then named by arguments.
# ruff: noqa: F401, F811

import hashlib
import json
import os
import shutil

import pytest
from team_runs import MOVED, folder, made, plan, result, table

from gpustack_mc import calibration, calibration_figures, pack
from gpustack_mc.errors import InputError
from gpustack_mc.scenario import load_scenario


def test_a_pack_is_plain_files_with_hashes(made, table):
    assert {path.name for path in made.iterdir()} == {"pack.json", "measurements.csv", "draws.csv", "before-after.png"}
    record = json.loads((made / "pack.json").read_text(encoding="utf-8"))
    assert record["rows_used"] == 3
    assert [row["line"] for row in record["rows_not_used"]] == [5]
    assert record["shipped"]["utilization"] == pack.shipped_digest("utilization")
    assert set(record["shipped"]) == {"utilization", *MOVED} - {"mfu", "goodput"}
    assert set(record["files"]) == {"measurements.csv", "draws.csv"}


def test_the_same_table_gives_the_same_pack(result, made, folder):
    calibration.write(result, folder / "again")
    for path in made.iterdir():
        assert path.read_bytes() == (folder / "again" / path.name).read_bytes(), path.name


def test_a_pack_survives_its_files(result, made):
    loaded = pack.load(made)
    assert [item.value for item in loaded.measurements] == [item.value for item in result.measurements]
    assert loaded.team_fit.runs == 3


@pytest.fixture
def copy(made, tmp_path):
    return shutil.copytree(made, tmp_path / "copy")


def test_a_pack_of_another_shipped_fit_is_refused(copy):
    path = copy / "pack.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    record["shipped"]["pue"] = "0" * 64
    path.write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(InputError, match=r"another version of the shipped prior of pue.*calibrate` again"):
        pack.load(copy)


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("draws.csv", "a\n1\n", "pack-changed"),
        ("measurements.csv", "", "pack-changed"),
        ("pack.json", "{", "pack-damaged"),
        ("pack.json", '{"schema_version": 99}', "pack-version"),
        ("pack.json", "[]", "pack-damaged"),
    ],
)
def test_a_changed_or_damaged_pack_is_refused(copy, name, content, code):
    (copy / name).write_text(content, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        pack.load(copy)
    assert caught.value.code == code
    assert "calibrate` again" in str(caught.value)


def tampered(copy, change=None, name=None, edit=None):
    """Change a pack as somebody does who also corrects the hashes."""
    record = json.loads((copy / "pack.json").read_text(encoding="utf-8"))
    if change:
        change(record)
    if name:
        text = edit((copy / name).read_text(encoding="utf-8"))
        (copy / name).write_text(text, encoding="utf-8")
        record["files"][name] = hashlib.sha256(text.encode()).hexdigest()
    (copy / "pack.json").write_text(json.dumps(record), encoding="utf-8")


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.update(files=[]),
        lambda record: record.update(shipped=[1]),
        lambda record: record.update(shipped={}),
        lambda record: record["files"].update({"/dev/zero": "x"}),
        lambda record: record["files"].update({"../pack.json": "x"}),
        lambda record: record["utilization"].update(constants={}),
        lambda record: record["utilization"].update(constants=None),
        lambda record: record["utilization"]["constants"].update(count_level="x"),
        lambda record: record["utilization"]["constants"].update(count_level=float("nan")),
        lambda record: record["utilization"].update(loose="x"),
        lambda record: record["utilization"].update(runs="3"),
        lambda record: record["utilization"].update(runs=-3),
        lambda record: record.pop("table"),
        lambda record: record.update(table=["runs.csv"]),
        lambda record: record.update(table="runs\x1b[31m.csv"),
        lambda record: record.update(table="\ud800"),
    ],
)
def test_a_record_that_is_not_ours_is_refused(copy, change):
    tampered(copy, change)
    with pytest.raises(InputError) as caught:
        pack.load(copy)
    assert caught.value.code == "pack-damaged"


def with_value(text, name, value):
    """Put a value into the first row of a table."""
    header, first, *rows = text.splitlines()
    cells = first.split(",")
    cells[header.split(",").index(name)] = value
    return "\n".join([header, ",".join(cells), *rows]) + "\n"


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("draws.csv", lambda text: text.splitlines()[0] + "\n"),
        ("draws.csv", lambda text: text.replace("0.", "nan,0.", 1).replace(",0.", "", 1)),
        ("draws.csv", lambda text: text.replace("record_shift", "record_drift")),
        ("draws.csv", lambda text: text.replace("generation:hopper", "generation:hoper")),
        ("draws.csv", lambda text: with_value(text, "run_sd", "-0.1")),
        ("draws.csv", lambda text: with_value(text, "team_covariance", "9")),
        ("measurements.csv", lambda text: ""),
        ("measurements.csv", lambda text: text.replace("\npue", "\nnope", 1)),
        ("measurements.csv", lambda text: text.replace(",1.21,", ",nan,", 1)),
        ("measurements.csv", lambda text: text.replace("US-TX", "Mordor")),
        ("measurements.csv", lambda text: text.replace("H100-SXM-80GB", "H1")),
        ("measurements.csv", lambda text: text.rstrip() + ",more,cells\n"),
        ("measurements.csv", lambda text: text.replace(",1,a", ",-4,a").replace(",2,a", ",0,a")),
    ],
)
def test_files_that_are_not_ours_are_refused(copy, name, edit):
    before = (copy / name).read_text(encoding="utf-8")
    tampered(copy, name=name, edit=edit)
    assert (copy / name).read_text(encoding="utf-8") != before
    with pytest.raises(InputError) as caught:
        pack.load(copy)
    assert caught.value.code == "pack-damaged"


def test_a_record_without_end_and_a_pipe_are_refused(copy):
    """A pipe would wait for ever, a deep record overflows the stack of the JSON reader."""
    (copy / "draws.csv").unlink()
    os.mkfifo(copy / "draws.csv")
    with pytest.raises(InputError, match=r"draws\.csv is missing"):
        pack.load(copy)
    (copy / "pack.json").write_text("[" * 100_000, encoding="utf-8")
    with pytest.raises(InputError, match="cannot be read"):
        pack.load(copy)


def test_no_pack(tmp_path, plan):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(InputError) as caught:
            load_scenario(plan, priors=path)
        assert caught.value.code == "no-pack"


def test_a_pack_without_runs_removes_the_draws_of_an_earlier_one(copy, folder):
    path = folder / "price.csv"
    path.write_text("electricity_price\n0.05\n", encoding="utf-8")
    calibration.write(calibration.calibrate(path), copy)
    assert not (copy / "draws.csv").exists()
    assert pack.load(copy).team_fit is None


def test_nothing_is_left_when_writing_fails(result, tmp_path, monkeypatch):
    def broken(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(calibration_figures, "before_after", broken)
    with pytest.raises(OSError, match="No space"):
        calibration.write(result, tmp_path / "out")
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())
