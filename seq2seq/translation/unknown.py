"""Unknown pieces in an output, replaced by the source word they attend to most (Luong et al. 2015b, "Addressing the rare word
problem", section 3; Jean et al. 2015, section 3.3).

A vocabulary of subwords has a piece for nearly everything; where it has none, the source word is often the right one: a name, a
number, a sign of another script.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from seq2seq.tokenizer import BOS, EOS, PAD, UNK, Tokenizer


def words_of_pieces(sentence: str, tokenizer: Tokenizer) -> list[str]:
    """The source word that each piece of `sentence` belongs to, in the order of its pieces."""
    words = tokenizer.form(sentence).split()
    counts = [len(tokenizer.encode(word)) for word in words]
    ids = tokenizer.encode(sentence)
    if sum(counts) != len(ids):  # words that are not encoded one by one
        return tokenizer.pieces(ids)
    return [word for word, count in zip(words, counts, strict=True) for _ in range(count)]


def replace_unknown(
    ids: Sequence[int], weights: Float[np.ndarray, "T S"], source_words: Sequence[str], tokenizer: Tokenizer
) -> str:
    """The text of `ids` with each UNK as the source word that received the most attention when it was produced.

    Args:
        ids: produced, up to and with `</s>` if it is finished.
        weights: attention of each produced piece to the source pieces, the last of which is `</s>`.
        source_words: the word of each source piece but `</s>`; what several pieces of one word receive is summed.
        tokenizer: of the target side.
    """
    text = ""
    for place, (i, piece) in enumerate(zip(ids, tokenizer.pieces(ids), strict=True)):
        if i == EOS:
            break
        if i == UNK:
            text += f"\u2581{_most_attended(weights[place], source_words)}\u2581"
        elif i not in (PAD, BOS):
            text += piece
    return " ".join(text.replace("\u2581", " ").split())


def _most_attended(weights: Float[np.ndarray, "S"], words: Sequence[str]) -> str:
    received: dict[str, float] = {}
    for word, weight in zip(words, weights, strict=False):
        received[word] = received.get(word, 0.0) + float(weight)
    return max(received, key=received.__getitem__)
