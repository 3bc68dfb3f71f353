"""Local-p: each query predicts the source position about which it attends."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Bool, Float

from attn.isolation import attends_nonfinite, finite_or_zero, has_nonfinite, poison
from attn.local.align import Integers, ScoreParams, checked, checked_lengths, real_keys, score_functions
from attn.projection import project
from attn.shapes import compute_dtype, expect, floating, per_batch, size


class LocalParams(NamedTuple):
    """W_p and v_p, which predict a position."""

    position_kernel: Float[Array, "Dq A"]
    position_vector: Float[Array, " A"]


def init_local(key: Array, query_dim: int, align_dim: int, dtype: DTypeLike = jnp.float32) -> LocalParams:
    """Random W_p of variance 1/Dq and v_p of variance 1/A: predictions spread about the middle of the sentence.

    Args:
        key: random key.
        query_dim: Dq, width of a query.
        align_dim: A, width of the hidden layer.
        dtype: floating dtype of the parameters.

    Returns:
        LocalParams of shapes [Dq A], [A].

    Raises:
        ValueError: a size that is no integer >= 0.

    >>> import jax
    >>> jax.tree.map(lambda leaf: leaf.shape, init_local(jax.random.key(0), 4, 5))
    LocalParams(position_kernel=(4, 5), position_vector=(5,))

    Reference: Luong, Pham, Manning 2015, eq. 9.
    """
    query_dim, align_dim = size("query_dim", query_dim), size("align_dim", align_dim)
    kernel_key, vector_key = jax.random.split(key)
    return LocalParams(
        jax.random.normal(kernel_key, (query_dim, align_dim), dtype) * max(query_dim, 1) ** -0.5,
        jax.random.normal(vector_key, (align_dim,), dtype) * max(align_dim, 1) ** -0.5,
    )


def predicted_positions(
    query: Annotated[ArrayLike, "*B T Dq"], local_params: LocalParams, key_lengths: Integers
) -> Float[Array, "*B T"]:
    """p_t = S sigmoid(v_p . tanh(W_p h_t)), a real number between 0 and S.

    Args:
        query: [*B T Dq].
        local_params: W_p and v_p.
        key_lengths: S, the true length of each source sentence: integers [*B] or a scalar.

    Returns:
        Positions [*B T], counted from zero, in float32 or wider.

    Raises:
        TypeError: an array of the wrong kind of dtype.
        ValueError: shapes that do not fit together.

    >>> import jax.numpy as jnp
    >>> params = LocalParams(jnp.zeros((2, 3)), jnp.ones(3))
    >>> predicted_positions(jnp.ones((2, 1, 2)), params, [4, 6])   # S sigmoid(0)
    Array([[2.],
           [3.]], dtype=float32)

    Reference: Luong, Pham, Manning 2015, eq. 9.
    """
    query = floating("query", query, "*B T Dq")
    kernel = floating("position_kernel", local_params.position_kernel, "Dq A")
    vector = floating("position_vector", local_params.position_vector, "A")
    expect("query", query, "*B T Dq", (*query.shape[:-1], kernel.shape[0]))
    expect("position_vector", vector, "A", kernel.shape[1:])
    lengths = per_batch("key_lengths", key_lengths, query.shape[:-2])
    return _positions(query, kernel, vector, lengths)


def local_predictive_weights(
    query: Annotated[ArrayLike, "*B T Dq"],
    keys: Annotated[ArrayLike, "*B S Dk"],
    local_params: LocalParams,
    params: ScoreParams = None,
    *,
    window: int = 10,
    key_lengths: Integers | None = None,
    mask: Annotated[ArrayLike, "*B T S"] | None = None,
) -> Float[Array, "*B T S"]:
    """a_t(s) = align(h_t, h_s) exp(-(s - p_t)^2 / (2 sigma^2)) over the keys with |s - p_t| <= D.

    Args:
        query, keys, local_params, params, and every option: as in `local_predictive_attention`.

    Returns:
        Weights [*B T S], in float32 or wider; each row sums to at most 1.

    Raises:
        TypeError, ValueError: as in `local_predictive_attention`.

    >>> import jax.numpy as jnp
    >>> x, local_params = jnp.zeros((4, 1)), LocalParams(jnp.zeros((1, 1)), jnp.zeros(1))
    >>> local_predictive_weights(x[:1], x, local_params, window=2).round(4)   # p_t = 2, sigma = 1, align = 1/4
    Array([[0.0338, 0.1516, 0.25  , 0.1516]], dtype=float32)

    Reference: Luong, Pham, Manning 2015, eq. 10.
    """
    query, keys = checked(query, keys)
    weights, allowed = _predictive(query, keys, local_params, params, window, key_lengths, mask)
    return jnp.where(allowed, poison(weights, attends_nonfinite(allowed, has_nonfinite(keys))), 0)


def local_predictive_attention(
    query: Annotated[ArrayLike, "*B T Dq"],
    keys: Annotated[ArrayLike, "*B S Dk"],
    values: Annotated[ArrayLike, "*B S V"],
    local_params: LocalParams,
    params: ScoreParams = None,
    *,
    window: int = 10,
    key_lengths: Integers | None = None,
    mask: Annotated[ArrayLike, "*B T S"] | None = None,
) -> Float[Array, "*B T V"]:
    """Local-p: each query predicts the position p_t about which it attends, with a Gaussian of sigma = D/2.

    The softmax is over the window.  As in the paper its weights are multiplied by the Gaussian and not normalised again, so
    they sum to at most 1: a query whose window holds only keys far from p_t has a short context.  The choice of the window
    has no derivative; W_p and v_p learn through the Gaussian.

    Args:
        query: [*B T Dq]; the paper's h_t.
        keys: [*B S Dk].
        values: [*B S V]; in the paper the keys.
        local_params: W_p and v_p.
        params: of the score: None is dot, GeneralParams general, ConcatParams concat.
        window: D, distance from p_t up to which a key is seen; sigma = D/2.
        key_lengths: S of eq. 9, the true length of each sentence: integers in 0 ... S, [*B] or a scalar; later keys are
            masked.  If not given, S is the number of keys, padding included, whatever the mask.
        mask: Boolean, True = attend, [*B T S] with each axis full or 1.

    Returns:
        Context [*B T V], in the dtype of `values`; 0 where there is nothing to attend to.  A key or value outside the
        window or masked has no influence on it, nor on any gradient, not even as NaN.

    Raises:
        TypeError: an array of the wrong kind of dtype, a mask that is not Boolean, params of no score.
        ValueError: shapes that do not fit together, a window that is no integer >= 1, key_lengths outside 0 ... S.

    >>> import jax.numpy as jnp
    >>> x, local_params = jnp.zeros((4, 1)), LocalParams(jnp.zeros((1, 1)), jnp.zeros(1))
    >>> local_predictive_attention(x[:1], x, jnp.eye(4), local_params, window=2).round(4)   # p_t = 2, sigma = 1, align = 1/4
    Array([[0.0338, 0.1516, 0.25  , 0.1516]], dtype=float32)

    Reference: Luong, Pham, Manning 2015, eq. 9-10.
    """
    query, keys, values = checked(query, keys, values)
    weights, allowed = _predictive(query, keys, local_params, params, window, key_lengths, mask)
    return _average(weights, keys, values, allowed)


def _predictive(
    query: Float[Array, "*B T Dq"],
    keys: Float[Array, "*B S Dk"],
    local_params: LocalParams,
    params: ScoreParams,
    window: int,
    key_lengths: Integers | None,
    mask: ArrayLike | None,
) -> tuple[Float[Array, "*B T S"], Bool[Array, "*B T S"]]:
    """Weights as if every NaN or Inf in the keys were 0, and the keys that each query attends to."""
    if size("window", window) == 0:
        raise ValueError("window: expected an integer >= 1, as sigma = window / 2, got 0")
    lengths = checked_lengths(key_lengths, keys)
    real = real_keys(query, keys, lengths, mask)
    # What a query without keys holds must not reach W_p and v_p, not even as NaN.
    query = jnp.where(jnp.any(real, axis=-1)[..., None], query, 0)
    positions = predicted_positions(query, local_params, keys.shape[-2] if lengths is None else lengths)
    gaussian, allowed = _gaussian_window(positions, real, window)
    weigh, _, params = score_functions(params)
    return weigh(query, finite_or_zero(keys), *params, mask=allowed) * gaussian, allowed


@jax.jit
def _positions(
    query: Float[Array, "*B T Dq"], kernel: Float[Array, "Dq A"], vector: Float[Array, " A"], lengths: Array
) -> Float[Array, "*B T"]:
    # A position says where a window ends: in half precision it would let in other keys.
    dtype = compute_dtype(query, kernel, vector)
    hidden = jnp.tanh(project(query.astype(dtype), kernel))
    return lengths.astype(dtype)[..., None] * jax.nn.sigmoid(jnp.matmul(hidden, vector.astype(dtype)))


@jax.jit
def _gaussian_window(
    positions: Float[Array, "*B T"], real: Bool[Array, "*#B #T S"], window: ArrayLike
) -> tuple[Float[Array, "*B T S"], Bool[Array, "*B T S"]]:
    distance = jnp.arange(real.shape[-1], dtype=positions.dtype) - positions[..., None]
    # Not `<= window`: a NaN position, which is nowhere, would hide behind an empty window.
    allowed = real & ~(jnp.abs(distance) > window)
    return jnp.exp(-(distance**2) / (2 * (window / 2) ** 2)), allowed


@jax.jit
def _average(
    weights: Float[Array, "*B T S"], keys: Float[Array, "*B S Dk"], values: Float[Array, "*B S V"], allowed: Bool[Array, "*B T S"]
) -> Float[Array, "*B T V"]:
    """sum_s a_t(s) h_s, with NaN in a key or value kept from the queries that do not attend to it."""
    context = jnp.matmul(weights, finite_or_zero(values).astype(compute_dtype(weights, values)))
    nonfinite = attends_nonfinite(allowed, has_nonfinite(keys) | has_nonfinite(values))
    return poison(context, nonfinite).astype(values.dtype)
