"""One step of training and one of evaluation, written for a mesh of devices; a single device is a mesh of one.

Parameters are replicated and batches are split by rows along the mesh axis "data".  The loss divides the sum over all
real tokens of the step by their number, so the number of devices does not change the gradient.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from seq2seq.batches import Batch
from seq2seq.losses import TokenSums, chunked_token_sums


class TrainState(NamedTuple):
    """All that a step changes."""

    params: PyTree
    optimizer_state: Any
    step: jax.Array


class StepReport(NamedTuple):
    """What a training step measured."""

    sums: TokenSums
    grad_norm: jax.Array


def data_mesh() -> Mesh:
    """All devices on one axis, "data"."""
    return jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))


def place_batch(batch: Batch, mesh: Mesh) -> Batch:
    """Rows filled up with padding to a multiple of the devices, then split over them."""
    extra = -batch.source.shape[0] % mesh.size
    if extra:
        batch = Batch(*(np.pad(array, ((0, extra), (0, 0))) for array in batch))
    return jax.device_put(batch, NamedSharding(mesh, PartitionSpec("data")))


def init_state(params: PyTree, optimizer: optax.GradientTransformation, mesh: Mesh) -> TrainState:
    """Step 0, replicated over the mesh."""
    state = TrainState(params, optimizer.init(params), jnp.zeros((), jnp.int32))
    return jax.device_put(state, NamedSharding(mesh, PartitionSpec()))


def batch_sums(model: nnx.Module, batch: Batch, label_smoothing: float, dropout_key: jax.Array | None) -> TokenSums:
    features = model.features(batch.source, batch.target_in, dropout_key=dropout_key)
    return chunked_token_sums(features, model.logits, batch.target_out, label_smoothing)


def make_train_step(graphdef: nnx.GraphDef, optimizer: optax.GradientTransformation, label_smoothing: float, seed: int):
    """`(state, batch) -> (state, report)`, compiled once for each batch shape; the old state's buffers are reused.

    Dropout of step n draws from fold_in(key(seed), n), so a resumed run draws what an uninterrupted one does.
    """

    def loss(params: PyTree, batch: Batch, dropout_key: jax.Array):
        sums = batch_sums(nnx.merge(graphdef, params), batch, label_smoothing, dropout_key)
        return sums.loss / jnp.maximum(sums.tokens, 1), sums

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, StepReport]:
        dropout_key = jax.random.fold_in(jax.random.key(seed), state.step)
        gradient, sums = jax.grad(loss, has_aux=True)(state.params, batch, dropout_key)
        updates, optimizer_state = optimizer.update(gradient, state.optimizer_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return TrainState(params, optimizer_state, state.step + 1), StepReport(sums, optax.tree.norm(gradient))

    return jax.jit(train_step, donate_argnums=0)


def make_eval_step(graphdef: nnx.GraphDef):
    """`(params, batch) -> TokenSums` without dropout and smoothing."""

    def eval_step(params: PyTree, batch: Batch) -> TokenSums:
        return batch_sums(nnx.merge(graphdef, params), batch, 0.0, None)

    return jax.jit(eval_step)
