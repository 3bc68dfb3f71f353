"""One table of attention functions (mechanisms.py) x one list of laws."""

import itertools
from functools import lru_cache

import attention_reference as reference
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from mechanisms import MECHANISMS, D, S, T, normal
from parts import PARTS

import attn

LAWS = {}


def law(function):
    LAWS[function.__name__] = function
    return function


def arrays(*batch, dtype=jnp.float32, seed=0, T=T, S=S):
    draw = np.random.default_rng(seed).normal
    return [jnp.asarray(draw(size=(*batch, n, D)), dtype) for n in (T, S, S)]


# Query 1 sees nothing; nobody sees key 2.
ANY_MASK = jnp.array([[1, 1, 0, 1], [0, 0, 0, 0], [0, 1, 0, 1]], bool)
THREE_KEYS = jnp.broadcast_to(jnp.arange(S) < 3, (T, S))
MASKS = {"mask": (ANY_MASK, ~ANY_MASK), "lengths": (THREE_KEYS, ~THREE_KEYS[:, ::-1])}


def mask_of(mechanism):
    return MASKS[mechanism.takes][0]


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


# Laws about exact values are compiled as users compile; the others quickly, which halves their time.
AS_USERS_COMPILE = {
    "value_equals_reference",
    "gradient_equals_reference",
    "jit_equals_eager",
    "half_precision",
    "empty_row_is_zero",
    "masked_nan_has_no_influence",
    "nan_stays_with_the_queries_that_attend_to_it",
}


@pytest.fixture
def configured(law):
    jax.config.update("jax_disable_most_optimizations", law not in AS_USERS_COMPILE)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
    jax.config.update("jax_enable_x64", False)


@law
def value_equals_reference(mechanism):
    jax.config.update("jax_enable_x64", True)
    given = arrays(dtype=jnp.float64)
    for mask in (None, mask_of(mechanism)):
        allowed = np.ones((T, S), bool) if mask is None else np.asarray(mask)
        context = jax.jit(mechanism.attend)(*given, mask)
        assert context.dtype == jnp.float64
        close(context, mechanism.reference(*map(np.asarray, given), allowed), 1e-12)


@law
def gradient_equals_reference(mechanism):
    jax.config.update("jax_enable_x64", True)
    given, mask, weight = arrays(dtype=jnp.float64), mask_of(mechanism), normal(9, T, D).astype(np.float64)

    def expected(*given):
        return (mechanism.reference(*given, np.asarray(mask)) * weight).sum()

    grads = jax.jit(jax.grad(lambda *given: (mechanism.attend(*given, mask) * weight).sum(), argnums=(0, 1, 2)))(*given)
    for grad, numeric in zip(grads, reference.gradient(expected, *map(np.array, given)), strict=True):
        close(grad, numeric, 1e-8)
    assert all(jnp.isfinite(grad).all() for grad in grads)


@law
def jit_equals_eager(mechanism):
    for mask in (None, mask_of(mechanism)):
        close(jitted(mechanism.attend)(*arrays(), mask), mechanism.attend(*arrays(), mask), 1e-6)


@law
def vmap_over_any_subset_equals_loop(mechanism):
    attend, masks = mechanism.attend, MASKS[mechanism.takes]
    single, batched = [*arrays(), masks[0]], [*arrays(2, seed=1), jnp.stack(masks)]
    subsets = [axes for axes in itertools.product((None, 0), repeat=4) if axes != (None,) * 4]

    def chosen(axes, mapped, unmapped):
        return [b if axis == 0 else s for axis, b, s in zip(axes, mapped, unmapped, strict=True)]

    @jax.jit
    def together(single, batched):
        return [jax.vmap(attend, in_axes=axes)(*chosen(axes, batched, single)) for axes in subsets]

    for axes, contexts in zip(subsets, together(single, batched), strict=True):
        for i, context in enumerate(contexts):
            close(context, jitted(attend)(*chosen(axes, [x[i] for x in batched], single)))


@law
def batch_axes_equal_vmap(mechanism):
    attend, mask = mechanism.attend, mask_of(mechanism)
    query, key, value = arrays(2, 1, 3)
    masks = jnp.broadcast_to(mask, (2, 1, 3, T, S))
    together = jitted(attend)(query, key, value, masks)
    mapped = attend
    for _ in range(3):
        mapped = jax.vmap(mapped)
    close(together, jax.jit(mapped)(query, key, value, masks))
    close(together, jitted(attend)(query, key, value, mask[None, None, None]))


@law
def derivatives_of_both_modes_and_orders(mechanism):
    """jvp, and both ways to the Hessian, against central differences in float64."""
    jax.config.update("jax_enable_x64", True)
    flat, unflatten = ravel_pytree(arrays(dtype=jnp.float64))
    weight, direction = normal(1, T, 1), jnp.asarray(normal(2, *flat.shape), jnp.float64)

    def context(flat):
        return mechanism.attend(*unflatten(flat), mask_of(mechanism))

    def gradient(flat):
        return jax.grad(lambda flat: (context(flat) ** 2 * weight).sum())(flat)

    def along(function, flat):
        step = 1e-5 * direction
        return (function(flat + step) - function(flat - step)) / 2e-5

    @jax.jit
    def slopes(flat):
        """Of the context and of the gradient, by differentiation and by differences."""
        forward = jax.jvp(context, (flat,), (direction,))[1], along(context, flat)
        of_gradient = along(gradient, flat)
        forward_over_reverse = jax.jvp(gradient, (flat,), (direction,))[1]
        reverse_over_reverse = jax.grad(lambda flat: gradient(flat) @ direction)(flat)
        return forward, (forward_over_reverse, of_gradient), (reverse_over_reverse, of_gradient)

    for slope, difference in slopes(flat):
        close(slope, difference, 1e-7)
        assert jnp.abs(difference).max() > 1e-3


@law
def half_precision(mechanism):
    query, key, value = arrays(8, T=8, S=16)
    for dtype in (jnp.bfloat16, jnp.float16):
        low = [x.astype(dtype) for x in (query, key, value)]
        context = jitted(mechanism.attend)(*low, None)
        assert context.dtype == dtype
        exact = jitted(mechanism.attend)(*(x.astype(jnp.float32) for x in low), None)
        # Twice the rounding of a context that is computed exactly and then stored: less than a dense computation in `dtype` errs.
        close(context, exact, 2 * float(jnp.max(jnp.abs(exact))) * float(jnp.finfo(dtype).eps))


@law
def permutations(mechanism):
    query, key, value = arrays()
    keys, queries = jnp.array([2, 0, 3, 1]), jnp.array([1, 2, 0])
    masked = mechanism.takes == "mask"
    mask, by_key, by_query = (ANY_MASK, ANY_MASK[:, keys], ANY_MASK[queries]) if masked else (None, None, None)
    context = jitted(mechanism.attend)(query, key, value, mask)
    close(jitted(mechanism.attend)(query, key[keys], value[keys], by_key), context)
    close(jitted(mechanism.attend)(query[queries], key, value, by_query), context[queries])


@law
def convex_hull(mechanism):
    query, key, value = arrays()
    context = jitted(mechanism.attend)(10 * query, key, value, None)
    low, high = value.min(-2, keepdims=True), value.max(-2, keepdims=True)
    assert bool(((low - 1e-5 <= context) & (context <= high + 1e-5)).all())


@law
def weights_sum_to_one_or_zero(mechanism):
    """Values of one give the sums of the weights."""
    query, key, value = arrays()
    close(jitted(mechanism.attend)(query, key, jnp.ones_like(value), None), jnp.ones_like(query))
    mask = mask_of(mechanism)
    sums = jitted(mechanism.attend)(query, key, jnp.ones_like(value), mask)
    assert bool(((abs(sums) < 1e-5) | (abs(sums - 1) < 1e-5)).all())
    if mechanism.takes == "mask" and "permutations" not in mechanism.exempt:
        close(sums, jnp.broadcast_to(mask.any(-1, keepdims=True), sums.shape))


@law
def empty_row_is_zero(mechanism):
    nothing = jnp.zeros((T, S), bool)
    if mechanism.takes == "mask":
        context, grads = value_and_gradients(mechanism.attend, *arrays(), ANY_MASK, jnp.array([[0.0], [1.0], [0.0]]))
        assert not context[1].any()
        assert all(not grad.any() for grad in grads)
    context, grads = value_and_gradients(mechanism.attend, *arrays(), nothing)
    assert not context.any()
    assert all(not grad.any() for grad in grads)
    with jax.debug_nans(True):
        value_and_gradients(mechanism.attend, *arrays(), mask_of(mechanism))
        value_and_gradients(mechanism.attend, *arrays(), nothing)


@law
def masked_nan_has_no_influence(mechanism):
    """A key or value that nobody attends to, and a query that attends to nothing, may hold NaN or Inf."""
    query, key, value = arrays()
    mask, unseen = mask_of(mechanism), 2 if mechanism.takes == "mask" else 3
    expected, expected_grads = value_and_gradients(mechanism.attend, query, key, value, mask)
    for bad in (jnp.nan, jnp.inf, -jnp.inf):
        for given in (
            (query.at[1].set(bad) if mechanism.takes == "mask" else query, key, value),
            (query, key.at[unseen, 0].set(bad), value),
            (query, key, value.at[unseen, 1].set(bad)),
        ):
            context, grads = value_and_gradients(mechanism.attend, *given, mask)
            np.testing.assert_array_equal(context, expected)
            for grad, expected_grad in zip(grads, expected_grads, strict=True):
                close(grad, expected_grad, 1e-6)


@law
def nan_stays_with_the_queries_that_attend_to_it(mechanism):
    """Key or value 2 is seen by query 2 only, which the loss does not look at."""
    query, key, value = arrays()
    mask, weight = ANY_MASK.at[2, 2].set(True), jnp.array([[1.0], [1.0], [0.0]])
    expected, expected_grads = value_and_gradients(mechanism.attend, query, key, value, mask, weight)
    for bad in (jnp.nan, jnp.inf):
        for given in ((query, key.at[2, 0].set(bad), value), (query, key, value.at[2, 1].set(bad))):
            context, grads = value_and_gradients(mechanism.attend, *given, mask, weight)
            np.testing.assert_array_equal(context[:2], expected[:2])
            for grad, expected_grad in zip(grads, expected_grads, strict=True):
                close(grad, expected_grad, 1e-6)
            assert not jnp.isfinite(context[2]).all()
            loud = value_and_gradients(mechanism.attend, *given, mask)[1]
            assert not all(jnp.isfinite(grad).all() for grad in loud)


@law
def lengths_zero_and_one(mechanism):
    for t, s in ((0, 3), (3, 0), (0, 0), (1, 1)):
        query, key, value = arrays(T=t, S=s)
        context, grads = value_and_gradients(mechanism.attend, query, key, value, None if t else jnp.ones((t, s), bool))
        assert context.shape == (t, D)
        assert s or not context.any()
        assert [g.shape for g in grads] == [x.shape for x in (query, key, value)]
    close(value_and_gradients(mechanism.attend, *arrays(S=1), jnp.zeros((T, 1), bool))[0], 0.0)


@law
def future_is_not_seen(mechanism):
    query, key, value = arrays(T=S)
    mask = attn.causal_mask(S)
    causal = mechanism.causal or (lambda *given: mechanism.attend(*given, mask))
    context, changed = jitted(causal)(query, key, value), []
    for i in range(1, S):
        later = jitted(causal)(query, key.at[i:].add(0.1), value.at[i:].add(100.0))
        np.testing.assert_array_equal(later[:i], context[:i])
        changed.append(jnp.abs(later[i] - context[i]).max() > 0.1)
    # Sparse weights may give a query's own key nothing, but not all of them.
    assert any(changed)


@law
def checkpoint_and_scan(mechanism):
    query, key, value = arrays()
    mask = mask_of(mechanism)

    def body(query, _):
        return jax.checkpoint(mechanism.attend)(query, key, value, mask) + query, None

    def scanned(query):
        return jax.lax.scan(body, query, length=2)[0].sum()

    def unrolled(query):
        return body(body(query, None)[0], None)[0].sum()

    close(*jax.jit(lambda query: (jax.grad(scanned)(query), jax.grad(unrolled)(query)))(query))


@law
def wrong_masks_are_refused(mechanism):
    query, key, value = arrays(2)
    for mask in (jnp.zeros((2, T, S)), jnp.ones((2, T, S), jnp.int32)):
        with pytest.raises(TypeError, match="bias"):
            mechanism.attend(query, key, value, mask)
    with pytest.raises(ValueError, match=r"mask: expected shape .*= \(2, .*got \(3, "):
        mechanism.attend(query, key, value, jnp.ones((3, T, S), bool))


@law
def integers_are_refused(mechanism):
    query, key, value = arrays()
    for given in ((query.astype(int), key, value), (query, key.astype(int), value), (query, key, value.astype(int))):
        with pytest.raises(TypeError, match=r"expected a floating dtype, got int32"):
            mechanism.attend(*given, None)


@law
def wrong_shapes_are_named(mechanism):
    query, key, value = arrays(2)
    for name, given in ((r"key\w*|kernel", (query, key[..., :1], value)), (r"value\w*", (query, key, value[:, 1:]))):
        with pytest.raises(ValueError, match=rf"({name}): expected .*got \("):
            mechanism.attend(*given, None)


OF_MASKS = frozenset({"nan_stays_with_the_queries_that_attend_to_it", "wrong_masks_are_refused"})


def applies(name, mechanism):
    products = {"nan_stays_with_the_queries_that_attend_to_it", "wrong_shapes_are_named"}
    return (
        name not in mechanism.exempt
        and (mechanism.takes == "mask" or name not in OF_MASKS)
        and ("masked_nan_has_no_influence" not in mechanism.exempt or name not in products)
    )


APPLICABLE = [(name, law) for name, mechanism in MECHANISMS.items() for law in LAWS if applies(law, mechanism)]


@pytest.mark.parametrize(("mechanism", "law"), APPLICABLE)
@pytest.mark.usefixtures("configured")
def test_law(mechanism, law):
    LAWS[law](MECHANISMS[mechanism])


def test_exemptions_name_laws():
    assert all(mechanism.exempt <= LAWS.keys() for mechanism in MECHANISMS.values())


def test_every_public_function_has_a_row():
    functions = {name for name in attn.__all__ if not isinstance(getattr(attn, name), type)}
    rows = {name.split(",")[0] for name in (*MECHANISMS, *PARTS)}
    assert functions == rows
