import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn
from attn import additive_blocks
from attn.additive_blocks import Blocks, blockwise_scores, choose_blocks, select_additive_implementation

B, T, S, A, V = 3, 5, 7, 3, 2


@pytest.fixture(autouse=True, scope="module")
def small_blocks():
    """So small that three batch entries, five queries and seven keys are several of each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(additive_blocks, "BLOCK_ELEMENTS", 4 * A)
        yield


def normal(seed, *shape, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def arguments(*batch, T=T, S=S, A=A, dtype=jnp.float32):
    """query, keys, values, W, U, v."""
    shapes = (*batch, T, 4), (*batch, S, 6), (*batch, S, V), (4, A), (6, A), (A,)
    return [normal(seed, *shape, dtype=dtype) for seed, shape in enumerate(shapes)]


def attention(implementation, mask=None):
    def attend(query, keys, values, *params):
        params = attn.AdditiveParams(*params)
        return attn.additive_attention(query, keys, values, params, mask=mask, implementation=implementation)

    return attend


def both(function, *given):
    """What the function makes of the dense and of the blockwise attention, in one program."""
    return jax.jit(lambda *given: [function(attention(name), *given) for name in ("blockwise", "dense")])(*given)


def assert_close(actual, wanted, atol):
    def close(a, w):
        np.testing.assert_allclose(np.asarray(a, float), np.asarray(w, float), atol=atol)

    jax.tree.map(close, actual, wanted)


def scores_and_gradients(q, k, v, g):
    """e_ij = v . tanh(q_i + k_j) and the gradients of sum_ij g_ij e_ij, pair by pair."""
    scores, dq, dk, dv = np.zeros_like(g), np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    for b, i, j in np.ndindex(g.shape):
        h = np.tanh(q[b, i] + k[b, j])
        scores[b, i, j] = v @ h
        dq[b, i] += g[b, i, j] * v * (1 - h**2)
        dk[b, j] += g[b, i, j] * v * (1 - h**2)
        dv += g[b, i, j] * h
    return scores, (dq, dk, dv)


def test_blocks_of_any_size_equal_the_sum_over_pairs(x64):
    q, k, v, g = (normal(n, *shape, dtype=float) for n, shape in enumerate([(B, T, A), (B, S, A), (A,), (B, T, S)]))
    wanted = scores_and_gradients(*map(np.asarray, (q, k, v, g)))
    # One pair, unequal parts of each length, one row, all in one.
    sizes = [Blocks(1, 1, 1), Blocks(2, 3, 4), Blocks(3, 1, 7), Blocks(3, 5, 7)]

    def of_blocks(size, *given):
        scores, pull = jax.vjp(lambda *given: blockwise_scores(*given, size), *given)
        return scores, pull(g)

    for actual in jax.jit(lambda *given: [of_blocks(size, *given) for size in sizes])(q, k, v):
        assert_close(actual, wanted, 1e-12)


@pytest.mark.usefixtures("quick_compilation")
def test_value_and_gradients_of_every_argument_equal_dense(x64):
    mask = jnp.asarray(np.random.default_rng(9).random((B, T, S)) < 0.6).at[1, 2].set(False)
    given, weight = arguments(B, dtype=float), normal(7, B, T, V, dtype=float)

    def every(implementation, query, keys, values, *params):
        def outputs(query, keys, values, projected_keys, *params):
            params = attn.AdditiveParams(*params)
            options = {"projected_keys": projected_keys, "implementation": implementation}
            scores = attn.additive_scores(query, keys, params, **options)
            weights = attn.additive_weights(query, keys, params, mask=mask, **options)
            context = attn.additive_attention(query, keys, values, params, mask=mask, **options)
            return (context * weight).sum() + (weights**2).sum() + (scores**3).sum(), (scores, weights, context)

        projected = attn.project_keys(keys, attn.AdditiveParams(*params))
        return [
            jax.value_and_grad(outputs, argnums=argnums, has_aux=True)(query, keys, values, projected_keys, *params)
            for projected_keys, argnums in ((projected, range(7)), (None, (0, 1, 2, 4, 5, 6)))
        ]

    actual, wanted = jax.jit(lambda *given: [every(name, *given) for name in ("blockwise", "dense")])(*given)
    assert_close(actual, wanted, 1e-12)
    # Beside projected keys, neither the keys nor U are used.
    assert [bool(jnp.abs(grad).max() > 1e-3) for grad in wanted[0][1]] == [True, False, True, True, True, False, True]


@pytest.mark.usefixtures("quick_compilation")
def test_derivatives_of_both_modes_and_second_order_equal_dense(x64):
    given = arguments(2, dtype=float)
    direction = [normal(20 + n, *x.shape, dtype=float) for n, x in enumerate(given)]

    def derivatives(attend, given, direction):
        def gradient(*given):
            return jax.grad(lambda *given: (attend(*given) ** 2).sum(), argnums=range(6))(*given)

        def along(*given):
            return sum((g * d).sum() for g, d in zip(gradient(*given), direction, strict=True))

        forward = jax.jvp(attend, given, direction)[1]
        return forward, jax.jvp(gradient, given, direction)[1], jax.grad(along, argnums=range(6))(*given)

    actual, wanted = both(derivatives, given, direction)
    assert_close(actual, wanted, 1e-11)
    assert_close(actual[1], actual[2], 1e-11)


@pytest.mark.usefixtures("quick_compilation")
def test_vmap_over_any_subset_equals_dense():
    single, batched = arguments(), [jnp.stack([x, 2 - x]) for x in arguments()]
    subsets = [[int(n == m) - 1 for m in range(6)] for n in range(6)] + [[0] * 6]

    def mapped(attend, single, batched):
        axes = [[None if axis else 0 for axis in subset] for subset in subsets]
        chosen = [[b if axis == 0 else s for s, b, axis in zip(single, batched, row, strict=True)] for row in axes]
        gradient = jax.grad(lambda *given: (attend(*given) ** 2).sum(), argnums=(0, 5))
        return [(jax.vmap(attend, row)(*given), jax.vmap(gradient, row)(*given)) for row, given in zip(axes, chosen, strict=True)]

    assert_close(*both(mapped, single, batched), 1e-4)


@pytest.mark.usefixtures("quick_compilation")
def test_lengths_of_zero_and_one():
    cases = [arguments(2, T=t, S=s) for t, s in ((0, 3), (3, 0), (1, 5), (5, 1))]
    cases += [arguments(0), arguments(2, A=0)]

    def every(attend, cases):
        gradient = jax.grad(lambda *given: (attend(*given) ** 2).sum(), argnums=range(6))
        return [(attend(*case), gradient(*case)) for case in cases]

    actual, wanted = both(every, cases)
    assert_close(actual, wanted, 1e-4)
    assert jax.tree.map(jnp.shape, actual) == jax.tree.map(jnp.shape, wanted)


@pytest.mark.usefixtures("quick_compilation")
def test_half_precision_is_summed_in_single():
    given = arguments(2, T=20, S=30, A=8, dtype=jnp.bfloat16)

    def value_and_gradient(attend, *given):
        return attend(*given), jax.grad(lambda *given: attend(*given).astype(float).sum(), argnums=range(6))(*given)

    actual, wanted = both(value_and_gradient, *given)
    assert all(x.dtype == jnp.bfloat16 for x in jax.tree.leaves(actual))
    for a, w in zip(jax.tree.leaves(actual), jax.tree.leaves(wanted), strict=True):
        a, w = a.astype(float), w.astype(float)
        assert float(jnp.abs(a - w).max()) <= float(jnp.abs(w).max()) * 2**-7  # one rounding of bfloat16


def test_nan_stays_with_the_queries_that_attend_to_it():
    """Key 6 is seen by query 4 only, which the loss does not look at; key 5 by none; query 1 sees nothing."""
    mask = jnp.ones((T, S), bool).at[:4, 6].set(False).at[:, 5].set(False).at[1].set(False)
    query, keys, *rest = arguments()

    @jax.jit
    def value_and_gradients(*given):
        attend = attention("blockwise", mask)
        return attend(*given)[:4], jax.grad(lambda *given: attend(*given)[:4].sum(), argnums=range(6))(*given)

    wanted = value_and_gradients(query, keys, *rest)
    for bad in (jnp.nan, jnp.inf):
        for row in (5, 6):
            assert_close(value_and_gradients(query.at[1].set(bad), keys.at[row, 0].set(bad), *rest), wanted, 1e-6)
    context = attention("blockwise", mask)(query, keys.at[6].set(jnp.nan), *rest)
    assert bool(jnp.isnan(context[4]).all())


def temporaries(derivative, implementation, batch, length, width):
    """MiB that a derivative of the sum of squares of the context holds beside its inputs and outputs."""
    floats = [(batch, length, 64)] * 3 + [(64, width)] * 2 + [(width,)]
    given = [jax.ShapeDtypeStruct(x, jnp.float32) for x in floats]
    attend = attention(implementation)

    def gradient(*given):
        return jax.grad(lambda *given: (attend(*given) ** 2).sum(), argnums=range(6))(*given)

    derivatives = {
        "gradient": gradient,
        "forward over reverse": lambda *given: jax.jvp(gradient, given, given)[1],
        "reverse over reverse": jax.grad(lambda *given: sum((g * g).sum() for g in gradient(*given)), argnums=range(6)),
    }
    compiled = jax.jit(derivatives[derivative]).lower(*given).compile()
    return compiled.memory_analysis().temp_size_in_bytes / 2**20


@pytest.fixture
def blocks_of_users(monkeypatch):
    monkeypatch.setattr(additive_blocks, "BLOCK_ELEMENTS", 2**20)


@pytest.mark.usefixtures("blocks_of_users")
def test_the_gradient_holds_no_tensor_of_pairs_and_alignment():
    # [B T S A] would be 512 MiB.
    assert temporaries("gradient", "auto", 16, 128, 512) < 60


@pytest.mark.usefixtures("blocks_of_users")
@pytest.mark.parametrize("derivative", ["gradient", "forward over reverse", "reverse over reverse"])
def test_memory_is_a_few_times_that_of_the_scores(derivative):
    """The scores are 4 MiB, a block is, and [B T S A] would be 512 MiB."""
    assert temporaries(derivative, "blockwise", 1, 1024, 128) < 80


def test_blocks_keep_within_their_limit_and_fill_up_little():
    for shape in itertools.product((0, 1, 3, 16, 80), (0, 1, 31, 33, 1000), (0, 1, 32, 100), (0, 1, 64, 500)):
        sizes, (*lengths, width) = choose_blocks(*shape, 2**14), shape
        assert np.prod(sizes) * width <= 2**14
        for size, length in zip(sizes, lengths, strict=True):
            count = -(-length // size)
            assert 1 <= size <= max(length, 1)
            assert count * size - length < max(count, 1)
    # Nearly square, and all the batch that fits.
    assert choose_blocks(16, 128, 128, 512, 2**20) == Blocks(1, 43, 43)
    assert choose_blocks(64, 20, 20, 256, 2**20) == Blocks(10, 20, 20)
    assert choose_blocks(2, 1000, 2, 64, 2**14) == Blocks(1, 125, 2)
    # A pair wider than the limit is a block all the same.
    assert choose_blocks(2, 3, 4, 10**6, 2**14) == Blocks(1, 1, 1)


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        ((16, 128, 128, 512), "blockwise"),
        ((80, 1, 500, 1000), "dense"),
        ((80, 500, 1, 1000), "dense"),
        ((2, 64, 64, 256), "dense"),
        ((2, 64, 64, 257), "blockwise"),
        ((0, 9, 9, 9), "dense"),
    ],
)
def test_auto_follows_the_rule(shape, wanted):
    assert select_additive_implementation(*shape) == wanted
    batch, length, keys, width = shape
    params = attn.AdditiveParams(*(jax.ShapeDtypeStruct(x, jnp.float32) for x in ((4, width), (6, width), (width,))))
    given = [jax.ShapeDtypeStruct(x, jnp.float32) for x in ((batch, length, 4), (batch, keys, 6))]
    for function in (attn.additive_scores, attn.additive_weights):
        assert ("scan" in str(jax.make_jaxpr(function)(*given, params))) == (wanted == "blockwise")


def test_the_choice_is_taken_by_name():
    query, keys, values, *params = arguments()
    params = attn.AdditiveParams(*params)
    for name, looped in {"dense": False, "blockwise": True}.items():
        for function, given in (
            (attn.additive_scores, (query, keys, params)),
            (attn.additive_weights, (query, keys, params)),
            (attn.additive_attention, (query, keys, values, params)),
        ):
            program = jax.make_jaxpr(lambda *given, f=function, name=name: f(*given, implementation=name))(*given)
            assert ("scan" in str(program)) == looped
