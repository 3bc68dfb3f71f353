"""Beam search: the likeliest hypotheses of each row, ranked by log p / penalty(n)."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array, lax
from jaxtyping import Float, Integer

from seq2seq.decoding.greedy import greedy_search
from seq2seq.decoding.hypotheses import LENGTH_PENALTIES, Decoded, checked, given_weights, next_log_probs, score, weights_buffer
from seq2seq.tokenizer import BOS, EOS, PAD


def beam_search(
    model: nnx.Module,
    source: Integer[Array | np.ndarray, "B S"],
    max_lengths: Integer[Array | np.ndarray, "B"],
    *,
    beam_size: int,
    length_penalty: str = "gnmt",
    alpha: float = 0.6,
    n_best: int = 1,
    max_length: int,
    with_weights: bool = False,
) -> Decoded:
    """Keep the beam_size likeliest unfinished hypotheses of each row, and its n_best finished ones apart.

    A hypothesis finishes when its `</s>` is among the beam_size likeliest continuations of its row.  A row ends when none of
    its live hypotheses can still enter its n_best finished ones, so n_best never alters the hypotheses ranked before it.  Among
    equals the earlier beam, then the lower id, then the hypothesis finished first, goes first.  With beam_size 1 nothing is
    ranked and the search is `greedy_search`, whatever the penalty; its score is still log p / penalty(n).

    Args:
        model, source, max_lengths, max_length, with_weights: as for `greedy_search`.
        beam_size: K, live hypotheses kept for each row.
        length_penalty: a name in `LENGTH_PENALTIES`.
        alpha: exponent of the penalty; any finite number, negative ones favour short outputs.
        n_best: hypotheses returned for each row, at most beam_size.

    Raises:
        ValueError: as for `greedy_search`, or an argument outside its range.
    """
    source, max_lengths = checked(source, max_lengths, max_length)
    if beam_size < 1 or not 1 <= n_best <= beam_size:
        raise ValueError(f"n_best, beam_size: expected 1 <= n_best <= beam_size, got {n_best} and {beam_size}")
    if length_penalty not in LENGTH_PENALTIES:
        raise ValueError(f"length_penalty: expected one of {', '.join(LENGTH_PENALTIES)}, got {length_penalty!r}")
    if not math.isfinite(alpha):
        raise ValueError(f"alpha: expected a finite number, got {alpha}")
    if beam_size == 1:
        best = greedy_search(model, source, max_lengths, max_length=max_length, with_weights=with_weights)
        return best._replace(scores=score(best.log_probs, best.lengths, length_penalty, jnp.float32(alpha)))
    graphdef, params = nnx.split(model)
    sizes = {"beam_size": beam_size, "n_best": n_best, "max_length": max_length}
    return _beam_search(
        graphdef, params, source, max_lengths, np.float32(alpha), penalty=length_penalty, with_weights=with_weights, **sizes
    )


class _Hypotheses(NamedTuple):
    """Hypotheses by their last step; the steps before it stand in `_History`."""

    scores: Array  # [B M], -inf where there is none
    log_probs: Array  # [B M]
    lengths: Array  # [B M]
    tokens: Array  # [B M], the last piece
    parents: Array  # [B M], the beam it was appended to


class _History(NamedTuple):
    """What each step appended to which beam: T comes first, so that a step writes one contiguous slice."""

    tokens: Array  # [T B K], the piece that beam k received at step t
    parents: Array  # [T B K], the beam of step t - 1 it was appended to
    weights: Array | None  # [T B K S], attention of that earlier beam at step t, by its own number


class _Beam(NamedTuple):
    step: Array
    state: Any  # leaves [B*K ...]
    tokens: Array  # [B K]
    log_probs: Array  # [B K], falling; -inf where fewer than K hypotheses exist
    lengths: Array  # [B], of the row's live hypotheses
    done: Array  # [B]
    finished: _Hypotheses  # n_best of them, by score
    history: _History


@partial(jax.jit, static_argnums=0, static_argnames=("beam_size", "n_best", "max_length", "penalty", "with_weights"))
def _beam_search(
    graphdef, params, source, max_lengths, alpha, *, beam_size, n_best, max_length, penalty, with_weights
) -> Decoded:
    model = nnx.merge(graphdef, params)
    encoded = model.encode(source)
    empty = jnp.all(source == PAD, axis=1)
    repeat = partial(jax.tree.map, lambda leaf: jnp.repeat(leaf, beam_size, axis=0))
    memory, state = repeat(encoded), repeat(model.init_state(encoded, max_length))

    def advance(beam: _Beam) -> _Beam:
        output = model.step(memory, beam.state, beam.tokens.reshape(-1))
        weights = given_weights(output.weights) if with_weights else None
        log_probs, parents, tokens = _continuations(beam.log_probs, next_log_probs(output.logits))
        n = beam.step + 1
        # a piece </s> below the best K is pruned like any other
        ends = (tokens == EOS) & (jnp.arange(tokens.shape[1]) < beam_size) & ~beam.done[:, None]
        finished = _add_finished(beam.finished, jnp.where(ends, log_probs, -jnp.inf), parents, n, penalty, alpha)
        live, order = lax.top_k(jnp.where(tokens == EOS, -jnp.inf, log_probs), beam_size)
        parents, tokens = (jnp.take_along_axis(x, order, axis=1) for x in (parents, tokens))
        reachable = _reachable(live[:, 0], n, max_lengths, penalty, alpha)
        return _Beam(
            n,
            _gather_beams(output.state, parents),
            tokens,
            jnp.where(beam.done[:, None], beam.log_probs, live),
            jnp.where(beam.done, beam.lengths, n),
            beam.done | (n >= max_lengths) | (reachable <= finished.scores[:, -1]),
            finished,
            _record(beam.history, beam.step, tokens, parents, weights),
        )

    start = _start(source, state, empty, beam_size, n_best, max_length, with_weights)
    end = lax.while_loop(lambda beam: ~jnp.all(beam.done), advance, start)
    best, finished = _ranked(end, n_best, penalty, alpha)
    ids, weights = _backtrack(end.history, best)
    return Decoded(
        ids, best.lengths, best.scores, best.log_probs, weights, finished | (empty[:, None] & (best.scores > -jnp.inf))
    )


def _start(source: Array, state: Any, empty: Array, K: int, n_best: int, T: int, with_weights: bool) -> _Beam:
    """One hypothesis in the first beam, none in the others, lest K copies of it fill the first step."""
    B, S = source.shape
    none = jnp.full((B, n_best), -jnp.inf, jnp.float32)
    zeros = jnp.zeros((B, n_best), jnp.int32)
    trace = jnp.zeros((T, B, K), jnp.int32)
    return _Beam(
        jnp.int32(0),
        state,
        jnp.full((B, K), BOS, jnp.int32),
        jnp.broadcast_to(jnp.where(jnp.arange(K) == 0, jnp.float32(0), -jnp.inf), (B, K)),
        jnp.zeros(B, jnp.int32),
        empty,
        _Hypotheses(none, none, zeros, zeros, zeros),
        _History(trace, trace, weights_buffer((T, B, K, S), with_weights)),
    )


def _continuations(log_probs: Float[Array, "B K"], next_log_probs: Float[Array, "BK V"]) -> tuple[Array, Array, Array]:
    """The 2K likeliest of the K*V continuations of each row: log_probs, parents, tokens, each [B 2K], likeliest first.

    At most K of them end in `</s>`, so at least K can live on.
    """
    (B, K), V = log_probs.shape, next_log_probs.shape[-1]
    total = log_probs[:, :, None] + next_log_probs.reshape(B, K, V)
    best, index = lax.top_k(total.reshape(B, K * V), 2 * K)
    return best, index // V, index % V


def _add_finished(finished: _Hypotheses, log_probs: Array, parents: Array, n: Array, penalty: str, alpha: Array) -> _Hypotheses:
    """The best of the finished hypotheses and the new ones (log-probability -inf is none)."""
    lengths = jnp.full_like(parents, n)
    new = _Hypotheses(score(log_probs, lengths, penalty, alpha), log_probs, lengths, jnp.full_like(parents, EOS), parents)
    both = jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), finished, new)
    _, order = lax.top_k(both.scores, finished.scores.shape[1])
    return _pick(both, order)


def _reachable(log_probs: Array, n: Array, max_lengths: Array, penalty: str, alpha: Array) -> Array:
    """The best score that a live hypothesis of n pieces and this log-probability can still finish with.

    It ends with n + 1 .. max_lengths pieces and log p can only fall.  log p <= 0 and the penalty is monotone, so the best is
    at one of the two ends: at the limit for alpha > 0, at n + 1 for alpha < 0.
    """
    return jnp.maximum(score(log_probs, n + 1, penalty, alpha), score(log_probs, max_lengths, penalty, alpha))


def _gather_beams(state: Any, parents: Array) -> Any:
    """Row b*K + k of every leaf becomes the row of its parent: recurrent states and key-value caches alike."""
    B, K = parents.shape
    rows = (jnp.arange(B)[:, None] * K + parents).reshape(-1)
    return jax.tree.map(lambda leaf: leaf.at[rows].get(mode="promise_in_bounds"), state)


def _record(history: _History, step: Array, tokens: Array, parents: Array, weights: Array | None) -> _History:
    kept = history.weights
    if weights is not None:
        kept = kept.at[step].set(weights.reshape(kept.shape[1:]))
    return _History(history.tokens.at[step].set(tokens), history.parents.at[step].set(parents), kept)


def _pick(hypotheses: _Hypotheses, index: Array) -> _Hypotheses:
    return jax.tree.map(lambda leaf: jnp.take_along_axis(leaf, index, axis=1), hypotheses)


def _ranked(end: _Beam, n_best: int, penalty: str, alpha: Array) -> tuple[_Hypotheses, Array]:
    """The n_best hypotheses of each row, and which of them are finished: those come first, the live ones fill up."""
    last = jnp.maximum(end.lengths - 1, 0)[:, None]
    tokens, parents = (
        jnp.take_along_axis(jnp.moveaxis(trace, 0, 1), last[..., None], axis=1)[:, 0]
        for trace in (end.history.tokens, end.history.parents)
    )
    lengths = jnp.broadcast_to(end.lengths[:, None], tokens.shape)
    live = _Hypotheses(score(end.log_probs, lengths, penalty, alpha), end.log_probs, lengths, tokens, parents)
    count = jnp.sum(end.finished.scores > -jnp.inf, axis=1, keepdims=True)
    rank = jnp.arange(n_best)[None, :]
    both = jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), end.finished, live)
    best = _pick(both, jnp.where(rank < count, rank, n_best + rank - count))
    return best._replace(lengths=jnp.where(best.scores > -jnp.inf, best.lengths, 0)), rank < count


def _backtrack(history: _History, best: _Hypotheses) -> tuple[Array, Array | None]:
    """ids [B n_best T] and weights [B n_best T S], read from the last piece of each hypothesis to its first."""

    def back(beams: Array, trace: tuple[Array, _History]) -> tuple[Array, tuple[Array, Array | None]]:
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
