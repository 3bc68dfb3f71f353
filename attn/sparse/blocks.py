"""Block-sparse attention: a Boolean matrix says which block of queries meets which block of keys.

Names: in Gray et al. (2017) the matrix is the layout of the block-sparse product; in Zaheer et al. (2020, section 2 and
Appendix D) it is the blockified adjacency matrix A, of window, global and random blocks.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from attn.options import Lengths
from attn.shapes import is_traced, positive
from attn.sparse.parts import Inputs, attend, checked, split, unsplit


class _Group(NamedTuple):
    """Rows of the block mask with about as many active blocks."""

    rows: Int[Array, " R"]
    """Blocks of queries, numbered through batch entries and heads where those have masks of their own."""
    blocks: Int[Array, "R A"]
    """The blocks of keys that each row meets, numbered likewise."""
    active: Bool[Array, "R A"]
    """False where a row has fewer than the others."""


class _Plan(NamedTuple):
    """What is computed together."""

    groups: list[_Group]
    order: Int[Array, " rows"]
    """Where each row is among those of all groups."""
    units: int
    """How many heads have masks of their own; 1 if all share one."""
    by_batch: bool
    """Whether batch entries have masks of their own, which then count as heads."""


def block_sparse_attention(
    query: Annotated[ArrayLike, "*B T N H"],
    key: Annotated[ArrayLike, "*B S K H"],
    value: Annotated[ArrayLike, "*B S K V"],
    block_mask: Annotated[ArrayLike, "*B N Tb Sb"],
    *,
    block_size: int,
    is_causal: bool = False,
    query_offset: Lengths = 0,
    key_lengths: Lengths | None = None,
    scale: ArrayLike | None = None,
    softcap: ArrayLike | None = None,
) -> Float[Array, "*B T N V"]:
    """Attention of blocks of queries to the blocks of keys that a Boolean matrix allows.

    Query i sees key j where block_mask[floor(i / block_size), floor(j / block_size)] (blocks count queries and keys as given,
    whatever the offset) and, if is_causal, where j <= i + query_offset.

    Equal to `dot_product_attention` under that mask, in value and gradient, in time and memory proportional to the number of
    active blocks: rows are computed in groups of about as many, at most twice what is needed, so that a few rows that see
    everything do not make all others pay.  The groups are formed while tracing: the matrix must be known then.

    Args:
        query: [*B T N H].
        key: [*B S K H]; N is a multiple of K, and query head n meets key head n // (N // K).
        value: [*B S K V].
        block_mask: Boolean, True = attend, Tb = ceil(T / block_size), Sb = ceil(S / block_size): [Tb Sb] for all heads,
            [N Tb Sb] by head, or [*B N Tb Sb] with each of its first axes full or 1.  An array that is known while tracing
            (NumPy, or closed over), not an argument of the function that is transformed.
        block_size: queries, and keys, of a block.
        is_causal: query i sees the keys j <= i + query_offset only.
        query_offset: absolute position of query 0, one integer or one for each batch entry [*B].
        key_lengths: integers [*B] or a scalar; later keys are masked.
        scale: 1/sqrt(H) if not given.
        softcap: scores become softcap tanh(scores / softcap).

    Returns:
        Context [*B T N V] in the dtype of `value`; 0 for a query that sees nothing.

    Raises:
        TypeError: a block mask that is not Boolean or is traced, an array of the wrong kind of dtype.
        ValueError: shapes that do not fit together, block_size < 1, softcap <= 0.

    >>> import jax.numpy as jnp
    >>> x = jnp.zeros((4, 1, 4))
    >>> block_mask = jnp.array([[True, False], [True, True]])
    >>> block_sparse_attention(x, x, jnp.eye(4)[:, None], block_mask, block_size=2)[:, 0]
    Array([[0.5 , 0.5 , 0.  , 0.  ],
           [0.5 , 0.5 , 0.  , 0.  ],
           [0.25, 0.25, 0.25, 0.25],
           [0.25, 0.25, 0.25, 0.25]], dtype=float32)

    Reference: Gray, Radford, Kingma. GPU kernels for block-sparse weights. 2017; Zaheer et al. Big Bird: transformers for
    longer sequences. 2020, section 2 and Appendix D.
    """
    inputs = checked(
        query, key, value, query_offset=query_offset, key_lengths=key_lengths, scale=scale, softcap=softcap
    )  # fmt: skip
    block_size = positive("block_size", block_size)
    if is_traced(block_mask):
        raise TypeError("block_mask: expected an array known while tracing (NumPy, or closed over), got a traced one")
    with jax.ensure_compile_time_eval():
        plan = _plan(_checked_block_mask(block_mask, inputs, block_size), inputs)
    if not plan.units:
        context = jnp.zeros((*inputs.query.shape[:-1], inputs.value.shape[-1]))
    elif plan.by_batch:
        context = _by_batch_entry(inputs, plan, block_size, is_causal)
    else:
        by_head = inputs._replace(offset=inputs.offset[..., None], lengths=inputs.lengths[..., None])
        context = _by_head(by_head, plan.groups, plan.order, plan.units, block_size, is_causal)
    return context.astype(jnp.asarray(value).dtype)


def _checked_block_mask(block_mask: ArrayLike, inputs: Inputs, block_size: int) -> Bool[Array, "*#B #N Tb Sb"]:
    given = jnp.asarray(block_mask)
    if given.dtype != jnp.bool_:
        raise TypeError(f"block_mask: expected bool (True = attend), got {given.dtype}")
    *batch, T, heads, _ = inputs.query.shape
    shape = (*batch, heads, -(-T // block_size), -(-inputs.keys // block_size))
    full = given.reshape((1,) * (len(shape) - given.ndim) + given.shape) if given.ndim in (2, 3) else given
    axes = zip(full.shape[:-2], shape[:-2], strict=False)
    if full.ndim != len(shape) or full.shape[-2:] != shape[-2:] or any(n not in (1, whole) for n, whole in axes):
        raise ValueError(
            f"block_mask: expected shape (Tb, Sb) = {shape[-2:]}, (N, Tb, Sb) = {shape[-3:]} or (*B, N, Tb, Sb) = {shape} "
            f"for blocks of {block_size}, got {given.shape}"
        )
    return full


def _plan(block_mask: Bool[Array, "*#B #N Tb Sb"], inputs: Inputs) -> _Plan:
    """Every row of the block mask, in the group of those whose number of active blocks has as many binary digits."""
    batch, heads, kv_heads = inputs.query.shape[:-3], inputs.query.shape[-2], inputs.key.shape[-2]
    *mask_batch, mask_heads, Tb, Sb = block_mask.shape
    by_batch = any(n != 1 for n in mask_batch)
    if by_batch:
        block_mask, mask_heads = jnp.broadcast_to(block_mask, (*batch, heads, Tb, Sb)), heads
    matrices = block_mask.reshape(math.prod(block_mask.shape[:-2]), Tb, Sb).tolist()
    share = heads // kv_heads if mask_heads > 1 else 1
    active = [[n // share * Sb + j for j in range(Sb) if row[j]] for n, rows in enumerate(matrices) for row in rows]
    levels: dict[int, list[int]] = {}
    for row, blocks in enumerate(active):
        levels.setdefault(len(blocks).bit_length(), []).append(row)
    groups = [_group(rows, [active[row] for row in rows]) for rows in levels.values()] or [_group([], [])]
    places = {row: place for place, row in enumerate(row for rows in levels.values() for row in rows)}
    return _Plan(groups, jnp.array([places[row] for row in range(len(active))], jnp.int32), len(matrices), by_batch)


def _group(rows: list[int], blocks: list[list[int]]) -> _Group:
    """Rows filled up to the same number of blocks, with ones that are not active."""
    most = max(map(len, blocks), default=0)
    filled = [row + row[:1] * (most - len(row)) for row in blocks]
    active = [[n < len(row) for n in range(most)] for row in blocks]
    shape = (len(rows), most)
    return _Group(jnp.array(rows, jnp.int32), jnp.array(filled, jnp.int32).reshape(shape), jnp.array(active, bool).reshape(shape))


def _by_batch_entry(inputs: Inputs, plan: _Plan, block_size: int, is_causal: bool) -> Float[Array, "*B T N V"]:
    """Batch entries with masks of their own are computed as so many more heads."""
    *batch, T, heads, _ = inputs.query.shape
    axes = inputs.batch_axes

    def as_heads(x: Array) -> Array:
        x = jnp.moveaxis(x, axes, 0)
        return x.reshape(len(x), math.prod(x.shape[1 : axes + 2]), *x.shape[axes + 2 :])

    offset, lengths = (jnp.repeat(jnp.broadcast_to(x, batch).reshape(-1), heads) for x in (inputs.offset, inputs.lengths))
    folded = inputs.with_keys(as_heads)._replace(query=as_heads(inputs.query), offset=offset, lengths=lengths)
    context = _by_head(folded, plan.groups, plan.order, plan.units, block_size, is_causal)
    return jnp.moveaxis(context.reshape(T, *batch, heads, context.shape[-1]), 0, axes)


@partial(jax.jit, static_argnames=("units", "block_size", "is_causal"))
def _by_head(
    inputs: Inputs, groups: list[_Group], order: Int[Array, " rows"], units: int, block_size: int, is_causal: bool
) -> Float[Array, "*B T N V"]:
    """Attention of `units` groups of heads, each with rows of its own; offset and lengths are [*#B #units]."""
    *batch, T, heads, _ = inputs.query.shape
    axis, Tb = inputs.batch_axes, -(-T // block_size)
    in_rows = inputs.with_keys(lambda x: _in_rows(x, axis, block_size, x.shape[axis + 1] if units > 1 else 1))
    in_rows = in_rows._replace(query=_in_rows(inputs.query, axis, block_size, units))
    contexts = [_attend_group(in_rows, group, units, Tb, -(-inputs.keys // block_size), is_causal) for group in groups]
    context = jnp.take(jnp.concatenate(contexts, axis=axis), order, axis=axis, mode="clip")
    # [*B units Tb block n V] with n heads in a unit -> [*B Tb block units n V].
    context = context.reshape(*batch, units, Tb, block_size, heads // units, context.shape[-1])
    context = jnp.moveaxis(context, axis, axis + 2)
    return unsplit(context.reshape(*batch, Tb, block_size, heads, context.shape[-1]), axis, T)


def _attend_group(inputs: Inputs, group: _Group, units: int, Tb: int, Sb: int, is_causal: bool) -> Float[Array, "*B R C n V"]:
    axis = inputs.batch_axes - 1
    block_size = inputs.queries
    within = jnp.arange(block_size, dtype=jnp.int32)
    row, unit = group.rows % max(Tb, 1), group.rows // max(Tb, 1)
    offset, lengths = (
        jnp.broadcast_to(x, (*x.shape[:-1], units))[..., unit][..., None] for x in (inputs.offset, inputs.lengths)
    )  # fmt: skip
    query_positions = (row[:, None] * block_size + within) + offset
    key_positions = (group.blocks % max(Sb, 1))[..., None] * block_size + within
    key_positions = key_positions.reshape(len(row), group.blocks.shape[1] * block_size)
    mask = (jnp.repeat(group.active, block_size, axis=-1) & (key_positions < lengths))[..., None, :]
    if is_causal:
        mask = mask & (key_positions[..., None, :] <= query_positions[..., None])

    def take_keys(x: Array) -> Array:
        x = jnp.take(x, group.blocks.reshape(-1), axis=axis, mode="clip")
        return x.reshape(*x.shape[:axis], len(row), group.blocks.shape[1] * block_size, *x.shape[axis + 2 :])

    taken = inputs.with_keys(take_keys)._replace(query=jnp.take(inputs.query, group.rows, axis=axis, mode="clip"))
    return attend(taken, mask).context


def _in_rows(x: Array, axis: int, block_size: int, units: int) -> Array:
    """[*B n N ...] -> [*B units * ceil(n / block_size), block_size, N / units, ...]: the blocks of each unit of heads."""
    x = split(x, axis, block_size)
    before, blocks, heads, rest = x.shape[:axis], x.shape[axis], x.shape[axis + 2], x.shape[axis + 3 :]
    x = jnp.moveaxis(x.reshape(*before, blocks, block_size, units, heads // units, *rest), axis + 2, axis)
    return x.reshape(*before, units * blocks, block_size, heads // units, *rest)
