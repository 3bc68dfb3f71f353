from inspect import unwrap

import jax
import jax.numpy as jnp
import numpy as np
import positions_reference
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import attn
from attn import mods

T, S, B, N = 5, 7, 2, 3
OFFSETS = np.array([3, -2])
INDICES = [np.arange(n, dtype=np.int32) for n in (B, N, T, S)]


def every_pair(mod, scores=None):
    """The mod of every pair, [B N T S]."""
    shape = (B, N, T, S)
    indices = jnp.meshgrid(*INDICES, indexing="ij")
    arrays = indices if scores is None else [jnp.broadcast_to(scores, shape), *indices]
    return jax.vmap(mod)(*(array.ravel() for array in arrays)).reshape(shape)


def by_head(mask):
    """[*B T S] for all heads."""
    mask = np.asarray(mask)
    return np.broadcast_to(mask[:, None] if mask.ndim == 3 else mask, (B, N, T, S))


def drawing(function):
    lines = [line.split() for line in function.__doc__.splitlines()]
    return np.array([[mark == "x" for mark in line] for line in lines if line and set(line) <= {"x", "."}])


def test_drawings_of_the_docstrings():
    drawn = {
        mods.causal: mods.causal(),
        mods.sliding_window: mods.sliding_window(1, 0),
        mods.dilated: mods.dilated(1, 1, 2),
        mods.prefix_lm: mods.prefix_lm(2),
        mods.document: mods.document(jnp.array([0, 0, 1])),
        mods.global_tokens: mods.global_tokens(1),
    }
    for function, mod in drawn.items():
        expected = drawing(function)
        made = [[bool(mod(0, 0, i, j)) for j in range(expected.shape[1])] for i in range(expected.shape[0])]
        np.testing.assert_array_equal(made, expected, err_msg=function.__name__)


@pytest.mark.usefixtures("quick_compilation")
@pytest.mark.parametrize("offset", [0, 2, OFFSETS], ids=["none", "one", "per batch"])
def test_masks_equal_attn_masks(offset):
    left, right, lengths = 2, 1, np.array([1, 4])
    pairs = {
        "causal": (mods.causal(offset), attn.causal_mask(T, S, query_offset=offset)),
        "prefix": (mods.prefix_lm(lengths, offset), attn.prefix_mask(lengths, T, S, query_offset=np.broadcast_to(offset, (B,)))),
    }
    for sides in ((left, right), (None, 0), (1, None), (None, None)):
        window = attn.sliding_window_mask(T, S, left=sides[0], right=sides[1], query_offset=offset)
        gaps = attn.dilated_mask(T, S, left=sides[0], right=sides[1], dilation=2, query_offset=offset)
        pairs[f"window {sides}"] = mods.sliding_window(*sides, query_offset=offset), window
        pairs[f"dilated {sides}"] = mods.dilated(*sides, dilation=2, query_offset=offset), gaps
    made = jax.jit(lambda: {name: every_pair(mod) for name, (mod, _) in pairs.items()})()
    for name, (_, expected) in pairs.items():
        np.testing.assert_array_equal(made[name], by_head(expected), err_msg=name)


@pytest.mark.usefixtures("quick_compilation")
def test_masks_of_ids_and_combinations():
    query_ids, key_ids = np.arange(B * T).reshape(B, T) % 3, np.arange(B * S).reshape(B, S) % 4
    ids = np.arange(S) % 2
    offset, left, num_global = 1, 1, 2
    causal, window = attn.causal_mask(T, S), attn.sliding_window_mask(T, S, left=left, right=left)
    position = np.arange(T)[:, None] - offset
    global_rule = (np.arange(S) < num_global) | ((position >= 0) & (position < num_global))
    same = attn.segment_mask(ids[:T], ids)
    pairs = {
        "documents of each": (mods.document(query_ids, key_ids), attn.segment_mask(query_ids, key_ids)),
        "documents of all": (mods.document(ids), same),
        "global": (mods.global_tokens(num_global, -offset), global_rule),
        "and": (mods.and_masks(mods.causal(), mods.sliding_window(left), mods.document(ids)), causal & window & same),
        "or": (mods.or_masks(mods.sliding_window(left), mods.global_tokens(num_global, -offset)), window | global_rule),
        "not": (mods.not_mask(mods.causal()), ~causal),
        "and of none": (mods.and_masks(), np.ones((T, S), bool)),
        "or of none": (mods.or_masks(), np.zeros((T, S), bool)),
        "plain functions": (mods.and_masks(lambda b, h, q, k: k <= q, lambda b, h, q, k: h < 5), causal),
    }
    made = jax.jit(lambda: {name: every_pair(mod) for name, (mod, _) in pairs.items()})()
    for name, (_, expected) in pairs.items():
        np.testing.assert_array_equal(made[name], by_head(expected), err_msg=name)


@pytest.mark.usefixtures("quick_compilation", "x64")
@pytest.mark.parametrize("offset", [0, OFFSETS], ids=["none", "per batch"])
def test_scores_equal_the_biases(offset):
    rng = np.random.default_rng(0)
    scores, t5_table, table = rng.normal(size=(B, N, T, S)), rng.normal(size=(8, N)), rng.normal(size=(5, N))
    offsets = np.broadcast_to(offset, (B,))
    t5 = {"bidirectional": True, "max_distance": 6}
    clipped = [[[np.clip(j - i - o, -2, 2) + 2 for j in range(S)] for i in range(T)] for o in offsets]
    pairs = {
        "alibi": (mods.alibi(attn.alibi_slopes(N), offset), [positions_reference.alibi(N, T, S, o) for o in offsets]),
        "t5": (mods.t5(t5_table, **t5, query_offset=offset), [positions_reference.t5(t5_table, T, S, o, **t5) for o in offsets]),
        "decoder": (
            mods.t5(t5_table, False, 9, offset),
            [positions_reference.t5(t5_table, T, S, o, bidirectional=False, max_distance=9) for o in offsets],
        ),
        "relative": (mods.relative_table(table, offset), np.moveaxis(table[np.array(clipped)], -1, 1)),
    }
    made = jax.jit(lambda: {name: every_pair(mod, scores) for name, (mod, _) in pairs.items()})()
    for name, (_, expected) in pairs.items():
        np.testing.assert_allclose(made[name], scores + np.array(expected), atol=1e-12, err_msg=name)
    capped = every_pair(mods.compose(mods.relative_table(table, offset), mods.softcap(0.5)), scores)
    np.testing.assert_allclose(capped, 0.5 * np.tanh((scores + np.array(pairs["relative"][1])) / 0.5), atol=1e-12)
    np.testing.assert_array_equal(every_pair(mods.compose(), scores), scores)


@pytest.mark.usefixtures("quick_compilation")
def test_gradients_reach_what_is_captured():
    rng = np.random.default_rng(1)
    given = rng.normal(size=(B, N, T, S)).astype(np.float32)
    distance = np.arange(S) - np.arange(T)[:, None]

    def total(slopes, table, t5_table, cap):
        mods_of = mods.alibi(slopes), mods.relative_table(table), mods.t5(t5_table, True, 6)
        return sum(jnp.sum(given * every_pair(mod, 0.0)) for mod in mods_of) + jnp.sum(every_pair(mods.softcap(cap), 1.0))

    grads = jax.jit(jax.grad(total, argnums=(0, 1, 2, 3)))(jnp.ones(N), jnp.zeros((3, N)), jnp.zeros((8, N)), 2.0)
    by_pair = given.sum(0)
    np.testing.assert_allclose(grads[0], -(by_pair * np.abs(distance)).sum((1, 2)), rtol=1e-4)
    rows = np.clip(distance, -1, 1) + 1
    np.testing.assert_allclose(grads[1], [by_pair[:, rows == row].sum(1) for row in range(3)], rtol=1e-4, atol=1e-5)
    rows = np.vectorize(lambda d: positions_reference.t5_bucket(d, bidirectional=True, num_buckets=8, max_distance=6))(distance)
    np.testing.assert_allclose(grads[2], [by_pair[:, rows == row].sum(1) for row in range(8)], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(grads[3], B * N * T * S * (np.tanh(0.5) - 0.5 / np.cosh(0.5) ** 2), rtol=1e-4)


def test_mods_of_equal_numbers_are_one_static_argument():
    traced = []

    def at_origin(mod):
        traced.append(mod)
        return jnp.asarray(mod(0, 0, 0, 0))

    count = jax.jit(at_origin, static_argnums=0)
    for _ in range(2):
        count(mods.and_masks(mods.causal(1), mods.sliding_window(2, None)))
    assert len(traced) == 1
    ids = jnp.arange(3)
    assert mods.causal() != mods.causal(1)
    assert mods.causal() != mods.not_mask(mods.causal())
    assert mods.sliding_window(2) == mods.sliding_window(2, 2)
    assert mods.document(ids) == mods.document(ids)
    assert mods.document(ids) != mods.document(jnp.arange(3))


@settings(max_examples=10, deadline=None)
@given(left=st.integers(0, 3), right=st.integers(0, 3), dilation=st.integers(1, 3))
def test_windows_hold_left_and_right_keys_besides_the_own(left, right, dilation):
    position = 12
    for mod in (mods.sliding_window(left, right), mods.dilated(left, right, dilation)):
        assert sum(bool(mod(0, 0, position, j)) for j in range(2 * position)) == left + 1 + right


# Unwrapped where a type checker of the annotations would be first; users have none.
ERRORS = [
    (lambda: mods.causal(0.5), TypeError, "query_offset: expected an integer dtype"),
    (lambda: mods.causal(np.zeros((2, 2), int)), ValueError, "query_offset: expected a scalar or shape \\(B\\), got \\(2, 2\\)"),
    (lambda: mods.sliding_window(-1), ValueError, "left: expected an integer >= 0, got -1"),
    (lambda: mods.sliding_window(1, -2), ValueError, "right: expected an integer >= 0, got -2"),
    (lambda: mods.dilated(1, 1, 0), ValueError, "dilation: expected an integer >= 1, got 0"),
    (lambda: mods.prefix_lm(np.array([0.5])), TypeError, "prefix_length: expected an integer dtype"),
    (lambda: mods.document(np.zeros(3)), TypeError, "segment_ids: expected an integer dtype"),
    (lambda: mods.document(3), ValueError, "segment_ids: expected shape \\(T\\) or \\(B, T\\), got \\(\\)"),
    (lambda: mods.document(np.zeros(3, int), np.zeros(3)), TypeError, "key_segment_ids: expected an integer dtype"),
    (lambda: mods.global_tokens(-1), ValueError, "num_global: expected an integer >= 0, got -1"),
    (lambda: unwrap(mods.and_masks)(mods.causal(), np.ones((2, 2), bool)), TypeError, "mask_mods: expected functions"),
    (lambda: unwrap(mods.or_masks)(True), TypeError, "mask_mods: expected functions, got True"),
    (lambda: unwrap(mods.not_mask)(None), TypeError, "mask_mod: expected functions, got None"),
    (lambda: unwrap(mods.compose)(1.0), TypeError, "score_mods: expected functions, got 1.0"),
    (lambda: mods.alibi(np.array([1, 2])), TypeError, "slopes: expected a floating dtype"),
    (lambda: mods.alibi(0.5), ValueError, "slopes: expected shape \\(N\\), got \\(\\)"),
    (lambda: mods.relative_table(np.zeros((4, 2))), ValueError, "table: expected shape \\(2L\\+1, N\\), an odd number of rows"),
    (lambda: mods.t5(np.zeros(8), True), ValueError, "table: expected shape \\(R, N\\), got \\(8,\\)"),
    (lambda: mods.t5(np.zeros((8, 2)), True, max_distance=1), ValueError, "max_distance: expected an integer > 2"),
    (lambda: mods.softcap(0.0), ValueError, "cap: expected a number > 0, got 0.0"),
    (lambda: mods.softcap(np.ones(2)), ValueError, "cap: expected a scalar, got shape \\(2,\\)"),
]


@pytest.mark.parametrize(("call", "error", "message"), ERRORS)
def test_errors_name_the_argument(call, error, message):
    with pytest.raises(error, match=message):
        call()
