"""Absolute positions: vectors that are added to embeddings."""

from __future__ import annotations

from typing import Annotated

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from attn.positions.phase import sine_and_cosine
from attn.shapes import floating, integers, known, size


def sinusoidal_positions(
    length: int, dim: int, *, base: float | int = 10_000.0, variant: str = "paper"
) -> Float[Array, "length dim"]:
    """Fixed vectors of sines and cosines, one row for each position 0 ... length - 1.

        variant "paper":            PE(p, 2i) = sin(p / base^(2i/d))    PE(p, 2i+1) = cos(p / base^(2i/d))
        variant "tensor2tensor":    PE(p) = [sin(p w_0) ... sin(p w_{n-1}), cos(p w_0) ... cos(p w_{n-1})],
                                    n = floor(d/2),  w_i = base^(-i/(n-1))

    The second is what the authors' code computes: halves instead of pairs, and n-1 in the exponent, so that the lowest
    frequency is exactly 1/base.  For odd d the paper's rule ends with a sine; the code's appends a column of zeros.

    Args:
        length: number of positions.
        dim: width d.
        base: the longest wavelength is about 2 pi base.
        variant: "paper" or "tensor2tensor".

    Returns:
        [length dim], in the default float dtype.

    Raises:
        ValueError: a negative size, a base that is not positive, or an unknown variant.

    >>> [round(x, 3) for x in sinusoidal_positions(3, 4)[2].tolist()]   # sin 2, cos 2, sin 2/100, cos 2/100
    [0.909, -0.416, 0.02, 1.0]

    Reference: Vaswani et al. Attention is all you need. 2017, section 3.5; tensor2tensor `get_timing_signal_1d`.
    """
    length, dim = size("length", length), size("dim", dim)
    if not base > 0:
        raise ValueError(f"base: expected a number > 0, got {base!r}")
    positions, dtype = jnp.arange(length), jnp.result_type(float)
    if variant == "paper":
        sines, cosines = sine_and_cosine(positions, [base ** (-2 * i / dim) for i in range((dim + 1) // 2)], dtype)
        return jnp.stack([sines, cosines], axis=-1).reshape(length, 2 * sines.shape[1])[:, :dim]
    if variant == "tensor2tensor":
        n = dim // 2
        sines, cosines = sine_and_cosine(positions, [base ** (-i / max(n - 1, 1)) for i in range(n)], dtype)
        return jnp.concatenate([sines, cosines, jnp.zeros((length, dim % 2), sines.dtype)], axis=-1)
    raise ValueError(f"variant: expected 'paper' or 'tensor2tensor', got {variant!r}")


def learned_positions(table: Annotated[ArrayLike, "L D"], positions: Annotated[ArrayLike, "*B"]) -> Float[Array, "*B D"]:
    """Rows of a learned table; a position outside the table is an error, never another position's row.

    Args:
        table: [L D], one learned vector for each position.
        positions: integers [*B], from 0 to L - 1.

    Returns:
        [*B D].  Inside a transformation, where positions are unknown and nothing can be raised, a position outside the
        table gives NaN.

    Raises:
        ValueError: a known position is negative or not below L, or the table is no matrix.
        TypeError: positions that are no integers.

    >>> import jax.numpy as jnp
    >>> learned_positions(jnp.eye(3), jnp.array([2, 0]))
    Array([[0., 0., 1.],
           [1., 0., 0.]], dtype=float32)

    Reference: Gehring et al. Convolutional sequence to sequence learning. 2017, section 3.1.
    """
    table, positions = floating("table", table, "L D"), integers("positions", positions)
    rows = table.shape[0]
    outside = [p for p in known(positions) or () if not 0 <= p < rows]
    if outside:
        raise ValueError(f"positions: expected 0 <= position < {rows} (rows of the table), got {outside[0]}")
    # A negative index would count from the end, so it is sent beyond it.
    inside = (positions >= 0) & (positions < rows)
    return table.at[jnp.where(inside, positions.astype(jnp.int32), rows)].get(mode="fill", fill_value=jnp.nan)
