"""Blocks of the score matrix: their sizes, which of them to visit, and slices at one of them.

The scores of a group of rows, gb batch entries and gk key/value heads, are cut into blocks of bq queries and bk keys.
Inside, heads are split as N = K G, so that the G query heads of a key/value head share its keys in one product.

    live[b, k, i, j]    some pair of the block is allowed: else it is never visited
    full[b, k, i, j]    every pair is allowed: no mask is evaluated
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from attn.shapes import positive

# On two CPU cores, heads of 64: 256 for 512 in one or both took 3 to 76 % longer, as the cores share out each product.
QUERY_BLOCK, KEY_BLOCK = 512, 512
# Elements of the score blocks of a group. Derivatives hold four such blocks at a time where the value holds one or two.
GROUP_ELEMENTS, DERIVATIVE_GROUP_ELEMENTS = 2**20, 2**19
# An accelerator wants as many rows at once as there are.
ACCELERATOR_GROUP_ELEMENTS = 2**26


class Blocks(NamedTuple):
    """Sizes: bq queries by bk keys, of gb batch entries and gk key/value heads at once."""

    bq: int
    bk: int
    gb: int
    gk: int

    @property
    def group(self) -> str:
        """Name of the grouping, to find its visits by."""
        return f"{self.gb} x {self.gk}"


class At(NamedTuple):
    """A block's place: where its group, its queries and its keys start."""

    b: Int[Array, ""]
    k: Int[Array, ""]
    i: Int[Array, ""]
    j: Int[Array, ""]


def choose_blocks(
    B: int, K: int, G: int, T: int, S: int, block_sizes: Sequence[int] | None, heads_apart: bool = False
) -> tuple[Blocks, Blocks]:
    """Sizes for value and derivatives: even parts of each length, and as many rows as the cache holds.

    A group visits what any of its rows needs: where heads differ in that, they are better apart.
    """
    if block_sizes is not None and len(block_sizes) != 2:
        raise ValueError(f"block_sizes: expected two integers >= 1, got {block_sizes!r}")
    wanted_q, wanted_k = (max(QUERY_BLOCK // G, 64), KEY_BLOCK) if block_sizes is None else block_sizes
    bq, bk = _even_part(T, positive("block_sizes", wanted_q)), _even_part(S, positive("block_sizes", wanted_k))
    limits = GROUP_ELEMENTS, DERIVATIVE_GROUP_ELEMENTS
    if jax.default_backend() != "cpu":
        limits = ACCELERATOR_GROUP_ELEMENTS, ACCELERATOR_GROUP_ELEMENTS
    most = [1 if heads_apart else max(limit // (G * bq * bk), 1) for limit in limits]
    value, derivative = (_grouped(B, K, bq, bk, rows) for rows in most)
    return value, derivative


def _grouped(B: int, K: int, bq: int, bk: int, rows: int) -> Blocks:
    gk = _divisor(K, rows)
    return Blocks(bq, bk, _divisor(B, rows // gk) if gk == K else 1, gk)


def _even_part(length: int, most: int) -> int:
    """The smallest block of which as few cover the length as of the largest; in eighths, which vector units like."""
    part = -(-length // max(-(-length // most), 1))
    return max(min(-(-part // 8) * 8, most), 1)


def _divisor(n: int, most: int) -> int:
    return max(d for d in range(1, max(n, 1) + 1) if max(n, 1) % d == 0 and d <= max(most, 1))


class Visits(NamedTuple):
    """For each group of rows and block of queries: its blocks of keys, the full ones first, then those that are live."""

    order: Int[Array, "groups_b groups_k I J"]
    num_full: Int[Array, "groups_b groups_k I"]
    num_live: Int[Array, "groups_b groups_k I"]
    live: Bool[Array, "groups_b groups_k I J"]


def visits(live: Bool[Array, "#B #K I J"], full: Bool[Array, "#B #K I J"], sizes: Blocks, B: int, K: int) -> Visits:
    """What each group visits: a block that is live for one of its rows, as full if it is for all."""
    live, full = _per_group(live, sizes, B, K).any(axis=(1, 3)), _per_group(full & live, sizes, B, K).all(axis=(1, 3))
    order = jnp.argsort(2 - live.astype(jnp.int32) - full, axis=-1, stable=True).astype(jnp.int32)
    return Visits(order, full.sum(axis=-1, dtype=jnp.int32), live.sum(axis=-1, dtype=jnp.int32), live)


def _per_group(table: Bool[Array, "#B #K I J"], sizes: Blocks, B: int, K: int) -> Bool[Array, "groups_b gb groups_k gk I J"]:
    *_, rows, columns = table.shape
    whole = jnp.broadcast_to(table, (B, K, rows, columns))
    return whole.reshape(B // sizes.gb, sizes.gb, K // sizes.gk, sizes.gk, rows, columns)


def scores_block(x: Shaped[Array, "#B #K #G #T #S"], at: At, sizes: Blocks) -> Shaped[Array, "..."]:
    """The part of a score-shaped array at a block; an axis of 1 stays."""
    starts, lengths = _window(x, at, sizes)
    return take(x, starts, lengths)


def add_scores_block(x: Float[Array, "#B #K #G #T #S"], change: Array, at: At, sizes: Blocks) -> Float[Array, "..."]:
    """x with `change`, summed over its axes of 1, added at a block."""
    starts, lengths = _window(x, at, sizes)
    summed = tuple(axis for axis in range(5) if lengths[axis] == 1 and change.shape[axis] != 1)
    change = jnp.sum(change, axis=summed, keepdims=True).astype(x.dtype)
    return put(x, take(x, starts, lengths) + change, starts)


def _window(x: Any, at: At, sizes: Blocks) -> tuple[list[Any], list[int]]:
    starts, lengths = [at.b, at.k, 0, at.i, at.j], [sizes.gb, sizes.gk, x.shape[2], sizes.bq, sizes.bk]
    kept = [size != 1 for size in x.shape]
    return [s if k else 0 for s, k in zip(starts, kept, strict=True)], [n if k else 1 for n, k in zip(lengths, kept, strict=True)]


def take(x: Array, starts: Sequence[Any], lengths: Sequence[int]) -> Array:
    """The slice of these lengths."""
    return jax.lax.dynamic_slice(x, [jnp.int32(start) for start in starts], lengths)


def put(x: Array, part: Array, starts: Sequence[Any]) -> Array:
    """x with `part` in its place, from `starts`."""
    return jax.lax.dynamic_update_slice(x, part.astype(x.dtype), [jnp.int32(start) for start in starts])


def padded(x: Array, axis: int, multiple: int) -> Array:
    """x with zeros up to the next multiple along `axis`; an axis of 1 that broadcasts is the caller's to leave out."""
    missing = -x.shape[axis] % multiple
    if not missing:
        return x
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, missing)
    return jnp.pad(x, widths)


def query_positions(at: At, sizes: Blocks) -> Int[Array, "bq 1"]:
    """Index of each query of the block, as a column."""
    return (at.i + jnp.arange(sizes.bq, dtype=jnp.int32))[:, None]


def key_positions(at: At, sizes: Blocks) -> Int[Array, "bk"]:
    """Index of each key of the block."""
    return at.j + jnp.arange(sizes.bk, dtype=jnp.int32)
