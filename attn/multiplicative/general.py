"""The general score: a matrix W between query and keys, which may differ in width."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Float

from attn.multiplicative.dot import dot_attention, dot_scores, dot_weights
from attn.projection import project
from attn.shapes import expect, floating, size


class GeneralParams(NamedTuple):
    """W of the general score."""

    kernel: Float[Array, "Dq Dk"]


def init_general(key: Array, query_dim: int, key_dim: int, dtype: DTypeLike = jnp.float32) -> GeneralParams:
    """Random W of variance 1/(Dq Dk): scores of unit variance for queries and keys of unit variance.

    Args:
        key: random key.
        query_dim: Dq, width of a query.
        key_dim: Dk, width of a key.
        dtype: floating dtype of the parameter.

    Returns:
        GeneralParams of shape [Dq Dk].

    Raises:
        ValueError: a size that is no integer >= 0.

    >>> import jax
    >>> init_general(jax.random.key(0), 4, 6).kernel.shape
    (4, 6)

    Reference: Luong, Pham, Manning. Effective approaches to attention-based neural machine translation. 2015, section 3.1.
    """
    query_dim, key_dim = size("query_dim", query_dim), size("key_dim", key_dim)
    return GeneralParams(jax.random.normal(key, (query_dim, key_dim), dtype) * max(query_dim * key_dim, 1) ** -0.5)


def general_scores(
    query: Annotated[ArrayLike, "*B T Dq"], keys: Annotated[ArrayLike, "*B S Dk"], params: GeneralParams
) -> Float[Array, "*B T S"]:
    """score(h_t, h_s) = h_t . W h_s.

    In matrices the scores are Q W K^T, their weights softmax(Q W K^T) and their context softmax(Q W K^T) V.

    Args:
        query: [*B T Dq].
        keys: [*B S Dk]; keys may have another width than queries.
        params: W.

    Returns:
        Scores [*B T S], in float32 or wider.

    Raises:
        TypeError: an array that is not floating.
        ValueError: shapes that do not fit together.

    >>> import jax.numpy as jnp
    >>> params = GeneralParams(jnp.array([[1.0, 0.0], [0.0, 3.0]]))
    >>> general_scores(jnp.array([[1.0, 2.0]]), jnp.array([[3.0, 0.0], [1.0, 1.0]]), params)   # q W = (1, 6)
    Array([[3., 7.]], dtype=float32)

    Reference: Luong, Pham, Manning 2015, section 3.1.
    """
    return dot_scores(*_projected(query, keys, params))


def general_weights(
    query: Annotated[ArrayLike, "*B T Dq"],
    keys: Annotated[ArrayLike, "*B S Dk"],
    params: GeneralParams,
    *,
    mask: Annotated[ArrayLike, "*B T S"] | None = None,
) -> Float[Array, "*B T S"]:
    """a_t(s) = softmax_s(h_t . W h_s), softmax(Q W K^T) in matrices, over the keys that the mask allows.

    Args:
        query: [*B T Dq].
        keys: [*B S Dk].
        params: W.
        mask: Boolean, True = attend, [*B T S] with each axis full or 1.

    Returns, Raises: as `dot_weights`.

    >>> import jax.numpy as jnp
    >>> params = GeneralParams(jnp.array([[1.0, 0.0], [0.0, 3.0]]))
    >>> general_weights(jnp.array([[1.0, 0.5]]), jnp.array([[3.0, 0.0], [1.5, 1.0]]), params)   # q W = (1, 1.5)
    Array([[0.5, 0.5]], dtype=float32)

    Reference: Luong, Pham, Manning 2015, eq. 7.
    """
    return dot_weights(*_projected(query, keys, params), mask=mask)


def general_attention(
    query: Annotated[ArrayLike, "*B T Dq"],
    keys: Annotated[ArrayLike, "*B S Dk"],
    values: Annotated[ArrayLike, "*B S V"],
    params: GeneralParams,
    *,
    mask: Annotated[ArrayLike, "*B T S"] | None = None,
) -> Float[Array, "*B T V"]:
    """softmax(Q W K^T) V.

    Args:
        query: [*B T Dq].
        keys: [*B S Dk].
        values: [*B S V]; in the paper the keys.
        params: W.
        mask: Boolean, True = attend, [*B T S] with each axis full or 1.

    Returns, Raises: as `dot_attention`.

    >>> import jax.numpy as jnp
    >>> params, keys = GeneralParams(jnp.array([[1.0, 0.0], [0.0, 3.0]])), jnp.array([[3.0, 0.0], [1.5, 1.0]])
    >>> general_attention(jnp.array([[1.0, 0.5]]), keys, keys, params)
    Array([[2.25, 0.5 ]], dtype=float32)

    Reference: Luong, Pham, Manning 2015, section 3.1.
    """
    return dot_attention(*_projected(query, keys, params), values, mask=mask)


def _projected(
    query: ArrayLike, keys: ArrayLike, params: GeneralParams
) -> tuple[Float[Array, "*B T Dk"], Float[Array, "*B S Dk"]]:
    """h_t W, and the keys: what is left is the dot score."""
    query, keys = floating("query", query, "*B T Dq"), floating("keys", keys, "*B S Dk")
    kernel = floating("kernel", params.kernel, "Dq Dk")
    expect("query", query, "*B T Dq", (*query.shape[:-1], kernel.shape[0]))
    expect("keys", keys, "*B S Dk", (*query.shape[:-2], keys.shape[-2], kernel.shape[1]))
    return project(query, kernel, isolate=True), keys
