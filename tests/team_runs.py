"""A team's table of runs, the run it plans next, and the inputs that the table tells of; fixtures made of them."""

import pytest

from gpustack_mc import calibration

RUNS = """\
run_id,params_active,tokens,accelerator,n_accelerators,accelerator_hours,mfu,mfu_convention,goodput,mean_gpu_power_w,\
it_power_w_per_accelerator,pue,electricity_price,rental_price,date,region
a-1b,1.1e9,3e11,H100,64,1500,,,,560,1010,1.21,0.071,2.1,2025-03,US-TX
b-7b,7e9,1.5e12,H100,256,44000,0.45,6N+attn_causal,0.93,590,1060,1.21,0.071,2.1,2025-06,US-TX
c-13b,13e9,2e12,H100,512,,0.44,6N+attn_causal,,610,,1.21,,,2025-09,US-TX
d,13e9,2e12,H100,512,0,,,,,,,,,2025-09,US-TX
"""
PLAN = """\
schema_version: 1
name: next
workload: {params: 13e9, tokens: 2e12}
cluster: {accelerator: H100-SXM-80GB, count: 512}
site: {region: US-TX}
date: 2025
"""
MOVED = ("mfu", "goodput", "gpu_power_fraction", "host_power", "pue", "electricity_price", "rental_price")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("calibration")


@pytest.fixture(scope="module")
def table(folder):
    path = folder / "my_runs.csv"
    path.write_text(RUNS, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def result(table):
    return calibration.calibrate(table)


@pytest.fixture(scope="module")
def made(result, folder):
    calibration.write(result, folder / "my-priors")
    return folder / "my-priors"


@pytest.fixture
def plan(scenario_file):
    return scenario_file(PLAN)
