"""The recurrent models: what all of them must hold (`none` and `additive` in test_model.py), and the decoders against NumPy."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from models import call

from seq2seq.config import ConfigError, RNNConfig, load_config
from seq2seq.decoding import beam_search
from seq2seq.decoding.hypotheses import next_log_probs
from seq2seq.model import EncoderDecoder, build_model, count_parameters
from seq2seq.rnn import BahdanauRNN, HardRNN, LuongRNN

pytestmark = pytest.mark.usefixtures("quick_compilation")

SMALL = RNNConfig(embed_dim=8, encoder_dim=5, hidden_dim=10, align_dim=7, maxout_dim=8, dropout_rate=0.3, local_window=2)
CONFIGS = {
    "none": replace(SMALL, attention="none"),
    "additive": SMALL,
    "hard": replace(SMALL, attention="hard"),
    "dot": replace(SMALL, attention="dot"),
    "general": replace(SMALL, attention="general"),
    "concat": replace(SMALL, attention="concat", reverse_source=True),
    "local_monotonic": replace(SMALL, attention="local_monotonic"),
    "local_monotonic_dot": replace(SMALL, attention="local_monotonic", local_score="dot", input_feeding=False),
    "local_predictive": replace(SMALL, attention="local_predictive"),
    "local_predictive_concat": replace(SMALL, attention="local_predictive", local_score="concat", input_feeding=False),
}
LUONG = [name for name, config in CONFIGS.items() if config.attention not in ("none", "additive", "hard")]
SOURCE = jnp.array([[4, 5, 6, 7, 8, 3, 0], [9, 4, 7, 3, 0, 0, 0], [3, 0, 0, 0, 0, 0, 0]])
TARGET_IN = jnp.array([[2, 8, 7, 6, 5], [2, 7, 4, 9, 0], [2, 0, 0, 0, 0]])


@cache
def model_of(name, **changes):
    return build_model(replace(CONFIGS[name], **changes), 11, 11, shared_vocab=True, rngs=nnx.Rngs(0))


def decode(model, source=SOURCE, target_in=TARGET_IN):
    """Logits [B T V] and weights [B T S] (or None), one step at a time."""
    memory = call(model, source, method="encode")
    state, outputs = model.init_state(memory, target_in.shape[1]), []
    for tokens in target_in.T:
        outputs.append(call(model, memory, state, tokens, method="step"))
        state = outputs[-1].state
    weights = None if outputs[0].weights is None else np.stack([output.weights for output in outputs], axis=1)
    return np.stack([output.logits for output in outputs], axis=1), weights


@pytest.fixture(params=["hard", "dot", "general", "concat", "local_monotonic", "local_predictive"])
def model(request):
    return model_of(request.param)


@pytest.mark.parametrize("name", CONFIGS)
def test_fulfils_the_protocol(name):
    kinds = {"none": BahdanauRNN, "additive": BahdanauRNN, "hard": HardRNN}
    assert type(model_of(name)) is kinds.get(name, LuongRNN)
    assert isinstance(model_of(name), EncoderDecoder)


def test_step_by_step_equals_teacher_forced(model):
    logits, _ = decode(model)
    np.testing.assert_allclose(logits, call(model, SOURCE, TARGET_IN), rtol=1e-5, atol=1e-5)


def test_memory_and_state_have_the_batch_axis_first(model):
    memory = call(model, SOURCE, method="encode")
    for leaf in jax.tree.leaves((memory, model.init_state(memory, 9))):
        assert leaf.shape[0] == 3


def test_weights_lie_on_the_words_of_the_source(model):
    _, weights = decode(model)
    assert weights.dtype == np.float32
    assert (weights >= 0).all()
    assert (weights * (np.asarray(SOURCE) == 0)[:, None] == 0).all()
    total = weights[:2].sum(-1)
    if model.config.attention == "local_predictive":
        assert (total > 0).all()
        assert (total <= 1 + 1e-6).all()
        assert (total < 0.999).any()
    else:
        np.testing.assert_allclose(total, 1, atol=1e-6)


def test_padding_and_neighbours_change_nothing(model):
    alone = call(model, SOURCE[1:2, :4], TARGET_IN[1:2, :4])
    np.testing.assert_allclose(call(model, SOURCE, TARGET_IN)[1, :4], alone[0], rtol=1e-5, atol=1e-5)


def test_every_parameter_gets_a_finite_gradient(model):
    """With a row of nothing but padding among the others."""
    source = jnp.concatenate([SOURCE[:2], jnp.zeros((1, 7), int)])
    graphdef, params = nnx.split(model, nnx.Param)
    loss = lambda params: jnp.sum(nnx.merge(graphdef, params)(source, TARGET_IN)[:, :, 5] ** 2)  # noqa: E731
    value, gradient = jax.jit(jax.value_and_grad(loss))(params)
    assert np.isfinite(value)
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradient):
        assert np.isfinite(leaf).all(), jax.tree_util.keystr(path)
        assert np.abs(leaf).any(), jax.tree_util.keystr(path)


@pytest.mark.parametrize("name", ["hard", "general"])
def test_dropout_and_draws_come_from_the_key_alone(name):
    model = model_of(name)
    plain = call(model, SOURCE, TARGET_IN)
    one, again, other = (call(model, SOURCE, TARGET_IN, dropout_key=jax.random.key(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert np.abs(one - other).max() > 1e-3
    assert np.abs(one - plain).max() > 1e-3


@pytest.mark.parametrize("name", ["hard", "concat", "local_predictive"])
def test_bfloat16_computes_in_bfloat16_with_float32_parameters_and_logits(name):
    model = model_of(name)
    half = build_model(model.config, 11, 11, shared_vocab=True, rngs=nnx.Rngs(0), dtype=jnp.bfloat16)
    assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(half, nnx.Param))} == {jnp.dtype("float32")}
    assert call(half, SOURCE, TARGET_IN, method="features").dtype == jnp.bfloat16
    logits = call(half, SOURCE, TARGET_IN)
    assert logits.dtype == jnp.float32
    # A hard choice between two nearly equal scores may fall otherwise.
    row = 0 if model.config.attention != "hard" else 2
    assert 0 < np.abs(logits - call(model, SOURCE, TARGET_IN))[row].max() < 0.2


@pytest.mark.parametrize("name", ["hard", "general", "local_monotonic"])
@pytest.mark.parametrize(("shared", "tied", "tables"), [(True, True, 1), (False, True, 2), (True, False, 2)])
def test_tables_of_words(name, shared, tied, tables):
    """One owner for what is tied; an untied output has a matrix of its own, of another shape."""
    vocabularies = (13, 13 if shared else 17)
    changes = {} if tied else {"tied_embeddings": False, "maxout_dim": 6}
    model = build_model(replace(CONFIGS[name], **changes), *vocabularies, shared_vocab=shared, rngs=nnx.Rngs(0))
    shapes = [leaf.shape for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))]
    assert shapes.count((13, 8)) + shapes.count((17, 8)) == tables
    assert shapes.count((6, 13)) == (not tied)
    assert call(model, SOURCE, TARGET_IN).shape == (3, 5, vocabularies[1])


# --- reversed sources ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["none", "hard", "general", "local_monotonic_dot"])
def test_a_reversed_source_is_that_of_reversed_words_and_its_weights_lie_on_the_right_words(name):
    by_hand = jnp.array([[8, 7, 6, 5, 4, 3, 0], [7, 4, 9, 3, 0, 0, 0], [3, 0, 0, 0, 0, 0, 0]])
    logits, weights = decode(model_of(name, reverse_source=True))
    expected, of_reversed = decode(model_of(name, reverse_source=False), by_hand)
    np.testing.assert_array_equal(logits, expected)
    if name == "none":
        return
    np.testing.assert_array_equal(weights[0], of_reversed[0][:, [4, 3, 2, 1, 0, 5, 6]])
    np.testing.assert_array_equal(weights[1], of_reversed[1][:, [2, 1, 0, 3, 4, 5, 6]])
    assert np.abs(weights - of_reversed).max() > 1e-3


def test_a_source_read_backwards_gives_other_logits():
    assert np.abs(decode(model_of("general", reverse_source=True))[0] - decode(model_of("general"))[0]).max() > 1e-3


# --- Luong et al. 2015 --------------------------------------------------------------------------------------------------------


def numbers(param):
    return np.asarray(param[...], np.float64)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def score(attention, s, h):
    """Equation 8 of the paper for one source word."""
    if attention.score == "dot":
        return s @ h
    if attention.score == "general":
        return s @ (numbers(attention.scaled_kernel) / np.sqrt(len(s))) @ h
    kernel = numbers(attention.score_weights.kernel)
    return numbers(attention.score_weights.score_vector) @ np.tanh(np.concatenate([s, h]) @ kernel)


def luong_weights(attention, kind, D, s, states, t):
    """a_t over the words of one source (sections 3.1 and 3.2)."""
    S = len(states)
    exps, centre = np.array([np.exp(score(attention, s, h)) for h in states]), None
    if kind == "local_monotonic":
        centre = t
    elif kind == "local_predictive":
        weights = attention.position_weights
        centre = S * sigmoid(numbers(weights.position_vector) @ np.tanh(s @ numbers(weights.position_kernel)))
    if centre is not None:
        exps = np.array([exps[j] if abs(j - centre) <= D else 0.0 for j in range(S)])
    weights = exps / exps.sum()
    if kind == "local_predictive":
        weights = weights * np.exp(-((np.arange(S) - centre) ** 2) / (2 * (D / 2) ** 2))
    return weights


def gru(layer, state, x):
    """Bahdanau et al. 2015, A.1.1, of x W + b = `x`."""
    n = len(state)
    u, gates = numbers(layer.candidate), state @ numbers(layer.gates)
    z, r = sigmoid(x[:n] + gates[:n]), sigmoid(x[n : 2 * n] + gates[n:])
    return (1 - z) * state + z * np.tanh(x[2 * n :] + (r * state) @ u)


def linear(layer, x):
    return x @ numbers(layer.kernel) + numbers(layer.bias)


@pytest.mark.parametrize("name", LUONG)
def test_luong_steps_equal_the_paper(name):
    model = model_of(name, reverse_source=False)
    config, table = model.config, numbers(model.target_embedding.table)
    memory = call(model, SOURCE, method="encode")
    logits, weights = decode(model)
    for row, length in ((0, 6), (1, 4)):
        states = np.asarray(memory.encoder_states, np.float64)[row, :length]
        s, attentional = np.asarray(memory.start, np.float64)[row], np.zeros(config.maxout_dim)
        for t, word in enumerate(np.asarray(TARGET_IN)[row]):
            x = linear(model.decoder_gru.input, table[word] * np.sqrt(config.embed_dim))
            if config.input_feeding:
                x = x + linear(model.feed_input, attentional)
            s = gru(model.decoder_gru, s, x)
            a = luong_weights(model.attention, config.attention, config.local_window, s, states, t)
            attentional = np.tanh(linear(model.readout, np.concatenate([a @ states, s])))
            np.testing.assert_allclose(weights[row, t, :length], a, rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(logits[row, t], table @ attentional, rtol=1e-4, atol=1e-5)


def test_monotonic_attention_beyond_the_end_of_the_source_sees_nothing():
    """Its window leaves a source of n words after step n - 1 + D; the decoder goes on without a context."""
    model = model_of("local_monotonic_dot")
    target_in = jnp.tile(jnp.array([[2, 4, 5, 6, 7, 8, 9]]), (3, 1))
    logits, weights = decode(model, target_in=target_in)
    np.testing.assert_allclose(logits, call(model, SOURCE, target_in), rtol=1e-5, atol=1e-5)
    total = weights.sum(-1)
    np.testing.assert_allclose(total[1], [1, 1, 1, 1, 1, 1, 0], atol=1e-6)
    np.testing.assert_allclose(total[2], [1, 1, 1, 0, 0, 0, 0], atol=1e-6)
    assert (weights[0, 0] > 0).tolist() == [True, True, True, False, False, False, False]
    assert (weights[0, 4] > 0).tolist() == [False, False, True, True, True, True, False]


def test_input_feeding_lets_a_step_see_the_readout_before():
    """With it the decoder's state depends on the weights of the readout, without it does not."""
    changed = {}
    for feeding in (True, False):
        model = model_of("general", input_feeding=feeding)
        memory = call(model, SOURCE, method="encode")
        state = call(model, memory, model.init_state(memory, 5), TARGET_IN[:, 0], method="step").state
        other = state._replace(attentional=state.attentional + 0.5)
        one, two = (call(model, memory, s, TARGET_IN[:, 1], method="step").state.hidden for s in (state, other))
        changed[feeding] = float(np.abs(one - two).max())
    assert changed[True] > 1e-3
    assert changed[False] == 0
    extra = count_parameters(model_of("general", input_feeding=True)) - count_parameters(model_of("general", input_feeding=False))
    assert extra == (SMALL.maxout_dim + 1) * 3 * SMALL.hidden_dim


# --- hard attention -----------------------------------------------------------------------------------------------------------


def additive_scores(model, memory, state):
    """e_ij = v . tanh(W s + U h_j)."""
    w, u, v = (numbers(param) for param in model.attention.weights)
    s, h = np.asarray(state, np.float64), np.asarray(memory.encoder_states, np.float64)
    return np.tanh((s @ w)[:, None] + h @ u) @ v


def test_hard_weights_are_one_at_the_highest_score():
    model = model_of("hard")
    memory = call(model, SOURCE, method="encode")
    state = model.init_state(memory, 5)
    for tokens in TARGET_IN.T:
        scores = np.where(SOURCE != 0, additive_scores(model, memory, state), -np.inf)
        output = call(model, memory, state, tokens, method="step")
        np.testing.assert_array_equal(output.weights, np.eye(7)[scores.argmax(-1)])
        state = output.state


def test_hard_weights_are_nought_without_a_word():
    _, weights = decode(model_of("hard"), jnp.zeros((1, 4), int), TARGET_IN[:1])
    assert (weights == 0).all()


def test_hard_training_draws_one_encoder_state_as_often_as_the_softmax_says():
    model = model_of("hard")
    memory = call(model, SOURCE, method="encode")
    keys = jax.random.split(jax.random.key(0), 4000)
    drawn = np.asarray(jax.jit(jax.vmap(lambda key: model.context(memory, memory.start, key)))(keys))[:, 0]
    states = np.asarray(memory.encoder_states)[0, :6]
    hits = (drawn[:, None] == states).all(-1)
    assert (hits.sum(1) == 1).all()
    expected = np.exp(additive_scores(model, memory, memory.start)[0, :6])
    expected /= expected.sum()
    np.testing.assert_allclose(hits.mean(0), expected, atol=4 * np.sqrt(0.25 / 4000))


def test_hard_temperature_changes_the_gradient_alone():
    def context_and_gradient(temperature):
        model = model_of("hard", hard_temperature=temperature)
        total = lambda state: model.context(memory, state, jax.random.key(3)).sum()  # noqa: E731
        return jax.jit(jax.value_and_grad(total))(memory.start)

    memory = call(model_of("hard"), SOURCE, method="encode")
    (value, gradient), (same, other) = context_and_gradient(1.0), context_and_gradient(0.3)
    assert value == same
    assert np.abs(gradient - other).max() > 1e-4


# --- decoding and configs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["concat", "local_monotonic"])
def test_a_beam_reorders_the_whole_state(name):
    """The log-probability that the search added up is that of the hypothesis, teacher-forced."""
    graphdef, params = nnx.split(model_of(name))
    model = nnx.merge(graphdef, jax.tree.map(lambda x: 3.0 * x, params))  # the likeliest word changes from step to step
    source = np.asarray(SOURCE)
    found = beam_search(model, source, np.array([7, 7, 7], np.int32), beam_size=4, n_best=4, length_penalty="none", max_length=7)
    ids, lengths = np.asarray(found.ids), np.asarray(found.lengths)
    for i in range(4):
        target_in = np.concatenate([np.full((3, 1), 2), ids[:, i, :-1]], axis=1)
        logits = call(model, SOURCE, jnp.asarray(target_in))
        log_probs = np.asarray(jax.vmap(next_log_probs)(logits))
        picked = np.take_along_axis(log_probs, ids[:, i, :, None], axis=-1)[..., 0]
        total = np.where(np.arange(7) < lengths[:, i, None], picked, 0).sum(-1)
        np.testing.assert_allclose(found.log_probs[:, i], total, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("additive", {"local_window": 3, "local_score": "concat", "input_feeding": False, "hard_temperature": 2.0}),
        ("dot", {"align_dim": 3, "local_window": 3, "local_score": "concat", "hard_temperature": 2.0}),
    ],
)
def test_keys_of_other_attentions_change_nothing(name, changes):
    for a, b in zip(decode(model_of(name)), decode(model_of(name, **changes)), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("lines", "key", "expected", "got"),
    [
        ('attention = "dot"\nhidden_dim = 256', "hidden_dim", "2 * encoder_dim = 512 when attention is 'dot'", "256"),
        (
            'attention = "local_monotonic"\nlocal_score = "dot"\nhidden_dim = 256',
            "hidden_dim",
            "when local_score is 'dot'",
            "256",
        ),
        ('attention = "local_predictive"\nlocal_window = 0', "local_window", "an integer >= 1", "0"),
        ('attention = "hard"\nhard_temperature = 0.0', "hard_temperature", "a finite number > 0", "0.0"),
        ('attention = "hard"\nhard_temperature = inf', "hard_temperature", "a finite number > 0", "inf"),
        ('attention = "general"\nmaxout_dim = 128', "maxout_dim", "embed_dim = 256 when tied_embeddings", "128"),
        ('attention = "local_monotone"', "attention", "perhaps 'local_monotonic'", "'local_monotone'"),
        ("reverse_source = 1", "reverse_source", "true or false", "1 (int)"),
    ],
)
def test_configs_that_cannot_work_say_why(tmp_path, lines, key, expected, got):
    path = tmp_path / "c.toml"
    path.write_text(f"[model]\n{lines}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: model.{key}: expected ")
    assert expected in message
    assert got in message.split(", got ", 1)[1]


def test_dot_scores_ask_nothing_of_the_other_models(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text('[model]\nattention = "general"\nlocal_score = "dot"\nhidden_dim = 100\n')
    assert load_config(path).model.hidden_dim == 100
