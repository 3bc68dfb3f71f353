"""One key for each query, drawn by the Gumbel-max trick (Jang et al. 2017, eq. 1).

    index = argmax_j (e_j + g_j),  g_j ~ Gumbel(0, 1)          is a draw from softmax(e)

What `attn.hard` is made of.  Scores come as `below_peak` leaves them: finite, at most 0, with all that is wrong about a row
kept apart in two Boolean arrays.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from attn.isolation import finite_or_zero
from attn.normalize import exponentials, nonzero
from attn.shapes import compute_dtype


def below_peak(
    scores: Float[Array, "*B T S"], mask: Bool[Array, "*#B #T #S"] | None
) -> tuple[Float[Array, "*B T S"], Bool[Array, "*B T S"], Bool[Array, "*B T"]]:
    """Scores minus the highest of their row (0 where masked), which keys are allowed, and the rows with an allowed NaN or +inf.

    Noise is to be added to these: beside a large score it would be rounded away.
    """
    scores = scores.astype(compute_dtype(scores))
    lowest = jnp.finfo(scores.dtype).min
    allowed = ~(scores <= lowest)
    if mask is not None:
        allowed &= mask
    undefined = jnp.any(allowed & ~jnp.isfinite(scores), axis=-1)
    scores = jnp.where(allowed, finite_or_zero(scores), 0)
    peak = jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True, initial=lowest, where=allowed))
    return jnp.where(allowed, scores - peak, 0), allowed, undefined


def perturbed(shifted: Float[Array, "*B T S"], key: Array | None) -> Float[Array, "*B T S"]:
    """e_j + g_j; without a key e_j alone."""
    return shifted if key is None else shifted + jax.random.gumbel(key, shifted.shape, shifted.dtype)


def highest(noisy: Float[Array, "*B T S"], allowed: Bool[Array, "*B T S"]) -> Int[Array, "*B T"]:
    """argmax over the allowed keys, the first among equals; -1 where there is none."""
    noisy = jnp.where(allowed, noisy, -jnp.inf)
    # One more entry in front is the highest of a row without any.
    padding = [(0, 0)] * (noisy.ndim - 1) + [(1, 0)]
    return jnp.argmax(jnp.pad(noisy, padding, constant_values=-jnp.inf), axis=-1).astype(jnp.int32) - 1


def one_hot(index: Int[Array, "*B T"], length: int) -> Bool[Array, "*B T S"]:
    """True at `index`; nowhere for -1."""
    return index[..., None] == jnp.arange(length)


def rows(values: Float[Array, "*B S V"], index: Int[Array, "*B T"]) -> Float[Array, "*B T V"]:
    """values[index], and 0 for index -1; float32 or wider, in which the gradient of a row chosen by many is summed."""
    values = values.astype(compute_dtype(values))
    chosen = jnp.take_along_axis(values, jnp.maximum(index, 0)[..., None], axis=-2, mode="fill")
    return jnp.where(index[..., None] < 0, 0, chosen)


def straight_through_choice(
    shifted: Float[Array, "*B T S"], allowed: Bool[Array, "*B T S"], key: Array | None, temperature: ArrayLike
) -> Float[Array, "*B T S"]:
    """One-hot weights of the chosen key with the derivative of softmax((e + g) / temperature)."""
    noisy = perturbed(shifted, key)
    hard = one_hot(highest(noisy, allowed), noisy.shape[-1]).astype(noisy.dtype)
    exps, total, _ = exponentials(noisy / jnp.asarray(temperature, noisy.dtype), allowed)
    return _straight_through(exps / nonzero(total), hard)


@jax.custom_jvp
def _straight_through(soft: Float[Array, "*B S"], hard: Float[Array, "*B S"]) -> Float[Array, "*B S"]:
    """`hard`, bit for bit, with the derivative of `soft`.  The usual hard + soft - stop_gradient(soft) is rounded."""
    return hard


@_straight_through.defjvp
def _(primals, tangents):
    return _straight_through(*primals), tangents[0]
