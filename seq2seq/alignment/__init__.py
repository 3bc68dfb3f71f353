"""Alignment: which words of a sentence its translation was made from.

align                     links from the attention of a trained run (run.py; weights.py: from weights to links)
forced_attention          the attention itself, between words or pieces (forced.py); as heat maps (view.py)
score_alignment           precision, recall and AER against a gold alignment (scores.py)
grow_diag, intersection   one alignment from two directions (symmetrization.py)
read_links, read_gold     files of links (links.py)
"""

from seq2seq.alignment.forced import ForcedPair, forced_attention
from seq2seq.alignment.links import AlignmentError, Gold, Links, read_gold, read_links, swapped, write_links
from seq2seq.alignment.run import Alignment, align, score_table, write_alignment
from seq2seq.alignment.scores import AlignmentScores, score_alignment
from seq2seq.alignment.symmetrization import SYMMETRIZATIONS, grow_diag, intersection, union

__all__ = [
    "SYMMETRIZATIONS",
    "Alignment",
    "AlignmentError",
    "AlignmentScores",
    "ForcedPair",
    "Gold",
    "Links",
    "align",
    "forced_attention",
    "grow_diag",
    "intersection",
    "read_gold",
    "read_links",
    "score_alignment",
    "score_table",
    "swapped",
    "union",
    "write_alignment",
    "write_links",
]
