"""Sine and cosine of position times frequency, as exact at position 100,000 as at position 1.

In floating point the phase p w loses digits as p grows.  Here it is a fraction of a full turn, kept as an integer: with
bits = 32, one turn is 2^32, and what an unsigned product overflows by are whole turns, which do not matter.
"""

from __future__ import annotations

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Integer

TURNS_PER_RADIAN = 0x28BE60DB9391054A7F09D5F47D4D377036D8A5664F10E410  # 2^192 / (2 pi)


def sine_and_cosine(
    positions: Integer[Array, "*B"], frequencies: list[float], dtype: DTypeLike
) -> tuple[Float[Array, "*B F"], Float[Array, "*B F"]]:
    """sin(p w) and cos(p w) in `dtype` (float32 or float64) for every position p and every frequency w."""
    bits = 8 * max(jnp.dtype(dtype).itemsize, positions.dtype.itemsize)
    turns = _turns(positions, frequencies, bits)
    # The rest after whole quarters is at most an eighth of a turn: small, so that as a float it keeps its digits.
    quarter = (turns + (1 << (bits - 3))) >> (bits - 2)
    rest = jax.lax.bitcast_convert_type(turns - (quarter << (bits - 2)), f"int{bits}")
    angle = rest.astype(dtype) * math.ldexp(2 * math.pi, -bits)
    sine, cosine = jnp.sin(angle), jnp.cos(angle)
    odd, half = quarter % 2 == 1, quarter >= 2
    sine, cosine = jnp.where(odd, cosine, sine), jnp.where(odd, -sine, cosine)
    return jnp.where(half, -sine, sine), jnp.where(half, -cosine, cosine)


def _turns(positions: Integer[Array, "*B"], frequencies: list[float], bits: int) -> Integer[Array, "*B F"]:
    """p w / (2 pi) without its whole turns, in units of 2^-bits turns, at most 4 units too small.

    The frequency is known to 2 bits digits: a word, and two halves of a word, which meet the halves of the position in such a
    way that no product of theirs overflows.
    """
    unsigned, half = f"uint{bits}", bits // 2
    exact = [int(Fraction(w) * TURNS_PER_RADIAN) >> (192 - 2 * bits) for w in frequencies]
    word, upper, lower = (
        jnp.array([(f >> shift) % (1 << width) for f in exact], unsigned)
        for shift, width in ((bits, bits), (half, half), (0, half))
    )
    given = positions.astype(unsigned)[..., None]
    negative = positions[..., None] < 0
    p = jnp.where(negative, -given, given)
    high, low = p >> half, p & ((1 << half) - 1)
    turns = p * word + high * upper + (low * upper >> half) + (high * lower >> half)
    return jnp.where(negative, -turns, turns)
