"""Several models as one, which itself fulfils `EncoderDecoder`: every search and the scoring work with it.

probabilities        p(y_t) = 1/M sum_m p_m(y_t)               the mixture
log_probabilities    p(y_t) ~ exp(1/M sum_m log p_m(y_t))      the geometric mean, a product of experts (Hinton 2002)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from seq2seq.decoding.beams import reorder_beams, start_beams
from seq2seq.decoding.hypotheses import next_log_probs
from seq2seq.layers import StepOutput

COMBINATIONS = ("probabilities", "log_probabilities")


class Ensemble(nnx.Module):
    """Models with one vocabulary; the attention weights are the mean over those that have any.

    Args:
        members: at least one model that fulfils `EncoderDecoder`.
        combination: one of `COMBINATIONS`.

    Raises:
        ValueError: no member, or an unknown combination.
    """

    def __init__(self, members: Sequence[nnx.Module], combination: str = "probabilities"):
        if not members:
            raise ValueError("members: expected at least one model, got none")
        if combination not in COMBINATIONS:
            raise ValueError(f"combination: expected one of {', '.join(COMBINATIONS)}, got {combination!r}")
        self.members, self.combination = nnx.List(members), combination

    def combine(self, logits: Sequence[Float[Array, "*B V"]]) -> Float[Array, "*B V"]:
        """log p of the ensemble, up to a constant."""
        log_probs = jnp.stack([next_log_probs(each) for each in logits])
        if self.combination == "log_probabilities":
            return jnp.mean(log_probs, axis=0)
        return jax.nn.logsumexp(log_probs, axis=0) - jnp.log(len(logits))

    def __call__(self, source: Int[Array, "B S"], target_in: Int[Array, "B T"], *, dropout_key: Key[Array, ""] | None = None):
        return self.logits(self.features(source, target_in, dropout_key=dropout_key))

    def features(self, source: Int[Array, "B S"], target_in: Int[Array, "B T"], *, dropout_key: Key[Array, ""] | None = None):
        """log p of the ensemble at every target position, teacher-forced: [B, T, V]."""
        return self.combine([member(source, target_in, dropout_key=dropout_key) for member in self.members])

    def logits(self, features: Float[Array, "*B V"]) -> Float[Array, "*B V"]:
        return features

    def encode(self, source: Int[Array, "B S"]) -> tuple[Any, ...]:
        return tuple(member.encode(source) for member in self.members)

    def init_state(self, memory: tuple[Any, ...], max_length: int) -> tuple[Any, ...]:
        return tuple(m.init_state(each, max_length) for m, each in zip(self.members, memory, strict=True))

    def start_beams(self, memory: tuple[Any, ...], max_length: int, beam_size: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        started = (start_beams(m, each, max_length, beam_size) for m, each in zip(self.members, memory, strict=True))
        memories, states = zip(*started, strict=True)
        return memories, states

    def reorder(self, state: tuple[Any, ...], parents: Int[Array, "B K"]) -> tuple[Any, ...]:
        return tuple(reorder_beams(m, each, parents) for m, each in zip(self.members, state, strict=True))

    def step(self, memory: tuple[Any, ...], state: tuple[Any, ...], tokens: Int[Array, "R"]) -> StepOutput:
        outputs = [m.step(*each, tokens) for m, *each in zip(self.members, memory, state, strict=True)]
        weights = [output.weights for output in outputs if output.weights is not None]
        average = sum(weights) / len(weights) if weights else None
        return StepOutput(self.combine([o.logits for o in outputs]), tuple(o.state for o in outputs), average)
