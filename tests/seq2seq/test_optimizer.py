"""Schedules by their formulas; clipping, and weight decay on matrices only."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seq2seq.config import OptimizerConfig
from seq2seq.optimizer import build_optimizer, learning_rate_schedule


@pytest.mark.parametrize(
    ("schedule", "late"),
    [
        ("inverse_sqrt", lambda step: np.sqrt(10 / step)),
        ("cosine", lambda step: 0.5 * (1 + np.cos(np.pi * (step - 10) / 90))),
        ("linear", lambda step: 1 - (step - 10) / 90),
        ("constant", lambda step: 1.0),
    ],
)
def test_schedules(schedule, late):
    rate = learning_rate_schedule(OptimizerConfig(learning_rate=2.0, schedule=schedule, warmup_steps=10), max_steps=100)
    assert [float(rate(step)) for step in (0, 4, 9)] == pytest.approx([0.2, 1.0, 2.0])
    for step in (10, 25, 99):
        assert float(rate(step)) == pytest.approx(2.0 * late(step), rel=1e-4)


def test_no_warmup_starts_at_the_peak():
    rate = learning_rate_schedule(OptimizerConfig(learning_rate=2.0, schedule="constant", warmup_steps=0), max_steps=100)
    assert float(rate(0)) == 2.0


def test_weight_decay_acts_on_matrices_only():
    options = OptimizerConfig(learning_rate=0.1, schedule="constant", warmup_steps=0, weight_decay=0.5)
    optimizer = build_optimizer(options, 10)
    params = {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}
    updates, _ = optimizer.update({"kernel": jnp.zeros((2, 2)), "bias": jnp.zeros(2)}, optimizer.init(params), params)
    np.testing.assert_allclose(updates["kernel"], -0.05 * np.ones((2, 2)), rtol=1e-6)
    np.testing.assert_array_equal(updates["bias"], np.zeros(2))


def test_clipping_bounds_the_norm_that_adam_sees():
    def first_moment(clip_norm):
        optimizer = build_optimizer(OptimizerConfig(clip_norm=clip_norm), 10)
        params = {"w": jnp.zeros(2)}
        _, state = optimizer.update({"w": jnp.array([3.0, 4.0])}, optimizer.init(params), params)
        return next(np.asarray(leaf) for leaf in jax.tree.leaves(state) if leaf.shape == (2,))

    np.testing.assert_allclose(first_moment(1.0), 0.1 * np.array([0.6, 0.8]), rtol=1e-5)
    np.testing.assert_allclose(first_moment(0.0), 0.1 * np.array([3.0, 4.0]), rtol=1e-5)
