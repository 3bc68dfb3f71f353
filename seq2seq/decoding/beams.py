"""K hypotheses of each source: how a model starts them, and how they follow their parents."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Int


def start_beams(model: nnx.Module, memory: Any, max_length: int, beam_size: int) -> tuple[Any, Any]:
    """Memory and state for K = beam_size hypotheses of each source, those of one source side by side.

    Every row of both is repeated K times, unless the model has a `start_beams` of its own that needs fewer copies.
    """
    if hasattr(model, "start_beams"):
        return model.start_beams(memory, max_length, beam_size)
    repeat = partial(jax.tree.map, lambda leaf: jnp.repeat(leaf, beam_size, axis=0))
    return repeat(memory), repeat(model.init_state(memory, max_length))


def reorder_beams(model: nnx.Module, state: Any, parents: Int[Array, "B K"]) -> Any:
    """The state in which hypothesis k of each source goes on from its hypothesis parents[k].

    Row b K + k of every leaf becomes the row of its parent, recurrent states and key-value caches alike, unless the model
    has a `reorder` of its own that moves less.
    """
    if hasattr(model, "reorder"):
        return model.reorder(state, parents)
    B, K = parents.shape
    rows = (jnp.arange(B)[:, None] * K + parents).reshape(-1)
    return jax.tree.map(lambda leaf: leaf.at[rows].get(mode="promise_in_bounds"), state)
