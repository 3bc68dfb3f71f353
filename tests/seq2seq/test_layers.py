"""Layers against NumPy, and dropout against its expectation."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from seq2seq.layers import GRU, Embedding, LayerNorm, dense, dropout


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_gru_equals_the_paper_equations():
    gru = GRU(3, 4, rngs=nnx.Rngs(0))
    rng = np.random.default_rng(0)
    x, s = rng.normal(size=(2, 3)), rng.normal(size=(2, 4))
    w, b = np.asarray(gru.input.kernel[...], np.float64), np.asarray(gru.input.bias[...], np.float64)
    u, u_candidate = np.asarray(gru.gates[...], np.float64), np.asarray(gru.candidate[...], np.float64)
    z = sigmoid(x @ w[:, :4] + b[:4] + s @ u[:, :4])
    r = sigmoid(x @ w[:, 4:8] + b[4:8] + s @ u[:, 4:])
    proposed = np.tanh(x @ w[:, 8:] + b[8:] + (r * s) @ u_candidate)
    got = gru(jnp.asarray(s, jnp.float32), gru.project(jnp.asarray(x, jnp.float32)))
    np.testing.assert_allclose(got, (1 - z) * s + z * proposed, rtol=1e-5, atol=1e-6)


def test_dropout_keeps_the_mean_and_the_rate():
    x = jnp.ones((200, 500))
    dropped = np.asarray(dropout(x, 0.3, jax.random.key(0)))
    assert abs((dropped == 0).mean() - 0.3) < 0.01
    assert abs(dropped.mean() - 1) < 0.01
    np.testing.assert_allclose(dropped[dropped > 0], 1 / 0.7, rtol=1e-6)
    assert abs(np.corrcoef(dropped[:, :-1].ravel(), dropped[:, 1:].ravel())[0, 1]) < 0.01
    assert abs(np.corrcoef(dropped[:-1].ravel(), dropped[1:].ravel())[0, 1]) < 0.01


def test_dropout_of_different_keys_is_independent():
    x = jnp.ones((100, 1000))
    masks = [np.asarray(dropout(x, 0.5, jax.random.key(seed))) > 0 for seed in range(4)]
    for i, one in enumerate(masks):
        for other in masks[i + 1 :]:
            assert abs((one & other).mean() - 0.25) < 0.01


def test_dropout_off():
    x = jnp.arange(6.0)
    np.testing.assert_array_equal(dropout(x, 0.5, None), x)
    np.testing.assert_array_equal(dropout(x, 0.0, jax.random.key(0)), x)


def test_dropout_gradient_is_the_mask():
    x = jnp.linspace(1.0, 2.0, 50)
    gradient = jax.grad(lambda x: dropout(x, 0.4, jax.random.key(3)).sum())(x)
    np.testing.assert_allclose(gradient, dropout(jnp.ones(50), 0.4, jax.random.key(3)))


def test_dense_flattens_and_restores_the_axes():
    rng = np.random.default_rng(0)
    x, w, b = rng.normal(size=(2, 3, 4)), rng.normal(size=(4, 5)), rng.normal(size=5)
    got = dense(jnp.asarray(x, jnp.float32), jnp.asarray(w, jnp.float32), jnp.asarray(b, jnp.float32))
    np.testing.assert_allclose(got, x @ w + b, rtol=1e-5, atol=1e-6)


def test_layer_norm_in_float32_for_half_precision():
    x = np.random.default_rng(0).normal(3.0, 2.0, size=(4, 16))
    norm = LayerNorm(16)
    expected = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(norm(jnp.asarray(x, jnp.float32)), expected, rtol=1e-4, atol=1e-5)
    assert norm(jnp.asarray(x, jnp.bfloat16)).dtype == jnp.bfloat16


def test_embedding_attends_with_its_own_table():
    embedding = Embedding(7, 4, rngs=nnx.Rngs(0))
    table = np.asarray(embedding.table[...])
    np.testing.assert_allclose(embedding(jnp.array([2, 5])), 2 * table[[2, 5]], rtol=1e-6)
    np.testing.assert_allclose(embedding.attend(jnp.ones((1, 4))), table.sum(1)[None], rtol=1e-5, atol=1e-6)
