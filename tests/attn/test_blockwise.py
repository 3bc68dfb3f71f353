"""Attention in blocks equals attention with all scores at once, in every option, transformation and length, in linear memory."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn

B, N, K, H, V = 2, 4, 2, 8, 6


def normal(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def options(T, S):
    random = np.random.default_rng(0)
    ids = {length: jnp.asarray(np.sort(random.integers(0, 3, (B, length)))) for length in (T, S)}
    return {
        "plain": {},
        "causal": {"is_causal": True, "query_offset": jnp.array([3, -5])},
        "window": {"window": (5, 2)},
        "lengths": {"key_lengths": jnp.array([0, S // 2]), "query_lengths": jnp.array([T // 2, T])},
        "mask": {"mask": jnp.asarray(random.random((B, 1, T, S)) > 0.5)},
        "mask by head": {"mask": jnp.asarray(random.random((1, N, 1, S)) > 0.5)},
        "segments": {"query_segment_ids": ids[T], "key_segment_ids": ids[S]},
        "softcap": {"softcap": 2.0, "is_causal": True},
        "dropout": {"dropout_rate": 0.3, "dropout_key": jax.random.key(3)},
    }


def both(implementation, block_sizes, given, bias, *arrays):
    context, lse = attn.dot_product_attention_and_lse(
        *arrays, bias=bias, implementation=implementation, block_sizes=block_sizes, **given
    )
    return context, jnp.where(jnp.isfinite(lse), lse, 0)


def derivatives(attend, *arrays):
    """Value, both modes, and both ways to second order."""
    along = tuple(normal(20 + n, *x.shape) for n, x in enumerate(arrays))
    result = attend(*arrays)
    weights = [normal(10 + n, *x.shape) for n, x in enumerate(result)]

    def loss(*arrays):
        return sum((weight * jnp.sin(x)).sum() for weight, x in zip(weights, attend(*arrays), strict=True))

    gradient = jax.grad(loss, argnums=tuple(range(len(arrays))))
    directional = jax.grad(
        lambda *arrays: sum(jnp.vdot(x, a) for x, a in zip(gradient(*arrays), along, strict=True)),
        argnums=tuple(range(len(arrays))),
    )
    return (
        result,
        jax.jvp(attend, arrays, along)[1],
        gradient(*arrays),
        jax.jvp(gradient, arrays, along)[1],
        directional(*arrays),
    )


def same(actual, expected, tolerance=3e-5):
    for x, y in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, atol=tolerance * max(1, float(jnp.abs(y).max(initial=0))))


BIASES = {"plain": (B, N, 1, 1), "causal": (1, 1, 1, 1), "softcap": (1, N, 1, 1), "window": None, "dropout": None}


@pytest.mark.usefixtures("quick_compilation")
@pytest.mark.parametrize("name", options(1, 1))
def test_equals_dense_in_derivatives_of_both_modes_and_orders(name):
    T, S = 37, 45
    given = options(T, S)[name]
    shape = BIASES.get(name)
    full = {"plain": (B, N, T, S), "causal": (1, N, 1, S), "softcap": (B, 1, T, 1)}.get(name)
    arrays = [normal(0, B, T, N, H), normal(1, B, S, K, H), normal(2, B, S, K, V)]
    if shape is not None:
        arrays.append(normal(3, *full))

    def attend(implementation, block_sizes, query, key, value, bias=None):
        return both(implementation, block_sizes, given, bias, query, key, value)

    @jax.jit
    def compared(*arrays):
        return [
            derivatives(partial(attend, implementation, sizes), *arrays)
            for implementation, sizes in (("blockwise", (16, 16)), ("dense", None))
        ]

    same(*compared(*arrays))


@pytest.mark.usefixtures("quick_compilation")
def test_vmap_over_any_argument_equals_one_at_a_time():
    arrays = [normal(0, 3, 10, N, H), normal(1, 3, 12, K, H), normal(2, 3, 12, K, V)]
    lengths = jnp.array([12, 3, 0])

    def attend(query, key, value, length):
        return attn.dot_product_attention(query, key, value, key_lengths=length, implementation="blockwise", block_sizes=(4, 4))

    def gradient(*given):
        return jax.grad(lambda *given: attend(*given).sum(), argnums=(0, 1, 2))(*given)

    functions = [(function, jax.jit(function)) for function in (attend, gradient)]
    for axes in ((0, 0, 0, 0), (0, None, None, 0), (None, 0, None, None), (None, None, None, 0)):
        given = [x if axis == 0 else x[0] for x, axis in zip((*arrays, lengths), axes, strict=True)]
        for function, one in functions:
            together = jax.jit(jax.vmap(function, in_axes=axes))(*given)
            alone = [one(*(x[n] if axis == 0 else x for x, axis in zip(given, axes, strict=True))) for n in range(3)]
            same(together, jax.tree.map(lambda *leaves: jnp.stack(leaves), *alone), 1e-6)


def test_dropout_keeps_the_same_pairs_whatever_the_block():
    arrays = [normal(0, B, 33, N, H), normal(1, B, 40, K, H), normal(2, B, 40, K, V)]
    key = jax.random.key(5)
    results = [
        attn.dot_product_attention(*arrays, dropout_rate=0.5, dropout_key=key, implementation="blockwise", block_sizes=sizes)
        for sizes in ((8, 8), (16, 40), (33, 7))
    ]
    same(results[1:], [results[0]] * 2, 1e-6)
    assert not np.allclose(results[0], attn.dot_product_attention(*arrays))


def test_dropout_keeps_its_share_independently_of_row_and_head():
    weights = jnp.ones((1, 1, 2, 8))
    value = jnp.eye(512)[None, :, None, :].repeat(2, axis=2)
    query = jnp.zeros((1, 64, 2, 8)) * weights
    context = attn.dot_product_attention(
        query, jnp.zeros((1, 512, 2, 8)), value, dropout_rate=0.25, dropout_key=jax.random.key(0), implementation="blockwise"
    )
    kept = np.asarray(context > 0).reshape(128, 512)
    assert abs(kept.mean() - 0.75) < 0.01
    correlation = np.corrcoef(kept)
    assert np.abs(correlation - np.eye(128)).max() < 0.25
    assert np.abs(np.corrcoef(kept[:, :-1].ravel(), kept[:, 1:].ravel())[0, 1]) < 0.02


def temporaries(length, gradient, **given):
    arrays = [jnp.zeros((1, length, 2, 16))] * 3

    def loss(*arrays):
        return attn.dot_product_attention(*arrays, implementation="blockwise", block_sizes=(128, 128), **given).sum()

    function = jax.grad(loss, argnums=(0, 1, 2)) if gradient else loss
    return jax.jit(function).lower(*arrays).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("given", [{}, {"is_causal": True}, {"window": (64, 0)}, {"key_lengths": 700}])
def test_memory_grows_with_the_length_and_not_with_its_square(given):
    for gradient in (False, True):
        shorter, longer = temporaries(4096, gradient, **given), temporaries(8192, gradient, **given)
        assert longer < 2.2 * shorter
        assert longer < 8192 * 8192 * 2 * 4 / 20


def test_masked_nan_reaches_no_one_and_attended_nan_reaches_its_own():
    arrays = [normal(0, 1, 9, N, H), normal(1, 1, 9, K, H), normal(2, 1, 9, K, V)]
    poisoned = [arrays[0], arrays[1].at[0, 6].set(jnp.nan), arrays[2].at[0, 6].set(jnp.inf)]

    def attend(*arrays):
        return attn.dot_product_attention(*arrays, is_causal=True, implementation="blockwise", block_sizes=(4, 4))

    clean, dirty = attend(*arrays), attend(*poisoned)
    same(dirty[:, :6], clean[:, :6], 1e-6)
    assert jnp.isnan(dirty[:, 6:]).all()
    gradients = [jax.grad(lambda *x: attend(*x)[:, :6].sum(), argnums=(0, 1, 2))(*given) for given in (arrays, poisoned)]
    same(gradients[1], gradients[0], 1e-6)


def test_scores_beyond_two_to_the_31_stay_finite_under_jit():
    query, key = (1e5 * normal(n, 1, 32, 2, 8) for n in range(2))
    for softcap in (None, 30.0):
        attend = partial(attn.dot_product_attention, implementation="blockwise", block_sizes=(8, 8), softcap=softcap)
        context = jax.jit(attend)(query, key, jnp.ones_like(key))
        np.testing.assert_allclose(context, 1, atol=1e-3)
        assert jnp.isfinite(jax.jit(jax.grad(lambda q, attend=attend: attend(q, key, key / 1e5).sum()))(query)).all()


@pytest.mark.parametrize(
    ("message", "given"),
    [
        ("block_sizes: expected two integers", {"block_sizes": (4,)}),
        ("block_sizes: expected an integer >= 1, got 0", {"block_sizes": (4, 0)}),
        ("block_sizes: expected None for the dense", {"block_sizes": (4, 4), "implementation": "dense"}),
        ("implementation: expected one of 'auto', 'dense', 'blockwise', 'cudnn', got 'fast'", {"implementation": "fast"}),
    ],
)
def test_wrong_blocks_are_named(message, given):
    x = jnp.zeros((3, 1, 2))
    with pytest.raises(ValueError, match=message):
        attn.dot_product_attention(x, x, x, **{"implementation": "blockwise"} | given)
