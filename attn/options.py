"""What the options of dot-product attention mean, and the checks of its arguments.

Every mask given (mask, is_causal, window, lengths, segments) holds: `every_mask` is their AND.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool

from attn.masks import causal_mask, padding_mask, segment_mask, sliding_window_mask
from attn.shapes import boolean_mask, broadcastable, expect, floating, integers, is_traced, lengths_within, per_batch

Lengths = Annotated[ArrayLike, "*B"] | Sequence[int]
Window = int | Sequence[int | None]


def every_mask(
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
        left, right = sides(window)
        masks.append(_with_heads(sliding_window_mask(T, S, left=left, right=right, query_offset=offset), batch))
    if query_lengths is not None:
        lengths = lengths_within("query_lengths", query_lengths, batch, "T", T)
        masks.append(_with_heads(padding_mask(lengths, T)[..., :, None], batch))
    if key_lengths is not None:
        lengths = lengths_within("key_lengths", key_lengths, batch, "S", S)
        masks.append(_with_heads(padding_mask(lengths, S)[..., None, :], batch))
    if query_segment_ids is not None or key_segment_ids is not None:
        masks.append(segment_mask(*segment_ids(query_segment_ids, key_segment_ids, batch, T, S))[..., None, :, :])
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


def segment_ids(
    query_ids: ArrayLike | None, key_ids: ArrayLike | None, batch: Sequence[int], T: int, S: int
) -> tuple[Array, Array]:
    """Segment ids of queries and keys, once both are given and fit."""
    if query_ids is None or key_ids is None:
        missing = "query_segment_ids" if query_ids is None else "key_segment_ids"
        raise ValueError(f"{missing}: expected segment ids for queries and keys, got None")
    query_ids, key_ids = integers("query_segment_ids", query_ids), integers("key_segment_ids", key_ids)
    expect("query_segment_ids", query_ids, "*B T", (*batch, T))
    expect("key_segment_ids", key_ids, "*B S", (*batch, S))
    return query_ids, key_ids


def sides(window: Window) -> Sequence[int | None]:
    """(left, right) of a window, once each is a count or None."""
    sides = window if isinstance(window, Sequence) else (window, window)
    if len(sides) != 2 or not all(side is None or _is_count(side) for side in sides):
        raise ValueError(f"window: expected (left, right), each an integer >= 0 or None, or one integer, got {window!r}")
    return sides


def _is_count(side: Any) -> bool:
    return hasattr(side, "__index__") and not isinstance(side, bool) and side >= 0


def checked_arrays(query: ArrayLike, key: ArrayLike, value: ArrayLike) -> tuple[Array, Array, Array]:
    """Query, key and value as arrays that fit together."""
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


def checked_bias(bias: ArrayLike | None, query: Array, key: Array) -> Array | None:
    """The bias, once its rank is that of the scores."""
    if bias is None:
        return None
    *batch, T, N, _ = query.shape
    return broadcastable("bias", floating("bias", bias, "*B"), "*B N T S", (*batch, N, T, key.shape[-3]))


def checked_scale(scale: ArrayLike | None, query: Array) -> ArrayLike:
    """The scale, 1/sqrt(H) of the query if not given."""
    if scale is None:
        return max(query.shape[-1], 1) ** -0.5
    if jnp.ndim(scale):
        raise ValueError(f"scale: expected a scalar, got shape {jnp.shape(scale)}")
    return scale


def checked_softcap(softcap: ArrayLike | None) -> ArrayLike | None:
    """The cap, once it is a scalar and, where known, greater than 0."""
    if softcap is None:
        return None
    if jnp.ndim(softcap):
        raise ValueError(f"softcap: expected a scalar, got shape {jnp.shape(softcap)}")
    # Outside of any jit, where even the comparison of a constant is traced.
    with jax.ensure_compile_time_eval():
        if not is_traced(softcap) and not softcap > 0:
            raise ValueError(f"softcap: expected a number > 0, or None for no cap, got {softcap}")
    return softcap


def active_dropout_key(rate: ArrayLike, key: Array | None) -> Array | None:
    """The key, or None when nothing is to be dropped."""
    with jax.ensure_compile_time_eval():
        if not is_traced(rate):
            if not 0 <= rate < 1:
                raise ValueError(f"dropout_rate: expected a number in [0, 1), got {rate}")
            if rate == 0:
                return None
    if key is None:
        raise ValueError(f"dropout_key: expected a random key for dropout_rate = {rate}, got None")
    return key
