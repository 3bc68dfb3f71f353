"""Joining attention over two sets of keys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import attn

pytestmark = pytest.mark.usefixtures("quick_compilation")

T, S, N, K, H = 3, 6, 4, 2, 3
QUERY, KEY, VALUE = (
    jax.random.normal(key, shape)
    for key, shape in zip(jax.random.split(jax.random.key(0), 3), [(T, N, H), (S, K, H), (S, K, 2)], strict=True)
)
attend = jax.jit(attn.dot_product_attention_and_lse)
part = jax.jit(lambda mask: attn.dot_product_attention_and_lse(QUERY, KEY, VALUE, mask=mask[None]))


@settings(max_examples=25, deadline=None)
@given(owners=st.lists(st.lists(st.integers(0, 2), min_size=S, max_size=S), min_size=T, max_size=T))
def test_any_split_of_the_keys_gives_the_whole(owners):
    """Key j of query i belongs to part a, to part b or to none."""
    owners = np.array(owners)
    whole, whole_lse = part(owners > 0)
    context, lse = attn.merge_attention(*part(owners == 1), *part(owners == 2))
    np.testing.assert_allclose(context, whole, atol=1e-6)
    np.testing.assert_allclose(lse, whole_lse, atol=1e-6)


def test_order_of_three_parts_does_not_matter():
    parts = [part(jnp.broadcast_to(jnp.arange(S) // 2 == n, (T, S))) for n in range(3)]
    first = attn.merge_attention(*attn.merge_attention(*parts[0], *parts[1]), *parts[2])
    last = attn.merge_attention(*parts[0], *attn.merge_attention(*parts[2], *parts[1]))
    for a, b, whole in zip(first, last, attend(QUERY, KEY, VALUE), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
        np.testing.assert_allclose(a, whole, atol=1e-6)


def test_gradient_through_both_parts_is_that_of_the_whole(x64):
    arrays = [jnp.asarray(x, jnp.float64) for x in (QUERY, KEY, VALUE)]

    def loss(whole, query, key, value):
        if whole:
            context, lse = attn.dot_product_attention_and_lse(query, key, value, is_causal=True)
        else:
            first = attn.dot_product_attention_and_lse(query, key[:2], value[:2], is_causal=True)
            rest = attn.dot_product_attention_and_lse(query, key[2:], value[2:], is_causal=True, query_offset=-2)
            context, lse = attn.merge_attention(*first, *rest)
        return (context**2).sum() + jnp.sin(lse).sum()

    gradients = jax.jit(jax.grad(loss, argnums=(1, 2, 3)), static_argnums=0)
    for a, b in zip(gradients(True, *arrays), gradients(False, *arrays), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


def test_two_empty_parts_and_what_an_empty_part_holds():
    context, lse = jnp.full((T, N, 2), jnp.nan), jnp.full((N, T), -jnp.inf)
    merged, merged_lse = attn.merge_attention(context, lse, context, lse)
    assert not merged.any()
    assert (merged_lse == -jnp.inf).all()
    other = attend(QUERY, KEY, VALUE)
    for a, b in zip(attn.merge_attention(context, lse, *other), other, strict=True):
        np.testing.assert_array_equal(a, b)
    gradient = jax.grad(lambda *a: attn.merge_attention(*a)[0].sum(), argnums=(0, 1, 2, 3))(context, lse, *other)
    assert all(jnp.isfinite(leaf).all() for leaf in gradient)


@pytest.mark.parametrize("spoilt", [0, 1])
def test_nan_stays_in_its_row(spoilt):
    """Value and gradient of the rows beside it, when the loss does not look at it."""
    first, rest = list(attend(QUERY, KEY[:2], VALUE[:2])), list(attend(QUERY, KEY[2:], VALUE[2:]))
    loss = jax.jit(
        jax.grad(
            lambda *a: sum(x.sum() for x in (attn.merge_attention(*a)[0][1:], attn.merge_attention(*a)[1][:, 1:])),
            argnums=(0, 1, 2, 3),
        )
    )
    wanted = loss(*first, *rest)
    first[spoilt] = first[spoilt].at[:, 0].set(jnp.nan) if spoilt else first[spoilt].at[0].set(jnp.nan)
    context, lse = attn.merge_attention(*first, *rest)
    assert jnp.isnan(context[0]).all()
    assert jnp.isfinite(context[1:]).all()
    assert bool(jnp.isnan(lse[:, 0]).all()) == bool(spoilt)
    assert jnp.isfinite(lse[:, 1:]).all()
    for grad, clean in zip(loss(*first, *rest), wanted, strict=True):
        np.testing.assert_allclose(grad, clean, atol=1e-6)


def test_half_precision_contexts_keep_their_type():
    context, lse = attend(*(x.astype(jnp.bfloat16) for x in (QUERY, KEY, VALUE)))
    merged, merged_lse = attn.merge_attention(context, lse, context, lse)
    assert merged.dtype == jnp.bfloat16
    assert merged_lse.dtype == jnp.float32
    np.testing.assert_allclose(merged_lse, lse + np.log(2), atol=1e-6)


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        (r"lse_a: expected shape \(\*B, N, T\) = \(4, 3\), got \(3, 4\)", {1: jnp.zeros((T, N))}),
        (r"context_b: expected shape \(\*B, T, N, V\) = \(3, 4, 2\), got \(3, 4, 1\)", {2: jnp.zeros((T, N, 1))}),
    ],
)
def test_wrong_shapes_are_named(message, changes):
    arrays = dict(enumerate([*attend(QUERY, KEY, VALUE)] * 2)) | changes
    with pytest.raises(ValueError, match=message):
        attn.merge_attention(*arrays.values())
