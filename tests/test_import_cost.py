"""What must stay cheap to import: light commands load no heavy library."""

import subprocess
import sys

import pytest


def loaded_after(code: str) -> set[str]:
    program = f"import sys\n{code}\nprint(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], ["schema"], ["check", "worked-70b"], ["check", "bloom-176b-running"], ["quantities"]],
)
def test_light_commands_load_neither_jax_nor_arviz(arguments):
    code = f"""
from gpustack_mc.cli import main
try:
    main({arguments!r})
except SystemExit as stop:
    assert not stop.code, stop.code
"""
    assert not {"jax", "arviz", "matplotlib", "numpyro", "xarray"} & loaded_after(code)


def test_import_changes_nothing_in_jax():
    code = (
        "import jax; x64 = jax.config.jax_enable_x64; import gpustack_mc.run; assert jax.config.jax_enable_x64 == x64"
    )
    assert "jax" in loaded_after(code)
