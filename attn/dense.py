"""The reference path of dot-product attention: every score at once, memory O(T S).

Read it beside the equation softmax(Q K^T / sqrt(H)) V.  Inside, heads come before positions (*B N T H), so that each product
is one batch of matrix products, and everything is float32 or wider.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from attn.dropout import kept, row_bits
from attn.isolation import attends_nonfinite, finite_or_zero, has_nonfinite, poison
from attn.normalize import exponentials, log_sum, nonzero
from attn.shapes import compute_dtype


@partial(jax.jit, static_argnames="precision")
def dense_attention(
    query: Float[Array, "*B T N H"],
    key: Float[Array, "*B S K H"],
    value: Float[Array, "*B S K V"],
    *,
    bias: Float[Array, "*#B #N #T #S"] | None,
    mask: Bool[Array, "*#B #N #T #S"] | None,
    scale: ArrayLike,
    softcap: ArrayLike | None,
    dropout_rate: ArrayLike,
    dropout_key: Array | None,
    precision: jax.lax.PrecisionLike,
) -> tuple[Float[Array, "*B T N V"], Float[Array, "*B N T 1"], Float[Array, "*B N T 1"]]:
    """Context, and the softmax sum and peak from which `dense_lse` makes lse."""
    dtype = compute_dtype(query, key, value)
    value = _heads_first(value).astype(dtype)
    exps, total, peak = exponentials(dense_scores(query, key, bias, mask, scale, softcap, dtype, precision), mask)
    if dropout_key is not None:
        keep = kept(row_bits(dropout_key, exps.shape[:-1]), jnp.arange(exps.shape[-1]), dropout_rate)
        exps = jnp.where(keep, exps / (1 - dropout_rate), 0)
    safe = value if mask is None else finite_or_zero(value)
    context = _grouped_product(exps, safe, precision) / nonzero(total)
    if mask is not None:
        nonfinite = has_nonfinite(value) | has_nonfinite(_heads_first(key))
        context = poison(context, _rows(mask, nonfinite, context))
    return jnp.swapaxes(context, -3, -2), total, peak


@jax.jit
def dense_lse(
    key: Float[Array, "*B S K H"],
    mask: Bool[Array, "*#B #N #T #S"] | None,
    total: Float[Array, "*B N T 1"],
    peak: Float[Array, "*B N T 1"],
) -> Float[Array, "*B N T"]:
    """log sum_j exp(score_j); -inf for a query that may attend to nothing."""
    lse = log_sum(total, peak)
    return (lse if mask is None else poison(lse, _rows(mask, has_nonfinite(_heads_first(key)), lse)))[..., 0]


@partial(jax.jit, static_argnames="precision")
def dense_weights(
    query: Float[Array, "*B T N H"],
    key: Float[Array, "*B S K H"],
    *,
    bias: Float[Array, "*#B #N #T #S"] | None,
    mask: Bool[Array, "*#B #N #T #S"] | None,
    scale: ArrayLike,
    softcap: ArrayLike | None,
    precision: jax.lax.PrecisionLike,
) -> Float[Array, "*B N T S"]:
    """The weights themselves, float32 or wider, before any dropout."""
    dtype = compute_dtype(query, key)
    exps, total, _ = exponentials(dense_scores(query, key, bias, mask, scale, softcap, dtype, precision), mask)
    weights = exps / nonzero(total)
    if mask is None:
        return weights
    return jnp.where(mask, poison(weights, _rows(mask, has_nonfinite(_heads_first(key)), weights)), 0)


def dense_scores(
    query: Float[Array, "*B T N H"],
    key: Float[Array, "*B S K H"],
    bias: Float[Array, "*#B #N #T #S"] | None,
    mask: Bool[Array, "*#B #N #T #S"] | None,
    scale: ArrayLike,
    softcap: ArrayLike | None,
    dtype: jnp.dtype,
    precision: jax.lax.PrecisionLike,
) -> Float[Array, "*B N T S"]:
    """softcap(scale query . key + bias), not yet masked."""
    # The query is scaled before the product: scaled after it, XLA:CPU recomputes the product inside exp(scale s - peak) as
    # one fused multiply-add, which rounds otherwise than the peak did and overflows for scores beyond 2^31.
    query, key = _heads_first(query).astype(dtype), _heads_first(key).astype(dtype)
    if mask is not None:
        query = jnp.where(jnp.any(mask, axis=-1, keepdims=True), query, 0)
        key = finite_or_zero(key)
    scores = _grouped_product(query * jnp.asarray(scale, dtype), jnp.swapaxes(key, -2, -1), precision)
    if bias is not None:
        scores = scores + bias.astype(dtype)
    if softcap is not None:
        # tanh' at NaN is NaN, whatever the cotangent, so masked scores are taken out before as well as after.
        scores = scores if mask is None else jnp.where(mask, scores, 0)
        cap = jnp.asarray(softcap, dtype)
        scores = cap * jnp.tanh(scores / cap)
    return scores


def _heads_first(x: Float[Array, "*B T N H"]) -> Float[Array, "*B N T H"]:
    return jnp.swapaxes(x, -3, -2)


def _grouped_product(
    left: Float[Array, "*B N T X"], right: Float[Array, "*B K X Y"], precision: jax.lax.PrecisionLike
) -> Float[Array, "*B N T Y"]:
    """left . right, where head n of `left` meets head n // (N // K) of `right`: the queries of a group share one product."""
    *batch, heads, length, width = left.shape
    kv_heads = right.shape[-3]
    grouped = left.reshape(*batch, kv_heads, heads // kv_heads * length, width)
    return jnp.matmul(grouped, right, precision=precision).reshape(*batch, heads, length, right.shape[-1])


def _rows(
    mask: Bool[Array, "*#B #N #T #S"], nonfinite: Bool[Array, "*B K S"], like: Float[Array, "*B N T X"]
) -> Bool[Array, "*B N _T"]:
    """The queries of each head that may attend to a nonfinite key or value."""
    groups = like.shape[-3] // nonfinite.shape[-2]
    return attends_nonfinite(mask, jnp.repeat(nonfinite, groups, axis=-2))
