import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_reference import visible
from hypothesis import given, settings
from hypothesis import strategies as st

import attn


def drawn(text):
    """The matrix of a docstring: x = attend."""
    return np.array([[mark == "x" for mark in line.split()] for line in text.strip().splitlines()])


def test_drawings_of_the_docstrings():
    np.testing.assert_array_equal(attn.causal_mask(3, 4), drawn("x . . .\nx x . .\nx x x ."))
    np.testing.assert_array_equal(attn.causal_mask(3, 4, query_offset=1), drawn("x x . .\nx x x .\nx x x x"))
    np.testing.assert_array_equal(attn.padding_mask([1, 3], 4), drawn("x . . .\nx x x ."))
    np.testing.assert_array_equal(attn.sliding_window_mask(4, left=1, right=0), drawn("x . . .\nx x . .\n. x x .\n. . x x"))
    np.testing.assert_array_equal(attn.segment_mask(jnp.array([0, 0, 1])), drawn("x x .\nx x .\n. . x"))


@settings(max_examples=20, deadline=None)
@given(
    T=st.integers(0, 4),
    S=st.integers(0, 5),
    offset=st.integers(-6, 6),
    left=st.none() | st.integers(0, 3),
    right=st.none() | st.integers(0, 3),
)
def test_masks_equal_the_rule(T, S, offset, left, right):
    np.testing.assert_array_equal(attn.causal_mask(T, S, query_offset=offset), visible(T, S, is_causal=True, query_offset=offset))
    window = attn.sliding_window_mask(T, S, left=left, right=right, query_offset=offset)
    np.testing.assert_array_equal(window, visible(T, S, window=(left, right), query_offset=offset))
    assert left is None or right is None or (window.sum(-1) <= left + 1 + right).all()


def test_offset_moves_the_diagonal():
    assert attn.causal_mask(2, 4)[0].tolist() == [True, False, False, False]
    assert attn.causal_mask(2, 4, query_offset=2)[0].tolist() == [True, True, True, False]
    np.testing.assert_array_equal(attn.causal_mask(5, 2, query_offset=-3).any(-1), [False, False, False, True, True])
    rows = attn.causal_mask(2, 3, query_offset=jnp.array([0, 1]))
    np.testing.assert_array_equal(rows, np.stack([visible(2, 3, is_causal=True, query_offset=o) for o in (0, 1)]))
    np.testing.assert_array_equal(jax.jit(lambda o: attn.causal_mask(2, 3, query_offset=o))(1), rows[1])


def test_left_window_excludes_self():
    assert np.flatnonzero(attn.sliding_window_mask(8, left=2, right=0)[5]).tolist() == [3, 4, 5]


@pytest.mark.parametrize("lengths", [3, np.int64(3), jnp.uint8(3), np.array(3, np.int16)])
def test_lengths_of_any_integer_type(lengths):
    np.testing.assert_array_equal(attn.padding_mask(lengths, 4), [True, True, True, False])


def test_segments_of_queries_and_keys():
    mask = attn.segment_mask(jnp.array([[1, 2]]), jnp.array([[2, 1, 1]]))
    np.testing.assert_array_equal(mask, [[[False, True, True], [True, False, False]]])


def test_wrong_arguments_are_named():
    with pytest.raises(TypeError, match="lengths: expected an integer dtype, got float32"):
        attn.padding_mask(jnp.array([1.0]), 3)
    with pytest.raises(TypeError, match="query_segment_ids: expected an integer dtype, got bool"):
        attn.segment_mask(jnp.array([True]))
    with pytest.raises(ValueError, match="left: expected an integer >= 0, got -1"):
        attn.sliding_window_mask(3, left=-1, right=0)
    with pytest.raises(ValueError, match="T: expected an integer >= 0, got -1"):
        attn.causal_mask(-1)
