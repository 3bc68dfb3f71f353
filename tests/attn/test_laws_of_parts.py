"""One table of the public functions that do not attend (parts.py) x one list of laws."""

import itertools

import attention_reference as reference
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from parts import PARTS

WITH_ARRAYS = [name for name, part in PARTS.items() if part.arrays]
DIFFERENTIABLE = [name for name, part in PARTS.items() if part.half]
REFUSALS = [(name, n) for name, part in PARTS.items() for n in range(len(part.refused))]


def is_key(leaf):
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def is_float(leaf):
    return not is_key(leaf) and jnp.issubdtype(leaf.dtype, jnp.floating)


def cast(tree, dtype):
    """The tree as JAX arrays, floats in `dtype`; Python numbers as they are."""

    def to_array(leaf):
        return leaf if isinstance(leaf, int | float) else jnp.asarray(leaf, dtype if is_float(leaf) else None)

    return jax.tree.map(to_array, tree)


def compiled(part):
    return jax.jit(lambda *arrays: part(*arrays))


def entry(tree, i):
    return jax.tree.map(lambda leaf: leaf[i], tree)


def same(a, b, atol=1e-6):
    leaves, others = jax.tree.leaves(a), jax.tree.leaves(b)
    assert len(leaves) == len(others) > 0
    for leaf, other in zip(leaves, others, strict=True):
        np.testing.assert_allclose(np.asarray(leaf, float), np.asarray(other, float), atol=atol)


@pytest.mark.parametrize("name", PARTS)
def test_jit_equals_eager(name):
    part = PARTS[name]
    arrays = cast(part.arrays, jnp.float32)
    same(compiled(part)(*arrays), part(*arrays))


@pytest.mark.parametrize("name", WITH_ARRAYS)
@pytest.mark.usefixtures("quick_compilation")
def test_vmap_over_any_subset_equals_loop(name):
    part = PARTS[name]
    single = cast(part.arrays, jnp.float32)
    other = jax.tree.map(
        lambda leaf: jax.random.fold_in(leaf, 1) if is_key(leaf) else leaf[::-1] if leaf.ndim else leaf + 1, single
    )
    batched = jax.tree.map(lambda *leaves: jnp.stack(leaves), single, other)
    subsets = [axes for axes in itertools.product((None, 0), repeat=len(single)) if 0 in axes]

    def chosen(axes, mapped, unmapped):
        return [b if axis == 0 else s for axis, b, s in zip(axes, mapped, unmapped, strict=True)]

    @jax.jit
    def together(single, batched):
        return [jax.vmap(part.__call__, in_axes=axes)(*chosen(axes, batched, single)) for axes in subsets]

    for axes, result in zip(subsets, together(single, batched), strict=True):
        for i in range(2):
            same(entry(result, i), part(*chosen(axes, [entry(x, i) for x in batched], single)), 1e-5)


@pytest.mark.parametrize("name", [name for name in DIFFERENTIABLE if PARTS[name].differentiable])
def test_gradient_equals_central_differences(name, x64):
    part = PARTS[name]
    arrays = cast(part.arrays, jnp.float64)
    leaves, tree = jax.tree.flatten(arrays)
    floats = [n for n, leaf in enumerate(leaves) if is_float(leaf)]
    flat, unravel = ravel_pytree([leaves[n] for n in floats])

    @jax.jit
    def loss(flat):
        filled = list(leaves)
        for n, leaf in zip(floats, unravel(flat), strict=True):
            filled[n] = leaf
        outputs = [leaf for leaf in jax.tree.leaves(part(*jax.tree.unflatten(tree, filled))) if is_float(leaf)]
        assert all(leaf.dtype == jnp.float64 for leaf in outputs)
        return sum((leaf * np.random.default_rng(n).normal(size=leaf.shape)).sum() for n, leaf in enumerate(outputs))

    (numeric,) = reference.gradient(lambda flat: float(loss(flat)), np.array(flat))
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(flat), numeric, atol=1e-8)
    assert np.abs(numeric).max() > 1e-3


@pytest.mark.parametrize("name", [name for name in PARTS if PARTS[name].half])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision(name, dtype):
    part = PARTS[name]
    low = cast(part.arrays, dtype)
    result, exact = compiled(part)(*low), part(*cast(low, jnp.float32))
    for leaf, wanted in zip(jax.tree.leaves(result), jax.tree.leaves(exact), strict=True):
        if is_float(leaf):
            assert leaf.dtype == (dtype if part.half == "same" else jnp.float32)
            np.testing.assert_allclose(
                np.asarray(leaf, float), wanted, atol=4 * float(jnp.abs(wanted).max()) * float(jnp.finfo(dtype).eps)
            )


@pytest.mark.parametrize(("name", "n"), REFUSALS)
def test_wrong_calls_are_refused(name, n):
    part = PARTS[name]
    changes, error, message = part.refused[n]
    arrays, options = (part.arrays, changes) if isinstance(changes, dict) else (changes, {})
    with pytest.raises(error, match=message):
        part(*cast(arrays, jnp.float32), **options)
