"""What the masks of dot-product attention mean for a block: whether it can be skipped, whether all of it is allowed, which pairs.

Causal, window, length and segment structure is known from where a block starts and ends, so nothing of size T S is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Shaped

from attn.blocks import At, Blocks, key_positions, padded, query_positions, scores_block


@runtime_checkable
class Structure(Protocol):
    """What attention in blocks knows of a mask; hashable, as the arrays that it reads are given at each call."""

    def __call__(self, arrays: dict[str, Any], at: At, sizes: Blocks) -> Bool[Array, "#gb #gk #G #bq #bk"]:
        """The allowed pairs of one block."""
        ...

    def tables(self, arrays: dict[str, Any], sizes: Blocks, T: int, S: int) -> tuple[Array, Array]:
        """live and full, [#B #K I J], of T queries and S keys, padded to whole blocks."""
        ...


@dataclass(frozen=True)
class MaskStructure:
    """Which masks there are; their arrays are given at each call.

    arrays: offset [#B]; maybe query_lengths, key_lengths [#B]; maybe query_segment_ids [B T], key_segment_ids [B S]; maybe
    mask [#B #K #G #T #S]; T and S padded to whole blocks.
    """

    key_length: int
    is_causal: bool
    left: int | None
    right: int | None

    def __call__(self, arrays: dict[str, Array], at: At, sizes: Blocks) -> Bool[Array, "#gb #gk #G #bq #bk"]:
        """The allowed pairs of one block."""
        keys, queries = key_positions(at, sizes), query_positions(at, sizes)

        def scalar(name: str) -> Array:
            return entries(arrays[name], at, sizes)[:, None, None, None, None]

        def ids(name: str, start: Array, length: int) -> Array:
            return lax.dynamic_slice_in_dim(entries(arrays[name], at, sizes), start, length, axis=1)[:, None, None]

        distance = keys - (queries + scalar("offset"))
        allowed = jnp.broadcast_to(keys < self.key_length, (1, 1, 1, 1, sizes.bk))
        if self.is_causal:
            allowed = allowed & (distance <= 0)
        if self.left is not None:
            allowed = allowed & (distance >= -self.left)
        if self.right is not None:
            allowed = allowed & (distance <= self.right)
        if "query_lengths" in arrays:
            allowed = allowed & (queries < scalar("query_lengths"))
        if "key_lengths" in arrays:
            allowed = allowed & (keys < scalar("key_lengths"))
        if "query_segment_ids" in arrays:
            of_queries, of_keys = ids("query_segment_ids", at.i, sizes.bq), ids("key_segment_ids", at.j, sizes.bk)
            allowed = allowed & (of_queries[..., :, None] == of_keys[..., None, :])
        if "mask" in arrays:
            allowed = allowed & scores_block(arrays["mask"], at, sizes)
        return allowed

    def tables(self, arrays: dict[str, Array], sizes: Blocks, T: int, S: int) -> tuple[Array, Array]:
        """live and full, [#B #K I J], of T queries and S keys, padded to whole blocks."""
        queries, keys = jnp.arange(0, T, sizes.bq)[:, None], jnp.arange(0, S, sizes.bk)
        last_query, last_key = queries + sizes.bq - 1, keys + sizes.bk - 1
        offset = _per_entry(arrays["offset"])
        # Distances key - query over a block: the least is from its last query to its first key, the most the other way round.
        least, most = keys - (last_query + offset), last_key - (queries + offset)
        live, full = (
            jnp.ones((1, 1, *least.shape[2:]), bool),
            jnp.broadcast_to(last_key < self.key_length, (1, 1, *least.shape[2:])),
        )
        if self.is_causal:
            live, full = live & (least <= 0), full & (most <= 0)
        if self.left is not None:
            live, full = live & (most >= -self.left), full & (least >= -self.left)
        if self.right is not None:
            live, full = live & (least <= self.right), full & (most <= self.right)
        if "query_lengths" in arrays:
            length = _per_entry(arrays["query_lengths"])
            live, full = live & (queries < length), full & (last_query < length)
        if "key_lengths" in arrays:
            length = _per_entry(arrays["key_lengths"])
            live, full = live & (keys < length), full & (last_key < length)
        if "query_segment_ids" in arrays:
            low_q, high_q = _range(arrays["query_segment_ids"], sizes.bq)
            low_k, high_k = _range(arrays["key_segment_ids"], sizes.bk)
            low_q, high_q, low_k, high_k = low_q[..., None], high_q[..., None], low_k[:, :, None], high_k[:, :, None]
            live = live & (low_q <= high_k) & (low_k <= high_q)
            full = full & (low_q == high_q) & (low_k == high_k) & (low_q == low_k)
        if "mask" in arrays:
            some, every = _of_mask(arrays["mask"], sizes, T // sizes.bq, S // sizes.bk)
            live, full = live & some, full & every
        return live, full


def entries(x: Shaped[Array, "#B ..."], at: At, sizes: Blocks) -> Shaped[Array, "#gb ..."]:
    """What x holds for the batch entries of a block."""
    return x if x.shape[0] == 1 else lax.dynamic_slice_in_dim(x, at.b, sizes.gb)


def _per_entry(x: Array) -> Array:
    return x[:, None, None, None]


def _range(ids: Array, block: int) -> tuple[Array, Array]:
    """Lowest and highest segment of each block, [#B 1 I]."""
    parts = ids.reshape(ids.shape[0], 1, -1, block)
    return parts.min(-1), parts.max(-1)


def _of_mask(mask: Array, sizes: Blocks, rows: int, columns: int) -> tuple[Array, Array]:
    """Whether some and every pair of each block is allowed, over the query heads of a key/value head."""
    B, K, G, T, S = mask.shape
    parts = mask.reshape(B, K, G, rows if T > 1 else 1, -1, columns if S > 1 else 1, sizes.bk if S > 1 else 1)
    shape = (B, K, rows, columns)
    return jnp.broadcast_to(parts.any((2, 4, 6)), shape), jnp.broadcast_to(parts.all((2, 4, 6)), shape)


def padded_arrays(arrays: dict[str, Any], sizes: Blocks) -> dict[str, Any]:
    """The arrays of a structure with T and S padded to whole blocks."""
    result = dict(arrays)
    for name, block in (("query_segment_ids", sizes.bq), ("key_segment_ids", sizes.bk)):
        if name in result:
            result[name] = padded(result[name], 1, block)
    if "mask" in result:
        result["mask"] = padded_scores(result["mask"], sizes)
    return result


def padded_scores(x: Shaped[Array, "#B #K #G #T #S"], sizes: Blocks) -> Shaped[Array, "..."]:
    """A score-shaped array with T and S padded to whole blocks; an axis of 1, which broadcasts, stays."""
    for axis, block in ((3, sizes.bq), (4, sizes.bk)):
        x = padded(x, axis, block) if x.shape[axis] > 1 else x
    return x
