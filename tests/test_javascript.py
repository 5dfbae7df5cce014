"""Python translated to JavaScript computes the same, and what is not understood is refused."""

import json
import shutil
import subprocess

import jax.numpy as jnp
import numpy as np
import pytest

from gpustack_mc.javascript import TranslationError, translate

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="needs node (Debian: apt-get install nodejs)")


def run_node(program: str) -> object:
    """Run a program under node and return the JSON that it prints."""
    done = subprocess.run([NODE, "-"], input=program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def everything(a_1, b_1):
    """Uses each operation that is understood."""
    inside = jnp.where((a_1 < b_1) & ~(a_1 <= -b_1), jnp.maximum(a_1, b_1), jnp.minimum(a_1, b_1))
    smooth = jnp.exp(-a_1) + jnp.log(b_1) - jnp.expm1(a_1) * jnp.log1p(b_1) / jnp.sqrt(b_1)
    whole = jnp.floor(a_1) + jnp.sign(a_1) + abs(a_1) ** 3 + jnp.tanh(b_1) - b_1**a_1 + (-2.5 - -a_1)
    return [inside, smooth, whole, a_1, 2.0 * jnp.ones(())]


@needs_node
def test_both_languages_compute_the_same():
    generator = np.random.default_rng(0)
    a, b = generator.normal(size=200), generator.lognormal(size=200)
    program = translate(everything, ["a_1", "b_1"], "f")
    program += f"const y = [[], [], [], [], []]; f({json.dumps([a.tolist(), b.tolist()])}, y, 200);"
    found = np.array(run_node(program + "console.log(JSON.stringify(y));"))
    import jax

    with jax.enable_x64(True):
        wanted = [np.broadcast_to(np.asarray(row), (200,)) for row in everything(jnp.asarray(a), jnp.asarray(b))]
    # The functions of both libraries are good to the last digits of double precision; sums lose a few.
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-13)


def test_a_step_is_a_line():
    text = translate(lambda mfu, goodput: [mfu * goodput + 1], ["mfu", "goodput"], "f")
    assert "const mfu = x[0][i];" in text and "const v0 = mfu * goodput;" in text and "y[0][i] = v1;" in text


def test_inputs_that_nothing_reads_are_left_out():
    assert "x[1]" not in translate(lambda mfu, goodput: [mfu + 1], ["mfu", "goodput"], "f")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda a_1: [jnp.sin(a_1)], "sin"),
        (lambda a_1: [jnp.sum(a_1 * jnp.arange(3.0))], "not understood"),
        (lambda a_1: [a_1.astype(int) * 2.0], "convert_element_type"),
    ],
)
def test_what_is_not_understood_is_refused(function, said):
    with pytest.raises(TranslationError, match=said):
        translate(function, ["a_1"], "f")


@pytest.mark.parametrize("name", ["x", "v0", "1a", "a b", "é_1", "alert(1)_"])
def test_only_identifiers_become_names(name):
    with pytest.raises(TranslationError, match="no identifier"):
        translate(lambda a: [a], [name], "f")
