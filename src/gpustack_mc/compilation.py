"""JAX's persistent compilation cache, switched on by the command line only."""

import os
import sys
import warnings
from pathlib import Path

from gpustack_mc import __version__


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
    """Let JAX keep compiled models between runs; returns whether it can.

    JAX keys entries by program, version and machine, writes them under temporary names and ignores those that it cannot
    read, so that concurrent runs and damaged files cost time, not correctness.
    """
    import jax

    try:
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: a user without a home
        return False
    if not os.access(folder, os.W_OK):
        return False
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    # A damaged entry is compiled again; nothing the user could do about it.
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache")
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    return True
