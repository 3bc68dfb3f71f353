"""One table of attention functions x one list of laws.  A new function enters by one row in SUBJECTS.

A row adapts its function to `attend(query [T D], key [S D], value [S D], mask [T S] or None) -> context [T D]`, with any
number of batch axes in front.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import attn

T, S, D = 3, 4, 4


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


ADDITIVE = attn.AdditiveParams(normal(1, D, 5), normal(2, D, 5), normal(3, 5))
MULTI_HEAD = attn.MultiHeadParams(normal(4, D, 2, 2) / 2, normal(5, D, 2, 2) / 2, normal(6, D, 2, 2) / 2, normal(7, 2, 2, D) / 2)


def softmax_of_scores(query, key, value, mask):
    return attn.masked_softmax(query @ jnp.swapaxes(key, -2, -1), mask).astype(value.dtype) @ value


def additive(query, key, value, mask):
    return attn.additive_attention(query, key, value, parameters(ADDITIVE), mask=mask)


def one_head(query, key, value, mask):
    return _with_heads(attn.dot_product_attention, 1, 1)(query, key, value, mask)


def grouped_heads(query, key, value, mask):
    """Two heads of the query, one of the keys; each gives half of the context."""

    def attend(query, key, value, **options):
        return jnp.mean(attn.dot_product_attention_and_lse(query, key, value, **options)[0], axis=-2, keepdims=True)

    return _with_heads(attend, 2, 1)(query, key[..., : D // 2], value, mask)


def multi_head(query, key, value, mask):
    mask = None if mask is None else mask[..., None, :, :]
    return attn.multi_head_attention(parameters(MULTI_HEAD), query, key, value, mask=mask)


def parameters(arrays):
    return jax.tree.map(jnp.asarray, arrays)


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
    # The products with keys and values are the test's own: they cannot keep NaN out, nor refuse integers.
    "masked_softmax": Subject(
        softmax_of_scores, frozenset({"masked_nan_has_no_influence", "half_precision", "integers_are_refused"})
    ),
    "additive_attention": Subject(additive),
    "dot_product_attention": Subject(one_head),
    "dot_product_attention_and_lse, grouped": Subject(grouped_heads),
    # Its values go through two linear maps.
    "multi_head_attention": Subject(multi_head, frozenset({"convex_hull"})),
}
LAWS = {}


def law(function):
    LAWS[function.__name__] = function
    return function


def arrays(*batch, dtype=jnp.float32, seed=0, T=T, S=S):
    draw = np.random.default_rng(seed).normal
    return [jnp.asarray(draw(size=(*batch, n, D)), dtype) for n in (T, S, S)]


MASK = jnp.array([[1, 1, 0, 1], [0, 0, 0, 0], [0, 1, 0, 1]], bool)


def close(a, b, atol=1e-5):
    np.testing.assert_allclose(np.asarray(a, float), np.asarray(b, float), atol=atol)


@lru_cache
def jitted(attend):
    return jax.jit(attend)


@lru_cache
def jitted_gradients(attend):
    def loss(query, key, value, mask, weight):
        context = attend(query, key, value, mask)
        return (context * weight).sum(), context

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))


def value_and_gradients(attend, query, key, value, mask, weight=None):
    weight = jnp.ones((len(query), 1)) if weight is None else weight
    (_, context), grads = jitted_gradients(attend)(query, key, value, mask, weight)
    return context, grads


@law
def jit_equals_eager(attend):
    for mask in (None, MASK):
        close(jitted(attend)(*arrays(), mask), attend(*arrays(), mask), 1e-6)


@law
def vmap_equals_loop(attend):
    single, batched = [*arrays(), MASK], [*arrays(2, seed=1), jnp.stack([MASK, ~MASK])]
    for axes in [(None, 0, None, None), (None, None, None, 0), (0, None, 0, 0)]:
        given = [b if axis == 0 else s for axis, b, s in zip(axes, batched, single, strict=True)]
        together = jax.jit(jax.vmap(attend, in_axes=axes))(*given)
        for i in range(2):
            close(together[i], jitted(attend)(*(x[i] if axis == 0 else x for axis, x in zip(axes, given, strict=True))))


@law
def batch_axes_equal_vmap(attend):
    query, key, value = arrays(2, 1, 3)
    mask = jnp.broadcast_to(MASK, (2, 1, 3, T, S))
    together = jitted(attend)(query, key, value, mask)
    mapped = attend
    for _ in range(3):
        mapped = jax.vmap(mapped)
    close(together, jax.jit(mapped)(query, key, value, mask))
    close(together, jitted(attend)(query, key, value, MASK[None, None, None]))


@law
def derivatives_of_both_modes_and_orders(attend):
    """jvp, and both ways to the Hessian, against central differences in float64."""
    jax.config.update("jax_enable_x64", True)
    try:
        flat, unflatten = ravel_pytree(arrays(dtype=jnp.float64))
        weight, direction = normal(1, T, 1), jnp.asarray(normal(2, *flat.shape), jnp.float64)

        def context(flat):
            return attend(*unflatten(flat), MASK)

        def gradient(flat):
            return jax.grad(lambda flat: (context(flat) ** 2 * weight).sum())(flat)

        def along(function):
            step = 1e-5 * direction
            return (jax.jit(function)(flat + step) - jax.jit(function)(flat - step)) / 2e-5

        slope = jax.jit(lambda flat: jax.jvp(context, (flat,), (direction,))[1])(flat)
        close(slope, along(context), 1e-7)
        curvature = along(gradient)
        close(jax.jit(lambda flat: jax.jvp(gradient, (flat,), (direction,))[1])(flat), curvature, 1e-7)
        close(jax.jit(jax.grad(lambda flat: gradient(flat) @ direction))(flat), curvature, 1e-7)
        assert jnp.abs(curvature).max() > 1e-3
    finally:
        jax.config.update("jax_enable_x64", False)


@law
def half_precision(attend):
    query, key, value = arrays(8, T=8, S=16)
    for dtype in (jnp.bfloat16, jnp.float16):
        low = [x.astype(dtype) for x in (query, key, value)]
        context = jitted(attend)(*low, None)
        assert context.dtype == dtype
        exact = attend(*(x.astype(jnp.float32) for x in low), None)
        # Twice the rounding of a context that is computed exactly and then stored.
        close(context, exact, 2 * float(jnp.max(jnp.abs(exact))) * float(jnp.finfo(dtype).eps))


@law
def permutations(attend):
    query, key, value = arrays()
    context = jitted(attend)(query, key, value, MASK)
    keys, queries = jnp.array([2, 0, 3, 1]), jnp.array([1, 2, 0])
    close(jitted(attend)(query, key[keys], value[keys], MASK[:, keys]), context)
    close(jitted(attend)(query[queries], key, value, MASK[queries]), context[queries])


@law
def convex_hull(attend):
    query, key, value = arrays()
    context = jitted(attend)(10 * query, key, value, None)
    low, high = value.min(-2, keepdims=True), value.max(-2, keepdims=True)
    assert bool(((low - 1e-5 <= context) & (context <= high + 1e-5)).all())
    close(jitted(attend)(query, key, jnp.ones_like(value), None), jnp.ones_like(context))


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
    # Query 1 sees nothing; key and value 2 are seen by query 2 only, which the loss does not look at, or by nobody.
    by_one, by_nobody = MASK.at[2, 2].set(True), MASK
    for bad in (jnp.nan, jnp.inf):
        bad_query, bad_key, bad_value = query.at[1].set(bad), key.at[2, 0].set(bad), value.at[2, 1].set(bad)
        for given in ((bad_query, key, value), (bad_query, bad_key, value), (query, key, bad_value)):
            for mask, loss_weight in ((by_one, weight), (by_nobody, jnp.ones_like(weight))):
                context, grads = value_and_gradients(attend, *given, mask, loss_weight)
                expected, expected_grads = value_and_gradients(attend, query, key, value, mask, loss_weight)
                rows = slice(2) if mask is by_one else slice(None)
                np.testing.assert_array_equal(context[rows], expected[rows])
                for grad, expected_grad in zip(grads, expected_grads, strict=True):
                    close(grad, expected_grad, 1e-6)
                if mask is by_one and (given[1] is bad_key or given[2] is bad_value):
                    assert jnp.isnan(context[2]).any()
                    loud = value_and_gradients(attend, *given, mask)[1]
                    assert not all(jnp.isfinite(grad).all() for grad in loud)


@law
def lengths_zero_and_one(attend):
    for t, s in ((0, 3), (3, 0), (0, 0), (1, 1)):
        query, key, value = arrays(T=t, S=s)
        context, grads = value_and_gradients(attend, query, key, value, None if t else jnp.ones((t, s), bool))
        assert context.shape[0] == t
        assert s or not context.any()
        assert [g.shape for g in grads] == [x.shape for x in (query, key, value)]
    close(value_and_gradients(attend, *arrays(S=1), jnp.zeros((T, 1), bool))[0], 0.0)


@law
def future_is_not_seen(attend):
    query, key, value = arrays(T=S)
    mask = attn.causal_mask(S)
    context = jitted(attend)(query, key, value, mask)
    for i in range(1, S):
        later = jitted(attend)(query, key.at[i:].add(0.1), value.at[i:].add(100.0), mask)
        np.testing.assert_array_equal(later[:i], context[:i])
        assert jnp.abs(later[i] - context[i]).max() > 0.1


@law
def checkpoint_and_scan(attend):
    query, key, value = arrays()

    def body(query, _):
        return jax.checkpoint(attend)(query, key, value, MASK) + query, None

    def scanned(query):
        return jax.lax.scan(body, query, length=2)[0].sum()

    def unrolled(query):
        return body(body(query, None)[0], None)[0].sum()

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


APPLICABLE = [(subject, law) for subject in SUBJECTS for law in LAWS if law not in SUBJECTS[subject].exempt]


@pytest.mark.parametrize(("subject", "law"), APPLICABLE)
def test_law(subject, law):
    LAWS[law](SUBJECTS[subject].attend)


def test_exemptions_name_laws():
    assert all(subject.exempt <= LAWS.keys() for subject in SUBJECTS.values())
