"""Attention over part of the keys: what the sparse patterns are made of.

A part is attention of all queries over some of the keys, with its lse, so that disjoint parts can be joined exactly.  Queries
are cut into blocks, each block takes the slice of keys that it can reach, and the dense path computes all blocks as batch
entries, under a mask made from absolute positions.  A window alone needs no parts: see `windows.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from attn.dot_product import dot_product_attention_and_lse
from attn.isolation import attends_nonfinite, finite_or_zero, has_nonfinite, poison
from attn.merge import merge_attention
from attn.options import Lengths, checked_arrays, checked_scale, checked_softcap
from attn.shapes import compute_dtype, lengths_within, per_batch

BLOCK_SIZE = 128
"""Queries in a block: enough for efficient products, few enough that a block reaches few keys outside their windows."""

Visible = Callable[[Int[Array, "..."], Int[Array, "..."]], Bool[Array, "..."]]
"""(query position, key position) -> whether the query may attend to the key."""


class Inputs(NamedTuple):
    """What every pattern is given, checked; values are float32 or wider, so that no part is rounded before it is joined."""

    query: Float[Array, "*B T N H"]
    key: Float[Array, "*B S K H"]
    value: Float[Array, "*B S K V"]
    offset: Int[Array, "*#B"]
    lengths: Int[Array, "*#B"]
    scale: ArrayLike
    softcap: ArrayLike | None
    nonfinite: Bool[Array, "*B S K"] | None = None
    """Where `isolated` has taken NaN or Inf out of a key or value; None where they are as given."""

    @property
    def batch_axes(self) -> int:
        return self.query.ndim - 3

    @property
    def queries(self) -> int:
        return self.query.shape[-3]

    @property
    def keys(self) -> int:
        return self.key.shape[-3]

    def with_keys(self, take: Callable[[Array], Array]) -> Inputs:
        """The inputs with `take` applied to all that is indexed by keys."""
        key, value, nonfinite = jax.tree.map(take, (self.key, self.value, self.nonfinite))
        return self._replace(key=key, value=value, nonfinite=nonfinite)


class Part(NamedTuple):
    """Attention of all queries over some of the keys."""

    context: Float[Array, "*B T N V"]
    lse: Float[Array, "*B T N"]
    nonfinite: Bool[Array, "*B T N"] | None
    """Queries that attend to a key or value which `isolated` has changed."""


def checked(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    query_offset: Lengths = 0,
    key_lengths: Lengths | None = None,
    scale: ArrayLike | None = None,
    softcap: ArrayLike | None = None,
) -> Inputs:
    """The arguments, once they are such that `dot_product_attention` takes them."""
    query, key, value = checked_arrays(query, key, value)
    batch, S = query.shape[:-3], key.shape[-3]
    offset = per_batch("query_offset", query_offset, batch)
    lengths = jnp.minimum(S if key_lengths is None else lengths_within("key_lengths", key_lengths, batch, "S", S), S)
    offset, lengths = (jnp.broadcast_to(x, x.shape or (1,) * len(batch)).astype(jnp.int32) for x in (offset, lengths))
    value = value.astype(compute_dtype(query, key, value))
    return Inputs(query, key, value, offset, lengths, checked_scale(scale, query), checked_softcap(softcap))


def isolated(inputs: Inputs) -> Inputs:
    """The inputs without NaN and Inf in keys and values, for parts that are to be joined.

    The share of a part in the joined context may be 0, and so may its cotangent, but 0 times NaN is NaN.  So they come back
    only after the join, in `joined_context`.
    """
    nonfinite = has_nonfinite(inputs.key) | has_nonfinite(inputs.value)
    return inputs._replace(key=finite_or_zero(inputs.key), value=finite_or_zero(inputs.value), nonfinite=nonfinite)


def attend(inputs: Inputs, mask: Bool[Array, "*#B #T #S"]) -> Part:
    """Dense attention under a mask that all heads share."""
    mask = mask[..., None, :, :]
    context, lse = dot_product_attention_and_lse(
        inputs.query, inputs.key, inputs.value, mask=mask, scale=inputs.scale, softcap=inputs.softcap
    )
    lse = jnp.swapaxes(lse, -2, -1)
    if inputs.nonfinite is None:
        return Part(context, lse, None)
    rows = attends_nonfinite(mask, jnp.swapaxes(inputs.nonfinite, -2, -1))
    groups = inputs.query.shape[-2] // inputs.key.shape[-2]
    return Part(context, lse, jnp.broadcast_to(jnp.swapaxes(jnp.repeat(rows, groups, axis=-2), -2, -1), lse.shape))


def window_part(inputs: Inputs, left: int | None, right: int | None, visible: Visible, *, block_size: int = BLOCK_SIZE) -> Part:
    """Attention to the visible keys, none of which is more than `left` before or `right` after the query.

    Cost T (block_size + left + right); with an open side (None) T S.
    """
    T, S = inputs.queries, inputs.keys
    if left is None or right is None:
        length, reach = max(T, 1), S
    else:
        length = max(min(block_size, T), 1)
        reach = max(min(S, length + left + right), 0)
    first = inputs.offset[..., None] + length * jnp.arange(-(-T // length), dtype=jnp.int32)
    # A slice that sticks out at one end is moved back: it then still holds every key in reach.
    start = jnp.clip(first - (left or 0), 0, S - reach)
    query_positions = first[..., None] + jnp.arange(length, dtype=jnp.int32)
    key_positions = start[..., None] + jnp.arange(reach, dtype=jnp.int32)
    real = key_positions < inputs.lengths[..., None, None]
    mask = visible(query_positions[..., :, None], key_positions[..., None, :]) & real[..., None, :]
    blocks = inputs.with_keys(lambda x: slices(x, start, reach))._replace(query=split(inputs.query, inputs.batch_axes, length))
    return jax.tree.map(lambda x: unsplit(x, inputs.batch_axes, T), attend(blocks, mask))


def column_part(inputs: Inputs, columns: Sequence[int], visible: Visible) -> Part:
    """Attention to the visible ones of the keys at `columns`: cost T len(columns)."""
    index = jnp.array(columns, jnp.int32)
    query_positions = inputs.offset[..., None] + jnp.arange(inputs.queries, dtype=jnp.int32)
    real = index < inputs.lengths[..., None]
    mask = visible(query_positions[..., :, None], index) & real[..., None, :]
    return attend(inputs.with_keys(lambda x: jnp.take(x, index, axis=inputs.batch_axes, mode="clip")), mask)


def join(a: Part, b: Part) -> Part:
    """Attention over the keys of both parts, of which no query has one in common."""
    context, lse = merge_attention(a.context, jnp.swapaxes(a.lse, -2, -1), b.context, jnp.swapaxes(b.lse, -2, -1))
    return Part(context, jnp.swapaxes(lse, -2, -1), a.nonfinite | b.nonfinite)


def joined_context(part: Part) -> Float[Array, "*B T N V"]:
    """The context, with NaN for the queries that attend to what `isolated` took out."""
    return poison(part.context, part.nonfinite)


def slices(x: Array, start: Int[Array, "*#B Q"], length: int) -> Array:
    """x[start : start + length] for each start: [*B S ...] -> [*B Q length ...]."""

    def take(start: Int[Array, " Q"], x: Array) -> Array:
        return jax.vmap(lambda first: jax.lax.dynamic_slice_in_dim(x, first, length))(start)

    return over_batch(take, start.ndim - 1)(start, x)


def over_batch(function: Callable, batch_axes: int) -> Callable:
    """`function(index, *arrays)` mapped over batch axes that are full in each array, and full or 1 in the index."""

    def mapped(index: Array, *arrays: Array) -> Array:
        sizes, call = index.shape[:batch_axes], function
        for n in reversed(sizes):
            call = jax.vmap(call, (None if n == 1 else 0, *[0] * len(arrays)))
        return call(index.reshape([n for n in sizes if n != 1] + list(index.shape[batch_axes:])), *arrays)

    return mapped


def split(x: Array, axis: int, length: int) -> Array:
    """Cut an axis into blocks of `length`, the last one filled with zeros: [n] -> [ceil(n / length), length]."""
    missing = -x.shape[axis] % length
    padded = jnp.pad(x, [(0, missing if n == axis else 0) for n in range(x.ndim)])
    return padded.reshape(*x.shape[:axis], -(-x.shape[axis] // length), length, *x.shape[axis + 1 :])


def unsplit(x: Array, axis: int, size: int) -> Array:
    """Undo `split` of an axis that had this `size`."""
    blocks, length = x.shape[axis : axis + 2]
    joined = x.reshape(*x.shape[:axis], blocks * length, *x.shape[axis + 2 :])
    return jax.lax.slice_in_dim(joined, 0, size, axis=axis)
