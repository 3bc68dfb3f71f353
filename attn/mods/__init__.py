"""Ready-made mods: functions of one pair of a query and a key, for `flex_attention` and `create_block_mask`.

    mask_mod(b, h, q_idx, kv_idx) -> bool               True = attend
    score_mod(score, b, h, q_idx, kv_idx) -> score      of the scaled score

on integer scalars: batch entry, query head, and the index of query and key, as in FlexAttention.  Each function here returns
such a mod.  A `query_offset` is the absolute position of query 0, one integer or one for each batch entry [B]; p is the
position of query i, i + query_offset.

Arrays given (slopes, tables, ids, lengths) are indexed within the mod, so they may be traced and get gradients.  Build a mod
once and keep it: what was compiled for a mod is found again for an equal one, and two mods are equal when they come from the
same function with equal numbers and the very same arrays (`causal() == causal()`, as nothing is given but numbers).

masks: who sees whom
    causal, sliding_window, dilated, prefix_lm, document, global_tokens
    and_masks, or_masks, not_mask
scores: what is added to a score, or becomes of it
    alibi, relative_table, t5, softcap
    compose
"""

from attn.mods.masks import (
    and_masks,
    causal,
    dilated,
    document,
    global_tokens,
    not_mask,
    or_masks,
    prefix_lm,
    sliding_window,
)
from attn.mods.mod import MaskMod, Mod, ScoreMod
from attn.mods.scores import alibi, compose, relative_table, softcap, t5

__all__ = [
    "MaskMod",
    "Mod",
    "ScoreMod",
    "alibi",
    "and_masks",
    "causal",
    "compose",
    "dilated",
    "document",
    "global_tokens",
    "not_mask",
    "or_masks",
    "prefix_lm",
    "relative_table",
    "sliding_window",
    "softcap",
    "t5",
]
