"""From attention weights over pieces to links between words.

With a_t the weights of the step that reads y_{t-1} and produces y_t, the row of y_t is

    naive      a_t        the step that produces it
    shifted    a_{t+1}    the step that reads it, which knows what was produced (Chen et al. 2020, "Accurate word alignment
                          induction from neural machine translation", section 3)

A source word receives the sum of the weights of its pieces; a target word has the mean of the rows of its pieces.  Each target
word is linked to the source word of the highest weight; `</s>` takes weight but no links.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from seq2seq.alignment.links import Links

READINGS = ("naive", "shifted")


def rows_of(weights: Float[np.ndarray, "*L T S"], reading: str) -> Float[np.ndarray, "*L U S"]:
    """The row of each of the U = T - 1 target pieces but `</s>`, the last one, which no step reads.

    Args:
        weights: of the T steps that produce the target pieces and `</s>`.
        reading: naive or shifted.
    """
    if reading not in READINGS:
        raise ValueError(f"reading: expected one of {', '.join(READINGS)}, got {reading!r}")
    return weights[..., :-1, :] if reading == "naive" else weights[..., 1:, :]


def word_weights(
    rows: Float[np.ndarray, "*L T S"], target_words: Int[np.ndarray, "T"], source_words: Int[np.ndarray, "S"], num_target: int
) -> Float[np.ndarray, "*L J I"]:
    """Weights between words: sums over the pieces of a source word, means over those of a target word.

    >>> rows = np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
    >>> word_weights(rows, np.array([0, 0]), np.array([0, 0, 1]), 1).round(2)
    array([[0.5, 0.5]])

    Args:
        rows: weights of each target piece over the source pieces.
        target_words: the word of each target piece, from 0.
        source_words: the word of each source piece, from 0; `</s>` is a word of its own, the last.
        num_target: J, number of target words; a word without pieces has a row of zeros.
    """
    to_source = (source_words[:, None] == np.arange(source_words[-1] + 1)).astype(rows.dtype)
    to_target = (np.arange(num_target)[:, None] == target_words).astype(rows.dtype)
    pieces = np.maximum(to_target.sum(-1, keepdims=True), 1)
    return to_target @ rows @ to_source / pieces


def links_of(weights: Float[np.ndarray, "J I"]) -> Links:
    """The heaviest source word of each target word; the last column, `</s>`, is no word, nor is there one in a row of zeros.

    >>> sorted(links_of(np.array([[0.1, 0.3, 0.6], [0.7, 0.2, 0.1], [0.0, 0.0, 0.0]])))
    [(0, 1), (1, 0)]
    """
    words = weights[:, :-1]
    if not words.size:
        return frozenset()
    heaviest = words.argmax(-1)
    return frozenset((int(i), j) for j, i in enumerate(heaviest) if weights[j].any())


def piece_words(counts: Sequence[int]) -> Int[np.ndarray, "P"]:
    """The word of each piece, from the number of pieces of each word.

    >>> piece_words([2, 0, 1])
    array([0, 0, 2])
    """
    return np.repeat(np.arange(len(counts)), counts)
