"""Each option of training does what it says: a test of each fails when the option is ignored."""

import json
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from models import CONFIGS, call, random_batch
from tiny_run import RNN, TRANSFORMER, tiny_config

from seq2seq.batches import Batch
from seq2seq.checkpoints import CheckpointStore, load_run, new_model
from seq2seq.config import ConfigError, OptimizerConfig, TrainingConfig
from seq2seq.layers import word_dropout
from seq2seq.model import build_model
from seq2seq.train_step import data_mesh, init_state, make_train_step
from seq2seq.training import train

pytestmark = pytest.mark.usefixtures("quick_compilation")


SOURCE, TARGET_IN, _ = random_batch()


def build(kind, **options):
    config = replace(CONFIGS["rnn_additive" if kind == "rnn" else kind], **options)
    return build_model(config, 11, 11, shared_vocab=True, rngs=nnx.Rngs(0))


def stepped(model, batches, steps=1, **options):
    """States before and after `steps` steps on the batches.

    Plain gradient descent: Adam divides by the size of the gradient, so that the last digits of a small one become a whole step.
    """
    graphdef, params = nnx.split(model, nnx.Param)
    optimizer = optax.sgd(0.1)
    options = TrainingConfig(**options)
    states = [init_state(jax.tree.map(jnp.copy, params), optimizer, data_mesh(), averaged=options.ema_decay > 0)]
    step = make_train_step(graphdef, optimizer, options, seed=0)
    for _ in range(steps):
        state, report = step(jax.tree.map(jnp.copy, states[-1]), batches)
        states.append(state)
    return states, report


def batch_of(*rows):
    """Target rows as a batch, sources likewise."""
    target_out = np.array(rows, np.int32)
    target_in = np.concatenate([np.full((len(rows), 1), 2, np.int32), target_out[:, :-1]], axis=1)
    return Batch(target_out, target_in, target_out)


def same(one, other, tolerance=2e-6):
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(x, y, atol=tolerance)


def test_accumulated_gradients_are_those_of_all_tokens_together():
    """Seven tokens and two: the mean of two means would be another gradient."""
    full, short = [[5, 6, 7, 3], [8, 9, 3, 0]], [[6, 3, 0, 0]]
    model = build("rnn", dropout_rate=0.0, embedding_dropout_rate=0.0)
    (_, together), report = stepped(model, [batch_of(*full, *short)])
    (_, apart), of_both = stepped(model, [batch_of(*full), batch_of(*short)], accumulate=2)
    same(apart.params, together.params)
    same(of_both, report, 1e-5)
    assert int(apart.step) == 1
    (_, twice), _ = stepped(model, [batch_of(*full), batch_of(*full)], accumulate=2)
    assert float(jnp.abs(jax.tree.leaves(twice.params)[0] - jax.tree.leaves(apart.params)[0]).max()) > 1e-4


def test_dropout_of_accumulated_batches_is_drawn_anew():
    model, rows = build("rnn", dropout_rate=0.5), [[5, 6, 7, 3], [8, 9, 3, 0]]
    (_, twice), _ = stepped(model, [batch_of(*rows)] * 2, accumulate=2)
    (_, once), _ = stepped(model, [batch_of(*rows)])
    assert any(
        float(jnp.abs(x - y).max()) > 1e-4 for x, y in zip(*map(jax.tree.leaves, (twice.params, once.params)), strict=True)
    )


def test_exponential_moving_average():
    states, _ = stepped(build("rnn"), [batch_of([5, 6, 3])], steps=4, ema_decay=0.2)
    average = jax.tree.map(np.asarray, states[0].params)
    for n, state in enumerate(states[1:]):
        d = min(0.2, (1 + n) / (10 + n))
        average = jax.tree.map(lambda a, p: d * a + (1 - d) * p, average, state.params)  # noqa: B023
        same(state.average, average)
        assert state.evaluated is state.average
    assert states[-1].average is not None
    (_, plain), _ = stepped(build("rnn"), [batch_of([5, 6, 3])])
    assert plain.evaluated is plain.params


def test_the_average_is_what_is_evaluated_kept_and_resumed(tmp_path):
    config = tiny_config(tmp_path, ema_decay=0.9)
    train(replace(config, training=replace(config.training, max_steps=10)), tmp_path / "run")
    train(config, tmp_path / "run", resume=True)
    train(config, tmp_path / "whole")
    template = nnx.state(load_run(tmp_path / "run").model, nnx.Param)
    latest, whole = (
        CheckpointStore(tmp_path / name, "latest", keep=2).restore(model=template, average=template)[1]
        for name in ("run", "whole")
    )
    same(latest, whole, 0)
    best, trees = CheckpointStore(tmp_path / "run", "best", keep=1).restore(model=template)
    assert best["step"] == 20
    same(trees["model"], latest["average"], 0)
    assert float(jnp.abs(jax.tree.leaves(latest["average"])[0] - jax.tree.leaves(latest["model"])[0]).max()) > 1e-4
    with pytest.raises(ConfigError, match=r"training.ema_decay: expected 0.9, as the run to resume has it, got 0.5"):
        train(tiny_config(tmp_path, ema_decay=0.5), tmp_path / "run", resume=True)


def test_the_mean_of_the_checkpoints_kept(tmp_path):
    train(tiny_config(tmp_path, keep_checkpoints=3), tmp_path / "run")
    store = CheckpointStore(tmp_path / "run", "latest", keep=3)
    assert store.steps == [20, 15, 10]
    run = load_run(tmp_path / "run", "average")
    assert (run.checkpoint, run.step) == ("average", 20)
    template = nnx.state(run.model, nnx.Param)
    models = [store._restore_step(step, {"model": template})[1]["model"] for step in store.steps]
    same(nnx.state(run.model, nnx.Param), jax.tree.map(lambda *x: sum(np.asarray(leaf, float) for leaf in x) / 3, *models))
    with pytest.raises(ConfigError, match="checkpoint: expected one of 'best', 'latest', 'average', got 'mean'"):
        load_run(tmp_path / "run", "mean")


def test_plateau_lowers_the_learning_rate_and_a_resumed_run_keeps_it(tmp_path):
    config = tiny_config(tmp_path, max_steps=6, eval_every=1, log_every=1)
    # No step is large enough to change the metric.
    options = {"learning_rate": 1e-12, "warmup_steps": 0, "plateau_factor": 0.25, "plateau_patience": 2}
    config = replace(config, optimizer=OptimizerConfig(schedule="plateau", clip_norm=1e-9, **options))
    train(replace(config, training=replace(config.training, max_steps=4)), tmp_path / "run")
    train(config, tmp_path / "run", resume=True)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    rates = [line["learning_rate"] / 1e-12 for line in lines if line["kind"] == "train"]
    # The first evaluation is the best; after the third, two brought nothing.
    assert rates == pytest.approx([1, 1, 1, 0.25, 0.25, 0.0625])


RATES = {
    "rnn": ("dropout_rate", "embedding_dropout_rate", "word_dropout_rate"),
    "transformer": (
        "dropout_rate", "embedding_dropout_rate", "word_dropout_rate", "activation_dropout_rate", "attention_dropout_rate",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "rate"), [(kind, rate) for kind, rates in RATES.items() for rate in rates])
def test_each_kind_of_dropout_changes_what_training_sees(kind, rate):
    names = {name for name in vars(build(kind).config) if name.endswith("dropout_rate")}
    assert names == set(RATES[kind])
    off = dict.fromkeys(names, 0.0)
    with_it, without = build(kind, **off | {rate: 0.5}), build(kind, **off)
    key = jax.random.key(1)
    features = lambda model, **given: call(model, SOURCE, TARGET_IN, method="features", **given)  # noqa: E731
    np.testing.assert_array_equal(features(with_it), features(without))
    np.testing.assert_array_equal(features(without, dropout_key=key), features(without))
    assert float(jnp.abs(features(with_it, dropout_key=key) - features(without)).max()) > 1e-3


def test_word_dropout_leaves_out_whole_words():
    dropped = np.asarray(word_dropout(jnp.ones((200, 30, 4)), 0.25, jax.random.key(0)))
    assert set(np.unique(dropped)) == {0.0, np.float32(1 / 0.75)}
    np.testing.assert_array_equal(dropped, dropped[..., :1].repeat(4, axis=-1))
    assert abs((dropped == 0).mean() - 0.25) < 0.02


def test_deeper_encoders(tmp_path):
    source, target = SOURCE, TARGET_IN
    for kind, one in (("transformer", {"encoder_layers": 3}), ("rnn", {"encoder_layers": 2})):
        shallow, deep = build(kind), build(kind, **one)
        assert len(deep.encoder) == next(iter(one.values()))
        count = lambda model: sum(x.size for x in jax.tree.leaves(nnx.state(model, nnx.Param)))  # noqa: E731
        assert count(deep) > count(shallow)
        gradient = nnx.jit(nnx.grad(lambda model: jnp.sum(model(source, target) ** 2)))(deep)
        for layer in gradient["encoder"].values():
            assert all(float(jnp.abs(leaf).max()) > 0 for leaf in jax.tree.leaves(layer) if leaf.ndim > 1)
    for model in (replace(TRANSFORMER, encoder_layers=2), replace(RNN, encoder_layers=2)):
        train(tiny_config(tmp_path, model=model, max_steps=2), tmp_path / model.kind)
        assert len(load_run(tmp_path / model.kind, "latest").model.encoder) == 2


def test_a_trace_and_the_figures_for_tensorboard(tmp_path, monkeypatch):
    config = tiny_config(tmp_path, tensorboard=True, eval_every=20)
    train(config, tmp_path / "run", profile=True)
    assert list((tmp_path / "run" / "profile").rglob("*.xplane.pb"))
    (events,) = (tmp_path / "run" / "tensorboard").iterdir()
    written = events.read_bytes()
    assert b"train/loss" in written
    assert b"dev/dev_loss" in written
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ConfigError, match=r"training.tensorboard: expected .*pip install tensorboardX"):
        train(config, tmp_path / "other")


def test_bfloat16_computes_in_it_and_keeps_parameters_wide(tmp_path):
    config = tiny_config(tmp_path, compute_dtype="bfloat16", max_steps=2)
    train(config, tmp_path / "run")
    run = load_run(tmp_path / "run", "latest")
    assert new_model(config, run.tokenizers).dtype == jnp.bfloat16
    assert run.model.features(SOURCE % 6, TARGET_IN % 6).dtype == jnp.bfloat16
    assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(run.model, nnx.Param))} == {np.dtype(np.float32)}
