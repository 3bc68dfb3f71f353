"""flex_attention equals dense attention with the same bias and mask, with exact gradients to what its mods capture."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn
from attn import mods

B, T, S, N, K, H, V, REACH = 2, 21, 27, 4, 2, 8, 6, 5


def normal(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


ARRAYS = (normal(0, B, T, N, H), normal(1, B, S, K, H), normal(2, B, S, K, V), normal(3, 2 * REACH + 1, N))
WEIGHT = normal(4, B, T, N, V)


def flexible(query, key, value, table):
    return attn.flex_attention(
        query, key, value, score_mod=mods.relative_table(table), mask_mod=mods.causal(3), block_sizes=(8, 8)
    )


def dense(query, key, value, table):
    relative = jnp.clip(jnp.arange(S) - jnp.arange(T)[:, None], -REACH, REACH) + REACH
    bias = jnp.moveaxis(table[relative], -1, 0)[None]
    return attn.dot_product_attention(query, key, value, bias=bias, is_causal=True, query_offset=3, implementation="dense")


@pytest.mark.usefixtures("quick_compilation")
def test_learned_relative_bias_has_the_gradients_of_dense_in_both_modes_and_orders():
    def derivatives(attend, *arrays):
        gradient = jax.grad(lambda *arrays: (jnp.sin(attend(*arrays)) * WEIGHT).sum(), argnums=(0, 1, 2, 3))
        along = tuple(normal(10 + n, *x.shape) for n, x in enumerate(arrays))
        return attend(*arrays), gradient(*arrays), jax.jvp(attend, arrays, along)[1], jax.jvp(gradient, arrays, along)[1]

    actual, expected = jax.jit(lambda *arrays: [derivatives(attend, *arrays) for attend in (flexible, dense)])(*ARRAYS)
    for x, y in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-5)


def test_gradients_are_the_same_bits_each_time():
    gradient = jax.jit(jax.grad(lambda *arrays: (flexible(*arrays) * WEIGHT).sum(), argnums=(0, 1, 2, 3)))
    for x, y in zip(gradient(*ARRAYS), gradient(*ARRAYS), strict=True):
        assert x.tobytes() == y.tobytes()


@pytest.mark.parametrize(
    ("mask_mod", "mask"),
    [
        (mods.causal(2), attn.causal_mask(T, S, query_offset=2)[None, None]),
        (mods.sliding_window(3, 1), attn.sliding_window_mask(T, S, left=3, right=1)[None, None]),
        (
            lambda b, h, i, j: (j + h) % 3 != b,
            (np.arange(S) + np.arange(N)[:, None, None]) % 3 != np.arange(B)[:, None, None, None],
        ),
        (lambda b, h, i, j: j < i * 0, np.zeros((1, 1, 1, 1), bool)),
    ],
    ids=["causal", "window", "by entry and head", "nothing"],
)
def test_mask_mod_and_block_mask_equal_the_mask(mask_mod, mask):
    query, key, value, _ = ARRAYS
    mask = jnp.broadcast_to(mask, (B, N, T, S))
    expected = attn.dot_product_attention(query, key, value, mask=mask, implementation="dense")
    block_mask = attn.create_block_mask(mask_mod, T, S, batch=B, heads=N, block_size=(4, 8))
    wide = attn.create_block_mask(mods.sliding_window(None, None), T, S)
    for given in ({"mask_mod": mask_mod}, {"block_mask": block_mask}, {"block_mask": wide, "mask_mod": mask_mod}):
        np.testing.assert_allclose(attn.flex_attention(query, key, value, **given, block_sizes=(8, 8)), expected, atol=1e-6)


def test_vmap_over_captured_arrays():
    query, key, value, table = ARRAYS
    tables = jnp.stack([table, -table, 2 * table])

    def attend(table):
        return attn.flex_attention(query, key, value, score_mod=mods.relative_table(table), block_sizes=(8, 8))

    together = jax.jit(jax.vmap(attend))(tables)
    for n in range(3):
        np.testing.assert_allclose(together[n], attend(tables[n]), atol=1e-6)


def test_block_mask_of_other_lengths_is_refused():
    query, key, value, _ = ARRAYS
    block_mask = attn.create_block_mask(mods.causal(), T, S + 1)
    with pytest.raises(ValueError, match=r"block_mask: expected shape .* = \(2, 4, 21, 27\), got \(1, 1, 21, 28\)"):
        attn.flex_attention(query, key, value, block_mask=block_mask)


@pytest.mark.parametrize(
    ("error", "message", "given"),
    [
        (TypeError, "score_mod: expected to return a floating scalar, got int32", {"score_mod": lambda s, b, h, i, j: i}),
        (TypeError, "mask_mod: expected to return a bool scalar", {"mask_mod": lambda b, h, i, j: i - j}),
        (ValueError, "implementation: expected one of 'auto', 'blockwise', got 'cudnn'", {"implementation": "cudnn"}),
    ],
)
def test_wrong_mods_are_named(error, message, given):
    with pytest.raises(error, match=message):
        attn.flex_attention(*ARRAYS[:3], **given)
