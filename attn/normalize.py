"""From scores to weights.

    softmax     alpha_ij = exp(e_ij) / sum_k exp(e_ik)      Bahdanau et al. (2015), eq. 6
    sparsemax   alpha_ij = [e_ij - tau_i]_+                 Martins and Astudillo (2016), eq. 2-3
    entmax15    alpha_ij = [e_ij / 2 - tau_i]_+^2           Peters, Niculae and Martins (2019), alpha = 1.5

over the keys a query may attend to, where tau_i makes the weights sum to 1.  A query that may attend to none has weights 0.
The last two give most keys a weight of exactly 0.  Names: the papers' z are our scores e, their p our weights alpha, their
S(z), the keys whose weight is above 0, our `support`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from attn.isolation import poison
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
    scores, mask = _checked(scores, mask)
    exps, total, _ = exponentials(_below_peak(scores.astype(compute_dtype(scores)), mask, axis=axis), mask, axis=axis)
    return (exps / nonzero(total)).astype(scores.dtype)


def sparsemax(
    scores: Annotated[ArrayLike, "*B S"], mask: Annotated[ArrayLike, "*B S"] | None = None, *, axis: int = -1
) -> Float[Array, "..."]:
    """The point of the probability simplex nearest to the scores that the mask allows; where it allows none, 0.

        alpha = argmin_p |p - e|^2,    alpha_j = [e_j - tau]_+,    tau = (sum_{j in support} e_j - 1) / |support|

    A score that is 1 or more below the highest has weight 0.  The gradient is exact: on the support
    d alpha_i = d e_i - mean_j d e_j, elsewhere 0.

    Args:
        scores: any floating array; the weights are computed in float32 or wider.
        mask: Boolean, True = attend, of the rank of `scores`, each axis full or 1.  A score of -inf, or of the lowest finite
            number, counts as masked.
        axis: the axis of the keys.

    Returns:
        Weights of the shape and dtype of `scores`; they sum to 1 along `axis`, or to 0.

    Raises:
        TypeError: `scores` is not floating, or `mask` is not Boolean.
        ValueError: `mask` does not fit `scores`.

    >>> import jax.numpy as jnp
    >>> sparsemax(jnp.array([1.0, 0.5, -1.0]))
    Array([0.75, 0.25, 0.  ], dtype=float32)
    >>> sparsemax(jnp.array([1.0, 0.5, 9.0]), jnp.array([True, True, False]))
    Array([0.75, 0.25, 0.  ], dtype=float32)

    Reference: Martins, Astudillo. From softmax to sparsemax: a sparse model of attention and multi-label classification.
    ICML 2016, eq. 2, Proposition 1 and Algorithm 1.
    """
    scores, mask = _checked(scores, mask)
    return _sparse_weights(_sparsemax, scores, mask, width=1, axis=axis)


def entmax15(
    scores: Annotated[ArrayLike, "*B S"], mask: Annotated[ArrayLike, "*B S"] | None = None, *, axis: int = -1
) -> Float[Array, "..."]:
    """alpha-entmax with alpha = 1.5, half way between softmax (1) and sparsemax (2), over the scores that the mask allows.

        alpha = argmax_p p . e + H(p),    H(p) = 4/3 sum_j (p_j - p_j^1.5),    alpha_j = [e_j / 2 - tau]_+^2

    where p runs over the probability simplex.  With M the mean of e / 2 over the support and V the sum of its squared
    deviations from M there, tau = M - sqrt((1 - V) / |support|).  A score that is 2 or more below the highest has weight 0.
    The gradient is exact: with s_j = sqrt(alpha_j), d alpha_i = s_i (d e_i - sum_j s_j d e_j / sum_j s_j), which is 0 off
    the support.

    Args:
        scores: any floating array; the weights are computed in float32 or wider.
        mask: Boolean, True = attend, of the rank of `scores`, each axis full or 1.  A score of -inf, or of the lowest finite
            number, counts as masked.
        axis: the axis of the keys.

    Returns:
        Weights of the shape and dtype of `scores`; they sum to 1 along `axis`, or to 0.

    Raises:
        TypeError: `scores` is not floating, or `mask` is not Boolean.
        ValueError: `mask` does not fit `scores`.

    >>> import jax.numpy as jnp
    >>> (100 * entmax15(jnp.array([1.4, 1.0, -1.0]))).round()   # per cent: tau = -0.1, 0.8^2 + 0.6^2 = 1
    Array([64., 36.,  0.], dtype=float32)

    Reference: Peters, Niculae, Martins. Sparse sequence-to-sequence models. ACL 2019, section 3 and Algorithm 2.
    """
    scores, mask = _checked(scores, mask)
    return _sparse_weights(_entmax15, scores, mask, width=2, axis=axis)


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


def _checked(scores: ArrayLike, mask: ArrayLike | None) -> tuple[Float[Array, "..."], Bool[Array, "..."] | None]:
    scores = floating("scores", scores, "*B S")
    return scores, None if mask is None else boolean_mask(mask, "shape of scores", scores.shape)


@partial(jax.jit, static_argnames="axis")
def _below_peak(scores: Float[Array, "..."], mask: Bool[Array, "..."] | None, *, axis: int) -> Float[Array, "..."]:
    """Scores minus the highest one that the mask allows: of any size, they are small where it matters.

    XLA:CPU may recompute a product inside the exponential, as scale (q . k) - peak in one fused multiply-add, which rounds
    otherwise than the peak did: a difference of 2^9 for scores of 2^33.  The peak that `exponentials` takes of these
    differences is rounded as they are.
    """
    lowest = jnp.finfo(scores.dtype).min
    given = scores if mask is None else jnp.where(mask, scores, lowest)
    peak = jax.lax.stop_gradient(jnp.max(given, axis=axis, keepdims=True, initial=lowest))
    return jnp.where(given <= lowest, lowest, given - jnp.where(peak <= lowest, 0, peak))


@partial(jax.jit, static_argnames=("transform", "width", "axis"))
def _sparse_weights(
    transform: Callable[[Float[Array, "*B S"], Bool[Array, "*B S"]], Float[Array, "*B S"]],
    scores: Float[Array, "..."],
    mask: Bool[Array, "..."] | None,
    *,
    width: int,
    axis: int,
) -> Float[Array, "..."]:
    """transform(z, seen) of z = (scores - peak) / width, cut off at -1, where weights end; NaN and +Inf stay in their row."""
    wide = jnp.moveaxis(scores.astype(compute_dtype(scores)), axis, -1)
    finite, allowed = jnp.isfinite(wide), wide != -jnp.inf
    if mask is not None:
        allowed &= jnp.moveaxis(mask, axis, -1)
    lowest = jnp.finfo(wide.dtype).min
    seen = allowed & finite & (wide > lowest)
    # The weights do not depend on the peak, so neither does their gradient. What is not seen is put at the peak: 0 - 0.
    peak = jax.lax.stop_gradient(jnp.max(wide, axis=-1, keepdims=True, where=seen, initial=lowest))
    below = jnp.where(seen, wide, peak) - peak
    z = jnp.where(seen & (below > -width), below / width, -1)
    weights = poison(transform(z, seen), jnp.any(allowed & ~finite, axis=-1))
    return jnp.moveaxis(jnp.where(allowed, weights, 0), -1, axis).astype(scores.dtype)


def _sparsemax(z: Float[Array, "*B S"], seen: Bool[Array, "*B S"]) -> Float[Array, "*B S"]:
    """[z - tau]_+, Algorithm 1; differentiable through tau as a mean over the support, not through the sort."""
    top, k = _descending(z, seen)
    support, size = _support(z, seen, top, 1 + k * top > jnp.cumsum(top, axis=-1))
    tau = (jnp.sum(jnp.where(support, z, 0), axis=-1, keepdims=True) - 1) / size
    return jnp.where(support, jax.nn.relu(z - tau), 0)


def _entmax15(z: Float[Array, "*B S"], seen: Bool[Array, "*B S"]) -> Float[Array, "*B S"]:
    """[z - tau]_+^2, Algorithm 2; differentiable through mean and variation over the support, not through the sort."""
    top, k = _descending(z, seen)
    mean = jnp.cumsum(top, axis=-1) / k
    variation = jnp.cumsum(top**2, axis=-1) - k * mean**2
    support, size = _support(z, seen, top, top > mean - jnp.sqrt(jnp.maximum(1 - variation, 0) / k))
    mean = jnp.sum(jnp.where(support, z, 0), axis=-1, keepdims=True) / size
    variation = jnp.sum(jnp.where(support, (z - mean) ** 2, 0), axis=-1, keepdims=True)
    # 1 - variation is at least 1 / size; the bound keeps rounding in very long rows from the root of 0.
    tau = mean - jnp.sqrt(jnp.maximum(1 - variation, 0.5 / size) / size)
    return jnp.where(support, jax.nn.relu(z - tau) ** 2, 0)


def _descending(z: Float[Array, "*B S"], seen: Bool[Array, "*B S"]) -> tuple[Float[Array, "*B S"], Float[Array, " S"]]:
    """1 + z in descending order, and k = 1 ... S.  What can have no weight is 0 there, and adds no rounding to the sums."""
    raised = jax.lax.stop_gradient(jnp.where(seen, 1 + z, 0))
    return jnp.sort(raised, axis=-1, descending=True), jnp.arange(1, z.shape[-1] + 1, dtype=z.dtype)


def _support(
    z: Float[Array, "*B S"], seen: Bool[Array, "*B S"], top: Float[Array, "*B S"], inside: Bool[Array, "*B S"]
) -> tuple[Bool[Array, "*B S"], Float[Array, "*B 1"]]:
    """The keys not below the lowest of `top` that is `inside`, by value, so that ties stay together; and their number."""
    lowest = jnp.min(top, axis=-1, keepdims=True, where=inside & (top > 0), initial=1)
    support = seen & (1 + z >= lowest)
    return support, nonzero(jnp.sum(support, axis=-1, keepdims=True, dtype=z.dtype))
