"""Translation: sentences in, sentences out, through a trained run.

Sentences are normalised as in training, encoded, sorted by length, decoded in batches of few static shapes and given back
in the order they came.  None is dropped or cut short: a blank sentence stays blank, one that a model cannot hold is an
error that names it.
"""

from seq2seq.translation.decode import IdHypothesis, TranslationError, decode_corpus
from seq2seq.translation.ensemble import load_runs
from seq2seq.translation.scoring import ScoredPair, score_pairs
from seq2seq.translation.translator import BLANK, Hypothesis, Translator, load

__all__ = [
    "BLANK",
    "Hypothesis",
    "IdHypothesis",
    "ScoredPair",
    "TranslationError",
    "Translator",
    "decode_corpus",
    "load",
    "load_runs",
    "score_pairs",
]
