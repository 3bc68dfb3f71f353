"""What a search returns and how it is scored: the parts that greedy and beam search share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from seq2seq.tokenizer import BOS, PAD


class Decoded(NamedTuple):
    """Hypotheses of each row, best first: finished ones by score, then those cut off at the row's limit by score.

    Where fewer than n_best hypotheses exist, the places left over have score -inf and length 0.
    """

    ids: Array
    """[B n_best T] int32, `</s>` included, PAD after the end."""
    lengths: Array
    """[B n_best] int32, `</s>` counted."""
    scores: Array
    """[B n_best] float32, log p / penalty(n)."""
    log_probs: Array
    """[B n_best] float32."""
    weights: Array | None
    """[B n_best T S] float32: row t is the attention that produced ids[t]; None unless asked for."""
    finished: Array
    """[B n_best] bool: ended by `</s>`, rather than by the limit of length."""


def gnmt_penalty(lengths: Array, alpha: Array | float) -> Array:
    """((5 + n) / 6)^alpha, Wu et al. (2016), equation 14."""
    return ((5 + lengths.astype(jnp.float32)) / 6) ** alpha


def power_penalty(lengths: Array, alpha: Array | float) -> Array:
    """n^alpha; alpha = 1 ranks by the mean log-probability of a piece."""
    return lengths.astype(jnp.float32) ** alpha


def no_penalty(lengths: Array, alpha: Array | float) -> Array:
    """1, whatever alpha: rank by log-probability."""
    return jnp.ones(lengths.shape, jnp.float32)


LENGTH_PENALTIES: dict[str, Callable[[Array, Array | float], Array]] = {
    "gnmt": gnmt_penalty,
    "power": power_penalty,
    "none": no_penalty,
}
"""Each is positive and monotone in n, whatever the sign of alpha: the end of a beam search rests on that."""


def score(log_probs: Array, lengths: Array, penalty: str, alpha: Array | float) -> Array:
    # an empty hypothesis has log-probability 0, and n = 1 keeps 0 / n^alpha a number
    return log_probs / LENGTH_PENALTIES[penalty](jnp.maximum(lengths, 1), alpha)


def checked(source: Any, max_lengths: Any, max_length: int) -> tuple[np.ndarray, np.ndarray]:
    limits = np.asarray(max_lengths, np.int32)
    if limits.size and not 1 <= limits.min() <= limits.max() <= max_length:
        raise ValueError(
            f"max_lengths: expected 1 to max_length = {max_length} in every row, got {limits.min()} to {limits.max()}"
        )
    return np.asarray(source, np.int32), limits


def next_log_probs(logits: Float[Array, "*B V"]) -> Float[Array, "*B V"]:
    """log softmax over every piece but PAD and BOS, which get -inf."""
    pieces = jnp.arange(logits.shape[-1])
    never = (pieces == PAD) | (pieces == BOS)
    return jax.nn.log_softmax(jnp.where(never, -jnp.inf, logits.astype(jnp.float32)))


def weights_buffer(shape: tuple[int, ...], with_weights: bool) -> Array | None:
    return jnp.zeros(shape, jnp.float32) if with_weights else None


def given_weights(weights: Array | None) -> Array:
    if weights is None:
        raise ValueError("with_weights: expected a model with attention, got one whose steps return no weights")
    return weights
