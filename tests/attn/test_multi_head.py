import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn

pytestmark = pytest.mark.usefixtures("quick_compilation")

D, N, K = 8, 4, 2
PARAMS = attn.init_multi_head(jax.random.key(0), D, N, num_kv_heads=K, value_dim=3, use_bias=True)
X = jax.random.normal(jax.random.key(1), (2, 6, D))


def empty_cache(max_length, batch=2):
    return attn.init_cache(batch, max_length, K, D // N, value_dim=3)


step = jax.jit(lambda params, x, cache: attn.multi_head_attention(params, x, cache=cache))


@pytest.mark.parametrize("chunks", [(1,) * 6, (6,), (2, 3, 1), (4, 0, 2)], ids=str)
def test_cached_decoding_equals_masked_self_attention(chunks):
    whole = attn.multi_head_attention(PARAMS, X, is_causal=True)
    cache, outputs, start = empty_cache(7), [], 0
    for chunk in chunks:
        output, cache = step(PARAMS, X[:, start : start + chunk], cache)
        outputs.append(output)
        start += chunk
    np.testing.assert_allclose(jnp.concatenate(outputs, axis=1), whole, atol=1e-6)
    assert cache.length.tolist() == [6, 6]
    assert not cache.overflowed.any()


def test_rows_of_different_length_continue_where_they_stand():
    _, cache = step(PARAMS, X[:, :4], empty_cache(6))
    # Row 0 was given two tokens of padding, which the next ones overwrite.
    cache = cache._replace(length=jnp.array([2, 4]))
    output, cache = step(PARAMS, jnp.stack([X[0, 2:4], X[1, 4:6]]), cache)
    whole = attn.multi_head_attention(PARAMS, X, is_causal=True)
    np.testing.assert_allclose(output, jnp.stack([whole[0, 2:4], whole[1, 4:6]]), atol=1e-6)
    assert cache.length.tolist() == [4, 6]


def test_cache_in_scan_and_gradient_equals_uncached():
    def decoded(params):
        def body(cache, x):
            output, cache = attn.multi_head_attention(params, x[:, None], cache=cache)
            return cache, output[:, 0]

        return jax.lax.scan(body, empty_cache(6), X.swapaxes(0, 1))[1].swapaxes(0, 1)

    weight = jax.random.normal(jax.random.key(2), X.shape)
    cached = jax.jit(jax.grad(lambda params: (decoded(params) * weight).sum()))(PARAMS)
    plain = jax.jit(jax.grad(lambda params: (attn.multi_head_attention(params, X, is_causal=True) * weight).sum()))(PARAMS)
    for a, b in zip(cached, plain, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_overflow_of_a_known_length_is_an_error():
    _, cache = attn.multi_head_attention(PARAMS, X[:, :4], cache=empty_cache(5))
    with pytest.raises(ValueError, match="cache: expected room for 2 more tokens after 4, but max_length is 5"):
        attn.multi_head_attention(PARAMS, X[:, 4:], cache=cache)


def test_overflow_inside_jit_overwrites_nothing_and_gives_nan():
    _, cache = step(PARAMS, X[:, :4], empty_cache(5))
    cache = cache._replace(length=jnp.array([4, 3]))
    output, after = step(PARAMS, X[:, 4:], cache)
    assert after.overflowed.tolist() == [True, False]
    np.testing.assert_array_equal(after.key[0], cache.key[0])
    np.testing.assert_array_equal(after.value[0], cache.value[0])
    assert jnp.isnan(output[0]).all()
    assert jnp.isfinite(output[1]).all()
    output, after = step(PARAMS, X[:, :1], after)
    assert after.overflowed.tolist() == [True, True]
    assert jnp.isnan(output).all()


def test_leaves_of_the_cache_have_the_batch_in_front():
    _, cache = step(PARAMS, X[:, :3], empty_cache(4))
    swapped = jax.tree.map(lambda leaf: leaf[jnp.array([1, 0])], cache)
    output, _ = step(PARAMS, X[::-1, 3:4], swapped)
    np.testing.assert_allclose(output[::-1], step(PARAMS, X[:, 3:4], cache)[0], atol=1e-6)
    assert [leaf.shape for leaf in attn.init_cache((2, 3), 4, 1, 5)] == [(2, 3, 4, 1, 5), (2, 3, 4, 1, 5), (2, 3)]


def test_cache_under_vmap_and_with_two_batch_axes():
    outputs, cache = jax.jit(jax.vmap(lambda x, c: attn.multi_head_attention(PARAMS, x, cache=c)))(X, empty_cache(6))
    np.testing.assert_allclose(outputs, attn.multi_head_attention(PARAMS, X, is_causal=True), atol=1e-6)
    stacked, nested = step(PARAMS, X[:, None], attn.init_cache((2, 1), 6, K, D // N, value_dim=3))
    np.testing.assert_allclose(stacked[:, 0], outputs, atol=1e-6)
    np.testing.assert_allclose(nested.key[:, 0], cache.key, atol=1e-6)


def test_cached_masks_and_windows_count_absolute_positions():
    whole = attn.multi_head_attention(PARAMS, X, is_causal=True, window=(1, 0), key_lengths=[6, 3])
    _, cache = attn.multi_head_attention(PARAMS, X[:, :4], cache=empty_cache(6), window=(1, 0), key_lengths=[6, 3])
    output, _ = attn.multi_head_attention(PARAMS, X[:, 4:], cache=cache, window=(1, 0), key_lengths=[6, 3])
    np.testing.assert_allclose(output, whole[:, 4:], atol=1e-6)
    with pytest.raises(ValueError, match="query_offset: expected none beside a cache"):
        attn.multi_head_attention(PARAMS, X, cache=empty_cache(6), query_offset=1)


def test_cross_attention_by_steps_or_at_once():
    memory = jax.random.normal(jax.random.key(3), (2, 5, 7))
    params = attn.init_multi_head(jax.random.key(4), D, 2, key_input_dim=7)
    output = attn.multi_head_attention(params, X, memory, key_lengths=[5, 2])
    key, value = attn.project_key_value(params, memory)
    context = attn.dot_product_attention(attn.project_query(params, X), key, value, key_lengths=[5, 2])
    np.testing.assert_allclose(attn.project_output(params, context), output, atol=1e-6)
    weights = attn.multi_head_weights(params, X, memory, key_lengths=[5, 2])
    assert weights.shape == (2, 2, 6, 5)
    np.testing.assert_allclose(jnp.einsum("bnts,bsnv->btnv", weights, value), context, atol=1e-6)


def test_padded_nan_reaches_no_parameter():
    memory = X.at[0, 4:].set(jnp.nan)
    grads = jax.jit(jax.grad(lambda p, m: attn.multi_head_attention(p, X, m, key_lengths=[4, 6]).sum(), argnums=(0, 1)))
    clean, dirty = grads(PARAMS, X), grads(PARAMS, memory)
    jax.tree.map(np.testing.assert_array_equal, dirty, clean)


def test_head_mask_switches_heads_off_and_has_the_gradient_of_importance():
    context = attn.dot_product_attention(attn.project_query(PARAMS, X), *attn.project_key_value(PARAMS, X))
    without = attn.project_output(PARAMS, context.at[:, :, 1].set(0))
    np.testing.assert_allclose(attn.multi_head_attention(PARAMS, X, head_mask=jnp.array([1, 0, 1, 1])), without, atol=1e-6)
    importance = jax.grad(lambda xi: attn.multi_head_attention(PARAMS, X, head_mask=xi).sum())(jnp.ones(N))
    slope = jax.grad(lambda c: attn.project_output(PARAMS, c).sum())(context)
    np.testing.assert_allclose(importance, (slope * context).sum((0, 1, 3)), rtol=1e-4)
    rows = attn.multi_head_attention(PARAMS, X, head_mask=jnp.array([[1, 0, 1, 1], [1, 1, 1, 1]]))
    np.testing.assert_allclose(rows[0], without[0], atol=1e-6)


def test_dtype_follows_the_inputs():
    x = X.astype(jnp.bfloat16)
    output, cache = attn.multi_head_attention(PARAMS, x, cache=empty_cache(6))
    assert output.dtype == jnp.bfloat16
    assert cache.key.dtype == jnp.float32
    np.testing.assert_allclose(output.astype(float), attn.multi_head_attention(PARAMS, X, is_causal=True), atol=0.1)


def test_split_and_merge_are_inverse():
    split = attn.split_heads(X, N)
    np.testing.assert_array_equal(split[0, 0, 1], X[0, 0, 2:4])
    np.testing.assert_array_equal(attn.merge_heads(split), X)


def test_init_variance():
    params = attn.init_multi_head(jax.random.key(5), 64, 4, num_kv_heads=1)
    fans = [(64, 64), (64, 16), (64, 16), (64, 64)]
    for kernel, (fan_in, fan_out) in zip(params[:4], fans, strict=True):
        assert abs(float(kernel.std()) * ((fan_in + fan_out) / 2) ** 0.5 - 1) < 0.1
    assert params[4:] == (None,) * 4


KEY = jax.random.key(0)
WIDE = jnp.ones((2, 1, 2, 3))


@pytest.mark.parametrize(
    ("message", "call"),
    [
        (r"num_heads: expected a divisor of model_dim = 8 .*got 3", lambda: attn.init_multi_head(KEY, 8, 3)),
        (r"num_kv_heads: expected a divisor of num_heads = 4, got 3", lambda: attn.init_multi_head(KEY, 8, 4, num_kv_heads=3)),
        (r"num_heads: expected a divisor of the last axis of x \(2, 6, 8\), got 3", lambda: attn.split_heads(X, 3)),
        (
            r"query_input: expected shape \(\*B, T, D\) = \(2, 6, 8\), got \(2, 6, 4\)",
            lambda: attn.multi_head_attention(PARAMS, X[..., :4]),
        ),
        (r"key_input: expected shape .*got None", lambda: attn.multi_head_attention(PARAMS, X, None, X)),
        (
            r"head_mask: expected shape \(N\) = \(4,\), .*got \(3,\)",
            lambda: attn.multi_head_attention(PARAMS, X, head_mask=jnp.ones(3)),
        ),
        (
            r"context: expected shape \(\*B, T, N, V\) = \(2, 4, 3\), got \(2, 4, 2\)",
            lambda: attn.project_output(PARAMS, jnp.ones((2, 4, 2))),
        ),
        (
            r"key: expected shape \(\*B, T, K, H\) = \(2, 1, 2, 2\), got \(2, 1, 2, 3\)",
            lambda: attn.update_cache(empty_cache(3), WIDE, WIDE),
        ),
        (r"max_length: expected an integer >= 0, got -1", lambda: attn.init_cache(2, -1, 1, 1)),
    ],
)
def test_wrong_arguments_are_named(message, call):
    with pytest.raises(ValueError, match=message):
        call()


def test_options_are_those_of_dot_product_attention():
    with pytest.raises(TypeError, match="bias"):
        attn.multi_head_attention(PARAMS, X, mask=jnp.ones((2, N, 6, 6)))
    with pytest.raises(TypeError, match="causal"):
        attn.multi_head_attention(PARAMS, X, causal=True)
