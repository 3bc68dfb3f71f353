"""Forced scoring: how likely a model finds a given translation."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jaxtyping import Float, Integer

from seq2seq.decoding.hypotheses import next_log_probs
from seq2seq.tokenizer import PAD


def score_targets(
    model: nnx.Module,
    source: Integer[Array | np.ndarray, "B S"],
    target_in: Integer[Array | np.ndarray, "B T"],
    target_out: Integer[Array | np.ndarray, "B T"],
) -> Float[Array, "B T"]:
    """log p(y_t | y_<t, x) of every target piece, `</s>` included; their sum is the log_prob a search gives the same pieces.

    Args:
        model: fulfils `EncoderDecoder`, in evaluation mode.
        source, target_in, target_out: as in `seq2seq.batches.Batch`.

    Returns:
        Natural logarithms in float32, 0 on padding.
    """
    graphdef, params = nnx.split(model)
    return _score_targets(graphdef, params, *(np.asarray(ids, np.int32) for ids in (source, target_in, target_out)))


@partial(jax.jit, static_argnums=0)
def _score_targets(graphdef, params, source, target_in, target_out) -> Array:
    log_probs = next_log_probs(nnx.merge(graphdef, params)(source, target_in))
    given = jnp.take_along_axis(log_probs, target_out[..., None], axis=-1)[..., 0]
    return jnp.where(target_out == PAD, 0.0, given)
