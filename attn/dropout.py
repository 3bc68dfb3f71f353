"""Which weights dropout keeps: bits that depend on the pair of query and key alone, so that any block of them can be made.

Each row, a query of one head and batch entry, draws 64 random bits; a bijective mixing of integers spreads them over its
keys.  The mixing is the finalizer of MurmurHash3 (Appleby), applied before and after the second half of the row's bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Int, UInt32


def row_bits(key: Array, rows: Sequence[int]) -> UInt32[Array, "*rows 2"]:
    """64 random bits for each row."""
    return jax.random.bits(key, (*rows, 2), jnp.uint32)


def kept(bits: UInt32[Array, "*B 2"], key_positions: Int[Array, "S"], dropout_rate: ArrayLike) -> Bool[Array, "*B S"]:
    """Whether each key of each row is kept, with probability 1 - dropout_rate."""
    golden = jnp.uint32(0x9E3779B9)  # 2^32 / golden ratio: neighbouring keys start far apart
    start = bits[..., :1] + key_positions.astype(jnp.uint32) * golden
    mixed = _mix(_mix(start) ^ bits[..., 1:])
    # The highest 24 bits are exact in float32.
    return (mixed >> 8).astype(jnp.float32) * 2.0**-24 >= dropout_rate


def _mix(x: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
