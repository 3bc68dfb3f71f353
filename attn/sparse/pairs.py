"""Which pairs of positions a pattern allows, told of one pair and of a whole block, so that blocks without any are skipped.

p is the position of a query, i + query_offset; j that of a key.  Of a block the first and last position of each are known:

    pairs(p, j)                                     whether the query may attend to the key
    blocks(p_first, p_last, j_first, j_last)        whether some pair of the block may be allowed, and whether every one is
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from attn.block_mask import covered
from attn.block_structure import entries
from attn.blocks import At, Blocks, key_positions, query_positions


@runtime_checkable
class Pattern(Protocol):
    """Hashable, and a function of positions alone."""

    def pairs(self, p: Int[Array, "..."], j: Int[Array, "..."]) -> Bool[Array, "..."]:
        """Whether a query at p may attend to key j."""
        ...

    def blocks(self, p_first: Array, p_last: Array, j_first: Array, j_last: Array) -> tuple[Array, Array]:
        """Some pair may be allowed, every pair is."""
        ...


@dataclass(frozen=True)
class WindowWithGlobalTokens:
    """-left <= j - p <= right  or  j < num_global  or  0 <= p < num_global."""

    left: int | None
    right: int | None
    num_global: int

    def pairs(self, p: Int[Array, "..."], j: Int[Array, "..."]) -> Bool[Array, "..."]:
        near, _ = self._window(j - p, j - p)
        return near | (j < self.num_global) | ((p >= 0) & (p < self.num_global))

    def blocks(self, p_first: Array, p_last: Array, j_first: Array, j_last: Array) -> tuple[Array, Array]:
        some, every = self._window(j_first - p_last, j_last - p_first)
        some = some | (j_first < self.num_global) | ((p_last >= 0) & (p_first < self.num_global))
        every = every | (j_last < self.num_global) | ((p_first >= 0) & (p_last < self.num_global))
        return some, every

    def _window(self, least: Array, most: Array) -> tuple[Array, Array]:
        """Whether a distance from `least` to `most` may be, and whether each must be, within the window."""
        some = every = jnp.full(least.shape, True)
        if self.left is not None:
            some, every = some & (most >= -self.left), every & (least >= -self.left)
        if self.right is not None:
            some, every = some & (least <= self.right), every & (most <= self.right)
        return some, every


@dataclass(frozen=True)
class OwnBlock:
    """j <= p and floor(j / stride) = floor(p / stride): A^(1) of fixed attention."""

    stride: int

    def pairs(self, p: Int[Array, "..."], j: Int[Array, "..."]) -> Bool[Array, "..."]:
        return (j <= p) & (j // self.stride == p // self.stride)

    def blocks(self, p_first: Array, p_last: Array, j_first: Array, j_last: Array) -> tuple[Array, Array]:
        p_low, p_high, j_low, j_high = (x // self.stride for x in (p_first, p_last, j_first, j_last))
        some = (j_first <= p_last) & (j_low <= p_high) & (p_low <= j_high)
        return some, (j_last <= p_first) & (p_low == p_high) & (j_low == p_low) & (j_high == p_low)


@dataclass(frozen=True)
class EarlierEnds:
    """floor(j / summary) < floor(p / stride): A^(2) of fixed attention, where the keys are the last `summary` of each block."""

    stride: int
    summary: int

    def pairs(self, p: Int[Array, "..."], j: Int[Array, "..."]) -> Bool[Array, "..."]:
        return j // self.summary < p // self.stride

    def blocks(self, p_first: Array, p_last: Array, j_first: Array, j_last: Array) -> tuple[Array, Array]:
        return self.pairs(p_last, j_first), self.pairs(p_first, j_last)


@dataclass(frozen=True)
class PatternStructure:
    """A pattern as the structure of attention in blocks; arrays: offset and key_lengths [#B]."""

    pattern: Pattern

    def __call__(self, arrays: dict[str, Array], at: At, sizes: Blocks) -> Bool[Array, "#gb 1 1 bq bk"]:
        """The allowed pairs of one block."""
        offset, lengths = (entries(arrays[name], at, sizes)[:, None, None, None, None] for name in ("offset", "key_lengths"))
        keys = key_positions(at, sizes)
        return self.pattern.pairs(query_positions(at, sizes) + offset, keys) & (keys < lengths)

    def tables(self, arrays: dict[str, Array], sizes: Blocks, T: int, S: int) -> tuple[Array, Array]:
        """live and full, [#B 1 I J], of T queries and S keys, padded to whole blocks."""
        offset, lengths = (arrays[name][:, None, None, None] for name in ("offset", "key_lengths"))
        queries = jnp.arange(0, T, sizes.bq, dtype=jnp.int32)[:, None] + offset
        keys = jnp.arange(0, S, sizes.bk, dtype=jnp.int32)
        some, every = self.pattern.blocks(queries, queries + sizes.bq - 1, keys, keys + sizes.bk - 1)
        return some & (keys < lengths), every & (keys + sizes.bk - 1 < lengths)


@dataclass(frozen=True)
class BlockStructure:
    """A Boolean matrix of blocks, maybe causal; arrays: block_mask [#B #K #G Tb Sb], offset and key_lengths [#B]."""

    block_size: int
    is_causal: bool

    def __call__(self, arrays: dict[str, Array], at: At, sizes: Blocks) -> Bool[Array, "#gb #gk #G bq bk"]:
        """The allowed pairs of one block."""
        offset, lengths = (entries(arrays[name], at, sizes)[:, None, None, None, None] for name in ("offset", "key_lengths"))
        table = entries(arrays["block_mask"], at, sizes)
        if table.shape[1] > 1:
            table = lax.dynamic_slice_in_dim(table, at.k, sizes.gk, axis=1)
        queries, keys = query_positions(at, sizes), key_positions(at, sizes)
        rows, columns = queries[:, 0] // self.block_size, keys // self.block_size
        allowed = jnp.take(jnp.take(table, rows, axis=3, mode="clip"), columns, axis=4, mode="clip") & (keys < lengths)
        return allowed & (keys <= queries + offset) if self.is_causal else allowed

    def tables(self, arrays: dict[str, Array], sizes: Blocks, T: int, S: int) -> tuple[Array, Array]:
        """live and full, [#B #K I J], of T queries and S keys, padded to whole blocks."""
        table = arrays["block_mask"]
        offset, lengths = (arrays[name][:, None, None, None] for name in ("offset", "key_lengths"))
        lengths_of_table = [n * self.block_size for n in table.shape[-2:]]
        some, every = covered(
            table.any(2), table.all(2), (self.block_size, self.block_size), lengths_of_table, (sizes.bq, sizes.bk)
        )
        queries = jnp.arange(0, T, sizes.bq, dtype=jnp.int32)[:, None] + offset
        keys = jnp.arange(0, S, sizes.bk, dtype=jnp.int32)
        live, full = some & (keys < lengths), every & (keys + sizes.bk - 1 < lengths)
        if self.is_causal:
            live, full = live & (keys <= queries + sizes.bq - 1), full & (keys + sizes.bk - 1 <= queries)
        return live, full
