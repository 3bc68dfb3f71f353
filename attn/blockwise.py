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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.typing import DTypeLike
from jaxtyping import Array

from attn.blocks import At, Blocks, add_scores_block, key_positions, put, scores_block, take
from attn.dropout import kept
from attn.isolation import finite_or_zero
from attn.linear_map import linear_map
from attn.normalize import nonzero

# Of one block [gb gk G bq bk]: modify(scores, floats, others, at, sizes) -> scores, and allowed(arrays, at, sizes) -> bool.
Modify = Callable[[Array, Any, Any, At, Blocks], Array]
Allowed = Callable[[Any, At, Blocks], Array]


@dataclass(frozen=True)
class Plan:
    """What does not change while an attention is computed."""

    sizes: Blocks
    derivative_sizes: Blocks
    dtype: DTypeLike
    modify: Modify | None
    allowed: Allowed | None
    precision: lax.PrecisionLike


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
        query = _finite(plan, _queries(plan, inputs["query"], at))
        rows = (*query.shape[:2], G, plan.sizes.bq)

        def block(at: At, state: Any, full: bool) -> Any:
            o, total, peak = state
            s, _ = _scores(plan, inputs, fixed, at, query, _part(group.keys, at, plan), full)
            higher = jnp.maximum(peak, s.max(-1))
            p, shrink = jnp.exp(s - higher[..., None]), jnp.exp(peak - higher)
            met = _product("bkxy,bkyv->bkxv", _merged(_dropped(plan, fixed, at, p)), _part(group.values, at, plan), plan)
            return _merged(shrink)[..., None] * o + met, shrink * total + p.sum(-1), higher

        start = (jnp.zeros((*query.shape[:3], V), plan.dtype), jnp.zeros(rows, plan.dtype), jnp.full(rows, lowest, plan.dtype))
        o, total, peak = _over_keys(plan, fixed, at, block, start, differentiable)
        contexts, totals, peaks = carry
        return (
            _put_queries(plan, contexts, o / nonzero(_merged(total))[..., None], at),
            _put_rows(totals, total, at),
            _put_rows(peaks, peak, at),
        )

    rows = jnp.zeros((B, K, G, T), plan.dtype)
    (context, total, peak), _ = _over_groups(plan, inputs, of_queries, (jnp.zeros((B, T, K, G, V), plan.dtype), rows, rows))
    return context, total, peak


def _tangents(plan: Plan, given: Any, moved: dict[str, Any], differentiable: bool) -> tuple[Array, Array]:
    """Forward mode: the tangents of context and lse along those of the inputs that move."""
    inputs, fixed, context, total, peak = given

    def of_queries(at: At, group: Group, carry: Any) -> Any:
        query, m = _finite(plan, _queries(plan, inputs["query"], at)), _take_rows(plan, peak, at)[..., None]
        inverse = 1 / nonzero(_take_rows(plan, total, at))[..., None]
        query_change = _queries(plan, moved["query"], at) if "query" in moved else None

        def block(at: At, state: Any, full: bool) -> Any:
            context_change, lse_change = state
            key, value = _part(group.keys, at, plan), _part(group.values, at, plan)
            s, before = _scores(plan, inputs, fixed, at, query, key, full)
            products = []
            if query_change is not None:
                products.append(_product("bkxh,bkyh->bkxy", query_change, key, plan))
            if "key" in moved:
                products.append(_product("bkxh,bkyh->bkxy", query, _part(group.key_change, at, plan), plan))
            p = jnp.exp(s - m) * inverse
            change = _score_change(plan, inputs, fixed, at, before, [x.reshape(s.shape) for x in products], moved, full)
            met = jnp.zeros_like(context_change)
            if change is not None:
                change = p * change
                lse_change = lse_change + change.sum(-1)
                met = _product("bkxy,bkyv->bkxv", _merged(_dropped(plan, fixed, at, change)), value, plan)
            if "value" in moved:
                value_change = _part(group.value_change, at, plan)
                met = met + _product("bkxy,bkyv->bkxv", _merged(_dropped(plan, fixed, at, p)), value_change, plan)
            return context_change + met, lse_change

        o = _queries(plan, context, at)
        change, lse_change = _over_keys(plan, fixed, at, block, (jnp.zeros_like(o), jnp.zeros_like(m[..., 0])), differentiable)
        context_changes, lse_changes = carry
        change = change - o * _merged(lse_change)[..., None]
        return _put_queries(plan, context_changes, change, at), _put_rows(lse_changes, lse_change, at)

    start = (jnp.zeros_like(context), jnp.zeros_like(total))
    (change, lse_change), _ = _over_groups(plan, inputs, of_queries, start, moved=moved)
    return change, lse_change


def _cotangents(plan: Plan, wanted: frozenset[str], given: Any, cotangents: Any, differentiable: bool) -> dict[str, Any]:
    """Reverse mode: the cotangents of the wanted inputs, from those of context and lse."""
    inputs, fixed, context, total, peak = given
    back, lse_back = cotangents

    def of_queries(at: At, group: Group, carry: Any) -> Any:
        query, m = _finite(plan, _queries(plan, inputs["query"], at)), _take_rows(plan, peak, at)[..., None]
        inverse = 1 / nonzero(_take_rows(plan, total, at))[..., None]
        context_back = _queries(plan, back, at)
        # context^ . context - lse^, what every score of a row has taken off
        common = (context_back * _queries(plan, context, at)).sum(-1).reshape(m.shape[:-1]) - _take_rows(plan, lse_back, at)
        # Transposed once for all blocks of keys: XLA:CPU is up to three times slower at transposing the scores in a product.
        query_columns, back_columns = jnp.swapaxes(query, -1, -2), jnp.swapaxes(context_back, -1, -2)

        def block(at: At, state: Any, full: bool) -> Any:
            own, results = state
            results = dict(results)
            key, value = _part(group.keys, at, plan), _part(group.values, at, plan)
            s, before = _scores(plan, inputs, fixed, at, query, key, full)
            p = jnp.exp(s - m) * inverse
            if "value" in wanted:
                met = _product("bkvx,bkxy->bkvy", back_columns, _merged(_dropped(plan, fixed, at, p)), plan)
                results["value"] = _add_part(results["value"], met, at, plan)
            if wanted == {"value"}:
                return own, results
            weight_back = _product("bkxv,bkyv->bkxy", context_back, value, plan).reshape(p.shape)
            score_back = p * (_dropped(plan, fixed, at, weight_back) - common[..., None])
            score_back, results = _score_back(plan, inputs, fixed, at, before, score_back, results, full)
            if "query" in wanted:
                own = own + _product("bkxy,bkyh->bkxh", _merged(score_back), key, plan)
            if "key" in wanted:
                met = _product("bkhx,bkxy->bkhy", query_columns, _merged(score_back), plan)
                results["key"] = _add_part(results["key"], met, at, plan)
            return own, results

        whole, results = carry
        own, results = _over_keys(plan, fixed, at, block, (jnp.zeros_like(query), results), differentiable)
        return (_put_queries(plan, whole, own, at) if "query" in wanted else whole), results

    whole = jnp.zeros(inputs["query"].shape if "query" in wanted else (), plan.dtype)
    scattered = {name: jax.tree.map(jnp.zeros_like, inputs[name]) for name in ("bias", "modify") if name in wanted}
    whole, results = _over_groups(
        plan, inputs, of_queries, whole, scattered=scattered, columns=[n for n in ("key", "value") if n in wanted]
    )
    if "query" in wanted:
        results["query"] = whole
    return {name: jax.tree.map(lambda x, like: x.astype(like.dtype), results[name], inputs[name]) for name in wanted}


def _score_change(
    plan: Plan, inputs: Any, fixed: Any, at: At, before: Array, products: list[Array], moved: dict[str, Any], full: bool
) -> Array | None:
    """The tangent of the scores, along those of the products, the bias and what the modification reads."""
    if "bias" in moved:
        products = [*products, scores_block(moved["bias"], at, plan.sizes).astype(plan.dtype)]
    if not products and "modify" not in moved:
        return None
    change = jnp.broadcast_to(sum(products, start=jnp.zeros((), plan.dtype)), before.shape)
    if plan.modify is None:
        return change
    floats = inputs.get("modify")
    along = moved.get("modify", jax.tree.map(jnp.zeros_like, floats))
    return jax.jvp(lambda s, floats: _finish(plan, fixed, at, s, floats, full), (before, floats), (change, along))[1]


def _score_back(
    plan: Plan, inputs: Any, fixed: Any, at: At, before: Array, back: Array, results: dict[str, Any], full: bool
) -> tuple[Array, dict[str, Any]]:
    """The cotangent of q . k from that of the scores, and the wanted ones of bias and modification, added to the results."""
    if plan.modify is not None:
        _, pull = jax.vjp(lambda s, floats: _finish(plan, fixed, at, s, floats, full), before, inputs.get("modify"))
        back, floats = pull(back)
        if "modify" in results:
            results = {**results, "modify": jax.tree.map(jnp.add, results["modify"], floats)}
    if "bias" in results:
        results = {**results, "bias": add_scores_block(results["bias"], back, at, plan.sizes)}
    return back, results


# What the loops are made of.


class Group(NamedTuple):
    """The keys and values of a group of rows, heads first: [gb gk S H] and [gb gk S V]; and their tangents, if they move."""

    keys: Array
    values: Array
    key_change: Array | None
    value_change: Array | None


def _over_groups(
    plan: Plan, inputs: Any, of_queries: Callable[[At, Group, Any], Any], whole: Any, *,
    moved: dict[str, Any] | None = None, scattered: dict[str, Any] | None = None, columns: Sequence[str] = (),
) -> tuple[Any, dict[str, Any]]:  # fmt: skip
    """Every block of queries of every group of rows.

    `whole` goes through all of them.  Sums over queries are kept as columns [gb gk H S] for one group at a time, and put in
    their place when it is done; with `scattered`, which also goes through all, they are the second result.
    """
    (B, T, K, _, _), sizes = inputs["query"].shape, plan.sizes
    key, value, moved = inputs["key"], inputs["value"], moved or {}

    def of_group(index: Array, carry: Any) -> Any:
        b, k = jnp.divmod(jnp.int32(index), K // sizes.gk)
        at = At(b * sizes.gb, k * sizes.gk, jnp.int32(0), jnp.int32(0))

        def rows(x: Array | None) -> Array | None:
            return None if x is None else _rows_of_group(plan, x, at)

        keys, values = _finite(plan, rows(key)), _finite(plan, rows(value))
        group = Group(keys, values, rows(moved.get("key")), rows(moved.get("value")))

        def of_block(i: Array, carry: Any) -> Any:
            return of_queries(at._replace(i=jnp.int32(i) * sizes.bq), group, carry)

        if scattered is None:
            return lax.fori_loop(0, T // sizes.bq, of_block, carry)
        whole, results, done = carry
        sums = {n: jnp.zeros_like(jnp.swapaxes(keys if n == "key" else values, -1, -2)) for n in columns}
        whole, results = lax.fori_loop(0, T // sizes.bq, of_block, (whole, {**results, **sums}))
        done = {n: put(done[n], results[n].transpose(0, 3, 1, 2), (at.b, 0, at.k, 0)) for n in columns}
        return whole, {n: results[n] for n in scattered}, done

    groups = (B // sizes.gb) * (K // sizes.gk)
    if scattered is None:
        return lax.fori_loop(0, groups, of_group, whole), {}
    done = {name: jnp.zeros(inputs[name].shape, plan.dtype) for name in columns}
    whole, results, done = lax.fori_loop(0, groups, of_group, (whole, scattered, done))
    return whole, {**results, **done}


def _over_keys(plan: Plan, fixed: Any, at: At, block: Callable[[At, Any, bool], Any], state: Any, differentiable: bool) -> Any:
    """Every live block of keys of a block of queries."""
    table, bk = fixed["visits"][plan.sizes.group], plan.sizes.bk
    b, k, i = at.b // plan.sizes.gb, at.k // plan.sizes.gk, at.i // plan.sizes.bq
    if not differentiable:
        # Two loops, so that neither has to choose: a choice within would copy the scores.
        def visit(full: bool) -> Callable[[Array, Any], Any]:
            return lambda n, state: block(at._replace(j=table.order[b, k, i, n] * bk), state, full)

        if plan.allowed is None:
            return lax.fori_loop(0, table.live.shape[-1], visit(True), state)
        full, live = table.num_full[b, k, i], table.num_live[b, k, i]
        return lax.fori_loop(full, live, visit(False), lax.fori_loop(0, full, visit(True), state))
    # A loop whose length is data cannot be reversed: this one goes over all blocks, and makes each anew on the way back.
    again = jax.checkpoint(lambda n, state: block(at._replace(j=jnp.int32(n) * bk), state, plan.allowed is None))
    return lax.fori_loop(
        0, table.live.shape[-1], lambda n, state: lax.cond(table.live[b, k, i, n], again, lambda _, s: s, n, state), state
    )


def _scores(plan: Plan, inputs: Any, fixed: Any, at: At, query: Array, key: Array, full: bool) -> tuple[Array, Array]:
    """q . k + bias, modified and masked, [gb gk G bq bk]; and before both."""
    gb, gk, x, _ = query.shape
    s = _product("bkxh,bkyh->bkxy", query, key, plan).reshape(gb, gk, x // plan.sizes.bq, plan.sizes.bq, -1)
    if "bias" in inputs:
        s = s + scores_block(inputs["bias"], at, plan.sizes).astype(plan.dtype)
    return _finish(plan, fixed, at, s, inputs.get("modify"), full), s


def _finish(plan: Plan, fixed: Any, at: At, s: Array, floats: Any, full: bool) -> Array:
    """The modification, and -inf where the mask forbids; the mask only in blocks that are not full."""

    def modified(s: Array) -> Array:
        if plan.modify is None:
            return s
        # Kept as computed: recomputed inside exp(s - m) it could be rounded otherwise than m was.
        return lax.optimization_barrier(plan.modify(s, floats, fixed.get("modify"), at, plan.sizes))

    if plan.allowed is None or full:
        return modified(s)
    allowed = plan.allowed(fixed.get("allowed"), at, plan.sizes)
    # What is masked is taken out before as well, as the derivative of the modification may be NaN there.
    s = s if plan.modify is None else jnp.where(allowed, s, 0)
    return jnp.where(allowed, modified(s), -jnp.inf)


def _dropped(plan: Plan, fixed: Any, at: At, x: Array) -> Array:
    """x where dropout keeps the pair, else 0."""
    if "row_bits" not in fixed:
        return x
    _, gk, G, bq, _ = x.shape
    bits = take(fixed["row_bits"], (at.b, at.k, 0, at.i, 0), (plan.sizes.gb, gk, G, bq, 2))
    return jnp.where(kept(bits, key_positions(at, plan.sizes), fixed["dropout_rate"]), x, 0)


def _product(axes: str, left: Array, right: Array, plan: Plan) -> Array:
    return jnp.einsum(axes, left, right, precision=plan.precision)


def _merged(x: Array) -> Array:
    """[gb gk G bq ...] -> [gb gk (G bq) ...]: the rows of one product."""
    return x.reshape(*x.shape[:2], x.shape[2] * x.shape[3], *x.shape[4:])


def _queries(plan: Plan, x: Array, at: At) -> Array:
    """[B T K G X] -> the block's rows [gb gk (G bq) X]."""
    part = take(x, (at.b, at.i, at.k, 0, 0), (plan.sizes.gb, plan.sizes.bq, plan.sizes.gk, *x.shape[3:]))
    return _merged(part.transpose(0, 2, 3, 1, 4)).astype(plan.dtype)


def _put_queries(plan: Plan, whole: Array, rows: Array, at: At) -> Array:
    """The inverse of `_queries`, in place."""
    gb, gk, x, _ = rows.shape
    part = rows.reshape(gb, gk, x // plan.sizes.bq, plan.sizes.bq, -1).transpose(0, 3, 1, 2, 4)
    return put(whole, part, (at.b, at.i, at.k, 0, 0))


def _take_rows(plan: Plan, x: Array, at: At) -> Array:
    """[B K G T] -> [gb gk G bq]."""
    sizes = plan.sizes
    return take(x, (at.b, at.k, 0, at.i), (sizes.gb, sizes.gk, x.shape[2], sizes.bq))


def _put_rows(whole: Array, rows: Array, at: At) -> Array:
    return put(whole, rows, (at.b, at.k, 0, at.i))


def _rows_of_group(plan: Plan, x: Array, at: At) -> Array:
    """[B S K X] -> [gb gk S X]."""
    part = take(x, (at.b, 0, at.k, 0), (plan.sizes.gb, x.shape[1], plan.sizes.gk, x.shape[3]))
    return part.transpose(0, 2, 1, 3).astype(plan.dtype)


def _finite(plan: Plan, x: Array) -> Array:
    """x, with NaN and Inf taken out where a mask may keep them from some queries (`attn.isolation`)."""
    return x if plan.allowed is None else finite_or_zero(x)


def _part(x: Array, at: At, plan: Plan) -> Array:
    """[gb gk S X] -> [gb gk bk X]."""
    return lax.dynamic_slice_in_dim(x, at.j, plan.sizes.bk, axis=2)


def _add_part(x: Array, change: Array, at: At, plan: Plan) -> Array:
    """Columns [gb gk X S] with `change` [gb gk X bk] added, in place."""
    part = lax.dynamic_slice_in_dim(x, at.j, plan.sizes.bk, axis=3)
    return lax.dynamic_update_slice_in_dim(x, part + change, at.j, axis=3)
