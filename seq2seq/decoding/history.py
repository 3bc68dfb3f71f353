"""What a beam search writes down: which piece each step appended to which beam, and the finished hypotheses."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from seq2seq.tokenizer import EOS, PAD


class Hypotheses(NamedTuple):
    """Hypotheses by their last step; the steps before it stand in `History`."""

    scores: Array  # [B M], -inf where there is none
    log_probs: Array  # [B M]
    lengths: Array  # [B M]
    tokens: Array  # [B M], the last piece
    parents: Array  # [B M], the beam it was appended to


class History(NamedTuple):
    """What each step appended to which beam: T comes first, so that a step writes one contiguous slice."""

    tokens: Array  # [T B K], the piece that beam k received at step t
    parents: Array  # [T B K], the beam of step t - 1 it was appended to
    weights: Array | None  # [T B K S], attention of that earlier beam at step t, by its own number


def add_finished(finished: Hypotheses, scores: Array, log_probs: Array, parents: Array, n: Array) -> Hypotheses:
    """The best of the finished hypotheses and the new ones (score -inf is none)."""
    new = Hypotheses(scores, log_probs, jnp.full_like(parents, n), jnp.full_like(parents, EOS), parents)
    both = jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), finished, new)
    _, order = lax.top_k(both.scores, finished.scores.shape[1])
    return _pick(both, order)


def record(history: History, step: Array, tokens: Array, parents: Array, weights: Array | None) -> History:
    kept = history.weights
    if weights is not None:
        kept = kept.at[step].set(weights)
    return History(history.tokens.at[step].set(tokens), history.parents.at[step].set(parents), kept)


def of(index: Array, values: Array) -> Array:
    """values[b, index[b, k]] for each row b."""
    return jnp.take_along_axis(values, index.reshape(*index.shape, *[1] * (values.ndim - 2)), axis=1)


def _pick(hypotheses: Hypotheses, index: Array) -> Hypotheses:
    return jax.tree.map(lambda leaf: jnp.take_along_axis(leaf, index, axis=1), hypotheses)


def ranked(
    finished: Hypotheses, history: History, lengths: Array, live_scores: Array, live_log_probs: Array, n_best: int
) -> tuple[Hypotheses, Array]:
    """The n_best hypotheses of each row, and which of them are finished: those come first, the live ones fill up."""
    last = jnp.maximum(lengths - 1, 0)[:, None]
    tokens, parents = (
        jnp.take_along_axis(jnp.moveaxis(trace, 0, 1), last[..., None], axis=1)[:, 0]
        for trace in (history.tokens, history.parents)
    )
    lengths = jnp.broadcast_to(lengths[:, None], tokens.shape)
    live = _by_score(Hypotheses(live_scores, live_log_probs, lengths, tokens, parents))
    count = jnp.sum(finished.scores > -jnp.inf, axis=1, keepdims=True)
    rank = jnp.arange(n_best)[None, :]
    both = jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), finished, live)
    best = _pick(both, jnp.where(rank < count, rank, n_best + rank - count))
    return best._replace(lengths=jnp.where(best.scores > -jnp.inf, best.lengths, 0)), rank < count


def _by_score(hypotheses: Hypotheses) -> Hypotheses:
    return _pick(hypotheses, lax.top_k(hypotheses.scores, hypotheses.scores.shape[1])[1])


def backtrack(history: History, best: Hypotheses) -> tuple[Array, Array | None]:
    """ids [B n_best T] and weights [B n_best T S], read from the last piece of each hypothesis to its first."""

    def back(beams: Array, trace: tuple[Array, History]) -> tuple[Array, tuple[Array, Array | None]]:
        step, (tokens, parents, weights) = trace
        is_last, used = step == best.lengths - 1, step < best.lengths
        tokens = jnp.where(is_last, best.tokens, jnp.take_along_axis(tokens, beams, axis=1))
        parents = jnp.where(is_last, best.parents, jnp.take_along_axis(parents, beams, axis=1))
        if weights is not None:
            weights = jnp.where(used[..., None], jnp.take_along_axis(weights, parents[..., None], axis=1), 0.0)
        return parents, (jnp.where(used, tokens, PAD), weights)

    steps = jnp.arange(history.tokens.shape[0])
    _, (ids, weights) = lax.scan(back, best.parents, (steps, history), reverse=True)
    return jnp.moveaxis(ids, 0, 2), None if weights is None else jnp.moveaxis(weights, 0, 2)
