"""Words, the pieces they are cut into, and attention between words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

END = "</s>"


def join_pieces(pieces: Sequence[str]) -> tuple[list[str], Int[np.ndarray, "P"]]:
    """The words that pieces make, and the word of each piece, from 0: a word begins at "▁", and `</s>` stands alone.

    >>> join_pieces(["▁Je", "▁t", "'", "aime", "</s>"])
    (['Je', "t'aime", '</s>'], array([0, 1, 1, 1, 2]))
    """
    words: list[str] = []
    word_of_piece = []
    for place, piece in enumerate(pieces):
        if not words or piece.startswith("▁") or piece == END or pieces[place - 1] == END:
            words.append("")
        words[-1] += piece
        word_of_piece.append(len(words) - 1)
    return [word.replace("▁", "") or "▁" for word in words], np.array(word_of_piece, int)


def piece_words(counts: Sequence[int]) -> Int[np.ndarray, "P"]:
    """The word of each piece, from 0, where words have so many pieces.

    >>> piece_words([2, 0, 1])
    array([0, 0, 2])
    """
    return np.repeat(np.arange(len(counts)), counts)


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
