"""Which blocks of the score matrix a mask_mod leaves to compute (FlexAttention's block mask).

    live[b, h, i, j]    some pair of query block i and key block j is allowed
    full[b, h, i, j]    all of them are, so that no mask need be evaluated there

Pairs beyond the lengths do not count: a block at the edge may be full.  The T S mask itself is never made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from attn.mods import MaskMod
from attn.mods.rule import Rule, hoisted
from attn.shapes import known, positive, size

# Pairs evaluated at once.  On two CPU cores, half or double of it took as long; at 2^23 a cache no longer held them.
PAIRS_AT_ONCE = 2**19


def create_block_mask(
    mask_mod: MaskMod, q_len: int, kv_len: int, *, batch: int = 1, heads: int = 1, block_size: Sequence[int] = (128, 128)
) -> BlockMask:
    """The blocks of a mask, in time T S and in memory of a few blocks and of the two tables.

    Build it once for a mask and keep it, or build it inside the function that is transformed: arrays that mask_mod captures
    may be traced.

    Args:
        mask_mod: (b, h, q_idx, kv_idx) -> bool on integer scalars, True = attend (`attn.mods` has many).
        q_len: T.
        kv_len: S.
        batch: B, or 1 for a mask_mod that does not depend on b: it then stands for any number of batch entries.
        heads: N, or 1 for a mask_mod that does not depend on h.
        block_size: queries and keys of a block.

    Returns:
        The block mask; for causal, T = S = 4 and blocks of 2 by 2 (x = attend)::

            live  x .      full  . .
                  x x            x .

    Raises:
        TypeError: a mask_mod that is no function, or that returns anything but a Boolean scalar.
        ValueError: sizes that are no integers >= 0, or a block size that is not two integers >= 1.

    >>> from attn import mods
    >>> block_mask = create_block_mask(mods.causal(), 6, 6, block_size=(2, 2))
    >>> block_mask.live[0, 0].astype(int) + block_mask.full[0, 0]   # 0 nothing, 1 in part, 2 everything
    Array([[1, 0, 0],
           [2, 1, 0],
           [2, 2, 1]], dtype=int32)

    Reference: Dong, Feng, Guessous, Liang, He. Flex Attention: a programming model for generating optimized attention
    kernels. 2024, block sparsity.
    """
    shape = size("batch", batch), size("heads", heads), size("q_len", q_len), size("kv_len", kv_len)
    block_size = _checked_block_size(block_size)
    if not callable(mask_mod):
        raise TypeError(f"mask_mod: expected a function (b, h, q_idx, kv_idx) -> bool, got {mask_mod!r}")
    # Without pairs it is not evaluated, as what it captures may be empty and so cannot be indexed.
    rule, captured = hoisted_mask(mask_mod if 0 not in shape else lambda b, h, q_idx, kv_idx: False)
    live, full = _tables(captured, rule, shape, block_size)
    return BlockMask(live, full, captured, rule, shape, block_size)


@dataclass(frozen=True, eq=False, repr=False)
class BlockMask:
    """Live and full blocks of a mask, and the mask_mod with the arrays it captures: a pytree, for any transformation.

    Two block masks of equal sizes, whose mask_mods differ only in the arrays captured, are of one pytree structure: a
    function compiled for one serves for the other.
    """

    live: Bool[Array, "B N I J"]
    full: Bool[Array, "B N I J"]
    captured: tuple[Shaped[Array, "..."], ...]
    """What mask_mod closes over."""
    rule: Rule
    shape: tuple[int, int, int, int]
    """(batch, heads, q_len, kv_len), batch and heads as at creation."""
    block_size: tuple[int, int]

    @property
    def batch(self) -> int:
        return self.shape[0]

    @property
    def heads(self) -> int:
        return self.shape[1]

    @property
    def q_len(self) -> int:
        return self.shape[2]

    @property
    def kv_len(self) -> int:
        return self.shape[3]

    def mask(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Bool[Array, ""]:
        """mask_mod of one pair of indices within the lengths; of entry or head 0 where batch or heads is 1."""
        pair = (b if self.batch > 1 else 0, h if self.heads > 1 else 0, q_idx, kv_idx)
        return self.rule(self.captured, *(jnp.asarray(index, jnp.int32) for index in pair))

    def to_dense(self) -> Bool[Array, "B N T S"]:
        """The mask of every pair, [batch heads q_len kv_len].

        >>> from attn import mods
        >>> create_block_mask(mods.causal(), 2, 3).to_dense()[0, 0].astype(int)
        Array([[1, 0, 0],
               [1, 1, 0]], dtype=int32)
        """
        return _every_pair(self.mask)(*(jnp.arange(n, dtype=jnp.int32) for n in self.shape))

    def sparsity(self) -> Float[Array, ""]:
        """The percentage of blocks that are not live, 0 where there are no blocks.

        >>> from attn import mods
        >>> create_block_mask(mods.causal(), 4, 4, block_size=(1, 1)).sparsity()   # 6 of 16
        Array(37.5, dtype=float32)
        """
        return 100 * jnp.sum(~self.live, dtype=float) / max(self.live.size, 1)

    def coarsen(self, block_size: Sequence[int]) -> tuple[Bool[Array, "B N I J"], Bool[Array, "B N I J"]]:
        """Live and full of larger blocks, as if created with them: any, and all, of the blocks within.

        Args:
            block_size: queries and keys, multiples of the block size.

        Raises:
            ValueError: a block size that is not two such multiples.

        >>> from attn import mods
        >>> live, full = create_block_mask(mods.causal(), 8, 8, block_size=(2, 2)).coarsen((4, 4))
        >>> live[0, 0].astype(int) + full[0, 0]
        Array([[1, 0],
               [2, 1]], dtype=int32)
        """
        bq, bk = _checked_block_size(block_size)
        if bq % self.block_size[0] or bk % self.block_size[1]:
            raise ValueError(f"block_size: expected multiples of {self.block_size}, got {(bq, bk)}")
        return self.at_blocks(bq, bk)

    def at_blocks(self, bq: int, bk: int) -> tuple[Bool[Array, "B N I J"], Bool[Array, "B N I J"]]:
        """Live and full of blocks of any size: exact for multiples of the block size, else on the safe side.

        A block is live if it touches one that is, and full if all that it touches are: no allowed pair is lost, and none
        appears, but more blocks than need be are visited or evaluated.

        Raises:
            ValueError: sizes that are no integers >= 1.
        """
        bq, bk = _checked_block_size((bq, bk))
        return covered(self.live, self.full, self.block_size, (self.q_len, self.kv_len), (bq, bk))

    def expect(self, batch: int, heads: int, q_len: int, kv_len: int) -> None:
        """Raise unless this is the mask of so many queries and keys, and of these batch entries and heads, or of 1 for all.

        Raises:
            ValueError: another shape.

        >>> from attn import mods
        >>> create_block_mask(mods.causal(), 4, 4).expect(2, 8, 4, 5)
        Traceback (most recent call last):
        ValueError: block_mask: expected shape (B or 1, N or 1, T, S) = (2, 8, 4, 5), got (1, 1, 4, 4)
        """
        expected = (batch, heads, q_len, kv_len)
        if self.batch not in (1, batch) or self.heads not in (1, heads) or self.shape[2:] != expected[2:]:
            raise ValueError(f"block_mask: expected shape (B or 1, N or 1, T, S) = {expected}, got {self.shape}")

    def __repr__(self) -> str:
        sparsity = ""
        if isinstance(self.live, jax.Array) and known(self.live) is not None:
            sparsity = f", sparsity={float(self.sparsity()):.1f} %"
        return f"BlockMask(shape={self.shape}, block_size={self.block_size}{sparsity})"


def _flatten(mask: BlockMask) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    return (mask.live, mask.full, mask.captured), (mask.rule, mask.shape, mask.block_size)


def _unflatten(static: tuple[Any, ...], arrays: Sequence[Any]) -> BlockMask:
    # Past __init__, whose types are those of arrays: transformations put other things into a tree.
    mask = object.__new__(BlockMask)
    for name, value in zip(("live", "full", "captured", "rule", "shape", "block_size"), (*arrays, *static), strict=True):
        object.__setattr__(mask, name, value)
    return mask


jax.tree_util.register_pytree_node(BlockMask, _flatten, _unflatten)


def hoisted_mask(mask_mod: MaskMod) -> tuple[Rule, tuple[Array, ...]]:
    """The rule of a mask_mod, once it returns a Boolean, and the arrays it captures."""
    rule, captured, result = hoisted(mask_mod, *(jax.ShapeDtypeStruct((), jnp.int32),) * 4)
    if not isinstance(result, jax.ShapeDtypeStruct) or result.dtype != jnp.bool_ or result.shape:
        got = f"{result.dtype} of shape {result.shape}" if isinstance(result, jax.ShapeDtypeStruct) else repr(result)
        raise TypeError(f"mask_mod: expected to return a bool scalar (True = attend), got {got}")
    return rule, captured


def _every_pair(mask_mod: MaskMod) -> MaskMod:
    """mask_mod of vectors of indices: [B N T S]."""
    for axis in (3, 2, 1, 0):
        mask_mod = jax.vmap(mask_mod, in_axes=tuple(0 if axis == i else None for i in range(4)))
    return mask_mod


@partial(jax.jit, static_argnames=("rule", "shape", "block_size"))
def _tables(
    captured: tuple[Array, ...], rule: Rule, shape: tuple[int, int, int, int], block_size: tuple[int, int]
) -> tuple[Bool[Array, "B N I J"], Bool[Array, "B N I J"]]:
    """Live and full, from the number of allowed pairs of each block."""
    (B, N, T, S), (bq, bk) = shape, block_size
    blocks = (B, N, -(-T // bq), -(-S // bk))

    def allowed(block: Int[Array, ""]) -> Int[Array, ""]:
        b, h, i, j = jnp.unravel_index(block, blocks)
        q_idx, kv_idx = i * bq + jnp.arange(bq, dtype=jnp.int32), j * bk + jnp.arange(bk, dtype=jnp.int32)
        pairs = _every_pair(partial(rule, captured))(b[None], h[None], q_idx, kv_idx)[0, 0]
        return jnp.sum(pairs & (q_idx < T)[:, None] & (kv_idx < S), dtype=jnp.int32)

    order = jnp.arange(blocks[0] * blocks[1] * blocks[2] * blocks[3], dtype=jnp.int32)
    count = jax.lax.map(allowed, order, batch_size=max(PAIRS_AT_ONCE // (bq * bk), 1)).reshape(blocks)
    return count > 0, count == _sizes(T, bq)[:, None] * _sizes(S, bk)


def _checked_block_size(block_size: Any) -> tuple[int, int]:
    sizes = tuple(block_size) if isinstance(block_size, Sequence) and not isinstance(block_size, str) else ()
    if len(sizes) != 2:
        raise ValueError(f"block_size: expected two integers >= 1, got {block_size!r}")
    return positive("block_size", sizes[0]), positive("block_size", sizes[1])


def _sizes(length: int, block: int) -> Int[Array, " X"]:
    """Positions of each block; the last may have fewer."""
    return jnp.minimum(block, length - jnp.arange(0, length, block, dtype=jnp.int32))


def covered(
    live: Bool[Array, "B N I J"],
    full: Bool[Array, "B N I J"],
    block_size: Sequence[int],
    lengths: Sequence[int],
    other: Sequence[int],
) -> tuple[Bool[Array, "B N X Y"], Bool[Array, "B N X Y"]]:
    """Live and full of blocks of size `other`: live if any block touched is, full if all are."""
    touched = [_touched(*sizes) for sizes in zip(lengths, block_size, other, strict=True)]
    return _count(live, *touched) > 0, _count(~full, *touched) == 0


def _touched(length: int, block: int, other: int) -> tuple[Int[Array, " X"], Int[Array, " X"]]:
    """For each block of `other` positions, the first block of `block` positions it touches, and the one after the last."""
    starts = jnp.arange(0, length, other, dtype=jnp.int32)
    ends = jnp.minimum(starts + other, length)
    return starts // block, -(-ends // block)


def _count(table: Bool[Array, "B N I J"], rows: tuple[Array, Array], columns: tuple[Array, Array]) -> Int[Array, "B N X Y"]:
    """How many entries each rectangle of rows and columns has, by differences of running sums."""
    # XLA takes seconds to evaluate jnp.cumsum of a constant while compiling, and this not.
    by_row = jax.lax.associative_scan(jnp.add, table.astype(jnp.int32), axis=2)
    sums = jnp.pad(jax.lax.associative_scan(jnp.add, by_row, axis=3), ((0, 0), (0, 0), (1, 0), (1, 0)))
    by_row = sums[:, :, rows[1]] - sums[:, :, rows[0]]
    return by_row[..., columns[1]] - by_row[..., columns[0]]
