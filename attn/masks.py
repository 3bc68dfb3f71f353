"""Which keys a query may attend to: Boolean, True = attend, to be combined with `&`.

Sizes are static integers; lengths, offsets and segment ids may be traced.  A mask for multi-head attention has a head axis:
`mask[..., None, :, :]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Int

from attn.shapes import integers, size


def causal_mask(T: int, S: int | None = None, *, query_offset: ArrayLike = 0) -> Bool[Array, "*B T S"]:
    """Query i sees the keys j <= i + query_offset.

    Args:
        T: number of queries.
        S: number of keys; T if not given.
        query_offset: absolute position of query 0, a scalar or one for each batch entry [*B].

    Returns:
        [*B T S]; for T = 3, S = 4 (x = attend)::

            offset 0    x . . .      offset 1    x x . .
                        x x . .                  x x x .
                        x x x .                  x x x x

    Raises:
        ValueError: a negative size.
        TypeError: an offset that is no integer.

    >>> causal_mask(2, 4, query_offset=2).astype(int)
    Array([[1, 1, 1, 0],
           [1, 1, 1, 1]], dtype=int32)

    Reference: Vaswani et al. Attention is all you need. 2017, section 3.2.3.
    """
    distance = _distance(T, S, query_offset)
    return distance <= 0


def padding_mask(lengths: Annotated[ArrayLike, "*B"] | Sequence[int], S: int) -> Bool[Array, "*B S"]:
    """Key j is real when j < length.

    Args:
        lengths: integers [*B], or one scalar.
        S: padded length.

    Returns:
        [*B S]; for lengths (1, 3), S = 4 (x = attend)::

            x . . .
            x x x .

    Raises:
        ValueError: a negative size.
        TypeError: lengths that are no integers.

    >>> padding_mask([1, 3], 4).astype(int)
    Array([[1, 0, 0, 0],
           [1, 1, 1, 0]], dtype=int32)
    """
    return jnp.arange(size("S", S)) < integers("lengths", lengths)[..., None]


def sliding_window_mask(
    T: int, S: int | None = None, *, left: int | None, right: int | None, query_offset: ArrayLike = 0
) -> Bool[Array, "*B T S"]:
    """Query i sees itself, `left` keys before it and `right` keys after it: left + 1 + right at most.

    Args:
        T: number of queries.
        S: number of keys; T if not given.
        left: keys before the query; None is all of them.
        right: keys after the query; None is all of them.
        query_offset: absolute position of query 0, a scalar or one for each batch entry [*B].

    Returns:
        [*B T S]; for T = 4, left = 1, right = 0 (x = attend)::

            x . . .
            x x . .
            . x x .
            . . x x

    Raises:
        ValueError: a negative size or side.
        TypeError: an offset that is no integer.

    >>> sliding_window_mask(3, 4, left=0, right=1).astype(int)
    Array([[1, 1, 0, 0],
           [0, 1, 1, 0],
           [0, 0, 1, 1]], dtype=int32)

    Reference: Beltagy, Peters, Cohan. Longformer: the long-document transformer. 2020, section 3.1.
    """
    distance = _distance(T, S, query_offset)
    mask = jnp.ones(distance.shape, bool)
    if left is not None:
        mask &= distance >= -size("left", left)
    if right is not None:
        mask &= distance <= size("right", right)
    return mask


def segment_mask(
    query_segment_ids: Annotated[ArrayLike, "*B T"], key_segment_ids: Annotated[ArrayLike, "*B S"] | None = None
) -> Bool[Array, "*B T S"]:
    """A query sees the keys of its own segment (documents packed into one row).

    Args:
        query_segment_ids: integers [*B T].
        key_segment_ids: integers [*B S]; those of the queries if not given.

    Returns:
        [*B T S]; for ids (0, 0, 1) (x = attend)::

            x x .
            x x .
            . . x

    Raises:
        TypeError: ids that are no integers.

    >>> import jax.numpy as jnp
    >>> segment_mask(jnp.array([0, 0, 1])).astype(int)
    Array([[1, 1, 0],
           [1, 1, 0],
           [0, 0, 1]], dtype=int32)
    """
    query_ids = integers("query_segment_ids", query_segment_ids)
    key_ids = query_ids if key_segment_ids is None else integers("key_segment_ids", key_segment_ids)
    return query_ids[..., :, None] == key_ids[..., None, :]


def _distance(T: int, S: int | None, query_offset: ArrayLike) -> Int[Array, "*B T S"]:
    """Key position minus query position."""
    T, S = size("T", T), size("S", T if S is None else S)
    offset = integers("query_offset", query_offset).astype(jnp.int32)
    return jnp.arange(S, dtype=jnp.int32) - (offset[..., None] + jnp.arange(T, dtype=jnp.int32))[..., :, None]
