import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_reference import gradient
from hypothesis import given, settings
from hypothesis import strategies as st
from luong_reference import luong, score_of

from attn.additive import additive_attention, additive_scores, additive_weights, project_keys
from attn.dot_product import dot_product_attention, dot_product_weights
from attn.multiplicative import (
    ConcatParams,
    GeneralParams,
    concat_attention,
    concat_scores,
    concat_weights,
    dot_attention,
    dot_scores,
    dot_weights,
    general_attention,
    general_scores,
    general_weights,
    init_concat,
    init_general,
)

pytestmark = pytest.mark.usefixtures("quick_compilation")

SCORES = {
    "dot": (dot_scores, dot_weights, dot_attention),
    "general": (general_scores, general_weights, general_attention),
    "concat": (concat_scores, concat_weights, concat_attention),
}
FAMILIES = pytest.mark.parametrize("family", SCORES)
MASK = np.array([[1, 1, 0, 1], [0, 0, 0, 0], [0, 1, 0, 1]], bool)


def arrays(family, seed=0, T=3, S=4, V=2):
    """Query, keys and values of one sentence in float64, and the arrays of the score."""
    normal = np.random.default_rng(seed).normal
    query_dim, key_dim = (3, 3) if family == "dot" else (3, 2)
    score = {"dot": (), "general": (normal(size=(3, 2)),), "concat": (normal(size=(5, 4)), normal(size=4))}[family]
    return [normal(size=(T, query_dim)), normal(size=(S, key_dim)), normal(size=(S, V)), *score]


def params_of(score):
    """The arguments that stand for the arrays of a score."""
    return [] if not score else [GeneralParams(*score)] if len(score) == 1 else [ConcatParams(*score)]


def on_device(given, dtype=None):
    return [jnp.asarray(x, dtype) for x in given]


def value_and_gradients(family, given, mask, rows=slice(None)):
    def loss(query, keys, values, *score):
        context = SCORES[family][2](query, keys, values, *params_of(score), mask=mask)
        return (context[rows] * jnp.arange(1.0, 1 + values.shape[-1])).sum()

    return jax.value_and_grad(loss, argnums=tuple(range(len(given))))(*given)


def test_dot_by_hand():
    query, keys = jnp.array([[1.0, 2.0], [0.0, 1.0]]), jnp.array([[1.0, 1.0], [2.0, 0.0]])
    np.testing.assert_array_equal(dot_scores(query, keys), [[3, 2], [1, 0]])
    # Both rows differ by 1, which unscaled is e : 1.
    weights = np.array([np.e, 1]) / (np.e + 1)
    np.testing.assert_allclose(dot_weights(query, keys), [weights, weights], rtol=1e-6)
    np.testing.assert_allclose(dot_attention(query, keys, keys), [weights @ keys, weights @ keys], rtol=1e-6)


def test_general_by_hand():
    params = GeneralParams(jnp.array([[1.0, -1.0], [0.0, 2.0]]))
    query, keys = jnp.array([[1.0, 1.0]]), jnp.array([[1.0, 1.0], [2.0, -3.0]])
    # q W = (1, -1 + 2); W q, were W the wrong way round, would be (0, 2) and the scores 2 and -6.
    np.testing.assert_array_equal(general_scores(query, keys, params), [[2, -1]])
    weights = np.array([np.exp(3), 1]) / (np.exp(3) + 1)
    np.testing.assert_allclose(general_weights(query, keys, params), [weights], rtol=1e-6)
    np.testing.assert_allclose(general_attention(query, keys, keys, params), [weights @ keys], rtol=1e-6)


def test_concat_by_hand():
    # Rows 0 and 1 of W meet the query, rows 2 and 3 the key.
    params = ConcatParams(jnp.array([[1.0, 0.0], [0.0, 2.0], [0.5, 0.0], [0.0, 1.0]]), jnp.array([1.0, -1.0]))
    query, keys = jnp.array([[1.0, 0.5]]), jnp.array([[2.0, 0.0], [0.0, -1.0]])
    scores = [np.tanh(2) - np.tanh(1), np.tanh(1) - np.tanh(0)]
    np.testing.assert_allclose(concat_scores(query, keys, params), [scores], atol=1e-6)
    weights = np.exp(scores) / np.exp(scores).sum()
    np.testing.assert_allclose(concat_weights(query, keys, params), [weights], atol=1e-6)
    np.testing.assert_allclose(concat_attention(query, keys, keys, params), [weights @ keys], atol=1e-6)


@FAMILIES
def test_values_and_gradients_equal_the_reference(family, x64):
    scores, weigh, attend = SCORES[family]
    given = arrays(family)
    query, keys, values, *score = given
    context, alpha = luong(query, keys, values, MASK, score)
    expected_scores = [[score_of(q, k, score) for k in keys] for q in query]
    np.testing.assert_allclose(scores(query, keys, *params_of(score)), expected_scores, atol=1e-12)
    np.testing.assert_allclose(weigh(query, keys, *params_of(score), mask=MASK), alpha, atol=1e-12)
    np.testing.assert_allclose(jax.jit(attend)(query, keys, values, *params_of(score), mask=MASK), context, atol=1e-12)
    np.testing.assert_allclose(
        attend(query, keys, values, *params_of(score)), luong(query, keys, values, MASK | True, score)[0], atol=1e-12
    )

    def loss(query, keys, values, *score):
        return (luong(query, keys, values, MASK, score)[0] * [1.0, 2.0]).sum()

    grads = value_and_gradients(family, on_device(given), MASK)[1]
    for grad, expected in zip(grads, gradient(loss, *given), strict=True):
        assert np.abs(expected).max() > 1e-3
        np.testing.assert_allclose(grad, expected, atol=1e-8)


@settings(max_examples=15, deadline=None)
@given(
    family=st.sampled_from(list(SCORES)),
    lengths=st.sampled_from([(1, 1), (2, 5), (3, 0)]),
    seed=st.integers(0, 999),
    visible=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_any_length_and_mask(family, lengths, seed, visible):
    T, S = lengths
    query, keys, values, *score = arrays(family, seed, T, S)
    mask = np.random.default_rng(seed).random((T, S)) < visible
    context, alpha = luong(query, keys, values, mask, score)
    low = on_device([query, keys, values, *score], jnp.float32)
    weights = SCORES[family][1](*low[:2], *params_of(low[3:]), mask=mask)
    np.testing.assert_allclose(weights, alpha, atol=1e-5)
    np.testing.assert_allclose(weights.sum(-1), mask.any(-1), atol=1e-6)
    np.testing.assert_allclose(SCORES[family][2](*low[:3], *params_of(low[3:]), mask=mask), context, atol=1e-5)


def test_dot_is_dot_product_attention_of_one_head():
    query, keys, values = on_device(np.random.default_rng(0).normal(size=(3, 2, 5, 4)), jnp.float32)
    mask = np.random.default_rng(1).random((2, 5, 5)) < 0.6

    def one_head(x):
        return x[:, :, None]

    options = {"mask": mask[:, None], "scale": 1.0}
    context = dot_product_attention(one_head(query), one_head(keys), one_head(values), **options)
    np.testing.assert_array_equal(dot_attention(query, keys, values, mask=mask), context[:, :, 0])
    weights = dot_product_weights(one_head(query), one_head(keys), **options)
    np.testing.assert_array_equal(dot_weights(query, keys, mask=mask), weights[:, 0])


def test_concat_is_additive_attention():
    params = init_concat(jax.random.key(0), 3, 2, 4)
    query, keys, values, *_ = on_device(arrays("concat"), jnp.float32)
    projected = project_keys(keys, params.additive)
    for given_keys, given_params, given_projected in [
        (keys, params, None),
        (keys, ConcatParams(params.kernel, params.score_vector), None),
        (None, params, projected),
    ]:
        options = {"projected_keys": given_projected}
        scores = concat_scores(query, given_keys, given_params, **options)
        np.testing.assert_array_equal(scores, additive_scores(query, keys, params.additive))
        weights = concat_weights(query, given_keys, given_params, mask=MASK, **options)
        np.testing.assert_array_equal(weights, additive_weights(query, keys, params.additive, mask=MASK))
        context = concat_attention(query, given_keys, values, given_params, mask=MASK, **options)
        np.testing.assert_array_equal(context, additive_attention(query, keys, values, params.additive, mask=MASK))


def test_general_with_the_identity_is_dot():
    query, keys, values = on_device(arrays("dot"), jnp.float32)
    params = GeneralParams(jnp.eye(3))
    np.testing.assert_allclose(general_scores(query, keys, params), dot_scores(query, keys), atol=1e-6)
    context = dot_attention(query, keys, values, mask=MASK)
    np.testing.assert_allclose(general_attention(query, keys, values, params, mask=MASK), context, atol=1e-6)


@FAMILIES
def test_masked_nan_is_as_if_sliced_away(family):
    """NaN or Inf in query 1, which sees nothing, and in key and value 2, which nobody sees or a query that the loss ignores."""
    given = on_device(arrays(family), jnp.float32)
    query, keys, values, *score = given
    spoilt = [query.at[1].set(jnp.nan), keys.at[2].set(jnp.inf), values.at[2].set(jnp.nan), *score]
    seen_keys, seen_queries = np.array([0, 1, 3]), np.array([0, 2])
    sliced = [query[seen_queries], keys[seen_keys], values[seen_keys], *score]
    value, grads = value_and_gradients(family, spoilt, MASK)
    expected, expected_grads = value_and_gradients(family, sliced, MASK[seen_queries][:, seen_keys])
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    for grad, wanted, seen in zip(grads, expected_grads, [seen_queries, seen_keys, seen_keys], strict=False):
        np.testing.assert_allclose(grad[seen], wanted, atol=1e-6)
        assert np.count_nonzero(np.any(grad, axis=-1)) == len(seen)
    for grad, wanted in zip(grads[3:], expected_grads[3:], strict=True):
        np.testing.assert_allclose(grad, wanted, atol=1e-6)
    by_one = MASK.copy()
    by_one[2, 2] = True
    ignoring = value_and_gradients(family, [query, *spoilt[1:]], by_one, rows=slice(2))
    wanted = value_and_gradients(family, given, by_one, rows=slice(2))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), ignoring, wanted)


@FAMILIES
def test_attended_nan_is_not_hidden(family):
    query, keys, values, *score = on_device(arrays(family), jnp.float32)
    mask = MASK | np.array([[True], [False], [False]])
    context = SCORES[family][2](query, keys.at[2].set(jnp.nan), values, *params_of(score), mask=mask)
    assert jnp.isnan(context[0]).all()
    assert jnp.isfinite(context[1:]).all()


@FAMILIES
def test_empty_rows_are_zero_and_quiet(family):
    given = on_device(arrays(family), jnp.float32)
    query, keys, _, *score = given
    with jax.debug_nans(True):
        assert not SCORES[family][1](query, keys, *params_of(score), mask=MASK)[1].any()
        value, grads = value_and_gradients(family, given, MASK & False)
    assert value == 0
    assert not any(grad.any() for grad in grads)


@FAMILIES
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision(family, dtype):
    low = on_device(arrays(family), dtype)
    scores, weigh, attend = SCORES[family]
    params = params_of(low[3:])
    assert scores(*low[:2], *params).dtype == jnp.float32
    weights, context = weigh(*low[:2], *params), attend(*low[:3], *params)
    assert (weights.dtype, context.dtype) == (jnp.float32, dtype)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)
    exact, _ = luong(*(np.asarray(x, float) for x in low[:3]), MASK | True, [np.asarray(x, float) for x in low[3:]])
    np.testing.assert_allclose(np.asarray(context, float), exact, atol=2 * float(jnp.finfo(dtype).eps) * np.abs(exact).max())


@FAMILIES
def test_batch_axes_masks_of_length_one_and_vmap_over_parameters(family):
    query, keys, values, *score = on_device(arrays(family), jnp.float32)
    attend, several = SCORES[family][2], jnp.array([1.0, -0.5])
    stacked = [several.reshape(2, *[1] * x.ndim) * x for x in (query, keys, values, *score)]
    padding = jnp.array([[[True, True, False, True]], [[True, False, False, False]]])
    together = attend(*stacked[:3], *params_of(score), mask=padding)
    mapped = jax.vmap(lambda q, k, v, p, m: attend(q, k, v, *p, mask=m))(*stacked[:3], params_of(stacked[3:]), padding)
    for i in range(2):
        single = attend(*(x[i] for x in stacked[:3]), *params_of(score), mask=padding[i])
        np.testing.assert_allclose(together[i], single, atol=1e-6)
        own = params_of([x[i] for x in stacked[3:]])
        np.testing.assert_allclose(mapped[i], attend(*(x[i] for x in stacked[:3]), *own, mask=padding[i]), atol=1e-6)


def test_concat_params_are_split_at_query_dim():
    kernel, vector = jnp.arange(10.0).reshape(5, 2), jnp.ones(2)
    additive = ConcatParams(kernel, vector, 3).additive
    np.testing.assert_array_equal(additive.query_kernel, kernel[:3])
    np.testing.assert_array_equal(additive.key_kernel, kernel[3:])
    halves = ConcatParams(kernel[1:], vector).additive
    np.testing.assert_array_equal(halves.key_kernel, kernel[3:])
    doubled = jax.tree.map(lambda x: 2 * x, ConcatParams(kernel, vector, 3))
    assert doubled.query_dim == 3
    assert len(jax.tree.leaves(doubled)) == 2
    with pytest.raises(ValueError, match=r"kernel: expected shape \(Dq\+Dk, A\) with Dq = Dk as query_dim is None, got \(5, 2\)"):
        _ = ConcatParams(kernel, vector).additive
    with pytest.raises(ValueError, match=r"query_dim: expected an integer <= Dq\+Dk = 5, got 6"):
        _ = ConcatParams(kernel, vector, 6).additive


def test_init_gives_unit_variance():
    query, keys = jax.random.normal(jax.random.key(0), (60, 150)), jax.random.normal(jax.random.key(1), (60, 100))
    assert abs(float(jnp.std(general_scores(query, keys, init_general(jax.random.key(2), 150, 100)))) - 1) < 0.1
    params = init_concat(jax.random.key(3), 150, 100, 200)
    assert abs(float(jnp.std(jnp.concatenate([query, keys], axis=-1) @ params.kernel)) - 1) < 0.1
    assert abs(float(jnp.linalg.norm(params.score_vector)) - 1) < 0.2
    assert (params.query_dim, params.kernel.dtype) == (150, jnp.float32)
    assert init_general(jax.random.key(2), 3, 2, jnp.bfloat16).kernel.dtype == jnp.bfloat16


QUERY, KEYS, VALUES = jnp.ones((2, 5, 3)), jnp.ones((2, 6, 3)), jnp.ones((2, 6, 7))
GENERAL, CONCAT = GeneralParams(jnp.ones((3, 4))), ConcatParams(jnp.ones((7, 2)), jnp.ones(2), 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dot_scores(jnp.ones(3), KEYS), r"query: expected shape \(\*B, T, D\), got \(3,\)"),
        (lambda: dot_scores(QUERY, KEYS[..., :2]), r"keys: expected shape \(\*B, S, D\) = \(2, 6, 3\), got \(2, 6, 2\)"),
        (lambda: dot_weights(QUERY, KEYS[:1]), r"keys: expected shape \(\*B, S, D\) = \(2, 6, 3\), got \(1, 6, 3\)"),
        (
            lambda: dot_attention(QUERY, KEYS, VALUES[:, 1:]),
            r"values: expected shape \(\*B, S, V\) = \(2, 6, 7\), got \(2, 5, 7\)",
        ),
        (
            lambda: dot_attention(QUERY, KEYS, VALUES, mask=jnp.ones((5, 6), bool)),
            r"mask: expected shape \(\*B, T, S\) = \(2, 5, 6\), each axis full or 1, got \(5, 6\)",
        ),
        (
            lambda: general_scores(QUERY[..., :2], KEYS, GENERAL),
            r"query: expected shape \(\*B, T, Dq\) = \(2, 5, 3\), got \(2, 5, 2\)",
        ),
        (lambda: general_weights(QUERY, KEYS, GENERAL), r"keys: expected shape \(\*B, S, Dk\) = \(2, 6, 4\), got \(2, 6, 3\)"),
        (lambda: general_scores(QUERY, KEYS, GeneralParams(jnp.ones(3))), r"kernel: expected shape \(Dq, Dk\), got \(3,\)"),
        (
            lambda: concat_scores(QUERY[..., :2], KEYS, CONCAT),
            r"query: expected shape \(\*B, T, Dq\) = \(2, 5, 3\), got \(2, 5, 2\)",
        ),
        (
            lambda: concat_attention(QUERY, KEYS, VALUES, CONCAT),
            r"keys: expected shape \(\*B, S, Dk\) = \(2, 6, 4\), got \(2, 6, 3\)",
        ),
        (
            lambda: concat_weights(QUERY, KEYS, ConcatParams(jnp.ones((7, 2)), jnp.ones(2))),
            r"kernel: expected shape \(Dq\+Dk, A\) = \(6, 2\), got \(7, 2\)",
        ),
        (
            lambda: concat_weights(QUERY, KEYS, ConcatParams(jnp.ones((6, 2)), jnp.ones(3))),
            r"score_vector: expected shape \(A\) = \(2,\), got \(3,\)",
        ),
        (lambda: init_general(jax.random.key(0), -1, 2), r"query_dim: expected an integer >= 0, got -1"),
        (lambda: init_concat(jax.random.key(0), 1, 2, -3), r"align_dim: expected an integer >= 0, got -3"),
    ],
)
def test_wrong_shapes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@FAMILIES
def test_wrong_dtypes_are_named(family):
    query, keys, values, *score = on_device(arrays(family), jnp.float32)
    params, attend = params_of(score), SCORES[family][2]
    given = {"query": query, "keys": keys, "values": values}
    for name in given:
        with pytest.raises(TypeError, match=f"{name}: expected a floating dtype, got int32"):
            attend(*{**given, name: given[name].astype(int)}.values(), *params)
    with pytest.raises(TypeError, match=r"mask: expected bool .*bias"):
        attend(query, keys, values, *params, mask=MASK.astype(np.float32))
