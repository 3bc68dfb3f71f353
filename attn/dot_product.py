"""Scaled dot-product attention (Vaswani et al. 2017, section 3.2.1).

    scores  = scale Q K^T + bias          [*B N T S]
    weights = softmax(scores)             over the keys that the masks allow
    context = weights V                   eq. 1

In this order: scale query -> q . k -> + bias -> softcap -> mask -> softmax -> dropout -> . v.  One meaning for every
implementation; `select_implementation` says which one "auto" takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from attn.dense import dense_attention, dense_lse, dense_weights
from attn.masks import causal_mask, padding_mask, segment_mask, sliding_window_mask
from attn.shapes import boolean_mask, broadcastable, expect, floating, integers, is_traced, per_batch

Lengths = Annotated[ArrayLike, "*B"] | Sequence[int]
Window = int | Sequence[int | None]

IMPLEMENTATIONS = ("auto", "dense")


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
    block_sizes: Any = None,
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
        implementation: "dense" or "auto" (see `select_implementation`).
        block_sizes: for implementations that work in blocks; "dense" has none.
        precision: of the matrix products, as in `jax.lax.dot_general`.

    Returns:
        Context [*B T N V] in the dtype of `value`, computed in float32 or wider.

    Raises:
        TypeError: a mask that is not Boolean, an array of the wrong kind of dtype.
        ValueError: shapes that do not fit together, softcap <= 0, a dropout rate outside [0, 1) or without key, segment ids
            of one side only, a negative window, an unknown implementation.

    >>> import jax.numpy as jnp
    >>> x = jnp.array([[[1.0, 0.0]], [[0.0, 1.0]]])   # T = 2, one head, H = 2
    >>> dot_product_attention(x, x, x, is_causal=True, scale=0.0)[:, 0]
    Array([[1. , 0. ],
           [0.5, 0.5]], dtype=float32)

    Reference: Vaswani et al. Attention is all you need. 2017, eq. 1.
    """
    _check_implementation(implementation, block_sizes)
    query, key, value = _checked(query, key, value)
    mask = _every_mask(
        query, key, mask, is_causal, query_offset, window, query_lengths, key_lengths, query_segment_ids, key_segment_ids
    )
    context, _, _ = dense_attention(
        query, key, value, bias=_checked_bias(bias, query, key), mask=mask, scale=_checked_scale(scale, query),
        softcap=_checked_softcap(softcap), dropout_rate=dropout_rate,
        dropout_key=_active_dropout_key(dropout_rate, dropout_key), precision=precision,
    )  # fmt: skip
    return context.astype(value.dtype)


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
    block_sizes: Any = None,
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
    _check_implementation(implementation, block_sizes)
    query, key, value = _checked(query, key, value)
    mask = _every_mask(
        query, key, mask, is_causal, query_offset, window, query_lengths, key_lengths, query_segment_ids, key_segment_ids
    )
    context, total, peak = dense_attention(
        query, key, value, bias=_checked_bias(bias, query, key), mask=mask, scale=_checked_scale(scale, query),
        softcap=_checked_softcap(softcap), dropout_rate=dropout_rate,
        dropout_key=_active_dropout_key(dropout_rate, dropout_key), precision=precision,
    )  # fmt: skip
    return context.astype(value.dtype), dense_lse(key, mask, total, peak)


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
    query, key, _ = _checked(query, key, key)
    mask = _every_mask(
        query, key, mask, is_causal, query_offset, window, query_lengths, key_lengths, query_segment_ids, key_segment_ids
    )
    return dense_weights(
        query, key, bias=_checked_bias(bias, query, key), mask=mask, scale=_checked_scale(scale, query),
        softcap=_checked_softcap(softcap), precision=precision,
    )  # fmt: skip


def select_implementation(query_length: int, key_length: int) -> str:
    """The implementation that "auto" stands for: a pure rule of the shapes.

    Args:
        query_length: T.
        key_length: S.

    Returns:
        "dense", for every length.

    >>> select_implementation(128, 128)
    'dense'
    """
    return "dense"


def _every_mask(
    query: Array,
    key: Array,
    mask: ArrayLike | None,
    is_causal: bool,
    query_offset: Lengths,
    window: Window | None,
    query_lengths: Lengths | None,
    key_lengths: Lengths | None,
    query_segment_ids: ArrayLike | None,
    key_segment_ids: ArrayLike | None,
) -> Bool[Array, "..."] | None:
    """The AND of all masks given, of the rank of the scores with axes full or 1; None when none is given."""
    *batch, T, N, _ = query.shape
    S = key.shape[-3]
    offset = per_batch("query_offset", query_offset, batch)
    masks = []
    if mask is not None:
        masks.append(boolean_mask(mask, "*B N T S", (*batch, N, T, S)))
    if is_causal:
        masks.append(_with_heads(causal_mask(T, S, query_offset=offset), batch))
    if window is not None:
        left, right = _sides(window)
        masks.append(_with_heads(sliding_window_mask(T, S, left=left, right=right, query_offset=offset), batch))
    if query_lengths is not None:
        lengths = per_batch("query_lengths", query_lengths, batch)
        masks.append(_with_heads(padding_mask(lengths, T)[..., :, None], batch))
    if key_lengths is not None:
        lengths = per_batch("key_lengths", key_lengths, batch)
        masks.append(_with_heads(padding_mask(lengths, S)[..., None, :], batch))
    if query_segment_ids is not None or key_segment_ids is not None:
        masks.append(_segments(query_segment_ids, key_segment_ids, batch, T, S)[..., None, :, :])
    if not masks:
        return None
    combined = masks[0]
    for further in masks[1:]:
        combined = combined & further
    return combined


def _with_heads(mask: Bool[Array, "*#B #T #S"], batch: Sequence[int]) -> Bool[Array, "..."]:
    """A mask over positions with a head axis, and with batch axes of length 1 where it has none."""
    missing = len(batch) - (mask.ndim - 2)
    return mask.reshape((1,) * missing + mask.shape[:-2] + (1,) + mask.shape[-2:])


def _segments(query_ids, key_ids, batch: Sequence[int], T: int, S: int) -> Bool[Array, "..."]:
    if query_ids is None or key_ids is None:
        missing = "query_segment_ids" if query_ids is None else "key_segment_ids"
        raise ValueError(f"{missing}: expected segment ids for queries and keys, got None")
    query_ids, key_ids = integers("query_segment_ids", query_ids), integers("key_segment_ids", key_ids)
    expect("query_segment_ids", query_ids, "*B T", (*batch, T))
    expect("key_segment_ids", key_ids, "*B S", (*batch, S))
    return segment_mask(query_ids, key_ids)


def _sides(window: Window) -> Sequence[int | None]:
    sides = window if isinstance(window, Sequence) else (window, window)
    if len(sides) != 2 or not all(side is None or _is_count(side) for side in sides):
        raise ValueError(f"window: expected (left, right), each an integer >= 0 or None, or one integer, got {window!r}")
    return sides


def _is_count(side: Any) -> bool:
    return hasattr(side, "__index__") and not isinstance(side, bool) and side >= 0


def _checked(query: ArrayLike, key: ArrayLike, value: ArrayLike) -> tuple[Array, Array, Array]:
    query, key, value = (
        floating("query", query, "*B T N H"),
        floating("key", key, "*B S K H"),
        floating("value", value, "*B S K V"),
    )
    *batch, _, heads, width = query.shape
    *_, S, kv_heads, _ = key.shape
    expect("key", key, "*B S K H", (*batch, S, kv_heads, width))
    expect("value", value, "*B S K V", (*batch, S, kv_heads, value.shape[-1]))
    if kv_heads == 0 or heads % kv_heads:
        raise ValueError(f"query: expected shape (*B, T, N, H) with N a multiple of K = {kv_heads}, got {query.shape}")
    return query, key, value


def _checked_bias(bias: ArrayLike | None, query: Array, key: Array) -> Array | None:
    if bias is None:
        return None
    *batch, T, N, _ = query.shape
    return broadcastable("bias", floating("bias", bias, "*B"), "*B N T S", (*batch, N, T, key.shape[-3]))


def _checked_scale(scale: ArrayLike | None, query: Array) -> ArrayLike:
    if scale is None:
        return max(query.shape[-1], 1) ** -0.5
    if jnp.ndim(scale):
        raise ValueError(f"scale: expected a scalar, got shape {jnp.shape(scale)}")
    return scale


def _checked_softcap(softcap: ArrayLike | None) -> ArrayLike | None:
    if softcap is None:
        return None
    if jnp.ndim(softcap):
        raise ValueError(f"softcap: expected a scalar, got shape {jnp.shape(softcap)}")
    if not is_traced(softcap) and not softcap > 0:
        raise ValueError(f"softcap: expected a number > 0, or None for no cap, got {softcap}")
    return softcap


def _active_dropout_key(rate: ArrayLike, key: Array | None) -> Array | None:
    """The key, or None when nothing is to be dropped."""
    if not is_traced(rate):
        if not 0 <= rate < 1:
            raise ValueError(f"dropout_rate: expected a number in [0, 1), got {rate}")
        if rate == 0:
            return None
    if key is None:
        raise ValueError(f"dropout_key: expected a random key for dropout_rate = {rate}, got None")
    return key


def _check_implementation(implementation: str, block_sizes: Any) -> None:
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"implementation: expected one of {', '.join(map(repr, IMPLEMENTATIONS))}, got {implementation!r}")
    if block_sizes is not None:
        raise ValueError(f"block_sizes: expected None for the dense implementation, which has no blocks, got {block_sizes!r}")
