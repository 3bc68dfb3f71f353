"""What the loops of `blockwise` are made of: groups of rows, blocks of queries, blocks of keys, and the scores of one block.

Rows are the pairs of a batch entry and a key/value head.  A block of queries has the G query heads of each row one after the
other, as the rows of one product: [gb gk (G bq) H].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array

from attn.blocks import At, Blocks, add_scores_block, key_positions, put, scores_block, take
from attn.dropout import kept
from attn.isolation import finite_or_zero

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


class Group(NamedTuple):
    """The keys and values of a group of rows, heads first: [gb gk S H] and [gb gk S V]; and their tangents, if they move."""

    keys: Array
    values: Array
    key_change: Array | None
    value_change: Array | None


def over_groups(
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

        keys, values = finite(plan, rows(key)), finite(plan, rows(value))
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


def over_keys(plan: Plan, fixed: Any, at: At, block: Callable[[At, Any, bool], Any], state: Any, differentiable: bool) -> Any:
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


def block_scores(plan: Plan, inputs: Any, fixed: Any, at: At, query: Array, key: Array, full: bool) -> tuple[Array, Array]:
    """q . k + bias, modified and masked, [gb gk G bq bk]; and before both."""
    gb, gk, x, _ = query.shape
    s = product("bkxh,bkyh->bkxy", query, key, plan).reshape(gb, gk, x // plan.sizes.bq, plan.sizes.bq, -1)
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


def dropped(plan: Plan, fixed: Any, at: At, x: Array) -> Array:
    """x where dropout keeps the pair, else 0."""
    if "row_bits" not in fixed:
        return x
    _, gk, G, bq, _ = x.shape
    bits = take(fixed["row_bits"], (at.b, at.k, 0, at.i, 0), (plan.sizes.gb, gk, G, bq, 2))
    return jnp.where(kept(bits, key_positions(at, plan.sizes), fixed["dropout_rate"]), x, 0)


def product(axes: str, left: Array, right: Array, plan: Plan) -> Array:
    return jnp.einsum(axes, left, right, precision=plan.precision)


def merged(x: Array) -> Array:
    """[gb gk G bq ...] -> [gb gk (G bq) ...]: the rows of one product."""
    return x.reshape(*x.shape[:2], x.shape[2] * x.shape[3], *x.shape[4:])


def queries_block(plan: Plan, x: Array, at: At) -> Array:
    """[B T K G X] -> the block's rows [gb gk (G bq) X]."""
    part = take(x, (at.b, at.i, at.k, 0, 0), (plan.sizes.gb, plan.sizes.bq, plan.sizes.gk, *x.shape[3:]))
    return merged(part.transpose(0, 2, 3, 1, 4)).astype(plan.dtype)


def put_queries(plan: Plan, whole: Array, rows: Array, at: At) -> Array:
    """The inverse of `queries_block`, in place."""
    gb, gk, x, _ = rows.shape
    part = rows.reshape(gb, gk, x // plan.sizes.bq, plan.sizes.bq, -1).transpose(0, 3, 1, 2, 4)
    return put(whole, part, (at.b, at.i, at.k, 0, 0))


def take_rows(plan: Plan, x: Array, at: At) -> Array:
    """[B K G T] -> [gb gk G bq]."""
    sizes = plan.sizes
    return take(x, (at.b, at.k, 0, at.i), (sizes.gb, sizes.gk, x.shape[2], sizes.bq))


def put_rows(whole: Array, rows: Array, at: At) -> Array:
    return put(whole, rows, (at.b, at.k, 0, at.i))


def _rows_of_group(plan: Plan, x: Array, at: At) -> Array:
    """[B S K X] -> [gb gk S X]."""
    part = take(x, (at.b, 0, at.k, 0), (plan.sizes.gb, x.shape[1], plan.sizes.gk, x.shape[3]))
    return part.transpose(0, 2, 1, 3).astype(plan.dtype)


def finite(plan: Plan, x: Array) -> Array:
    """x, with NaN and Inf taken out where a mask may keep them from some queries (`attn.isolation`)."""
    return x if plan.allowed is None else finite_or_zero(x)


def keys_block(x: Array, at: At, plan: Plan) -> Array:
    """[gb gk S X] -> [gb gk bk X]."""
    return lax.dynamic_slice_in_dim(x, at.j, plan.sizes.bk, axis=2)


def add_columns(x: Array, change: Array, at: At, plan: Plan) -> Array:
    """Columns [gb gk X S] with `change` [gb gk X bk] added, in place."""
    part = lax.dynamic_slice_in_dim(x, at.j, plan.sizes.bk, axis=3)
    return lax.dynamic_update_slice_in_dim(x, part + change, at.j, axis=3)


def score_change(
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


def back_through_scores(
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
