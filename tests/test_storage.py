"""Whole or not at all: a failure leaves what was there."""

import os
import stat

import pytest

from gpustack_mc.errors import GpustackError
from gpustack_mc.storage import replacing, require_folder, slug, stem, write_text


def test_replaces_whole(tmp_path):
    target = tmp_path / "deep" / "a.txt"
    write_text(target, "one")
    write_text(target, "two")
    assert target.read_text() == "two"
    assert list(target.parent.iterdir()) == [target]


def test_an_error_leaves_the_old_file_and_no_rubbish(tmp_path):
    target = tmp_path / "a.txt"
    write_text(target, "old")
    with pytest.raises(RuntimeError), replacing(target) as path:
        path.write_text("half")
        raise RuntimeError
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_files_are_as_readable_as_others(tmp_path):
    write_text(tmp_path / "a.txt", "x")
    (tmp_path / "b.txt").write_text("x")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a.txt", "b.txt")]
    assert modes[0] == modes[1]


def test_a_file_in_the_way_of_the_folder(tmp_path):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(GpustackError, match=r"cannot write: .*choose another folder with --out"):
        require_folder(tmp_path / "out")
    assert (tmp_path / "out").read_text() == "a file"


def test_a_folder_in_the_way_of_the_file(tmp_path):
    (tmp_path / "a.txt").mkdir()
    with pytest.raises(GpustackError, match="cannot write"):
        write_text(tmp_path / "a.txt", "x")
    assert os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("Llama 3 70B", "llama-3-70b"), ("../../etc/passwd", "etc-passwd"), ("Größe é", "groe-e"), ("🙂", "scenario"),
     ("x" * 300, "x" * 80), ("a/b\\c", "a-b-c")],
)  # fmt: skip
def test_slug_is_never_a_path(name, expected):
    assert slug(name) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [("llama-3.1-405b", "llama-3.1-405b"), ("plans/my.plan.yaml", "my.plan"), ("plan.yml", "plan"), ("-", "a name")],
)
def test_results_are_called_after_the_file_or_the_shipped_name(source, expected):
    assert stem(source, "a name") == expected
