"""A model that is a table, small enough to enumerate, for the tests of searches."""

import itertools
import math

import jax.numpy as jnp
import numpy as np
from flax import nnx

from seq2seq.layers import StepOutput
from seq2seq.tokenizer import BOS, EOS, PAD

A, B = 4, 5
WORDS, VOCAB, LIMIT = (A, B), 6, 4
NUM_PREFIXES = 2**LIMIT - 1  # of words, before the last step


class TableModel(nnx.Module):
    """p(next | prefix) read from a table, one for each first source id.

    A prefix has the number 2 * number(prefix without its last word) + 1 or 2.  That number is the state, so a state that does
    not follow its beam gives the wrong row; it is also the first attention weight.
    """

    def __init__(self, tables):
        self.tables = nnx.Param(jnp.asarray(tables, jnp.float32))

    def encode(self, source):
        return source

    def init_state(self, memory, max_length):
        return jnp.full(memory.shape[0], -1, jnp.int32)

    def step(self, memory, state, tokens):
        number = jnp.where(tokens == BOS, 0, 2 * state + tokens - A + 1)
        logits = self.tables[...][memory[:, 0] - A, jnp.clip(number, 0, NUM_PREFIXES - 1)]
        weights = jnp.zeros(memory.shape, jnp.float32).at[:, 0].set(number.astype(jnp.float32))
        return StepOutput(logits, number, weights)


def prefix_number(words):
    number = 0
    for word in words:
        number = 2 * number + word - A + 1
    return number


def random_tables(seed, count=1):
    """Log-probabilities of `</s>`, A, B; PAD and BOS are made tempting, to be refused."""
    logits = np.full((count, NUM_PREFIXES, VOCAB), -np.inf)
    logits[..., [PAD, BOS]] = 50.0
    logits[..., [EOS, A, B]] = 2 * np.random.default_rng(seed).normal(size=(count, NUM_PREFIXES, 3))
    return logits


def table_log_prob(table, words, token):
    row = table[prefix_number(words)][[EOS, A, B]].astype(np.float32).astype(np.float64)
    return row[token - EOS] - np.logaddexp.reduce(row)


def penalty_of(name, n, alpha):
    return {"gnmt": ((5 + n) / 6) ** alpha, "power": float(n) ** alpha, "none": 1.0}[name]


def enumerate_finished(table, name, alpha):
    """(score, log_prob, ids) of every sequence of at most LIMIT pieces that ends in `</s>`, best first."""
    found = []
    for n in range(1, LIMIT + 1):
        for words in itertools.product(WORDS, repeat=n - 1):
            ids = (*words, EOS)
            log_prob = sum(table_log_prob(table, words[:t], ids[t]) for t in range(n))
            found.append((log_prob / penalty_of(name, n, alpha), log_prob, list(ids)))
    return sorted(found, reverse=True)


def reference_beam(table, beam_size, name, alpha, enough=math.inf):
    """Beam search by lists, to the limit or `enough` finished hypotheses: the finished ones best first, then the live ones."""
    live, finished = [(0.0, ())], []
    for n in range(1, LIMIT + 1):
        grown = sorted(
            ((p + table_log_prob(table, words, token), (*words, token)) for p, words in live for token in (EOS, A, B)),
            reverse=True,
        )
        finished += [(p / penalty_of(name, n, alpha), list(ids)) for p, ids in grown[:beam_size] if ids[-1] == EOS]
        live = [(p, ids) for p, ids in grown if ids[-1] != EOS][:beam_size]
        if len(finished) >= enough:
            break
    return sorted(finished, reverse=True), [(p / penalty_of(name, n, alpha), list(ids)) for p, ids in live]


def source_of(*first, length=2):
    rows = np.full((len(first), length), PAD, np.int32)
    for row, word in zip(rows, first, strict=True):
        if word != PAD:
            row[:2] = word, EOS
    return rows


def limits(rows, limit=LIMIT):
    return np.full(rows, limit, np.int32)


def ids_of(decoded, row=0, rank=0):
    return np.asarray(decoded.ids)[row, rank, : decoded.lengths[row, rank]].tolist()
