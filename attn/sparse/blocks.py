"""Block-sparse attention: a Boolean matrix says which block of queries meets which block of keys.

Names: in Gray et al. (2017) the matrix is the layout of the block-sparse product; in Zaheer et al. (2020, section 2 and
Appendix D) it is the blockified adjacency matrix A, of window, global and random blocks.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from attn.blocks import padded
from attn.options import Lengths
from attn.shapes import positive
from attn.sparse.pairs import BlockStructure
from attn.sparse.parts import Inputs, attend_in_blocks, checked

# Smaller blocks cost more to visit than to compute; larger ones leave the cache.
SMALLEST_VISIT, LARGEST_VISIT = 64, 512


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

    Equal to `dot_product_attention` under that mask, in value and gradient, in time proportional to the number of active blocks,
    for each key/value head by itself where the matrix differs by head, and in memory T + S.  Blocks smaller than 64 are visited
    several at once, if one of them is active.

    Args:
        query: [*B T N H].
        key: [*B S K H]; N is a multiple of K, and query head n meets key head n // (N // K).
        value: [*B S K V].
        block_mask: Boolean, True = attend, Tb = ceil(T / block_size), Sb = ceil(S / block_size): [Tb Sb] for all heads,
            [N Tb Sb] by head, or [*B N Tb Sb] with each of its first axes full or 1.
        block_size: queries, and keys, of a block.
        is_causal: query i sees the keys j <= i + query_offset only.
        query_offset: absolute position of query 0, one integer or one for each batch entry [*B].
        key_lengths: integers [*B] or a scalar; later keys are masked.
        scale: 1/sqrt(H) if not given.
        softcap: scores become softcap tanh(scores / softcap).

    Returns:
        Context [*B T N V] in the dtype of `value`; 0 for a query that sees nothing.

    Raises:
        TypeError: a block mask that is not Boolean, an array of the wrong kind of dtype.
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
    given = _checked_block_mask(block_mask, inputs, block_size)
    return _block_sparse(inputs, given, block_size, bool(is_causal)).astype(jnp.asarray(value).dtype)


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


@partial(jax.jit, static_argnames=("block_size", "is_causal"))
def _block_sparse(
    inputs: Inputs, block_mask: Bool[Array, "*#B #N Tb Sb"], block_size: int, is_causal: bool
) -> Float[Array, "*B T N V"]:
    *batch, T, N, _ = inputs.query.shape
    K, axis = inputs.key.shape[-2], inputs.batch_axes
    *own, heads, Tb, Sb = block_mask.shape
    if math.prod(own) != 1:
        block_mask = jnp.broadcast_to(block_mask, (*batch, heads, Tb, Sb))
    table = block_mask.reshape(math.prod(block_mask.shape[:-3]), *((K, N // K) if heads == N else (1, 1)), Tb, Sb)
    # Whole blocks of queries and keys, so that those of the computation begin where those of the matrix do.
    whole = inputs.with_keys(lambda x: padded(x, axis, block_size))._replace(query=padded(inputs.query, axis, block_size))
    arrays = whole.structure_arrays() | {"block_mask": table}
    structure, size = BlockStructure(block_size, is_causal), _visited_size(block_size)
    context, _ = attend_in_blocks(whole, structure, arrays, (size, size), heads_apart=table.shape[1] > 1)
    return jax.lax.slice_in_dim(context, 0, T, axis=axis)


def _visited_size(block_size: int) -> int:
    """Whole small blocks, or equal parts of a large one."""
    return block_size * max(SMALLEST_VISIT // block_size, 1) if block_size <= LARGEST_VISIT else _part(block_size)


def _part(block_size: int) -> int:
    return -(-block_size // -(-block_size // LARGEST_VISIT))
