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
from seq2seq.decoding.constraints import Rules, checked_rules, constrain
from seq2seq.decoding.coverage import coverage_penalty
from seq2seq.decoding.greedy import greedy_search
from seq2seq.decoding.history import History, Hypotheses, add_finished, backtrack, of, ranked, record
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
    patience: float = 0.0,
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
        patience: p > 0 ends a row too once p K hypotheses have finished (Kasai et al. 2022), as most systems do with p = 1; at
            least n_best of them.
        n_best: hypotheses returned for each row, at most beam_size.

    Raises:
        ValueError: as for `greedy_search`, or an argument outside its range, or coverage of a model without attention.

    Reference: Wu et al. Google's neural machine translation system. 2016, section 7.  Kasai et al. A call for clarity in beam
    search: how it works and when it stops. 2022.
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
    if not (math.isfinite(patience) and patience >= 0):
        raise ValueError(f"patience: expected a finite number >= 0, got {patience}")
    options = {"max_length": max_length, "no_repeat_ngram": no_repeat_ngram, "with_weights": with_weights}
    if beam_size == 1 and not coverage:
        best = greedy_search(model, source, max_lengths, min_lengths=min_lengths, prefixes=prefixes, **options)
        return best._replace(scores=score(best.log_probs, best.lengths, length_penalty, jnp.float32(alpha)))
    rules = checked_rules(min_lengths, prefixes, max_lengths, no_repeat_ngram)
    enough = np.int32(max(math.ceil(patience * beam_size), n_best)) if patience else None
    ranking = Ranking(np.float32(alpha), np.float32(coverage) if coverage else None, enough)
    options |= {"beam_size": beam_size, "n_best": n_best, "penalty": length_penalty}
    return _beam_search(*nnx.split(model), source, max_lengths, rules, ranking, **options)


FEWEST = 8
"""Rows from which on the live half of a search goes on by itself."""


class Ranking(NamedTuple):
    """The numbers in a score, and how many finished hypotheses end a row."""

    alpha: Array
    coverage: Array | None
    enough: Array | None


class _Given(NamedTuple):
    source: Array  # [B S]
    max_lengths: Array  # [B]
    rules: Rules


class _Beam(NamedTuple):
    step: Array
    state: Any  # of the beams of the step before
    parents: Array  # [B K], the beam of the step before that each was appended to
    tokens: Array  # [B K]
    log_probs: Array  # [B K], falling; -inf where fewer than K hypotheses exist
    covered: Array | None  # [B K S], attention so far
    lengths: Array  # [B], of the row's live hypotheses
    done: Array  # [B]
    ended: Array  # [B], how many hypotheses have finished
    finished: Hypotheses  # n_best of them, by score
    ids: Array | None  # [B K T], all pieces of each beam, where a rule looks at them
    history: History


def _beam_search(graphdef, params, source, max_lengths, rules, ranking, *, max_length, **options) -> Decoded:
    """The search costs what is still alive: caches begin with half the room, since most hypotheses end long before their limit,
    and whenever half of the sources are done the others go on by themselves; whatever goes on has all the room."""
    options |= {"max_length": max_length}
    can_grow = hasattr(nnx.merge(graphdef, params), "grow")
    room = math.ceil(max_length / 2) if can_grow else max_length
    given, larger = _Given(source, max_lengths, rules), []
    memory, beam = _begin_search(graphdef, params, given, ranking, _few(given), room=room, **options)
    while not (done := np.asarray(beam.done)).all():
        if (~done).sum() <= _few(given):
            places = np.argsort(done, kind="stable")[: len(done) // 2]
            larger.append((beam, places))
            memory, beam, given = _take((memory, beam, given), places)
        beam = _continue_search(graphdef, params, memory, beam, given, ranking, _few(given), room=max_length, **options)
    for whole, places in reversed(larger):
        beam = _put(whole, beam, places)
    return _end_search(beam, source, max_lengths, ranking, n_best=options["n_best"], penalty=options["penalty"])


def _few(given: _Given) -> np.int32:
    """How many live sources go on by themselves; none if there are not many rows."""
    rows = len(given.max_lengths)
    return np.int32(rows // 2 if rows >= FEWEST else 0)


@jax.jit
def _take(rows: Any, places: Array) -> Any:
    """Memory, beams and what was given of some sources."""
    memory, beam, given = rows
    B = len(beam.done)

    def taken(x: Array) -> Array:  # several rows of a source stand side by side
        return x.reshape(B, -1, *x.shape[1:])[places].reshape(-1, *x.shape[1:])

    history = jax.tree.map(lambda x: x[:, places], beam.history)
    own = beam._replace(step=None, history=None)
    memory, own, given = jax.tree.map(taken, (memory, own, given))
    return memory, own._replace(step=beam.step, history=history), given


@jax.jit
def _put(whole: _Beam, beam: _Beam, places: Array) -> _Beam:
    """`whole` with the beams of some sources in their places; their states are of no use any more."""
    history = jax.tree.map(lambda x, part: x.at[:, places].set(part), whole.history, beam.history)
    rest = {"step": None, "state": None, "history": None}
    own = jax.tree.map(lambda x, part: x.at[places].set(part), whole._replace(**rest), beam._replace(**rest))
    return own._replace(step=beam.step, history=history)


STATIC = ("beam_size", "n_best", "max_length", "penalty", "no_repeat_ngram", "with_weights", "room")


@partial(jax.jit, static_argnums=0, static_argnames=STATIC)
def _begin_search(graphdef, params, given, ranking, few, *, room, **options) -> tuple[Any, _Beam]:
    """Memory, and the beams after the steps that `room` holds, or once only `few` sources are left."""
    model, source = nnx.merge(graphdef, params), given.source
    K, T, n_best = (options[key] for key in ("beam_size", "max_length", "n_best"))
    memory, state = start_beams(model, model.encode(source), room, K)
    start = _start(source, state, jnp.all(source == PAD, axis=1), K, n_best, T, options["with_weights"])
    if ranking.coverage is not None:
        start = start._replace(covered=jnp.zeros((len(source), K, source.shape[1]), jnp.float32))
    if options["no_repeat_ngram"]:
        start = start._replace(ids=jnp.full((len(source), K, T), PAD, jnp.int32))
    return memory, _run(model, memory, start, given, ranking, few, room, **options)


@partial(jax.jit, static_argnums=0, static_argnames=STATIC)
def _continue_search(graphdef, params, memory, beam, given, ranking, few, *, room, **options) -> _Beam:
    """The same from where a search stands."""
    model = nnx.merge(graphdef, params)
    if hasattr(model, "grow"):
        beam = beam._replace(state=model.grow(beam.state, room))
    return _run(model, memory, beam, given, ranking, few, room, **options)


@partial(jax.jit, static_argnames=("n_best", "penalty"))
def _end_search(beam, source, max_lengths, ranking, *, n_best, penalty) -> Decoded:
    """The hypotheses, best first."""
    mask = source != PAD
    empty = ~jnp.any(mask, axis=1, keepdims=True)
    live = score(beam.log_probs, jnp.broadcast_to(beam.lengths[:, None], beam.log_probs.shape), penalty, ranking.alpha)
    if ranking.coverage is not None:
        live = live + jnp.where(empty, 0.0, coverage_penalty(beam.covered, mask, ranking.coverage))
    best, finished = ranked(beam.finished, beam.history, beam.lengths, live, beam.log_probs, n_best)
    ids, weights = backtrack(beam.history, best)
    return Decoded(ids, best.lengths, best.scores, best.log_probs, weights, finished | (empty & (best.scores > -jnp.inf)))


def _run(model, memory, start, given, ranking, few, room, *, beam_size, penalty, no_repeat_ngram, with_weights, **_) -> _Beam:
    """Step by step until no more than `few` rows are left or the room is used up."""
    source, max_lengths, rules = given
    mask = source != PAD
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
        scores = scored(ending, jnp.full_like(parents, n)) + (0.0 if covered is None else of(parents, gained))
        finished = add_finished(beam.finished, scores, ending, parents, n)
        live, order = lax.top_k(jnp.where(tokens == EOS, -jnp.inf, log_probs), beam_size)
        parents, tokens = of(order, parents), of(order, tokens)
        worst = finished.scores[:, -1]
        beaten = worst > -jnp.inf if beam_size == 1 else _reachable(live[:, 0], n, max_lengths, scored) <= worst
        ended = beam.ended + ends.sum(axis=1, dtype=jnp.int32)
        if ranking.enough is not None:
            beaten = beaten | (ended >= ranking.enough)
        return _Beam(
            n,
            output.state,
            parents,
            tokens,
            jnp.where(beam.done[:, None], beam.log_probs, live),
            None if covered is None else jnp.where(beam.done[:, None, None], beam.covered, of(parents, covered)),
            jnp.where(beam.done, beam.lengths, n),
            beam.done | (n >= max_lengths) | beaten,
            ended,
            finished,
            None if beam.ids is None else of(parents, beam.ids).at[:, :, beam.step].set(tokens),
            record(beam.history, beam.step, tokens, parents, weights if with_weights else None),
        )

    return lax.while_loop(lambda beam: (jnp.sum(~beam.done) > few) & (beam.step < room), advance, start)


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
        ended=jnp.zeros(B, jnp.int32),
        finished=Hypotheses(none, none, zeros, zeros, zeros),
        ids=None,
        history=History(trace, trace, weights_buffer((T, B, K, S), with_weights)),
    )


def _continuations(log_probs: Float[Array, "B K"], next_log_probs: Float[Array, "BK V"]) -> tuple[Array, Array, Array]:
    """The 2K likeliest of the K*V continuations of each row: log_probs, parents, tokens, each [B 2K], likeliest first.

    At most K of them end in `</s>`, so at least K can live on.
    """
    (B, K), V = log_probs.shape, next_log_probs.shape[-1]
    total = log_probs[:, :, None] + next_log_probs.reshape(B, K, V)
    best, index = top_k(total.reshape(B, K * V), 2 * K)
    return best, index // V, index % V


def _reachable(log_probs: Array, n: Array, max_lengths: Array, scored: Callable[[Array, Array], Array]) -> Array:
    """The best score that a live hypothesis of n pieces and this log-probability can still finish with.

    It ends with n + 1 .. max_lengths pieces and log p can only fall.  log p <= 0 and the penalty is monotone, so the best is
    at one of the two ends: at the limit for alpha > 0, at n + 1 for alpha < 0.  The coverage penalty adds 0 at most.
    """
    return jnp.maximum(scored(log_probs, n + 1), scored(log_probs, max_lengths))


def _flat(ids: Array | None) -> Array | None:
    return None if ids is None else ids.reshape(-1, ids.shape[-1])
