"""Mask mods, each with the matrix that it makes (x = attend), and how they combine."""

from __future__ import annotations

from functools import reduce
from types import EllipsisType

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

from attn.distance import Offset
from attn.mods.mod import MaskMod, Mod, distance_of, entry, functions, per_batch
from attn.shapes import integers, positive, size


def causal(query_offset: Offset = 0) -> MaskMod:
    """j <= p: `attn.causal_mask`.  For 3 queries, 4 keys (x = attend)::

        x . . .
        x x . .
        x x x .

    Raises:
        TypeError: an offset that is no integer.
        ValueError: an offset that is neither a scalar nor [B].

    >>> [bool(causal(query_offset=1)(0, 0, 1, j)) for j in range(4)]
    [True, True, True, False]

    Reference: Vaswani et al. Attention is all you need. 2017, section 3.2.3.
    """
    return Mod(_causal, per_batch("query_offset", query_offset))


def _causal(offset, b, h, q_idx, kv_idx):
    return distance_of(offset, b, q_idx, kv_idx) <= 0


def sliding_window(left: int | None, right: int | EllipsisType | None = ..., query_offset: Offset = 0) -> MaskMod:
    """-left <= j - p <= right: `attn.sliding_window_mask`, the key at the query's own position and left + right more.

    None leaves a side open; one integer alone, sliding_window(w), is (w, w).  For 4 tokens, left = 1, right = 0::

        x . . .
        x x . .
        . x x .
        . . x x

    Raises:
        TypeError: an offset that is no integer.
        ValueError: a negative side, or an offset that is neither a scalar nor [B].

    >>> [bool(sliding_window(1, 0)(0, 0, 2, j)) for j in range(4)]
    [False, True, True, False]

    Reference: Beltagy, Peters, Cohan. Longformer: the long-document transformer. 2020, section 3.1.
    """
    return Mod(_sliding_window, *_sides(left, right), per_batch("query_offset", query_offset))


def _sliding_window(left, right, offset, b, h, q_idx, kv_idx):
    return _between(distance_of(offset, b, q_idx, kv_idx), left, right)


def _between(distance, left, right):
    """-left <= distance <= right, where None leaves a side open."""
    after_left = True if left is None else distance >= -left
    before_right = True if right is None else distance <= right
    return jnp.asarray(after_left) & before_right


def dilated(left: int | None, right: int | None, dilation: int, query_offset: Offset = 0) -> MaskMod:
    """j = p + m dilation for -left <= m <= right: `attn.dilated_mask`.  For 6 tokens, left = right = 1, dilation = 2::

        x . x . . .
        . x . x . .
        x . x . x .
        . x . x . x
        . . x . x .
        . . . x . x

    Raises:
        TypeError: an offset that is no integer.
        ValueError: a negative side, a dilation below 1, or an offset that is neither a scalar nor [B].

    >>> [bool(dilated(2, 0, 3)(0, 0, 6, j)) for j in range(7)]
    [True, False, False, True, False, False, True]

    Reference: Beltagy, Peters, Cohan. Longformer: the long-document transformer. 2020, section 3.1, "dilated sliding window".
    """
    return Mod(_dilated, *_sides(left, right), positive("dilation", dilation), per_batch("query_offset", query_offset))


def _dilated(left, right, dilation, offset, b, h, q_idx, kv_idx):
    distance = distance_of(offset, b, q_idx, kv_idx)
    return (distance % dilation == 0) & _between(distance // dilation, left, right)


def _sides(left: int | None, right: int | EllipsisType | None) -> list[int | None]:
    right = left if right is ... else right
    return [None if side is None else size(name, side) for name, side in (("left", left), ("right", right))]


def prefix_lm(prefix_length: Offset, query_offset: Offset = 0) -> MaskMod:
    """j <= p or j < prefix_length, one integer or one for each batch entry [B]: `attn.prefix_mask`.  For a prefix of 2::

        x x . .
        x x . .
        x x x .
        x x x x

    Raises:
        TypeError: lengths or an offset that are no integers.
        ValueError: lengths or an offset that are neither a scalar nor [B].

    >>> [bool(prefix_lm(2)(0, 0, 0, j)) for j in range(4)]
    [True, True, False, False]

    Reference: Raffel et al. Exploring the limits of transfer learning. JMLR 2020, section 3.2.1, "causal with prefix".
    """
    return Mod(_prefix_lm, per_batch("prefix_length", prefix_length), per_batch("query_offset", query_offset))


def _prefix_lm(length, offset, b, h, q_idx, kv_idx):
    return jnp.asarray(distance_of(offset, b, q_idx, kv_idx) <= 0) | (kv_idx < entry(length, b))


def document(segment_ids: ArrayLike, key_segment_ids: ArrayLike | None = None) -> MaskMod:
    """Query and key have the same id: `attn.segment_mask`.

    Ids [T] for all or [B T], those of keys [S] or [B S] and by default the same.  For ids (0, 0, 1)::

        x x .
        x x .
        . . x

    Raises:
        TypeError: ids that are no integers.
        ValueError: ids that are neither [T] nor [B T].

    >>> import jax.numpy as jnp
    >>> [bool(document(jnp.array([0, 0, 1]))(0, 0, 1, j)) for j in range(3)]
    [True, True, False]
    """
    query_ids = _ids("segment_ids", segment_ids, "T")
    return Mod(_document, query_ids, query_ids if key_segment_ids is None else _ids("key_segment_ids", key_segment_ids, "S"))


def _document(query_ids, key_ids, b, h, q_idx, kv_idx):
    return _of_token(query_ids, b, q_idx) == _of_token(key_ids, b, kv_idx)


def _of_token(ids: Array, b, idx):
    return ids[b, idx] if ids.ndim == 2 else ids[idx]


def _ids(name: str, value: ArrayLike, axis: str) -> Array:
    ids = integers(name, value)
    if ids.ndim not in (1, 2):
        raise ValueError(f"{name}: expected shape ({axis}) or (B, {axis}), got {ids.shape}")
    return ids


def global_tokens(num_global: int, query_offset: Offset = 0) -> MaskMod:
    """j < num_global or 0 <= p < num_global, to be joined to a window as in `attn.sliding_window_attention`::

        or_masks(sliding_window(left, right), global_tokens(num_global))

    Alone, for 4 tokens, num_global = 1::

        x x x x
        x . . .
        x . . .
        x . . .

    Raises:
        TypeError: an offset that is no integer.
        ValueError: a negative number, or an offset that is neither a scalar nor [B].

    >>> [bool(global_tokens(1)(0, 0, 2, j)) for j in range(4)]
    [True, False, False, False]

    Reference: Beltagy, Peters, Cohan. Longformer: the long-document transformer. 2020, section 3.1, "global attention".
    """
    return Mod(_global_tokens, size("num_global", num_global), per_batch("query_offset", query_offset))


def _global_tokens(num_global, offset, b, h, q_idx, kv_idx):
    position = jnp.asarray(q_idx + entry(offset, b))
    return (kv_idx < num_global) | ((position >= 0) & (position < num_global))


def and_masks(*mask_mods: MaskMod) -> MaskMod:
    """All of the mods hold; of none, always true.

    Raises:
        TypeError: a mod that is no function.

    >>> [bool(and_masks(causal(), sliding_window(1))(0, 0, 2, j)) for j in range(4)]
    [False, True, True, False]
    """
    return Mod(_and, *functions("mask_mods", mask_mods))


def _and(*mods_and_pair):
    *mods, b, h, q_idx, kv_idx = mods_and_pair
    return reduce(lambda allowed, mod: allowed & mod(b, h, q_idx, kv_idx), mods, jnp.array(True))


def or_masks(*mask_mods: MaskMod) -> MaskMod:
    """One of the mods holds; of none, never.

    Raises:
        TypeError: a mod that is no function.

    >>> [bool(or_masks(sliding_window(0), global_tokens(1))(0, 0, 2, j)) for j in range(4)]
    [True, False, True, False]
    """
    return Mod(_or, *functions("mask_mods", mask_mods))


def _or(*mods_and_pair):
    *mods, b, h, q_idx, kv_idx = mods_and_pair
    return reduce(lambda allowed, mod: allowed | mod(b, h, q_idx, kv_idx), mods, jnp.array(False))


def not_mask(mask_mod: MaskMod) -> MaskMod:
    """The mod does not hold.

    Raises:
        TypeError: a mod that is no function.

    >>> [bool(not_mask(causal())(0, 0, 1, j)) for j in range(4)]
    [False, False, True, True]
    """
    return Mod(_not, *functions("mask_mod", (mask_mod,)))


def _not(mod, b, h, q_idx, kv_idx):
    return ~jnp.asarray(mod(b, h, q_idx, kv_idx))
