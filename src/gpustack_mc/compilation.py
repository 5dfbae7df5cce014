"""Compiled kernels, in memory and in the user's cache folder, which only the command line switches on.

JAX's own persistent cache saves compiling, not tracing and lowering, which take as long as a whole run of 65,536
samples. Here the loaded executable itself is stored, under a name that holds everything it depends on.
"""

import contextlib
import functools
import hashlib
import os
import pickle
import platform
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpustack_mc import __version__

# Source files that decide what a kernel computes.
_SOURCES = (
    *("arrays", "constants", "design", "equations", "errors", "failures", "hdi", "kernels", "model", "outages"),
    *("priors", "problem", "quantities", "schema", "shapes", "sobol", "tallies", "transforms"),
)
# Executables of half a megabyte each that the folder keeps; the oldest are removed.
KEPT = 64

_DIGEST = hashlib.sha256().digest_size

_folder: Path | None = None
_lock = threading.Lock()
_memory: dict[Any, Callable[..., Any]] = {}
compilations = 0
"""Number of kernels compiled since the program started, those found in the cache not counted."""


def cache_folder() -> Path:
    """Return the user's cache folder for compiled models, one per version of this package."""
    if override := os.environ.get("GPUSTACK_MC_CACHE"):
        return Path(override)
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "gpustack-mc" / __version__


def use_cache() -> bool:
    """Keep compiled models between runs; returns whether that is possible.

    Entries are written under temporary names and checked when they are read, so that concurrent runs and damaged files
    cost time, not correctness. Like every program in a user's own folders they are trusted: the folder must not be one
    that others may write.
    """
    global _folder
    _folder = _writable_folder()
    return _folder is not None


def use_jax_cache() -> bool:
    """Let JAX keep all that it compiles, for programs that are not kernels of ours; returns whether it can.

    Not together with `use_cache`: what JAX takes from its cache cannot be stored again.
    """
    import jax

    folder = _writable_folder()
    if folder is None:
        return False
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    # A damaged entry is compiled again; nothing the user could do about it.
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache")
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    return True


def _writable_folder() -> Path | None:
    try:
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: a user without a home
        return None
    # Executables are code: those of a folder that is someone else's are not run.
    mine = not hasattr(os, "getuid") or folder.stat().st_uid == os.getuid()
    return folder if mine and os.access(folder, os.W_OK) else None


def run(function: Callable[..., Any], static: tuple[Any, ...], *arrays: Any) -> Any:
    """Call a kernel, compiled once for arguments of these shapes; on all devices of this process where they divide it.

    Parameters
    ----------
    function : callable
        Traceable; its static arguments come first. An attribute ``division`` says how to divide the others, and then
        the results, over one axis of devices, as a `jax.sharding.PartitionSpec` for each; one device runs it as it is.
    static : tuple
        Static arguments, hashable; their ``repr`` says what they are.
    *arrays
        The other arguments.
    """
    import jax

    leaves, structure = jax.tree.flatten(arrays)
    devices, division = jax.local_devices(), getattr(function, "division", None)
    devices = tuple(devices) if division and len(devices) > 1 and _divides(len(devices), division[0], arrays) else ()
    key = (function, static, structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves), devices)
    if key not in _memory:
        # One at a time: the threads of a run want the same one.
        with _lock:
            if key not in _memory:
                called = functools.partial(function, *static)
                if devices and division:
                    auto = (jax.sharding.AxisType.Auto,)
                    mesh = jax.make_mesh((len(devices),), _axes(division), auto, devices=devices)
                    inside, outside = division
                    called = jax.shard_map(called, mesh=mesh, in_specs=inside, out_specs=outside, check_vma=False)
                lower = jax.jit(called).lower
                name = function.__name__
                make = functools.partial(_stored_or_made, name, repr((name, *key[1:])), devices=devices)
                _memory[key] = make(lambda: lower(*arrays).compile())
    return _memory[key](*arrays)


def _axes(division: Any) -> tuple[str, ...]:
    """Return the name of the axis of devices: the only one that is named."""
    import jax

    return tuple({name for spec in jax.tree.leaves(division, is_leaf=_is_spec) for name in spec if name})


def _is_spec(part: Any) -> bool:
    import jax

    return isinstance(part, jax.sharding.PartitionSpec)


def _divides(devices: int, specs: Any, arrays: Any) -> bool:
    """Whether every axis that is divided has the same length on all devices."""
    import jax

    of_leaves = jax.tree.leaves(jax.tree.broadcast(specs, arrays, is_leaf=_is_spec), is_leaf=_is_spec)
    pairs = zip(of_leaves, jax.tree.leaves(arrays), strict=True)
    return all(leaf.shape[axis] % devices == 0 for spec, leaf in pairs for axis, name in enumerate(spec) if name)


def _stored_or_made(name: str, key: str, make: Callable[[], Any], devices: tuple[Any, ...] = ()) -> Any:
    global compilations
    import jax

    folder = _folder
    if folder is not None and jax.default_backend() != "cpu":
        # An executable depends on drivers there, which JAX knows and no name here could hold.
        use_jax_cache()
    if folder is None or jax.config.jax_compilation_cache_dir:
        compilations += 1
        return make()
    path = folder / f"{name}-{hashlib.sha256((key + _environment()).encode()).hexdigest()[:32]}"
    found = _read(path, devices)
    if found is None:
        compilations += 1
        found = make()
        # What cannot be kept is made again: a full disk, a folder that has gone, a backend that cannot serialize.
        with contextlib.suppress(Exception):
            _write(path, found)
    return found


@functools.cache
def _environment() -> str:
    """Everything besides its key that an executable depends on: versions, machine, flags, source files."""
    import jax
    import jaxlib.version

    digest = hashlib.sha256()
    for source in _SOURCES:
        digest.update((Path(__file__).parent / f"{source}.py").read_bytes())
    flags = sorted((name, value) for name, value in os.environ.items() if name.startswith(("XLA_", "JAX_")))
    devices = [str(device) for device in jax.devices()]
    versions = (__version__, jax.__version__, jaxlib.version.__version__, sys.version)
    return repr((versions, platform.platform(), _processor(), flags, devices, digest.hexdigest()))


def _processor() -> str:
    """Return the instructions that this processor has, as far as the system says: executables use them."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return platform.processor()


def _read(path: Path, devices: tuple[Any, ...] = ()) -> Any:
    """Load an executable, for the first device unless others are named; None when there is none, or none to be used."""
    from jax.experimental import serialize_executable

    try:
        content = path.read_bytes()
        digest, stored = content[:_DIGEST], content[_DIGEST:]
        if hashlib.sha256(stored).digest() != digest:
            return None
        import jax

        devices = devices or jax.local_devices()[:1]
        executable, in_tree, out_tree = pickle.loads(stored)
        return serialize_executable.deserialize_and_load(executable, in_tree, out_tree, execution_devices=devices)
    except Exception:  # whatever is wrong with it, it can be made again
        return None


def _write(path: Path, executable: Any) -> None:
    from jax.experimental import serialize_executable

    stored = pickle.dumps(serialize_executable.serialize(executable))
    handle, name = tempfile.mkstemp(prefix=".", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(hashlib.sha256(stored).digest() + stored)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    ours = [other for other in path.parent.iterdir() if other.name.partition("-")[0] == path.name.partition("-")[0]]
    for old in sorted(ours, key=lambda other: other.stat().st_mtime)[:-KEPT]:
        old.unlink(missing_ok=True)
