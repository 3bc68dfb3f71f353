"""From attention weights over pieces to links between words.

With a_t the weights of the step that reads y_{t-1} and produces y_t, the row of y_t is

    naive      a_t        the step that produces it
    shifted    a_{t+1}    the step that reads it, which knows what was produced (Chen et al. 2020, "Accurate word alignment
                          induction from neural machine translation", section 3)

Between words (`word_weights`), each target word is linked to the source word of the highest weight; `</s>` takes weight but no
links.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

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
