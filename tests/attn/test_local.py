from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_reference import gradient
from hypothesis import given, settings
from hypothesis import strategies as st
from luong_reference import local_monotonic, local_predictive, position

from attn.local import (
    LocalParams,
    init_local,
    local_monotonic_attention,
    local_monotonic_weights,
    local_predictive_attention,
    local_predictive_weights,
    predicted_positions,
)
from attn.masks import sliding_window_mask
from attn.multiplicative import ConcatParams, GeneralParams, concat_attention, dot_attention, general_attention

pytestmark = pytest.mark.usefixtures("quick_compilation")

FAMILIES = pytest.mark.parametrize("family", ["dot", "general", "concat"])
MASK = np.array([[1, 1, 0, 1, 1, 1], [0, 0, 0, 0, 0, 0], [0, 1, 0, 1, 1, 0], [1, 1, 0, 1, 0, 1]], bool)


def arrays(family="dot", seed=0, T=4, S=6, V=2):
    """Query, keys, values, W_p and v_p of one sentence in float64, and the arrays of the score."""
    normal = np.random.default_rng(seed).normal
    key_dim = 3 if family == "dot" else 2
    score = {"dot": (), "general": (normal(size=(3, 2)),), "concat": (normal(size=(5, 4)), normal(size=4))}[family]
    return [normal(size=(T, 3)), normal(size=(S, key_dim)), normal(size=(S, V)), normal(size=(3, 4)), normal(size=4), *score]


def params_of(score):
    """The argument that stands for the arrays of a score."""
    return None if not score else GeneralParams(*score) if len(score) == 1 else ConcatParams(*score)


def on_device(given, dtype=jnp.float32):
    return [jnp.asarray(x, dtype) for x in given]


def monotonic(query, keys, values, W_p, v_p, *score, **options):
    return local_monotonic_attention(query, keys, values, params_of(score), **options)


def predictive(query, keys, values, W_p, v_p, *score, **options):
    return local_predictive_attention(query, keys, values, LocalParams(W_p, v_p), params_of(score), **options)


BOTH = pytest.mark.parametrize("attend", [monotonic, predictive])


def value_and_gradients(attend, given, rows=slice(None), **options):
    def loss(*given):
        context = attend(*given, **options)
        return (context[..., rows, :] * jnp.arange(1.0, 1 + context.shape[-1])).sum()

    return jax.jit(jax.value_and_grad(loss, argnums=tuple(range(len(given)))))(*given)


def test_monotonic_by_hand():
    query, keys = jnp.array([[0.0, 1.0], [1.0, 0.0]]), jnp.array([[1.0, 1.0], [0.0, 2.0], [7.0, 7.0]])
    # Query 0 sees keys 0 and 1 with scores 1 and 2; query 1 sees all, with scores 1, 0 and 7.
    first, second = np.exp([1, 2, -np.inf]), np.exp([1, 0, 7])
    expected = [first / first.sum(), second / second.sum()]
    np.testing.assert_allclose(local_monotonic_weights(query, keys, window=1), expected, rtol=1e-5)
    np.testing.assert_allclose(local_monotonic_attention(query, keys, keys, window=1), expected @ np.asarray(keys), rtol=1e-5)


def test_predictive_by_hand():
    # All scores are equal; sigma = 1.  tanh(W_p h) is 0 for the first query, so p = 4 sigmoid(0) = 2.
    local_params = LocalParams(jnp.array([[0.0], [100.0]]), jnp.array([np.log(4.0)]))
    query, keys, values = jnp.array([[1.0, 0.0], [0.0, 1.0]]), jnp.zeros((4, 2)), jnp.array([[1.0], [10.0], [100.0], [1000.0]])
    np.testing.assert_allclose(predicted_positions(query, local_params, 4), [2, 3.2], rtol=1e-6)

    # For the second it is 1, so p = 4 * 4/5 = 3.2, whose window holds keys 2 and 3.
    def gaussian(distance):
        return np.exp(-(distance**2) / 2)

    weights = np.array([[gaussian(2) / 4, gaussian(1) / 4, 1 / 4, gaussian(1) / 4], [0, 0, gaussian(1.2) / 2, gaussian(0.2) / 2]])
    np.testing.assert_allclose(local_predictive_weights(query, keys, local_params, window=2), weights, atol=1e-6)
    context = local_predictive_attention(query, keys, values, local_params, window=2)
    np.testing.assert_allclose(context, weights @ np.asarray(values), rtol=1e-5)


@FAMILIES
def test_values_and_gradients_equal_the_reference(family, x64):
    """Of both, with W_p and v_p reached through the Gaussian."""
    given = arrays(family)
    query, keys, _, W_p, v_p, *score = given
    params = params_of(score)

    def numpy_monotonic(query, keys, values, W_p, v_p, *score):
        return local_monotonic(query, keys, values, MASK, score, 1, offset=1)

    def numpy_predictive(query, keys, values, W_p, v_p, *score):
        return local_predictive(query, keys, values, MASK, score, 2, W_p, v_p)

    options = {"window": 1, "query_offset": 1, "mask": MASK}
    weights = local_monotonic_weights(query, keys, params, **options)
    np.testing.assert_allclose(weights, numpy_monotonic(*given)[1], atol=1e-12)
    _compare(partial(monotonic, **options), numpy_monotonic, given, idle=(3, 4))

    weights = local_predictive_weights(query, keys, LocalParams(W_p, v_p), params, window=2, mask=MASK)
    np.testing.assert_allclose(weights, numpy_predictive(*given)[1], atol=1e-12)
    _compare(partial(predictive, window=2, mask=MASK), numpy_predictive, given)


def _compare(attend, expected, given, idle=()):
    def loss(*given):
        return (expected(*given)[0] * [1.0, 2.0]).sum()

    np.testing.assert_allclose(attend(*given), expected(*given)[0], atol=1e-12)
    _, grads = value_and_gradients(attend, on_device(given, jnp.float64))
    for n, (grad, wanted) in enumerate(zip(grads, gradient(loss, *given), strict=True)):
        assert (np.abs(wanted).max() > 1e-3) == (n not in idle)
        np.testing.assert_allclose(grad, wanted, atol=1e-8)


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 999),
    window=st.sampled_from([1, 2, 3]),
    offset=st.integers(-8, 8),
    length=st.integers(0, 6),
    visible=st.sampled_from([0.0, 0.6, 1.0]),
)
def test_any_window_offset_length_and_mask(seed, window, offset, length, visible):
    given = arrays(seed=seed)
    query, keys, values, W_p, v_p = given
    mask = np.random.default_rng(seed).random((4, 6)) < visible
    real = mask[:, :length]
    low = on_device(given)
    options = {"window": window, "key_lengths": length, "mask": mask}
    expected, _ = local_monotonic(query, keys[:length], values[:length], real, (), window, offset)
    np.testing.assert_allclose(monotonic(*low, query_offset=offset, **options), expected, atol=1e-5)
    expected, alpha = local_predictive(query, keys[:length], values[:length], real, (), window, W_p, v_p)
    np.testing.assert_allclose(predictive(*low, **options), expected, atol=1e-5)
    weights = local_predictive_weights(low[0], low[1], LocalParams(*low[3:]), **options)
    np.testing.assert_allclose(weights[:, :length], alpha, atol=1e-5)
    assert not weights[:, length:].any()
    assert bool((weights.sum(-1) <= 1 + 1e-6).all())


@FAMILIES
def test_a_window_over_all_keys_is_global_attention(family):
    given = on_device(arrays(family))
    query, keys, values, *_ = given
    attend = {"dot": dot_attention, "general": general_attention, "concat": concat_attention}[family]
    params = [] if family == "dot" else [params_of(given[5:])]
    expected = attend(query, keys, values, *params, mask=MASK)
    np.testing.assert_array_equal(monotonic(*given, window=5, mask=MASK), expected)
    assert np.abs(monotonic(*given, window=1, mask=MASK) - expected).max() > 1e-2
    # The wider the window, the flatter the Gaussian.
    np.testing.assert_allclose(predictive(*given, window=100_000, mask=MASK), expected, atol=1e-5)


def test_monotonic_window_is_the_sliding_window():
    query, keys, values, *_ = on_device(arrays())
    offset = jnp.array([2, -3])
    stacked = [jnp.stack([x, 2 * x]) for x in (query, keys, values)]
    mask = sliding_window_mask(4, 6, left=2, right=2, query_offset=offset)
    context = local_monotonic_attention(*stacked, window=2, query_offset=offset)
    np.testing.assert_array_equal(context, dot_attention(*stacked, mask=mask))
    assert not context[1, 0].any()


@BOTH
def test_padded_batch_equals_single_sentences(attend):
    """Above all, eq. 9 takes the true length of each sentence and not that of the longest."""
    sentences = [on_device(arrays(seed=n)) for n in range(3)]
    local = sentences[0][3:]
    query, keys, values = (jnp.stack(x) for x in list(zip(*sentences, strict=True))[:3])
    lengths = [6, 4, 0]
    padding = jnp.arange(6) >= jnp.array(lengths)[:, None]
    spoilt = [jnp.where(padding[..., None], jnp.nan, x) for x in (keys, values)]
    options = {"window": 2}
    together = attend(query, *spoilt, *local, key_lengths=lengths, **options)
    for same in (np.array(lengths, np.uint8), jnp.array(lengths)):
        np.testing.assert_array_equal(attend(query, *spoilt, *local, key_lengths=same, **options), together)
    _, grads = value_and_gradients(attend, [query, *spoilt, *local], key_lengths=lengths, **options)
    local_grads = [0, 0]
    for n, length in enumerate(lengths):
        single = [query[n], keys[n, :length], values[n, :length], *local]
        np.testing.assert_allclose(together[n], attend(*single, **options), atol=1e-5)
        _, single_grads = value_and_gradients(attend, single, **options)
        np.testing.assert_allclose(grads[0][n], single_grads[0], atol=1e-5)
        for grad, wanted in zip(grads[1:3], single_grads[1:3], strict=True):
            np.testing.assert_allclose(grad[n, :length], wanted, atol=1e-5)
            assert not grad[n, length:].any()
        local_grads = [total + grad for total, grad in zip(local_grads, single_grads[3:], strict=True)]
    for grad, wanted in zip(grads[3:], local_grads, strict=True):
        np.testing.assert_allclose(grad, wanted, atol=1e-4)


def test_without_lengths_the_mask_does_not_move_the_position():
    query, keys, _, *local = on_device(arrays())
    mask = jnp.arange(6)[None] < 4
    weights = local_predictive_weights(query, keys, LocalParams(*local), window=2, mask=mask)
    _, expected = local_predictive(*arrays()[:3], np.broadcast_to(mask, (4, 6)), (), 2, *arrays()[3:])
    np.testing.assert_allclose(weights, expected, atol=1e-5)
    moved = local_predictive_weights(query, keys, LocalParams(*local), window=2, key_lengths=4)
    assert np.abs(moved - weights).max() > 1e-2


def test_positions_are_those_of_eq_9():
    query, *_, W_p, v_p = arrays()
    expected = [[position(h_t, S, W_p, v_p) for h_t in query] for S in (6, 3)]
    batch = jnp.stack(on_device([query, query]))
    np.testing.assert_allclose(predicted_positions(batch, LocalParams(W_p, v_p), jnp.array([6, 3])), expected, rtol=1e-5)
    low = predicted_positions(batch.astype(jnp.bfloat16), LocalParams(*on_device([W_p, v_p])), 6)
    assert low.dtype == jnp.float32


@BOTH
def test_the_decoding_step_is_a_row_of_the_whole(attend):
    """One query at a time, at a traced position, under jit and scan."""
    query, *rest = on_device(arrays())
    whole = attend(query, *rest, window=1)

    def step(t, row):
        options = {"query_offset": t} if attend is monotonic else {}
        return t + 1, attend(row[None], *rest, window=1, **options)[0]

    rows = jax.jit(lambda query: jax.lax.scan(step, 0, query)[1])(query)
    np.testing.assert_allclose(rows, whole, atol=1e-6)


@BOTH
def test_traced_lengths_and_vmap(attend):
    given = on_device(arrays())
    lengths = jnp.array([5, 2], jnp.int32)
    batch = jax.jit(jax.vmap(lambda length: attend(*given, window=1, key_lengths=length)))(lengths)
    for n, length in enumerate((5, 2)):
        np.testing.assert_allclose(batch[n], attend(*given, window=1, key_lengths=length), atol=1e-6)


@pytest.mark.parametrize(("attend", "family"), [(monotonic, "dot"), *((predictive, f) for f in ("dot", "general", "concat"))])
def test_masked_nan_has_no_influence(attend, family):
    """NaN or Inf in query 1, which sees nothing, and in key and value 2, which nobody sees or a query that the loss ignores."""
    given = on_device(arrays(family))
    query, keys, values, *rest = given
    bad_keys, bad_values = keys.at[2].set(jnp.inf), values.at[2].set(jnp.nan)
    by_one = MASK.copy()
    by_one[2, 2] = True
    for mask, rows in ((MASK, slice(None)), (by_one, np.array([0, 1, 3]))):
        spoilt = value_and_gradients(attend, [query.at[1].set(jnp.nan), bad_keys, bad_values, *rest], rows, window=6, mask=mask)
        wanted = value_and_gradients(attend, given, rows, window=6, mask=mask)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), spoilt, wanted)
    for spoilt in ([query, bad_keys, values, *rest], [query, keys, bad_values, *rest]):
        context = attend(*spoilt, window=6, mask=by_one)
        assert jnp.isnan(context[2]).any()
        assert jnp.isfinite(context[np.array([0, 1, 3])]).all()


def test_nan_in_a_query_that_attends_is_not_hidden():
    query, *rest = on_device(arrays())
    context = predictive(query.at[0].set(jnp.nan), *rest, window=1)
    assert jnp.isnan(context[0]).all()
    assert jnp.isfinite(context[1:]).all()
    weights = local_predictive_weights(query.at[0].set(jnp.nan), rest[0], LocalParams(*rest[2:]), window=1)
    assert jnp.isnan(weights[0]).all()


@pytest.mark.parametrize("by_one", [False, True])
def test_nan_in_a_key_stays_with_the_weights_of_its_query(by_one):
    query, keys, _, *local = on_device(arrays())
    mask = jnp.asarray(MASK).at[2, 2].set(by_one)

    def first_rows(query, keys, local_params):
        weights = local_predictive_weights(query, keys, local_params, window=6, mask=mask)
        return (weights[:2] ** 2).sum(), weights

    grads_of = jax.jit(jax.grad(first_rows, argnums=(0, 1, 2), has_aux=True))
    grads, weights = grads_of(query, keys.at[2].set(jnp.nan), LocalParams(*local))
    wanted, _ = grads_of(query, keys, LocalParams(*local))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), grads, wanted)
    assert bool(jnp.isnan(weights[2][MASK[2]]).all()) == by_one
    assert not weights[2][~np.asarray(mask[2])].any()


@BOTH
def test_empty_rows_are_zero_and_quiet(attend):
    given = on_device(arrays())
    with jax.debug_nans(True):
        assert not attend(*given, window=6, mask=MASK)[1].any()
        for options in ({"mask": MASK & False}, {"key_lengths": 0}):
            value, grads = value_and_gradients(attend, given, window=6, **options)
            assert value == 0
            assert not any(grad.any() for grad in grads)
        for T, S in ((0, 3), (3, 0), (1, 1)):
            assert attend(*on_device(arrays(T=T, S=S)), window=1).shape == (T, 2)


@BOTH
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision(attend, dtype):
    low = on_device(arrays("concat"), dtype)
    context = attend(*low, window=2)
    exact = attend(*on_device(low), window=2)
    assert context.dtype == dtype
    tolerance = 2 * float(jnp.finfo(dtype).eps) * float(jnp.abs(exact).max())
    np.testing.assert_allclose(context.astype(jnp.float32), exact, atol=tolerance)
    assert local_predictive_weights(low[0], low[0], LocalParams(*low[3:5])).dtype == jnp.float32


def test_init_spreads_positions_about_the_middle():
    params = init_local(jax.random.key(0), 100, 200)
    query = jax.random.normal(jax.random.key(1), (300, 100))
    assert abs(float(jnp.std(query @ params.position_kernel)) - 1) < 0.1
    positions = predicted_positions(query, params, 10)
    assert abs(float(positions.mean()) - 5) < 0.5
    assert 0.5 < float(positions.std()) < 3
    assert init_local(jax.random.key(0), 2, 3, jnp.bfloat16).position_vector.dtype == jnp.bfloat16


QUERY, KEYS, VALUES, LOCAL = (
    jnp.ones((2, 5, 3)),
    jnp.ones((2, 6, 3)),
    jnp.ones((2, 6, 7)),
    LocalParams(jnp.ones((3, 4)), jnp.ones(4)),
)


@pytest.mark.parametrize("name", ["monotonic", "predictive"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": jnp.ones(3)}, r"query: expected shape \(\*B, T, Dq\), got \(3,\)"),
        ({"query": QUERY[..., :2]}, r"(query|keys): expected shape \(\*B, ., Dq?\) = \(2, ., .\), got \(2, ., .\)"),
        ({"keys": KEYS[:1]}, r"keys: expected shape \(\*B, S, Dk\) = \(2, 6, 3\), got \(1, 6, 3\)"),
        ({"keys": KEYS[..., :2]}, r"keys: expected shape \(\*B, S, D\) = \(2, 6, 3\), got \(2, 6, 2\)"),
        ({"values": VALUES[:, :5]}, r"values: expected shape \(\*B, S, V\) = \(2, 6, 7\), got \(2, 5, 7\)"),
        (
            {"mask": jnp.ones((5, 6), bool)},
            r"mask: expected shape \(\*B, T, S\) = \(2, 5, 6\), each axis full or 1, got \(5, 6\)",
        ),
        ({"window": -1}, r"window: expected an integer >= 0, got -1"),
        ({"window": True}, r"window: expected an integer >= 0, got True"),
        ({"key_lengths": 7}, r"key_lengths: expected integers from 0 to S = 6, got 7"),
        ({"key_lengths": [2, -1]}, r"key_lengths: expected integers from 0 to S = 6, got -1"),
        ({"key_lengths": [1, 2, 3]}, r"key_lengths: expected shape \(\*B\) = \(2,\), each axis full or 1, got \(3,\)"),
    ],
)
def test_wrong_arguments_are_named(name, change, message):
    with pytest.raises(ValueError, match=message):
        _call(name, change)
    if "key_lengths" in change:
        with pytest.raises(ValueError, match=message):
            jax.jit(lambda query: _call(name, {"query": query, **change}))(QUERY)


@pytest.mark.parametrize("name", ["monotonic", "predictive"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": QUERY.astype(int)}, r"query: expected a floating dtype, got int32"),
        ({"keys": KEYS.astype(int)}, r"keys: expected a floating dtype, got int32"),
        ({"values": VALUES.astype(int)}, r"values: expected a floating dtype, got int32"),
        ({"mask": jnp.ones((2, 5, 6))}, r"mask: expected bool .*bias"),
        ({"key_lengths": 2.0}, r"key_lengths: expected an integer dtype, got float32"),
    ],
)
def test_wrong_dtypes_are_named(name, change, message):
    with pytest.raises(TypeError, match=message):
        _call(name, change)


def test_other_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="window: expected an integer >= 1, as sigma = window / 2, got 0"):
        _call("predictive", {"window": 0})
    for name in ("monotonic", "predictive"):
        with pytest.raises(TypeError, match="params"):
            _call(name, {"params": LOCAL})
    with pytest.raises(TypeError, match="query_offset: expected an integer dtype, got float32"):
        _call("monotonic", {"query_offset": 1.0})
    with pytest.raises(ValueError, match=r"query: expected shape \(\*B, T, Dq\) = \(2, 5, 2\), got \(2, 5, 3\)"):
        predicted_positions(QUERY, LocalParams(jnp.ones((2, 4)), jnp.ones(4)), 6)
    with pytest.raises(ValueError, match=r"position_vector: expected shape \(A\) = \(4,\), got \(3,\)"):
        predicted_positions(QUERY, LocalParams(jnp.ones((3, 4)), jnp.ones(3)), 6)
    with pytest.raises(ValueError, match="align_dim: expected an integer >= 0, got -1"):
        init_local(jax.random.key(0), 3, -1)


def _call(name, change):
    given = {"query": QUERY, "keys": KEYS, "values": VALUES, **change}
    arrays = [given.pop(key) for key in ("query", "keys", "values")]
    if name == "predictive":
        return local_predictive_attention(*arrays, LOCAL, **given)
    return local_monotonic_attention(*arrays, **given)
