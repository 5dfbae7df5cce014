"""Results in netCDF whose bytes, attributes, variables or dimensions somebody changed."""

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from hostile import HOSTILE, MARKUP, Make, Random, Use, page_findings, pick, restructured


def results(folder: Path) -> tuple[Make, Use]:
    """Results whose bytes, attributes, variables or dimensions were changed, read by all that reads results."""
    from gpustack_mc import chain_picture, cite, explain, reopening, report, summarizing
    from gpustack_mc.run import run_scenario

    made = folder / "result"
    for name in ("nanochat", "worked-70b", "bloom-176b-running"):
        if not (made / f"{name}.nc").exists():
            run_scenario(name, samples=256, out=made, pictures=())
            (made / "result.nc").rename(made / f"{name}.nc")
    whole = [path.read_bytes() for path in sorted(made.glob("*.nc"))]
    path = folder / "changed.nc"

    def make(random: Random) -> tuple[int, Path]:
        raw = pick(random, whole)
        if random.random() < 0.4:
            changed = bytearray(raw)
            for _ in range(int(pick(random, (1, 3, 20, 200)))):
                changed[int(random.integers(len(changed)))] = int(random.integers(256))
            path.write_bytes(changed[: int(random.integers(len(changed)))] if random.random() < 0.1 else changed)
        else:
            path.write_bytes(raw)
            _change_netcdf(random, path)
        return int(random.integers(20)), path

    def use(subject: tuple[int, Path]) -> str:
        which, path = subject
        tree = reopening.open_result(path)
        if which < 2:
            page = folder / "page.html"
            report.write(tree, page, with_sliders=which == 1)
            return page_findings(page)
        if which < 6:
            cite.cite(tree, ("model-card", "impact-statement", "energy-disclosure")[which % 3])
        elif which < 8:
            picture = folder / "page.svg"
            picture.write_text(chain_picture.svg_file(explain.explain(tree, None)), encoding="utf-8")
            return page_findings(picture)
        else:
            summary = summarizing.summarise(tree)
            json.dumps(summary, allow_nan=False)
            summarizing.text(summary, tree.attrs["ownership"])
            explain.text(explain.explain(tree, None))
        return ""

    return make, use


def _change_netcdf(random: Random, path: Path) -> None:
    import h5py

    with h5py.File(path, "r+") as file:
        every: list[Any] = [file]
        file.visititems(lambda name, item: every.append(item))
        for _ in range(int(pick(random, (1, 1, 2, 5)))):
            place = pick(random, every) if random.random() < 0.5 else file
            if not place:  # removed already
                continue
            with contextlib.suppress(Exception):  # what HDF5 does not let be changed stays
                (_change_attribute if random.random() < 0.7 else _change_item)(random, file, place)


def _change_attribute(random: Random, file: Any, place: Any) -> None:
    names = [name for name in place.attrs if name not in ("CLASS", "NAME", "REFERENCE_LIST", "DIMENSION_LIST")]
    name, how = pick(random, names), int(random.integers(6))
    value = place.attrs[name]
    if how == 0:
        del place.attrs[name]
    elif how == 1 or not isinstance(value, str):
        kinds = (np.int64(-1), np.int64(2**62), np.float64("nan"), np.arange(3), np.zeros(0), b"\xff\xfe", "x", True)
        place.attrs[name] = pick(random, kinds)
    elif value[:1] in "{[":
        data = restructured(random, json.loads(value), ["title", "url", "value", "source", "x"])
        place.attrs[name] = json.dumps(data, default=str)
    else:
        place.attrs[name] = pick(random, HOSTILE) if random.random() < 0.8 else value + pick(random, MARKUP)


def _change_item(random: Random, file: Any, place: Any) -> None:
    name, how = place.name, int(random.integers(6))
    if name == "/" or how == 0:
        name = pick(random, sorted(file)) if name == "/" else name
        del file[name]
        return
    if how == 1:
        file.move(name, f"{name}{pick(random, ('2', '@x', '<b>', ' ', '.'))}")
    elif how == 2:
        place[...] = pick(random, (np.nan, np.inf, -1.0, 0.0, 1e308, 1e-320))
    elif how == 3:
        values, attributes = place[...], dict(place.attrs)
        del file[name]
        huge = (10**7,) if random.random() < 0.5 else (3, 3)
        shaped = {"data": values.astype("S8")} if random.random() < 0.3 else {"shape": huge, "dtype": "f8"}
        new = file.create_dataset(name, **shaped, **({"chunks": True} if "shape" in shaped else {}))
        for key, value in attributes.items():
            if key not in ("CLASS", "NAME", "REFERENCE_LIST", "DIMENSION_LIST", "_Netcdf4Dimid"):
                new.attrs[key] = value
    elif how == 4:
        values = place[...]
        values[tuple(int(random.integers(size)) for size in values.shape)] = (
            pick(random, HOSTILE) if values.dtype.kind == "O" else pick(random, (np.nan, -1, 2**31))
        )
        place[...] = values
    else:
        import h5py

        file["linked"] = h5py.ExternalLink("/etc/passwd", "/") if random.random() < 0.5 else h5py.SoftLink("/prior")
