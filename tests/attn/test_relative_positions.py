from functools import partial

import attention_reference as attention
import jax
import jax.numpy as jnp
import numpy as np
import positions_reference as reference
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import attn
from attn.positions import alibi_bias, alibi_slopes, shaw_scores, shaw_values, t5_bias, t5_bucket

few = settings(max_examples=15, deadline=None)


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


def close(actual, expected, atol=1e-12):
    np.testing.assert_allclose(np.asarray(actual, float), np.asarray(expected, float), atol=atol)


# ALiBi


def test_alibi_slopes_of_the_paper():
    np.testing.assert_array_equal(alibi_slopes(8), [0.5**n for n in range(1, 9)])
    np.testing.assert_array_equal(alibi_slopes(6), [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125])
    close(alibi_slopes(12)[8:], [0.70711, 0.35355, 0.17678, 0.08839], 1e-5)
    for num_heads in range(1, 40):
        close(alibi_slopes(num_heads), reference.alibi_slopes(num_heads), 1e-7)
    assert alibi_slopes(0).shape == (0,)


def test_alibi_punishes_distance():
    assert alibi_bias(8, 6, 6)[0, 5, 3] == alibi_bias(8, 6, 6)[0, 3, 5] == -1
    assert not np.signbit(alibi_bias(2, 3, 3)[0, 1, 1])


@few
@given(st.sampled_from([(1, 3, 4), (6, 0, 2), (6, 4, 1)]), st.tuples(st.integers(-9, 9), st.integers(-9, 9)))
def test_alibi_equals_reference(sizes, offsets):
    expected = np.stack([reference.alibi(*sizes, offset) for offset in offsets])
    close(alibi_bias(*sizes, query_offset=offsets), expected, 1e-5)
    close(alibi_bias(*sizes, query_offset=offsets[0]), expected[0], 1e-5)


# T5

FIRST_DISTANCES = [8, 12, 16, 23, 32, 46, 64, 91]
BIDIRECTIONAL = (
    {0: 0, 1: 17, -1: 1, -7: 7, -8: 8, -11: 8, -12: 9, 127: 31, -1000: 15}
    | {-first: 8 + n for n, first in enumerate(FIRST_DISTANCES)}
    | {1 - first: 7 + n for n, first in enumerate(FIRST_DISTANCES)}
)
CAUSAL = {5: 0, 1: 0, 0: 0, -15: 15, -16: 16, -18: 16, -19: 17, -112: 30, -113: 31, -1000: 31, -(2**31): 31, 2**31 - 1: 0}


@pytest.mark.parametrize(("bidirectional", "known"), [(True, BIDIRECTIONAL), (False, CAUSAL)])
def test_t5_known_buckets(bidirectional, known):
    np.testing.assert_array_equal(t5_bucket(jnp.array(list(known)), bidirectional=bidirectional), list(known.values()))


@few
@given(st.booleans(), st.sampled_from([4, 5, 7, 32, 40]), st.integers(1, 200))
def test_t5_equals_reference_and_is_monotone(bidirectional, num_buckets, further):
    options = {
        "bidirectional": bidirectional,
        "num_buckets": num_buckets,
        "max_distance": num_buckets // (4 if bidirectional else 2) + further,
    }
    relative = np.arange(-300, 301)
    bucket = np.asarray(t5_bucket(relative, **options))
    np.testing.assert_array_equal(bucket, [reference.t5_bucket(r, **options) for r in relative.tolist()])
    before, after = bucket[:301], bucket[301:]
    assert (np.diff(before) <= 0).all()
    assert (np.diff(after) >= 0).all()
    assert bucket.min() == 0
    assert bucket.max() == (num_buckets // 2 * 2 if bidirectional else num_buckets) - 1


def test_t5_bucket_of_one_traced_small_integer():
    bucket = jax.jit(lambda r: t5_bucket(r, bidirectional=False))(jnp.int8(-128))
    assert bucket.shape == ()
    assert bucket == 31


@pytest.mark.parametrize("bidirectional", [True, False])
def test_t5_bias_equals_reference(bidirectional, x64):
    table, weight, options = normal(0, 8, 3), normal(1, 2, 3, 4, 6), {"bidirectional": bidirectional, "max_distance": 5}
    offsets = [2, -1]

    def expected(table):
        return np.stack([reference.t5(table, 4, 6, offset, **options) for offset in offsets])

    def actual(table):
        return t5_bias(table, 4, 6, query_offset=jnp.array(offsets), **options)

    np.testing.assert_array_equal(actual(table), expected(table))
    np.testing.assert_array_equal(t5_bias(table, 4, 6, query_offset=2, **options), expected(table)[0])
    (numeric,) = attention.gradient(lambda table: (expected(table) * weight).sum(), table)
    close(jax.jit(jax.grad(lambda table: (actual(table) * weight).sum()))(table), numeric, 1e-8)
    assert t5_bias(table.astype(jnp.bfloat16), 0, 3, **options).shape == (3, 0, 3)
    assert t5_bias(jnp.asarray(table, jnp.bfloat16), 2, 3, **options).dtype == jnp.bfloat16


def test_t5_refuses_what_it_cannot_bucket():
    zero = jnp.array(0)
    with pytest.raises(ValueError, match="num_buckets: expected an integer >= 4, got 3"):
        t5_bucket(zero, bidirectional=True, num_buckets=3)
    with pytest.raises(ValueError, match="num_buckets: expected an integer >= 2, got 1"):
        t5_bucket(zero, bidirectional=False, num_buckets=1)
    with pytest.raises(ValueError, match="max_distance: expected an integer > 8, for 32 buckets, got 8"):
        t5_bucket(zero, bidirectional=True, max_distance=8)
    with pytest.raises(ValueError, match="max_distance: expected an integer > 16, for 32 buckets, got 16"):
        t5_bucket(zero, bidirectional=False, max_distance=16)
    with pytest.raises(TypeError, match="relative_position: expected an integer dtype, got float32"):
        t5_bucket(jnp.array(1.0), bidirectional=True)
    with pytest.raises(ValueError, match=r"table: expected shape \(R, N\), got \(32,\)"):
        t5_bias(jnp.zeros(32), 2, 2, bidirectional=True)


# Shaw


@pytest.mark.parametrize(("T", "S", "L"), [(3, 5, 2), (4, 2, 1), (2, 3, 0), (0, 3, 1), (2, 0, 1)])
def test_shaw_equals_reference(T, S, L, x64):
    query, weights = normal(0, 2, T, 2, 3), normal(1, 2, 2, T, S)
    keys, values = normal(2, 2 * L + 1, 3), normal(3, 2 * L + 1, 4)
    score_weight, value_weight, offsets = normal(4, 2, 2, T, S), normal(5, 2, T, 2, 4), [0, -3]

    def expected(query, keys, weights, values):
        scores = [reference.shaw_scores(q, keys, S, offset) for q, offset in zip(query, offsets, strict=True)]
        sums = [reference.shaw_values(w, values, offset) for w, offset in zip(weights, offsets, strict=True)]
        return np.stack(scores), np.stack(sums)

    def actual(query, keys, weights, values):
        offset = jnp.array(offsets)
        return shaw_scores(query, keys, S, query_offset=offset), shaw_values(weights, values, query_offset=offset)

    def loss(function):
        def value(*arrays):
            scores, sums = function(*arrays)
            return (scores * score_weight).sum() + (sums * value_weight).sum()

        return value

    arrays = query, keys, weights, values
    for result, wanted in zip(actual(*arrays), expected(*arrays), strict=True):
        close(result, wanted)
    grads = jax.jit(jax.grad(loss(actual), argnums=(0, 1, 2, 3)))(*arrays)
    for grad, numeric in zip(grads, attention.gradient(loss(expected), *arrays), strict=True):
        close(grad, numeric, 1e-8)
    close(shaw_scores(query[1], keys, S, query_offset=-3), actual(*arrays)[0][1])


def test_shaw_relative_vectors_are_rows_of_the_table():
    T, S, L = 3, 5, 4
    table, eye = jnp.asarray(normal(0, 2 * L + 1, 2 * L + 1)), jnp.eye(2 * L + 1)
    # Queries that are unit vectors read R[i, j] one coordinate at a time, and so do weights on one key.
    vectors = jax.vmap(lambda unit: shaw_scores(jnp.broadcast_to(unit, (T, 1, 2 * L + 1)), table, S)[0], out_axes=-1)(eye)
    of_values = jnp.stack([shaw_values(jnp.broadcast_to(jnp.eye(S)[j], (1, T, S)), table)[:, 0] for j in range(S)], 1)
    for i in range(T):
        for j in range(S):
            close(vectors[i, j], table[j - i + L], 1e-6)
            close(of_values[i, j], table[j - i + L], 1e-6)


def test_shaw_makes_no_vector_for_each_pair():
    T, S, H = 8, 16, 32
    query, table, weights = jnp.zeros((T, 1, H)), jnp.zeros((5, H)), jnp.zeros((1, T, S))
    for text in (
        str(jax.make_jaxpr(lambda query: jax.vjp(lambda q, t: shaw_scores(q, t, S), query, table)[1](weights))(query)),
        str(jax.make_jaxpr(lambda weights: jax.vjp(lambda w, t: shaw_values(w, t), weights, table)[1](query))(weights)),
    ):
        assert f"{T},{S}]" in text
        assert f"{S},{H}]" not in text


def test_shaw_half_precision_is_accumulated_in_float32():
    query, table = jnp.asarray(normal(0, 4, 1, 256), jnp.bfloat16), jnp.asarray(normal(1, 5, 256), jnp.bfloat16)
    scores = shaw_scores(query, table, 6)
    assert scores.dtype == jnp.float32
    close(scores, reference.shaw_scores(np.asarray(query, float), np.asarray(table, float), 6), 1e-4)
    weights = jnp.full((1, 4, 300), 1 / 300)
    values = shaw_values(weights, table)
    assert values.dtype == jnp.bfloat16
    exact = reference.shaw_values(np.asarray(weights, float), np.asarray(table, float))
    close(values, exact, np.abs(exact).max() * 2**-8)


def test_shaw_keeps_nan_with_its_query():
    query, table = jnp.asarray(normal(0, 3, 1, 2)), jnp.asarray(normal(1, 3, 2))
    weights = shaw_scores(query, table, 4)

    def scores_loss(table, query):
        return shaw_scores(query, table, 4)[:, :2].sum()

    def values_loss(table, weights):
        return shaw_values(weights, table)[:2].sum()

    for loss, arrays, bad in (
        (scores_loss, query, query.at[2].set(jnp.nan)),
        (values_loss, weights, weights.at[:, 2].set(jnp.nan)),
    ):
        wanted, actual = jax.grad(loss)(table, arrays), jax.grad(loss)(table, bad)
        close(actual, wanted, 1e-6)
    assert jnp.isnan(shaw_scores(query.at[2].set(jnp.nan), table, 4)[:, 2]).all()
    assert jnp.isnan(shaw_values(weights.at[:, 2].set(jnp.nan), table)[2]).all()


def test_shaw_refuses_what_does_not_fit():
    query, weights = jnp.zeros((2, 3, 1, 4)), jnp.zeros((2, 1, 3, 5))
    with pytest.raises(ValueError, match=r"table: expected shape \(2L\+1, H\), an odd number of rows, got \(2, 4\)"):
        shaw_scores(query, jnp.zeros((2, 4)), 5)
    with pytest.raises(ValueError, match=r"table: expected shape \(2L\+1, H\) = \(3, 4\), got \(3, 5\)"):
        shaw_scores(query, jnp.zeros((3, 5)), 5)
    with pytest.raises(ValueError, match=r"table: expected shape \(2L\+1, V\), an odd number of rows, got \(0, 4\)"):
        shaw_values(weights, jnp.zeros((0, 4)))
    with pytest.raises(ValueError, match=r"query_offset: expected shape \(\*B\) = \(2,\), .*got \(3,\)"):
        shaw_values(weights, jnp.zeros((3, 4)), query_offset=[0, 1, 2])
    with pytest.raises(TypeError, match="weights: expected a floating dtype, got int32"):
        shaw_values(weights.astype(int), jnp.zeros((3, 4)))
    with pytest.raises(ValueError, match="S: expected an integer >= 0, got -1"):
        shaw_scores(query, jnp.zeros((3, 4)), -1)


# All relative positions


def two_heads_of_t5(T, S, **options):
    return t5_bias(jnp.ones((8, 2)), T, S, bidirectional=True, **options)


@pytest.mark.parametrize("bias", [partial(alibi_bias, 2), two_heads_of_t5])
def test_biases_refuse_wrong_sizes_and_offsets(bias):
    with pytest.raises(ValueError, match="T: expected an integer >= 0, got -1"):
        bias(-1, 3)
    with pytest.raises(TypeError, match="query_offset: expected an integer dtype, got float32"):
        bias(1, 3, query_offset=0.5)


N, T, S, H = 3, 4, 6, 2
QUERY, KEY, VALUE = normal(0, 2, T, N, H), normal(1, 2, S, N, H), normal(2, 2, S, N, H)
T5_TABLE, KEY_TABLE, VALUE_TABLE = normal(3, 8, N), normal(4, 5, H), normal(5, 5, H)

BIASES = {
    "alibi": (
        lambda query, T, offset: alibi_bias(N, T, S, query_offset=offset),
        lambda query, offset: reference.alibi(N, T, S, offset),
    ),
    "t5": (
        lambda query, T, offset: t5_bias(T5_TABLE, T, S, bidirectional=True, max_distance=5, query_offset=offset),
        lambda query, offset: reference.t5(T5_TABLE, T, S, offset, bidirectional=True, max_distance=5),
    ),
    "shaw": (
        lambda query, T, offset: shaw_scores(query * H**-0.5, KEY_TABLE, S, query_offset=offset),
        lambda query, offset: reference.shaw_scores(query, KEY_TABLE, S, offset) / np.sqrt(H),
    ),
}


@pytest.mark.parametrize("name", BIASES)
def test_attention_with_bias_equals_reference(name, x64):
    bias, expected = BIASES[name]
    for offset in (1, jnp.array([2, -1])):
        given = bias(QUERY, T, offset)
        context = attn.dot_product_attention(
            QUERY, KEY, VALUE, bias=given if given.ndim == 4 else given[None], is_causal=True, query_offset=offset
        )
        for b in range(2):
            at = int(np.broadcast_to(offset, 2)[b])
            mask = np.broadcast_to(attention.visible(T, S, is_causal=True, query_offset=at), (N, T, S))
            wanted, _, _ = attention.dot_product(QUERY[b], KEY[b], VALUE[b], mask, bias=expected(QUERY[b], at))
            close(context[b], wanted)


def test_shaw_attention_equals_the_paper(x64):
    bias = shaw_scores(QUERY * H**-0.5, KEY_TABLE, S)
    weights = attn.dot_product_weights(QUERY, KEY, bias=bias)
    context = attn.dot_product_attention(QUERY, KEY, VALUE, bias=bias) + shaw_values(weights, VALUE_TABLE)
    for b in range(2):
        for n in range(N):
            for i in range(T):
                vectors = np.stack([reference.relative_vector(KEY_TABLE, i, j) for j in range(S)])
                scores = np.array([QUERY[b, i, n] @ (KEY[b, j, n] + vectors[j]) / np.sqrt(H) for j in range(S)])
                alpha = attention.softmax(scores, np.ones(S, bool))
                moved = [VALUE[b, j, n] + reference.relative_vector(VALUE_TABLE, i, j) for j in range(S)]
                close(context[b, i, n], alpha @ np.stack(moved))


def test_steps_of_decoding_equal_rows_of_the_whole():
    query = jnp.asarray(QUERY, jnp.float32)
    weights = jax.nn.softmax(jnp.asarray(normal(6, 2, N, T, S)))
    whole = [bias(query, T, 0) for bias, _ in BIASES.values()]
    whole_values = shaw_values(weights, VALUE_TABLE)

    @jax.jit
    def step(query, weights, i):
        biases = [bias(query, 1, i) for bias, _ in BIASES.values()]
        return biases, shaw_values(weights, VALUE_TABLE, query_offset=i)

    for i in range(T):
        biases, values = step(query[:, i : i + 1], weights[:, :, i : i + 1], jnp.array(i))
        for row, full in zip(biases, whole, strict=True):
            close(row, full[..., i : i + 1, :], 1e-6)
        close(values, whole_values[:, i : i + 1], 1e-6)


@pytest.mark.parametrize("name", BIASES)
def test_one_offset_for_each_row_equals_vmap(name, quick_compilation):
    bias, _ = BIASES[name]
    query, offsets = jnp.asarray(QUERY, jnp.float32), jnp.array([2, -1])
    together = bias(query, T, offsets)
    close(jax.jit(jax.vmap(lambda query, offset: bias(query, T, offset)))(query, offsets), together, 1e-6)
    close(jax.vmap(lambda offset: bias(query[0], T, offset))(offsets)[0], together[0], 1e-6)


def test_second_order_through_every_bias(x64, quick_compilation):
    query, key, value = (jnp.asarray(x[0]) for x in (QUERY, KEY, VALUE))
    tables = jnp.asarray(T5_TABLE), jnp.asarray(KEY_TABLE), jnp.asarray(VALUE_TABLE)

    def loss(t5_table, key_table, value_table):
        bias = t5_bias(t5_table, T, S, bidirectional=True) + shaw_scores(query, key_table, S) + alibi_bias(N, T, S)
        context = attn.dot_product_attention(query, key, value, bias=bias)
        return ((context + shaw_values(attn.dot_product_weights(query, key, bias=bias), value_table)) ** 2).sum()

    def along(function):
        ahead, behind = (function(*(x + sign * 1e-5 * d for x, d in zip(tables, direction, strict=True))) for sign in (1, -1))
        return jax.tree.map(lambda a, b: (a - b) / 2e-5, ahead, behind)

    direction = tuple(jnp.asarray(normal(7 + n, *x.shape)) for n, x in enumerate(tables))
    gradient = jax.jit(jax.grad(jax.checkpoint(loss), argnums=(0, 1, 2)))
    numeric = along(gradient)
    forward = jax.jit(lambda *tables: jax.jvp(gradient, tables, direction)[1])(*tables)
    projected = jax.grad(lambda *tables: sum(map(jnp.vdot, gradient(*tables), direction)), argnums=(0, 1, 2))
    for results in (forward, jax.jit(projected)(*tables)):
        for result, wanted in zip(results, numeric, strict=True):
            close(result, wanted, 1e-7)
            assert jnp.abs(result).max() > 1e-3
