"""The dot score: no parameters; query and keys have one width."""

from __future__ import annotations

from typing import Annotated

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from attn.dot_product import dot_product_attention, dot_product_weights
from attn.shapes import boolean_mask, compute_dtype, expect, floating


def dot_scores(query: Annotated[ArrayLike, "*B T D"], keys: Annotated[ArrayLike, "*B S D"]) -> Float[Array, "*B T S"]:
    """score(h_t, h_s) = h_t . h_s, not scaled.

    Args:
        query: [*B T D].
        keys: [*B S D].

    Returns:
        Scores [*B T S], in float32 or wider.

    Raises:
        TypeError: an array that is not floating.
        ValueError: shapes that do not fit together.

    >>> import jax.numpy as jnp
    >>> dot_scores(jnp.array([[1.0, 2.0]]), jnp.array([[3.0, 0.0], [1.0, 1.0]]))
    Array([[3., 3.]], dtype=float32)

    Reference: Luong, Pham, Manning 2015, section 3.1.
    """
    return _scores(*_checked(query, keys))


def dot_weights(
    query: Annotated[ArrayLike, "*B T D"],
    keys: Annotated[ArrayLike, "*B S D"],
    *,
    mask: Annotated[ArrayLike, "*B T S"] | None = None,
) -> Float[Array, "*B T S"]:
    """a_t(s) = softmax_s(h_t . h_s) over the keys that the mask allows.

    Args:
        query: [*B T D].
        keys: [*B S D].
        mask: Boolean, True = attend, [*B T S] with each axis full or 1.

    Returns:
        Weights [*B T S], in float32 or wider; each row sums to 1, or to 0 where the mask allows nothing.

    Raises:
        TypeError: an array that is not floating, or a mask that is not Boolean.
        ValueError: shapes that do not fit together.

    >>> import jax.numpy as jnp
    >>> dot_weights(jnp.array([[1.0, 2.0]]), jnp.array([[3.0, 0.0], [1.0, 1.0]]))
    Array([[0.5, 0.5]], dtype=float32)

    Reference: Luong, Pham, Manning 2015, eq. 7.
    """
    query, keys = _checked(query, keys)
    mask = _with_head(mask, query, keys)
    return dot_product_weights(query[..., None, :], keys[..., None, :], mask=mask, scale=1.0)[..., 0, :, :]


def dot_attention(
    query: Annotated[ArrayLike, "*B T D"],
    keys: Annotated[ArrayLike, "*B S D"],
    values: Annotated[ArrayLike, "*B S V"],
    *,
    mask: Annotated[ArrayLike, "*B T S"] | None = None,
) -> Float[Array, "*B T V"]:
    """softmax(Q K^T) V: dot-product attention of one head, not scaled.

    Args:
        query: [*B T D].
        keys: [*B S D].
        values: [*B S V]; in the paper the keys.
        mask: Boolean, True = attend, [*B T S] with each axis full or 1.

    Returns:
        Context [*B T V], in the dtype of `values`; 0 where the mask allows nothing.  A masked key or value has no
        influence on it, nor on any gradient, not even as NaN.

    Raises:
        TypeError: an array that is not floating, or a mask that is not Boolean.
        ValueError: shapes that do not fit together.

    >>> import jax.numpy as jnp
    >>> dot_attention(jnp.array([[1.0, 2.0]]), jnp.array([[3.0, 0.0], [1.0, 1.0]]), jnp.array([[4.0], [8.0]]))
    Array([[6.]], dtype=float32)

    Reference: Luong, Pham, Manning 2015, section 3.1.
    """
    query, keys = _checked(query, keys)
    values = floating("values", values, "*B S V")
    expect("values", values, "*B S V", (*keys.shape[:-1], values.shape[-1]))
    mask = _with_head(mask, query, keys)
    return dot_product_attention(
        query[..., None, :], keys[..., None, :], values[..., None, :], mask=mask, scale=1.0
    )[..., 0, :]  # fmt: skip


def _checked(query: ArrayLike, keys: ArrayLike) -> tuple[Float[Array, "*B T D"], Float[Array, "*B S D"]]:
    query, keys = floating("query", query, "*B T D"), floating("keys", keys, "*B S D")
    expect("keys", keys, "*B S D", (*query.shape[:-2], keys.shape[-2], query.shape[-1]))
    return query, keys


@jax.jit
def _scores(query: Float[Array, "*B T D"], keys: Float[Array, "*B S D"]) -> Float[Array, "*B T S"]:
    dtype = compute_dtype(query, keys)
    return jnp.matmul(query.astype(dtype), jnp.swapaxes(keys, -2, -1).astype(dtype))


def _with_head(mask: ArrayLike | None, query: Array, keys: Array) -> Bool[Array, "*#B 1 #T #S"] | None:
    if mask is None:
        return None
    return boolean_mask(mask, "*B T S", (*query.shape[:-1], keys.shape[-2]))[..., None, :, :]
