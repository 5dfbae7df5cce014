"""The scenario to start from: a commented file that runs as it is."""

from pathlib import Path

from gpustack_mc import storage
from gpustack_mc.errors import InputError, Place

TEMPLATE = Path(__file__).parent / "templates" / "scenario.yaml"


def write(path: Path) -> None:
    """Write the commented scenario to a file that does not exist yet.

    Raises
    ------
    InputError
        There is something at that place already; it is left as it is.
    GpustackError
        The folder cannot be written.
    """
    if path.exists() or path.is_symlink():
        found, fix = "this is there already and is left as it is.", "Name another file: gpustack-mc init plan-2.yaml."
        raise InputError("file-exists", found, fix, Place(str(path)))
    storage.write_text(path, TEMPLATE.read_text(encoding="utf-8"))
