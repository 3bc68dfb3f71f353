"""The recurrent state of linear attention: the sums over the keys so far, and how a query reads them.

    S = sum_j phi(k_j) v_j^T,   z = sum_j phi(k_j)        Katharopoulos et al. 2020, eq. 10-11 and 16-19
    context = phi(q) S / (phi(q) . z)                     eq. 12 and 20

How exponentials are kept in range.  Each feature f of the keys has a log scale c_f, the largest exponent among the keys summed
so far, and S, z are stored divided by exp(c_f).  Each query has a peak, the largest of its exponents plus c_f, by which
numerator and normaliser are both divided.  Neither changes the context, and neither looks at a key the query does not see; the
term that attains the peak has the factor exp(0), so the normaliser does not vanish.  Both are constants to differentiation:
the context does not depend on them.

Inside, keys and values are [*B K S _] and the queries of a group stay beside each other, [*B K T G _] with G = N // K.
V1 is V and one more: the normaliser as last column.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from attn.feature_maps import Features
from attn.isolation import poison
from attn.shapes import size


class LinearState(NamedTuple):
    """What the keys so far leave behind.  Every leaf has the batch axes in front, so that `tree.map` reorders beams."""

    memory: Float[Array, "*B K F V"]
    """exp(-log_scale) sum_j phi(k_j) v_j^T"""
    normaliser: Float[Array, "*B K F"]
    """exp(-log_scale) sum_j phi(k_j)"""
    log_scale: Float[Array, "*B K F"]
    """The largest exponent of each feature so far, the lowest finite number before the first key."""


def init_linear_state(
    batch_shape: int | tuple[int, ...],
    num_kv_heads: int,
    feature_dim: int,
    value_dim: int,
    *,
    dtype: DTypeLike = jnp.float32,
) -> LinearState:
    """The state before the first token.

    Args:
        batch_shape: the batch axes *B; an integer is one axis, () none.
        num_kv_heads: K.
        feature_dim: F: H for "elu1" and "relu", the rows of the projection for "exp", the width of what a function returns.
        value_dim: V.
        dtype: of the sums: float32, or float64 for float64 inputs.

    Returns:
        LinearState of shapes [*B K F V], [*B K F], [*B K F].

    Raises:
        TypeError: a dtype narrower than float32, in which long sums would stall.
        ValueError: a negative size.

    >>> init_linear_state(2, num_kv_heads=4, feature_dim=8, value_dim=16).memory.shape
    (2, 4, 8, 16)

    Reference: Katharopoulos et al. Transformers are RNNs. ICML 2020, eq. 16-17.
    """
    batch = (batch_shape,) if isinstance(batch_shape, int) else tuple(batch_shape)
    if not jnp.issubdtype(dtype, jnp.floating) or jnp.promote_types(dtype, jnp.float32) != jnp.dtype(dtype):
        raise TypeError(f"dtype: expected float32 or float64, got {jnp.dtype(dtype)}")
    shape = (*(size("batch_shape", n) for n in batch), size("num_kv_heads", num_kv_heads), size("feature_dim", feature_dim))
    return empty_state(shape, size("value_dim", value_dim), dtype)


def empty_state(shape: tuple[int, ...], value_dim: int, dtype: DTypeLike) -> LinearState:
    """No key yet, for features of `shape` [*B K F]."""
    lowest = jnp.full(shape, jnp.finfo(dtype).min, dtype)
    return LinearState(jnp.zeros((*shape, value_dim), dtype), jnp.zeros(shape, dtype), lowest)


def absorb(state: LinearState, keys: Features, values: Float[Array, "*B K S V"]) -> LinearState:
    """The state with further keys [*B K S F]: S + sum_j phi(k_j) v_j^T, z + sum_j phi(k_j)."""
    memory, normaliser, log_scale = state
    weights = keys.mantissa
    if keys.exponent is not None:
        largest = jnp.max(keys.exponent, axis=-2, initial=jnp.finfo(values.dtype).min)
        largest = jax.lax.stop_gradient(jnp.maximum(log_scale, largest))
        shrink = jnp.exp(log_scale - largest)
        memory, normaliser, log_scale = memory * shrink[..., None], normaliser * shrink, largest
        weights = weights * jnp.exp(keys.exponent - largest[..., None, :])
    return LinearState(
        memory + jnp.einsum("...sf,...sv->...fv", weights, values), normaliser + jnp.sum(weights, axis=-2), log_scale
    )


def relative_to_peak(queries: Features, log_scale: Float[Array, "*B K T F"]) -> Features:
    """Queries [*B K T G F] divided by their peaks over keys with this log scale, one for each query or (T = 1) for all."""
    if queries.exponent is None:
        return queries
    lowest = jnp.finfo(log_scale.dtype).min
    peak = jnp.max(queries.exponent + log_scale[..., None, :], axis=-1, keepdims=True, initial=lowest)
    return Features(queries.mantissa, queries.exponent - jax.lax.stop_gradient(peak))


def read(queries: Features, state: LinearState) -> Float[Array, "*B K T G V1"]:
    """phi(q) S, and phi(q) . z as one more column."""
    weights = queries.mantissa
    if queries.exponent is not None:
        weights = weights * jnp.exp(queries.exponent + state.log_scale[..., None, None, :])
    numerator = jnp.einsum("...tgf,...fv->...tgv", weights, state.memory)
    return jnp.concatenate([numerator, jnp.einsum("...tgf,...f->...tg", weights, state.normaliser)[..., None]], axis=-1)


def divide(sums: Float[Array, "*B V1"]) -> Float[Array, "*B V"]:
    """Numerator over normaliser, the last column; 0 where the normaliser is 0."""
    numerator, normaliser = sums[..., :-1], sums[..., -1:]
    empty = jnp.abs(normaliser) < jnp.finfo(sums.dtype).tiny
    # Derivatives hold the square of the divisor, which underflows long before a small normaliser does: divide by 1 instead.
    unit = jax.lax.stop_gradient(jnp.where(empty, 1, normaliser))
    return jnp.where(empty, 0, (numerator / unit) / jnp.where(empty, 1, normaliser / unit))


def poisoned(state: LinearState, rows: Bool[Array, "*B K"]) -> LinearState:
    """The state with NaN in the heads that met NaN or Inf."""
    return LinearState(poison(state.memory, rows[..., None]), poison(state.normaliser, rows), state.log_scale)
