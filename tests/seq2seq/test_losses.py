"""The loss against a float64 NumPy reference, and its independence of padding, batch size and chunks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seq2seq.losses import chunked_token_sums, token_sums


def reference_loss(logits, targets, smoothing):
    """-sum_k q_k log p_k of one position, q = (1 - e) onehot(y) + e / V."""
    logits = logits.astype(np.float64)
    log_p = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
    q = np.full(logits.shape, smoothing / logits.size)
    q[targets] += 1 - smoothing
    return -(q * log_p).sum()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_equals_the_reference_and_ignores_padding(smoothing):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, 5, 7)).astype(np.float32)
    targets = np.array([[4, 5, 3, 0, 0], [6, 3, 0, 0, 0]], np.int32)
    sums = token_sums(jnp.asarray(logits), jnp.asarray(targets), smoothing)
    real = [(b, t) for b in range(2) for t in range(5) if targets[b, t]]
    expected = sum(reference_loss(logits[b, t], targets[b, t], smoothing) for b, t in real)
    assert float(sums.loss) == pytest.approx(expected, rel=1e-6)
    assert float(sums.nll) == pytest.approx(sum(reference_loss(logits[b, t], targets[b, t], 0.0) for b, t in real), rel=1e-6)
    assert float(sums.tokens) == len(real)
    assert float(sums.correct) == sum(logits[b, t].argmax() == targets[b, t] for b, t in real)
    changed = np.where(targets[..., None] == 0, 1e4, logits)
    assert float(token_sums(jnp.asarray(changed), jnp.asarray(targets), smoothing).loss) == float(sums.loss)


@pytest.mark.parametrize("chunk_tokens", [1, 4, 6, 1000])
def test_chunks_change_neither_value_nor_gradient(chunk_tokens):
    rng = np.random.default_rng(1)
    features, kernel = rng.normal(size=(2, 5, 3)), rng.normal(size=(3, 7))
    targets = jnp.asarray([[4, 5, 3, 1, 3], [6, 3, 0, 0, 0]])

    def chunked(x, w):
        return chunked_token_sums(x, lambda w, h: h @ w, w, targets, 0.1, chunk_tokens=chunk_tokens).loss / 3

    def whole(x, w):
        return token_sums(x @ w, targets, 0.1).loss / 3

    arguments = jnp.asarray(features, jnp.float32), jnp.asarray(kernel, jnp.float32)
    np.testing.assert_allclose(chunked(*arguments), whole(*arguments), rtol=1e-6)
    for got, expected in zip(jax.grad(chunked, (0, 1))(*arguments), jax.grad(whole, (0, 1))(*arguments), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_only_the_loss_has_a_gradient():
    x, targets = jnp.ones((1, 2, 3)), jnp.ones((1, 2), jnp.int32)
    with pytest.raises(NotImplementedError, match="nll: expected no gradient to be asked for"):
        jax.grad(lambda w: chunked_token_sums(x, lambda w, h: h @ w, w, targets, 0.1).nll)(jnp.ones((3, 7)))


def test_logits_of_all_positions_are_never_there():
    """And the gradient takes three products with the output matrix."""
    features, kernel, targets = jnp.zeros((8, 512, 16)), jnp.zeros((16, 1000)), jnp.ones((8, 512), jnp.int32)

    def loss(x, w):
        return chunked_token_sums(x, lambda w, h: h @ w, w, targets, 0.1).loss

    compiled = jax.jit(jax.grad(loss, (0, 1))).lower(features, kernel).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < features.size // 16 * 1000 * 4
    product = 2 * 512 * 16 * 1000  # of one chunk, as the loop is counted once
    assert 3 * product <= compiled.cost_analysis()["flops"] < 3.8 * product
