"""The attention weights of a given translation: forced decoding."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array, lax
from jaxtyping import Float, Integer

from seq2seq.decoding.hypotheses import given_weights


def attention_weights(
    model: nnx.Module, source: Integer[Array | np.ndarray, "B S"], target_in: Integer[Array | np.ndarray, "B T"]
) -> Float[Array, "B L N T S"]:
    """The weights over the source of each step that reads target_in[t], of every layer and head.

    A model with one attention has L = N = 1; one with more returns them all from a method `attention_weights` of its own.

    Args:
        model: fulfils `EncoderDecoder`, in evaluation mode, with attention.
        source, target_in: as in `seq2seq.batches.Batch`.

    Raises:
        ValueError: a model without attention.
    """
    graphdef, params = nnx.split(model)
    return _attention_weights(graphdef, params, *(np.asarray(ids, np.int32) for ids in (source, target_in)))


@partial(jax.jit, static_argnums=0)
def _attention_weights(graphdef, params, source, target_in) -> Array:
    model = nnx.merge(graphdef, params)
    if hasattr(model, "attention_weights"):
        return model.attention_weights(source, target_in)
    memory = model.encode(source)

    def read(state, tokens):
        output = model.step(memory, state, tokens)
        return output.state, given_weights(output.weights)

    _, weights = lax.scan(read, model.init_state(memory, target_in.shape[1]), target_in.T)
    return jnp.moveaxis(weights, 0, 1)[:, None, None]
