"""Folders of sweeps that somebody changed: told, refused or computed again, never believed."""

import json
import shutil

import numpy as np
import pytest

from gpustack_mc import sweep
from gpustack_mc.errors import InputError
from gpustack_mc.sweep import run_sweep

SPEC = """
schema_version: 1
base: nanochat
axes: {cluster.count: [8, 16]}
outputs: [cost_owned_usd, energy_mwh]
"""


def run(spec, out):
    return run_sweep(spec, samples=256, out=out, with_plots=False)


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    path = tmp_path_factory.mktemp("sweep") / "counts.yaml"
    path.write_text(SPEC, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def done(spec):
    """The folder of a sweep that is done."""
    run(spec, spec.parent / "done")
    return spec.parent / "done"


@pytest.fixture(scope="module")
def unfinished(spec):
    """The folder of a sweep that was stopped before its last files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep, "_finish", lambda *_: None)
        run(spec, spec.parent / "unfinished")
    return spec.parent / "unfinished"


@pytest.mark.parametrize(
    "change", [{"outputs": 3}, {"skipped": 3}, {"skipped_count": []}, {"outputs": {"energy_mwh": {}}}, {"samples": "x"}]
)
def test_a_record_that_was_changed_is_refused(spec, done, tmp_path, change):
    out = shutil.copytree(done, tmp_path / "out")
    record = json.loads((out / "sweep.json").read_text(encoding="utf-8"))
    (out / "sweep.json").write_text(json.dumps(record | change), encoding="utf-8")
    with pytest.raises(InputError, match=r"sweep\.json: this file is damaged or was changed\. Remove this folder"):
        run(spec, out)


def test_a_record_without_end_is_refused(spec, done, tmp_path):
    """So deep that the JSON reader runs out of stack."""
    out = shutil.copytree(done, tmp_path / "out")
    (out / "sweep.json").write_text("[" * 100_000, encoding="utf-8")
    with pytest.raises(InputError, match="holds another sweep"):
        run(spec, out)


def reshaped(arrays):
    return arrays | {"statistics": arrays["statistics"][:, :1]}


def retyped(arrays):
    return arrays | {"statistics": arrays["statistics"].astype(str)}


def renamed(arrays):
    return {("x" if name == "draws" else name): value for name, value in arrays.items()}


def shortened(arrays):
    return arrays | {"reasons": arrays["reasons"][:-1]}


@pytest.mark.parametrize("change", [reshaped, retyped, renamed, shortened])
def test_a_chunk_that_is_not_of_this_sweep_is_computed_again(spec, done, unfinished, tmp_path, change):
    out = shutil.copytree(unfinished, tmp_path / "out")
    path = out / "chunks" / "000000.npz"
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(path, **change(arrays))
    run(spec, out)
    assert (out / "sweep.csv").read_bytes() == (done / "sweep.csv").read_bytes()


def test_a_sound_chunk_is_not_computed_again(spec, unfinished, tmp_path):
    out = shutil.copytree(unfinished, tmp_path / "out")
    path = out / "chunks" / "000000.npz"
    with np.load(path) as file:
        arrays = dict(file)
    # A value that no computation gives shows where the numbers come from.
    arrays["statistics"][0, 0] = 1.25
    np.savez(path, **arrays)
    run(spec, out)
    assert ",1.25," in (out / "sweep.csv").read_text(encoding="utf-8")
