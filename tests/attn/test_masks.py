import jax
import jax.numpy as jnp
import masks_reference as reference
import numpy as np
import pytest
from attention_reference import visible
from hypothesis import given, settings
from hypothesis import strategies as st

import attn
from attn.masks import dilated_mask, fixed_mask, prefix_mask, strided_mask


def drawn(text):
    """The matrix of a docstring: x = attend."""
    return np.array([[mark == "x" for mark in line.split()] for line in text.strip().splitlines()])


def drawing(function):
    """The matrix that the docstring of `function` draws."""
    lines = [line.split() for line in function.__doc__.splitlines()]
    return np.array([[mark == "x" for mark in line] for line in lines if line and set(line) <= {"x", "."}])


def test_drawings_of_the_docstrings():
    np.testing.assert_array_equal(attn.causal_mask(3, 4), drawn("x . . .\nx x . .\nx x x ."))
    np.testing.assert_array_equal(attn.causal_mask(3, 4, query_offset=1), drawn("x x . .\nx x x .\nx x x x"))
    np.testing.assert_array_equal(attn.padding_mask([1, 3], 4), drawn("x . . .\nx x x ."))
    np.testing.assert_array_equal(attn.sliding_window_mask(4, left=1, right=0), drawn("x . . .\nx x . .\n. x x .\n. . x x"))
    np.testing.assert_array_equal(attn.segment_mask(jnp.array([0, 0, 1])), drawn("x x .\nx x .\n. . x"))
    prefix = drawn("x x . .\nx x . .\nx x x .\nx x x x")
    np.testing.assert_array_equal(drawing(prefix_mask), prefix)
    np.testing.assert_array_equal(prefix_mask(2, 4), prefix)
    dilated = drawn("x . x . . .\n. x . x . .\nx . x . x .\n. x . x . x\n. . x . x .\n. . . x . x")
    np.testing.assert_array_equal(drawing(dilated_mask), dilated)
    np.testing.assert_array_equal(dilated_mask(6, left=1, right=1, dilation=2), dilated)
    strided = drawn(
        """x . . . . . . .
           x x . . . . . .
           x x x . . . . .
           x x x x . . . .
           . x x x x . . .
           . . x x x x . .
           x . . x x x x .
           . x . . x x x x"""
    )
    np.testing.assert_array_equal(drawing(strided_mask), strided)
    np.testing.assert_array_equal(strided_mask(8, stride=3), strided)
    fixed = drawn(
        """x . . . . . . .
           x x . . . . . .
           x x x . . . . .
           . . x x . . . .
           . . x x x . . .
           . . x x x x . .
           . . x . . x x .
           . . x . . x x x"""
    )
    np.testing.assert_array_equal(drawing(fixed_mask), fixed)
    np.testing.assert_array_equal(fixed_mask(8, stride=3), fixed)


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


# Few shapes, and many offsets: only a new shape is compiled anew.
SHAPES = st.sampled_from([(4, 7), (6, 3), (1, 5), (0, 2), (3, 0)])


@pytest.mark.usefixtures("quick_compilation")
@settings(max_examples=20, deadline=None)
@given(
    shape=SHAPES,
    offset=st.integers(-6, 8),
    prefix=st.integers(0, 6),
    left=st.none() | st.integers(0, 3),
    right=st.none() | st.integers(0, 3),
    stride=st.integers(1, 4),
    data=st.data(),
)
def test_patterns_equal_the_sets_of_the_papers(shape, offset, prefix, left, right, stride, data):
    summary = data.draw(st.integers(1, stride))
    np.testing.assert_array_equal(
        prefix_mask(prefix, *shape, query_offset=offset), reference.prefix(*shape, prefix, query_offset=offset)
    )
    np.testing.assert_array_equal(
        dilated_mask(*shape, left=left, right=right, dilation=stride, query_offset=offset),
        reference.dilated(*shape, left, right, stride, query_offset=offset),
    )
    np.testing.assert_array_equal(
        strided_mask(*shape, stride=stride, query_offset=offset), reference.strided(*shape, stride, query_offset=offset)
    )
    np.testing.assert_array_equal(
        fixed_mask(*shape, stride=stride, summary=summary, query_offset=offset),
        reference.fixed(*shape, stride, summary, query_offset=offset),
    )


def test_patterns_that_are_older_masks():
    causal = attn.causal_mask(5, 7, query_offset=1)
    np.testing.assert_array_equal(prefix_mask(0, 5, 7, query_offset=1), causal)
    np.testing.assert_array_equal(prefix_mask(9, 5, 7), np.ones((5, 7), bool))
    for options in ({"left": 2, "right": 1}, {"left": None, "right": 0}):
        window = attn.sliding_window_mask(5, 7, **options, query_offset=1)
        np.testing.assert_array_equal(dilated_mask(5, 7, **options, dilation=1, query_offset=1), window)
    np.testing.assert_array_equal(strided_mask(5, 7, stride=1, query_offset=1), causal)
    np.testing.assert_array_equal(strided_mask(5, 7, stride=9, query_offset=1), causal)
    np.testing.assert_array_equal(fixed_mask(5, 7, stride=3, summary=3, query_offset=1), causal)
    np.testing.assert_array_equal(fixed_mask(5, 7, stride=9, query_offset=1), causal)


def test_patterns_with_offsets_and_lengths_for_each_row_traced():
    offsets, prefixes = jnp.array([0, 3], jnp.int8), jnp.array([2, 1], jnp.uint8)
    patterns = {
        "prefix": (lambda o, p: prefix_mask(p, 3, 5, query_offset=o), lambda o, p: reference.prefix(3, 5, p, o)),
        "shared prefix": (lambda o, p: prefix_mask(2, 3, 5, query_offset=o), lambda o, p: reference.prefix(3, 5, 2, o)),
        "shared offset": (lambda o, p: prefix_mask(p, 3, 5, query_offset=1), lambda o, p: reference.prefix(3, 5, p, 1)),
        "dilated": (
            lambda o, p: dilated_mask(3, 5, left=1, right=1, dilation=2, query_offset=o),
            lambda o, p: reference.dilated(3, 5, 1, 1, 2, o),
        ),
        "strided": (lambda o, p: strided_mask(3, 5, stride=2, query_offset=o), lambda o, p: reference.strided(3, 5, 2, o)),
        "fixed": (lambda o, p: fixed_mask(3, 5, stride=2, query_offset=o), lambda o, p: reference.fixed(3, 5, 2, 1, o)),
    }
    for pattern, rule in patterns.values():
        expected = np.stack([rule(o, p) for o, p in zip([0, 3], [2, 1], strict=True)])
        mask = jax.jit(pattern)(offsets, prefixes)
        assert mask.dtype == bool
        np.testing.assert_array_equal(mask, expected)
        np.testing.assert_array_equal(jax.jit(jax.vmap(pattern))(offsets, prefixes), expected)
    assert prefix_mask(jnp.zeros((2, 1), int), 3, 5, query_offset=jnp.zeros((2, 1), int)).shape == (2, 1, 3, 5)


def test_strides_reach_every_key_in_two_steps():
    """Child et al. 2019, section 4.2: every earlier position is on a path of two attention steps."""
    for mask in (strided_mask(16, stride=4), fixed_mask(16, stride=4)):
        steps = np.asarray(mask, int)
        np.testing.assert_array_equal(steps @ steps > 0, attn.causal_mask(16))
        assert steps.sum(-1).max() <= 4 + 3


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
    with pytest.raises(TypeError, match="prefix_lengths: expected an integer dtype, got float32"):
        prefix_mask(jnp.array([1.0]), 3)
    with pytest.raises(ValueError, match=r"query_offset: expected shape \(\*B\) = \(2,\), .*got \(3,\)"):
        prefix_mask([1, 2], 3, query_offset=jnp.zeros(3, int))
    with pytest.raises(TypeError, match="query_offset: expected an integer dtype, got float32"):
        strided_mask(3, stride=2, query_offset=0.5)
    with pytest.raises(ValueError, match="right: expected an integer >= 0, got -2"):
        dilated_mask(3, left=None, right=-2, dilation=1)
    for wrong in (0, -1):
        with pytest.raises(ValueError, match=f"dilation: expected an integer >= 1, got {wrong}"):
            dilated_mask(3, left=1, right=0, dilation=wrong)
        with pytest.raises(ValueError, match=f"stride: expected an integer >= 1, got {wrong}"):
            strided_mask(3, stride=wrong)
        with pytest.raises(ValueError, match=f"summary: expected an integer >= 1, got {wrong}"):
            fixed_mask(3, stride=2, summary=wrong)
    with pytest.raises(ValueError, match="summary: expected an integer from 1 to stride = 2, got 3"):
        fixed_mask(3, stride=2, summary=3)
