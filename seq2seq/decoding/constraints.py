"""What a hypothesis must or must not contain, whatever the search.

    shortest     `</s>` is piece number min_length or later
    prefix       the first pieces are given
    n-grams      no n pieces in a row occur twice (Paulus et al. 2018, section 2.5)

A rule takes pieces away at a step and leaves the log-probabilities of the others as they are, so that log p is always that of
the model.  A prefix overrules the others, and rules that leave no piece at all are set aside for that step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from seq2seq.tokenizer import BOS, EOS, PAD


class Rules(NamedTuple):
    """The rules of each row; None is no rule."""

    min_lengths: Int[Array | np.ndarray, "B"] | None
    """Fewest pieces, `</s>` counted."""
    prefixes: Int[Array | np.ndarray, "B P"] | None
    """First pieces, PAD after the last."""


def checked_rules(min_lengths: Any, prefixes: Any, max_lengths: np.ndarray, no_repeat_ngram: int) -> Rules:
    """Rules that fit the limits of length.

    Raises:
        ValueError: a shortest length above the longest, a prefix with a special id or without room for `</s>`, n < 0.
    """
    if no_repeat_ngram < 0:
        raise ValueError(f"no_repeat_ngram: expected an integer >= 0, got {no_repeat_ngram}")
    shortest = None if min_lengths is None else np.asarray(min_lengths, np.int32)
    given = None if prefixes is None else np.asarray(prefixes, np.int32)
    if shortest is not None and (shortest > max_lengths).any():
        row = int(np.argmax(shortest > max_lengths))
        raise ValueError(f"min_lengths: expected at most max_lengths = {max_lengths[row]}, got {shortest[row]} in row {row}")
    if given is not None:
        if np.isin(given, (BOS, EOS)).any():
            raise ValueError("prefixes: expected no BOS and no EOS, got one of them")
        sizes = (given != PAD).sum(axis=1)
        if (sizes >= max_lengths).any():
            row = int(np.argmax(sizes >= max_lengths))
            raise ValueError(
                f"prefixes: expected fewer than max_lengths = {max_lengths[row]} pieces, got {sizes[row]} in row {row}"
            )
    return Rules(shortest, given)


def constrain(
    log_probs: Float[Array, "R V"], rules: Rules, step: Int[Array, ""], ids: Int[Array, "R T"] | None, no_repeat_ngram: int
) -> Float[Array, "R V"]:
    """Log-probabilities of piece number `step` (from 0) of R = B K hypotheses, -inf for those that the rules forbid.

    Args:
        log_probs: of every piece.
        rules: of the B rows.
        step: number of pieces so far.
        ids: those pieces; None if no rule looks at them.
        no_repeat_ngram: n, 0 for no rule.
    """
    if rules == Rules(None, None) and not no_repeat_ngram:
        return log_probs
    R, V = log_probs.shape
    pieces, allowed = jnp.arange(V), log_probs
    if rules.min_lengths is not None:
        early = step + 1 < _for_beams(rules.min_lengths, R)
        allowed = jnp.where(early[:, None] & (pieces == EOS), -jnp.inf, allowed)
    if no_repeat_ngram:
        allowed = _without_repeats(allowed, ids, step, no_repeat_ngram)
    if rules.prefixes is not None and rules.prefixes.shape[1]:
        P = rules.prefixes.shape[1]
        forced = jnp.where(step < P, _for_beams(rules.prefixes, R)[:, jnp.minimum(step, P - 1)], PAD)[:, None]
        allowed = jnp.where(forced == PAD, allowed, jnp.where(pieces == forced, log_probs, -jnp.inf))
    return jnp.where(jnp.any(allowed > -jnp.inf, axis=1, keepdims=True), allowed, log_probs)


def _without_repeats(log_probs: Float[Array, "R V"], ids: Int[Array, "R T"], step: Int[Array, ""], n: int):
    """-inf for the last piece of every n-gram of `ids` whose first n - 1 pieces are also the last n - 1 of the hypothesis."""
    (R, V), T = log_probs.shape, ids.shape[1]
    place = jnp.arange(T)
    same = place + n - 1 < step
    for j in range(n - 1):
        recent = ids[:, jnp.maximum(step - n + 1 + j, 0)]
        same = same & (jnp.roll(ids, -j, axis=1) == recent[:, None])
    banned = jnp.where(same, jnp.roll(ids, 1 - n, axis=1), V)
    return log_probs.at[jnp.arange(R)[:, None], banned].set(-jnp.inf, mode="drop")


def _for_beams(x: Int[Array | np.ndarray, "B *A"], R: int) -> Int[Array, "R *A"]:
    return jnp.repeat(jnp.asarray(x), R // len(x), axis=0)
