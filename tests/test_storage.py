"""Whole or not at all: a failure leaves what was there."""

import json
import os
import signal
import stat
import subprocess
import sys

import pytest

from gpustack_mc.errors import GpustackError
from gpustack_mc.storage import recover, replacing, replacing_all, require_folder, slug, stem, write_text


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


WRITER = """
import os, sys
from pathlib import Path
from gpustack_mc.storage import replacing_all
folder, word, dies_at = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
calls, replace = 0, os.replace
def dying(*paths):
    global calls
    calls += 1
    if calls == dies_at:
        os.kill(os.getpid(), 9)
    replace(*paths)
os.replace = dying
with replacing_all([folder / name for name in "abcd"]) as paths:
    for path in paths:
        path.write_text(word)
"""


def written(folder, word, dies_at=0):
    command = [sys.executable, "-c", WRITER, str(folder), word, str(dies_at)]
    return subprocess.run(command, check=False).returncode


@pytest.mark.parametrize("dies_at", range(1, 6))
def test_a_kill_while_files_change_places_leaves_all_old_or_all_new(tmp_path, dies_at):
    assert written(tmp_path, "old") == 0
    assert written(tmp_path, "new", dies_at) == -signal.SIGKILL
    recover(tmp_path)
    # The first rename is that of the journal: before it nothing has happened, after it everything will.
    word = "old" if dies_at == 1 else "new"
    assert [(tmp_path / name).read_text() for name in "abcd"] == [word] * 4
    assert written(tmp_path, "last") == 0
    assert [(tmp_path / name).read_text() for name in "abcd"] == ["last"] * 4


def test_what_a_killed_process_left_is_cleared_away_after_an_hour(tmp_path):
    fresh, stale = tmp_path / ".gpustack-mc-result-1.nc", tmp_path / ".gpustack-mc-result-2.nc"
    for path in (fresh, stale):
        path.touch()
    os.utime(stale, (0, 0))
    write_text(tmp_path / "a.txt", "x")
    assert {path.name for path in tmp_path.iterdir()} == {"a.txt", fresh.name}


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "{}",
        '[["a"]]',
        "[" * 100_000,
        *(
            json.dumps([[".gpustack-mc-x", name]])
            for name in ("../b.txt", "/tmp/b.txt", "a\0b", "b" * 300, "\ud800", "d")
        ),
        json.dumps([["a.txt", "b.txt"]]),
        json.dumps([[".gpustack-mc-x\0", "b.txt"]]),
    ],
)
def test_a_journal_that_is_not_ours_moves_nothing(tmp_path, text):
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / "d").mkdir()
    for name in ("a.txt", ".gpustack-mc-x"):
        (folder / name).write_text(name)
    (folder / ".gpustack-mc.journal").write_text(text)
    recover(folder)
    assert {path.name for path in folder.iterdir()} == {"a.txt", ".gpustack-mc-x", "d"}
    assert list(tmp_path.iterdir()) == [folder]


def test_a_folder_in_the_way_of_one_of_several_files_leaves_all(tmp_path):
    write_text(tmp_path / "a.txt", "old")
    (tmp_path / "b.txt").mkdir()
    with pytest.raises(GpustackError, match="cannot write"), replacing_all([tmp_path / "a.txt", tmp_path / "b.txt"]):
        pass
    assert (tmp_path / "a.txt").read_text() == "old" and sorted(os.listdir(tmp_path)) == ["a.txt", "b.txt"]


def test_processes_that_write_into_one_folder_leave_the_files_of_one(tmp_path):
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [subprocess.Popen([*command, str(word), "0"]) for word in range(8)]
    assert [writer.wait() for writer in writers] == [0] * 8
    assert len({(tmp_path / name).read_text() for name in "abcd"}) == 1 and sorted(os.listdir(tmp_path)) == list("abcd")
