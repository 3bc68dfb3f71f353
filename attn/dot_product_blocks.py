"""Dot-product attention through blocks: from the options of `dot_product_attention` to the loops of `blockwise`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from attn.block_loops import Plan
from attn.block_structure import MaskStructure, Structure, padded_arrays, padded_scores
from attn.blocks import At, Blocks, choose_blocks, padded, visits
from attn.blockwise import blockwise
from attn.dropout import row_bits
from attn.isolation import has_nonfinite, poison
from attn.normalize import log_sum
from attn.options import Lengths, Window, segment_ids, sides
from attn.shapes import boolean_mask, compute_dtype, lengths_within, per_batch


@partial(jax.jit, static_argnames=("structure", "masked", "block_sizes", "precision", "heads_apart"))
def blockwise_attention(
    query: Float[Array, "*B T N H"],
    key: Float[Array, "*B S K H"],
    value: Float[Array, "*B S K V"],
    *,
    bias: Float[Array, "*#B #N #T #S"] | None,
    structure: Structure,
    masked: bool,
    masks: dict[str, Array],
    scale: ArrayLike,
    softcap: ArrayLike | None,
    dropout_rate: ArrayLike,
    dropout_key: Array | None,
    block_sizes: Sequence[int] | None,
    precision: lax.PrecisionLike,
    heads_apart: bool = False,
) -> tuple[Float[Array, "*B T N V"], Float[Array, "*B N T"]]:
    """Context and lse; `masks` are the arrays of `structure`, which is used only where `masked`."""
    *batch, T, N, H = query.shape
    S, K, V = *key.shape[-3:-1], value.shape[-1]
    dtype = compute_dtype(query, key, value)
    shapes = (prod(batch), K, N // K, T, S)
    if 0 in (*shapes, V):
        return jnp.zeros((*batch, T, N, V), dtype), jnp.full((*batch, N, T), -jnp.inf, dtype)
    split = partial(_split_heads, batch=batch, K=K, G=N // K)
    sizes, derivative_sizes = choose_blocks(*shapes, block_sizes, heads_apart)
    scaled = query.astype(dtype) * jnp.asarray(scale, dtype)
    inputs: dict[str, Any] = {
        "query": scaled.reshape(-1, T, K, N // K, H),
        "key": key.reshape(-1, S, K, H),
        "value": value.reshape(-1, S, K, V),
    }
    fixed: dict[str, Any] = {}
    modify = None
    if bias is not None:
        inputs["bias"] = split(bias)
    if softcap is not None:
        modify, inputs["modify"] = _softcapped, jnp.asarray(softcap, dtype)
    if dropout_key is not None:
        fixed |= {
            "row_bits": row_bits(dropout_key, (*batch, N, T)).reshape(*shapes[:4], 2),
            "dropout_rate": jnp.asarray(dropout_rate, jnp.float32),
        }
    if "mask" in masks:
        masks = masks | {"mask": split(masks["mask"])}
    masked = masked or S % sizes.bk != 0
    plan = Plan(sizes, derivative_sizes, dtype, modify, structure if masked else None, precision)
    context, lse = attend_in_blocks(plan, inputs, fixed, structure, masks)
    if dropout_key is not None:
        context = context / (1 - dropout_rate)
    return context.reshape(*batch, T, N, V), lse.reshape(*batch, N, T)


def attend_in_blocks(
    plan: Plan, inputs: dict[str, Any], fixed: dict[str, Any], structure: Any, masks: dict[str, Any]
) -> tuple[Float[Array, "B T K G V"], Float[Array, "B K G T"]]:
    """Context and lse of inputs of any length; NaN and Inf reach only the queries that attend to them."""
    sizes, (B, T, K, *_) = plan.sizes, inputs["query"].shape
    masks = padded_arrays(masks, sizes)
    whole = {
        "query": padded(inputs["query"], 1, sizes.bq),
        "key": padded(inputs["key"], 1, sizes.bk),
        "value": padded(inputs["value"], 1, sizes.bk),
    }
    if "bias" in inputs:
        whole["bias"] = padded_scores(inputs["bias"], sizes)
    if "row_bits" in fixed:
        fixed = fixed | {"row_bits": padded(fixed["row_bits"], 3, sizes.bq)}
    live, full = structure.tables(masks, sizes, whole["query"].shape[1], whole["key"].shape[1])
    groupings = {each.group: visits(live, full, each, B, K) for each in (sizes, plan.derivative_sizes)}
    fixed = fixed | {"visits": groupings, "allowed": masks}
    context, total, peak = blockwise(plan, inputs | whole, fixed)
    lse = log_sum(total, peak)
    if plan.allowed is not None:
        reached, reached_key = _attend_nonfinite(plan, whole, fixed, total)
        context = poison(context, jnp.moveaxis(reached, -1, 1))
        lse = poison(lse[..., None], reached_key)[..., 0]
    return context[:, :T], lse[..., :T]


def _attend_nonfinite(plan: Plan, inputs: dict[str, Any], fixed: dict[str, Any], total: Array) -> tuple[Array, Array]:
    """Rows [B K G T] of queries that may attend to NaN or Inf in a key or value, or are NaN or Inf themselves; and in a key."""
    query, key, value = (lax.stop_gradient(inputs[name]) for name in ("query", "key", "value"))
    bad_key = has_nonfinite(key)
    flags = jnp.stack([bad_key | has_nonfinite(value), bad_key], axis=-1).astype(plan.dtype)

    def look(_: None) -> tuple[Array, Array]:
        # The same masks over flags in place of values, with equal scores: a context above 0 has met one.
        nothing = {"query": jnp.zeros_like(query), "key": jnp.zeros_like(key), "value": flags}
        plain = {name: fixed[name] for name in ("visits", "allowed")}
        met, seen, _ = blockwise(Plan(plan.sizes, plan.sizes, plan.dtype, None, plan.allowed, None), nothing, plain)
        own = jnp.moveaxis(has_nonfinite(query), 1, -1) & (seen > 0)
        met = jnp.moveaxis(met, 1, -2) > 0
        return met[..., 0] | own, met[..., 1] | own

    rows = jnp.zeros(total.shape, bool)
    return lax.cond(flags.any() | has_nonfinite(query).any(), look, lambda _: (rows, rows), None)


def _split_heads(x: Array, batch: Sequence[int], K: int, G: int) -> Array:
    """[*#B #N #T #S] -> [#B #K #G #T #S]."""
    *own, N, T, S = x.shape
    if prod(own) != 1:
        x = jnp.broadcast_to(x, (*batch, N, T, S))
    return x.reshape(-1, *((K, G) if N == K * G else (1, 1)), T, S)


def _softcapped(s: Array, cap: Array, _: Any, at: At, sizes: Blocks) -> Array:
    return cap * jnp.tanh(s / cap)


def structure_of(
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
) -> tuple[MaskStructure, bool, dict[str, Array]]:
    """All masks given, checked as `every_mask` checks them: the structure, whether it forbids anything, its arrays."""
    *batch, T, N, _ = query.shape
    S = key.shape[-3]

    def entries(x: Array) -> Array:
        return x.reshape(1) if x.size == 1 else jnp.broadcast_to(x, batch).reshape(-1)

    arrays = {"offset": entries(per_batch("query_offset", query_offset, batch))}
    if mask is not None:
        arrays["mask"] = boolean_mask(mask, "*B N T S", (*batch, N, T, S))
    if query_lengths is not None:
        arrays["query_lengths"] = entries(lengths_within("query_lengths", query_lengths, batch, "T", T))
    if key_lengths is not None:
        arrays["key_lengths"] = entries(lengths_within("key_lengths", key_lengths, batch, "S", S))
    if query_segment_ids is not None or key_segment_ids is not None:
        ids = segment_ids(query_segment_ids, key_segment_ids, batch, T, S)
        arrays["query_segment_ids"], arrays["key_segment_ids"] = ids[0].reshape(-1, T), ids[1].reshape(-1, S)
    left, right = (None, None) if window is None else sides(window)
    masked = len(arrays) > 1 or is_causal or left is not None or right is not None
    return MaskStructure(S, bool(is_causal), left, right), masked, arrays
