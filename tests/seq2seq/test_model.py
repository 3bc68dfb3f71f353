"""What every encoder-decoder must hold: no leak from padding or from the future, and stepwise equals teacher-forced."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from models import CONFIGS, call, random_batch, small_model

from seq2seq.model import EncoderDecoder, count_parameters

NAMES = list(CONFIGS)
pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(params=NAMES)
def model(request):
    return small_model(request.param)


def test_fulfils_the_protocol(model):
    assert isinstance(model, EncoderDecoder)


def test_step_by_step_equals_teacher_forced(model):
    source, target_in, _ = random_batch()
    expected = call(model, source, target_in)
    memory = call(model, source, method="encode")
    state = model.init_state(memory, target_in.shape[1])
    for t in range(target_in.shape[1]):
        output = call(model, memory, state, target_in[:, t], method="step")
        state = output.state
        np.testing.assert_allclose(output.logits, expected[:, t], rtol=1e-5, atol=1e-5)
        if output.weights is not None:
            np.testing.assert_allclose(output.weights.sum(-1), 1.0, atol=1e-6)
            assert (np.asarray(output.weights)[source == 0] == 0).all()


def test_logits_do_not_move_when_a_later_target_word_does(model):
    source, target_in, _ = random_batch(rows=2)
    target_in = jnp.array([[2, 4, 5, 6, 7], [2, 5, 4, 8, 6]])
    changed = target_in.at[:, 3].set(9)
    before, after = call(model, source, target_in), call(model, source, changed)
    np.testing.assert_array_equal(before[:, :3], after[:, :3])
    assert np.abs(before[:, 3:] - after[:, 3:]).max() > 1e-4


def test_step_two_depends_on_the_first_word(model):
    source, target_in, _ = random_batch(rows=1)
    target_in = jnp.array([[2, 4, 5, 6, 7]])
    changed = target_in.at[:, 1].set(9)
    assert np.abs(call(model, source, target_in)[:, 3] - call(model, source, changed)[:, 3]).max() > 1e-5


def test_padding_and_neighbours_change_nothing(model):
    source, target_in, _ = random_batch(rows=2, source_length=7)
    together = call(model, jnp.pad(source, ((0, 0), (0, 5))), jnp.pad(target_in, ((0, 0), (0, 3))))
    for row in range(2):
        s, t = np.count_nonzero(source[row]), np.count_nonzero(target_in[row])
        alone = call(model, source[row : row + 1, :s], target_in[row : row + 1, :t])
        np.testing.assert_allclose(together[row, :t], alone[0], rtol=1e-5, atol=1e-5)


def test_an_all_padding_source_row_gives_finite_logits_and_gradients(model):
    source, target_in, _ = random_batch()
    source = source.at[1].set(0)

    graphdef, params = nnx.split(model, nnx.Param)

    def loss(params):
        return jnp.sum(nnx.merge(graphdef, params)(source, target_in) ** 2)

    value, gradient = jax.jit(jax.value_and_grad(loss))(params)
    assert np.isfinite(value)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_every_parameter_gets_a_gradient(model):

    source, target_in, _ = random_batch(rows=4, source_length=8)
    graphdef, params = nnx.split(model, nnx.Param)
    gradient = jax.jit(jax.grad(lambda params: jnp.sum(nnx.merge(graphdef, params)(source, target_in)[:, :, 5])))(params)
    dead = [jax.tree_util.keystr(path) for path, leaf in jax.tree_util.tree_leaves_with_path(gradient) if not np.abs(leaf).any()]
    assert dead == []


def test_dropout_draws_from_its_key_alone(model):
    source, target_in, _ = random_batch()
    plain = call(model, source, target_in)
    one, again, other = (call(model, source, target_in, dropout_key=jax.random.key(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert np.abs(one - other).max() > 1e-3
    assert np.abs(one - plain).max() > 1e-3


def test_bfloat16_computes_in_bfloat16_with_float32_parameters_and_logits(model):
    name = next(name for name, config in CONFIGS.items() if config == model.config)
    half = small_model(name, dtype=jnp.bfloat16)
    source, target_in, _ = random_batch()

    assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(half, nnx.Param))} == {jnp.dtype("float32")}
    assert call(half, source, target_in, method="features").dtype == jnp.bfloat16
    logits = call(half, source, target_in)
    assert logits.dtype == jnp.float32
    difference = np.abs(logits - call(model, source, target_in)).max()
    assert 0 < difference < 0.2


@pytest.mark.parametrize("name", ["rnn_additive", "transformer"])
@pytest.mark.parametrize(("shared", "tables"), [(True, 1), (False, 2)])
def test_tied_embeddings_have_one_owner(name, shared, tables):
    model = small_model(name, vocab=13, target_vocab=13 if shared else 17, shared=shared)

    shapes = [leaf.shape for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))]
    assert shapes.count((13, 8)) + shapes.count((17, 8)) == tables
    assert count_parameters(model) == sum(int(np.prod(shape)) for shape in shapes)


def test_attention_adds_only_the_alignment_weights():
    """The baseline has every weight of the attention model but W_a, U_a and v_a."""
    c = CONFIGS["rnn_additive"]
    alignment = c.align_dim * (c.hidden_dim + 2 * c.encoder_dim + 1)
    assert count_parameters(small_model("rnn_additive")) - count_parameters(small_model("rnn_none")) == alignment


def test_learned_positions_end_with_a_clear_error():
    model = small_model("transformer_post")
    source, target_in, _ = random_batch(source_length=65)
    with pytest.raises(ValueError, match=r"source length: expected at most model.max_length = 64, got 65"):
        call(model, source, target_in)
