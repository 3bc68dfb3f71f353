"""Hypotheses that grow by one chosen piece at every step and are never compared: the loop of greedy search and of sampling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from seq2seq.decoding.beams import start_beams
from seq2seq.decoding.constraints import Rules, constrain
from seq2seq.decoding.hypotheses import Decoded, given_weights, next_log_probs, weights_buffer
from seq2seq.tokenizer import BOS, EOS, PAD


class Rows(NamedTuple):
    """R = B K hypotheses, those of one source side by side."""

    step: Int[Array, ""]
    state: Any
    tokens: Int[Array, "R"]
    """The last piece of each."""
    log_probs: Float[Array, "R"]
    lengths: Int[Array, "R"]
    finished: Bool[Array, "R"]
    done: Bool[Array, "R"]
    ids: Int[Array, "R T"]
    weights: Float[Array, "R T S"] | None


Choice = Callable[[Float[Array, "R V"], Int[Array, ""]], Int[Array, "R"]]
"""The next piece of each hypothesis, from the log-probabilities that the rules leave and the number of the step."""


def choose_step_by_step(
    model: nnx.Module,
    source: Int[Array, "B S"],
    max_lengths: Int[Array, "B"],
    rules: Rules,
    choose: Choice,
    *,
    samples: int,
    max_length: int,
    no_repeat_ngram: int,
    with_weights: bool,
) -> Decoded:
    """K = samples hypotheses of each source, in the order they were made; scores are log-probabilities."""
    (B, S), T, R = source.shape, max_length, source.shape[0] * samples
    memory, state = start_beams(model, model.encode(source), T, samples)
    limits = jnp.repeat(jnp.asarray(max_lengths), samples)
    empty = jnp.repeat(jnp.all(source == PAD, axis=1), samples)

    def advance(row: Rows) -> Rows:
        output = model.step(memory, row.state, row.tokens)
        log_probs = next_log_probs(output.logits)
        tokens = choose(constrain(log_probs, rules, row.step, row.ids, no_repeat_ngram), row.step)
        gained = jnp.take_along_axis(log_probs, tokens[:, None], axis=1)[:, 0]
        tokens = jnp.where(row.done, PAD, tokens)
        lengths = jnp.where(row.done, row.lengths, row.step + 1)
        finished = row.finished | (tokens == EOS)
        weights = row.weights
        if with_weights:
            weights = weights.at[:, row.step].set(jnp.where(row.done[:, None], 0.0, given_weights(output.weights)))
        return Rows(
            row.step + 1,
            output.state,
            tokens,
            jnp.where(row.done, row.log_probs, row.log_probs + gained),
            lengths,
            finished,
            finished | (lengths >= limits),
            row.ids.at[:, row.step].set(tokens),
            weights,
        )

    start = Rows(
        jnp.int32(0),
        state,
        jnp.full(R, BOS, jnp.int32),
        jnp.zeros(R, jnp.float32),
        jnp.zeros(R, jnp.int32),
        empty,
        empty,
        jnp.full((R, T), PAD, jnp.int32),
        weights_buffer((R, T, S), with_weights),
    )
    end = lax.while_loop(lambda row: ~jnp.all(row.done), advance, start)
    fields = (end.ids, end.lengths, end.log_probs, end.log_probs, end.weights, end.finished)
    return Decoded(*(None if field is None else field.reshape(B, samples, *field.shape[1:]) for field in fields))
