"""What is special to dot-product attention; the laws that all mechanisms obey are in test_laws.py."""

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_reference import dot_product, visible
from hypothesis import given, settings
from hypothesis import strategies as st

import attn

pytestmark = pytest.mark.usefixtures("quick_compilation")

B, T, S, N, H = 2, 4, 5, 2, 3


def arrays(T=T, S=S, N=N, K=N, V=H, dtype=jnp.float32):
    keys, shapes = jax.random.split(jax.random.key(0), 3), [(B, T, N, H), (B, S, K, H), (B, S, K, V)]
    return [jax.random.normal(key, shape, dtype) for key, shape in zip(keys, shapes, strict=True)]


@pytest.mark.parametrize("implementation", ["auto", "dense"])
def test_lse_and_weights_leave_the_context_as_it_is(implementation):
    query, key, value = arrays()
    options = {"key_lengths": [0, 3], "is_causal": True}
    context = attn.dot_product_attention(query, key, value, implementation=implementation, **options)
    with_lse, lse = attn.dot_product_attention_and_lse(query, key, value, implementation=implementation, **options)
    np.testing.assert_array_equal(context, with_lse)
    weights = attn.dot_product_weights(query, key, **options)
    np.testing.assert_allclose(jnp.einsum("bnts,bsnh->btnh", weights, value), context, atol=1e-6)
    assert not context[0].any()
    assert not weights[0].any()
    assert (lse[0] == -jnp.inf).all()
    assert jnp.isfinite(lse[1]).all()


def test_gradient_of_lse_is_the_weighted_mean_of_keys():
    query, key, value = arrays()
    grad = jax.grad(lambda q: attn.dot_product_attention_and_lse(q, key, value, scale=1.0)[1].sum())(query)
    weights = attn.dot_product_weights(query, key, scale=1.0)
    np.testing.assert_allclose(grad, jnp.einsum("bnts,bsnh->btnh", weights, key), atol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_lse_and_weights_of_half_precision_are_float32(dtype):
    query, key, value = arrays(dtype=dtype)
    context, lse = attn.dot_product_attention_and_lse(query, key, value)
    weights = attn.dot_product_weights(query, key)
    assert (context.dtype, lse.dtype, weights.dtype) == (dtype, jnp.float32, jnp.float32)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)


def test_masks_are_combined():
    query, key, value = arrays()
    mask = jax.random.bernoulli(jax.random.key(3), 0.7, (B, N, T, S))
    both = attn.dot_product_attention(query, key, value, mask=mask, is_causal=True, key_lengths=3, window=(2, None))
    one = mask & attn.causal_mask(T, S) & attn.padding_mask(3, S) & attn.sliding_window_mask(T, S, left=2, right=None)
    np.testing.assert_array_equal(both, attn.dot_product_attention(query, key, value, mask=one))


@pytest.mark.parametrize("shape", [(1, 1, 1, S), (B, 1, 1, S), (1, N, T, S), (B, N, T, 1)], ids=str)
def test_masks_and_biases_broadcast_by_rank(shape):
    query, key, value = arrays()
    mask, full = jax.random.bernoulli(jax.random.key(1), 0.6, shape), (B, N, T, S)
    bias = jax.random.normal(jax.random.key(2), shape)
    given = attn.dot_product_attention(query, key, value, mask=mask, bias=bias)
    expanded = attn.dot_product_attention(
        query, key, value, mask=jnp.broadcast_to(mask, full), bias=jnp.broadcast_to(bias, full)
    )  # fmt: skip
    np.testing.assert_allclose(given, expanded, atol=1e-6)


def test_grouped_heads_are_contiguous():
    query, key, value = arrays(N=4, K=2, V=2)
    context = attn.dot_product_attention(query, key, value)
    repeated = attn.dot_product_attention(query, jnp.repeat(key, 2, axis=2), jnp.repeat(value, 2, axis=2))
    tiled = attn.dot_product_attention(query, jnp.tile(key, (1, 1, 2, 1)), jnp.tile(value, (1, 1, 2, 1)))
    assert context.shape == (B, T, 4, 2)
    np.testing.assert_allclose(context, repeated, atol=1e-6)
    assert jnp.abs(context - tiled).max() > 0.1


def test_padded_queries_are_zero_and_give_no_gradient():
    query, key, value = arrays()
    query = query.at[0, 2:].set(jnp.nan)
    loss = lambda q, k, v: attn.dot_product_attention(q, k, v, query_lengths=[2, 4]).sum()  # noqa: E731
    context = attn.dot_product_attention(query, key, value, query_lengths=[2, 4])
    assert not context[0, 2:].any()
    grads = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(query, key, value)
    assert not grads[0][0, 2:].any()
    assert all(jnp.isfinite(grad).all() for grad in grads)


def test_masked_nan_reaches_no_option_either():
    """Scale, softcap and bias meet masked NaN too, and their gradients must not."""
    query, key, value = arrays()
    bias = jnp.zeros((B, N, T, S))
    dirty = (query.at[0, 3].set(jnp.nan), key.at[:, 4].set(jnp.inf), value.at[:, 4].set(jnp.nan), bias.at[..., 4].set(jnp.nan))

    def loss(scale, softcap, query, key, value, bias):
        lengths = {"query_lengths": [3, 4], "key_lengths": [4, 3], "is_causal": True}
        context, lse = attn.dot_product_attention_and_lse(
            query, key, value, bias=bias, scale=scale, softcap=softcap, **lengths
        )  # fmt: skip
        return context.sum() + jnp.where(jnp.isfinite(lse), lse, 0).sum()

    gradients = jax.jit(jax.grad(loss, argnums=tuple(range(6))))
    wanted = gradients(0.5, 2.0, query, key, value, bias)
    for grad, clean in zip(gradients(0.5, 2.0, *dirty), wanted, strict=True):
        np.testing.assert_allclose(grad, clean, atol=1e-6)


def test_huge_masked_values_do_not_overflow_into_gradients():
    query, key, value = arrays()
    value = value.at[:, 4].set(3e38)
    loss = lambda q, v: (attn.dot_product_attention(q, key, v, key_lengths=4) ** 2).sum() * 1e3  # noqa: E731
    hessian_product = jax.jit(lambda q, v: jax.jvp(jax.grad(loss, argnums=(0, 1)), (q, v), (q, jnp.ones_like(v))))
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(hessian_product(query, value)))


def test_default_scale_is_of_the_query_as_given():
    query, key, value = arrays()
    default, explicit = (attn.dot_product_attention(query, key, value, scale=scale) for scale in (None, H**-0.5))
    np.testing.assert_array_equal(default, explicit)


def test_softcap_bounds_scores_and_does_not_unmask():
    query, key = jnp.ones((1, 1, 1)), jnp.array([[[1.0]], [[-50.0]], [[50.0]]])
    weights = attn.dot_product_weights(query, key, softcap=1.0, scale=1.0, mask=jnp.array([[[True, True, False]]]))[0, 0]
    assert weights[2] == 0
    np.testing.assert_allclose(weights[0] / weights[1], np.exp(np.tanh(1) + 1), rtol=1e-5)
    for softcap in (0.0, -1.0):
        with pytest.raises(ValueError, match=f"softcap: expected a number > 0.*got {softcap}"):
            attn.dot_product_weights(query, key, softcap=softcap)


def test_constants_inside_jit_are_checked_there():
    """A cap, a rate or lengths that jit does not trace are as good as Python numbers."""
    query, key, value = arrays()
    options = {"softcap": jnp.float32(2.0), "dropout_rate": jnp.float32(0.0)}
    np.testing.assert_allclose(
        jax.jit(lambda q: attn.dot_product_attention(q, key, value, **options))(query),
        attn.dot_product_attention(query, key, value, softcap=2.0),
        atol=1e-6,
    )
    negative = jnp.float32(-1)
    with pytest.raises(ValueError, match=r"softcap: expected a number > 0.*got -1.0"):
        jax.jit(lambda q: attn.dot_product_attention(q, key, value, softcap=negative))(query)


def test_window_without_mask_is_applied():
    query, key, value = arrays(T=S)
    for window, span in (((2, 0), (2, 0)), (1, (1, 1)), ((None, 1), (None, 1)), ((0, 0), (0, 0))):
        for b in range(B):
            mask = np.broadcast_to(visible(S, S, window=span), (N, S, S))
            wanted, _, _ = dot_product(*(np.asarray(x[b], float) for x in (query, key, value)), mask)
            np.testing.assert_allclose(attn.dot_product_attention(query, key, value, window=window)[b], wanted, atol=1e-5)


@pytest.mark.parametrize("lengths", [3, np.int64(3), [3, 3], np.array([3, 3], np.uint32), jnp.array([3, 3], jnp.int8)], ids=repr)
def test_lengths_of_any_kind(lengths):
    query, key, value = arrays()
    wanted = attn.dot_product_attention(query, key[:, :3], value[:, :3])
    np.testing.assert_allclose(attn.dot_product_attention(query, key, value, key_lengths=lengths), wanted, atol=1e-6)


def test_debug_infs_finds_none_in_the_causal_case():
    query, key, value = arrays(T=S)
    with jax.debug_infs(True), jax.debug_nans(True):
        jax.jit(jax.grad(lambda q: attn.dot_product_attention(q, key, value, is_causal=True).sum()))(query)
        attn.dot_product_attention(query, key, value, is_causal=True, key_lengths=[0, 3])


def test_dropout_needs_a_key_and_a_rate():
    query, key, value = arrays()
    with pytest.raises(ValueError, match=r"dropout_key: expected a random key for dropout_rate = 0.1, got None"):
        attn.dot_product_attention(query, key, value, dropout_rate=0.1)
    for rate in (1.0, -0.1):
        with pytest.raises(ValueError, match=rf"dropout_rate: expected a number in \[0, 1\), got {rate}"):
            attn.dot_product_attention(query, key, value, dropout_rate=rate, dropout_key=jax.random.key(0))
    none = attn.dot_product_attention(query, key, value, dropout_key=jax.random.key(0))
    np.testing.assert_array_equal(none, attn.dot_product_attention(query, key, value))


def test_dropout_is_independent_over_batch_and_heads_and_keeps_the_mean():
    ones = jnp.ones((B, 64, N, 1))
    value = jnp.broadcast_to(jnp.eye(64)[:, None, :], (B, 64, N, 64))
    drop = jax.jit(lambda key: attn.dot_product_attention(ones, ones, value, dropout_rate=0.25, dropout_key=key))
    kept = drop(jax.random.key(0)) > 0
    np.testing.assert_allclose(kept.mean(), 0.75, atol=0.02)
    for first, second in ((kept[0, :, 0], kept[1, :, 0]), (kept[0, :, 0], kept[0, :, 1]), (kept[0, 0], kept[0, 1])):
        assert 0.2 < (first != second).mean() < 0.55
    np.testing.assert_allclose(jax.vmap(drop)(jax.random.split(jax.random.key(1), 64)).mean(), 1 / 64, rtol=0.01)
    _, lse = attn.dot_product_attention_and_lse(ones, ones, value, dropout_rate=0.25, dropout_key=jax.random.key(0))
    np.testing.assert_allclose(lse, 1 + np.log(64), rtol=1e-6)


@lru_cache
def compiled(is_causal, window):
    def attend(query, key, value, mask, query_offset, query_lengths, key_lengths):
        return attn.dot_product_attention_and_lse(
            query, key, value, mask=mask, query_offset=query_offset, is_causal=is_causal, window=window,
            query_lengths=query_lengths, key_lengths=key_lengths,
        )  # fmt: skip

    return jax.jit(attend)


@settings(max_examples=20, deadline=None)
@given(
    is_causal=st.booleans(),
    window=st.sampled_from([None, (1, 0), (None, 1)]),
    offset=st.integers(-4, 5),
    query_length=st.integers(0, T),
    key_length=st.integers(0, S),
    bits=st.integers(0, 2 ** (T * S) - 1),
)
def test_random_structure_equals_reference(is_causal, window, offset, query_length, key_length, bits):
    query, key, value = (x[0] for x in arrays(N=4, K=2, V=2))
    mask = np.array([bits >> n & 1 for n in range(T * S)], bool).reshape(1, T, S)
    context, lse = compiled(is_causal, window)(query, key, value, mask, offset, query_length, key_length)
    structure = visible(
        T, S, is_causal=is_causal, window=window, query_offset=offset, query_length=query_length, key_length=key_length
    )
    mask = np.broadcast_to(mask & structure, (4, T, S))
    wanted_context, wanted_lse, _ = dot_product(*(np.asarray(x, float) for x in (query, key, value)), mask)
    np.testing.assert_allclose(context, wanted_context, atol=1e-5)
    np.testing.assert_allclose(lse, wanted_lse, atol=1e-5)


@settings(max_examples=15, deadline=None)
@given(
    lengths=st.tuples(st.integers(0, 5), st.integers(0, 5)),
    groups=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    widths=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    window=st.none() | st.tuples(st.none() | st.integers(0, 3), st.none() | st.integers(0, 3)),
    offset=st.integers(-3, 4),
    seed=st.integers(0, 99),
)
def test_random_shapes_groups_and_windows_equal_reference(lengths, groups, widths, window, offset, seed):
    (T, S), (K, G), (H, V) = lengths, groups, widths
    draw = np.random.default_rng(seed).normal
    query, key, value, bias = draw(size=(T, K * G, H)), draw(size=(S, K, H)), draw(size=(S, K, V)), draw(size=(K * G, T, S))
    mask = draw(size=(K * G, T, S)) < 0.7
    context, lse = attn.dot_product_attention_and_lse(
        *(jnp.float32(x) for x in (query, key, value)), bias=jnp.float32(bias), mask=mask, window=window, query_offset=offset
    )
    allowed = mask & visible(T, S, window=window, query_offset=offset)
    wanted_context, wanted_lse, _ = dot_product(query, key, value, allowed, bias=bias)
    np.testing.assert_allclose(context, wanted_context, atol=1e-5)
    np.testing.assert_allclose(lse, wanted_lse, atol=1e-5)


QUERY, KEY, VALUE = arrays(N=4, K=2)


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        (r"query: expected shape \(\*B, T, N, H\), got \(3,\)", {"query": QUERY[0, 0, 0]}),
        (r"key: expected shape \(\*B, S, K, H\) = \(2, 5, 2, 3\), got \(2, 5, 2, 2\)", {"key": KEY[..., :2]}),
        (r"key: expected shape .* = \(2, 5, 2, 3\), got \(1, 5, 2, 3\)", {"key": KEY[:1]}),
        (r"value: expected shape \(\*B, S, K, V\) = \(2, 5, 2, 3\), got \(2, 4, 2, 3\)", {"value": VALUE[:, 1:]}),
        (r"query: .* N a multiple of K = 2, got \(2, 4, 3, 3\)", {"query": QUERY[:, :, :3]}),
        (r"mask: expected shape \(\*B, N, T, S\) = \(2, 4, 4, 5\), .*got \(2, 4, 5\)", {"mask": np.ones((B, T, S), bool)}),
        (r"bias: expected shape \(\*B, N, T, S\) = \(2, 4, 4, 5\), .*got \(4, 5\)", {"bias": np.ones((T, S))}),
        (r"query_lengths: expected shape \(\*B\) = \(2,\), .*got \(3,\)", {"query_lengths": [1, 2, 3]}),
        (r"query_lengths: expected integers from 0 to T = 4, got 5", {"query_lengths": [1, 5]}),
        (r"key_lengths: expected integers from 0 to S = 5, got -1", {"key_lengths": np.int64(-1)}),
        (r"key_segment_ids: expected segment ids for queries and keys", {"query_segment_ids": np.ones((B, T), int)}),
        (r"window: expected \(left, right\), .*got \(-1, 0\)", {"window": (-1, 0)}),
        (r"window: expected \(left, right\), .*got \(1, 2, 3\)", {"window": (1, 2, 3)}),
        (r"scale: expected a scalar, got shape \(2,\)", {"scale": np.ones(2)}),
        (r"implementation: expected one of 'auto', 'dense', 'blockwise', 'cudnn', got 'flash'", {"implementation": "flash"}),
        (r"block_sizes: expected None for the dense implementation", {"block_sizes": (8, 8), "implementation": "dense"}),
    ],
)
def test_wrong_shapes_and_options_are_named(message, changes):
    with pytest.raises(ValueError, match=message):
        attn.dot_product_attention(**{"query": QUERY, "key": KEY, "value": VALUE} | changes)


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("value: expected a floating dtype, got int32", {"value": VALUE.astype(int)}),
        ("mask: expected bool .*bias", {"mask": np.zeros((B, 4, T, S))}),
        ("mask: expected bool .*bias", {"mask": np.ones((B, 4, T, S), int)}),
        ("bias: expected a floating dtype, got bool", {"bias": np.ones((B, 4, T, S), bool)}),
        ("key_lengths: expected an integer dtype, got float32", {"key_lengths": jnp.ones(B)}),
    ],
)
def test_wrong_dtypes_are_named(message, changes):
    with pytest.raises(TypeError, match=message):
        attn.dot_product_attention(**{"query": QUERY, "key": KEY, "value": VALUE} | changes)


def test_selection_is_pure():
    assert attn.select_implementation(512, 512) == attn.select_implementation(1, 10**6) == "dense"
    assert attn.select_implementation(10_000, 10_000) == attn.select_implementation(512, 512, rows=8) == "blockwise"
    fitting = {"platform": "gpu", "fits_cudnn": True}
    assert attn.select_implementation(128, 128, **fitting) == attn.select_implementation(16, 1024, **fitting) == "cudnn"
    assert attn.select_implementation(127, 128, **fitting) == attn.select_implementation(15, 10**6, **fitting) == "dense"
    for unfit in ({"platform": "gpu"}, {"fits_cudnn": True}, {"platform": "tpu", "fits_cudnn": True}):
        assert attn.select_implementation(512, 512, **unfit) == "dense"
        assert attn.select_implementation(512, 512, rows=8, **unfit) == "blockwise"
