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
from attention_reference import dot_product, lse, visible

import attn
from attn import cudnn

pytestmark = pytest.mark.usefixtures("quick_compilation")

T, S, N, K, H = 5, 7, 4, 2, 8
AMPERE = SimpleNamespace(platform="gpu", compute_capability="8.0")


@pytest.fixture
def stand_in(monkeypatch):
    state = SimpleNamespace(factor=1)

    def call(options, query, key, value):
        context = jax.nn.dot_product_attention(
            query, key, value, scale=options.scale, is_causal=options.is_causal, implementation="xla"
        )
        return state.factor * context

    monkeypatch.setattr(cudnn, "_cudnn", call)
    monkeypatch.setattr(cudnn, "_default_device", lambda: AMPERE)
    jax.clear_caches()
    yield state
    jax.clear_caches()


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
        np.testing.assert_allclose(a, e, atol=tolerance * np.abs(e).max(), rtol=0)


def same(actual, expected):
    jax.tree.map(lambda a, e: np.testing.assert_array_equal(np.asarray(a, np.float64), np.asarray(e, np.float64)), actual, expected)


@pytest.mark.parametrize(
    ("batch", "dtype", "options"),
    [((2, 3), jnp.bfloat16, {"is_causal": True}), ((), jnp.float16, {"scale": 0.7})],
    ids=["two batch axes, causal", "no batch axis, scale"],
)
def test_value_and_every_derivative(stand_in, batch, dtype, options):
    given = arrays(*batch, dtype=dtype)
    along = [normal(10 + n, *x.shape, dtype=dtype) for n, x in enumerate(given)]

    def everything(attend, given, along):
        def loss(*given):
            context, lse = attend(*given)
            return jnp.sin(context.astype(jnp.float32)).sum() + jnp.cos(lse).sum()

        def gradient_along(*given):
            return sum(jnp.vdot(x, a).astype(jnp.float32) for x, a in zip(gradient(*given), along, strict=True))

        gradient = jax.grad(loss, argnums=(0, 1, 2))
        return {
            "value": attend(*given),
            "jvp": jax.jvp(attend, given, along)[1],
            "gradient": gradient(*given),
            "under checkpoint": jax.grad(jax.checkpoint(loss), argnums=(0, 1, 2))(*given),
            "hvp, forward over reverse": jax.jvp(gradient, given, along)[1],
            "hvp, reverse over reverse": jax.grad(gradient_along, argnums=(0, 1, 2))(*given),
        }

    both = [
        jax.jit(partial(everything, partial(attn.dot_product_attention_and_lse, implementation=implementation, **options)))(
            *([x.astype(kind) for x in values] for values in (given, along))
        )
        for implementation, kind in (("cudnn", dtype), ("dense", jnp.float32))
    ]
    assert both[0]["value"][0].dtype == dtype
    assert both[0]["value"][1].dtype == jnp.float32
    for name, expected in both[1].items():
        assert max(np.abs(x).max() for x in jax.tree.leaves(expected)) > 0.1, name
        close(both[0][name], expected)


def test_value_and_lse_equal_the_equation(stand_in):
    query, key, value = arrays()
    context, log_sum = attn.dot_product_attention_and_lse(
        query, key, value, is_causal=True, scale=0.7, implementation="cudnn"
    )
    q, k, v = (np.asarray(x, np.float64) for x in (query, key, value))
    for n in range(N):
        scores = 0.7 * q[:, n] @ k[:, n // 2].T
        mask = np.tril(np.ones((T, S), bool))
        np.testing.assert_allclose(np.float64(log_sum[n]), [np.log(np.exp(s[m]).sum()) for s, m in zip(scores, mask)], rtol=1e-5)
        weights = np.where(mask, np.exp(scores), 0)
        close(context[:, n], weights @ v[:, n // 2] / weights.sum(1, keepdims=True), 0.01)


def test_cudnn_gives_context_and_gradient_and_blocks_the_rest(stand_in):
    given, ones = arrays(2), normal(3, 2, T, N, H)

    def results(*given):
        attend = partial(attn.dot_product_attention, is_causal=True, implementation="cudnn")
        context, back = jax.vjp(attend, *given)
        with_lse, lse = attn.dot_product_attention_and_lse(*given, is_causal=True, implementation="cudnn")
        return {"context": context, "with lse": with_lse, "gradient": back(ones)}, (lse, jax.jvp(attend, given, given)[1])

    once = jax.jit(results)(*given)
    jax.clear_caches()
    stand_in.factor = 2
    twice = jax.jit(results)(*given)
    same(twice[0]["context"], twice[0]["with lse"])
    same(twice[0], jax.tree.map(lambda x: 2 * x, once[0]))
    same(twice[1], once[1])


def test_batch_entries_and_mapped_ones_are_the_same(stand_in):
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


@pytest.mark.parametrize("spoilt", [0, 1, 2])
def test_nan_stays_with_the_queries_that_attend_to_it(stand_in, spoilt):
    stand_in.factor = 2
    given = arrays(1)
    given[spoilt] = given[spoilt].at[0, 3, 0].set(jnp.nan)

    def results(implementation, *given):
        context, back = jax.vjp(partial(attn.dot_product_attention, is_causal=True, implementation=implementation), *given)
        return context, back(jnp.ones_like(context).at[:, 3:].set(0))

    context, gradient = jax.jit(partial(results, "cudnn"))(*given)
    same((context, gradient), jax.jit(partial(results, "blockwise"))(*given))
    rows = np.isnan(np.asarray(context, np.float32)).any(-1)[0]
    heads = slice(0, 1) if spoilt == 0 else slice(0, N // K)
    expected = np.zeros((T, N), bool)
    expected[3 : 4 if spoilt == 0 else T, heads] = True
    np.testing.assert_array_equal(rows, expected)
    assert all(np.isfinite(np.asarray(x, np.float32)).all() for x in gradient)


def test_a_nan_cotangent_takes_the_blocks(stand_in):
    stand_in.factor = 2
    given = arrays(1)
    back = jnp.ones((1, T, N, H), jnp.bfloat16).at[0, 3, 0].set(jnp.nan)
    gradients = [
        jax.vjp(partial(attn.dot_product_attention, is_causal=True, implementation=implementation), *given)[1](back)
        for implementation in ("cudnn", "blockwise")
    ]
    same(*gradients)


@pytest.mark.parametrize(("T", "S", "batch"), [(0, 3, ()), (3, 0, (2,)), (3, 3, (0,)), (1, 1, ())])
def test_lengths_zero_and_one(stand_in, T, S, batch):
    query, key = normal(0, *batch, T, 2, H), normal(1, *batch, S, 1, H)
    context, log_sum = attn.dot_product_attention_and_lse(query, key, key, implementation="cudnn")
    assert context.shape == query.shape
    assert log_sum.shape == (*batch, 2, T)
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
    (r"bias: expected None for implementation='cudnn', got shape \(2, 4, 5, 7\)", {"bias": jnp.zeros((2, N, T, S))}),
    (r"mask: expected None .*, got shape \(2, 1, 1, 7\)", {"mask": jnp.ones((2, 1, 1, S), bool)}),
    (r"window: expected None .*, got \(2, 0\)", {"window": (2, 0)}),
    ("softcap: expected None .*, got 3.0", {"softcap": 3.0}),
    ("query_lengths: expected None .*, got 2", {"query_lengths": 2}),
    (r"key_lengths: expected None .*, got \[1, 2\]", {"key_lengths": [1, 2]}),
    ("query_segment_ids: expected None", {"query_segment_ids": jnp.zeros((2, T), int), "key_segment_ids": jnp.zeros((2, S), int)}),
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
        jax.jit(lambda x: attn.dot_product_attention(**given, is_causal=True, query_offset=jnp.zeros(2, int), scale=1.0) * x)(1.0)
    with pytest.raises(Taken, match="blockwise"):
        jax.jit(lambda x: attn.dot_product_attention(**given, is_causal=True, query_offset=x))(0)
    with pytest.raises(Taken, match="blockwise"):
        jax.jit(lambda x: attn.dot_product_attention(**given, scale=x))(1.0)
    monkeypatch.setattr(cudnn, "_default_device", lambda: SimpleNamespace(platform="gpu", compute_capability="gfx942"))
    assert taken(**given) == "blockwise"


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
def test_the_real_call_is_lowered_for_cuda_with_its_options(monkeypatch, options, mask, scale):
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
