"""Every path equals the float64 NumPy reference under every option, at lengths around the size of a block, in every dtype.

Value, lse, and the gradient of a weighted sum of both.  A function is compiled once with all options; each is then switched on
alone, the others at values that change nothing, and at last all together.
"""

import attention_reference as reference
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn
from attn.dropout import kept, row_bits

B, N, K, H, V = 2, 4, 2, 3, 5
LENGTHS = (1, 2, 127, 128, 129, 257)
TOLERANCES = {"float32": 2e-5, "bfloat16": 2e-2, "float64": 1e-11}
STATIC = {"bidirectional": {}, "causal, window": {"is_causal": True, "window": (100, 3)}}
BLOCKS = {"dense": None, "blockwise": (128, 128)}
KEY = jax.random.key(7)


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


def neutral(n):
    """Options that change nothing."""
    ids = np.zeros((B, n), np.int32)
    lengths = np.full(B, n, np.int32)
    return {
        "bias": np.zeros((1, N, 1, n)),
        "mask": np.ones((B, 1, n, n), bool),
        "query_offset": np.zeros(B, np.int32),
        "query_lengths": lengths,
        "key_lengths": lengths,
        "query_segment_ids": ids,
        "key_segment_ids": ids,
        "softcap": 1e4,
        "dropout_rate": 0.0,
    }


def cases(n):
    """One option at a time, and all."""
    random = np.random.default_rng(n)
    ids = np.sort(random.integers(0, 3, (2, B, n)).astype(np.int32), axis=-1)
    alone = {
        "plain": {},
        "bias": {"bias": normal(3, 1, N, 1, n)},
        "mask": {"mask": random.random((B, 1, n, n)) < 0.6},
        "offset": {"query_offset": np.array([1, -n // 2], np.int32)},
        "lengths": {"query_lengths": np.array([n, n // 2], np.int32), "key_lengths": np.array([n // 2, n - 1], np.int32)},
        "segments": {"query_segment_ids": ids[0], "key_segment_ids": ids[1]},
        "softcap": {"softcap": 0.7},
        "dropout": {"dropout_rate": 0.3},
    }
    return alone | {"all": {name: value for options in alone.values() for name, value in options.items()}}


def allowed(n, options, static):
    """[B N T S], from the masks by their definitions."""
    position, j = np.arange(n)[:, None] + options["query_offset"][:, None, None], np.arange(n)
    seen = options["mask"][:, 0] & (options["query_segment_ids"][:, :, None] == options["key_segment_ids"][:, None, :])
    seen &= np.arange(n)[:, None] < options["query_lengths"][:, None, None]
    seen &= j < options["key_lengths"][:, None, None]
    if static:
        left, right = static["window"]
        seen &= (j <= position) & (position - left <= j) & (j <= position + right)
    return np.broadcast_to(seen[:, None], (B, N, n, n))


def expected(arrays, options, static, weights, kept_pairs):
    """Context, lse, and gradients to query, key, value and bias."""
    mask = allowed(arrays[0].shape[1], options, static)
    factor = kept_pairs / (1 - options["dropout_rate"])
    every = [
        reference.dot_product_and_gradients(
            *of_entry, bias=options["bias"][0], softcap=options["softcap"], context_weight=of_context, lse_weight=of_lse
        )
        for *of_entry, of_context, of_lse in zip(*arrays, mask, factor, *weights, strict=True)
    ]
    context, lse, *gradients, bias = (np.stack(part) for part in zip(*every, strict=True))
    return context, lse, gradients, bias.sum((0, 2))[None, :, None]


def check(found, wanted, tolerance):
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        x = np.asarray(x, np.float64)
        np.testing.assert_array_equal(np.isfinite(x), np.isfinite(y))
        y = np.where(np.isfinite(y), y, 0)
        np.testing.assert_allclose(np.where(np.isfinite(x), x, 0), y, atol=tolerance * max(1, np.abs(y).max(initial=0)))


def test_the_reference_of_all_pairs_is_that_of_each_pair():
    n = 4
    query, key, value, bias = normal(0, n, N, H), normal(1, n, K, H), normal(2, n, K, V), normal(3, N, n, n)
    mask, of_context, of_lse = normal(4, N, n, n) < 0.5, normal(5, n, N, V), normal(6, N, n)

    def each_pair(query, key, value, bias):
        return reference.dot_product(query, key, value, mask, bias=bias, softcap=0.7)[:2]

    def loss(*arrays):
        context, lse = each_pair(*arrays)
        return (context * of_context).sum() + (np.where(np.isfinite(lse), lse, 0) * of_lse).sum()

    found = reference.dot_product_and_gradients(
        query, key, value, mask, 1.0, bias=bias, softcap=0.7, context_weight=of_context, lse_weight=of_lse
    )
    wanted = *each_pair(query, key, value, bias), *reference.gradient(loss, query, key, value, bias)
    for x, y in zip(found, wanted, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-8)


@pytest.mark.usefixtures("quick_compilation")
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("kind", STATIC)
@pytest.mark.parametrize("path", BLOCKS)
def test_dot_product_equals_reference(path, kind, length, dtype, x64):
    arrays, rounded, weights = inputs(length, dtype)

    @jax.jit
    def actual(query, key, value, bias, options):
        context, lse = attn.dot_product_attention_and_lse(
            query, key, value, bias=bias, dropout_key=KEY, implementation=path, block_sizes=BLOCKS[path],
            **options, **STATIC[kind],
        )  # fmt: skip
        loss = (context * weights[0]).sum() + (jnp.where(jnp.isfinite(lse), lse, 0) * weights[1]).sum()
        return loss, (context, lse)

    run = jax.jit(jax.value_and_grad(actual, argnums=(0, 1, 2, 3), has_aux=True))
    for options in cases(length).values():
        options = neutral(length) | options
        bits = row_bits(KEY, (B, N, length))
        kept_pairs = np.asarray(kept(bits, jnp.arange(length), np.float32(options["dropout_rate"])))
        *wanted, bias_gradient = expected(rounded, options, STATIC[kind], weights, kept_pairs)
        given = {name: jnp.asarray(value) for name, value in options.items() if name != "bias"}
        (_, found), (*gradients, of_bias) = run(*arrays, jnp.asarray(options["bias"], lse_dtype(dtype)), given)
        assert found[0].dtype == dtype
        assert found[1].dtype == lse_dtype(dtype)
        check((*found, gradients, of_bias), (*wanted, bias_gradient), TOLERANCES[dtype])


@pytest.mark.usefixtures("quick_compilation")
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("length", LENGTHS)
def test_flex_equals_reference(length, dtype, x64):
    """The same options as mods, whose arrays are captured."""
    arrays, rounded, weights = inputs(length, dtype)
    static = STATIC["causal, window"]

    def actual(query, key, value, bias, options):
        def score_mod(score, b, h, q_idx, kv_idx):
            cap = options["softcap"].astype(score.dtype)
            return cap * jnp.tanh((score + bias[0, h, 0, kv_idx]) / cap)

        def mask_mod(b, h, q_idx, kv_idx):
            distance = kv_idx - q_idx - options["query_offset"][b]
            left, right = static["window"]
            near = (distance <= 0) & (distance >= -left) & (distance <= right)
            real = (q_idx < options["query_lengths"][b]) & (kv_idx < options["key_lengths"][b])
            same = options["query_segment_ids"][b, q_idx] == options["key_segment_ids"][b, kv_idx]
            return near & real & same & options["mask"][b, 0, q_idx, kv_idx]

        context = attn.flex_attention(query, key, value, score_mod=score_mod, mask_mod=mask_mod, block_sizes=(128, 128))
        return (context * weights[0]).sum(), context

    run = jax.jit(jax.value_and_grad(actual, argnums=(0, 1, 2, 3), has_aux=True))
    for name, options in cases(length).items():
        options = neutral(length) | options | {"dropout_rate": 0.0}
        kept_pairs = np.ones((B, N, length, length))
        context, _, *wanted = expected(rounded, options, static, (weights[0], 0 * weights[1]), kept_pairs)
        given = {name: jnp.asarray(value) for name, value in options.items() if name not in ("bias", "dropout_rate")}
        (_, found), (*gradients, of_bias) = run(*arrays, jnp.asarray(options["bias"], lse_dtype(dtype)), given)
        assert found.dtype == dtype, name
        check((found, gradients, of_bias), (context, *wanted), TOLERANCES[dtype])


def inputs(length, dtype):
    """Query, key and value in their dtype, the same values in float64, and weights of context and lse."""
    shapes = (B, length, N, H), (B, length, K, H), (B, length, K, V)
    arrays = [jnp.asarray(normal(seed, *shape), dtype) for seed, shape in enumerate(shapes)]
    weights = normal(5, B, length, N, V), normal(6, B, N, length)
    return arrays, [np.asarray(x, np.float64) for x in arrays], weights


def lse_dtype(dtype):
    return "float64" if dtype == "float64" else "float32"
