import attention_reference
import jax
import jax.numpy as jnp
import normalize_reference as reference
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import attn
from attn.normalize import entmax15, masked_softmax, sparsemax

SPARSE = {"sparsemax": sparsemax, "entmax15": entmax15}
ALPHA = {"sparsemax": 2.0, "entmax15": 1.5}
sparse = pytest.mark.parametrize("name", SPARSE)
quick = pytest.mark.usefixtures("quick_compilation")


def reference_weights(name, scores, mask):
    rows = [reference.on_seen(getattr(reference, name), *row) for row in zip(scores, mask, strict=True)]
    return np.array(rows).reshape(scores.shape)


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


@quick
def test_sparse_weights_by_hand():
    # tau = (1 + 0.5 - 1) / 2; then 0.7 - tau = 0.8 and 0.5 - tau = 0.6.
    np.testing.assert_allclose(sparsemax(jnp.array([1.0, 0.5, -1.0])), [0.75, 0.25, 0], atol=1e-7)
    np.testing.assert_allclose(entmax15(jnp.array([1.4, 1.0, -1.0])), [0.64, 0.36, 0], atol=1e-6)
    np.testing.assert_array_equal(sparsemax(jnp.array([3.0, 2.0, 2.0])), [1, 0, 0])
    np.testing.assert_array_equal(entmax15(jnp.array([4.0, 2.0, 2.0])), [1, 0, 0])
    np.testing.assert_allclose(sparsemax(jnp.zeros(5)), 0.2, atol=1e-7)
    np.testing.assert_allclose(entmax15(jnp.zeros(5)), 0.2, atol=1e-7)


@quick
@sparse
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    spread=st.sampled_from([0.0, 0.1, 1.0, 3.0]),
    share=st.sampled_from([0.2, 0.7, 1.0]),
    rounded=st.booleans(),
)
def test_sparse_weights_equal_the_algorithms_of_the_papers(name, seed, spread, share, rounded):
    rng = np.random.default_rng(seed)
    scores, mask = rng.normal(size=(4, 6)) * spread, rng.random((4, 6)) < share
    scores = scores.round() if rounded else scores  # many ties
    with jax.enable_x64(True):
        weights = np.asarray(SPARSE[name](scores, mask))
    np.testing.assert_allclose(weights, reference_weights(name, scores, mask), atol=1e-12)
    np.testing.assert_allclose(weights.sum(-1), mask.any(-1), atol=1e-12)
    assert (weights >= 0).all()
    for row, z, seen in zip(weights, scores, mask, strict=True):
        if seen.any():
            np.testing.assert_allclose(row[seen], reference.entmax_by_bisection(z[seen], ALPHA[name]), atol=1e-12)


@sparse
def test_sparse_weights_maximise_what_defines_them(name, x64):
    """sparsemax: -|p - z|^2; entmax: p . z + H(p), H the Tsallis entropy of order 1.5."""

    def objective(p, z):
        return -((p - z) ** 2).sum(-1) if name == "sparsemax" else (p * z).sum(-1) + 4 / 3 * (p - p**1.5).sum(-1)

    rng = np.random.default_rng(0)
    scores = rng.normal(size=(5, 4))
    for z, weights in zip(scores, np.asarray(SPARSE[name](scores)), strict=True):
        elsewhere = rng.dirichlet(np.full(4, 0.5), size=500)
        near = 0.999 * weights + 0.001 * elsewhere
        assert (objective(np.concatenate([elsewhere, near]), z) <= objective(weights, z) + 1e-12).all()


@quick
@sparse
def test_derivatives_of_sparse_weights(name, x64):
    rng = np.random.default_rng(1)
    scores, mask, cotangent, direction = rng.normal(size=(4, 6, 5))
    mask = mask < 0.5
    mask[0], mask[1] = True, False
    function, jacobian = SPARSE[name], getattr(reference, name + "_jacobian")

    def reference_loss(scores):
        return (reference_weights(name, scores, mask) ** 2 * cotangent).sum()

    def gradient(scores):
        return jax.grad(lambda scores: (function(scores, mask) ** 2 * cotangent).sum())(scores)

    @jax.jit
    def derivatives(scores):
        backward, forward = jax.vmap(jax.jacrev(function))(scores), jax.vmap(jax.jacfwd(function))(scores)
        curvatures = jax.jvp(gradient, (scores,), (direction,))[1], jax.grad(lambda x: (gradient(x) * direction).sum())(scores)
        return gradient(scores), backward, forward, curvatures

    slope, backward, forward, curvatures = derivatives(scores)
    np.testing.assert_allclose(slope, attention_reference.gradient(reference_loss, scores)[0], atol=1e-8)
    assert not np.asarray(slope)[~mask].any()
    jacobians = [jacobian(z) for z in scores]
    np.testing.assert_allclose(backward, jacobians, atol=1e-12)
    np.testing.assert_allclose(forward, jacobians, atol=1e-12)
    step = 1e-5 * direction
    for curvature in curvatures:
        differences = (derivatives(scores + step)[0] - derivatives(scores - step)[0]) / 2e-5
        np.testing.assert_allclose(curvature, differences, atol=1e-7)
        assert np.abs(curvature).max() > 0.1


@quick
@sparse
def test_ties_share_weight_and_gradient(name, x64):
    function = SPARSE[name]
    z = np.array([0.3, 0.5, 0.3, 0.5, 0.3, -4.0])
    derivative = jax.jit(jax.jacrev(function))
    weights, jacobian = function(z), derivative(z)
    assert weights[0] == weights[2] == weights[4] > 0
    assert weights[1] == weights[3] > weights[0]
    np.testing.assert_allclose(jacobian, getattr(reference, name + "_jacobian")(z), atol=1e-12)
    np.testing.assert_allclose(jacobian, jacobian.T, atol=1e-15)
    np.testing.assert_allclose(derivative(z[::-1]), jacobian[::-1, ::-1], atol=1e-15)


@quick
@sparse
def test_masked_score_has_no_influence_on_sparse_weights(name):
    mask = jnp.array([[True, False, True], [True, True, True]])
    clean = jnp.array([[0.5, 0.0, 0.7], [0.1, 0.2, 0.3]])

    def loss(scores):
        return (SPARSE[name](scores, mask) ** 2 * jnp.arange(6.0).reshape(2, 3)).sum()

    derivatives = jax.jit(lambda scores: (loss(scores), jax.grad(loss)(scores), jax.hessian(loss)(scores)))
    expected = derivatives(clean)
    assert expected[1][0, 1] == 0
    assert not expected[2][0, 1].any()
    assert all(jnp.abs(part).max() > 0.1 for part in expected)
    for bad in (jnp.nan, jnp.inf, -jnp.inf, 1e30, -3.4e38):
        jax.tree.map(np.testing.assert_array_equal, derivatives(clean.at[0, 1].set(bad)), expected)


@quick
@sparse
def test_attended_nan_is_not_hidden_and_stays_in_its_row(name):
    mask = jnp.array([[True, True, True], [True, False, True]])

    @jax.jit
    def weights_and_gradient(scores):
        return SPARSE[name](scores, mask), jax.grad(lambda x: SPARSE[name](x, mask)[:, 0].sum())(scores)

    clean, clean_gradient = weights_and_gradient(jnp.array([[0.5, 0.6, 0.7], [0.1, 0.2, 0.3]]))
    for bad in (jnp.nan, jnp.inf):
        weights, gradient = weights_and_gradient(jnp.array([[0.5, bad, 0.7], [0.1, 0.2, 0.3]]))
        assert jnp.isnan(weights[0]).all()
        assert not jnp.isfinite(gradient[0]).all()
        np.testing.assert_array_equal(weights[1], clean[1])
        np.testing.assert_array_equal(gradient[1], clean_gradient[1])


@quick
@sparse
@pytest.mark.parametrize("shape", [(2, 0), (3, 1), (6, 3)])
def test_no_nan_in_short_empty_and_extreme_rows(name, shape):
    lowest = jnp.finfo(jnp.float32).min
    scores, expected = {
        (2, 0): ([[], []], [[], []]),
        (3, 1): ([[0.0], [lowest], [-jnp.inf]], [[1], [0], [0]]),
        (6, 3): (
            [
                [1e30, -1e30, 1e30], [lowest, lowest, lowest], [-jnp.inf, lowest, -5.0],
                [3e38, -3e38, 0.0], [-1e30, -1e30, -2e30], [0.0, -jnp.inf, 1e-30],
            ],
            [[0.5, 0, 0.5], [0, 0, 0], [0, 0, 1], [1, 0, 0], [0.5, 0.5, 0], [0.5, 0, 0.5]],
        ),
    }[shape]  # fmt: skip
    scores = jnp.array(scores, jnp.float32).reshape(shape)

    @jax.jit
    def derivatives(scores, mask):
        def loss(scores):
            return (SPARSE[name](scores, mask) ** 2).sum()

        gradient, curvature = jax.jvp(jax.grad(loss), (scores,), (jnp.ones_like(scores),))
        return SPARSE[name](scores, mask), gradient, curvature

    with jax.debug_nans(True):
        weights, gradient, curvature = derivatives(scores, jnp.ones(shape, bool))
        np.testing.assert_allclose(weights, expected, atol=1e-7)
        np.testing.assert_array_equal(weights == 0, jnp.array(expected).reshape(shape) == 0)
        assert jnp.isfinite(gradient).all()
        assert jnp.isfinite(curvature).all()
        assert not any(part.any() for part in derivatives(scores, jnp.zeros(shape, bool)))


@quick
@sparse
def test_sparse_weights_along_any_axis_and_under_transformations(name):
    function = SPARSE[name]
    scores = jax.random.normal(jax.random.key(0), (2, 4, 3))
    mask = jax.random.bernoulli(jax.random.key(1), 0.7, (2, 4, 1))
    weights = function(scores, mask, axis=1)
    np.testing.assert_array_equal(weights, jnp.moveaxis(function(jnp.moveaxis(scores, 1, 2), jnp.moveaxis(mask, 1, 2)), 2, 1))
    np.testing.assert_array_equal(weights, jax.jit(lambda x, m: function(x, m, axis=1))(scores, mask))
    np.testing.assert_array_equal(weights, jax.vmap(lambda x, m: function(x, m, axis=0))(scores, mask))
    for i in range(2):
        np.testing.assert_array_equal(weights[i], function(scores[i], mask[i], axis=-2))

    @jax.jit
    def gradient_of_scan(scores):
        def body(total, row):
            return total + (jax.checkpoint(function)(row) ** 2).sum(), None

        return jax.grad(lambda x: jax.lax.scan(body, 0.0, x)[0])(scores)

    plain = jax.jit(jax.grad(lambda x: (function(x) ** 2).sum()))(scores)
    np.testing.assert_allclose(gradient_of_scan(scores), plain, atol=1e-6)
    assert jnp.abs(plain).max() > 0.1


@quick
@sparse
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_half_precision_of_sparse_weights(name, dtype):
    scores, mask = jnp.linspace(-1, 1, 256).astype(dtype), jnp.arange(256) < 200
    weights = SPARSE[name](scores, mask)
    assert weights.dtype == dtype
    np.testing.assert_array_equal(weights, SPARSE[name](scores.astype(jnp.float32), mask).astype(dtype))


@sparse
def test_sparse_weights_of_products_under_jit(name):
    """A score that the compiler computes a second time, fused and rounded otherwise, must not fall below its own peak."""
    query, key = jax.random.normal(jax.random.key(0), (2, 33, 8))

    def loss(query, key):
        weights = SPARSE[name]((query @ key.T) * 0.35355 + query[:, :1] * key[:, 0])
        return (weights * jnp.arange(33)).sum(), weights

    weights_and_gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    for scale in (1.0, 1e3, 1e6):
        (_, weights), gradients = weights_and_gradients(query * scale, key * scale)
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)
        assert all(jnp.isfinite(gradient).all() for gradient in gradients)


@sparse
def test_long_rows_keep_their_precision(name):
    n = 20_000
    noise = np.random.default_rng(0).normal(size=n)
    # The last is the hardest: one large weight and n - 1 tiny ones, where 1 - variation is 1 / n.
    for z in (np.zeros(n), 1e-4 * noise, noise, np.r_[1 / (ALPHA[name] - 1), np.full(n - 1, 1e-5)]):
        z = z.astype(np.float32)
        weights = np.asarray(SPARSE[name](jnp.asarray(z)), np.float64)
        exact = reference.entmax_by_bisection(z.astype(np.float64), ALPHA[name])
        np.testing.assert_allclose(weights, exact, atol=1e-6)


def test_sparse_weights_lie_between_softmax_and_the_highest():
    scores = jax.random.normal(jax.random.key(0), (50, 8))
    support = [int((weights > 0).sum()) for weights in (masked_softmax(scores), entmax15(scores), sparsemax(scores))]
    assert support[0] == 400 > support[1] > support[2] > 50


@sparse
def test_wrong_arguments_of_sparse_weights_are_refused(name):
    function, scores = SPARSE[name], jnp.zeros((2, 3, 4))
    with pytest.raises(TypeError, match=r"mask: expected bool \(True = attend\), got float32; what is added to scores is a bias"):
        function(scores, jnp.zeros((2, 3, 4)))
    with pytest.raises(ValueError, match=r"mask: expected shape .*= \(2, 3, 4\), each axis full or 1, got \(3, 4\)"):
        function(scores, jnp.ones((3, 4), bool))
    with pytest.raises(TypeError, match="scores: expected a floating dtype, got int32"):
        function(jnp.zeros(3, jnp.int32))
