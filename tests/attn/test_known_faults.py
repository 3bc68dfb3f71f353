"""Faults that users of other libraries have reported, each with its right value.

The name of a test says what went wrong elsewhere; the thread is cited where there is one.  Faults of positions, of linear and of
hard attention stand in test_positions.py, test_linear.py and test_hard.py, and that of scores beyond 2^31 in test_equivalence.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_reference import dot_product
from jax.test_util import check_grads

import attn

pytestmark = pytest.mark.usefixtures("quick_compilation")

B, T, S, N, H = 2, 6, 6, 2, 8


def arrays(seed=0, *, B=B, T=T, S=S, N=N, K=N, H=H, V=H, dtype=jnp.float32):
    keys, shapes = jax.random.split(jax.random.key(seed), 3), [(B, T, N, H), (B, S, K, H), (B, S, K, V)]
    return [jax.random.normal(key, shape, dtype) for key, shape in zip(keys, shapes, strict=True)]


def gradients(loss, *given):
    return jax.jit(jax.grad(loss, argnums=tuple(range(len(given)))))(*given)


QUERY, KEY, VALUE = arrays()
ROW_ONE_EMPTY = jnp.ones((1, 1, T, S), bool).at[:, :, 1].set(False)


def test_one_empty_row_poisons_every_gradient():
    """pytorch#41508"""
    grads = gradients(lambda *a: attn.dot_product_attention(*a, mask=ROW_ONE_EMPTY)[:, 0].sum(), QUERY, KEY, VALUE)
    assert all(jnp.isfinite(grad).all() for grad in grads)
    assert not attn.dot_product_attention(QUERY, KEY, VALUE, mask=ROW_ONE_EMPTY)[:, 1].any()


def test_empty_row_is_nan():
    """pytorch#103749, mlx#2608"""
    context, lse = attn.dot_product_attention_and_lse(QUERY, KEY, VALUE, mask=ROW_ONE_EMPTY)
    assert not jnp.isnan(context).any()
    assert (lse[:, :, 1] == -jnp.inf).all()


def test_empty_row_returns_the_mean_of_the_values():
    """jax.nn.dot_product_attention sends a gradient into them as well"""
    grads = gradients(lambda *a: attn.dot_product_attention(*a, mask=ROW_ONE_EMPTY)[:, 1].sum(), QUERY, KEY, VALUE)
    assert all(not grad.any() for grad in grads)


def test_weights_and_context_disagree_about_a_masked_head():
    """pytorch#190486, #160064, #152028"""
    mask = jnp.ones((1, N, 1, 1), bool).at[:, 0].set(False)
    assert not attn.dot_product_weights(QUERY, KEY, mask=mask)[:, 0].any()
    assert not attn.dot_product_attention(QUERY, KEY, VALUE, mask=mask)[:, :, 0].any()


def test_length_zero_attends_to_the_padding():
    """d2l-en#2423"""
    loss = lambda *a: attn.dot_product_attention(*a, key_lengths=[0, 3]).sum()  # noqa: E731
    assert not attn.dot_product_attention(QUERY, KEY, VALUE, key_lengths=[0, 3])[0].any()
    assert all(jnp.isfinite(grad).all() for grad in gradients(loss, QUERY, KEY, VALUE))


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, -jnp.inf])
def test_masked_nan_leaks(bad):
    """pytorch#101967: equal to a run on the sliced arrays"""
    mask = jnp.arange(S)[None, None, None] != 5
    dirty = (QUERY, KEY.at[:, 5].set(bad), VALUE.at[:, 5].set(bad))

    def loss(query, key, value, mask):
        return (attn.dot_product_attention(query, key, value, mask=mask) ** 2).sum()

    slices = (QUERY, KEY[:, :5], VALUE[:, :5])
    context = attn.dot_product_attention(*dirty, mask=mask)
    np.testing.assert_allclose(context, attn.dot_product_attention(*slices), atol=1e-6)
    grads = jax.grad(loss, argnums=(0, 1, 2))(*dirty, mask)
    wanted = jax.grad(loss, argnums=(0, 1, 2))(*slices, mask[..., :5])
    for grad, sliced in zip(grads, wanted, strict=True):
        np.testing.assert_allclose(grad[:, : sliced.shape[1]], sliced, atol=1e-6)
        assert not grad[:, sliced.shape[1] :].any()


def test_gradient_explodes_when_masked_scores_are_large():
    """jax#17117, #17070, #19490"""
    grad = jax.grad(lambda x: attn.masked_softmax(x, jnp.array([True, True, False])).sum())(jnp.array([1.0, 1.0, 100.0]))
    np.testing.assert_allclose(grad, 0, atol=1e-7)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_two_masks_of_one_cell_overflow(dtype):
    """NeMo-Automodel#2658, transformers#27114, flax#982, apex#93"""
    query, key, value = arrays(dtype=dtype)
    context = attn.dot_product_attention(query, key, value, is_causal=True, key_lengths=[2, 4])
    weights = attn.dot_product_weights(query, key, is_causal=True, key_lengths=[2, 4])
    assert jnp.isfinite(context).all()
    assert (weights[0, :, 0, 1:] == 0).all()
    assert (weights[1, :, :, 4:] == 0).all()


def test_causal_corner_differs_silently_when_lengths_differ():
    """pytorch#108108, mlx#2835"""
    query, key, _ = arrays(T=2, S=4)
    for offset, first in ((0, [1, 0, 0, 0]), (2, [1, 1, 1, 0])):
        weights = attn.dot_product_weights(query, key, is_causal=True, query_offset=offset)
        np.testing.assert_array_equal(weights[0, 0, 0] > 0, np.array(first, bool))


def test_more_queries_than_keys_leave_the_first_rows_empty():
    """flash-attention#1778"""
    query, key, value = arrays(T=5, S=2)
    context = attn.dot_product_attention(query, key, value, is_causal=True, query_offset=-3)
    assert not context[:, :3].any()
    assert context[:, 3:].all()


@pytest.mark.parametrize(
    "options", [{}, {"key_lengths": [5, 6]}, {"softcap": 2.0}, {"window": (None, 3)}, {"scale": 2.0}], ids=str
)
def test_an_option_drops_the_causal_mask(options):
    """pytorch#99282, keras#23038: for the context, the lse, the weights and dropout alike"""
    key, value = KEY.at[:, 3:].add(1.0), VALUE.at[:, 3:].add(1.0)
    dropout = {"dropout_rate": 0.5, "dropout_key": jax.random.key(0)}
    for function in (
        lambda k, v: attn.dot_product_attention(QUERY, k, v, is_causal=True, **options)[:, :3],
        lambda k, v: attn.dot_product_attention(QUERY, k, v, is_causal=True, **dropout, **options)[:, :3],
        lambda k, v: attn.dot_product_attention_and_lse(QUERY, k, v, is_causal=True, **options)[1][:, :, :3],
        lambda k, v: attn.dot_product_weights(QUERY, k, is_causal=True, **options)[:, :, :3],
    ):
        np.testing.assert_array_equal(function(KEY, VALUE), function(key, value))


def test_causality_beside_a_mask_is_ignored():
    """pytorch#118972, #178588"""
    both = attn.dot_product_attention(QUERY, KEY, VALUE, is_causal=True, mask=attn.padding_mask([2, 4], S)[:, None, None])
    one = attn.causal_mask(T, S)[None, None] & attn.padding_mask([2, 4], S)[:, None, None]
    np.testing.assert_array_equal(both, attn.dot_product_attention(QUERY, KEY, VALUE, mask=one))


def test_window_counts_one_key_too_many():
    """axlearn#1009, transformers#39408"""
    weights = attn.dot_product_weights(QUERY, KEY, window=(2, 0))
    np.testing.assert_array_equal(weights[0, 0, 5] > 0, [False, False, False, True, True, True])


def test_window_is_ignored_without_a_mask():
    """jax#32300"""
    full, windowed = (attn.dot_product_attention(QUERY, KEY, VALUE, window=window) for window in (None, (1, 1)))
    assert jnp.abs(full - windowed).max() > 0.01


def test_window_that_is_not_causal_leaks_the_future():
    """jax#39576: the right side of (2, 0) is a bound"""
    moved = attn.dot_product_attention(QUERY, KEY.at[:, 3:].add(1.0), VALUE.at[:, 3:].add(1.0), window=(2, 0))
    np.testing.assert_array_equal(moved[:, :3], attn.dot_product_attention(QUERY, KEY, VALUE, window=(2, 0))[:, :3])


def test_key_lengths_are_ignored():
    """jax#23349"""
    moved = attn.dot_product_attention(QUERY, KEY.at[:, 4:].add(1.0), VALUE.at[:, 4:].add(1.0), key_lengths=4)
    np.testing.assert_array_equal(moved, attn.dot_product_attention(QUERY, KEY, VALUE, key_lengths=4))


def test_padded_queries_differ_between_paths():
    """transformers#36585: they are 0 and give no gradient"""
    assert not attn.dot_product_attention(QUERY, KEY, VALUE, query_lengths=2)[:, 2:].any()
    grad = jax.grad(lambda q: attn.dot_product_attention(q, KEY, VALUE, query_lengths=2).sum())(QUERY)
    assert not grad[:, 2:].any()
    assert grad[:, :2].any()


def test_lengths_must_be_int32_arrays(x64):
    """jax.nn refuses int64, uint32, scalars and lists"""
    wanted = attn.dot_product_attention(QUERY, KEY, VALUE, key_lengths=jnp.full(B, 3, jnp.int32))
    for lengths in (3, np.int64(3), [3, 3], jnp.full(B, 3, jnp.int64), jnp.full(B, 3, jnp.uint32)):
        np.testing.assert_array_equal(attn.dot_product_attention(QUERY, KEY, VALUE, key_lengths=lengths), wanted)


@pytest.mark.parametrize("bias", [jnp.zeros((1, 1, T, S)), jnp.ones((1, 1, T, S), jnp.int32)], ids=["float", "int"])
def test_float_mask_is_inverted_silently(bias):
    """x-transformers#164; flax's fast path casts it to bool"""
    with pytest.raises(TypeError, match="bias"):
        attn.dot_product_attention(QUERY, KEY, VALUE, mask=bias)


@pytest.mark.parametrize("shape", [(1, 1, 1, S), (B, 1, 1, S), (1, N, T, S), (B, N, T, 1)], ids=str)
def test_masks_that_broadcast_are_refused(shape):
    """jax#28974"""
    mask = jax.random.bernoulli(jax.random.key(1), 0.6, shape)
    wanted = attn.dot_product_attention(QUERY, KEY, VALUE, mask=jnp.broadcast_to(mask, (B, N, T, S)))
    np.testing.assert_allclose(attn.dot_product_attention(QUERY, KEY, VALUE, mask=mask), wanted, atol=1e-6)


def test_grouped_heads_are_interleaved():
    """nntile#347: head n uses key/value head n // (N // K)"""
    query, key, value = arrays(N=4, K=2)
    context = attn.dot_product_attention(query, key, value)
    repeated = attn.dot_product_attention(query, jnp.repeat(key, 2, axis=2), jnp.repeat(value, 2, axis=2))
    np.testing.assert_allclose(context, repeated, atol=1e-6)


def test_value_width_must_be_that_of_the_keys():
    query, key, value = arrays(V=4)
    assert attn.dot_product_attention(query, key, value).shape == (B, T, N, 4)


def test_float64_is_computed_in_float32(x64):
    """jax.nn: error 1.6e-7, and check_grads fails"""
    given = arrays(B=1, dtype=jnp.float64)
    wanted, _, _ = dot_product(*(np.asarray(x[0]) for x in given), np.ones((N, T, S), bool))
    np.testing.assert_allclose(attn.dot_product_attention(*given)[0], wanted, atol=1e-14)
    short = [x[:, :2, :1, :3] for x in given]
    check_grads(jax.jit(attn.dot_product_attention), short, order=2, modes=["fwd", "rev"])


def test_bfloat16_accumulates_in_bfloat16():
    """jax#24047: the error is at most twice that of the plain computation in bfloat16, forwards and backwards"""
    given = arrays(T=64, S=64)
    low = [x.astype(jnp.bfloat16) for x in given]

    def plain(query, key, value):
        scores = jnp.einsum("btnh,bsnh->bnts", query * query.dtype.type(H**-0.5), key)
        return jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(scores), value)

    def both(function, given):
        weight = jax.random.normal(jax.random.key(4), (B, 64, N, H)).astype(given[0].dtype)
        return function(*given), *gradients(lambda *a: (function(*a) * weight).sum(), *given)

    exact = both(plain, [x.astype(jnp.float32) for x in low])
    for ours, theirs, wanted in zip(both(attn.dot_product_attention, low), both(plain, low), exact, strict=True):
        assert ours.dtype == jnp.bfloat16
        assert jnp.abs(ours.astype(jnp.float32) - wanted).max() <= 2 * jnp.abs(theirs.astype(jnp.float32) - wanted).max()


def test_rows_of_bfloat16_weights_do_not_sum_to_one():
    """flax: 1 +- 0.004, and asking for weights changes the output"""
    query, key, value = arrays(T=64, S=64, dtype=jnp.bfloat16)
    np.testing.assert_allclose(attn.dot_product_weights(query, key).sum(-1), 1, atol=1e-5)
    context, _ = attn.dot_product_attention_and_lse(query, key, value)
    np.testing.assert_array_equal(context, attn.dot_product_attention(query, key, value))


def test_default_scale_is_applied_never_or_twice():
    """maxtext#3138, jax#19450"""
    np.testing.assert_array_equal(
        attn.dot_product_attention(QUERY, KEY, VALUE), attn.dot_product_attention(QUERY, KEY, VALUE, scale=H**-0.5)
    )


def test_softcap_after_the_mask_lets_masked_keys_back_in():
    """flash-attention#1025"""
    query, key = jnp.ones((1, 1, 1)), jnp.array([[[1.0]], [[50.0]]])
    weights = attn.dot_product_weights(query, key, softcap=1.0, mask=jnp.array([[[True, False]]]))
    np.testing.assert_array_equal(weights[0, 0], [1.0, 0.0])
    for softcap in (0.0, -2.0):
        with pytest.raises(ValueError, match=f"softcap: expected a number > 0.*got {softcap}"):
            attn.dot_product_attention(QUERY, KEY, VALUE, softcap=softcap)


def test_lse_is_too_coarse_to_merge():
    """jax.nn returns it in bfloat16"""
    low = arrays(dtype=jnp.bfloat16)
    assert attn.dot_product_attention_and_lse(*low)[1].dtype == jnp.float32


def test_lse_has_no_gradient():
    """flash-attention#889, #141; silently 0 in jax.nn"""
    grad = jax.grad(lambda q: attn.dot_product_attention_and_lse(q, KEY, VALUE, scale=1.0)[1].sum())(QUERY)
    np.testing.assert_allclose(
        grad, jnp.einsum("bnts,bsnh->btnh", attn.dot_product_weights(QUERY, KEY, scale=1.0), KEY), atol=1e-5
    )


def test_no_checkpoint_and_no_scan():
    """flash-attention-jax#7"""

    def layers(query, rematerialise):
        body = lambda x, _: (attn.dot_product_attention(x, KEY, VALUE, is_causal=True), None)  # noqa: E731
        return jax.lax.scan(jax.checkpoint(body) if rematerialise else body, query, length=3)[0].sum()

    plain, again = (jax.jit(jax.grad(layers), static_argnums=1)(QUERY, flag) for flag in (False, True))
    np.testing.assert_allclose(plain, again, atol=1e-6)


def test_gradient_of_a_bias_is_missing_or_not_deterministic():
    """pytorch#145208, #137452"""
    bias = jax.random.normal(jax.random.key(3), (1, N, T, S))
    loss = jax.jit(jax.grad(lambda b: (attn.dot_product_attention(QUERY, KEY, VALUE, bias=b) ** 2).sum()))
    plain = jax.grad(
        lambda b: (
            jnp.einsum(
                "bnts,bsnh->btnh",
                jax.nn.softmax(jnp.einsum("btnh,bsnh->bnts", QUERY, KEY) * H**-0.5 + b),
                VALUE,
            )
            ** 2
        ).sum()
    )
    np.testing.assert_allclose(loss(bias), plain(bias), atol=1e-5)
    np.testing.assert_array_equal(loss(bias), loss(bias))


def test_gradient_beside_masks_lengths_and_keys():
    """Boolean and integer arguments, and random keys, have no cotangent."""
    options = {"key_lengths": jnp.array([3, 4]), "dropout_rate": 0.5, "dropout_key": jax.random.key(0)}
    grads = gradients(lambda *a: attn.dot_product_attention(*a, mask=ROW_ONE_EMPTY, **options).sum(), QUERY, KEY, VALUE)
    assert all(jnp.isfinite(grad).all() for grad in grads)


def test_dropout_is_active_in_evaluation():
    """pytorch#124464, timm#1978"""
    with pytest.raises(ValueError, match="dropout_key: expected a random key"):
        attn.dot_product_attention(QUERY, KEY, VALUE, dropout_rate=0.5)


def test_one_dropout_mask_for_all_heads_and_rows():
    """flax's default"""
    value = jnp.broadcast_to(jnp.eye(S)[:, None], (B, S, N, S))
    kept = attn.dot_product_attention(QUERY, KEY, value, dropout_rate=0.5, dropout_key=jax.random.key(0)) > 0
    assert (kept[0] != kept[1]).any()
    assert (kept[:, :, 0] != kept[:, :, 1]).any()


def test_weights_are_averaged_over_heads():
    """pytorch#34537, #47583"""
    assert attn.dot_product_weights(QUERY, KEY).shape == (B, N, T, S)


def test_additive_scores_have_no_projections():
    """tensorflow#39332: v . tanh(W q + U k), by hand"""
    params = attn.AdditiveParams(jnp.array([[1.0, 0.0], [0.0, 2.0]]), jnp.array([[0.5, 0.0], [0.0, 1.0]]), jnp.array([1.0, -1.0]))
    query, keys = jnp.array([[1.0, 0.5]]), jnp.array([[2.0, 0.0], [0.0, -1.0]])
    wanted = [np.tanh(1 + 1) - np.tanh(1 + 0), np.tanh(1 + 0) - np.tanh(1 - 1)]
    np.testing.assert_allclose(attn.additive_scores(query, keys, params), [wanted], atol=1e-6)


@pytest.mark.parametrize("function", ["jvp", "linearize"])
def test_forward_mode_is_missing(function):
    """flash-attention#1672, xformers#552"""
    tangent = arrays(seed=1)
    slope = jax.jvp(attn.dot_product_attention, (QUERY, KEY, VALUE), tuple(tangent))[1]
    if function == "linearize":
        slope = jax.linearize(attn.dot_product_attention, QUERY, KEY, VALUE)[1](*tangent)
    step = 1e-2
    sides = [
        attn.dot_product_attention(*(x + sign * step * t for x, t in zip((QUERY, KEY, VALUE), tangent, strict=True)))
        for sign in (1, -1)
    ]
    np.testing.assert_allclose(slope, (sides[0] - sides[1]) / (2 * step), atol=2e-3)


def test_debug_flags_are_tripped_by_masking():
    """jax.nn's own comment: infinities inside"""
    with jax.debug_nans(True), jax.debug_infs(True):
        jax.jit(jax.grad(lambda q: attn.dot_product_attention(q, KEY, VALUE, is_causal=True).sum()))(QUERY)


@pytest.mark.parametrize("lengths", [(1, 1), (1, 129), (127, 2), (129, 127), (257, 128)], ids=str)
def test_lengths_that_are_no_multiple_of_a_block(lengths):
    """pytorch#153799, #136232"""
    T, S = lengths
    query, key, value = (np.asarray(x, float) for x in arrays(B=1, T=T, S=S, N=1, K=1, H=2, V=2))
    wanted, _, _ = dot_product(query[0], key[0], value[0], np.ones((1, T, S), bool))
    np.testing.assert_allclose(attn.dot_product_attention(*map(jnp.float32, (query, key, value)))[0], wanted, atol=1e-5)
