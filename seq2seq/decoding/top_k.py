"""The k largest of many numbers, on a machine that finds the largest of a block faster than it sorts."""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float

BLOCK = 32


def top_k(x: Float[Array, "B V"], k: int) -> tuple[Array, Array]:
    """`lax.top_k`: the k largest of each row and their places, the lower place first among equals.

    The k largest stand in the k blocks with the largest maxima, if of equal maxima the lower block counts as larger: each of
    these blocks has an entry that goes before every entry of the blocks left out.

    >>> import jax.numpy as jnp
    >>> top_k(jnp.array([[0.0, 2.0, 1.0, 2.0]]), 3)
    (Array([[2., 2., 1.]], dtype=float32), Array([[1, 3, 2]], dtype=int32))
    """
    B, V = x.shape
    blocks = math.ceil(V / BLOCK)
    if blocks <= 2 * k:
        values, places = lax.top_k(x, k)
        return values, places
    padded = jnp.pad(x, ((0, 0), (0, blocks * BLOCK - V)), constant_values=-jnp.inf).reshape(B, blocks, BLOCK)
    _, chosen = lax.top_k(jnp.max(padded, axis=2), k)
    chosen = jnp.sort(chosen, axis=1)  # so that places keep their order among equals
    candidates = jnp.take_along_axis(padded, chosen[..., None], axis=1).reshape(B, k * BLOCK)
    values, place = lax.top_k(candidates, k)
    return values, jnp.take_along_axis(chosen, place // BLOCK, axis=1) * BLOCK + place % BLOCK
