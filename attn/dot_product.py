"""Scaled dot-product attention (Vaswani et al. 2017, section 3.2.1).

    scores  = scale Q K^T + bias          [*B N T S]
    weights = softmax(scores)             over the keys that the masks allow
    context = weights V                   eq. 1

In this order: scale query -> q . k -> + bias -> softcap -> mask -> softmax -> dropout -> . v.  One meaning for every
implementation; `attn.select_implementation` says which one "auto" takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import jax
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from attn.cudnn import Options, cudnn_attention, misfits
from attn.dense import dense_attention, dense_lse, dense_weights
from attn.dot_product_blocks import blockwise_attention, structure_of
from attn.options import (
    Lengths,
    Window,
    active_dropout_key,
    checked_arrays,
    checked_bias,
    checked_scale,
    checked_softcap,
    every_mask,
)
from attn.selection import chosen_implementation


def dot_product_attention(
    query: Annotated[ArrayLike, "*B T N H"],
    key: Annotated[ArrayLike, "*B S K H"],
    value: Annotated[ArrayLike, "*B S K V"],
    *,
    bias: Annotated[ArrayLike, "*B N T S"] | None = None,
    mask: Annotated[ArrayLike, "*B N T S"] | None = None,
    is_causal: bool = False,
    query_offset: Lengths = 0,
    window: Window | None = None,
    scale: ArrayLike | None = None,
    softcap: ArrayLike | None = None,
    query_lengths: Lengths | None = None,
    key_lengths: Lengths | None = None,
    query_segment_ids: Annotated[ArrayLike, "*B T"] | None = None,
    key_segment_ids: Annotated[ArrayLike, "*B S"] | None = None,
    dropout_rate: ArrayLike = 0.0,
    dropout_key: Array | None = None,
    implementation: str = "auto",
    block_sizes: Sequence[int] | None = None,
    precision: jax.lax.PrecisionLike = None,
) -> Float[Array, "*B T N V"]:
    """softmax(scale Q K^T + bias) V over the keys that every mask given allows.

    A query that may attend to nothing has context 0 and gives no gradient.  A masked key or value has no influence on the
    context or on any gradient of the queries that do not attend to it, not even as NaN.

    Args:
        query: [*B T N H].
        key: [*B S K H]; N is a multiple of K, and query head n meets key head n // (N // K) (grouped-query attention).
        value: [*B S K V].
        bias: added to the scaled scores, [*B N T S] with each axis full or 1.
        mask: Boolean, True = attend, [*B N T S] with each axis full or 1.
        is_causal: query i sees the keys j <= i + query_offset.
        query_offset: absolute position of query 0, one integer or one for each batch entry [*B].
        window: (left, right), keys seen before and after a query besides the one at its own position; None leaves a side
            open, one integer w is (w, w).
        scale: 1/sqrt(H) if not given.
        softcap: scores become softcap tanh(scores / softcap).
        query_lengths: integers [*B] or a scalar; later queries attend to nothing.
        key_lengths: integers [*B] or a scalar; later keys are masked.
        query_segment_ids, key_segment_ids: integers [*B T] and [*B S]; a query sees the keys of its own segment.
        dropout_rate: probability in [0, 1) that a weight is dropped, independently for each batch entry, head and pair.
        dropout_key: random key of the dropout.
        implementation: "dense", all scores at once; "blockwise", memory O(T + S); "cudnn", memory O(T + S) on CUDA devices,
            for the arrays and options of which cuDNN has the same meaning; "auto" (see `select_implementation` for both).
        block_sizes: (queries, keys) of a block at most, for "blockwise"; chosen by the shapes if not given.
        precision: of the matrix products, as in `jax.lax.dot_general`.

    Returns:
        Context [*B T N V] in the dtype of `value`, computed in float32 or wider.

    Raises:
        TypeError: a mask that is not Boolean, an array of the wrong kind of dtype.
        ValueError: shapes that do not fit together, softcap <= 0, a dropout rate outside [0, 1) or without key, segment ids
            of one side only, lengths beyond T or S, a negative window, an unknown implementation, "cudnn" without a CUDA device
            or with an argument it has no meaning for.

    >>> import jax.numpy as jnp
    >>> x = jnp.array([[[1.0, 0.0]], [[0.0, 1.0]]])   # T = 2, one head, H = 2
    >>> dot_product_attention(x, x, x, is_causal=True, scale=0.0)[:, 0]
    Array([[1. , 0. ],
           [0.5, 0.5]], dtype=float32)

    Reference: Vaswani et al. Attention is all you need. 2017, eq. 1.
    """
    context, _ = _attend(
        query, key, value, False, bias, mask, is_causal, query_offset, window, scale, softcap, query_lengths, key_lengths,
        query_segment_ids, key_segment_ids, dropout_rate, dropout_key, implementation, block_sizes, precision,
    )  # fmt: skip
    return context


def dot_product_attention_and_lse(
    query: Annotated[ArrayLike, "*B T N H"],
    key: Annotated[ArrayLike, "*B S K H"],
    value: Annotated[ArrayLike, "*B S K V"],
    *,
    bias: Annotated[ArrayLike, "*B N T S"] | None = None,
    mask: Annotated[ArrayLike, "*B N T S"] | None = None,
    is_causal: bool = False,
    query_offset: Lengths = 0,
    window: Window | None = None,
    scale: ArrayLike | None = None,
    softcap: ArrayLike | None = None,
    query_lengths: Lengths | None = None,
    key_lengths: Lengths | None = None,
    query_segment_ids: Annotated[ArrayLike, "*B T"] | None = None,
    key_segment_ids: Annotated[ArrayLike, "*B S"] | None = None,
    dropout_rate: ArrayLike = 0.0,
    dropout_key: Array | None = None,
    implementation: str = "auto",
    block_sizes: Sequence[int] | None = None,
    precision: jax.lax.PrecisionLike = None,
) -> tuple[Float[Array, "*B T N V"], Float[Array, "*B N T"]]:
    """`dot_product_attention`, and lse = log sum_j exp(score_j): what is needed to join results over parts of the keys.

    Args:
        query, key, value, and every option: as in `dot_product_attention`.

    Returns:
        Context [*B T N V], the same as without lse; lse [*B N T], natural log, float32 or wider, not affected by dropout,
        -inf (with gradient 0) for a query that may attend to nothing.

    Raises:
        TypeError, ValueError: as in `dot_product_attention`.

    >>> import jax.numpy as jnp
    >>> x = jnp.zeros((3, 1, 2))
    >>> context, lse = dot_product_attention_and_lse(x, x, x, is_causal=True)
    >>> lse.round(4)   # log 1, log 2, log 3
    Array([[0.    , 0.6931, 1.0986]], dtype=float32)

    Reference: Dao et al. FlashAttention. 2022, section 3.1.
    """
    return _attend(
        query, key, value, True, bias, mask, is_causal, query_offset, window, scale, softcap, query_lengths, key_lengths,
        query_segment_ids, key_segment_ids, dropout_rate, dropout_key, implementation, block_sizes, precision,
    )  # fmt: skip


def _attend(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    with_lse: bool,
    bias: ArrayLike | None,
    mask: ArrayLike | None,
    is_causal: bool,
    query_offset: Lengths,
    window: Window | None,
    scale: ArrayLike | None,
    softcap: ArrayLike | None,
    query_lengths: Lengths | None,
    key_lengths: Lengths | None,
    query_segment_ids: ArrayLike | None,
    key_segment_ids: ArrayLike | None,
    dropout_rate: ArrayLike,
    dropout_key: Array | None,
    implementation: str,
    block_sizes: Sequence[int] | None,
    precision: jax.lax.PrecisionLike,
) -> tuple[Array, Array | None]:
    query, key, value = checked_arrays(query, key, value)
    masks = (
        query, key, mask, is_causal, query_offset, window, query_lengths, key_lengths, query_segment_ids, key_segment_ids
    )  # fmt: skip
    options = {
        "bias": checked_bias(bias, query, key), "scale": checked_scale(scale, query), "softcap": checked_softcap(softcap),
        "dropout_rate": dropout_rate, "dropout_key": active_dropout_key(dropout_rate, dropout_key), "precision": precision,
    }  # fmt: skip
    unsupported = {
        "bias": bias, "mask": mask, "window": window, "softcap": softcap, "query_lengths": query_lengths,
        "key_lengths": key_lengths, "query_segment_ids": query_segment_ids, "key_segment_ids": key_segment_ids,
        "dropout_rate": None if options["dropout_key"] is None else dropout_rate, "block_sizes": block_sizes,
        "precision": precision,
    }  # fmt: skip
    alone = {"is_causal": is_causal, "query_offset": query_offset, "scale": options["scale"], "unsupported": unsupported}
    chosen = chosen_implementation(implementation, block_sizes, query, key, misfits(query, key, value, **alone))
    lse = None
    if chosen == "cudnn":
        context = cudnn_attention(query, key, value, options=Options(float(options["scale"]), bool(is_causal)))
    if chosen == "dense":
        every = every_mask(*masks)
        context, total, peak = dense_attention(query, key, value, mask=every, **options)
        lse = dense_lse(key, every, total, peak) if with_lse else None
    elif chosen == "blockwise" or with_lse:
        structure, masked, arrays = structure_of(*masks)
        in_blocks, lse = blockwise_attention(
            query,
            key,
            value,
            structure=structure,
            masked=masked,
            masks=arrays,
            block_sizes=None if block_sizes is None else tuple(block_sizes),
            **options,
        )
        context = in_blocks if chosen == "blockwise" else context
    return context.astype(value.dtype), lse


def dot_product_weights(
    query: Annotated[ArrayLike, "*B T N H"],
    key: Annotated[ArrayLike, "*B S K H"],
    *,
    bias: Annotated[ArrayLike, "*B N T S"] | None = None,
    mask: Annotated[ArrayLike, "*B N T S"] | None = None,
    is_causal: bool = False,
    query_offset: Lengths = 0,
    window: Window | None = None,
    scale: ArrayLike | None = None,
    softcap: ArrayLike | None = None,
    query_lengths: Lengths | None = None,
    key_lengths: Lengths | None = None,
    query_segment_ids: Annotated[ArrayLike, "*B T"] | None = None,
    key_segment_ids: Annotated[ArrayLike, "*B S"] | None = None,
    precision: jax.lax.PrecisionLike = None,
) -> Float[Array, "*B N T S"]:
    """The weights of `dot_product_attention`, of every head, without dropout.

    Args:
        query, key, and every option: as in `dot_product_attention`.

    Returns:
        Weights [*B N T S] in float32 or wider; each row sums to 1, or to 0 where nothing may be attended to.

    Raises:
        TypeError, ValueError: as in `dot_product_attention`.

    >>> import jax.numpy as jnp
    >>> x = jnp.zeros((3, 1, 2))
    >>> dot_product_weights(x, x, window=(1, 0))[0]
    Array([[1. , 0. , 0. ],
           [0.5, 0.5, 0. ],
           [0. , 0.5, 0.5]], dtype=float32)

    Reference: Vaswani et al. Attention is all you need. 2017, eq. 1.
    """
    query, key, _ = checked_arrays(query, key, key)
    mask = every_mask(
        query, key, mask, is_causal, query_offset, window, query_lengths, key_lengths, query_segment_ids, key_segment_ids
    )
    return dense_weights(
        query, key, bias=checked_bias(bias, query, key), mask=mask, scale=checked_scale(scale, query),
        softcap=checked_softcap(softcap), precision=precision,
    )  # fmt: skip
