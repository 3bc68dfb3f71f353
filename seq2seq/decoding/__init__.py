"""Decoding: the search for a good translation, over any model that fulfils the `EncoderDecoder` protocol.

A hypothesis y_1 .. y_n has log-probability log p = sum_t log p(y_t | y_<t, x) in float32; PAD and BOS are never produced, so the
softmax runs over the other pieces.  n counts `</s>` when the hypothesis has one.  Beam search ranks by

    score = log p / penalty(n)

with the penalty named by its formula (`LENGTH_PENALTIES`).  Both searches are one `lax.while_loop`, compiled once for each
shape, that ends as soon as every row is done.  Each row has its own limit of length and its own end, so that neither batch size
nor padding changes a translation.  A row whose source is all PAD is done at once: an empty hypothesis, finished, with score 0.
"""

from seq2seq.decoding.beam import beam_search
from seq2seq.decoding.greedy import greedy_search
from seq2seq.decoding.hypotheses import LENGTH_PENALTIES, Decoded, gnmt_penalty, no_penalty, power_penalty

__all__ = ["LENGTH_PENALTIES", "Decoded", "beam_search", "gnmt_penalty", "greedy_search", "no_penalty", "power_penalty"]
