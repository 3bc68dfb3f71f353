"""Sparse attention equals dense attention under the mask of the same name, and skips the work."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple

import attention_reference
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sparse_reference
from hypothesis import given, settings
from hypothesis import strategies as st

import attn
from attn import blockwise
from attn.block_loops import block_scores
from attn.sparse import (
    block_sparse_attention,
    dilated_attention,
    fixed_attention,
    sliding_window_attention,
    strided_attention,
    top_k_attention,
)

pytestmark = pytest.mark.usefixtures("quick_compilation")

N, K, H, V = 2, 1, 2, 3
BLOCKS = np.array([[1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]], bool)
"""For 3 blocks of queries and 4 of keys: rows with two, no and all blocks."""


class Pattern(NamedTuple):
    """A sparse function with its options, and its mask of T queries and S keys in plain loops."""

    attend: Callable
    mask: Callable


def causal_blocks(T, S, *, query_offset=0):
    blocks = sparse_reference.blocks(T, S, np.resize(BLOCKS, (3, 4)), 3)
    return blocks & sparse_reference.drawn(T, S, lambda i, j: j <= i + query_offset)


def pattern(attend, mask, block_size=None, **options):
    sized = options if block_size is None else {**options, "block_size": block_size}
    return Pattern(partial(attend, **sized), partial(mask, **options))


PATTERNS = {
    "window": pattern(sliding_window_attention, sparse_reference.sliding_window, 2, left=2, right=1),
    "window, open": pattern(sliding_window_attention, sparse_reference.sliding_window, left=None, right=0),
    "window, global": pattern(sliding_window_attention, sparse_reference.sliding_window, 3, left=1, right=0, num_global=2),
    "dilated": pattern(dilated_attention, sparse_reference.dilated, 2, left=1, right=1, dilation=3),
    "dilated, open": pattern(dilated_attention, sparse_reference.dilated, left=0, right=None, dilation=2),
    "strided": pattern(strided_attention, sparse_reference.strided, stride=3),
    "fixed": pattern(fixed_attention, sparse_reference.fixed, stride=3, summary=2),
    "blocks": Pattern(partial(block_sparse_attention, block_mask=BLOCKS, block_size=3, is_causal=True), causal_blocks),
}
CLOSED = [name for name in PATTERNS if "open" not in name]
T, S = 7, 11


def normal(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def arrays(*batch, T=T, S=S, dtype=np.float32):
    shapes = (*batch, T, N, H), (*batch, S, K, H), (*batch, S, K, V)
    return [jnp.asarray(normal(*shape, seed=seed, dtype=dtype)) for seed, shape in enumerate(shapes)]


@lru_cache
def dense():
    """Dense attention under any mask, and the gradients of a weighted sum of it."""
    return jax.jit(partial(value_and_gradients, attn.dot_product_attention))


def value_and_gradients(attend, query, key, value, weight, **options):
    def loss(query, key, value):
        context = attend(query, key, value, **options)
        return jnp.sum(context * weight), context

    (_, context), gradients = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)(query, key, value)
    return context, *gradients


@lru_cache
def sparse(name):
    return jax.jit(partial(value_and_gradients, PATTERNS[name].attend))


def masks(name, offsets, T=T, S=S):
    return jnp.array([PATTERNS[name].mask(T, S, query_offset=int(offset)) for offset in offsets])[:, None]


def close(a, b, atol=1e-5):
    np.testing.assert_allclose(np.asarray(a, float), np.asarray(b, float), atol=atol)


# --- meaning ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLOSED)
def test_value_and_gradients_are_those_of_the_plain_loops(name, x64):
    given = arrays(dtype=np.float64)
    weight = normal(T, N, V, seed=3, dtype=np.float64)
    options = {"query_offset": 2, "key_lengths": 10, "scale": 0.7, "softcap": 1.5}
    mask = np.broadcast_to(PATTERNS[name].mask(T, S, query_offset=2) & (np.arange(S) < 10), (N, T, S))

    def loops(query, key, value):
        return attention_reference.dot_product(query, key, value, mask, scale=0.7, softcap=1.5)[0]

    context, *gradients = sparse(name)(*given, weight, **options)
    numpy_arrays = [np.asarray(x) for x in given]
    close(context, loops(*numpy_arrays), 1e-12)
    wanted = attention_reference.gradient(lambda *arrays: (loops(*arrays) * weight).sum(), *numpy_arrays)
    for gradient, expected in zip(gradients, wanted, strict=True):
        close(gradient, expected, 1e-8)


@settings(max_examples=15, deadline=None)
@given(
    name=st.sampled_from(list(PATTERNS)),
    offsets=st.lists(st.integers(-S, S), min_size=2, max_size=2),
    lengths=st.lists(st.integers(0, S + 1), min_size=2, max_size=2),
    seed=st.integers(0, 99),
)
def test_offset_and_length_of_each_batch_entry(name, offsets, lengths, seed):
    """Offsets and lengths are traced, and one of each for a batch entry."""
    given, weight = arrays(2), normal(2, T, N, V, seed=seed)
    wanted = dense()(*given, weight, mask=masks(name, offsets), key_lengths=jnp.array(lengths))
    found = sparse(name)(*given, weight, query_offset=jnp.array(offsets), key_lengths=jnp.array(lengths))
    for a, b in zip(found, wanted, strict=True):
        close(a, b)


@pytest.mark.parametrize("size", [(1, 1), (5, 2), (2, 9)], ids=str)
@pytest.mark.parametrize("name", ["window, global", "dilated", "strided", "fixed"])
def test_any_two_lengths(name, size):
    given = arrays(T=size[0], S=size[1])
    close(PATTERNS[name].attend(*given), attn.dot_product_attention(*given, mask=masks(name, [0], *size)[0]))


@pytest.mark.parametrize("name", ["window, global", "dilated", "strided", "fixed"])
def test_no_keys_and_no_queries(name):
    for size in ((0, 2), (2, 0)):
        given = arrays(T=size[0], S=size[1])
        context, *gradients = sparse(name)(*given, jnp.ones((size[0], N, V)))
        assert context.shape == (size[0], N, V)
        assert not context.any()
        assert [g.shape for g in gradients] == [x.shape for x in given]
        assert not any(g.any() for g in gradients)


@pytest.mark.parametrize("name", CLOSED)
def test_masked_nan_has_no_influence(name):
    """Keys beyond the length are seen by nobody; key 5 only by rows that the loss does not look at."""
    query, key, value = arrays(2)
    offsets, options = [0, 1], {"query_offset": jnp.array([0, 1]), "key_lengths": jnp.array([9, 9])}
    blind = ~masks(name, offsets)[:, 0, :, 5]
    assert all(0 < count < T for count in blind.sum(axis=-1))
    weight = normal(2, T, N, V, seed=4) * blind[..., None, None]
    wanted, bad_keys = sparse(name)(query, key, value, weight, **options), jnp.array([5, 9])
    for bad in (jnp.nan, jnp.inf):
        for dirty in (
            (query, key.at[:, bad_keys, 0, 0].set(bad), value),
            (query, key, value.at[:, bad_keys, 0, 1].set(bad)),
        ):
            context, *gradients = sparse(name)(*dirty, weight, **options)
            np.testing.assert_array_equal(context[blind], wanted[0][blind])
            assert jnp.isnan(context[~blind]).any(axis=(-2, -1)).all()
            for gradient, clean in zip(gradients, wanted[1:], strict=True):
                close(gradient, clean, 1e-6)
            loud = sparse(name)(*dirty, jnp.ones_like(weight), **options)
            assert not all(jnp.isfinite(gradient).all() for gradient in loud[1:])


@pytest.mark.parametrize("name", CLOSED)
def test_queries_that_see_nothing_are_zero_and_give_no_gradient(name):
    query, key, value = arrays(2)
    options = {"query_offset": jnp.array([0, 1]), "key_lengths": jnp.array([0, 9])}
    context, *gradients = sparse(name)(query.at[0].set(jnp.nan), key, value, jnp.ones((2, T, N, V)), **options)
    assert not context[0].any()
    assert not any(gradient[0].any() for gradient in gradients)
    assert all(jnp.isfinite(gradient).all() and gradient[1].any() for gradient in gradients)


def test_half_precision_is_rounded_once():
    low = [x.astype(jnp.bfloat16) for x in arrays()]
    context, exact = (strided_attention(*(x.astype(dtype) for x in low), stride=3) for dtype in (jnp.bfloat16, jnp.float32))
    assert context.dtype == jnp.bfloat16
    close(context, exact, float(jnp.abs(exact).max() * jnp.finfo(jnp.bfloat16).eps))


# --- transformations -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["window, global", "blocks"])
def test_vmap_over_any_argument(name):
    def attend(query, key, value, query_offset):
        return PATTERNS[name].attend(query, key, value, query_offset=query_offset)

    batched, offsets = arrays(2), jnp.array([3, -1])
    single = [x[0] for x in batched]
    wanted = attn.dot_product_attention(single[0], batched[1][1], single[2], mask=masks(name, [3])[0])
    close(jax.jit(jax.vmap(attend, in_axes=(None, 0, None, None)))(single[0], batched[1], single[2], 3)[1], wanted)
    wanted = attn.dot_product_attention(batched[0], *(jnp.stack([x] * 2) for x in single[1:]), mask=masks(name, offsets))
    close(jax.jit(jax.vmap(attend, in_axes=(0, None, None, 0)))(batched[0], *single[1:], offsets), wanted)


@pytest.mark.parametrize("name", ["window, global", "blocks", "top_k"])
def test_both_modes_and_the_second_order(name, x64):
    """The slope, and the Hessian by two ways, along one direction, against dense attention."""
    given = tuple(arrays(dtype=np.float64))
    mask = jnp.asarray(selected(*given[:2], 3) if name == "top_k" else PATTERNS[name].mask(T, S)[None])
    attend = partial(top_k_attention, k=3, block_size=4) if name == "top_k" else PATTERNS[name].attend
    found, wanted = jax.jit(partial(derivatives, attend))(*given), dense_derivatives()(*given, mask=mask)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        close(a, b, 1e-11)


def derivatives(attend, *given, **options):
    along = tuple(jnp.asarray(normal(*x.shape, seed=5, dtype=np.float64)) for x in given)

    def loss(*given):
        return jnp.sum(attend(*given, **options) ** 2 * jnp.arange(1, 1 + V))

    def slope(*given):
        return jax.jvp(loss, given, along)[1]

    forward_over_reverse = jax.jvp(jax.grad(loss, argnums=(0, 1, 2)), given, along)[1]
    return slope(*given), forward_over_reverse, jax.grad(slope, argnums=(0, 1, 2))(*given)


@lru_cache
def dense_derivatives():
    return jax.jit(partial(derivatives, attn.dot_product_attention))


# --- what is special -------------------------------------------------------------------------------------------------------


def test_global_tokens_are_those_at_the_first_positions():
    """Queries before position 0 are none of them, and none are where the queries begin behind them."""
    query, key, value = arrays()
    for offset in (-3, 1, 5):
        context = sliding_window_attention(query, key, value, left=0, right=0, num_global=2, query_offset=offset)
        full = attn.dot_product_attention(query, key, value)
        whole = np.isclose(context, full, atol=1e-6).all(axis=(-2, -1))
        assert whole.tolist() == [0 <= i + offset < 2 for i in range(T)]


@pytest.mark.parametrize("axes", [(), (4,), (2, 4), (2, 1), (1, 4), (1, 1)], ids=str)
def test_block_masks_for_all_by_head_and_by_batch_entry(axes):
    query, key, value = (jnp.asarray(normal(2, n, heads, 2)) for n, heads in ((5, 4), (8, 2), (8, 2)))
    block_mask = np.random.default_rng(0).random((*axes, 3, 4)) < 0.5
    mask = np.repeat(np.repeat(block_mask, 2, axis=-2), 2, axis=-1)[..., :5, :]
    mask = jnp.asarray(mask.reshape((1,) * (4 - mask.ndim) + mask.shape))
    options = {"key_lengths": jnp.array([7, 3])}
    context = block_sparse_attention(query, key, value, block_mask, block_size=2, **options)
    close(context, attn.dot_product_attention(query, key, value, mask=mask, **options))


@pytest.mark.parametrize("block_size", [2, 5, 100, 600])
def test_blocks_of_any_size(block_size):
    """Smaller than what is visited at once, no multiple of eight, larger than the cache."""
    T, S = 3 * block_size - 1, 4 * block_size
    given = arrays(T=T, S=S)
    wanted = attn.dot_product_attention(*given, mask=jnp.asarray(sparse_reference.blocks(T, S, BLOCKS, block_size))[None])
    close(block_sparse_attention(*given, BLOCKS, block_size=block_size), wanted)


def test_a_block_mask_may_be_traced_and_must_fit():
    query, key, value = arrays()
    attend = partial(block_sparse_attention, query, key, value, block_size=3)
    close(jax.jit(attend)(BLOCKS), attend(BLOCKS))
    with pytest.raises(TypeError, match=r"block_mask: expected bool \(True = attend\), got int32"):
        attend(BLOCKS.astype(np.int32))
    for wrong in (BLOCKS[:2], BLOCKS[None, :, :3], BLOCKS[None, None], np.stack([BLOCKS] * 3)):
        shape = rf"got \({wrong.shape[0]}, ".replace(")", "")
        with pytest.raises(
            ValueError, match=rf"block_mask: expected shape \(Tb, Sb\) = \(3, 4\), \(N, Tb, Sb\) = \(2, 3, 4\).*{shape}"
        ):
            attend(wrong)


def selected(query, key, k, mask=None):
    """[N T S]: the keys that each query keeps."""
    mask = np.ones((N, T, S), bool) if mask is None else np.broadcast_to(mask, (N, T, S))
    scores = np.einsum("tnh,sh->nts", query, key[:, 0]) * H**-0.5
    return np.array([[sparse_reference.top_k(scores[n, i], mask[n, i], k) for i in range(T)] for n in range(N)])


@pytest.mark.parametrize("shape", [None, (N, T, S), (1, 1, S)], ids=str)
def test_top_k_is_dense_attention_to_the_keys_selected(shape):
    given, weight = arrays(), normal(T, N, V, seed=3)
    given[2] = given[2].at[S - 1].set(jnp.nan)
    mask = None if shape is None else np.random.default_rng(1).random(shape) < 0.7
    real = np.arange(S) < S - 1
    allowed = sparse_reference.drawn(T, S, lambda i, j: j <= i + 2) & real & (True if mask is None else mask)
    attend = partial(top_k_attention, k=3, block_size=4, is_causal=True, query_offset=2, key_lengths=S - 1, mask=mask)
    found = jax.jit(partial(value_and_gradients, attend))(*given, weight)
    wanted = dense()(*given, weight, mask=jnp.asarray(selected(*given[:2], 3, allowed)))
    for a, b in zip(found, wanted, strict=True):
        close(a, b)


@settings(max_examples=15, deadline=None)
@given(
    offsets=st.lists(st.integers(-T, S), min_size=2, max_size=2),
    lengths=st.lists(st.integers(0, S), min_size=2, max_size=2),
    seed=st.integers(0, 99),
)
def test_top_k_with_offset_and_length_of_each_batch_entry(offsets, lengths, seed):
    rng = np.random.default_rng(seed)
    # Scores of few values: ties are the rule.
    query, key = (jnp.asarray(rng.integers(-1, 2, x.shape).astype(np.float32)) for x in arrays(2)[:2])
    value = jnp.asarray(rng.normal(size=(2, S, K, V)).astype(np.float32))
    options = {"query_offset": jnp.array(offsets), "key_lengths": jnp.array(lengths)}
    context = _top_3()(query, key, value, **options)
    for b in range(2):
        allowed = sparse_reference.drawn(T, S, lambda i, j: j <= i + offsets[b] and j < lengths[b])  # noqa: B023
        mask = selected(query[b], key[b], 3, allowed)
        wanted, _, _ = attention_reference.dot_product(*(np.asarray(x[b], float) for x in (query, key, value)), mask)
        close(context[b], wanted)


@lru_cache
def _top_3():
    return jax.jit(partial(top_k_attention, k=3, is_causal=True, block_size=4))


def test_top_k_of_all_keys_is_full_attention():
    given = arrays()
    for k in (S, S + 5):
        close(top_k_attention(*given, k=k, block_size=3), attn.dot_product_attention(*given), 1e-6)


def test_top_k_and_nan():
    """A visible key that is NaN makes its queries NaN, whether large or not; a value only those that select it."""
    query, key, value = arrays()
    attend = partial(top_k_attention, k=2, is_causal=True, block_size=4)
    clean = attend(query, key, value)
    for bad in (jnp.nan, -jnp.inf):
        context = attend(query, key.at[4].set(bad), value)
        np.testing.assert_array_equal(context[:4], clean[:4])
        assert jnp.isnan(context[4:]).all()
    chosen = jnp.asarray(selected(query, key, 2, np.tril(np.ones((T, S), bool))))[:, :, 1]
    context = attend(query, key, value.at[1].set(jnp.nan))
    np.testing.assert_array_equal(jnp.isnan(context).all(axis=-1), chosen.T)
    assert 0 < chosen.sum() < (T - 1) * N


def test_sparse_attention_under_scan_and_checkpoint():
    query, key, value = arrays(S=T)

    def through_layers(attend, query):
        layer = lambda query, _: (query + jax.checkpoint(attend)(query, key, value[..., :H]), None)  # noqa: E731
        return jnp.sum(jax.lax.scan(layer, query, length=2)[0])

    found, wanted = (
        jax.jit(jax.grad(partial(through_layers, attend)))(query)
        for attend in (
            partial(fixed_attention, stride=2),
            partial(attn.dot_product_attention, mask=jnp.asarray(sparse_reference.fixed(T, T, stride=2))[None]),
        )
    )
    close(found, wanted)


# --- the work that is skipped ----------------------------------------------------------------------------------------------


def pairs_computed(monkeypatch, attend, T, H=64):
    """How many pairs of query and key have their score computed, forward, counted while it runs."""
    counts = []

    def counted(plan, inputs, fixed, at, query, key, full):
        def count(i, j):
            counts.append(plan.sizes.bq * plan.sizes.bk)
            return np.float32(0)

        s, drawn = block_scores(plan, inputs, fixed, at, query, key, full)
        return s + jax.pure_callback(count, jax.ShapeDtypeStruct((), jnp.float32), at.i, at.j), drawn

    monkeypatch.setattr(blockwise, "block_scores", counted)
    jax.clear_caches()
    jax.block_until_ready(attend(*[jnp.ones((T, 1, H))] * 3))
    jax.clear_caches()
    return sum(counts)


def long_blocks(query, key, value):
    """Big Bird's: a window of three blocks, and a global one."""
    i, j = np.indices((len(query) // 64,) * 2)
    return block_sparse_attention(query, key, value, (abs(i - j) <= 1) | (i == 0) | (j == 0), block_size=64)


LONG = {
    # Blocks of 128 queries and 256 keys: those of the window, the first of each row, and the first row.
    "global": (partial(sliding_window_attention, left=128, right=0, num_global=2), 4096 * (2 * 256 + 256) + 4096 * 128),
    # A class of 1,024 positions has 8 rows of blocks, which meet at most 2 of 256 keys.
    "dilated": (partial(dilated_attention, left=64, right=63, dilation=4), 4096 * 2 * 256),
    "blocks": (long_blocks, 6 * 64 * 4096),
    # A class has 64 positions, and there are 128 ends; counted twice, where the only block of keys is full and where it is not.
    "strided": (partial(strided_attention, stride=64), 4096 * (2 * 256 + 2 * 64)),
    "fixed": (partial(fixed_attention, stride=64, summary=2), 4096 * (256 + 2 * 128)),
}
"""Patterns at T = 4096, with the pairs that they should compute at most."""


@pytest.mark.parametrize("name", LONG)
def test_work_that_is_done(name, monkeypatch):
    attend, most = LONG[name]
    pairs = pairs_computed(monkeypatch, attend, 4096)
    assert 4096 < pairs <= most < 4096**2 / 4


@pytest.mark.parametrize("name", [*LONG, "top_k"])
def test_memory_is_linear_in_the_length(name):
    attend = partial(top_k_attention, k=16) if name == "top_k" else LONG[name][0]
    sizes = {T: temporary_bytes(attend, T) for T in (4096, 8192)}
    assert sizes[8192] < 2.2 * sizes[4096]
    assert sizes[4096] < 4 * 4096**2 / 2


def temporary_bytes(attend, T):
    """Of the gradient, the larger of both."""
    gradient = jax.grad(lambda *given: jnp.sum(attend(*given) ** 2), argnums=(0, 1, 2))
    lowered = jax.jit(gradient).lower(*[jax.ShapeDtypeStruct((T, 1, 64), jnp.float32)] * 3)
    return lowered.compile().memory_analysis().temp_size_in_bytes


# --- errors ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attend", "options", "message"),
    [
        (sliding_window_attention, {"left": -1, "right": 0}, r"left: expected an integer >= 0, got -1"),
        (sliding_window_attention, {"left": 0, "right": -2}, r"right: expected an integer >= 0, got -2"),
        (sliding_window_attention, {"left": 0, "right": 0, "num_global": -1}, r"num_global: expected an integer >= 0, got -1"),
        (sliding_window_attention, {"left": 0, "right": 0, "block_size": 0}, r"block_size: expected an integer >= 1, got 0"),
        (sliding_window_attention, {"left": 0, "right": 0, "softcap": 0.0}, r"softcap: expected a number > 0"),
        (dilated_attention, {"left": 0, "right": 0, "dilation": 0}, r"dilation: expected an integer >= 1, got 0"),
        (strided_attention, {"stride": 0}, r"stride: expected an integer >= 1, got 0"),
        (strided_attention, {"stride": 2, "query_offset": [1, 2, 3]}, r"query_offset: expected shape .*got \(3,\)"),
        (strided_attention, {"stride": 2, "key_lengths": [1, 2, 3]}, r"key_lengths: expected shape .*got \(3,\)"),
        (fixed_attention, {"stride": 2, "summary": 3}, r"summary: expected an integer from 1 to stride = 2, got 3"),
        (top_k_attention, {"k": 0}, r"k: expected an integer >= 1, got 0"),
        (top_k_attention, {"k": 1, "mask": np.ones((T, S), bool)}, r"mask: expected shape .*got \(7, 11\)"),
    ],
)
def test_wrong_options_are_named(attend, options, message):
    with pytest.raises(ValueError, match=message):
        attend(*arrays(2), **options)


@pytest.mark.parametrize("name", PATTERNS)
def test_wrong_arrays_are_named(name):
    query, key, value = arrays()
    with pytest.raises(TypeError, match=r"query: expected a floating dtype, got int32"):
        PATTERNS[name].attend(query.astype(jnp.int32), key, value)
    with pytest.raises(ValueError, match=r"value: expected shape \(\*B, S, K, V\) = .*got \(10, 1, 3\)"):
        PATTERNS[name].attend(query, key, value[1:])
    with pytest.raises(TypeError, match=r"query_offset: expected an integer dtype, got float32"):
        PATTERNS[name].attend(query, key, value, query_offset=1.0)
