from functools import partial
from inspect import unwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attn import mods
from attn.block_mask import BlockMask, create_block_mask


def drawn(text):
    return np.array([[mark == "x" for mark in line.split()] for line in text.strip().splitlines()])


def dense(rule, B, N, T, S):
    """A rule of Python integers, pair by pair."""
    mask = np.zeros((B, N, T, S), bool)
    for b, h, i, j in np.ndindex(mask.shape):
        mask[b, h, i, j] = rule(b, h, i, j)
    return mask


def blocks(mask, bq, bk):
    """Live and full of a dense mask, block by block."""
    B, N, T, S = mask.shape
    live, full = np.zeros((2, B, N, -(-T // bq), -(-S // bk)), bool)
    for b, h, i, j in np.ndindex(live.shape):
        block = mask[b, h, i * bq : (i + 1) * bq, j * bk : (j + 1) * bk]
        live[b, h, i, j], full[b, h, i, j] = block.any(), block.all()
    return live, full


def uneven(b, h, i, j):
    """Of every index, and with empty, partial and full blocks."""
    return (j <= i + b) & (j >= i - 2 * h - 1)


def test_drawing_of_the_docstring():
    block_mask = create_block_mask(mods.causal(), 4, 4, block_size=(2, 2))
    np.testing.assert_array_equal(block_mask.live[0, 0], drawn("x .\nx x"))
    np.testing.assert_array_equal(block_mask.full[0, 0], drawn(". .\nx ."))
    lines = [line.split() for line in create_block_mask.__doc__.splitlines() if "x" in line.split() or "live" in line]
    assert [line for line in lines if "full" in line or line[0] == "x"] == [
        ["live", "x", ".", "full", ".", "."],
        ["x", "x", "x", "."],
    ]


@pytest.mark.usefixtures("quick_compilation")
@settings(max_examples=5, deadline=None)
@given(
    sizes=st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 9), st.integers(1, 9)),
    block_size=st.tuples(st.integers(1, 4), st.integers(1, 10)),
)
def test_blocks_equal_those_of_the_dense_mask(sizes, block_size):
    B, N, T, S = sizes
    block_mask = create_block_mask(uneven, T, S, batch=B, heads=N, block_size=block_size)
    expected = dense(uneven, *sizes)
    live, full = blocks(expected, *block_size)
    np.testing.assert_array_equal(block_mask.live, live)
    np.testing.assert_array_equal(block_mask.full, full)
    np.testing.assert_array_equal(block_mask.to_dense(), expected)
    np.testing.assert_allclose(block_mask.sparsity(), 100 * (1 - live.mean()), rtol=1e-6)
    assert block_mask.shape == sizes
    assert (block_mask.batch, block_mask.heads, block_mask.q_len, block_mask.kv_len) == sizes
    assert block_mask.block_size == block_size


def test_more_blocks_than_are_evaluated_at_once(monkeypatch):
    monkeypatch.setattr("attn.block_mask.PAIRS_AT_ONCE", 5 * 6)
    block_mask = create_block_mask(uneven, 11, 10, heads=2, block_size=(2, 3))  # 5 at once of 2 * 6 * 4 = 48: a rest of 3
    live, full = blocks(dense(uneven, 1, 2, 11, 10), 2, 3)
    np.testing.assert_array_equal(block_mask.live, live)
    np.testing.assert_array_equal(block_mask.full, full)


@pytest.mark.usefixtures("quick_compilation")
def test_larger_blocks():
    T, S = 11, 14

    def rule(b, h, i, j):
        return j <= i + b

    block_mask = create_block_mask(rule, T, S, batch=2, block_size=(2, 3))
    mask = dense(rule, 2, 1, T, S)
    multiples, others = ((2, 3), (4, 6), (20, 30)), ((3, 4), (1, 1))
    exact = jax.jit(lambda block_mask: [block_mask.coarsen(size) for size in multiples])(block_mask)
    for size, made in zip(multiples, exact, strict=True):
        live, full = blocks(mask, *size)
        np.testing.assert_array_equal(made[0], live)
        np.testing.assert_array_equal(made[1], full)
    safe = jax.jit(lambda block_mask: [block_mask.at_blocks(*size) for size in others])(block_mask)
    changed = False
    for size, made in zip(others, safe, strict=True):
        live, full = blocks(mask, *size)
        safe_live, safe_full = np.asarray(made[0]), np.asarray(made[1])
        assert safe_live.shape == live.shape
        assert (safe_live >= live).all()
        assert (safe_full <= full).all()
        assert safe_full.any()
        assert not safe_live.all()
        changed |= bool((safe_live != live).any())
    assert changed
    for size in ((3, 3), (2, 4)):
        with pytest.raises(ValueError, match=r"block_size: expected multiples of \(2, 3\), got"):
            block_mask.coarsen(size)


@pytest.mark.usefixtures("quick_compilation")
def test_lengths_of_zero_and_one():
    ids = jnp.zeros(0, jnp.int32)
    for T, S in ((0, 5), (5, 0)):
        block_mask = create_block_mask(mods.document(ids), T, S, block_size=(2, 2))
        assert block_mask.live.shape == block_mask.full.shape == (1, 1, -(-T // 2), -(-S // 2))
        assert block_mask.to_dense().shape == (1, 1, T, S)
        assert block_mask.sparsity() == 0
        assert block_mask.coarsen((4, 4))[0].shape == (1, 1, -(-T // 4), -(-S // 4))
    one = create_block_mask(mods.causal(), 1, 1)
    assert one.live.tolist() == one.full.tolist() == [[[[True]]]]
    assert create_block_mask(mods.causal(-1), 1, 1).live.tolist() == [[[[False]]]]


@pytest.mark.usefixtures("quick_compilation")
def test_batch_or_heads_of_1_stand_for_all():
    block_mask = create_block_mask(uneven, 4, 4, heads=2, block_size=(2, 2))
    assert block_mask.live.shape == (1, 2, 2, 2)
    assert not block_mask.mask(3, 1, 0, 1)  # entry 3 alone would see it
    assert uneven(3, 1, 0, 1)
    assert block_mask.mask(0, 1, 3, 0)
    assert not block_mask.mask(0, 0, 3, 0)


@pytest.mark.usefixtures("quick_compilation")
def test_captured_arrays_are_leaves_and_compile_once():
    T, count = 6, []
    ids = [jnp.arange(T) // 2, jnp.arange(T) // 3]

    @jax.jit
    def use(block_mask):
        count.append(block_mask)
        return block_mask.live, block_mask.to_dense(), block_mask

    for one in ids:
        # A new function each time, as a loop over batches of documents makes it.
        block_mask = create_block_mask(lambda b, h, q, k, one=one: one[q] == one[k], T, T, block_size=(2, 2))
        assert any(leaf is one for leaf in jax.tree.leaves(block_mask))
        live, mask, returned = use(block_mask)
        expected = dense(lambda b, h, i, j, one=one: one[i] == one[j], 1, 1, T, T)
        np.testing.assert_array_equal(mask, expected)
        np.testing.assert_array_equal(live, blocks(expected, 2, 2)[0])
        assert isinstance(returned, BlockMask)
        np.testing.assert_array_equal(returned.to_dense(), expected)
        assert repr(returned) == repr(block_mask)
    assert len(count) == 1
    for other in (mods.document(jnp.arange(T)), mods.not_mask(mods.document(jnp.arange(T)))):
        use(create_block_mask(other, T, T, block_size=(2, 2)))
    assert len(count) == 2  # the first is what the lambdas were; the second is another rule


@pytest.mark.usefixtures("quick_compilation")
def test_rules_with_other_constants_differ():
    structures = [
        jax.tree.structure(create_block_mask(mod, 4, 4, block_size=(2, 2)))
        for mod in (
            mods.causal(), mods.causal(0), mods.causal(1), lambda b, h, q, k: k < q, lambda b, h, q, k: k <= q + 0.5,
            lambda b, h, q, k: k <= q + 0.25, lambda b, h, q, k: jax.lax.cond(h > 0, lambda: k <= q, lambda: k < q),
            lambda b, h, q, k: jax.lax.cond(h > 0, lambda: k <= q, lambda: k > q),
        )
    ]  # fmt: skip
    assert structures[0] == structures[1]
    assert hash(structures[0]) == hash(structures[1])
    for i, one in enumerate(structures[1:]):
        assert all(one != other for other in structures[i + 2 :])


@pytest.mark.usefixtures("quick_compilation")
def test_made_within_transformations():
    T = 7
    ids = jnp.array([np.arange(T) // 2, np.arange(T) // 4, np.arange(T) % 2])
    made = partial(create_block_mask, q_len=T, kv_len=T, block_size=(2, 4))
    expected = np.stack([dense(lambda b, h, i, j, one=one: one[i] == one[j], 1, 1, T, T) for one in np.array(ids)])
    live, full = np.stack([np.stack(blocks(mask, 2, 4)) for mask in expected], axis=1)

    jitted = jax.jit(lambda one: made(mods.document(one)))(ids[0])
    mapped = jax.vmap(lambda one: made(mods.document(one)))(ids)
    _, scanned = jax.lax.scan(lambda _, one: (None, made(mods.document(one))), None, ids)
    np.testing.assert_array_equal(jitted.live, live[0])
    np.testing.assert_array_equal(jitted.full, full[0])
    for many in (mapped, scanned):
        np.testing.assert_array_equal(many.live, live)
        np.testing.assert_array_equal(many.full, full)
        np.testing.assert_array_equal(jax.vmap(BlockMask.to_dense)(many), expected)


def test_no_dense_mask_in_memory():
    T = 8192  # 64 MiB as a mask
    compiled = jax.jit(lambda: jax.tree.leaves(create_block_mask(mods.causal(), T, T))).lower().compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 8 * 2**20


def test_expect():
    block_mask = create_block_mask(mods.causal(), 4, 6, heads=2, block_size=(4, 4))
    block_mask.expect(1, 2, 4, 6)
    block_mask.expect(8, 2, 4, 6)
    message = r"block_mask: expected shape \(B or 1, N or 1, T, S\) = \(1, 2, 4, 5\), got \(1, 2, 4, 6\)"
    with pytest.raises(ValueError, match=message):
        block_mask.expect(1, 2, 4, 5)
    for wrong in ((1, 2, 3, 6), (1, 2, 8, 6), (1, 1, 4, 6), (1, 4, 4, 6), (1, 2, 6, 4)):
        with pytest.raises(ValueError, match="block_mask: expected shape"):
            block_mask.expect(*wrong)
    with pytest.raises(ValueError, match="block_mask: expected shape"):
        create_block_mask(mods.causal(), 4, 4, batch=2).expect(3, 1, 4, 4)


def test_repr_is_short():
    block_mask = create_block_mask(mods.causal(), 4, 4, block_size=(1, 1))
    assert repr(block_mask) == "BlockMask(shape=(1, 1, 4, 4), block_size=(1, 1), sparsity=37.5 %)"
    traced = []
    jax.eval_shape(lambda mask: traced.append(repr(mask)), block_mask)
    assert traced == ["BlockMask(shape=(1, 1, 4, 4), block_size=(1, 1))"]
    assert repr(jax.tree.map(lambda leaf: None, block_mask)) == traced[0]


@pytest.mark.parametrize(
    ("mask_mod", "options", "error", "message"),
    [
        (lambda b, h, q, k: q - k, {}, TypeError, r"mask_mod: expected to return a bool scalar .*, got int32 of shape \(\)"),
        (lambda b, h, q, k: jnp.ones(2, bool), {}, TypeError, r"mask_mod: .* bool scalar .*, got bool of shape \(2,\)"),
        (lambda b, h, q, k: (q < k, k < q), {}, TypeError, "mask_mod: expected to return a bool scalar"),
        (jnp.ones((4, 4), bool), {}, TypeError, "mask_mod: expected a function"),
        (mods.causal(), {"block_size": 2}, ValueError, "block_size: expected two integers >= 1, got 2"),
        (mods.causal(), {"block_size": (2,)}, ValueError, "block_size: expected two integers >= 1"),
        (mods.causal(), {"block_size": (2, 0)}, ValueError, "block_size: expected an integer >= 1, got 0"),
        (mods.causal(), {"block_size": (2.0, 2)}, ValueError, "block_size: expected an integer >= 1, got 2.0"),
        (mods.causal(), {"q_len": -1}, ValueError, "q_len: expected an integer >= 0, got -1"),
        (mods.causal(), {"kv_len": 4.0}, ValueError, "kv_len: expected an integer >= 0, got 4.0"),
        (mods.causal(), {"batch": -1}, ValueError, "batch: expected an integer >= 0, got -1"),
        (mods.causal(), {"heads": None}, ValueError, "heads: expected an integer >= 0, got None"),
    ],
)  # fmt: skip
def test_errors_name_the_argument(mask_mod, options, error, message):
    # Unwrapped, as a type checker of the annotations would be first; users have none.
    with pytest.raises(error, match=message):
        unwrap(create_block_mask)(mask_mod, **{"q_len": 4, "kv_len": 4, **options})
