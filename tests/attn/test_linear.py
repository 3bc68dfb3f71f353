import itertools

import jax
import jax.numpy as jnp
import linear_reference
import numpy as np
import pytest
from attention_reference import gradient
from hypothesis import given, settings
from hypothesis import strategies as st

import attn
from attn.feature_maps import features
from attn.linear import (
    LinearState,
    init_linear_state,
    linear_attention,
    linear_attention_step,
    linear_state,
    random_features,
)

B, T, N, K, H, V, F = 2, 5, 4, 2, 3, 2, 6

PROJECTION = np.random.default_rng(9).normal(size=(F, H))


def squared(x):
    """A map of the user's, [.. H] -> [.. H + 1]."""
    return jnp.concatenate([x**2, jnp.ones_like(x[..., :1])], axis=-1)


MAPS = {
    "elu1": {"feature_map": "elu1"},
    "relu": {"feature_map": "relu"},
    "exp": {"feature_map": "exp", "projection": PROJECTION},
    "function": {"feature_map": squared},
}
NUM_FEATURES = {"elu1": H, "relu": H, "exp": F, "function": H + 1}
# "relu" and "function" run the same code behind the map, so one of them stands for both where compilation is long.
several_maps = pytest.mark.parametrize("name", ["elu1", "exp", "function"])
every_map = pytest.mark.parametrize("name", MAPS)
quick = pytest.mark.usefixtures("quick_compilation")


def arrays(T=T, S=None, *, N=N, K=K, H=H, batch=(B,), seed=0, dtype=None):
    draw = np.random.default_rng(seed).normal
    S = T if S is None else S
    drawn = draw(size=(*batch, T, N, H)), draw(size=(*batch, S, K, H)), draw(size=(*batch, S, K, V))
    return drawn if dtype is None else [jnp.asarray(x, dtype) for x in drawn]


def expected(query, key, value, lengths=None, **options):
    lengths = [None] * len(query) if lengths is None else lengths
    query, key, value = (np.asarray(x, float) for x in (query, key, value))
    rows = zip(query, key, value, lengths, strict=True)
    return np.stack([linear_reference.linear(*row, key_length=length, **options) for *row, length in rows])


def by_steps(query, key, value, state, **options):
    """The contexts of a scan of `linear_attention_step`, and the last state."""

    def step(state, tokens):
        context, state = linear_attention_step(*tokens, state, **options)
        return state, context

    state, contexts = jax.lax.scan(step, state, [jnp.moveaxis(x, -3, 0) for x in (query, key, value)])
    return jnp.moveaxis(contexts, 0, -3), state


def close(a, b, atol=1e-5, rtol=0.0):
    np.testing.assert_allclose(np.asarray(a, float), np.asarray(b, float), atol=atol, rtol=rtol)


# The reference


@quick
@pytest.mark.parametrize("case", ["plain", "lengths", "causal, lengths"])
@several_maps
def test_value_and_gradients_equal_reference(name, case, x64):
    query, key, value = arrays(5, 5 if "causal" in case else 4, N=2, K=1)
    lengths = [3, 0] if "lengths" in case else None
    options = {**MAPS[name], "is_causal": "causal" in case}
    weight = np.random.default_rng(1).normal(size=(B, 5, 2, V))

    def actual(query, key, value):
        context = linear_attention(query, key, value, key_lengths=lengths, chunk_size=2, **options)
        return (context * weight).sum(), context

    (_, context), grads = jax.jit(jax.value_and_grad(actual, argnums=(0, 1, 2), has_aux=True))(query, key, value)
    assert context.dtype == jnp.float64
    close(context, expected(query, key, value, lengths, **options), 1e-12)
    for b in range(B):
        length = None if lengths is None else lengths[b]
        loss = lambda *row: (linear_reference.linear(*row, key_length=length, **options) * weight[b]).sum()  # noqa: B023, E731
        for grad, wanted in zip(grads, gradient(loss, query[b], key[b], value[b]), strict=True):
            close(grad[b], wanted, 1e-8)


@quick
def test_gradient_of_the_projection_equals_reference(x64):
    query, key, value = arrays(3)

    def actual(projection, is_causal):
        return (linear_attention(query, key, value, feature_map="exp", projection=projection, is_causal=is_causal) ** 2).sum()

    for is_causal in (False, True):
        wanted = gradient(
            lambda W, c=is_causal: (
                expected(query, key, value, feature_map="exp", projection=W, is_causal=c) ** 2
            ).sum(),
            PROJECTION,
        )[0]  # fmt: skip
        close(jax.grad(actual)(PROJECTION, is_causal), wanted, 1e-8)


@quick
@settings(max_examples=12, deadline=None)
@given(
    length=st.sampled_from([1, 2, 5, 11]),
    chunk=st.sampled_from([1, 3, 8, 128]),
    key_length=st.integers(0, 11),
    heads=st.sampled_from([(1, 1), (4, 2), (3, 1)]),
    name=st.sampled_from(list(MAPS)),
    seed=st.integers(0, 99),
)
def test_any_length_and_chunk_equals_reference(length, chunk, key_length, heads, name, seed):
    query, key, value = arrays(length, N=heads[0], K=heads[1], batch=(1,), seed=seed, dtype=jnp.float32)
    options, key_length = {**MAPS[name], "is_causal": True}, min(key_length, length)
    context = linear_attention(query, key, value, key_lengths=key_length, chunk_size=chunk, **options)
    close(context, expected(query, key, value, [key_length], **options), 2e-5)


@quick
@pytest.mark.parametrize("name", ["relu", "exp"])
def test_both_modes_and_orders_equal_central_differences(name, x64):
    point, direction = arrays(3, N=2, K=1), arrays(3, N=2, K=1, seed=1)

    def context(*inputs):
        return linear_attention(*inputs, key_lengths=[3, 2], is_causal=name == "exp", chunk_size=2, **MAPS[name])

    def slopes(*inputs):
        return jax.grad(lambda *a: (context(*a) ** 2).sum(), argnums=(0, 1, 2))(*inputs)

    def along(function):
        function = jax.jit(function)
        sides = [function(*(x + sign * 1e-5 * d for x, d in zip(point, direction, strict=True))) for sign in (1, -1)]
        return jax.tree.map(lambda a, b: (a - b) / 2e-5, *sides)

    def directional(function):
        return jax.jit(lambda: jax.jvp(function, tuple(point), tuple(direction))[1])()

    close(directional(context), along(context), 1e-7, 1e-6)
    curvature = along(slopes)
    over_reverse = jax.jit(jax.grad(lambda *a: sum((g * d).sum() for g, d in zip(slopes(*a), direction, strict=True)), (0, 1, 2)))
    for wanted, forward, reverse in zip(curvature, directional(slopes), over_reverse(*point), strict=True):
        close(forward, wanted, 1e-6, 1e-6)
        close(reverse, wanted, 1e-6, 1e-6)
        assert jnp.abs(wanted).max() > 1e-3


# The recurrence


@quick
@every_map
def test_steps_and_prefill_equal_causal(name, x64):
    query, key, value = arrays(T)
    start = init_linear_state(B, K, NUM_FEATURES[name], V, dtype=jnp.float64)
    run = jax.jit(lambda state, *inputs: by_steps(*inputs, state, **MAPS[name]))
    contexts, state = run(start, query, key, value)
    wanted = linear_attention(query, key, value, is_causal=True, chunk_size=2, **MAPS[name])
    close(contexts, wanted, 1e-12)
    jax.tree.map(lambda a, b: close(a, b, 1e-12), state, linear_state(key, value, **MAPS[name]))
    context, _ = linear_attention_step(
        query[:, 3], key[:, 3], value[:, 3], linear_state(key[:, :3], value[:, :3], **MAPS[name]), **MAPS[name]
    )
    close(context, wanted[:, 3], 1e-12)


@quick
def test_prefill_of_unequal_lengths():
    query, key, value = arrays(T, dtype=jnp.float32)
    state = linear_state(key, value, key_lengths=[2, 0])
    context, _ = linear_attention_step(query[:, 2], key[:, 2], value[:, 2], state)
    close(context[0], linear_attention(query[:1], key[:1], value[:1], is_causal=True)[0, 2])
    close(context[1], jnp.repeat(value[1, 2], N // K, axis=0))


@quick
def test_beams_are_reordered_by_tree_map():
    query, key, value = arrays(T, dtype=jnp.float32)
    state = linear_state(key, value, **MAPS["exp"])
    swapped = jax.tree.map(lambda leaf: leaf[jnp.array([1, 0])], state)
    context, _ = linear_attention_step(query[:, 0], key[:, 0], value[:, 0], state, **MAPS["exp"])
    tokens = [x[::-1, 0] for x in (query, key, value)]
    close(linear_attention_step(*tokens, swapped, **MAPS["exp"])[0], context[::-1], 1e-6)


@quick
def test_gradient_reaches_the_state(x64):
    query, key, value = arrays(T)
    state = linear_state(key, value, **MAPS["exp"])

    def loss(*leaves):
        return (linear_attention_step(query[:, 0], key[:, 0], value[:, 0], LinearState(*leaves), **MAPS["exp"])[0] ** 2).sum()

    numeric = gradient(lambda *leaves: float(loss(*leaves)), *map(np.asarray, state))
    for grad, wanted in zip(jax.grad(loss, argnums=(0, 1, 2))(*state), numeric, strict=True):
        close(grad, wanted, 1e-8)
        assert jnp.abs(grad).max() > 1e-4


# What is not seen has no influence


@quick
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", ["elu1", "exp"])
def test_padded_equals_sliced(name, is_causal):
    """phi(0) is not 0: padding must leave the normaliser after the map."""
    query, key, value = arrays(T, dtype=jnp.float32)
    weight = jnp.arange(3.0)[:, None, None] + 1
    options = {**MAPS[name], "is_causal": is_causal, "chunk_size": 2}

    def padded(query, key, value):
        return (linear_attention(query, key, value, key_lengths=3, **options)[:, :3] * weight).sum()

    def sliced(query, key, value):
        return (linear_attention(query[:, :3], key[:, :3], value[:, :3], **options) * weight).sum()

    wanted_value, wanted = jax.jit(jax.value_and_grad(sliced, argnums=(0, 1, 2)))(query, key, value)
    run = jax.jit(jax.value_and_grad(padded, argnums=(0, 1, 2)))
    for bad in (0.0, jnp.nan, jnp.inf, -jnp.inf, 3e38):
        got_value, got = run(query, key.at[:, 3:].set(bad), value.at[:, 4:].set(bad))
        close(got_value, wanted_value, 1e-5)
        for a, b in zip(got, wanted, strict=True):
            close(a, b, 1e-5)
            assert not a[:, 3:].any()


@quick
@several_maps
@pytest.mark.parametrize("form", ["chunks", "steps"])
def test_nan_is_kept_from_rows_that_do_not_see_it(name, form):
    inputs, early = arrays(4, dtype=jnp.float32), np.arange(4)[:, None, None] < 2

    def loss(rows, *inputs):
        if form == "chunks":
            context = linear_attention(*inputs, is_causal=True, chunk_size=2, **MAPS[name])
        else:
            context, _ = by_steps(*inputs, init_linear_state(B, K, NUM_FEATURES[name], V), **MAPS[name])
        return (jnp.where(rows, context, 0) ** 2).sum(), context

    run = jax.jit(jax.grad(loss, argnums=(1, 2, 3), has_aux=True))
    wanted, clean = run(early, *inputs)
    for place in range(3):
        dirty = list(inputs)
        dirty[place] = dirty[place].at[:, 2].set(jnp.nan)
        grads, context = run(early, *dirty)
        np.testing.assert_array_equal(context[:, :2], clean[:, :2])
        for grad, wanted_grad in zip(grads, wanted, strict=True):
            close(grad, wanted_grad, 1e-6)
        assert jnp.isnan(context[:, 2]).all()
        assert bool(jnp.isnan(context[:, 3]).all()) == (place != 0)
        assert not all(jnp.isfinite(grad).all() for grad in run(~early, *dirty)[0])


@quick
def test_attended_nan_is_not_hidden_without_masks():
    query, key, value = arrays(T, dtype=jnp.float32)
    context = linear_attention(query, key.at[0, 1, 0].set(jnp.nan), value)
    assert jnp.isnan(context[0, :, :2]).all()
    assert jnp.isfinite(context[0, :, 2:]).all()
    assert jnp.isfinite(context[1]).all()
    state = linear_state(key.at[0, 1, 0].set(jnp.nan), value)
    assert jnp.isnan(state.memory[0, 0]).all()
    assert jnp.isfinite(state.memory[0, 1]).all()


@quick
@every_map
def test_future_is_not_seen_bit_for_bit(name):
    query, key, value = arrays(8, dtype=jnp.float32)
    run = jax.jit(lambda *a: linear_attention(*a, is_causal=True, chunk_size=4, **MAPS[name]))
    context = run(query, key, value)
    for i, size in itertools.product((1, 3, 4, 6), (0.1, 1e3)):
        later = run(query, key.at[:, i:].multiply(size), value.at[:, i:].add(100.0))
        np.testing.assert_array_equal(later[:, :i], context[:, :i])
        assert jnp.abs(later[:, i] - context[:, i]).max() > 0.1


# Numbers at the edge


@quick
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("low", [-20.0, -100.0, -1e4])
def test_elu1_far_below_zero_is_exact(low, is_causal, x64):
    """elu(x) + 1 is exactly 0 in float32 for x < -17, and exp(x) below -104; the ratio is an ordinary number all the same."""
    shifts = [(low, 0.0), (0.0, low), (low, low)]
    for by_query, by_key in shifts:
        query, key, value = arrays(T, dtype=jnp.float32)
        query, key = query + np.float32(by_query), key + np.float32(by_key)
        run = lambda *a: linear_attention(*a, is_causal=is_causal)  # noqa: E731
        close(run(query, key, value), expected(query, key, value, feature_map="elu1", is_causal=is_causal), 2e-3)
        assert jnp.abs(run(query, key, value)).max() > 0.1
        grads = jax.grad(lambda *a, f=run: (f(*a) ** 2).sum(), argnums=(0, 1, 2))(query, key, value)
        assert all(jnp.isfinite(grad).all() for grad in grads)


@quick
def test_zero_normaliser_gives_zero_and_no_gradient():
    query, key, value = arrays(T, dtype=jnp.float32)
    query, key = query.at[:, 1].set(-1.0), key.at[1].set(-1.0)
    for is_causal in (False, True):
        run = lambda *a, c=is_causal: linear_attention(*a, feature_map="relu", is_causal=c)  # noqa: E731
        with jax.debug_nans(True):
            context = run(query, key, value)
            grads = jax.grad(lambda *a, f=run: f(*a)[:, 1].sum() + f(*a)[1].sum(), argnums=(0, 1, 2))(query, key, value)
            jax.jvp(jax.grad(lambda q, f=run: (f(q, key, value) ** 2).sum()), (query,), (jnp.ones_like(query),))
        assert not context[:, 1].any()
        assert not context[1].any()
        assert not any(grad.any() for grad in grads)


@quick
def test_small_normaliser_keeps_its_gradient():
    """Its square underflows in float32, which a quotient rule would meet."""
    query, key, value = arrays(T, dtype=jnp.float32)
    small = jax.grad(lambda *a: linear_attention(*a, feature_map="relu").sum(), argnums=(1, 2))(query * 1e-25, key, value)
    usual = jax.grad(lambda *a: linear_attention(*a, feature_map="relu").sum(), argnums=(1, 2))(query, key, value)
    for a, b in zip(small, usual, strict=True):
        close(a, b, 1e-4)
        assert jnp.abs(b).max() > 0.1


@quick
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize("is_causal", [False, True])
def test_half_precision_of_4096_keys(dtype, is_causal):
    """The normaliser passes 65504, and 256 ones in bfloat16 no longer add up."""
    query, key, value = (x * 10 + 20 for x in arrays(4096, N=1, K=1, batch=(), dtype=dtype))

    def mean(*inputs):
        context = linear_attention(*inputs, is_causal=is_causal, chunk_size=16)
        return context.astype(jnp.float32).mean(), context

    grads, context = jax.jit(jax.grad(mean, argnums=(0, 1, 2), has_aux=True))(query, key, value)
    exact = linear_attention(*(x.astype(jnp.float32) for x in (query, key, value)), is_causal=is_causal, chunk_size=16)
    assert context.dtype == dtype
    close(context, exact, 0, float(jnp.finfo(dtype).eps))
    assert all(jnp.isfinite(grad).all() and grad.dtype == dtype for grad in grads)


@quick
def test_half_precision_step_sums_in_float32():
    query, key, value = arrays(T, dtype=jnp.bfloat16)
    contexts, state = by_steps(query, key, value, init_linear_state(B, K, H, V))
    assert contexts.dtype == jnp.bfloat16
    assert {leaf.dtype for leaf in state} == {jnp.dtype(jnp.float32)}


@quick
@pytest.mark.parametrize("is_causal", [False, True])
def test_exp_of_large_scores_is_finite_and_exact(is_causal):
    """Exponents of hundreds, far apart: neither a later key nor another feature may push a sum to 0."""
    query, key, value = arrays(12, H=16, dtype=jnp.float32)
    query, key = 20 * query, 20 * key
    projection = random_features(jax.random.key(0), 32, 16)
    options = {"feature_map": "exp", "projection": projection, "is_causal": is_causal}
    context = linear_attention(query, key, value, **options)
    wanted = expected(query, key, value, **{**options, "projection": np.asarray(projection, float)})
    close(context, wanted, 5e-3)
    if is_causal:
        close(context[:, 0], jnp.repeat(value[:, 0], N // K, axis=1))
        close(
            by_steps(query, key, value, init_linear_state(B, K, 32, V), feature_map="exp", projection=projection)[0], wanted, 5e-3
        )
    grads = jax.grad(lambda *a: (linear_attention(*a, **options) ** 2).sum(), argnums=(0, 1, 2))(query, key, value)
    assert all(jnp.isfinite(grad).all() for grad in grads)


@quick
@pytest.mark.parametrize("is_causal", [False, True])
def test_lengths_zero_and_one(is_causal):
    for name, (t, s) in itertools.product(["elu1", "relu"], [(0, 0), (1, 1)] if is_causal else [(0, 3), (3, 0), (1, 1)]):
        inputs = arrays(t, s, dtype=jnp.float32)

        def run(*inputs, name=name):
            context = linear_attention(*inputs, is_causal=is_causal, **MAPS[name])
            return context.sum(), context

        grads, context = jax.jit(jax.grad(run, argnums=(0, 1, 2), has_aux=True))(*inputs)
        assert context.shape == (B, t, N, V)
        assert [grad.shape for grad in grads] == [x.shape for x in inputs]
        if t == s == 1 and name == "elu1":
            close(context, jnp.repeat(inputs[2], N // K, axis=2))
        if s == 0:
            assert not context.any()
    assert linear_attention(*arrays(3, H=0, dtype=jnp.float32), is_causal=is_causal).shape == (B, 3, N, V)
    empty = linear_state(*arrays(0, dtype=jnp.float32)[1:])
    jax.tree.map(np.testing.assert_array_equal, empty, init_linear_state(B, K, H, V))


# Random features


def test_random_features_are_orthogonal_gaussian_rows():
    projection = np.asarray(jax.vmap(lambda key: random_features(key, 10, 4))(jax.random.split(jax.random.key(0), 4000)))
    assert projection.shape == (4000, 10, 4)
    for block in (projection[:, :4], projection[:, 4:8], projection[:, 8:]):
        products = block @ block.swapaxes(1, 2)
        off_diagonal = products[:, ~np.eye(block.shape[1], dtype=bool)]
        close(off_diagonal, 0, 1e-4)
    # Each row is N(0, I): mean 0, covariance I, fourth moment 3 (4000 draws: standard error of the last about 0.15).
    close(projection.mean(0), 0, 0.08)
    close(np.einsum("rfh,rfg->fhg", projection, projection) / 4000, np.broadcast_to(np.eye(4), (10, 4, 4)), 0.12)
    close((projection**4).mean(0), 3, 0.8)
    assert abs(np.mean(projection**4) - 3) < 0.05


def test_random_features_of_other_sizes():
    assert random_features(jax.random.key(0), 0, 3).shape == (0, 3)
    assert random_features(jax.random.key(0), 3, 0).shape == (3, 0)
    assert random_features(jax.random.key(0), 2, 5, jnp.bfloat16).dtype == jnp.bfloat16
    with pytest.raises(ValueError, match="num_features: expected an integer >= 0, got -1"):
        random_features(jax.random.key(0), -1, 3)


def kernel(query, key, projection):
    """phi(q) . phi(k)."""
    phi = [features(jnp.asarray(x), "exp", projection) for x in (query, key)]
    return jnp.sum(phi[0].mantissa * phi[1].mantissa * jnp.exp(phi[0].exponent + phi[1].exponent), axis=-1)


@quick
def test_exp_kernel_is_unbiased_and_orthogonal_rows_lower_its_variance():
    query, key = 0.7 * np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
    keys = jax.random.split(jax.random.key(1), 20_000)
    orthogonal = np.asarray(jax.vmap(lambda k: kernel(query, key, random_features(k, 4, 4)))(keys))
    independent = np.asarray(jax.vmap(lambda k: kernel(query, key, jax.random.normal(k, (4, 4))))(keys))
    exact = np.exp(query @ key / 2)
    for estimates in (orthogonal, independent):
        assert abs(estimates.mean() - exact) < 4 * estimates.std() / 20_000**0.5
    assert orthogonal.std() < independent.std()


@quick
def test_many_features_approach_softmax_attention():
    query, key, value = arrays(6, 6, H=4, dtype=jnp.float32)
    query, key = 0.6 * query, 0.6 * key
    softmax = attn.dot_product_attention(query, key, value)
    errors = []
    for count in (64, 4096):
        projection = random_features(jax.random.key(3), count, 4)
        context = linear_attention(query, key, value, feature_map="exp", projection=projection)
        errors.append(float(jnp.sqrt(jnp.mean((context - softmax) ** 2))))
    assert errors[1] < 0.03
    assert errors[1] < errors[0] / 3


@quick
def test_orthogonal_rows_approximate_attention_no_worse_than_independent_ones():
    query, key, value = arrays(6, 6, H=4, dtype=jnp.float32)
    softmax = attn.dot_product_attention(query, key, value)

    def error(projection):
        context = linear_attention(query, key, value, feature_map="exp", projection=projection)
        return jnp.mean((context - softmax) ** 2)

    keys = jax.random.split(jax.random.key(2), 300)
    orthogonal = jax.jit(jax.vmap(lambda k: error(random_features(k, 16, 4))))(keys).mean()
    independent = jax.jit(jax.vmap(lambda k: error(jax.random.normal(k, (16, 4)))))(keys).mean()
    assert orthogonal < independent


# Calling conventions


@quick
@pytest.mark.parametrize("name", ["elu1", "exp"])
def test_grouped_heads_are_contiguous(name):
    query, key, value = arrays(T, dtype=jnp.float32)
    for is_causal in (False, True):
        context = linear_attention(query, key, value, is_causal=is_causal, **MAPS[name])
        repeated = linear_attention(
            query, jnp.repeat(key, 2, axis=2), jnp.repeat(value, 2, axis=2), is_causal=is_causal, **MAPS[name]
        )  # fmt: skip
        close(context, repeated, 1e-5)


@quick
@pytest.mark.parametrize("is_causal", [False, True])
def test_vmap_of_any_argument_equals_loop(is_causal):
    single = [*arrays(T, batch=(), dtype=jnp.float32), jnp.asarray(PROJECTION, jnp.float32), jnp.array(3)]
    batched = [*arrays(T, seed=1, dtype=jnp.float32), jnp.stack([single[3], -single[3]]), jnp.array([2, 5])]

    def attend(query, key, value, projection, length):
        return linear_attention(
            query, key, value, feature_map="exp", projection=projection, key_lengths=length, is_causal=is_causal, chunk_size=2
        )

    each = [tuple(0 if n == m else None for m in range(5)) for n in range(5)]
    for axes in [(0,) * 5, *(each[1:4:2] if is_causal else each)]:
        inputs = [b if axis == 0 else s for axis, b, s in zip(axes, batched, single, strict=True)]
        together = jax.vmap(attend, in_axes=axes)(*inputs)
        for i in range(2):
            close(together[i], attend(*(x[i] if axis == 0 else x for axis, x in zip(axes, inputs, strict=True))), 1e-5)


@quick
def test_batch_axes_equal_vmap_and_lengths_of_any_kind(quick_compilation):
    query, key, value = arrays(T, batch=(2, 1, 3), dtype=jnp.float32)
    lengths = np.array([[[5, 2, 0]], [[1, 4, 3]]], np.int16)
    mapped = lambda q, k, v, n: linear_attention(q, k, v, key_lengths=n, is_causal=True)  # noqa: E731
    together = mapped(query, key, value, lengths)
    for _ in range(3):
        mapped = jax.vmap(mapped)
    close(together, mapped(query, key, value, lengths), 1e-6)
    close(
        linear_attention(query, key, value, key_lengths=3),
        linear_attention(query, key, value, key_lengths=np.full((1, 1, 1), 3)),
        0.0,
    )


@quick
def test_a_function_may_close_over_what_changes(x64):
    """A map with parameters: never a stale compilation, and gradients reach them."""
    query, key, value = arrays(T)

    class Map:
        scale = 1.0

        def __call__(self, x):
            return jnp.exp(self.scale * x)

    phi = Map()
    for is_causal in (False, True):
        phi.scale = 1.0
        before = linear_attention(query, key, value, feature_map=phi, is_causal=is_causal)
        phi.scale = 2.0
        after = linear_attention(query, key, value, feature_map=phi, is_causal=is_causal)
        wanted = expected(query, key, value, feature_map=lambda x: np.exp(2 * x), is_causal=is_causal)
        close(after, wanted, 1e-12)
        assert jnp.abs(after - before).max() > 0.1

        def loss(scale, is_causal=is_causal):
            return linear_attention(query, key, value, feature_map=lambda x: jnp.exp(scale * x), is_causal=is_causal).sum()

        close(jax.jit(jax.grad(loss))(2.0), (loss(2 + 1e-5) - loss(2 - 1e-5)) / 2e-5, 1e-7)


@pytest.mark.parametrize(("name", "is_causal"), [("exp", False), ("relu", True), ("exp", True)])
def test_memory_is_linear_in_length(name, is_causal):
    """Bytes of temporaries of value and gradient: four times the length takes four times the memory, not sixteen."""

    def temporaries(length):
        inputs = [jax.ShapeDtypeStruct((length, 2, H), jnp.float32)] * 3
        function = jax.grad(lambda *a: linear_attention(*a, is_causal=is_causal, chunk_size=8, **MAPS[name]).sum(), (0, 1, 2))
        return jax.jit(function).lower(*inputs).compile().memory_analysis().temp_size_in_bytes

    short, long = temporaries(1024), temporaries(4096)
    assert long < 4.5 * short
    assert long < 4096 * 4096


@quick
def test_wrong_arguments_are_named():
    query, key, value = arrays(T, dtype=jnp.float32)
    bad = [
        ({"feature_map": "elu"}, r"feature_map: expected 'elu1', 'relu', 'exp', or a function .*, got 'elu'"),
        ({"feature_map": "exp"}, r"projection: expected shape \(F, H\) for feature_map 'exp'.*random_features.*got None"),
        ({"projection": PROJECTION}, "projection: expected None, .*'elu1'"),
        ({"feature_map": squared, "projection": PROJECTION}, "projection: expected None"),
        ({"feature_map": "exp", "projection": jnp.ones((6, 4))}, r"projection: expected shape \(F, H\) = \(6, 3\), got \(6, 4\)"),
        ({"feature_map": "exp", "projection": jnp.ones((1, 6, 3))}, r"projection: expected shape \(F, H\), got \(1, 6, 3\)"),
        ({"chunk_size": 0}, "chunk_size: expected an integer >= 1, got 0"),
        ({"chunk_size": -1}, "chunk_size: expected an integer >= 1, got -1"),
        ({"key_lengths": [1, 2, 3]}, r"key_lengths: expected shape \(\*B\) = \(2,\).*got \(3,\)"),
        ({"feature_map": lambda x: x[..., 0]}, r"feature_map\(x\): expected shape .* got"),
    ]
    for options, message in bad:
        with pytest.raises(ValueError, match=message):
            linear_attention(query, key, value, **options)
    with pytest.raises(TypeError, match="key_lengths: expected an integer dtype, got float32"):
        linear_attention(query, key, value, key_lengths=jnp.ones(2))
    with pytest.raises(TypeError, match="projection: expected a floating dtype"):
        linear_attention(query, key, value, feature_map="exp", projection=jnp.ones((6, 3), jnp.int32))
    with pytest.raises(TypeError, match="query: expected a floating dtype, got int32"):
        linear_attention(query.astype(jnp.int32), key, value)


@quick
def test_wrong_shapes_are_named():
    query, key, value = arrays(T, dtype=jnp.float32)
    for inputs, message in [
        ((query[0, 0], key, value), r"query: expected shape \(\*B, T, N, H\), got \(4, 3\)"),
        ((query, key[..., :2], value), r"key: expected shape \(\*B, S, K, H\) = \(2, 5, 2, 3\), got \(2, 5, 2, 2\)"),
        ((query, key[:1], value), r"key: expected shape .* = \(2, 5, 2, 3\), got \(1, 5, 2, 3\)"),
        ((query, key, value[:, 1:]), r"value: expected shape \(\*B, S, K, V\) = \(2, 5, 2, 2\), got \(2, 4, 2, 2\)"),
        ((query[:, :, :3], key, value), r"query: expected shape \(\*B, T, N, H\) with N a multiple of K = 2, got \(2, 5, 3, 3\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            linear_attention(*inputs)
    with pytest.raises(
        ValueError, match=r"key: expected shape \(\*B, S, K, H\) with S = T = 4 for is_causal, got \(2, 5, 2, 3\)"
    ):
        linear_attention(query[:, :4], key, value, is_causal=True)
    with pytest.raises(ValueError, match=r"value: expected shape .* = \(2, 5, 2, 2\), got \(2, 4, 2, 2\)"):
        linear_state(key, value[:, 1:])


@quick
def test_wrong_states_are_named(x64):
    tokens = [x[:, 0] for x in arrays(T, dtype=jnp.float32)]
    with pytest.raises(ValueError, match=r"state.memory: expected shape \(\*B, K, F, V\) = \(2, 2, 3, 2\), got \(2, 2, 4, 2\)"):
        linear_attention_step(*tokens, init_linear_state(B, K, 4, V))
    with pytest.raises(ValueError, match=r"query: expected shape \(\*B, N, H\) with N a multiple of K = 2, got \(2, 3, 3\)"):
        linear_attention_step(tokens[0][:, :3], *tokens[1:], init_linear_state(B, K, H, V))
    with pytest.raises(ValueError, match=r"key: expected shape \(\*B, K, H\) = \(2, 2, 3\), got \(1, 2, 3\)"):
        linear_attention_step(tokens[0], tokens[1][:1], tokens[2], init_linear_state(B, K, H, V))
    with pytest.raises(TypeError, match="state: expected float64 or wider, got float32"):
        linear_attention_step(*(x.astype(jnp.float64) for x in tokens), init_linear_state(B, K, H, V))
    context, state = linear_attention_step(*tokens, init_linear_state(B, K, H, V, dtype=jnp.float64))
    assert (context.dtype, state.memory.dtype, state.log_scale.dtype) == (jnp.float32, jnp.float64, jnp.float64)
    with pytest.raises(TypeError, match="dtype: expected float32 or float64, got float16"):
        init_linear_state(B, K, H, V, dtype=jnp.float16)
    with pytest.raises(ValueError, match="value_dim: expected an integer >= 0"):
        init_linear_state(B, K, H, -1)
