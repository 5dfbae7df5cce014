"""Load at reduced size, what is refused for its size, and the figures of the full size that are kept."""

import copy
import importlib.util
import json
from pathlib import Path

import pytest

from gpustack_mc import comparing, sweep, sweep_store
from gpustack_mc.comparing import MOST_DRAWS, paired_tree, run_comparison
from gpustack_mc.design import make_design
from gpustack_mc.errors import InputError
from gpustack_mc.scenario import load_scenario

_SPEC = importlib.util.spec_from_file_location("load", Path(__file__).parents[1] / "benchmarks" / "load.py")
load = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(load)


GOOD = {
    "concurrent": {
        "eight_at_a_time": {"exit_codes": [0], "different_results": 0},
        "all_at_once": {"exit_codes": [0], "different_results": 0},
        "cache": {"entries": 2, "broken": 0, "left_behind": 0, "compiled_by_a_run_afterwards": 0},
    },
    "loop": {"compiled_at_first": 4, "compiled_at_last": 4, "growth_mb_per_10000_scenarios": 1.0},
    "samples": [{"peak_memory_mb": 600}, {"peak_memory_mb": 610}],
    "large": {"opening": {"exit_code": 2, "lines": 1, "code": "too-large"}},
}


def test_the_kept_figures_keep_all_promises():
    if not load.RESULT.exists():
        pytest.skip("load was not measured yet: python benchmarks/load.py")
    kept = json.loads(load.RESULT.read_text(encoding="utf-8"))
    assert {part for part, _ in load.PROMISES.values()} <= set(kept)
    assert load.broken(kept) == []
    runs = [kept["concurrent"][how]["runs"] for how in ("eight_at_a_time", "all_at_once")]
    assert min(runs) >= load.FEWEST_RUNS
    assert kept["loop"]["scenarios"] >= load.FEWEST_SCENARIOS


@pytest.mark.parametrize(
    ("promise", "change"),
    [
        ("all runs at once exit with 0", lambda f: f["concurrent"]["all_at_once"].update(exit_codes=[0, 1])),
        ("results are those of a lone run", lambda f: f["concurrent"]["eight_at_a_time"].update(different_results=1)),
        ("the shared cache is whole", lambda f: f["concurrent"]["cache"].update(broken=1)),
        ("nothing is compiled after the first of each shape", lambda f: f["loop"].update(compiled_at_last=99)),
        ("memory does not grow with scenarios", lambda f: f["loop"].update(growth_mb_per_10000_scenarios=50.0)),
        ("memory does not grow with samples", lambda f: f["samples"][-1].update(peak_memory_mb=10**4)),
        ("large results are refused in one line", lambda f: f["large"]["opening"].update(code="bad-value")),
    ],
)
def test_a_broken_promise_is_named(promise, change):
    found = copy.deepcopy(GOOD)
    assert load.broken(found) == []
    change(found)
    assert load.broken(found) == [promise]


def test_every_promise_is_tried():
    marks = test_a_broken_promise_is_named.pytestmark
    assert [promise for promise, _ in marks[0].args[1]] == list(load.PROMISES)


def test_scenarios_in_one_process_share_what_is_compiled(monkeypatch):
    monkeypatch.setattr(load, "LOOP", ("worked-7b", "nanochat"))
    found = load.loop(scenarios=12, every=4)
    assert found["compiled_at_first"] == found["compiled_at_last"]
    assert len(found["memory_mb"]) == 3


@pytest.mark.slow
def test_processes_share_a_cache():
    assert load.broken({"concurrent": load.concurrent(runs=6)}) == []


def test_two_results_differ_in_their_fingerprint(tmp_path, llama):
    tree, _ = llama
    from gpustack_mc.result import write

    write(tree, tmp_path / "one.nc")
    other = tree.copy(deep=True)
    other["prior"]["pue"].values[0, 0] += 1e-12
    write(other, tmp_path / "other.nc")
    other.attrs["created_at"] = "another day"
    write(tree, tmp_path / "again.nc")
    one, changed, again = (load.numbers_of(tmp_path / f"{name}.nc") for name in ("one", "other", "again"))
    assert one == again != changed


# ---- size -----------------------------------------------------------------------------------------------------------
def test_a_comparison_that_would_not_fit_is_refused_before_it_is_drawn(monkeypatch):
    monkeypatch.setattr(comparing, "Pairing", None)
    counts = ",".join(str(1000 * k) for k in range(1, 13))
    with pytest.raises(InputError, match="of 12 scenarios are too many") as caught:
        run_comparison(["llama-3-70b"], vary=[f"cluster.count={counts}"], samples=2**17, with_files=False)
    assert "65,536" in caught.value.fix
    problems = [load_scenario("worked-7b")] * 4
    with pytest.raises(InputError, match="of 4 scenarios are too many"):
        paired_tree(problems, make_design(2**20))


def test_what_is_said_to_fit_fits():
    for scenarios in range(2, 13):
        try:
            comparing._require_room(scenarios, 2**20)
        except InputError as refused:
            most = int(refused.fix.partition("at most ")[2].partition(", or")[0].replace(",", ""))
            assert most * scenarios <= MOST_DRAWS < 2 * most * scenarios
            comparing._require_room(scenarios, most)


def test_a_sweep_that_keeps_more_than_a_gigabyte_of_draws_is_refused(tmp_path):
    assert sweep_store.MOST_DRAWS * 8 == 2**30
    (tmp_path / "wide.yaml").write_text(load._WIDE, encoding="utf-8")
    with pytest.raises(InputError, match="GiB, more than 1") as caught:
        sweep.run_sweep(tmp_path / "wide.yaml", draws=True, samples=2**14, out=tmp_path / "out")
    assert caught.value.code == "too-many-draws" and not (tmp_path / "out").exists()
