"""One step of training and one of evaluation, written for a mesh of devices; a single device is a mesh of one.

Parameters are replicated and batches are split by rows along the mesh axis "data".  The loss divides the sum over all
real tokens of the step by their number, so neither the number of devices nor that of the batches of a step changes the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from seq2seq.batches import Batch
from seq2seq.config import TrainingConfig
from seq2seq.losses import TokenSums, chunked_token_sums, no_sums


class TrainState(NamedTuple):
    """All that a step changes."""

    params: PyTree
    optimizer_state: Any
    step: jax.Array
    average: PyTree | None
    """The exponential moving average of the parameters, if there is to be one."""
    learning_rate_scale: jax.Array
    """What the learning rate of the schedule is multiplied by: below 1 where the metric stalled."""

    @property
    def evaluated(self) -> PyTree:
        """The parameters that are evaluated and kept as the best."""
        return self.params if self.average is None else self.average


class StepReport(NamedTuple):
    """What a training step measured."""

    sums: TokenSums
    grad_norm: jax.Array


TrainStep = Callable[[TrainState, Sequence[Batch]], tuple[TrainState, StepReport]]


def data_mesh() -> Mesh:
    """All devices on one axis, "data"."""
    return jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))


def place_batch(batch: Batch, mesh: Mesh) -> Batch:
    """Rows filled up with padding to a multiple of the devices, then split over them."""
    extra = -batch.source.shape[0] % mesh.size
    if extra:
        batch = Batch(*(np.pad(array, ((0, extra), (0, 0))) for array in batch))
    return jax.device_put(batch, NamedSharding(mesh, PartitionSpec("data")))


def init_state(params: PyTree, optimizer: optax.GradientTransformation, mesh: Mesh, *, averaged: bool = False) -> TrainState:
    """Step 0, replicated over the mesh; an average begins as the parameters."""
    average = jax.tree.map(jnp.copy, params) if averaged else None
    state = TrainState(params, optimizer.init(params), jnp.zeros((), jnp.int32), average, jnp.ones(()))
    return jax.device_put(state, NamedSharding(mesh, PartitionSpec()))


def batch_sums(model: nnx.Module, batch: Batch, label_smoothing: float, dropout_key: jax.Array | None) -> TokenSums:
    features = model.features(batch.source, batch.target_in, dropout_key=dropout_key)
    graphdef, params = nnx.split(model.output_layer)
    to_logits = lambda params, x: nnx.merge(graphdef, params).attend(x)  # noqa: E731
    return chunked_token_sums(features, to_logits, params, batch.target_out, label_smoothing)


def make_train_step(
    graphdef: nnx.GraphDef, optimizer: optax.GradientTransformation, options: TrainingConfig, seed: int
) -> TrainStep:
    """`(state, batches) -> (state, report)`, compiled once for each batch shape; the old state's buffers are reused.

    Dropout of batch m of step n draws from fold_in(fold_in(key(seed), n), m), so a resumed run draws what an uninterrupted one
    does.
    """

    def loss(params: PyTree, batch: Batch, step: jax.Array, index: jax.Array | int):
        dropout_key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), step), index)
        sums = batch_sums(nnx.merge(graphdef, params), batch, options.label_smoothing, dropout_key)
        return sums.loss, sums

    gradient_sums = jax.grad(loss, has_aux=True)

    def update(state: TrainState, gradient: PyTree, sums: TokenSums) -> tuple[TrainState, StepReport]:
        gradient = jax.tree.map(lambda g: g / jnp.maximum(sums.tokens, 1), gradient)
        updates, optimizer_state = optimizer.update(gradient, state.optimizer_state, state.params)
        updates = jax.tree.map(lambda u: u * state.learning_rate_scale, updates)
        params = optax.apply_updates(state.params, updates)
        average = None if state.average is None else moved_average(state.average, params, state.step, options.ema_decay)
        state = TrainState(params, optimizer_state, state.step + 1, average, state.learning_rate_scale)
        return state, StepReport(sums, optax.tree.norm(gradient))

    @partial(jax.jit, donate_argnums=0)
    def whole_step(state: TrainState, batch: Batch) -> tuple[TrainState, StepReport]:
        return update(state, *gradient_sums(state.params, batch, state.step, 0))

    @partial(jax.jit, donate_argnums=0)
    def add(total: Any, params: PyTree, batch: Batch, step: jax.Array, index: jax.Array) -> Any:
        return jax.tree.map(jnp.add, total, gradient_sums(params, batch, step, index))

    @jax.jit
    def nothing(params: PyTree) -> Any:
        return jax.tree.map(jnp.zeros_like, params), no_sums()

    finish = jax.jit(lambda state, total: update(state, *total), donate_argnums=0)

    def train_step(state: TrainState, batches: Sequence[Batch]) -> tuple[TrainState, StepReport]:
        if len(batches) == 1:
            return whole_step(state, batches[0])
        total = jax.device_put(nothing(state.params), state.step.sharding)  # placed like the sums, or they compile twice
        for index, batch in enumerate(batches):
            total = add(total, state.params, batch, state.step, jnp.int32(index))
        return finish(state, total)

    train_step.programs = (whole_step, add)  # those compiled once for each batch shape
    return train_step


def moved_average(average: PyTree, params: PyTree, step: jax.Array, decay: float) -> PyTree:
    """d a + (1 - d) p with d = min(decay, (1 + n) / (10 + n)) at step n, so that the first parameters are soon forgotten."""
    d = jnp.minimum(decay, (1 + step) / (10 + step))
    return jax.tree.map(lambda a, p: a + (1 - d) * (p - a), average, params)


def make_eval_step(graphdef: nnx.GraphDef):
    """`(params, batch) -> TokenSums` without dropout and smoothing."""

    def eval_step(params: PyTree, batch: Batch) -> TokenSums:
        return batch_sums(nnx.merge(graphdef, params), batch, 0.0, None)

    return jax.jit(eval_step)
