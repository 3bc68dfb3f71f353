"""Attention in blocks: memory O(T + S), forward and backward.

The scores exist one block at a time.  Going over the blocks of keys of a block of queries, with m the highest score so far,
l the sum of exp(score - m) and o the same sum times the values (Milakov and Gimelshein 2018; Rabe and Staats 2021; Dao 2023):

    m' = max(m, max_j s_j)      l' = e^(m - m') l + sum_j e^(s_j - m')      o' = e^(m - m') o + sum_j e^(s_j - m') v_j
    context = o / l             lse = m + log l

Only context, l and m are kept.  Derivatives make each block of p_j = e^(s_j - m) / l anew:

    forward mode     lse. = sum_j p_j s._j                 context. = sum_j p_j (s._j v_j + v._j) - context lse.
    reverse mode     s^_j = p_j (context^ . v_j - context^ . context + lse^)        v^_j = p_j context^

where x. is a tangent and x^ a cotangent; with s = q . k, q^ = sum_j s^_j k_j and k^_j = s^_j q.  Dropout keeps or drops p_j
where it meets v_j.  Heads are split as N = K G: key/value head, query head of its group.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array

from attn.block_loops import (
    Group,
    Plan,
    add_columns,
    back_through_scores,
    block_scores,
    dropped,
    finite,
    keys_block,
    merged,
    over_groups,
    over_keys,
    product,
    put_queries,
    put_rows,
    queries_block,
    score_change,
    take_rows,
)
from attn.blocks import At
from attn.linear_map import linear_map
from attn.normalize import nonzero


def blockwise(plan: Plan, inputs: dict[str, Any], fixed: dict[str, Any]) -> tuple[Array, Array, Array]:
    """Context, l and m.  Derivatives flow to `inputs`; m has none, as context and lse do not depend on its choice.

    Args:
        plan: sizes and functions of a block.
        inputs: query [B T K G H], scaled; key [B S K H]; value [B S K V]; maybe bias [#B #K #G #T #S]; maybe modify, the
            floating arrays that `plan.modify` reads.  T and S are multiples of the blocks.
        fixed: visits, of both groupings by name; maybe allowed, what `plan.allowed` reads; maybe modify, the other arrays
            that `plan.modify` reads; maybe row_bits [B K G T 2] and dropout_rate.

    Returns:
        Context [B T K G V], l [B K G T], m [B K G T].
    """
    return _attend(plan, inputs, fixed)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _attend(plan: Plan, inputs: Any, fixed: Any) -> tuple[Array, Array, Array]:
    return linear_map(partial(_forward, plan), _no_transpose, (inputs, fixed), ())


@partial(_attend.defjvp, symbolic_zeros=True)
def _attend_jvp(plan: Plan, primals: Any, tangents: Any) -> tuple[Any, Any]:
    inputs, fixed = primals
    context, total, peak = _attend(plan, inputs, fixed)
    moved = _moved(tangents[0])
    given = (inputs, fixed, context, total, lax.stop_gradient(peak))
    plan = replace(plan, sizes=plan.derivative_sizes)
    wanted = partial(_cotangents, plan, frozenset(moved))
    change, lse_change = linear_map(partial(_tangents, plan), wanted, given, moved)
    return (context, total, peak), (change, lse_change * total, jnp.zeros_like(peak))


def _moved(tangents: dict[str, Any]) -> dict[str, Any]:
    """The inputs that have a tangent at all."""

    def filled(leaf: Any) -> Array:
        return jnp.zeros(leaf.shape, leaf.dtype) if isinstance(leaf, SymbolicZero) else leaf

    def still(tree: Any) -> bool:
        return all(isinstance(leaf, SymbolicZero) for leaf in jax.tree.leaves(tree))

    return {name: jax.tree.map(filled, tree) for name, tree in tangents.items() if not still(tree)}


def _no_transpose(given: Any, cotangents: Any, differentiable: bool) -> Any:
    return ()


# The three loops.  `carry` holds whole results, which are written in place.


def _forward(plan: Plan, given: Any, linear: Any, differentiable: bool) -> tuple[Array, Array, Array]:
    """Online softmax: context, l, m."""
    inputs, fixed = given
    B, T, K, G, _ = inputs["query"].shape
    V = inputs["value"].shape[-1]
    lowest = jnp.finfo(plan.dtype).min

    def of_queries(at: At, group: Group, carry: Any) -> Any:
        query = finite(plan, queries_block(plan, inputs["query"], at))
        rows = (*query.shape[:2], G, plan.sizes.bq)

        def block(at: At, state: Any, full: bool) -> Any:
            o, total, peak = state
            s, _ = block_scores(plan, inputs, fixed, at, query, keys_block(group.keys, at, plan), full)
            higher = jnp.maximum(peak, s.max(-1))
            p, shrink = jnp.exp(s - higher[..., None]), jnp.exp(peak - higher)
            met = product("bkxy,bkyv->bkxv", merged(dropped(plan, fixed, at, p)), keys_block(group.values, at, plan), plan)
            return merged(shrink)[..., None] * o + met, shrink * total + p.sum(-1), higher

        start = (jnp.zeros((*query.shape[:3], V), plan.dtype), jnp.zeros(rows, plan.dtype), jnp.full(rows, lowest, plan.dtype))
        o, total, peak = over_keys(plan, fixed, at, block, start, differentiable)
        contexts, totals, peaks = carry
        return (
            put_queries(plan, contexts, o / nonzero(merged(total))[..., None], at),
            put_rows(totals, total, at),
            put_rows(peaks, peak, at),
        )

    rows = jnp.zeros((B, K, G, T), plan.dtype)
    (context, total, peak), _ = over_groups(plan, inputs, of_queries, (jnp.zeros((B, T, K, G, V), plan.dtype), rows, rows))
    return context, total, peak


def _tangents(plan: Plan, given: Any, moved: dict[str, Any], differentiable: bool) -> tuple[Array, Array]:
    """Forward mode: the tangents of context and lse along those of the inputs that move."""
    inputs, fixed, context, total, peak = given

    def of_queries(at: At, group: Group, carry: Any) -> Any:
        query, m = finite(plan, queries_block(plan, inputs["query"], at)), take_rows(plan, peak, at)[..., None]
        inverse = 1 / nonzero(take_rows(plan, total, at))[..., None]
        query_change = queries_block(plan, moved["query"], at) if "query" in moved else None

        def block(at: At, state: Any, full: bool) -> Any:
            context_change, lse_change = state
            key, value = keys_block(group.keys, at, plan), keys_block(group.values, at, plan)
            s, before = block_scores(plan, inputs, fixed, at, query, key, full)
            products = []
            if query_change is not None:
                products.append(product("bkxh,bkyh->bkxy", query_change, key, plan))
            if "key" in moved:
                products.append(product("bkxh,bkyh->bkxy", query, keys_block(group.key_change, at, plan), plan))
            p = jnp.exp(s - m) * inverse
            change = score_change(plan, inputs, fixed, at, before, [x.reshape(s.shape) for x in products], moved, full)
            met = jnp.zeros_like(context_change)
            if change is not None:
                change = p * change
                lse_change = lse_change + change.sum(-1)
                met = product("bkxy,bkyv->bkxv", merged(dropped(plan, fixed, at, change)), value, plan)
            if "value" in moved:
                value_change = keys_block(group.value_change, at, plan)
                met = met + product("bkxy,bkyv->bkxv", merged(dropped(plan, fixed, at, p)), value_change, plan)
            return context_change + met, lse_change

        o = queries_block(plan, context, at)
        change, lse_change = over_keys(plan, fixed, at, block, (jnp.zeros_like(o), jnp.zeros_like(m[..., 0])), differentiable)
        context_changes, lse_changes = carry
        change = change - o * merged(lse_change)[..., None]
        return put_queries(plan, context_changes, change, at), put_rows(lse_changes, lse_change, at)

    start = (jnp.zeros_like(context), jnp.zeros_like(total))
    (change, lse_change), _ = over_groups(plan, inputs, of_queries, start, moved=moved)
    return change, lse_change


def _cotangents(plan: Plan, wanted: frozenset[str], given: Any, cotangents: Any, differentiable: bool) -> dict[str, Any]:
    """Reverse mode: the cotangents of the wanted inputs, from those of context and lse."""
    inputs, fixed, context, total, peak = given
    back, lse_back = cotangents

    def of_queries(at: At, group: Group, carry: Any) -> Any:
        query, m = finite(plan, queries_block(plan, inputs["query"], at)), take_rows(plan, peak, at)[..., None]
        inverse = 1 / nonzero(take_rows(plan, total, at))[..., None]
        context_back = queries_block(plan, back, at)
        # context^ . context - lse^, what every score of a row has taken off
        common = (context_back * queries_block(plan, context, at)).sum(-1).reshape(m.shape[:-1]) - take_rows(plan, lse_back, at)
        # Transposed once for all blocks of keys: XLA:CPU is up to three times slower at transposing the scores in a product.
        query_columns, back_columns = jnp.swapaxes(query, -1, -2), jnp.swapaxes(context_back, -1, -2)

        def block(at: At, state: Any, full: bool) -> Any:
            own, results = state
            results = dict(results)
            key, value = keys_block(group.keys, at, plan), keys_block(group.values, at, plan)
            s, before = block_scores(plan, inputs, fixed, at, query, key, full)
            p = jnp.exp(s - m) * inverse
            if "value" in wanted:
                met = product("bkvx,bkxy->bkvy", back_columns, merged(dropped(plan, fixed, at, p)), plan)
                results["value"] = add_columns(results["value"], met, at, plan)
            if wanted == {"value"}:
                return own, results
            weight_back = product("bkxv,bkyv->bkxy", context_back, value, plan).reshape(p.shape)
            score_back = p * (dropped(plan, fixed, at, weight_back) - common[..., None])
            score_back, results = back_through_scores(plan, inputs, fixed, at, before, score_back, results, full)
            if "query" in wanted:
                own = own + product("bkxy,bkyh->bkxh", merged(score_back), key, plan)
            if "key" in wanted:
                met = product("bkhx,bkxy->bkhy", query_columns, merged(score_back), plan)
                results["key"] = add_columns(results["key"], met, at, plan)
            return own, results

        whole, results = carry
        own, results = over_keys(plan, fixed, at, block, (jnp.zeros_like(query), results), differentiable)
        return (put_queries(plan, whole, own, at) if "query" in wanted else whole), results

    whole = jnp.zeros(inputs["query"].shape if "query" in wanted else (), plan.dtype)
    scattered = {name: jax.tree.map(jnp.zeros_like, inputs[name]) for name in ("bias", "modify") if name in wanted}
    whole, results = over_groups(
        plan, inputs, of_queries, whole, scattered=scattered, columns=[n for n in ("key", "value") if n in wanted]
    )
    if "query" in wanted:
        results["query"] = whole
    return {name: jax.tree.map(lambda x, like: x.astype(like.dtype), results[name], inputs[name]) for name in wanted}
