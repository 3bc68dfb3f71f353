import math

import jax
import jax.numpy as jnp
import pytest

import attn
from attn.additive_blocks import choose_blocks
from attn.cost import additive_cost, attention_cost, linear_cost, window_pairs

# B, T, S, D, N, K, H, V, Dk, A all different, so that no two can be confused.
B, T, S, D, N, K, H, V, DK, A = 2, 5, 11, 24, 6, 3, 7, 10, 13, 8
CROSS = {"batch": B, "query_length": T, "key_length": S, "num_kv_heads": K, "head_dim": H, "value_dim": V, "key_input_dim": DK}


def counted_flops(*products):
    """What the compiler counts for einsums, each given as equation and shapes."""
    total = 0.0
    for equation, *shapes in products:
        arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
        compiled = jax.jit(lambda *xs, equation=equation: jnp.einsum(equation, *xs)).lower(*arrays).compile()
        total += compiled.cost_analysis()["flops"]
    return total


def leaf_sizes(params):
    return [leaf.size for leaf in jax.tree.leaves(params)]


def test_known_figures():
    """d = 512: parameters for one head and for eight; n = 1024, batch 32, eight heads: bytes of the weights."""
    for num_heads in (1, 8):
        cost = attention_cost(512, num_heads, batch=32, query_length=1024)
        assert cost.projection_parameters == 786_432
        assert cost.output_parameters == 262_144
        assert cost.parameters == 1_048_576
        assert cost.weights_bytes == num_heads * 134_217_728
    assert cost.weights_bytes == 1_073_741_824
    assert cost.flops == 4 * 2 * 32 * 1024 * 512**2 + 2 * 2 * 32 * 1024**2 * 512
    assert all(type(part) is int for part in (*cost, cost.parameters, cost.flops))


@pytest.mark.parametrize("use_bias", [False, True])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_parameters_are_those_of_init_multi_head(use_bias, dtype):
    for model_dim, num_heads, options in (
        (D, N, {"num_kv_heads": K, "head_dim": H, "value_dim": V, "key_input_dim": DK}),
        (D, 3, {}),
        (8, 2, {"num_kv_heads": 1}),
    ):
        params = jax.eval_shape(
            lambda key, m=model_dim, n=num_heads, o=options: attn.init_multi_head(key, m, n, use_bias=use_bias, dtype=dtype, **o),
            jax.random.key(0),
        )
        cost = attention_cost(model_dim, num_heads, batch=1, query_length=1, use_bias=use_bias, dtype=dtype, **options)
        assert cost.parameters == sum(leaf_sizes(params))
        assert cost.output_parameters == sum(leaf_sizes((params.output_kernel, params.output_bias)))
    assert sum(leaf_sizes(attn.init_additive(jax.random.key(0), D, DK, A))) == additive_cost(
        D, DK, A, batch=1, query_length=1, key_length=1
    ).parameters  # fmt: skip


def test_flops_are_those_of_the_compiled_products():
    cost = attention_cost(D, N, **CROSS)
    G = N // K
    parts = {
        "projection_flops": [
            ("btd,dnh->btnh", (B, T, D), (D, N, H)),
            ("bsd,dkh->bskh", (B, S, DK), (DK, K, H)),
            ("bsd,dkv->bskv", (B, S, DK), (DK, K, V)),
        ],
        "score_flops": [("btkgh,bskh->bkgts", (B, T, K, G, H), (B, S, K, H))],
        "context_flops": [("bkgts,bskv->btkgv", (B, K, G, T, S), (B, S, K, V))],
        "output_flops": [("btnv,nvd->btd", (B, T, N, V), (N, V, D))],
    }
    for name, products in parts.items():
        assert getattr(cost, name) == pytest.approx(counted_flops(*products), rel=0.01), name
    assert cost.flops == sum(getattr(cost, name) for name in parts)


def test_flops_of_the_whole_layer_are_little_more():
    """Softmax, scale and masks are left out of the formula: they matter less the wider the heads."""
    params = jax.eval_shape(lambda key: attn.init_multi_head(key, 256, 2), jax.random.key(0))
    x = jax.ShapeDtypeStruct((B, 64, 256), jnp.float32)
    whole = jax.jit(attn.multi_head_attention).lower(params, x).compile().cost_analysis()["flops"]
    cost = attention_cost(256, 2, batch=B, query_length=64)
    assert cost.flops <= whole <= 1.1 * cost.flops


def test_flops_of_linear_attention_are_those_of_the_compiled_products():
    cost, R, G = linear_cost(D, N, **CROSS), H, N // K
    sums = ("bskr,bskv->bkrv", (B, S, K, R), (B, S, K, V))
    assert cost.score_flops == pytest.approx(counted_flops(sums), rel=0.01)
    products = [("btkgr,bkrv->btkgv", (B, T, K, G, R), (B, K, R, V)), ("btkgr,bkr->btkg", (B, T, K, G, R), (B, K, R))]
    assert cost.context_flops == pytest.approx(counted_flops(*products), rel=0.01)
    softmax = attention_cost(D, N, **CROSS)
    for shared in ("parameters", "projection_flops", "output_flops", "input_bytes", "output_bytes"):
        assert getattr(cost, shared) == getattr(softmax, shared)
    random = linear_cost(D, N, **CROSS, num_features=17)
    maps = [("btnh,rh->btnr", (B, T, N, H), (17, H)), ("bskh,rh->bskr", (B, S, K, H), (17, H))]
    assert random.score_flops * 1.0 == pytest.approx(counted_flops(*maps) + cost.score_flops / H * 17, rel=0.01)
    assert random.cache_bytes == B * K * 17 * (V + 1) * 4
    assert random.weights_bytes == random.hidden_bytes == 0


def test_linear_attention_is_linear_in_the_length():
    short, long = (linear_cost(512, 8, batch=1, query_length=n) for n in (1000, 4000))
    assert long.flops == 4 * short.flops
    assert long.cache_bytes == short.cache_bytes
    assert attention_cost(512, 8, batch=1, query_length=4000).score_flops == 16 * (
        attention_cost(512, 8, batch=1, query_length=1000).score_flops
    )


def test_flops_and_bytes_of_additive_attention():
    cost = additive_cost(D, DK, A, batch=B, query_length=T, key_length=S, value_dim=V)
    products = [
        ("btd,da->bta", (B, T, D), (D, A)),
        ("bsd,da->bsa", (B, S, DK), (DK, A)),
        ("btsa,a->bts", (B, T, S, A), (A,)),
        ("bts,bsv->btv", (B, T, S), (B, S, V)),
    ]
    assert cost.flops == pytest.approx(counted_flops(*products), rel=0.01)
    params = attn.init_additive(jax.random.key(0), D, DK, A)
    query, keys, values = jnp.ones((B, T, D)), jnp.ones((B, S, DK)), jnp.ones((B, S, V))
    projected = attn.project_keys(keys, params)
    assert cost.weights_bytes == attn.additive_weights(query, keys, params).nbytes
    assert cost.hidden_bytes == A * cost.weights_bytes
    assert cost.cache_bytes == projected.nbytes + values.nbytes
    assert cost.input_bytes == query.nbytes + keys.nbytes + values.nbytes
    assert cost.output_bytes == attn.additive_attention(query, keys, values, params).nbytes
    step = additive_cost(D, DK, A, batch=B, query_length=1, key_length=S, cached_length=S, value_dim=V)
    assert step.projection_flops == 2 * B * D * A
    keys_are_values = additive_cost(D, DK, A, batch=B, query_length=T, key_length=S)
    assert keys_are_values.input_bytes == query.nbytes + keys.nbytes
    assert keys_are_values.context_flops == 2 * B * T * S * DK


def test_hidden_bytes_of_additive_attention_in_blocks():
    sizes = {"batch": 16, "query_length": 128, "key_length": 128}
    cost = additive_cost(512, 512, 512, **sizes, implementation="blockwise")
    blocks = choose_blocks(16, 128, 128, 512)
    assert cost.hidden_bytes == 4 * 512 * blocks.gb * blocks.bt * blocks.bs <= 4 * 2**20
    assert cost._replace(hidden_bytes=0) == additive_cost(512, 512, 512, **sizes)._replace(hidden_bytes=0)
    with pytest.raises(ValueError, match=r"implementation: expected one of 'dense', 'blockwise', got 'fast'"):
        additive_cost(512, 512, 512, **sizes, implementation="fast")


@pytest.mark.usefixtures("quick_compilation")
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_bytes_are_those_of_the_arrays(dtype):
    cost = attention_cost(D, N, **CROSS, dtype=dtype)
    query, key = jnp.ones((B, T, N, H), dtype), jnp.ones((B, S, K, H), dtype)
    assert cost.weights_bytes == attn.dot_product_weights(query, key).nbytes
    cache = attn.init_cache(B, S, K, H, value_dim=V, dtype=dtype)
    assert cost.cache_bytes == cache.key.nbytes + cache.value.nbytes
    inputs = jnp.ones((B, T, D), dtype), jnp.ones((B, S, DK), dtype)
    assert cost.input_bytes == sum(x.nbytes for x in inputs)
    assert cost.output_bytes == inputs[0].nbytes

    def output(key):
        params = attn.init_multi_head(key, D, N, num_kv_heads=K, head_dim=H, value_dim=V, key_input_dim=DK, dtype=dtype)
        return attn.multi_head_attention(params, *inputs)

    shape = jax.eval_shape(output, jax.random.key(0))
    assert shape.size * shape.dtype.itemsize == cost.output_bytes


def test_float64_bytes(x64):
    cost = attention_cost(4, 2, batch=B, query_length=T, dtype=jnp.float64)
    x = jnp.ones((B, T, 2, 2))
    assert cost.weights_bytes == attn.dot_product_weights(x, x).nbytes == 8 * B * 2 * T * T


def test_steps_with_a_cache_add_up_to_the_whole():
    whole = attention_cost(D, 3, batch=B, query_length=T, pairs=T * (T + 1) // 2)
    steps = [attention_cost(D, 3, batch=B, query_length=1, cached_length=n) for n in range(T)]
    assert sum(step.flops for step in steps) == whole.flops
    assert sum(step.input_bytes for step in steps) == whole.input_bytes
    assert steps[-1].cache_bytes == whole.cache_bytes
    assert steps[-1].weights_bytes == B * 3 * T * 4
    encoded = attention_cost(D, N, **CROSS | {"query_length": 1}, cached_length=S)
    assert encoded.projection_flops == 2 * B * D * N * H
    assert encoded.input_bytes == B * D * 4


def test_blocks_change_the_memory_only():
    dense = attention_cost(512, 8, batch=4, query_length=4096)
    blocks = attention_cost(512, 8, batch=4, query_length=4096, implementation="blockwise", block_sizes=(128, 256))
    assert blocks.weights_bytes == 4 * 8 * 128 * 256 * 4
    assert blocks._replace(weights_bytes=dense.weights_bytes) == dense
    longer = attention_cost(512, 8, batch=4, query_length=8192, implementation="blockwise", block_sizes=(128, 256))
    assert longer.weights_bytes == blocks.weights_bytes
    short = {"batch": 4, "query_length": 100, "key_length": 30}
    assert attention_cost(512, 8, **short, implementation="blockwise").weights_bytes == (
        attention_cost(512, 8, **short).weights_bytes
    )


@pytest.mark.parametrize("sides", [(2, 1), (None, 0), (0, None), (3, 0), (None, None)])
def test_pairs_of_a_window_are_those_of_its_mask(sides):
    left, right = sides
    for T, S, offset in ((5, 5, 0), (4, 7, 3), (7, 3, -2), (3, 4, 20), (3, 4, -20), (0, 3, 0), (3, 0, 0)):
        mask = attn.sliding_window_mask(T, S, left=left, right=right, query_offset=offset)
        assert window_pairs(T, S, left=left, right=right, query_offset=offset) == int(mask.sum())
    pairs = window_pairs(64, left=2, right=1)
    cost, dense = (attention_cost(D, 3, batch=B, query_length=64, pairs=p) for p in (pairs, None))
    assert cost.score_flops == 2 * B * 3 * pairs * D // 3 < dense.score_flops // 10
    assert cost.weights_bytes == B * 3 * pairs * 4
    assert cost.projection_flops == dense.projection_flops


def test_lengths_zero_cost_nothing():
    for lengths in ({"query_length": 0}, {"query_length": 0, "key_length": 0}):
        cost = attention_cost(D, 3, batch=B, **lengths)
        assert (cost.flops, cost.weights_bytes, cost.input_bytes) == (0, 0, 0)
    assert attention_cost(D, 3, batch=B, query_length=2, key_length=0).score_flops == 0


def test_large_sizes_do_not_overflow():
    cost = attention_cost(2**15, 64, batch=2**12, query_length=2**20)
    assert cost.score_flops == 2 * 2**12 * 2**40 * 2**15
    assert cost.weights_bytes == 4 * 2**12 * 64 * 2**40
    assert math.log2(cost.cache_bytes) == 12 + 20 + 15 + 1 + 2


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match=r"num_heads: expected a divisor of model_dim = 10 \(or a head_dim\), got 4"):
        attention_cost(10, 4, batch=1, query_length=1)
    with pytest.raises(ValueError, match="num_kv_heads: expected a divisor of num_heads = 4, got 3"):
        attention_cost(8, 4, batch=1, query_length=1, num_kv_heads=3)
    with pytest.raises(ValueError, match="query_length: expected an integer >= 0, got -1"):
        linear_cost(8, 4, batch=1, query_length=-1)
    with pytest.raises(ValueError, match="cached_length: expected at most S = 3, got 4"):
        attention_cost(8, 4, batch=1, query_length=1, key_length=3, cached_length=4)
    with pytest.raises(ValueError, match="pairs: expected at most T S = 4, got 5"):
        attention_cost(8, 4, batch=1, query_length=2, pairs=5)
    with pytest.raises(ValueError, match="implementation: expected one of 'dense', 'blockwise', got 'fast'"):
        attention_cost(8, 4, batch=1, query_length=2, implementation="fast")
    with pytest.raises(ValueError, match=r"block_sizes: expected \(Tb, Sb\), got \(1, 2, 3\)"):
        attention_cost(8, 4, batch=1, query_length=2, implementation="blockwise", block_sizes=(1, 2, 3))
    with pytest.raises(TypeError, match="dtype: expected a floating dtype, got int32"):
        additive_cost(1, 1, 1, batch=1, query_length=1, key_length=1, dtype=jnp.int32)
    with pytest.raises(ValueError, match="left: expected an integer >= 0, got -1"):
        window_pairs(3, left=-1, right=0)
