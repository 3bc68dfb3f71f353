import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn

pytestmark = pytest.mark.usefixtures("quick_compilation")

PARAMS = attn.init_additive(jax.random.key(0), 3, 2, 4)
QUERY, KEYS, VALUES = (jax.random.normal(jax.random.key(n), shape) for n, shape in enumerate([(2, 5, 3), (2, 6, 2), (2, 6, 7)]))


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_two_by_two_by_hand(implementation):
    params = attn.AdditiveParams(jnp.array([[1.0, 0.0], [0.0, 2.0]]), jnp.array([[0.5, 0.0], [0.0, 1.0]]), jnp.array([1.0, -1.0]))
    query, keys = jnp.array([[1.0, 0.5]]), jnp.array([[2.0, 0.0], [0.0, -1.0]])
    # W q = (1, 1); U k = (1, 0) and (0, -1)
    scores = [np.tanh(2) - np.tanh(1), np.tanh(1) - np.tanh(0)]
    options = {"implementation": implementation}
    np.testing.assert_allclose(attn.additive_scores(query, keys, params, **options)[0], scores, atol=1e-6)
    weights = np.exp(scores) / np.exp(scores).sum()
    np.testing.assert_allclose(attn.additive_weights(query, keys, params, **options)[0], weights, atol=1e-6)
    context = attn.additive_attention(query, keys, keys, params, **options)[0]
    np.testing.assert_allclose(context, weights @ np.asarray(keys), atol=1e-6)


def test_one_query_at_a_time_equals_all_at_once():
    mask = attn.padding_mask([6, 4], 6)[:, None]
    projected = attn.project_keys(KEYS, PARAMS)

    def step(_, query):
        return None, attn.additive_attention(
            query[:, None], None, VALUES, PARAMS, mask=mask, projected_keys=projected
        )[:, 0]  # fmt: skip

    _, contexts = jax.lax.scan(step, None, QUERY.swapaxes(0, 1))
    np.testing.assert_allclose(
        contexts.swapaxes(0, 1), attn.additive_attention(QUERY, KEYS, VALUES, PARAMS, mask=mask), atol=1e-5
    )


@pytest.mark.parametrize("implementation", ["dense", "blockwise"])
def test_padded_nan_reaches_no_parameter(implementation):
    mask = attn.padding_mask([6, 4], 6)[:, None]

    def loss(params, keys, values, projected):
        projected = attn.project_keys(keys, params) if projected else None
        options = {"mask": mask, "projected_keys": projected, "implementation": implementation}
        return attn.additive_attention(QUERY, keys, values, params, **options).sum()

    gradients = jax.jit(jax.grad(loss, argnums=(0, 1, 2)), static_argnums=3)
    bad_keys, bad_values = KEYS.at[1, 5].set(jnp.nan), VALUES.at[1, 4].set(jnp.inf)
    for projected in (False, True):
        wanted = gradients(PARAMS, KEYS, VALUES, projected)
        jax.tree.map(np.testing.assert_array_equal, gradients(PARAMS, bad_keys, bad_values, projected), wanted)


def test_attended_nan_is_not_hidden():
    weights = attn.additive_weights(QUERY, KEYS.at[1, 5].set(jnp.nan), PARAMS, mask=attn.padding_mask([6, 6], 6)[:, None])
    assert jnp.isfinite(weights[0]).all()
    assert jnp.isnan(weights[1]).all()


def test_half_precision_weights_sum_to_one():
    low = jax.tree.map(lambda x: x.astype(jnp.bfloat16), (QUERY, KEYS, VALUES, PARAMS))
    weights = attn.additive_weights(low[0], low[1], low[3])
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-3)
    assert attn.additive_attention(*low).dtype == jnp.bfloat16


def test_init_keeps_the_sum_at_unit_variance():
    params = attn.init_additive(jax.random.key(1), 300, 200, 400)
    query, keys = jax.random.normal(jax.random.key(2), (1, 300)), jax.random.normal(jax.random.key(3), (1, 200))
    assert abs(float(jnp.std(query @ params.query_kernel + keys @ params.key_kernel)) - 1) < 0.1
    assert params.score_vector.shape == (400,)


def test_wrong_shapes_are_named():
    with pytest.raises(ValueError, match=r"query: expected shape \(\*B, T, Dq\) = \(2, 5, 3\), got \(2, 5, 4\)"):
        attn.additive_attention(jnp.ones((2, 5, 4)), KEYS, VALUES, PARAMS)
    with pytest.raises(ValueError, match=r"keys: expected shape \(\*B, S, Dk\) = \(2, 6, 2\), got \(2, 6, 3\)"):
        attn.additive_attention(QUERY, jnp.ones((2, 6, 3)), VALUES, PARAMS)
    with pytest.raises(ValueError, match=r"keys: expected shape \(\*B, S, Dk\) = \(2, 6, 2\), got \(1, 6, 2\)"):
        attn.additive_attention(QUERY, KEYS[:1], VALUES, PARAMS)
    with pytest.raises(ValueError, match=r"values: expected shape \(\*B, S, V\) = \(2, 6, 7\), got \(2, 5, 7\)"):
        attn.additive_attention(QUERY, KEYS, VALUES[:, 1:], PARAMS)
    with pytest.raises(ValueError, match=r"projected_keys: expected shape \(\*B, S, A\) = \(2, 6, 4\), got \(2, 6, 2\)"):
        attn.additive_weights(QUERY, None, PARAMS, projected_keys=KEYS)
    with pytest.raises(ValueError, match=r"keys: expected .* or projected_keys"):
        attn.additive_scores(QUERY, None, PARAMS)
    with pytest.raises(ValueError, match=r"mask: expected shape \(\*B, T, S\) = \(2, 5, 6\), .*got \(2, 6\)"):
        attn.additive_attention(QUERY, KEYS, VALUES, PARAMS, mask=jnp.ones((2, 6), bool))


def test_unknown_implementation_is_named():
    for function, given in (
        (attn.additive_scores, (QUERY, KEYS, PARAMS)),
        (attn.additive_weights, (QUERY, KEYS, PARAMS)),
        (attn.additive_attention, (QUERY, KEYS, VALUES, PARAMS)),
    ):
        with pytest.raises(ValueError, match="implementation: expected one of 'auto', 'dense', 'blockwise', got 'fast'"):
            function(*given, implementation="fast")
