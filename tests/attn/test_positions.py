import attention_reference as attention
import jax
import jax.numpy as jnp
import numpy as np
import positions_reference as reference
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import attn
from attn.positions import apply_rope

few = settings(max_examples=15, deadline=None)


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


def close(actual, expected, atol=1e-12):
    np.testing.assert_allclose(np.asarray(actual, float), np.asarray(expected, float), atol=atol)


# Absolute positions


@pytest.mark.parametrize("dim", [0, 1, 2, 3, 7, 8])
def test_sinusoidal_equals_float64(dim):
    close(attn.sinusoidal_positions(11, dim), reference.sinusoidal(11, dim), 1e-6)
    close(
        attn.sinusoidal_positions(11, dim, variant="tensor2tensor", base=50.0),
        reference.sinusoidal_tensor2tensor(11, dim, 50.0),
        1e-6,
    )


def test_known_row():
    close(attn.sinusoidal_positions(2, 4)[1], [0.84147, 0.5403, 0.01, 0.99995], 1e-5)


def test_far_positions_keep_their_digits():
    table = jax.jit(lambda: attn.sinusoidal_positions(5000, 6))()
    close(table[4000:], reference.sinusoidal(5000, 6)[4000:], 2e-6)


def test_sinusoidal_in_float64(x64):
    close(attn.sinusoidal_positions(300, 5), reference.sinusoidal(300, 5))


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


# RoPE


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("H", [0, 2, 4, 10])
def test_rope_equals_reference(H, interleaved, x64):
    x, positions, weight = normal(0, 2, 3, 2, H), np.array([[0, 1, 2], [-7, 4095, 100_000]]), normal(1, 2, 3, 2, H)

    def expected(x):
        rows = [reference.rope(*row, base=500.0, interleaved=interleaved) for row in zip(x, positions, strict=True)]
        return np.stack(rows)

    def actual(x):
        return apply_rope(x, positions, base=500, interleaved=interleaved)

    # The reference multiplies position and frequency in float64: 100,000 times its rounding.
    close(actual(x)[0], expected(x)[0])
    close(actual(x)[1], expected(x)[1], 1e-10)
    (numeric,) = attention.gradient(lambda x: (expected(x) * weight).sum(), x)
    close(jax.grad(lambda x: (actual(x) * weight).sum())(x), numeric, 1e-8)


def test_rope_known_values_of_both_layouts():
    x = jnp.array([[[1.0, 0.0, 0.0, 0.0]]])
    close(apply_rope(x, jnp.array([1]))[0, 0], [0.5403, 0, 0.8415, 0], 5e-5)
    close(apply_rope(x, jnp.array([1]), interleaved=True)[0, 0], [0.5403, 0.8415, 0, 0], 5e-5)


def test_rope_layouts_differ_by_a_permutation_of_the_dimensions():
    x, positions = jnp.asarray(normal(0, 5, 2, 8)), jnp.array([0, 3, 1, -4, 900])
    interleaved_of_halves = np.array([0, 4, 1, 5, 2, 6, 3, 7])
    halves = apply_rope(x, positions)
    np.testing.assert_array_equal(
        apply_rope(x[..., interleaved_of_halves], positions, interleaved=True), halves[..., interleaved_of_halves]
    )
    assert jnp.abs(apply_rope(x, positions, interleaved=True) - halves).max() > 0.1


@few
@given(st.integers(-5000, 100_000), st.integers(0, 100), st.integers(-100_000, 100_000), st.booleans())
def test_rope_scores_depend_on_the_distance_only(position, distance, shift, interleaved):
    query, key = jnp.asarray(normal(0, 1, 1, 16)), jnp.asarray(normal(1, 1, 1, 16))

    def score(query_position, key_position):
        turned = [
            apply_rope(x, jnp.array([p]), interleaved=interleaved)
            for x, p in ((query, query_position), (key, key_position))
        ]  # fmt: skip
        close(jnp.linalg.norm(turned[0]), jnp.linalg.norm(query), 1e-5)
        return jnp.vdot(*turned)

    close(score(position + shift, position + distance + shift), score(position, position + distance), 1e-5)


def test_rope_score_at_7_and_3_is_that_at_104_and_100():
    x = jnp.asarray(normal(0, 1, 2, 1, 8))
    near, far = apply_rope(x, jnp.array([7, 3]))[0, :, 0], apply_rope(x, jnp.array([104, 100]))[0, :, 0]
    close(near[0] @ near[1], far[0] @ far[1], 1e-5)
    assert abs(near[0] @ near[1] - x[0, 0, 0] @ x[0, 1, 0]) > 0.1


@pytest.mark.parametrize("first", [0, 257, 4095, 100_000, 10_000_000, 2**31 - 3, -(2**31) + 1])
def test_rope_angles_are_exact_far_from_position_zero(first):
    positions = np.arange(first, first + 2)
    ones = np.concatenate([np.ones((2, 1, 32)), np.zeros((2, 1, 32))], axis=-1)
    turned = jax.jit(apply_rope)(ones.astype(np.float32), jnp.asarray(positions, jnp.int32))
    wide = positions[:, None].astype(np.longdouble) * np.array([10_000 ** (-i / 32) for i in range(32)], np.longdouble)
    close(turned[:, 0], np.concatenate([np.cos(wide), np.sin(wide)], axis=-1), 1.3e-7)


def test_rope_of_half_precision_has_exact_angles():
    x = jnp.asarray(normal(0, 3, 1, 64), jnp.bfloat16) / 2
    positions = jnp.array([257, 4095, 100_000])
    low = apply_rope(x, positions)
    assert low.dtype == jnp.bfloat16
    close(low, apply_rope(x.astype(jnp.float32), positions), 1e-2)
    assert jnp.abs(apply_rope(x, jnp.array([256, 256, 256])) - low)[0].max() > 0.1


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.uint8, jnp.int16, jnp.uint32])
def test_rope_takes_every_integer(dtype):
    x = jnp.asarray(normal(0, 2, 1, 4))
    positions = np.array([5, 100 if jnp.issubdtype(dtype, jnp.unsignedinteger) else -128])
    close(apply_rope(x, jnp.asarray(positions, dtype)), reference.rope(x, positions), 1e-6)


def test_rope_under_transformations():
    x, positions = jnp.asarray(normal(0, 2, 3, 1, 4)), jnp.array([[0, 1, 2], [5, 6, 7]])
    whole = apply_rope(x, positions)
    close(jax.jit(jax.vmap(apply_rope))(x, positions), whole, 1e-6)
    close(jax.vmap(apply_rope, in_axes=(0, None))(x, positions[0])[0], whole[0], 1e-6)

    def step(carry, position):
        return carry, apply_rope(x[:, :1], position[None])

    close(jax.lax.scan(step, None, jnp.arange(3))[1][2], apply_rope(x[:, :1], jnp.array([2])), 1e-6)
    # Linear in x: the tangent is the function itself.
    close(jax.jvp(lambda x: apply_rope(x, positions), (x,), (x,))[1], whole, 1e-6)
    assert apply_rope(x[:, :0], positions[:, :0]).shape == (2, 0, 1, 4)


def test_rope_refuses_what_does_not_fit():
    x = jnp.zeros((2, 3, 1, 4))
    with pytest.raises(ValueError, match=r"x: expected shape \(\*B, T, N, H\) with H even, got \(2, 3, 1, 3\)"):
        apply_rope(x[..., :3], jnp.arange(3))
    with pytest.raises(ValueError, match=r"positions: expected shape \(T\) = \(3,\), got \(2,\)"):
        apply_rope(x, jnp.arange(2))
    with pytest.raises(ValueError, match=r"positions: expected shape \(\*B, T\) = \(2, 3\), got \(2, 1\)"):
        apply_rope(x, jnp.zeros((2, 1), int))
    with pytest.raises(ValueError, match=r"positions: expected shape \(\*B, T\) = \(2, 3\), got \(\)"):
        apply_rope(x, 0)
    with pytest.raises(TypeError, match="positions: expected an integer dtype, got float32"):
        apply_rope(x, jnp.arange(3.0))
    with pytest.raises(TypeError, match="x: expected a floating dtype, got int32"):
        apply_rope(x.astype(int), jnp.arange(3))
    with pytest.raises(ValueError, match="base: expected a number > 0, got -1"):
        apply_rope(x, jnp.arange(3), base=-1)
