"""Pieces joined to words, and attention between words."""

import numpy as np

from seq2seq.words import word_weights


def test_words_sum_over_source_pieces_and_average_target_pieces():
    rows = np.random.default_rng(0).dirichlet(np.ones(5), size=(2, 3, 4))
    words = word_weights(rows, np.array([0, 0, 2, 2]), np.array([0, 1, 1, 1, 2]), 3)
    assert words.shape == (2, 3, 3, 3)
    np.testing.assert_allclose(words[..., 0, 0], rows[..., :2, 0].mean(-1))
    np.testing.assert_allclose(words[..., 2, 1], rows[..., 2:, 1:4].sum(-1).mean(-1))
    np.testing.assert_allclose(words.sum(-1), np.broadcast_to([1.0, 0.0, 1.0], (2, 3, 3)))
