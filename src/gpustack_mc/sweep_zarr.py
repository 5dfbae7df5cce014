"""A sweep as a Zarr store, a folder that programs read in part, without reading the whole."""

import shutil
import warnings
from pathlib import Path

import xarray as xr

from gpustack_mc.errors import InputError


def require_zarr() -> None:
    """Make sure that Zarr is there before anything is computed.

    Raises
    ------
    InputError
        The extra is not installed.
    """
    try:
        import zarr  # noqa: F401
    except ImportError:
        raise InputError("no-zarr", "--format zarr needs zarr, which is not installed.",
                         "Install it: pip install 'gpustack-mc[zarr]', or write netCDF.") from None  # fmt: skip


def write_zarr(dataset: xr.Dataset, path: Path, chunk: int) -> None:
    """Write a sweep as a Zarr store of format 3, which takes its place when it is whole.

    Parameters
    ----------
    dataset : Dataset
    path : Path
        A folder; one that an interrupted sweep left there is replaced.
    chunk : int
        Scenarios of each part of the store.
    """
    part, old = (path.with_name(f".{path.name}.{end}") for end in ("part", "old"))
    shutil.rmtree(part, ignore_errors=True)
    if old.exists():  # of a process that was killed
        shutil.rmtree(old) if path.exists() else old.rename(path)
    try:
        encoding = {name: {"chunks": tuple(min(chunk, size) if dim == "scenario" else size
                                           for dim, size in array.sizes.items())}
                    for name, array in dataset.variables.items() if "scenario" in array.dims}  # fmt: skip
        with warnings.catch_warnings():
            # Metadata in one place spare readers a request for each variable; not all of Zarr 3 knows them yet.
            warnings.filterwarnings("ignore", message="Consolidated metadata")
            dataset.to_zarr(part, mode="w", zarr_format=3, consolidated=True, encoding=encoding)
        # A folder cannot take the place of another in one step: the old one steps aside until the new one stands.
        if path.exists():
            path.rename(old)
        part.rename(path)
    finally:
        if old.exists() and not path.exists():
            old.rename(path)
        shutil.rmtree(part, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
