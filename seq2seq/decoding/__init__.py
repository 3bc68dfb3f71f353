"""Decoding: the search for a good translation, over any model that fulfils the `EncoderDecoder` protocol.

    greedy_search      the likeliest piece at every step
    beam_search        the likeliest hypotheses, ranked
    sample             pieces drawn from the model's distribution
    score_targets      log-probabilities of given translations
    attention_weights  the attention of given translations, of every layer and head
    Ensemble           several models as one, for all of the above

A hypothesis y_1 .. y_n has log-probability log p = sum_t log p(y_t | y_<t, x) in float32; PAD and BOS are never produced, so the
softmax runs over the other pieces.  n counts `</s>` when the hypothesis has one.  Beam search ranks by

    score = log p / penalty(n) + cp

with the penalty named by its formula (`LENGTH_PENALTIES`) and cp the coverage penalty, 0 unless asked for.  What a hypothesis
must contain or not is the same for all searches (`constraints`).  Each search is a `lax.while_loop`, compiled once for each
shape, that ends as soon as every row is done; that of a beam may go on in a second one with larger caches.  Each row has its
own limit of length and its own end, so that neither batch size nor padding changes a translation.  A row whose source is all
PAD is done at once: an empty hypothesis, finished, with score 0.
"""

from seq2seq.decoding.attention_weights import attention_weights
from seq2seq.decoding.beam import beam_search
from seq2seq.decoding.coverage import coverage_penalty
from seq2seq.decoding.ensemble import Ensemble
from seq2seq.decoding.greedy import greedy_search
from seq2seq.decoding.hypotheses import LENGTH_PENALTIES, Decoded, gnmt_penalty, no_penalty, power_penalty
from seq2seq.decoding.sampling import sample
from seq2seq.decoding.scoring import score_targets

__all__ = [
    "LENGTH_PENALTIES",
    "Decoded",
    "Ensemble",
    "attention_weights",
    "beam_search",
    "coverage_penalty",
    "gnmt_penalty",
    "greedy_search",
    "no_penalty",
    "power_penalty",
    "sample",
    "score_targets",
]
