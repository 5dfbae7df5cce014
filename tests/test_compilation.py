"""The cache of compiled kernels: used again, and never in the way."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpustack_mc import compilation


def twice(factor, x):
    return factor * x


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """Return a function that calls a kernel as a new process would, and says whether it was compiled."""
    monkeypatch.setenv("GPUSTACK_MC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(compilation, "_folder", None)

    def call():
        monkeypatch.setattr(compilation, "_memory", {})
        before = compilation.compilations
        with jax.enable_x64(True):
            assert compilation.run(twice, (2.0,), np.arange(3.0)).tolist() == [0, 2, 4]
        return compilation.compilations > before

    return call


def entries(tmp_path):
    return [path for path in (tmp_path / "cache").iterdir() if path.name.startswith("twice-")]


def test_without_the_cache_nothing_is_written(fresh, tmp_path):
    assert fresh()
    assert not (tmp_path / "cache").exists()


def test_a_kernel_is_compiled_once(fresh, tmp_path):
    assert compilation.use_cache()
    assert fresh()
    assert not fresh()
    assert len(entries(tmp_path)) == 1


@pytest.mark.parametrize(
    "damage", [lambda b: b"", lambda b: b[:100], lambda b: b[:-1] + bytes([b[-1] ^ 1]), lambda b: b"x" * len(b)]
)
def test_a_damaged_entry_is_made_again(fresh, tmp_path, damage):
    compilation.use_cache()
    fresh()
    (entry,) = entries(tmp_path)
    entry.write_bytes(damage(entry.read_bytes()))
    assert fresh()
    assert not fresh()


def test_other_versions_have_other_entries(fresh, tmp_path, monkeypatch):
    compilation.use_cache()
    fresh()
    monkeypatch.setattr(compilation, "_environment", lambda: "another version")
    assert fresh()
    assert len(entries(tmp_path)) == 2


def test_old_entries_are_removed(fresh, tmp_path, monkeypatch):
    monkeypatch.setattr(compilation, "KEPT", 2)
    compilation.use_cache()
    for version in "abcd":
        monkeypatch.setattr(compilation, "_environment", lambda version=version: version)
        fresh()
    assert len(entries(tmp_path)) == 2


def test_a_folder_that_cannot_be_made_is_no_error(fresh, tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("GPUSTACK_MC_CACHE", str(blocked / "cache"))
    assert not compilation.use_cache()
    assert fresh()


def test_a_folder_that_vanishes_is_no_error(fresh, tmp_path):
    compilation.use_cache()
    (tmp_path / "cache").rmdir()
    assert fresh()


def test_what_jax_caches_is_not_stored_again(fresh, tmp_path):
    """An executable that JAX loaded from its own cache cannot be serialized."""
    compilation.use_cache()
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "jax"))
    try:
        fresh()
    finally:
        jax.config.update("jax_compilation_cache_dir", None)
    assert not entries(tmp_path)


def test_other_shapes_are_other_kernels(fresh):
    with jax.enable_x64(True):
        before = compilation.compilations
        for n in (2, 3, 2, 3):
            compilation.run(twice, (3.0,), jnp.zeros(n))
        assert compilation.compilations == before + 2
