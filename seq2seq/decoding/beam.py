"""Beam search: the likeliest hypotheses of each row, ranked by log p / penalty(n)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array, lax
from jaxtyping import Float, Integer

from seq2seq.decoding.beams import reorder_beams, start_beams
from seq2seq.decoding.constraints import checked_rules, constrain
from seq2seq.decoding.coverage import coverage_penalty
from seq2seq.decoding.greedy import greedy_search
from seq2seq.decoding.hypotheses import LENGTH_PENALTIES, Decoded, checked, given_weights, next_log_probs, score, weights_buffer
from seq2seq.decoding.top_k import top_k
from seq2seq.tokenizer import BOS, EOS, PAD


def beam_search(
    model: nnx.Module,
    source: Integer[Array | np.ndarray, "B S"],
    max_lengths: Integer[Array | np.ndarray, "B"],
    *,
    beam_size: int,
    length_penalty: str = "gnmt",
    alpha: float = 0.6,
    coverage: float = 0.0,
    n_best: int = 1,
    max_length: int,
    min_lengths: Integer[Array | np.ndarray, "B"] | None = None,
    prefixes: Integer[Array | np.ndarray, "B P"] | None = None,
    no_repeat_ngram: int = 0,
    with_weights: bool = False,
) -> Decoded:
    """Keep the beam_size likeliest unfinished hypotheses of each row, and its n_best finished ones apart.

    A hypothesis finishes when its `</s>` is among the beam_size likeliest continuations of its row.  A row ends when none of
    its live hypotheses can still enter its n_best finished ones, so n_best never alters the hypotheses ranked before it.  Among
    equals the earlier beam, then the lower id, then the hypothesis finished first, goes first.  With beam_size 1 nothing is
    ranked and the search is `greedy_search`, whatever the penalty; its score is still log p / penalty(n).

    Args:
        model, source, max_lengths, max_length, min_lengths, prefixes, no_repeat_ngram, with_weights: as for `greedy_search`.
        beam_size: K, live hypotheses kept for each row.
        length_penalty: a name in `LENGTH_PENALTIES`.
        alpha: exponent of the penalty; any finite number, negative ones favour short outputs.
        coverage: beta >= 0 of the coverage penalty, which scores gain (`coverage_penalty`); 0 for none.
        n_best: hypotheses returned for each row, at most beam_size.

    Raises:
        ValueError: as for `greedy_search`, or an argument outside its range, or coverage of a model without attention.

    Reference: Wu et al. Google's neural machine translation system. 2016, section 7.
    """
    source, max_lengths = checked(source, max_lengths, max_length)
    if beam_size < 1 or not 1 <= n_best <= beam_size:
        raise ValueError(f"n_best, beam_size: expected 1 <= n_best <= beam_size, got {n_best} and {beam_size}")
    if length_penalty not in LENGTH_PENALTIES:
        raise ValueError(f"length_penalty: expected one of {', '.join(LENGTH_PENALTIES)}, got {length_penalty!r}")
    if not math.isfinite(alpha):
        raise ValueError(f"alpha: expected a finite number, got {alpha}")
    if not (math.isfinite(coverage) and coverage >= 0):
        raise ValueError(f"coverage: expected a finite number >= 0, got {coverage}")
    options = {"max_length": max_length, "no_repeat_ngram": no_repeat_ngram, "with_weights": with_weights}
    if beam_size == 1 and not coverage:
        best = greedy_search(model, source, max_lengths, min_lengths=min_lengths, prefixes=prefixes, **options)
        return best._replace(scores=score(best.log_probs, best.lengths, length_penalty, jnp.float32(alpha)))
    rules = checked_rules(min_lengths, prefixes, max_lengths, no_repeat_ngram)
    ranking = Ranking(np.float32(alpha), np.float32(coverage) if coverage else None)
    options |= {"beam_size": beam_size, "n_best": n_best, "penalty": length_penalty}
    return _beam_search(*nnx.split(model), source, max_lengths, rules, ranking, **options)


class Ranking(NamedTuple):
    """The numbers in a score."""

    alpha: Array
    coverage: Array | None


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
    state: Any  # of the beams of the step before
    parents: Array  # [B K], the beam of the step before that each was appended to
    tokens: Array  # [B K]
    log_probs: Array  # [B K], falling; -inf where fewer than K hypotheses exist
    covered: Array | None  # [B K S], attention so far
    lengths: Array  # [B], of the row's live hypotheses
    done: Array  # [B]
    finished: _Hypotheses  # n_best of them, by score
    ids: Array | None  # [B K T], all pieces of each beam, where a rule looks at them
    history: _History


STATIC = ("beam_size", "n_best", "max_length", "penalty", "no_repeat_ngram", "with_weights")


@partial(jax.jit, static_argnums=0, static_argnames=STATIC)
def _beam_search(
    graphdef,
    params,
    source,
    max_lengths,
    rules,
    ranking,
    *,
    beam_size,
    n_best,
    max_length,
    penalty,
    no_repeat_ngram,
    with_weights,
) -> Decoded:
    model = nnx.merge(graphdef, params)
    mask = source != PAD
    empty = ~jnp.any(mask, axis=1)
    memory, state = start_beams(model, model.encode(source), max_length, beam_size)
    scored = partial(score, penalty=penalty, alpha=ranking.alpha)

    def advance(beam: _Beam) -> _Beam:
        output = model.step(memory, reorder_beams(model, beam.state, beam.parents), beam.tokens.reshape(-1))
        weights = None
        if with_weights or ranking.coverage is not None:
            weights = given_weights(output.weights).reshape(*beam.tokens.shape, -1)
        allowed = constrain(next_log_probs(output.logits), rules, beam.step, _flat(beam.ids), no_repeat_ngram)
        log_probs, parents, tokens = _continuations(beam.log_probs, allowed)
        n = beam.step + 1
        covered = None if ranking.coverage is None else beam.covered + weights
        gained = 0.0 if covered is None else coverage_penalty(covered, mask, ranking.coverage)
        # a piece </s> below the best K is pruned like any other
        ends = (tokens == EOS) & (jnp.arange(tokens.shape[1]) < beam_size) & ~beam.done[:, None]
        ending = jnp.where(ends, log_probs, -jnp.inf)
        scores = scored(ending, jnp.full_like(parents, n)) + (0.0 if covered is None else _of(parents, gained))
        finished = _add_finished(beam.finished, scores, ending, parents, n)
        live, order = lax.top_k(jnp.where(tokens == EOS, -jnp.inf, log_probs), beam_size)
        parents, tokens = _of(order, parents), _of(order, tokens)
        worst = finished.scores[:, -1]
        beaten = worst > -jnp.inf if beam_size == 1 else _reachable(live[:, 0], n, max_lengths, scored) <= worst
        return _Beam(
            n,
            output.state,
            parents,
            tokens,
            jnp.where(beam.done[:, None], beam.log_probs, live),
            None if covered is None else jnp.where(beam.done[:, None, None], beam.covered, _of(parents, covered)),
            jnp.where(beam.done, beam.lengths, n),
            beam.done | (n >= max_lengths) | beaten,
            finished,
            None if beam.ids is None else _of(parents, beam.ids).at[:, :, beam.step].set(tokens),
            _record(beam.history, beam.step, tokens, parents, weights if with_weights else None),
        )

    start = _start(source, state, empty, beam_size, n_best, max_length, with_weights)
    if ranking.coverage is not None:
        start = start._replace(covered=jnp.zeros((len(source), beam_size, source.shape[1]), jnp.float32))
    if no_repeat_ngram:
        start = start._replace(ids=jnp.full((len(source), beam_size, max_length), PAD, jnp.int32))
    end = lax.while_loop(lambda beam: ~jnp.all(beam.done), advance, start)
    live = scored(end.log_probs, jnp.broadcast_to(end.lengths[:, None], end.log_probs.shape))
    if ranking.coverage is not None:
        live = live + jnp.where(empty[:, None], 0.0, coverage_penalty(end.covered, mask, ranking.coverage))
    best, finished = _ranked(end, live, n_best)
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
        step=jnp.int32(0),
        state=state,
        parents=jnp.broadcast_to(jnp.arange(K), (B, K)),
        tokens=jnp.full((B, K), BOS, jnp.int32),
        log_probs=jnp.broadcast_to(jnp.where(jnp.arange(K) == 0, jnp.float32(0), -jnp.inf), (B, K)),
        covered=None,
        lengths=jnp.zeros(B, jnp.int32),
        done=empty,
        finished=_Hypotheses(none, none, zeros, zeros, zeros),
        ids=None,
        history=_History(trace, trace, weights_buffer((T, B, K, S), with_weights)),
    )


def _continuations(log_probs: Float[Array, "B K"], next_log_probs: Float[Array, "BK V"]) -> tuple[Array, Array, Array]:
    """The 2K likeliest of the K*V continuations of each row: log_probs, parents, tokens, each [B 2K], likeliest first.

    At most K of them end in `</s>`, so at least K can live on.
    """
    (B, K), V = log_probs.shape, next_log_probs.shape[-1]
    total = log_probs[:, :, None] + next_log_probs.reshape(B, K, V)
    best, index = top_k(total.reshape(B, K * V), 2 * K)
    return best, index // V, index % V


def _add_finished(finished: _Hypotheses, scores: Array, log_probs: Array, parents: Array, n: Array) -> _Hypotheses:
    """The best of the finished hypotheses and the new ones (score -inf is none)."""
    new = _Hypotheses(scores, log_probs, jnp.full_like(parents, n), jnp.full_like(parents, EOS), parents)
    both = jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), finished, new)
    _, order = lax.top_k(both.scores, finished.scores.shape[1])
    return _pick(both, order)


def _reachable(log_probs: Array, n: Array, max_lengths: Array, scored: Callable[[Array, Array], Array]) -> Array:
    """The best score that a live hypothesis of n pieces and this log-probability can still finish with.

    It ends with n + 1 .. max_lengths pieces and log p can only fall.  log p <= 0 and the penalty is monotone, so the best is
    at one of the two ends: at the limit for alpha > 0, at n + 1 for alpha < 0.  The coverage penalty adds 0 at most.
    """
    return jnp.maximum(scored(log_probs, n + 1), scored(log_probs, max_lengths))


def _record(history: _History, step: Array, tokens: Array, parents: Array, weights: Array | None) -> _History:
    kept = history.weights
    if weights is not None:
        kept = kept.at[step].set(weights)
    return _History(history.tokens.at[step].set(tokens), history.parents.at[step].set(parents), kept)


def _of(index: Array, values: Array) -> Array:
    """values[b, index[b, k]] for each row b."""
    return jnp.take_along_axis(values, index.reshape(*index.shape, *[1] * (values.ndim - 2)), axis=1)


def _flat(ids: Array | None) -> Array | None:
    return None if ids is None else ids.reshape(-1, ids.shape[-1])


def _pick(hypotheses: _Hypotheses, index: Array) -> _Hypotheses:
    return jax.tree.map(lambda leaf: jnp.take_along_axis(leaf, index, axis=1), hypotheses)


def _ranked(end: _Beam, live_scores: Array, n_best: int) -> tuple[_Hypotheses, Array]:
    """The n_best hypotheses of each row, and which of them are finished: those come first, the live ones fill up."""
    last = jnp.maximum(end.lengths - 1, 0)[:, None]
    tokens, parents = (
        jnp.take_along_axis(jnp.moveaxis(trace, 0, 1), last[..., None], axis=1)[:, 0]
        for trace in (end.history.tokens, end.history.parents)
    )
    lengths = jnp.broadcast_to(end.lengths[:, None], tokens.shape)
    live = _by_score(_Hypotheses(live_scores, end.log_probs, lengths, tokens, parents))
    count = jnp.sum(end.finished.scores > -jnp.inf, axis=1, keepdims=True)
    rank = jnp.arange(n_best)[None, :]
    both = jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), end.finished, live)
    best = _pick(both, jnp.where(rank < count, rank, n_best + rank - count))
    return best._replace(lengths=jnp.where(best.scores > -jnp.inf, best.lengths, 0)), rank < count


def _by_score(hypotheses: _Hypotheses) -> _Hypotheses:
    return _pick(hypotheses, lax.top_k(hypotheses.scores, hypotheses.scores.shape[1])[1])


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
