"""Every kind of `model.positions`: the papers' scores in plain loops, stepwise against teacher-forced, what each can tell."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from models import call, random_batch

import attn
from seq2seq.cached_attention import Ancestry, init_cache
from seq2seq.config import TransformerConfig
from seq2seq.layers import MultiHeadAttention, Relation
from seq2seq.model import build_model, count_parameters
from seq2seq.positions import KINDS, build_positions

RELATIVE = ("rope", "alibi", "t5", "shaw")
BASE = TransformerConfig(
    model_dim=8,
    ffn_dim=12,
    num_heads=2,
    num_layers=1,
    max_length=20,
    rope_base=50.0,
    relative_buckets=8,
    relative_max_distance=6,
    shaw_distance=2,
)
pytestmark = pytest.mark.usefixtures("quick_compilation")


def config_of(kind, **options):
    return dataclasses.replace(BASE, positions=kind, **options)


def transformer(config, **options):
    return build_model(config, 11, 11, shared_vocab=True, rngs=nnx.Rngs(0), **options)


@pytest.fixture(params=KINDS, scope="module")
def model(request):
    return transformer(config_of(request.param, num_layers=2 if request.param == "shaw" else 1))  # its layers differ


def paper_scores(kind, side, query, key, tables):
    """Scaled scores of one head n of N = 2: query, key [T H]; the equations that seq2seq.positions names."""
    (T, H), N = query.shape, 2
    scores = np.zeros((N, T, T))
    for n in range(N):
        for i in range(T):
            for j in range(T):
                q, k, added = query[i], key[j], 0.0
                if kind == "rope":
                    q, k = turned(q, i), turned(k, j)
                if kind == "shaw":
                    k = k + tables[0][min(max(j - i, -2), 2) + 2]
                if kind == "alibi":
                    added = -(2.0 ** (-8 * (n + 1) / N)) * abs(i - j)
                if kind == "t5":
                    added = tables[0][bucket(j - i, side), n]
                scores[n, i, j] = q @ k / np.sqrt(H) + added
    return scores


def bucket(relative, side):
    """Of 8 buckets and distances up to 6: half of a side's buckets hold one distance each, the others grow with its logarithm."""
    buckets, start = (4, 4 * (relative > 0)) if side == "source" else (8, 0)
    distance, single = abs(relative) if side == "source" else max(-relative, 0), buckets // 2
    if distance < single:
        return start + distance
    far = single + int(np.log(distance / single) / np.log(6 / single) * (buckets - single))
    return start + min(far, buckets - 1)


def turned(x, position):
    """R_position x: columns h and h + H/2 are a pair, which turns by base^(-2h/H) at every step."""
    half = len(x) // 2
    angles = position * 50.0 ** (-2 * np.arange(half) / len(x))
    a, b = x[:half], x[half:]
    return np.concatenate([a * np.cos(angles) - b * np.sin(angles), a * np.sin(angles) + b * np.cos(angles)])


def tables_of(positions):
    return [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(nnx.state(positions, nnx.Param))]


def softmax(scores):
    exps = np.exp(scores - scores.max(-1, keepdims=True))
    return exps / exps.sum(-1, keepdims=True)


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("kind", [*RELATIVE, "none"])
def test_self_attention_has_the_scores_of_the_paper(kind, side):
    positions = build_positions(config_of(kind), side, rngs=nnx.Rngs(3))
    attention = MultiHeadAttention(8, 2, rngs=nnx.Rngs(4))
    x = np.random.default_rng(5).normal(size=(1, 7, 8))
    w = attn.MultiHeadParams(*(leaf and np.asarray(leaf[...], np.float64) for leaf in attention.weights))
    heads = []
    for n in range(2):
        query, key, value = (x[0] @ kernel[:, n] for kernel in w[:3])
        scores = paper_scores(kind, side, query, key, tables_of(positions))[n]
        if side == "target":
            scores = np.where(np.tri(7), scores, -np.inf)
        heads.append(softmax(scores) @ value)
    expected = sum(head @ kernel for head, kernel in zip(heads, w.output_kernel, strict=True))
    attend = jax.jit(lambda x: attention(x, positions.relations(7, 7)[0], is_causal=side == "target"))
    np.testing.assert_allclose(attend(jnp.asarray(x, jnp.float32))[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("kind", RELATIVE)
def test_a_relative_kind_sees_the_distance_alone(kind, side):
    positions = build_positions(config_of(kind), side, rngs=nnx.Rngs(0))
    q, k = jax.random.normal(jax.random.key(0), (2, 1, 1, 2, 4))
    scores = scores_of(positions.relations(7, 7)[-1], jnp.broadcast_to(q, (1, 7, 2, 4)), jnp.broadcast_to(k, (1, 7, 2, 4)))[0, 0]
    for distance in range(-6, 7):
        diagonal = np.diagonal(scores, distance)
        np.testing.assert_allclose(diagonal, diagonal[0], rtol=1e-5, atol=1e-5)
    assert np.ptp(np.diagonal(scores[::-1])) > 1e-3


def scores_of(relation, query, key):
    """What positions make of query . key, scaled: [B N T S]."""
    scores = jnp.einsum("btnh,bsnh->bnts", relation.rotate(query), relation.rotate(key)) / 2
    bias = relation.bias(query)
    return scores if bias is None else scores + bias


@pytest.mark.parametrize("kind", RELATIVE)
def test_queries_of_a_row_begin_at_its_own_offset(kind):
    positions = build_positions(config_of(kind), "target", rngs=nnx.Rngs(0))
    query = jax.random.normal(jax.random.key(0), (2, 7, 2, 4))
    whole, offsets = positions.relations(7, 7)[0], (2, 5)
    part = jnp.stack([query[row, offset : offset + 2] for row, offset in enumerate(offsets)])
    relation = positions.relations(2, 7, jnp.array(offsets))[0]
    for row, offset in enumerate(offsets):
        places = slice(offset, offset + 2)
        np.testing.assert_allclose(relation.rotate(part)[row], whole.rotate(query)[row, places], rtol=1e-5, atol=1e-6)
        if kind != "rope":
            expected = jnp.broadcast_to(whole.bias(query), (2, 2, 7, 7))
            np.testing.assert_allclose(relation.bias(part)[row], expected[row, :, places], rtol=1e-5, atol=1e-6)


def test_step_by_step_equals_teacher_forced_with_rows_at_different_positions(model):
    """Row r begins r steps late, so that no two rows are ever at the same position."""
    source, target_in, _ = random_batch()
    expected, memory = call(model, source, target_in), call(model, source, method="encode")
    (rows, length), state = target_in.shape, model.init_state(memory, target_in.shape[1])
    for time in range(length + rows - 1):
        t = time - np.arange(rows)
        active = (t >= 0) & (t < length)
        output = call(model, memory, state, target_in[np.arange(rows), t.clip(0, length - 1)], method="step")
        state = rows_from(output.state, state, active)
        np.testing.assert_allclose(output.logits[active], expected[active, t[active]], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(state.ancestry.length, length)


def rows_from(new, old, chosen):
    """The chosen rows of `new`, the others of `old`."""
    return jax.tree.map(lambda a, b: jnp.asarray(np.where(chosen.reshape(-1, *[1] * (a.ndim - 1)), a, b)), new, old)


def test_padding_changes_nothing(model):
    source, target_in, _ = random_batch()
    padded = call(model, jnp.pad(source, ((0, 0), (0, 14))), jnp.pad(target_in, ((0, 0), (0, 14))))
    np.testing.assert_allclose(padded[:, :5], call(model, source, target_in), rtol=1e-5, atol=1e-5)


def test_order_of_the_source_shows_in_every_kind_but_none(model):
    """Without positions the encoder gives each token what it gave it elsewhere, and cross-attention is a sum over tokens."""
    _, target_in, _ = random_batch()
    source = jnp.array([[4, 5, 6, 7, 8, 3], [9, 9, 4, 5, 3, 0], [4, 5, 6, 3, 0, 0]])
    permuted = jnp.array([[6, 4, 8, 5, 7, 3], [4, 9, 5, 9, 3, 0], [6, 4, 5, 3, 0, 0]])
    one, other = call(model, source, target_in), call(model, permuted, target_in)
    if model.config.positions == "none":
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    else:
        assert (np.abs(one - other).max(axis=(1, 2)) > 1e-3).all()


def test_gradient_reaches_every_parameter(model):
    source, target_in, _ = random_batch(rows=4, source_length=8, target_length=7, seed=1)
    graphdef, params = nnx.split(model, nnx.Param)
    gradient = jax.jit(jax.grad(lambda params: jnp.sum(nnx.merge(graphdef, params)(source, target_in)[:, :, 5])))(params)
    dead = [jax.tree_util.keystr(path) for path, leaf in jax.tree_util.tree_leaves_with_path(gradient) if not np.abs(leaf).any()]
    assert dead == []
    if model.config.positions == "shaw":  # the decoder never looks ahead: rows of j - i = 1, 2 are left alone
        for side, used in (("source_positions", [1, 1, 1, 1, 1]), ("target_positions", [1, 1, 1, 0, 0])):
            for table in jax.tree.leaves(gradient[side]):
                np.testing.assert_array_equal(np.abs(table).max(axis=1) > 0, used)


def test_only_a_learned_table_ends(model):
    source, target_in, longer = jnp.full((3, 20), 4).at[:, -1].set(3), jnp.full((3, 19), 4), jnp.full((3, 21), 4)
    assert np.isfinite(call(model, source, target_in)).all()
    for side, arguments in (("source", (longer, target_in)), ("target", (source, longer))):
        if model.config.positions == "learned":
            with pytest.raises(ValueError, match=f"{side} length: expected at most model.max_length = 20, got 21"):
                jax.eval_shape(model.features, *arguments)
        else:
            assert jax.eval_shape(model.features, *arguments).shape == (3, arguments[1].shape[1], 8)


def test_bfloat16_steps_and_keeps_its_cache_and_full_precision_tables(model):
    half = transformer(model.config, dtype=jnp.bfloat16)
    assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(half, nnx.Param))} == {jnp.dtype("float32")}
    source, target_in, _ = random_batch()

    @jax.jit
    def first_step(source, tokens):
        memory = half.encode(source)
        return half.step(memory, half.init_state(memory, 5), tokens)

    output = first_step(source, target_in[:, 0])
    assert {output.state.caches[0].key.dtype, output.state.caches[0].value.dtype} == {jnp.dtype("bfloat16")}
    assert output.logits.dtype == jnp.float32
    difference = np.abs(output.logits - call(model, source, target_in)[:, 0]).max()
    assert 0 < difference < 0.2


@pytest.mark.parametrize("kind", ["none", "rope", "shaw"])
def test_a_row_whose_cache_overflows_is_nan_and_its_neighbour_is_not(kind):
    attention = MultiHeadAttention(8, 2, rngs=nnx.Rngs(0))
    positions = build_positions(config_of(kind), "target", rngs=nnx.Rngs(0))
    cache, ancestry = init_cache(2, 1, 3, 2, 4), Ancestry(jnp.zeros((2, 1, 3), jnp.int32), jnp.array([4, 3]))
    relation = positions.relations(1, 3, ancestry.length - 1)[0]
    output, cache = jax.jit(lambda cache: attention.step(jnp.ones((2, 1, 8)), relation, cache, ancestry))(cache)
    np.testing.assert_array_equal(np.isnan(output).all(axis=(1, 2)), [True, False])
    assert np.isfinite(output[1]).all()
    np.testing.assert_array_equal(ancestry.overflowed, [True, False])


@pytest.mark.parametrize(("kind", "function"), [("alibi", "alibi_bias"), ("t5", "t5_bias")])
def test_a_stack_computes_its_bias_once_for_all_layers(monkeypatch, kind, function):
    shapes = []
    original = getattr(attn, function)

    def counted(*arguments, **options):
        shapes.append(arguments[1:3])
        return original(*arguments, **options)

    monkeypatch.setattr(attn, function, counted)
    model = transformer(config_of(kind, num_layers=2))
    source, target_in, _ = random_batch()
    jax.eval_shape(model.features, source, target_in)
    assert shapes == [(6, 6), (5, 5)]
    memory = jax.eval_shape(model.encode, source)
    jax.eval_shape(lambda memory: model.step(memory, model.init_state(memory, 9), target_in[:, 0]), memory)
    assert shapes[2:] == [(6, 6), (1, 9)]


def test_parameters_of_each_kind():
    counts = {kind: count_parameters(transformer(config_of(kind, num_layers=2))) for kind in KINDS}
    more = {kind: count - counts["none"] for kind, count in counts.items() if count != counts["none"]}
    tables = {"learned": 20 * 8, "t5": 8 * 2, "shaw": 2 * (2 * 2 + 1) * 4}  # of one stack: T5 shares, Shaw has one for each layer
    assert more == {kind: 2 * count for kind, count in tables.items()}


def test_nothing_is_added_to_embeddings_by_a_relative_kind():
    x = jax.random.normal(jax.random.key(0), (2, 3, 8))
    for kind in (*RELATIVE, "none"):
        assert build_positions(config_of(kind), "source", rngs=nnx.Rngs(0)).embed(x, 3) is x
    assert build_positions(config_of("none", num_layers=2), "source", rngs=nnx.Rngs(0)).relations(3, 3) == [Relation()] * 2
