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

from attn.distance import relative_positions
from attn.shapes import broadcastable, integers, positive, size


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
    distance = relative_positions(T, S, query_offset)
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


def prefix_mask(
    prefix_lengths: Annotated[ArrayLike, "*B"] | Sequence[int], T: int, S: int | None = None, *, query_offset: ArrayLike = 0
) -> Bool[Array, "*B T S"]:
    """Causal, but for a prefix that every query sees: query i sees the keys j <= i + query_offset and j < prefix length.

    Args:
        prefix_lengths: integers [*B], or one scalar.
        T: number of queries.
        S: number of keys; T if not given.
        query_offset: absolute position of query 0, a scalar or one for each batch entry [*B].

    Returns:
        [*B T S]; for a prefix of 2, T = 4 (x = attend)::

            x x . .
            x x . .
            x x x .
            x x x x

    Raises:
        ValueError: a negative size, or offsets of another batch shape than the lengths.
        TypeError: lengths or an offset that are no integers.

    >>> prefix_mask([0, 3], 3).astype(int)
    Array([[[1, 0, 0],
            [1, 1, 0],
            [1, 1, 1]],
    <BLANKLINE>
           [[1, 1, 1],
            [1, 1, 1],
            [1, 1, 1]]], dtype=int32)

    Reference: Raffel et al. Exploring the limits of transfer learning with a unified text-to-text transformer. 2020, section
    3.2.1, "causal with prefix".
    """
    lengths, offset = integers("prefix_lengths", prefix_lengths), integers("query_offset", query_offset)
    if lengths.ndim and offset.ndim:
        broadcastable("query_offset", offset, "*B", lengths.shape)
    S = size("S", T if S is None else S)
    return causal_mask(T, S, query_offset=offset) | padding_mask(lengths, S)[..., None, :]


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
    return _between(relative_positions(T, S, query_offset), left, right)


def dilated_mask(
    T: int, S: int | None = None, *, left: int | None, right: int | None, dilation: int, query_offset: ArrayLike = 0
) -> Bool[Array, "*B T S"]:
    """A sliding window with gaps: query i sees the keys i + query_offset + m dilation for -left <= m <= right.

    Args:
        T: number of queries.
        S: number of keys; T if not given.
        left: keys seen before the query; None is every one that the dilation meets.
        right: keys seen after the query; None is every one that the dilation meets.
        dilation: distance between neighbouring keys of the window; 1 is `sliding_window_mask`.
        query_offset: absolute position of query 0, a scalar or one for each batch entry [*B].

    Returns:
        [*B T S]; for T = 6, left = 1, right = 1, dilation = 2 (x = attend)::

            x . x . . .
            . x . x . .
            x . x . x .
            . x . x . x
            . . x . x .
            . . . x . x

    Raises:
        ValueError: a negative size or side, or a dilation below 1.
        TypeError: an offset that is no integer.

    >>> dilated_mask(1, 7, left=2, right=0, dilation=3, query_offset=6).astype(int)
    Array([[1, 0, 0, 1, 0, 0, 1]], dtype=int32)

    Reference: Beltagy, Peters, Cohan. Longformer: the long-document transformer. 2020, section 3.1, "dilated sliding window".
    """
    dilation = positive("dilation", dilation)
    distance = relative_positions(T, S, query_offset)
    return (distance % dilation == 0) & _between(distance // dilation, left, right)


def strided_mask(T: int, S: int | None = None, *, stride: int, query_offset: ArrayLike = 0) -> Bool[Array, "*B T S"]:
    """Query i sees the last `stride` keys, its own included, and every key a multiple of `stride` before it; causal.

    The paper's A^(1) = {max(0, i - l) ... i} and A^(2) = {j : (i - j) mod l = 0}, for l = stride, merged in one head.  The key
    at i - l is in both.

    Args:
        T: number of queries.
        S: number of keys; T if not given.
        stride: l.
        query_offset: absolute position of query 0, a scalar or one for each batch entry [*B].

    Returns:
        [*B T S]; for T = 8, stride = 3 (x = attend)::

            x . . . . . . .
            x x . . . . . .
            x x x . . . . .
            x x x x . . . .
            . x x x x . . .
            . . x x x x . .
            x . . x x x x .
            . x . . x x x x

    Raises:
        ValueError: a negative size, or a stride below 1.
        TypeError: an offset that is no integer.

    >>> strided_mask(1, 9, stride=4, query_offset=8).astype(int)
    Array([[1, 0, 0, 0, 1, 1, 1, 1, 1]], dtype=int32)

    Reference: Child, Gray, Radford, Sutskever. Generating long sequences with sparse transformers. 2019, section 4.3, strided.
    """
    stride = positive("stride", stride)
    distance = relative_positions(T, S, query_offset)
    return (distance <= 0) & ((distance > -stride) | (distance % stride == 0))


def fixed_mask(
    T: int, S: int | None = None, *, stride: int, summary: int = 1, query_offset: ArrayLike = 0
) -> Bool[Array, "*B T S"]:
    """Query i sees the keys of its own block of `stride`, and the last `summary` keys of every block before; causal.

    The paper's A^(1) = {j : floor(j / l) = floor(i / l)} and A^(2) = {j : l - c <= j mod l < l}, for l = stride and
    c = summary, merged in one head.

    Args:
        T: number of queries.
        S: number of keys; T if not given.
        stride: l.
        summary: c, from 1 to `stride`.
        query_offset: absolute position of query 0, a scalar or one for each batch entry [*B].

    Returns:
        [*B T S]; for T = 8, stride = 3, summary = 1 (x = attend)::

            x . . . . . . .
            x x . . . . . .
            x x x . . . . .
            . . x x . . . .
            . . x x x . . .
            . . x x x x . .
            . . x . . x x .
            . . x . . x x x

    Raises:
        ValueError: a negative size, a stride below 1, or a summary that is not within 1 ... stride.
        TypeError: an offset that is no integer.

    >>> fixed_mask(1, 9, stride=4, summary=2, query_offset=8).astype(int)
    Array([[0, 0, 1, 1, 0, 0, 1, 1, 1]], dtype=int32)

    Reference: Child, Gray, Radford, Sutskever. Generating long sequences with sparse transformers. 2019, section 4.3, fixed.
    """
    stride, summary = positive("stride", stride), positive("summary", summary)
    if summary > stride:
        raise ValueError(f"summary: expected an integer from 1 to stride = {stride}, got {summary}")
    distance = relative_positions(T, S, query_offset)
    key = jnp.arange(distance.shape[-1], dtype=jnp.int32)
    return (distance <= 0) & ((key // stride == (key - distance) // stride) | (key % stride >= stride - summary))


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


def _between(distance: Int[Array, "*B T S"], left: int | None, right: int | None) -> Bool[Array, "*B T S"]:
    """-left <= distance <= right, where None leaves a side open."""
    mask = jnp.ones(distance.shape, bool)
    if left is not None:
        mask &= distance >= -size("left", left)
    if right is not None:
        mask &= distance <= size("right", right)
    return mask
