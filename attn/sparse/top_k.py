"""Top-k attention (Gupta et al. 2021, section 2).

    context_i = softmax over the k largest of (q_i K^T) times their values

Names: the paper's Q, K, V are query, key, value; its chunk of queries is a block of `block_size`.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from attn.dense import dense_scores
from attn.dot_product import dot_product_attention
from attn.isolation import finite_or_zero, has_nonfinite
from attn.options import Lengths
from attn.shapes import boolean_mask, positive
from attn.sparse.parts import BLOCK_SIZE, Inputs, checked, split, unsplit


def top_k_attention(
    query: Annotated[ArrayLike, "*B T N H"],
    key: Annotated[ArrayLike, "*B S K H"],
    value: Annotated[ArrayLike, "*B S K V"],
    *,
    k: int,
    is_causal: bool = False,
    query_offset: Lengths = 0,
    mask: Annotated[ArrayLike, "*B N T S"] | None = None,
    key_lengths: Lengths | None = None,
    scale: ArrayLike | None = None,
    softcap: ArrayLike | None = None,
    block_size: int = BLOCK_SIZE,
) -> Float[Array, "*B T N V"]:
    """Attention of each query to the k keys with the largest scores among those it may see.

        weights_ij = exp(score_ij) / sum of exp(score_il) over the k largest,   for j among them

    Of equal scores the one with the lower index comes first.  With k >= S this is full attention.

    Equal to `dot_product_attention` under the mask of the keys selected, in value and gradient: the selection itself has
    none.  Every score is computed, once, but only block_size S of them are held at a time (memory T k + block_size (S + k H)),
    and the backward pass meets the selected keys only.

    Args:
        query: [*B T N H].
        key: [*B S K H]; N is a multiple of K, and query head n meets key head n // (N // K).
        value: [*B S K V].
        k: how many keys each query attends to; those that see fewer attend to all they see.
        is_causal: query i sees the keys j <= i + query_offset.
        query_offset: absolute position of query 0, one integer or one for each batch entry [*B].
        mask: Boolean, True = attend, [*B N T S] with each axis full or 1.
        key_lengths: integers [*B] or a scalar; later keys are masked.
        scale: 1/sqrt(H) if not given.
        softcap: scores become softcap tanh(scores / softcap).
        block_size: queries computed together; the result does not depend on it.

    Returns:
        Context [*B T N V] in the dtype of `value`; 0 for a query that sees nothing.  A key that holds NaN or Inf has no
        order, so every query that sees it selects it.

    Raises:
        TypeError: a mask that is not Boolean, an array of the wrong kind of dtype.
        ValueError: shapes that do not fit together, k or block_size < 1, softcap <= 0.

    >>> import jax.numpy as jnp
    >>> query, key = jnp.ones((1, 1, 1)), jnp.array([1.0, 3.0, 3.0, 2.0])[:, None, None]
    >>> top_k_attention(query, key, jnp.eye(4)[:, None], k=2)[0, 0]
    Array([0. , 0.5, 0.5, 0. ], dtype=float32)

    Reference: Gupta, Dar, Goodman, Ciprut, Berant. Memory-efficient transformers via top-k attention. 2021, section 2.
    """
    inputs = checked(
        query, key, value, query_offset=query_offset, key_lengths=key_lengths, scale=scale, softcap=softcap
    )  # fmt: skip
    *batch, T, heads, _ = inputs.query.shape
    if mask is not None:
        mask = boolean_mask(mask, "*B N T S", (*batch, heads, T, inputs.keys))
    context = _top_k(inputs, mask, positive("k", k), is_causal, positive("block_size", block_size))
    return context.astype(jnp.asarray(value).dtype)


@partial(jax.jit, static_argnames=("k", "is_causal", "block_size"))
def _top_k(
    inputs: Inputs, mask: Bool[Array, "*#B #N #T #S"] | None, k: int, is_causal: bool, block_size: int
) -> Float[Array, "*B T N V"]:
    T, axis = inputs.queries, inputs.batch_axes
    block_size = max(min(block_size, T), 1)
    query = jnp.moveaxis(split(inputs.query, axis, block_size), axis, 0)
    first = block_size * jnp.arange(len(query), dtype=jnp.int32)
    if mask is not None and mask.shape[-2] == T:
        mask = jnp.moveaxis(split(mask, axis + 1, block_size), axis + 1, 0)
    elif mask is not None:
        mask = jnp.broadcast_to(mask, (len(query), *mask.shape))
    fixed = jax.lax.stop_gradient(inputs)
    selection = jax.lax.map(lambda block: _select(fixed, *block, k, is_causal), (jax.lax.stop_gradient(query), first, mask))
    # Gathered keys and values are k times as large as the queries: the backward pass gathers them again.
    attend_block = jax.checkpoint(lambda block: _attend_selected(inputs, *block))
    context = jnp.moveaxis(jax.lax.map(attend_block, (query, *selection)), 0, axis)
    return unsplit(context, axis, T)


def _select(
    inputs: Inputs,
    query: Float[Array, "*B C N H"],
    first: Int[Array, ""],
    mask: Bool[Array, "*#B #N #C #S"] | None,
    k: int,
    is_causal: bool,
) -> tuple[Int[Array, "*B N C k"], Bool[Array, "*B N C k"]]:
    """The k best keys of a block of queries that begins at row `first`, and which of them the query may see."""
    positions = jnp.arange(inputs.keys, dtype=jnp.int32)
    seen = (positions < inputs.lengths[..., None])[..., None, None, :]
    if is_causal:
        rows = inputs.offset[..., None] + first + jnp.arange(query.shape[-3], dtype=jnp.int32)
        seen = seen & (positions <= rows[..., None])[..., None, :, :]
    if mask is not None:
        seen = seen & mask
    dtype = inputs.value.dtype
    scores = dense_scores(finite_or_zero(query), inputs.key, None, seen, inputs.scale, inputs.softcap, dtype, None)
    bad = jnp.repeat(jnp.swapaxes(has_nonfinite(inputs.key), -2, -1), query.shape[-2] // inputs.key.shape[-2], axis=-2)
    scores = jnp.where(bad[..., None, :], jnp.finfo(dtype).max, scores)
    scores = jnp.where(seen, scores, jnp.finfo(dtype).min)
    _, index = jax.lax.top_k(scores, min(k, inputs.keys))
    return index, jnp.take_along_axis(jnp.broadcast_to(seen, scores.shape), index, axis=-1, mode="clip")


def _attend_selected(
    inputs: Inputs, query: Float[Array, "*B C N H"], index: Int[Array, "*B N C k"], seen: Bool[Array, "*B N C k"]
) -> Float[Array, "*B C N V"]:
    """Attention of each query, as a batch entry of its own, to the keys it selected."""
    *batch, heads, count, k = index.shape
    kv_heads = inputs.key.shape[-2]

    def take(x: Float[Array, "*B S K X"]) -> Float[Array, "*B N C k 1 X"]:
        rows = index.reshape(*batch, kv_heads, heads // kv_heads * count * k, 1)
        taken = jnp.take_along_axis(jnp.swapaxes(x, -3, -2), rows, axis=-2, mode="clip")
        return taken.reshape(*batch, heads, count, k, 1, x.shape[-1])

    alone = inputs.with_keys(take)._replace(query=jnp.swapaxes(query, -3, -2)[..., None, None, :])
    mask = seen[..., None, None, :]
    context = dot_product_attention(
        alone.query, alone.key, alone.value, mask=mask, scale=inputs.scale, softcap=inputs.softcap, implementation="dense"
    )
    return jnp.swapaxes(context[..., 0, 0, :], -3, -2)
