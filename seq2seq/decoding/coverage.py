"""The coverage penalty of Wu et al. (2016), "Google's neural machine translation system", section 7.

    cp(x, y) = beta sum_i log(min(sum_j p_ij, 1))      (eq. 14)

with p_ij the attention of target piece j to source piece i.  It is 0 where every source piece has received an attention of 1
in all, and falls with what has been left out: score = log p / penalty(n) + cp.  Because it never falls as a hypothesis grows
and never exceeds 0, a search can still tell what a live hypothesis may reach.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

LEAST = 1e-6
"""Attention that counts for none: some kinds leave words at exactly 0, whose logarithm would end every comparison."""


def coverage_penalty(
    coverage: Float[Array, "B K S"], mask: Bool[Array, "B S"], beta: Float[Array, ""] | float
) -> Float[Array, "B K"]:
    """cp of each hypothesis from its attention so far, summed over target pieces.

    >>> import jax.numpy as jnp
    >>> mask = jnp.array([[True, True, False]])
    >>> coverage_penalty(jnp.array([[[1.5, 0.5, 0.0], [1.0, 2.0, 0.0]]]), mask, 1.0)   # log 0.5, 0
    Array([[-0.6931472,  0.       ]], dtype=float32)
    """
    return beta * jnp.sum(jnp.where(mask[:, None], jnp.log(jnp.clip(coverage, LEAST, 1.0)), 0.0), axis=-1)
