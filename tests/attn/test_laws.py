"""One table of attention functions x one list of laws.  A new function enters by one row in SUBJECTS.

A row adapts its function to `attend(query [T D], key [S D], value [S D], mask [T S] or None) -> context [T D]`, with any
number of batch axes in front.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import attn

T, S, D = 3, 4, 4


def softmax_of_scores(query, key, value, mask):
    return attn.masked_softmax(query @ jnp.swapaxes(key, -2, -1), mask).astype(value.dtype) @ value


def additive(query, key, value, mask):
    params = attn.init_additive(jax.random.key(7), D, D, 5, dtype=query.dtype)
    return attn.additive_attention(query, key, value, params, mask=mask)


def additive_in_steps(query, key, value, mask):
    """One query at a time, as a decoder does, with U h computed once."""
    params = attn.init_additive(jax.random.key(7), D, D, 5, dtype=query.dtype)
    projected = attn.project_keys(key, params)
    steps = [
        attn.additive_attention(
            query[..., i : i + 1, :],
            None,
            value,
            params,
            mask=None if mask is None else mask[..., i : i + 1, :],
            projected_keys=projected,
        )
        for i in range(query.shape[-2])
    ]
    return jnp.concatenate(steps, axis=-2) if steps else value[..., :0, :]


def one_head(query, key, value, mask):
    return _with_heads(attn.dot_product_attention, 1, 1)(query, key, value, mask)


def grouped_heads(query, key, value, mask):
    """Two heads of the query, one of the keys; each gives half of the context."""

    def attend(query, key, value, **options):
        return jnp.mean(attn.dot_product_attention_and_lse(query, key, value, **options)[0], axis=-2, keepdims=True)

    return _with_heads(attend, 2, 1)(query, key[..., : D // 2], value, mask)


def multi_head(query, key, value, mask):
    params = attn.init_multi_head(jax.random.key(8), D, 2, dtype=query.dtype)
    return attn.multi_head_attention(params, query, key, value, mask=None if mask is None else mask[..., None, :, :])


def _with_heads(attend, num_heads, num_kv_heads):
    def attend_one(query, key, value, mask):
        mask = None if mask is None else mask[..., None, :, :]
        split = attn.split_heads
        return attn.merge_heads(attend(split(query, num_heads), split(key, num_kv_heads), split(value, num_kv_heads), mask=mask))

    return attend_one


class Subject(NamedTuple):
    attend: Callable
    exempt: frozenset[str] = frozenset()
    """Laws that the function cannot obey; the row says why."""


SUBJECTS = {
    # The product with the values is the test's own, so it cannot keep NaN in a value out.
    "masked_softmax": Subject(softmax_of_scores, frozenset({"masked_nan_has_no_influence", "half_precision"})),
    "additive_attention": Subject(additive),
    "additive_attention, projected keys": Subject(additive_in_steps),
    "dot_product_attention": Subject(one_head),
    "dot_product_attention_and_lse, grouped": Subject(grouped_heads),
    # Its values go through two linear maps.
    "multi_head_attention": Subject(multi_head, frozenset({"convex_hull"})),
}
LAWS = {}


def law(function):
    LAWS[function.__name__] = function
    return function


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_law(subject, law):
    if law in SUBJECTS[subject].exempt:
        return
    LAWS[law](SUBJECTS[subject].attend)


def arrays(*batch, dtype=jnp.float32, seed=0, T=T, S=S):
    draw = np.random.default_rng(seed).normal
    return [jnp.asarray(draw(size=(*batch, n, D)), dtype) for n in (T, S, S)]


MASK = jnp.array([[1, 1, 0, 1], [0, 0, 0, 0], [0, 1, 0, 1]], bool)


def close(a, b, atol=1e-5):
    np.testing.assert_allclose(np.asarray(a, float), np.asarray(b, float), atol=atol)


def value_and_gradients(attend, query, key, value, mask, weight=1.0):
    def loss(query, key, value):
        context = attend(query, key, value, mask)
        return (context * weight).sum(), context

    (_, context), grads = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))(query, key, value)
    return context, grads


@law
def jit_equals_eager(attend):
    for mask in (None, MASK):
        close(jax.jit(attend)(*arrays(), mask), attend(*arrays(), mask), 1e-6)


@law
def vmap_equals_loop(attend):
    single, batched = [*arrays(), MASK], [*arrays(2, seed=1), jnp.stack([MASK, ~MASK])]
    for axes in [(0, None, None, None), (None, 0, 0, None), (None, None, None, 0), (0, None, 0, 0)]:
        given = [b if axis == 0 else s for axis, b, s in zip(axes, batched, single, strict=True)]
        together = jax.jit(jax.vmap(attend, in_axes=axes))(*given)
        for i in range(2):
            close(together[i], jax.jit(attend)(*(x[i] if axis == 0 else x for axis, x in zip(axes, given, strict=True))))


@law
def batch_axes_equal_vmap(attend):
    query, key, value = arrays(2, 1, 3)
    mask = jnp.broadcast_to(MASK, (2, 1, 3, T, S))
    together = jax.jit(attend)(query, key, value, mask)
    mapped = attend
    for _ in range(3):
        mapped = jax.vmap(mapped)
    close(together, jax.jit(mapped)(query, key, value, mask))
    close(together, jax.jit(attend)(query, key, value, MASK[None, None, None]))


@law
def derivatives_of_both_modes_and_orders(attend):
    jax.config.update("jax_enable_x64", True)
    try:
        given = arrays(dtype=jnp.float64)
        check_grads(jax.jit(lambda *a: attend(*a, MASK)), given, order=2, modes=("fwd", "rev"), atol=1e-6, rtol=1e-6)
    finally:
        jax.config.update("jax_enable_x64", False)


@law
def half_precision(attend):
    query, key, value = arrays(8, T=8, S=16)
    for dtype in (jnp.bfloat16, jnp.float16):
        low = [x.astype(dtype) for x in (query, key, value)]
        context = jax.jit(attend)(*low, None)
        assert context.dtype == dtype
        exact = attend(*(x.astype(jnp.float32) for x in low), None)
        # Twice the rounding of a context that is computed exactly and then stored.
        close(context, exact, 2 * float(jnp.max(jnp.abs(exact))) * float(jnp.finfo(dtype).eps))


@law
def permutations(attend):
    query, key, value = arrays()
    jitted = jax.jit(attend)
    context = jitted(query, key, value, MASK)
    keys, queries = jnp.array([2, 0, 3, 1]), jnp.array([1, 2, 0])
    close(jitted(query, key[keys], value[keys], MASK[:, keys]), context)
    close(jitted(query[queries], key, value, MASK[queries]), context[queries])


@law
def convex_hull(attend):
    query, key, value = arrays(20)
    context = jax.jit(attend)(10 * query, key, value, None)
    low, high = value.min(-2, keepdims=True), value.max(-2, keepdims=True)
    low, high = (low, high) if context.shape[-1] == D else (low.min(-1), high.max(-1))
    assert bool(((low - 1e-5 <= context) & (context <= high + 1e-5)).all())
    close(jax.jit(attend)(query, key, jnp.ones_like(value), None), jnp.ones_like(context))


@law
def empty_row_is_zero(attend):
    context, grads = value_and_gradients(attend, *arrays(), MASK, jnp.array([[0.0], [1.0], [0.0]]))
    assert not context[1].any()
    assert all(not grad.any() for grad in grads)
    with jax.debug_nans(True):
        value_and_gradients(attend, *arrays(), MASK)
        value_and_gradients(attend, *arrays(), jnp.zeros((T, S), bool))


@law
def masked_nan_has_no_influence(attend):
    query, key, value = arrays()
    weight = jnp.array([[1.0], [1.0], [0.0]])
    mask = jnp.array([[1, 1, 0, 1], [0, 0, 0, 0], [0, 1, 1, 1]], bool)
    expected, expected_grads = value_and_gradients(attend, query, key, value, mask, weight)
    for bad in (jnp.nan, jnp.inf, -jnp.inf):
        # Key and value 2 are seen by query 2 only, which the loss does not look at; query 1 sees nothing.
        query_, key_, value_ = query.at[1].set(bad), key.at[2, 0].set(bad), value.at[2, 1].set(bad)
        for given in ((query_, key, value), (query, key_, value), (query, key, value_), (query_, key_, value_)):
            context, grads = value_and_gradients(attend, *given, mask, weight)
            np.testing.assert_array_equal(context[:2], expected[:2])
            rows = [given[0] is query_, given[1] is key_, given[2] is value_]
            assert jnp.isnan(context[2]).any() == (rows[1] or rows[2])
            mask_all = mask.at[2, 2].set(False)
            wanted = value_and_gradients(attend, query, key, value, mask_all)
            for a, b in zip(jax.tree.leaves(value_and_gradients(attend, *given, mask_all)), jax.tree.leaves(wanted), strict=True):
                np.testing.assert_array_equal(a, b)
            for grad, wanted_grad in zip(grads, expected_grads, strict=True):
                close(grad, wanted_grad, 1e-6)


@law
def lengths_zero_and_one(attend):
    for t, s in ((0, 3), (3, 0), (0, 0), (1, 1)):
        query, key, value = arrays(T=t, S=s)
        for mask in (None, jnp.ones((t, s), bool)):
            context, grads = value_and_gradients(attend, query, key, value, mask)
            assert context.shape[0] == t
            assert s or not context.any()
            assert [g.shape for g in grads] == [x.shape for x in (query, key, value)]


@law
def future_is_not_seen(attend):
    query, key, value = arrays(T=S)
    mask = attn.causal_mask(S)
    jitted = jax.jit(attend)
    context = jitted(query, key, value, mask)
    for i in range(1, S):
        later = jitted(query, key.at[i:].add(100.0), value.at[i:].add(100.0), mask)
        np.testing.assert_array_equal(later[:i], context[:i])
        assert jnp.abs(later[i] - context[i]).max() > 1


@law
def checkpoint_and_scan(attend):
    query, key, value = arrays()

    def body(query, _):
        return jax.checkpoint(attend)(query, key, value, MASK) + query, None

    def scanned(query):
        return jax.lax.scan(body, query, length=2)[0].sum()

    def unrolled(query):
        return body(body(query, None)[0], None)[0].sum()

    if attend(query, key, value, MASK).shape == query.shape:
        close(jax.jit(jax.grad(scanned))(query), jax.jit(jax.grad(unrolled))(query))


@law
def wrong_masks_are_refused(attend):
    query, key, value = arrays(2)
    for mask in (jnp.zeros((2, T, S)), jnp.ones((2, T, S), jnp.int32)):
        with pytest.raises(TypeError, match="bias"):
            attend(query, key, value, mask)
    with pytest.raises(ValueError, match=r"mask: expected shape .*= \(2, .*got \(3, "):
        attend(query, key, value, jnp.ones((3, T, S), bool))


@law
def integers_are_refused(attend):
    query, key, value = arrays()
    with pytest.raises(TypeError, match=r"floating|Float"):
        attend(query.astype(jnp.int32), key, value, None)
