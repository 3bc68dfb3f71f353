"""Attention over part of the keys: what the sparse patterns are made of.

A pattern is computed in blocks, of which those without any visible pair are skipped.  A pattern that is a union is computed
in disjoint parts, each with its lse, which are then joined exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from attn.block_structure import Structure
from attn.dot_product import dot_product_attention_and_lse
from attn.dot_product_blocks import blockwise_attention
from attn.options import Lengths, checked_arrays, checked_scale, checked_softcap
from attn.shapes import compute_dtype, lengths_within, per_batch
from attn.sparse.pairs import Pattern, PatternStructure

BLOCK_SIZE = 128
"""Queries in a block: enough for efficient products, few enough that a block reaches few keys outside their windows."""

Part = tuple[Float[Array, "*B T N V"], Float[Array, "*B N T"]]
"""Context and lse of attention over some of the keys."""


class Inputs(NamedTuple):
    """What every pattern is given, checked; values are float32 or wider, so that no part is rounded before it is joined."""

    query: Float[Array, "*B T N H"]
    key: Float[Array, "*B S K H"]
    value: Float[Array, "*B S K V"]
    offset: Int[Array, "*#B"]
    lengths: Int[Array, "*#B"]
    scale: ArrayLike
    softcap: ArrayLike | None

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
        return self._replace(key=take(self.key), value=take(self.value))

    def structure_arrays(self) -> dict[str, Int[Array, "#B"]]:
        """offset and key_lengths as attention in blocks takes them: one axis for the whole batch."""
        batch = self.query.shape[:-3]
        given = {"offset": self.offset, "key_lengths": self.lengths}
        return {n: x.reshape(1) if x.size == 1 else jnp.broadcast_to(x, batch).reshape(-1) for n, x in given.items()}


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


def attend_in_blocks(
    inputs: Inputs, structure: Structure, arrays: dict[str, Array], block_sizes: Sequence[int] | None, heads_apart: bool = False
) -> Part:
    """Attention to the pairs that a structure allows, see `attn.block_structure`, in the blocks that hold any."""
    return blockwise_attention(
        inputs.query, inputs.key, inputs.value, bias=None, structure=structure, masked=True, masks=arrays, scale=inputs.scale,
        softcap=inputs.softcap, dropout_rate=0.0, dropout_key=None, block_sizes=block_sizes, precision=None,
        heads_apart=heads_apart,
    )  # fmt: skip


def attend_pattern(inputs: Inputs, pattern: Pattern, block_size: int = BLOCK_SIZE) -> Part:
    """Attention to the pairs of a pattern."""
    return attend_in_blocks(inputs, PatternStructure(pattern), inputs.structure_arrays(), (block_size, 2 * block_size))


def attend_window(
    inputs: Inputs, left: int | None, right: int | None, block_sizes: Sequence[int] | None = (BLOCK_SIZE, 2 * BLOCK_SIZE)
) -> Part:
    """Attention to the keys around each query."""
    return dot_product_attention_and_lse(
        inputs.query, inputs.key, inputs.value, window=(left, right), query_offset=inputs.offset, key_lengths=inputs.lengths,
        scale=inputs.scale, softcap=inputs.softcap, implementation="blockwise", block_sizes=block_sizes,
    )  # fmt: skip


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
