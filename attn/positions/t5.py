"""Learned biases by distance (Raffel et al. 2020): near distances one by one, far ones by the logarithm, one value a head.

    bias_nij = table[bucket(j - i), n]

With m buckets for 0 ... m-1 and L further ones up to max_distance D, a distance d >= m has the bucket

    min(m + floor(L log(d / m) / log(D / m)), m + L - 1)

The bucket m + k therefore begins at the smallest d with d^L >= D^k m^(L-k): whole numbers, which no rounding can move.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Annotated

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from attn.distance import Offset, relative_positions
from attn.shapes import floating, integers, size


def t5_bucket(
    relative_position: Annotated[ArrayLike, "*B"], *, bidirectional: bool, num_buckets: int = 32, max_distance: int = 128
) -> Int[Array, "*B"]:
    """The bucket of a distance, that is, its row in the table of biases.

    Args:
        relative_position: key position minus query position, integers [*B].
        bidirectional: True for encoders: the upper half of the buckets is for keys after the query, the lower half for the
            others (an odd last bucket stays unused).  False for decoders: every key after the query is in bucket 0.
        num_buckets: at least 4, or 2 if not bidirectional.
        max_distance: from here on, or somewhat earlier, all distances share the last bucket of their side; more than the
            number of distances that have a bucket each.

    Returns:
        Integers [*B] from 0 to num_buckets - 1.

    Raises:
        TypeError: relative positions that are no integers.
        ValueError: num_buckets or max_distance out of range.

    >>> import jax.numpy as jnp
    >>> t5_bucket(jnp.array([-1000, -8, -1, 0, 1, 127]), bidirectional=True)
    Array([15,  8,  1,  0, 17, 31], dtype=int32)
    >>> t5_bucket(jnp.array([-1000, -19, -16, 0, 1]), bidirectional=False)
    Array([31, 17, 16,  0,  0], dtype=int32)

    Reference: Raffel et al. Exploring the limits of transfer learning. JMLR 2020, section 2.1; Mesh TensorFlow
    `_relative_position_bucket`.
    """
    relative = integers("relative_position", relative_position).astype(jnp.int32)
    num_buckets, max_distance = size("num_buckets", num_buckets), size("max_distance", max_distance)
    if num_buckets < (4 if bidirectional else 2):
        raise ValueError(f"num_buckets: expected an integer >= {4 if bidirectional else 2}, got {num_buckets}")
    side = num_buckets // 2 if bidirectional else num_buckets
    if max_distance <= side // 2:
        raise ValueError(f"max_distance: expected an integer > {side // 2}, for {num_buckets} buckets, got {max_distance}")
    relative = jnp.clip(relative, -max_distance, max_distance if bidirectional else 0)
    starts = jnp.array(_starts(side, max_distance), jnp.int32)
    bucket = jnp.searchsorted(starts, jnp.abs(relative), side="right").astype(jnp.int32)
    return bucket + jnp.where(relative > 0, side, 0)


def _starts(num_buckets: int, max_distance: int) -> list[int]:
    """The smallest distance of each bucket from 1 on."""
    single = num_buckets // 2
    far = num_buckets - single
    powers = [max_distance**k * single ** (far - k) for k in range(far)]
    return [*range(1, single), *(bisect_left(range(max_distance + 1), power, key=lambda d: d**far) for power in powers)]


def t5_bias(
    table: Annotated[ArrayLike, "R N"],
    T: int,
    S: int,
    *,
    bidirectional: bool,
    max_distance: int = 128,
    query_offset: Offset = 0,
) -> Float[Array, "*B N T S"]:
    """table[bucket(j - i - query_offset), n]: what is added to the scores.

    T5 itself does not scale its scores (`scale=1.0`), shares one table among the layers and has none in cross-attention.

    Args:
        table: learned, [num_buckets N].
        T: number of queries.
        S: number of keys.
        bidirectional: True for encoders, False for decoders (see `t5_bucket`).
        max_distance: see `t5_bucket`.
        query_offset: absolute position of query 0, one integer or one for each batch entry [*B].

    Returns:
        [*B N T S] in the dtype of `table`; without batch axes for one offset, to be passed on as `bias=...[None]` where the
        queries have one.

    Raises:
        TypeError: a table that is not floating, or an offset that is no integer.
        ValueError: a table that is no matrix or has too few rows, max_distance out of range, a size that is no integer >= 0.

    >>> import jax.numpy as jnp
    >>> table = jnp.arange(8.0)[:, None]   # one head, whose bias is the bucket itself
    >>> t5_bias(table, 2, 3, bidirectional=True)[0]
    Array([[0., 5., 6.],
           [1., 0., 5.]], dtype=float32)

    Reference: Raffel et al. Exploring the limits of transfer learning. JMLR 2020, section 2.1.
    """
    table = floating("table", table, "R N")
    bucket = t5_bucket(
        relative_positions(T, S, query_offset),
        bidirectional=bidirectional, num_buckets=table.shape[0], max_distance=max_distance,
    )  # fmt: skip
    return jnp.moveaxis(table[bucket], -1, -3)
