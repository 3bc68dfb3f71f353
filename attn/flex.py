"""FlexAttention: attention whose scores and mask are written as functions of one pair (Dong et al. 2024).

    score_mod(score, b, h, q_idx, kv_idx) -> score          mask_mod(b, h, q_idx, kv_idx) -> bool

on scalars: the score of one query and key, and the indices of its batch entry, head, query and key.

    scores = score_mod(scale Q K^T),   weights = softmax over the keys that mask_mod and block_mask allow,   context = weights V

Names: the paper's mods are ours (`attn.mods` has ready-made ones); its block mask is `attn.BlockMask`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from attn.block_loops import Plan
from attn.block_mask import BlockMask, create_block_mask, hoisted_mask
from attn.blocks import At, Blocks, choose_blocks, key_positions, query_positions
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
    bits each time.  The gradient of a captured array is added to once for each block: one of size T S is cheaper as the `bias`
    of `dot_product_attention`.  A query that may attend to nothing has context 0.

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
    modify, floats, others = _hoisted_score(score_mod, compute_dtype(query, key, value))
    if block_mask is None and mask_mod is not None:
        block_mask, mask_mod = create_block_mask(mask_mod, T, S, batch=B, heads=N), None
    masks: dict[str, Any] = {}
    if block_mask is not None:
        block_mask.expect(B, N, T, S)
        masks["block_mask"] = block_mask
    extra = None
    if mask_mod is not None:
        extra, masks["captured"] = hoisted_mask(mask_mod)
    return _flex(
        query, key, value, floats, others, masks, checked_scale(scale, query), modify=modify, extra=extra,
        block_sizes=None if block_sizes is None else tuple(block_sizes),
    )  # fmt: skip


@dataclass(frozen=True)
class _Scores:
    """score_mod of a block, from the arrays it captures: floating ones and others, in the order of `floating`."""

    rule: Rule
    floating: tuple[bool, ...]
    lengths: tuple[int, int]

    def __call__(self, s: Array, floats: Any, others: Any, at: At, sizes: Blocks) -> Array:
        sources = {True: iter(floats), False: iter(others)}
        captured = [next(sources[kind]) for kind in self.floating]
        return _every_pair(partial(self.rule, captured), s.shape, at, sizes, self.lengths, s)


@dataclass(frozen=True)
class _Masks:
    """The structure of a block mask, and of a mask_mod beside it."""

    extra: Rule | None
    lengths: tuple[int, int]

    def __call__(self, masks: dict[str, Any], at: At, sizes: Blocks) -> Array:
        allowed = jnp.broadcast_to(key_positions(at, sizes) < self.lengths[1], (1, 1, 1, 1, sizes.bk))
        G = masks["group"].shape[0]
        if "block_mask" in masks:
            block_mask = masks["block_mask"]
            one_b, one_h = block_mask.batch == 1, block_mask.heads == 1
            shape = (1 if one_b else sizes.gb, 1 if one_h else sizes.gk, 1 if one_h else G, sizes.bq, sizes.bk)
            allowed = allowed & _every_pair(block_mask.mask, shape, at, sizes, self.lengths)
        if self.extra is not None:
            shape = (sizes.gb, sizes.gk, G, sizes.bq, sizes.bk)
            allowed = allowed & _every_pair(partial(self.extra, masks["captured"]), shape, at, sizes, self.lengths)
        return allowed

    def tables(self, masks: dict[str, Any], sizes: Blocks, T: int, S: int) -> tuple[Array, Array]:
        full = jnp.broadcast_to(jnp.arange(sizes.bk, S + 1, sizes.bk) <= self.lengths[1], (1, 1, T // sizes.bq, S // sizes.bk))
        live = jnp.ones_like(full)
        if "block_mask" in masks:
            G = masks["group"].shape[0]
            tables = masks["block_mask"].at_blocks(sizes.bq, sizes.bk)
            some, every = (x.reshape(x.shape[0], -1, G if x.shape[1] > 1 else 1, *x.shape[2:]) for x in tables)
            live, full = live & some.any(2), full & every.all(2)
        return live, full & (self.extra is None)


def _every_pair(mod: Callable[..., Array], shape: Sequence[int], at: At, sizes: Blocks, lengths: Any, *scores: Array) -> Array:
    """mod(*scores, b, h, q_idx, kv_idx) of every pair of a block, [gb gk G bq bk]; padding repeats the last position."""
    gb, gk, G, _, _ = shape
    b = (at.b + jnp.arange(gb, dtype=jnp.int32)).reshape(-1, 1, 1, 1, 1)
    k = (at.k + jnp.arange(gk, dtype=jnp.int32)).reshape(-1, 1, 1, 1)
    h = k * G + jnp.arange(G, dtype=jnp.int32).reshape(-1, 1, 1)
    q_idx, kv_idx = (
        jnp.minimum(x, n - 1) for x, n in zip((query_positions(at, sizes), key_positions(at, sizes)), lengths, strict=True)
    )
    indices = [jnp.broadcast_to(x, shape) for x in (b, h, q_idx, kv_idx)]
    for _ in range(5):
        mod = jax.vmap(mod)
    return mod(*scores, *indices)


def _hoisted_score(score_mod: ScoreMod | None, dtype: Any) -> tuple[_Scores | None, tuple[Array, ...], tuple[Array, ...]]:
    """What stays of a score_mod, and the floating and other arrays that it captures."""
    if score_mod is None:
        return None, (), ()
    if not callable(score_mod):
        raise TypeError(f"score_mod: expected a function (score, b, h, q_idx, kv_idx) -> score, got {score_mod!r}")
    index = jax.ShapeDtypeStruct((), jnp.int32)
    rule, captured, result = hoisted(score_mod, jax.ShapeDtypeStruct((), dtype), index, index, index, index)
    if not isinstance(result, jax.ShapeDtypeStruct) or not jnp.issubdtype(result.dtype, jnp.floating) or result.shape:
        got = f"{result.dtype} of shape {result.shape}" if isinstance(result, jax.ShapeDtypeStruct) else repr(result)
        raise TypeError(f"score_mod: expected to return a floating scalar, got {got}")
    kinds = tuple(bool(jnp.issubdtype(array.dtype, jnp.floating)) for array in captured)
    floats = tuple(array for array, kind in zip(captured, kinds, strict=True) if kind)
    return _Scores(rule, kinds, (0, 0)), floats, tuple(a for a, kind in zip(captured, kinds, strict=True) if not kind)


@partial(jax.jit, static_argnames=("modify", "extra", "block_sizes"))
def _flex(
    query: Array, key: Array, value: Array, floats: Any, others: Any, masks: dict[str, Any], scale: ArrayLike, *,
    modify: _Scores | None, extra: Rule | None, block_sizes: Sequence[int] | None,
) -> Array:  # fmt: skip
    *batch, T, N, H = query.shape
    S, K, V = *key.shape[-3:-1], value.shape[-1]
    B, G = prod(batch), N // K
    if 0 in (B, N, T, S, V):
        return jnp.zeros((*batch, T, N, V), value.dtype)
    dtype = compute_dtype(query, key, value)
    heads_apart = "block_mask" in masks and masks["block_mask"].heads > 1
    sizes, derivative_sizes = choose_blocks(B, K, G, T, S, block_sizes, heads_apart)
    structure = _Masks(extra, (T, S))
    masked = bool(masks) or S % sizes.bk != 0
    inputs: dict[str, Any] = {
        "query": (query.astype(dtype) * jnp.asarray(scale, dtype)).reshape(B, T, K, G, H),
        "key": key.reshape(B, S, K, H), "value": value.reshape(B, S, K, V),
    }  # fmt: skip
    fixed: dict[str, Any] = {}
    if modify is not None:
        modify, inputs["modify"], fixed["modify"] = replace(modify, lengths=(T, S)), floats, others
    plan = Plan(sizes, derivative_sizes, dtype, modify, structure if masked else None, None)
    context, _ = attend_in_blocks(plan, inputs, fixed, structure, masks | {"group": jnp.zeros(G, bool)})
    return context.reshape(*batch, T, N, V).astype(value.dtype)
