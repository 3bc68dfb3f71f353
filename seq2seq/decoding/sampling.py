"""Sampling: each piece drawn from the model's distribution, sharpened or cut.

    p'(v) ~ p(v)^(1 / temperature)                                         Ackley et al. 1985
    top-k    only the k likeliest pieces                                   Fan et al. 2018, section 5.4
    top-p    only the fewest likeliest pieces whose p' sums to p or more   Holtzman et al. 2020, section 3.1

top-p counts within what top-k has left.  A hypothesis keeps log p of the model itself.
"""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array, lax
from jaxtyping import Float, Int, Integer, Key

from seq2seq.decoding.constraints import checked_rules
from seq2seq.decoding.hypotheses import LENGTH_PENALTIES, Decoded, checked, score
from seq2seq.decoding.stepwise import choose_step_by_step


def sample(
    model: nnx.Module,
    source: Integer[Array | np.ndarray, "B S"],
    max_lengths: Integer[Array | np.ndarray, "B"],
    *,
    max_length: int,
    seed: int = 0,
    numbers: Integer[Array | np.ndarray, "B"] | None = None,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    n_best: int = 1,
    length_penalty: str = "none",
    alpha: float = 0.0,
    min_lengths: Integer[Array | np.ndarray, "B"] | None = None,
    prefixes: Integer[Array | np.ndarray, "B P"] | None = None,
    no_repeat_ngram: int = 0,
    with_weights: bool = False,
) -> Decoded:
    """Draw n_best hypotheses of each row, independently.

    Args:
        model, source, max_lengths, max_length, min_lengths, prefixes, no_repeat_ngram, with_weights: as for `greedy_search`.
        seed: of the draws; the same seed and numbers give the same hypotheses in any batch.
        numbers: a number for each row that sets its draws apart from those of other rows; 0, 1, ... if not given.
        temperature: below 1 sharpens the distribution, above 1 flattens it.
        top_k: likeliest pieces to draw from; 0 for all.
        top_p: least probability of the pieces to draw from; 1 for all.
        n_best: hypotheses drawn for each row; the same one may come twice.
        length_penalty, alpha: as for `beam_search`, for the scores.

    Returns:
        Decoded, finished hypotheses first, then by score.

    Raises:
        ValueError: as for `greedy_search`, or an argument outside its range.

    Reference: Holtzman et al. The curious case of neural text degeneration. ICLR 2020.
    """
    source, max_lengths = checked(source, max_lengths, max_length)
    if not (math.isfinite(temperature) and temperature > 0):
        raise ValueError(f"temperature: expected a finite number > 0, got {temperature}")
    if top_k < 0:
        raise ValueError(f"top_k: expected an integer >= 0, got {top_k}")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p: expected a number in (0, 1], got {top_p}")
    if n_best < 1:
        raise ValueError(f"n_best: expected an integer >= 1, got {n_best}")
    if length_penalty not in LENGTH_PENALTIES:
        raise ValueError(f"length_penalty: expected one of {', '.join(LENGTH_PENALTIES)}, got {length_penalty!r}")
    rules = checked_rules(min_lengths, prefixes, max_lengths, no_repeat_ngram)
    numbers = np.arange(len(source)) if numbers is None else np.asarray(numbers)
    drawing = jax.random.key(seed), np.asarray(numbers, np.int32), np.float32(temperature), np.float32(top_p)
    return _sample(
        *nnx.split(model),
        source,
        max_lengths,
        rules,
        *drawing,
        np.float32(alpha),
        top_k=top_k,
        all_of_p=top_p == 1,
        penalty=length_penalty,
        samples=n_best,
        max_length=max_length,
        no_repeat_ngram=no_repeat_ngram,
        with_weights=with_weights,
    )


STATIC = ("top_k", "all_of_p", "penalty", "samples", "max_length", "no_repeat_ngram", "with_weights")


@partial(jax.jit, static_argnums=0, static_argnames=STATIC)
def _sample(
    graphdef,
    params,
    source,
    max_lengths,
    rules,
    key,
    numbers,
    temperature,
    top_p,
    alpha,
    *,
    top_k,
    all_of_p,
    penalty,
    samples,
    **options,
) -> Decoded:
    keys = _keys(key, numbers, samples)

    def choose(log_probs: Float[Array, "R V"], step: Int[Array, ""]) -> Int[Array, "R"]:
        uniform = jax.vmap(lambda key: jax.random.uniform(jax.random.fold_in(key, step)))(keys)
        return draw(log_probs / temperature, uniform, top_k, None if all_of_p else top_p)

    model = nnx.merge(graphdef, params)
    drawn = choose_step_by_step(model, source, max_lengths, rules, choose, samples=samples, **options)
    drawn = drawn._replace(scores=score(drawn.log_probs, drawn.lengths, penalty, alpha))
    order = jnp.lexsort((-drawn.scores, ~drawn.finished), axis=1)
    return Decoded(*(None if field is None else _pick(field, order) for field in drawn))


def draw(
    logits: Float[Array, "R V"], uniform: Float[Array, "R"], top_k: int, top_p: Float[Array, ""] | float | None
) -> Int[Array, "R"]:
    """The piece at which the distribution function, likeliest first if pieces are cut, passes `uniform` in [0, 1).

    >>> import jax.numpy as jnp
    >>> logits = jnp.log(jnp.array([[0.1, 0.6, 0.3]] * 3))
    >>> draw(logits, jnp.array([0.05, 0.5, 0.95]), 0, None)
    Array([0, 1, 2], dtype=int32)
    >>> draw(logits, jnp.array([0.05, 0.5, 0.95]), 2, None), draw(logits, jnp.array([0.05, 0.5, 0.95]), 0, 0.5)
    (Array([1, 1, 2], dtype=int32), Array([1, 1, 1], dtype=int32))
    """
    cut = bool(top_k) or top_p is not None
    V = logits.shape[1]
    ranked, pieces = lax.top_k(logits, min(top_k, V) if top_k else V) if cut else (logits, None)
    probs = jax.nn.softmax(ranked)
    if top_p is not None:
        before = jnp.cumsum(probs, axis=1) - probs
        probs = jnp.where(before < top_p, probs, 0.0)
    passed = jnp.cumsum(probs, axis=1)
    # the first place that passes has a probability above 0, which the last places may lack
    place = jnp.argmax(passed > uniform[:, None] * passed[:, -1:], axis=1)
    return (place if pieces is None else jnp.take_along_axis(pieces, place[:, None], axis=1)[:, 0]).astype(jnp.int32)


def _keys(key: Key[Array, ""], numbers: Int[Array, "B"], samples: int) -> Key[Array, "R"]:
    """A key for each hypothesis, the same in whatever batch its row stands."""
    each = jax.vmap(jax.random.fold_in, (None, 0))
    return jax.vmap(each, (0, None))(each(key, numbers), jnp.arange(samples)).reshape(-1)


def _pick(field: Array, order: Int[Array, "B K"]) -> Array:
    return jnp.take_along_axis(field, order.reshape(*order.shape, *[1] * (field.ndim - 2)), axis=1)
