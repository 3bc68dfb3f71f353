"""From scores to weights.

    alpha_ij = exp(e_ij) / sum_k exp(e_ik)        Bahdanau et al. (2015), eq. 6

over the keys a query may attend to.  A query that may attend to none has weights 0.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from attn.shapes import boolean_mask, compute_dtype, floating


def masked_softmax(
    scores: Annotated[ArrayLike, "*B S"], mask: Annotated[ArrayLike, "*B S"] | None = None, *, axis: int = -1
) -> Float[Array, "..."]:
    """Softmax over the entries that the mask allows; where it allows none, every weight is 0.

        alpha_j = exp(e_j) [mask_j] / sum_k exp(e_k) [mask_k]

    Masked scores have no influence, whatever they are: their weight and gradient are exactly 0.  A score of -inf, or of the
    lowest finite number, counts as masked.

    Args:
        scores: any floating array; the softmax itself is computed in float32 or wider.
        mask: Boolean, True = attend, of the rank of `scores`, each axis full or 1.
        axis: the axis of the keys.

    Returns:
        Weights of the shape and dtype of `scores`; they sum to 1 along `axis`, or to 0.

    Raises:
        TypeError: `scores` is not floating, or `mask` is not Boolean.
        ValueError: `mask` does not fit `scores`.

    >>> import jax.numpy as jnp
    >>> masked_softmax(jnp.array([1.0, 1.0, 100.0]), jnp.array([True, True, False]))
    Array([0.5, 0.5, 0. ], dtype=float32)
    >>> masked_softmax(jnp.array([1.0, 2.0]), jnp.array([False, False]))
    Array([0., 0.], dtype=float32)

    Reference: Bahdanau, Cho, Bengio. Neural machine translation by jointly learning to align and translate. ICLR 2015, eq. 6.
    """
    scores = floating("scores", scores, "*B S")
    if mask is not None:
        mask = boolean_mask(mask, "shape of scores", scores.shape)
    exps, total, _ = exponentials(scores.astype(compute_dtype(scores)), mask, axis=axis)
    return (exps / nonzero(total)).astype(scores.dtype)


@partial(jax.jit, static_argnames="axis")
def exponentials(
    scores: Float[Array, "..."], mask: Bool[Array, "..."] | None, *, axis: int = -1
) -> tuple[Float[Array, "..."], Float[Array, "..."], Float[Array, "..."]]:
    """Numerators exp(e - peak), their sum and the peak: softmax before the division.

    The division can wait until after the product with the values, where it is cheaper, and where a value that overflows
    against a masked weight cannot reach the gradient of the sum.  sum and peak keep `axis`, with length 1.
    """
    lowest = jnp.finfo(scores.dtype).min
    if mask is not None:
        scores = jnp.where(mask, scores, lowest)
    # The result does not depend on the peak, so neither does its gradient. An empty row has the lowest peak, or no entry at
    # all: with 0 in its place each exp(lowest - 0) is 0. No infinity is made on the way.
    peak = jax.lax.stop_gradient(jnp.max(scores, axis=axis, keepdims=True, initial=lowest))
    peak = jnp.where(peak <= lowest, 0, peak)
    exps = jnp.exp(scores - peak)
    return exps, jnp.sum(exps, axis=axis, keepdims=True), peak


def nonzero(total: Float[Array, "..."]) -> Float[Array, "..."]:
    """The sum to divide by: 1 in place of 0, so that an empty row gives 0 and no NaN in any derivative."""
    return jnp.where(total == 0, 1, total)


def log_sum(total: Float[Array, "..."], peak: Float[Array, "..."]) -> Float[Array, "..."]:
    """lse = log sum_j exp(e_j), natural log; -inf for an empty row, with gradient 0."""
    return jnp.where(total == 0, -jnp.inf, jnp.log(nonzero(total)) + peak)
