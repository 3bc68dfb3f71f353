"""The cuDNN path, on a CPU: a stand-in takes the place of cuDNN's own call, and the real call is lowered but not run.

The stand-in gives `factor` times the context.  With factor 1 everything must equal the dense path; with factor 2 one sees which
results have come from it.
"""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn
from attn import cudnn

pytestmark = pytest.mark.usefixtures("quick_compilation")

T, S, N, K, H = 6, 8, 4, 2, 8
AMPERE = SimpleNamespace(platform="gpu", compute_capability="8.0")


def opaque(function):
    """The function, without a derivative."""
    alone = jax.custom_jvp(function)

    @alone.defjvp
    def refuse(*_):
        raise NotImplementedError("cuDNN has no such derivative")

    return alone


@pytest.fixture
def stand_in(monkeypatch):
    state = SimpleNamespace(factor=1)

    def xla(options, query, key, value):
        # In float32: on a CPU, XLA has no product of float16.
        wide = (x.astype(jnp.float32) for x in (query, key, value))
        context = jax.nn.dot_product_attention(*wide, **options._asdict(), implementation="xla")
        return state.factor * context.astype(value.dtype)

    # Like cuDNN it has a reverse mode, and neither of the two has a derivative.
    def call(options, *given):
        forward = opaque(partial(xla, options))
        backward = opaque(lambda given, back: jax.vjp(partial(xla, options), *given)[1](back))
        attend = jax.custom_vjp(forward)
        attend.defvjp(lambda *given: (forward(*given), given), backward)
        return attend(*given)

    monkeypatch.setattr(cudnn, "_cudnn", call)
    monkeypatch.setattr(cudnn, "_default_device", lambda: AMPERE)
    jax.clear_caches()
    yield state
    jax.clear_caches()


@pytest.fixture
def dense_for_blocks(monkeypatch):
    """The dense path where the cuDNN path would take blocks: a third of the compilation time."""

    def dense(options, query, key, value):
        return attn.dot_product_attention(query, key, value, **options._asdict(), implementation="dense")

    monkeypatch.setattr(cudnn, "_blocks", dense)


def normal(seed, *shape, dtype=jnp.bfloat16):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def arrays(*batch, dtype=jnp.bfloat16):
    return [normal(seed, *batch, *shape, dtype=dtype) for seed, shape in enumerate([(T, N, H), (S, K, H), (S, K, H)])]


def by_cudnn(*arrays, **options):
    return attn.dot_product_attention(*arrays, implementation="cudnn", **options)


def close(actual, expected, tolerance=0.04):
    """Within the rounding of half precision, relative to the largest entry."""
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        a, e = np.asarray(a, np.float64), np.asarray(e, np.float64)
        np.testing.assert_allclose(a, e, atol=tolerance * np.abs(e).max(initial=0), rtol=0)


def same(actual, expected):
    jax.tree.map(
        lambda a, e: np.testing.assert_array_equal(np.asarray(a, np.float64), np.asarray(e, np.float64)), actual, expected
    )


def derivatives(attend, given, along):
    def loss(*given):
        return jnp.sin(attend(*given).astype(jnp.float32)).sum()

    def gradient_along(*given):
        return sum(jnp.vdot(x, a).astype(jnp.float32) for x, a in zip(gradient(*given), along, strict=True))

    gradient = jax.grad(jax.checkpoint(loss), argnums=(0, 1, 2))
    return {
        "value": attend(*given),
        "jvp": jax.jvp(attend, given, along)[1],
        "gradient": gradient(*given),
        "hvp, forward over reverse": jax.jvp(gradient, given, along)[1],
        "hvp, reverse over reverse": jax.grad(gradient_along, argnums=(0, 1, 2))(*given),
    }


def test_every_derivative_with_two_batch_axes(stand_in, dense_for_blocks):
    given = arrays(2, 1)
    along = [normal(10 + n, *x.shape) for n, x in enumerate(given)]
    ours, dense = (
        jax.jit(partial(derivatives, partial(attn.dot_product_attention, implementation=name, is_causal=True)))(
            *([x.astype(dtype) for x in values] for values in (given, along))
        )
        for name, dtype in (("cudnn", jnp.bfloat16), ("dense", jnp.float32))
    )
    for name, expected in dense.items():
        assert all(x.dtype == jnp.bfloat16 for x in jax.tree.leaves(ours[name]))
        assert all(jnp.abs(x).max() > 0.1 for x in jax.tree.leaves(expected)), name
        close(ours[name], expected)


def test_every_derivative_can_be_traced_with_the_real_blocks(stand_in):
    given = arrays(2, 1)
    shapes = jax.eval_shape(partial(derivatives, partial(by_cudnn, is_causal=True)), given, given)
    assert {name: jax.tree.map(lambda x: x.shape, shapes[name]) for name in ("value", "hvp, reverse over reverse")} == {
        "value": (2, 1, T, N, H), "hvp, reverse over reverse": tuple(x.shape for x in given)
    }  # fmt: skip


@pytest.mark.parametrize("options", [cudnn.Options(0.7, True), cudnn.Options(0.2, False)])
def test_blocks_are_told_the_options(stand_in, options):
    query, key, value = arrays()
    query = query.at[2, 0, 0].set(jnp.nan)
    expected = attn.dot_product_attention(query, key, value, implementation="dense", **options._asdict())
    context = by_cudnn(query, key, value, **options._asdict())
    assert jnp.isnan(expected).any(-1).sum() == 1
    close(jnp.nan_to_num(context), jnp.nan_to_num(expected), 0.01)
    np.testing.assert_array_equal(jnp.isnan(context), jnp.isnan(expected))


def test_value_and_lse_equal_the_equation_without_a_batch_axis(stand_in):
    query, key, value = arrays(dtype=jnp.float16)
    context, log_sum = attn.dot_product_attention_and_lse(query, key, value, is_causal=True, scale=0.7, implementation="cudnn")
    q, k, v = (np.asarray(x, np.float64) for x in (query, key, value))
    for n in range(N):
        exps = np.tril(np.exp(0.7 * q[:, n] @ k[:, n // 2].T))
        np.testing.assert_allclose(log_sum[n], np.log(exps.sum(1)), rtol=1e-4)
        close(context[:, n], exps @ v[:, n // 2] / exps.sum(1, keepdims=True), 0.002)


def test_cudnn_gives_context_and_gradient_and_blocks_the_rest(stand_in, dense_for_blocks):
    given = query, _, _ = arrays(2)

    def results(implementation, *given):
        options = {"is_causal": True, "implementation": implementation}
        attend = partial(attn.dot_product_attention, **options)
        (context, lse), back = jax.vjp(partial(attn.dot_product_attention_and_lse, **options), *given)
        by_context, by_lse = back((query, jnp.zeros_like(lse))), back((jnp.zeros_like(query), jnp.cos(lse)))
        return attend(*given), context, by_context, (lse, by_lse[:2], jax.jvp(attend, given, given)[1])

    stand_in.factor = 2
    context, with_lse, gradient, rest = jax.jit(partial(results, "cudnn"))(*given)
    expected = jax.jit(partial(results, "dense"))(*given)
    same(context, with_lse)
    close(context, 2 * expected[0], 0.01)
    close(gradient, [2 * x for x in expected[2]], 0.02)
    close(rest, expected[3], 0.01)


@pytest.mark.parametrize("shorter", [(1, 0), (0, 1)], ids=["odd T", "odd S"])
def test_blocks_give_the_gradient_for_odd_lengths(stand_in, dense_for_blocks, shorter):
    query, key, value = arrays(2)
    given = query[:, shorter[0] :], key[:, shorter[1] :], value[:, shorter[1] :]
    stand_in.factor = 2

    @jax.jit
    def both(*given):
        (context, back), (expected, expected_back) = (
            jax.vjp(partial(attn.dot_product_attention, implementation=name), *given) for name in ("cudnn", "dense")
        )
        return (context, back(given[0])), (2 * expected, expected_back(given[0]))

    close(*both(*given), 0.02)


def test_batch_entries_and_mapped_ones_are_the_same(stand_in, dense_for_blocks):
    query, key, value = arrays(3)
    stand_in.factor = 2
    attend = partial(by_cudnn, is_causal=True)

    def both(query, key, value):
        gradient = jax.grad(lambda *given: jnp.sin(attend(*given).astype(jnp.float32)).sum(), argnums=(0, 1, 2))
        shared = key[0], value[0]
        repeated = [jnp.broadcast_to(x, key.shape) for x in shared]
        mapped = jax.vmap(attend, (0, None, None))(query, *shared), jax.vmap(gradient)(query, key, value)
        return mapped, (attend(query, *repeated), gradient(query, key, value))

    close(*jax.jit(both)(query, key, value), 0.01)


@pytest.mark.parametrize("spoilt", ["query", "key", "value", "cotangent"])
def test_nan_stays_with_the_queries_that_attend_to_it(stand_in, dense_for_blocks, spoilt):
    given = dict(zip(("query", "key", "value"), arrays(1), strict=True))
    given["cotangent"] = jnp.ones_like(given["query"]).at[:, 3:].set(0)
    given[spoilt] = given[spoilt].at[0, 3, 0].set(jnp.nan)

    def results(implementation, query, key, value, cotangent):
        attend = partial(attn.dot_product_attention, is_causal=True, implementation=implementation)
        context, back = jax.vjp(attend, query, key, value)
        return context, back(cotangent)

    stand_in.factor = 2
    context, gradient = jax.jit(partial(results, "cudnn"))(**given)
    expected, expected_gradient = jax.jit(partial(results, "dense"))(**given)
    same(gradient, expected_gradient)
    if spoilt == "cotangent":
        return
    same(context, expected)
    rows = np.zeros((T, N), bool)
    rows[3 : 4 if spoilt == "query" else T, : 1 if spoilt == "query" else N // K] = True
    np.testing.assert_array_equal(np.isnan(np.float32(context)).any(-1)[0], rows)
    if spoilt != "query":
        assert all(np.isfinite(np.float32(x)).all() for x in gradient)


@pytest.mark.parametrize(("T", "S", "batch"), [(0, 3, ()), (3, 0, (2,)), (3, 3, (0,)), (1, 1, ())])
def test_lengths_zero_and_one(stand_in, dense_for_blocks, T, S, batch):
    query, key = normal(0, *batch, T, 2, H), normal(1, *batch, S, 1, H)
    context = by_cudnn(query, key, key)
    assert context.shape == query.shape
    close(context, np.broadcast_to(np.asarray(key, np.float32), context.shape) if S == 1 else np.zeros(context.shape), 0.01)


QUERY, KEY, VALUE = arrays(2)
UNFIT = [
    ("query: expected bfloat16 or float16 .*, got float32", {"query": QUERY.astype(jnp.float32)}),
    ("key: expected the dtype of the query, bfloat16, .*, got float16", {"key": KEY.astype(jnp.float16)}),
    ("value: expected the dtype of the query, bfloat16, .*, got float32", {"value": VALUE.astype(jnp.float32)}),
    ("query: expected H a multiple of 8 .*, got H = 4", {"query": QUERY[..., :4], "key": KEY[..., :4], "value": VALUE[..., :4]}),
    ("got H = 136", {name: jnp.tile(x, 17) for name, x in {"query": QUERY, "key": KEY, "value": VALUE}.items()}),
    ("value: expected V = H = 8 .*, got V = 4", {"value": VALUE[..., :4]}),
    ("scale: expected a Python number > 0 .*, got -1", {"scale": -1.0}),
    ("scale: .*, got 0", {"scale": 0}),
    ("scale: .*, got nan", {"scale": float("nan")}),
    ("scale: .*, got 0.5", {"scale": jnp.float32(0.5)}),
    ("query_offset: expected 0, known when traced, .*, got 1", {"query_offset": 1, "is_causal": True}),
    (r"query_offset: .*, got \[0, 2\]", {"query_offset": [0, 2], "is_causal": True}),
    (r"bias: expected None for implementation='cudnn', got shape \(2, 4, 6, 8\)", {"bias": jnp.zeros((2, N, T, S))}),
    (r"mask: expected None .*, got shape \(2, 1, 1, 8\)", {"mask": jnp.ones((2, 1, 1, S), bool)}),
    (r"window: expected None .*, got \(2, 0\)", {"window": (2, 0)}),
    ("softcap: expected None .*, got 3.0", {"softcap": 3.0}),
    ("query_lengths: expected None .*, got 2", {"query_lengths": 2}),
    (r"key_lengths: expected None .*, got \[1, 2\]", {"key_lengths": [1, 2]}),
    (
        "query_segment_ids: expected None",
        {"query_segment_ids": jnp.zeros((2, T), int), "key_segment_ids": jnp.zeros((2, S), int)},
    ),
    ("dropout_rate: expected 0 .*, got 0.1", {"dropout_rate": 0.1, "dropout_key": jax.random.key(0)}),
    ("precision: expected None .*, got 'highest'", {"precision": "highest"}),
    (r"block_sizes: expected None .*, got \(4, 4\)", {"block_sizes": (4, 4)}),
]


class Taken(Exception):
    """Raised in place of the implementation that a call takes."""


@pytest.fixture
def taken(monkeypatch):
    """The implementation that a call takes, with a CUDA device there and without running it."""

    def stop(name):
        def implementation(*_, **__):
            raise Taken(name)

        return implementation

    for name in ("dense", "blockwise", "cudnn"):
        monkeypatch.setattr(f"attn.dot_product.{name}_attention", stop(name))
    monkeypatch.setattr(cudnn, "_default_device", lambda: AMPERE)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")

    def take(**given):
        with pytest.raises(Taken) as caught:
            attn.dot_product_attention(**given)
        return str(caught.value)

    return take


@pytest.mark.parametrize(("message", "changes"), UNFIT)
def test_what_does_not_fit_is_named_and_auto_goes_another_way(taken, message, changes):
    given = {"query": QUERY, "key": KEY, "value": VALUE} | changes
    with pytest.raises(ValueError, match=message):
        attn.dot_product_attention(**given, implementation="cudnn")
    if "bias" in given or "mask" in given or "segment" in message or "lengths" in message:
        return  # Their shapes are those of the short arrays; each counts as the others do.
    long = {name: jnp.tile(given[name], (1, 40, 1, 1)) for name in ("query", "key", "value")}
    assert taken(**given | long) in ("dense", "blockwise")


def test_auto_takes_cudnn_where_it_fits(taken, monkeypatch):
    given = {name: jnp.tile(x, (1, 40, 1, 1)) for name, x in {"query": QUERY, "key": KEY, "value": VALUE}.items()}
    assert taken(**given) == taken(**given, is_causal=True, query_offset=[0, 0], scale=2) == "cudnn"
    assert taken(**given, query_offset=7, dropout_rate=0.0, dropout_key=jax.random.key(0)) == "cudnn"
    assert taken(query=QUERY, key=KEY, value=VALUE) == "dense"
    assert taken(query=QUERY, key=KEY, value=VALUE, implementation="cudnn") == "cudnn"
    # Inside jit a constant is known, an argument is not.
    with pytest.raises(Taken, match="cudnn"):
        jax.jit(lambda x: attn.dot_product_attention(**given, is_causal=True, query_offset=[0, 0], scale=1.0) * x)(1.0)
    with pytest.raises(Taken, match="dense"):
        jax.jit(lambda x: attn.dot_product_attention(**given, is_causal=True, query_offset=x))(0)
    with pytest.raises(Taken, match="dense"):
        jax.jit(lambda x: attn.dot_product_attention(**given, scale=x))(1.0)
    monkeypatch.setattr(cudnn, "_default_device", lambda: SimpleNamespace(platform="gpu", compute_capability="gfx942"))
    assert taken(**given) == "dense"


@pytest.mark.parametrize(
    ("device", "message"),
    [
        (None, "implementation: expected a default backend 'gpu' for 'cudnn', got 'cpu'"),
        (SimpleNamespace(platform="gpu", compute_capability="7.5"), "compute capability >= 8.0 for 'cudnn', got 7.5"),
        (SimpleNamespace(platform="gpu", compute_capability="gfx942"), "expected a CUDA device .*, got gfx942"),
        (SimpleNamespace(platform="tpu"), "got 'tpu'"),
    ],
)
def test_a_device_without_it_is_named(monkeypatch, device, message):
    if device is not None:
        monkeypatch.setattr(cudnn, "_default_device", lambda: device)
    with pytest.raises(ValueError, match=message):
        by_cudnn(QUERY, KEY, VALUE)


def test_the_default_device_counts():
    assert cudnn._default_device().platform == "cpu"
    for chosen in (jax.devices("cpu")[0], "cpu"):
        with jax.default_device(chosen):
            assert cudnn._default_device() == jax.devices("cpu")[0]
    for capability in ("8.0", "9.0", "12.1"):
        assert int(capability.split(".")[0]) >= 8
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cudnn, "_default_device", lambda: SimpleNamespace(platform="gpu", compute_capability=capability))  # noqa: B023
            assert cudnn.absence() is None


@pytest.mark.parametrize(
    ("options", "mask", "scale"), [({"is_causal": True}, "CAUSAL", 8**-0.5), ({"scale": 0.25}, "NO_MASK", 0.25)]
)
def test_the_real_call_is_lowered_for_cuda_with_its_options(monkeypatch, dense_for_blocks, options, mask, scale):
    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(cudnn, "_default_device", lambda: AMPERE)
    jax.clear_caches()
    given, back = arrays(2), normal(3, 2, T, N, H)

    def text(function, *arrays):
        return jax.jit(function).trace(*arrays).lower(lowering_platforms=("cuda",)).as_text().replace("\\22", '"')

    attend = partial(by_cudnn, **options)
    forward = text(attend, *given)
    backward = text(lambda *given: jax.vjp(attend, *given)[1](back), *given)
    mapped = text(jax.vmap(attend), *(x[None] for x in given))
    for program in (forward, backward, mapped):
        assert f'"mask_type": "{mask}"' in program
        assert f'"fmha_scale": {scale}' in program
    assert "fmhaSoftmaxBackward" in backward
    assert "fmhaSoftmaxBackward" not in forward

    def odd(query, key, value):
        context, through = jax.vjp(attend, query, key[:, 1:], value[:, 1:])
        return context, through(back)

    assert "fmhaSoftmax" in text(odd, *given)
