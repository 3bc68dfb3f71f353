import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn


def paper(length, dim, base=10_000.0):
    table = np.zeros((length, dim))
    for p in range(length):
        for c in range(dim):
            phase = p / base ** (2 * (c // 2) / dim)
            table[p, c] = np.cos(phase) if c % 2 else np.sin(phase)
    return table


def tensor2tensor(length, dim, base=10_000.0):
    n = dim // 2
    table = np.zeros((length, dim))
    for p in range(length):
        for i in range(n):
            phase = p * np.exp(-i * np.log(base) / max(n - 1, 1))
            table[p, i], table[p, n + i] = np.sin(phase), np.cos(phase)
    return table


@pytest.mark.parametrize("dim", [0, 1, 2, 3, 7, 8])
def test_sinusoidal_equals_float64(dim):
    np.testing.assert_allclose(attn.sinusoidal_positions(11, dim), paper(11, dim), atol=1e-6)
    np.testing.assert_allclose(
        attn.sinusoidal_positions(11, dim, variant="tensor2tensor", base=50.0), tensor2tensor(11, dim, 50.0), atol=1e-6
    )


def test_known_row():
    np.testing.assert_allclose(attn.sinusoidal_positions(2, 4)[1], [0.84147, 0.5403, 0.01, 0.99995], atol=1e-5)


def test_far_positions_keep_their_digits():
    table = jax.jit(lambda: attn.sinusoidal_positions(5000, 6))()
    np.testing.assert_allclose(table[4000:], paper(5000, 6)[4000:], atol=2e-6)


def test_sinusoidal_in_float64(x64):
    np.testing.assert_allclose(attn.sinusoidal_positions(300, 5), paper(300, 5), atol=1e-12)


def test_sinusoidal_refuses_what_it_does_not_know():
    with pytest.raises(ValueError, match="variant: expected 'paper' or 'tensor2tensor', got 't2t'"):
        attn.sinusoidal_positions(2, 4, variant="t2t")
    with pytest.raises(ValueError, match="dim: expected an integer >= 0, got -4"):
        attn.sinusoidal_positions(2, -4)
    with pytest.raises(ValueError, match="base: expected a number > 0, got 0"):
        attn.sinusoidal_positions(2, 4, base=0)


TABLE = jnp.arange(6.0).reshape(3, 2)


def test_learned_takes_rows():
    np.testing.assert_array_equal(attn.learned_positions(TABLE, jnp.array([[2, 0]], jnp.uint8)), TABLE[jnp.array([[2, 0]])])
    grad = jax.grad(lambda table: attn.learned_positions(table, jnp.array([1, 1])).sum())(TABLE)
    np.testing.assert_array_equal(grad, [[0, 0], [2, 2], [0, 0]])


@pytest.mark.parametrize("position", [3, -1, 1000])
def test_learned_position_outside_is_an_error_or_nan(position):
    with pytest.raises(ValueError, match=f"positions: expected 0 <= position < 3 .*got {position}"):
        attn.learned_positions(TABLE, jnp.array([0, position]))
    rows = jax.jit(attn.learned_positions)(TABLE, jnp.array([0, position]))
    np.testing.assert_array_equal(rows, [[0, 1], [np.nan, np.nan]])


def test_learned_refuses_floats():
    with pytest.raises(TypeError, match="positions: expected an integer dtype, got float32"):
        attn.learned_positions(TABLE, jnp.array([0.0]))
    with pytest.raises(ValueError, match=r"table: expected shape \(L, D\), got \(6,\)"):
        attn.learned_positions(TABLE.ravel(), jnp.array([0]))
