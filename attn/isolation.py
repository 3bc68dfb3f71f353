"""Keep NaN and Inf with the queries that attend to them.

In a product of weights and values a masked NaN still reaches the result, because 0 * NaN is NaN, and the same holds for every
product of the backward pass.  So the products see zeros instead (`finite_or_zero`), and the rows that do attend to such an
entry are made NaN afterwards (`poison`).  Rows that do not attend to it are those of an input without it, gradients included.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def finite_or_zero(x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
    """x with NaN and Inf replaced by 0; no gradient flows to them."""
    return jnp.where(jnp.isfinite(x), x, 0)


def has_nonfinite(x: Float[Array, "*B D"]) -> Bool[Array, "*B"]:
    """Whether a row holds NaN or Inf."""
    return jnp.any(~jnp.isfinite(x), axis=-1)


def attends_nonfinite(mask: Bool[Array, "*#B #T #S"], nonfinite: Bool[Array, "*B S"]) -> Bool[Array, "*B _T"]:
    """Whether a query may attend to any of the `nonfinite` keys; the query axis stays 1 where the mask has it so."""
    return jnp.any(mask & nonfinite[..., None, :], axis=-1)


def poison(x: Float[Array, "*B D"], rows: Bool[Array, "*#B"]) -> Float[Array, "*B D"]:
    """x with NaN in the given rows, through which every cotangent but zero becomes infinite.

    Multiplying twice by the largest number, rather than once by NaN, keeps a zero cotangent at zero: a loss that does not
    look at a poisoned row has finite gradients.
    """
    largest = jnp.where(rows, jnp.finfo(x.dtype).max, 1).astype(x.dtype)[..., None]
    return x * largest * largest + jnp.where(rows, jnp.nan, 0).astype(x.dtype)[..., None]
