"""Every path equals the float64 NumPy reference, in value and in gradient, under every option."""

import attention_reference as reference
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import attn

B, T, S, N, K, H, V = 2, 3, 4, 4, 2, 3, 2

# Each case: options of the public function, and those of `reference.sees` for the two batch entries.
CASES = {
    "plain": ({}, {}),
    "causal": ({"is_causal": True}, {"is_causal": True}),
    "causal, offset for each row": (
        {"is_causal": True, "query_offset": [1, -2]},
        {"is_causal": True, "query_offset": (1, -2)},
    ),
    "window and causal": ({"window": (2, 1), "is_causal": True}, {"window": (2, 1), "is_causal": True}),
    "window, one integer, moved": ({"window": 1, "query_offset": 2}, {"window": 1, "query_offset": 2}),
    "window, open left": ({"window": (None, 0), "query_offset": 1}, {"window": (None, 0), "query_offset": 1}),
    "key lengths, one zero": ({"key_lengths": [0, 3]}, {"key_length": (0, 3)}),
    "query and key lengths": ({"query_lengths": [1, 3], "key_lengths": 2}, {"query_length": (1, 3), "key_length": 2}),
    "segments": (
        {"query_segment_ids": np.array([[0, 0, 1], [5, 1, 1]]), "key_segment_ids": np.array([[0, 1, 1, 0], [1, 1, 2, 1]])},
        {"query_ids": ([0, 0, 1], [5, 1, 1]), "key_ids": ([0, 1, 1, 0], [1, 1, 2, 1])},
    ),
    "softcap": ({"softcap": 0.7, "scale": 2.0, "is_causal": True}, {"is_causal": True}),
}


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


BIAS_SHAPES = [(B, N, T, S), (1, N, 1, S), (B, 1, T, 1), (1, 1, 1, 1), (1, N, T, S)]


# More than one block of queries and of keys, the last of each not whole.
PATHS = {"dense": {"implementation": "dense"}, "blockwise": {"implementation": "blockwise", "block_sizes": (2, 3)}}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", CASES)
def test_dot_product_equals_reference(name, path, x64):
    options, seen = CASES[name]
    bias_shape = BIAS_SHAPES[list(CASES).index(name) % len(BIAS_SHAPES)]
    arrays = [normal(0, B, T, N, H), normal(1, B, S, K, H), normal(2, B, S, K, V), normal(3, *bias_shape)]
    visible = [{key: x[b] if isinstance(x, tuple) and key != "window" else x for key, x in seen.items()} for b in range(B)]
    mask = np.ones((B, 1, T, S), bool) if name == "plain" else normal(4, B, 1, T, S) < 1
    allowed = np.stack([np.broadcast_to(reference.visible(T, S, **visible[b]) & mask[b], (N, T, S)) for b in range(B)])
    context_weight, lse_weight = normal(5, B, T, N, V), normal(6, B, N, T)

    def expected(query, key, value, bias):
        inner = {name: options[name] for name in ("softcap", "scale") if name in options}
        bias = np.broadcast_to(bias, (B, N, T, S))
        rows = [reference.dot_product(*row, bias=b, **inner) for *row, b in zip(query, key, value, allowed, bias, strict=True)]
        return [np.stack(part) for part in zip(*rows, strict=True)]

    def expected_loss(*arrays):
        context, lse, _ = expected(*arrays)
        return (context * context_weight).sum() + (np.where(np.isfinite(lse), lse, 0) * lse_weight).sum()

    @jax.jit
    def actual(query, key, value, bias):
        context, lse = attn.dot_product_attention_and_lse(
            query, key, value, bias=bias, mask=None if name == "plain" else mask, **options, **PATHS[path]
        )  # fmt: skip
        finite = jnp.where(jnp.isfinite(lse), lse, 0)
        return (context * context_weight).sum() + (finite * lse_weight).sum(), (context, lse)

    (_, (context, lse)), grads = jax.jit(jax.value_and_grad(actual, argnums=(0, 1, 2, 3), has_aux=True))(*arrays)
    expected_context, expected_lse, _ = expected(*arrays)
    assert context.dtype == lse.dtype == jnp.float64
    np.testing.assert_allclose(context, expected_context, atol=1e-12)
    np.testing.assert_allclose(lse, expected_lse, atol=1e-12)
    for grad, numeric in zip(grads, reference.gradient(expected_loss, *arrays), strict=True):
        np.testing.assert_allclose(grad, numeric, atol=1e-8)


@pytest.mark.parametrize("name", CASES)
def test_weights_equal_reference_and_give_the_context(name):
    options, seen = CASES[name]
    query, key, value = (
        jnp.asarray(normal(i, *shape), jnp.float32) for i, shape in enumerate([(B, T, N, H), (B, S, K, H), (B, S, K, V)])
    )
    weights = attn.dot_product_weights(query, key, **options)
    for b in range(B):
        visible = {key: x[b] if isinstance(x, tuple) and key != "window" else x for key, x in seen.items()}
        allowed = np.broadcast_to(reference.visible(T, S, **visible), (N, T, S))
        inner = {name: options[name] for name in ("softcap", "scale") if name in options}
        context, _, alpha = reference.dot_product(*(np.asarray(x[b], float) for x in (query, key, value)), allowed, **inner)
        np.testing.assert_allclose(weights[b], alpha, atol=1e-6)
        np.testing.assert_allclose(attn.dot_product_attention(query, key, value, **options)[b], context, atol=1e-6)


@pytest.mark.parametrize("projected", [False, True])
def test_additive_equals_reference(projected, x64):
    params = [normal(0, 3, 5), normal(1, 2, 5), normal(2, 5)]
    arrays = [normal(3, T, 3), normal(4, S, 2), normal(5, S, V), *params]
    mask = np.array([[1, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]], bool)
    weight = normal(6, T, V)

    def actual(query, keys, values, *params):
        params = attn.AdditiveParams(*params)
        projected_keys = attn.project_keys(keys, params) if projected else None
        keys = None if projected else keys
        context = attn.additive_attention(query, keys, values, params, mask=mask, projected_keys=projected_keys)
        return (context * weight).sum(), (
            context,
            attn.additive_weights(query, keys, params, mask=mask, projected_keys=projected_keys),
        )

    def expected(query, keys, values, *params):
        return reference.additive(query, keys, values, params, mask)

    (_, aux), grads = jax.jit(jax.value_and_grad(actual, argnums=tuple(range(6)), has_aux=True))(*map(jnp.asarray, arrays))
    for value, wanted in zip(aux, expected(*arrays), strict=True):
        np.testing.assert_allclose(value, wanted, atol=1e-12)
    for grad, numeric in zip(grads, reference.gradient(lambda *a: (expected(*a)[0] * weight).sum(), *arrays), strict=True):
        np.testing.assert_allclose(grad, numeric, atol=1e-8)


def test_multi_head_equals_reference(x64):
    params = attn.init_multi_head(
        jax.random.key(0), 4, 4, num_kv_heads=2, value_dim=2, key_input_dim=3, use_bias=True, dtype=jnp.float64
    )
    params = jax.tree.map(lambda leaf: leaf + 0.1 * normal(leaf.size, *leaf.shape), params)
    query_input, key_input, value_input = normal(0, T, 4), normal(1, S, 3), normal(2, S, 3)
    mask = normal(3, 4, T, S) < 0.5
    mask[:, 1] = False
    weight = normal(4, T, 4)
    flat, unflatten = ravel_pytree((params, query_input, key_input, value_input))

    def actual(flat):
        output = attn.multi_head_attention(*unflatten(flat), mask=mask)
        return (output * weight).sum(), output

    def expected(flat):
        params, *inputs = jax.tree.map(np.asarray, unflatten(jnp.asarray(flat)))
        return reference.multi_head(params, *inputs, mask)

    (_, output), grad = jax.jit(jax.value_and_grad(actual, has_aux=True))(flat)
    np.testing.assert_allclose(output, expected(flat), atol=1e-12)
    (numeric,) = reference.gradient(lambda flat: (expected(flat) * weight).sum(), np.asarray(flat))
    np.testing.assert_allclose(grad, numeric, atol=1e-8)


def test_masked_softmax_equals_reference(x64):
    scores, mask, weight = normal(0, 4, 5), normal(1, 4, 5) < 0.3, normal(2, 4, 5)
    mask[2] = False

    def expected(scores):
        return np.stack([reference.softmax(*row) for row in zip(scores, mask, strict=True)])

    np.testing.assert_allclose(attn.masked_softmax(scores, mask), expected(scores), atol=1e-14)
    np.testing.assert_allclose(attn.masked_softmax(scores.T, mask.T, axis=0), expected(scores).T, atol=1e-14)
    grad = jax.grad(lambda x: (attn.masked_softmax(x, mask) * weight).sum())(scores)
    (numeric,) = reference.gradient(lambda x: (expected(x) * weight).sum(), scores)
    np.testing.assert_allclose(grad, numeric, atol=1e-9)


def test_scores_beyond_two_to_the_31_stay_finite_under_jit():
    query, key = (1e5 * jax.random.normal(jax.random.key(n), (1, 32, 2, 8)) for n in range(2))
    weights = jax.jit(attn.dot_product_weights)(query, key)
    assert jnp.isfinite(weights).all()
    np.testing.assert_allclose(weights.max(-1), 1, atol=1e-3)
    np.testing.assert_allclose(weights, attn.dot_product_weights(query, key), atol=1e-3)


@pytest.mark.parametrize("size", [1e5, 1e8])
def test_softmax_of_scores_scaled_after_the_product_stays_finite_under_jit(size):
    """XLA:CPU fuses the caller's own scaling into the exponential."""
    query, key = (size * jax.random.normal(jax.random.key(n), (64, 8)) for n in range(2))
    for mask in (None, jnp.arange(64)[None] < 40):
        weights = jax.jit(lambda q, k, mask=mask: attn.masked_softmax((q @ k.T) * 0.35355, mask))(query, key)
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)
        np.testing.assert_allclose(weights.max(-1), 1, atol=1e-3)
