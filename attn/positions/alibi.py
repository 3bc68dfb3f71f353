"""Attention with linear biases (Press et al. 2022): scores fall with the distance, at a rate that each head has for itself.

    softmax(q_i K^T + m [-(i-1) ... -2 -1 0])          section 3; m is the head's slope

The paper's sum is causal.  Here the distance is |i - j|, which is the same under a causal mask and works without one.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from attn.distance import Offset, relative_positions
from attn.shapes import size


def alibi_slopes(num_heads: int) -> Float[Array, " N"]:
    """The slope of each head: a geometric sequence that starts at its own ratio, 2^(-8/N).

        m_n = 2^(-8 n / N),  n = 1 ... N              N a power of two
        for any other N: the slopes of P = 2^floor(log2 N) heads, then every other slope of 2P heads from the first on

    Args:
        num_heads: N.

    Returns:
        [N], in the default float dtype.

    Raises:
        ValueError: a number of heads that is no integer >= 0.

    >>> alibi_slopes(6)   # those of 4 heads; then the first and third of 8
    Array([0.25      , 0.0625    , 0.015625  , 0.00390625, 0.5       , 0.125     ], dtype=float32)

    Reference: Press, Smith, Lewis. Train short, test long. ICLR 2022, section 3, and the authors' code for any N.
    """
    num_heads = size("num_heads", num_heads)
    power = (1 << num_heads.bit_length()) // 2
    first = [2 ** (-8 * n / power) for n in range(1, power + 1)]
    every_other = [2 ** (-4 * n / power) for n in range(1, 2 * (num_heads - power), 2)]
    return jnp.array(first + every_other, float)


def alibi_bias(num_heads: int, T: int, S: int, *, query_offset: Offset = 0) -> Float[Array, "*B N T S"]:
    """-m_n |i + query_offset - j|: what is added to the scaled scores.

    Args:
        num_heads: N.
        T: number of queries.
        S: number of keys.
        query_offset: absolute position of query 0, one integer or one for each batch entry [*B].

    Returns:
        [*B N T S] in the default float dtype; without batch axes for one offset, to be passed on as `bias=...[None]` where
        the queries have one.

    Raises:
        ValueError: a size that is no integer >= 0.
        TypeError: an offset that is no integer.

    >>> alibi_bias(8, 2, 3, query_offset=1)[0]   # slope 1/2
    Array([[-0.5,  0. , -0.5],
           [-1. , -0.5,  0. ]], dtype=float32)

    Reference: Press, Smith, Lewis. Train short, test long. ICLR 2022, section 3.
    """
    distance = jnp.abs(relative_positions(T, S, query_offset))
    return alibi_slopes(num_heads)[:, None, None] * -distance[..., None, :, :]
