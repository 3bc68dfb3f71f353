"""Learned vectors by distance (Shaw et al. 2018), for the scores and for the values.

    a_ij = w_{clip(j - i, -L, L)}                                     section 3.2
    z_i  = sum_j alpha_ij (x_j W^V + a^V_ij)                          eq. 3
    e_ij = x_i W^Q (x_j W^K + a^K_ij)^T / sqrt(d_z)                   eq. 4
         = (x_i W^Q (x_j W^K)^T + x_i W^Q (a^K_ij)^T) / sqrt(d_z)     eq. 5

Names: the paper's k is our L, d_z is H; w^K and w^V are tables of 2L + 1 rows, whose middle row is for distance 0.  All heads
share them.  The T S vectors a_ij are never made: there are 2L + 1 different products, or sums of weights, for each query.
"""

from __future__ import annotations

from typing import Annotated

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from attn.distance import Offset, relative_positions
from attn.projection import project
from attn.shapes import compute_dtype, expect, floating, per_batch, size


def shaw_scores(
    query: Annotated[ArrayLike, "*B T N H"], table: Annotated[ArrayLike, "R H"], S: int, *, query_offset: Offset = 0
) -> Float[Array, "*B N T S"]:
    """q_i . a_{clip(j - i - query_offset, -L, L)}, the second term of eq. 5 before its division.

    As eq. 5 divides both terms, scale the query here as well:

        scores = shaw_scores(query * H**-0.5, table, S)
        dot_product_attention(query, key, value, bias=scores)

    Args:
        query: [*B T N H].
        table: w^K [2L+1 H]; row r is for keys r - L positions after the query, the first and last for all that are farther.
        S: number of keys.
        query_offset: absolute position of query 0, one integer or one for each batch entry [*B].

    Returns:
        [*B N T S] in float32 or wider.

    Raises:
        TypeError: an array that is not floating, or an offset that is no integer.
        ValueError: a table with an even number of rows, shapes that do not fit together, a size that is no integer >= 0.

    >>> import jax.numpy as jnp
    >>> table = jnp.array([[-1.0], [0.0], [1.0]])   # L = 1, H = 1
    >>> shaw_scores(jnp.array([[[1.0]], [[2.0]]]), table, 4)[0]
    Array([[ 0.,  1.,  1.,  1.],
           [-2.,  0.,  2.,  2.]], dtype=float32)

    Reference: Shaw, Uszkoreit, Vaswani. Self-attention with relative position representations. NAACL 2018, eq. 4-5.
    """
    query, table = floating("query", query, "*B T N H"), _checked_table(table, "H")
    *batch, T, _, width = query.shape
    expect("table", table, "2L+1 H", (table.shape[0], width))
    return _scores(query, table, _rows(table, T, S, query_offset, batch))


def shaw_values(
    weights: Annotated[ArrayLike, "*B N T S"], table: Annotated[ArrayLike, "R V"], *, query_offset: Offset = 0
) -> Float[Array, "*B T N V"]:
    """sum_j alpha_ij a_{clip(j - i - query_offset, -L, L)}, the second term of eq. 3, to be added to the context.

        weights = dot_product_weights(query, key, bias=scores)
        context = dot_product_attention(query, key, value, bias=scores) + shaw_values(weights, table)

    Args:
        weights: [*B N T S], as from `dot_product_weights`.
        table: w^V [2L+1 V]; row r is for keys r - L positions after the query, the first and last for all that are farther.
        query_offset: absolute position of query 0, one integer or one for each batch entry [*B].

    Returns:
        [*B T N V] in the dtype of `table`, accumulated in float32 or wider; 0 where all weights are 0.

    Raises:
        TypeError: an array that is not floating, or an offset that is no integer.
        ValueError: a table with an even number of rows, or an offset that does not fit.

    >>> import jax.numpy as jnp
    >>> table = jnp.array([[-1.0], [0.0], [1.0]])   # L = 1, V = 1
    >>> shaw_values(jnp.array([[[0.25, 0.25, 0.5], [0.25, 0.25, 0.5]]]), table)[:, 0]   # 1/4 + 1/2, -1/4 + 1/2
    Array([[0.75],
           [0.25]], dtype=float32)

    Reference: Shaw, Uszkoreit, Vaswani. Self-attention with relative position representations. NAACL 2018, eq. 3.
    """
    weights, table = floating("weights", weights, "*B N T S"), _checked_table(table, "V")
    *batch, _, T, S = weights.shape
    return _values(weights, table, _rows(table, T, S, query_offset, batch)).astype(table.dtype)


def _checked_table(table: ArrayLike, width: str) -> Float[Array, "R _"]:
    table = floating("table", table, f"2L+1 {width}")
    if table.shape[0] % 2 == 0:
        raise ValueError(f"table: expected shape (2L+1, {width}), an odd number of rows, got {table.shape}")
    return table


def _rows(table: Array, T: int, S: int, query_offset: Offset, batch: list[int]) -> Int[Array, "*B 1 T S"]:
    """The row of the table for each pair of query and key, the same for all heads."""
    L = table.shape[0] // 2
    relative = relative_positions(T, size("S", S), per_batch("query_offset", query_offset, batch))
    return jnp.clip(relative, -L, L)[..., None, :, :] + L


@jax.jit
def _scores(query: Float[Array, "*B T N H"], table: Float[Array, "R H"], rows: Int[Array, "..."]) -> Float[Array, "*B N T S"]:
    products = project(query.astype(compute_dtype(query, table)), table.T, isolate=True)
    choose = jnp.vectorize(lambda products, rows: products[rows], signature="(r),(s)->(s)")
    return choose(jnp.swapaxes(products, -3, -2), rows)


@jax.jit
def _values(weights: Float[Array, "*B N T S"], table: Float[Array, "R V"], rows: Int[Array, "..."]) -> Float[Array, "*B T N V"]:
    none = jnp.zeros(table.shape[0], compute_dtype(weights, table))
    add = jnp.vectorize(lambda weights, rows: none.at[rows].add(weights), signature="(s),(s)->(r)")
    return jnp.swapaxes(project(add(weights.astype(none.dtype), rows), table, isolate=True), -3, -2)
