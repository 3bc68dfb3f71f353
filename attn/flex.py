"""FlexAttention: attention whose scores and mask are written as functions of one pair (Dong et al. 2024).

    score_mod(score, b, h, q_idx, kv_idx) -> score          mask_mod(b, h, q_idx, kv_idx) -> bool

on scalars: the score of one query and key, and the indices of its batch entry, head, query and key.

    scores = score_mod(scale Q K^T),   weights = softmax over the keys that mask_mod and block_mask allow,   context = weights V

Names: the paper's mods are ours (`attn.mods` has ready-made ones); its block mask is `attn.BlockMask`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from attn.block_mask import BlockMask, create_block_mask
from attn.blocks import At, Blocks, choose_blocks, key_positions, query_positions
from attn.blockwise import Plan
from attn.dense import dense_attention, dense_lse
from attn.dot_product_blocks import attend_in_blocks
from attn.mods import MaskMod, ScoreMod
from attn.mods.rule import Rule, hoisted
from attn.options import checked_arrays, checked_scale
from attn.shapes import compute_dtype

IMPLEMENTATIONS = ("auto", "blockwise")


def flex_attention(
    query: Annotated[ArrayLike, "*B T N H"],
    key: Annotated[ArrayLike, "*B S K H"],
    value: Annotated[ArrayLike, "*B S K V"],
    *,
    score_mod: ScoreMod | None = None,
    mask_mod: MaskMod | None = None,
    block_mask: BlockMask | None = None,
    scale: ArrayLike | None = None,
    implementation: str = "auto",
    block_sizes: Sequence[int] | None = None,
) -> Float[Array, "*B T N V"]:
    """softmax(score_mod(scale Q K^T)) V over the pairs that mask_mod and block_mask allow, in memory O(T + S).

    Gradients flow to query, key, value, scale, and every floating array that score_mod captures; they are exact, and the same
    bits each time.  A query that may attend to nothing has context 0.

    Args:
        query: [*B T N H].
        key: [*B S K H]; N is a multiple of K, and query head n meets key head n // (N // K).
        value: [*B S K V].
        score_mod: (score, b, h, q_idx, kv_idx) -> score, of scalars.  b counts through all batch axes in C order.
        mask_mod: (b, h, q_idx, kv_idx) -> bool, True = attend.  Without a block mask one is made of it, at each call.
        block_mask: see `create_block_mask`; blocks without any allowed pair cost nothing.  With both, both hold.
        scale: 1/sqrt(H) if not given.
        implementation: "blockwise", which "auto" stands for.
        block_sizes: (queries, keys) of a block at most; chosen by the shapes if not given.

    Returns:
        Context [*B T N V] in the dtype of `value`, computed in float32 or wider.

    Raises:
        TypeError: a mod that returns the wrong type; an array of the wrong kind of dtype.
        ValueError: shapes that do not fit together, a block mask of other lengths, an unknown implementation.

    >>> import jax.numpy as jnp
    >>> from attn import mods
    >>> x = jnp.array([[[1.0, 0.0]], [[0.0, 1.0]]])   # T = 2, one head, H = 2
    >>> flex_attention(x, x, x, mask_mod=mods.causal(), scale=0.0)[:, 0]
    Array([[1. , 0. ],
           [0.5, 0.5]], dtype=float32)

    Reference: Dong, Feng, Guessous, Liang, He. Flex Attention: a programming model for generating optimized attention
    kernels. 2024.
    """
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"implementation: expected one of {', '.join(map(repr, IMPLEMENTATIONS))}, got {implementation!r}")
    query, key, value = checked_arrays(query, key, value)
    *batch, T, N, _ = query.shape
    B, S = prod(batch), key.shape[-3]
    modify, floats, others = _score_rule(score_mod, compute_dtype(query, key, value))
    masks = []
    if block_mask is not None:
        block_mask.expect(B, N, T, S)
        masks.append(block_mask)
    if mask_mod is not None:
        if block_mask is None and 0 not in (B, N, T, S):
            block_mask = create_block_mask(mask_mod, T, S, batch=B, heads=N)
            masks = [block_mask]
        elif block_mask is not None:
            masks.append(_rule_of_mask(mask_mod, (B, N, T, S)))
    return _flex(
        query, key, value, floats, others, tuple(masks), checked_scale(scale, query), modify=modify,
        block_sizes=None if block_sizes is None else tuple(block_sizes),
    )  # fmt: skip
