import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn


def test_rows_sum_to_one_or_zero_and_masked_weights_are_zero():
    scores = jax.random.normal(jax.random.key(0), (4, 5)) * 10
    mask = jnp.array([[1, 1, 1, 1, 1], [0, 1, 0, 0, 1], [0, 0, 0, 0, 0], [0, 0, 1, 0, 0]], bool)
    weights = attn.masked_softmax(scores, mask)
    np.testing.assert_allclose(weights.sum(-1), [1, 1, 0, 1], atol=1e-6)
    assert not weights[~mask].any()
    np.testing.assert_allclose(attn.masked_softmax(scores), jax.nn.softmax(scores), atol=1e-7)


def test_large_masked_score_has_no_gradient():
    grad = jax.grad(lambda x: attn.masked_softmax(x, jnp.array([True, True, False])).sum())(jnp.array([1.0, 1.0, 100.0]))
    np.testing.assert_allclose(grad, 0, atol=1e-7)


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, -jnp.inf])
def test_masked_nonfinite_score_has_no_influence(bad):
    mask = jnp.array([True, False, True])

    def first(x):
        return attn.masked_softmax(x, mask)[0]

    clean, dirty = jnp.array([0.5, 0.0, 1.5]), jnp.array([0.5, bad, 1.5])
    assert first(clean) == first(dirty)
    np.testing.assert_array_equal(jax.grad(first)(dirty), jax.grad(first)(clean))


def test_minus_infinity_counts_as_masked():
    scores = jnp.array([[0.0, -jnp.inf], [-jnp.inf, -jnp.inf]])
    np.testing.assert_array_equal(attn.masked_softmax(scores), [[1, 0], [0, 0]])
    assert jnp.isfinite(jax.grad(lambda x: attn.masked_softmax(x)[0, 0])(scores)).all()


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    scores = jnp.linspace(-3, 3, 256).astype(dtype)
    weights = attn.masked_softmax(scores, jnp.arange(256) < 200)
    assert weights.dtype == dtype
    exact = attn.masked_softmax(scores.astype(jnp.float32), jnp.arange(256) < 200)
    np.testing.assert_array_equal(weights, exact.astype(dtype))


@pytest.mark.parametrize("scale", [1e5, 1e30])
def test_large_scores_stay_finite_under_jit(scale):
    scores = jax.random.normal(jax.random.key(0), (8, 16)) * scale
    weights = jax.jit(attn.masked_softmax)(scores)
    np.testing.assert_array_equal(weights.argmax(-1), scores.argmax(-1))
    np.testing.assert_allclose(weights.max(-1), 1, atol=1e-6)


def test_mask_that_is_not_boolean_or_does_not_fit_is_refused():
    scores = jnp.zeros((2, 3, 4))
    with pytest.raises(TypeError, match=r"mask: expected bool \(True = attend\), got float32; what is added to scores is a bias"):
        attn.masked_softmax(scores, jnp.zeros((2, 3, 4)))
    with pytest.raises(ValueError, match=r"mask: expected shape .*= \(2, 3, 4\), each axis full or 1, got \(3, 4\)"):
        attn.masked_softmax(scores, jnp.ones((3, 4), bool))
    with pytest.raises(TypeError, match="scores: expected a floating dtype, got int32"):
        attn.masked_softmax(jnp.zeros(3, jnp.int32))
