"""Residue classes of positions modulo a stride, as batch entries.

Keys at a distance that is a multiple of the stride are in the class of the query, and neighbours there: query i = s + u stride,
at position p = i + offset, is in class r = (s + offset) mod stride, at place floor((s + offset) / stride) + u of it.  So a
pattern with gaps is one without gaps in each class, under an offset of its own.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from attn.sparse.parts import Inputs, over_batch, split, unsplit


def by_residue(inputs: Inputs, stride: int) -> Inputs:
    """The inputs with one more batch axis: the queries i = s mod stride, each with the keys of their class."""
    query_classes, key_classes = min(stride, max(inputs.queries, 1)), min(stride, max(inputs.keys, 1))
    first = inputs.offset[..., None] + jnp.arange(query_classes, dtype=jnp.int32)
    residue, offset = first % stride, first // stride
    # Of the keys j = r, r + stride ... below the length there are ceil((length - r) / stride).
    lengths = (inputs.lengths[..., None] - residue + stride - 1) // stride
    # Classes without any key are none of the key classes, and have length 0: any other may stand for them.
    index = jnp.minimum(residue, key_classes - 1)
    return inputs.with_keys(lambda x: _take(_classes(x, inputs.batch_axes, key_classes), index))._replace(
        query=_classes(inputs.query, inputs.batch_axes, query_classes), offset=offset, lengths=jnp.maximum(lengths, 0)
    )


def from_residue(x: Array, inputs: Inputs) -> Array:
    """Undo the arrangement of the queries by `by_residue(inputs, ...)`: [*B classes places ...] -> [*B T ...]."""
    axis = inputs.batch_axes
    return unsplit(jnp.swapaxes(x, axis, axis + 1), axis, inputs.queries)


def _classes(x: Array, axis: int, count: int) -> Array:
    """[n] -> [count, ceil(n / count)]: entry r holds r, r + count, ..."""
    return jnp.swapaxes(split(x, axis, count), axis, axis + 1)


def _take(x: Array, index: Int[Array, "*#B R"]) -> Array:
    """x[index] along the axis behind the batch axes."""

    def take(index: Int[Array, " R"], x: Array) -> Array:
        return jax.vmap(lambda r: jax.lax.dynamic_index_in_dim(x, r, keepdims=False))(index)

    return over_batch(take, index.ndim - 1)(index, x)
