"""Evaluation: from a run to BLEU, chrF and token accuracy overall and by source length, with intervals.

score         plain lists of strings to scores (scores.py)
evaluate_run  a run and a split to scores, files and a figure (run.py; files: record.py)
compare_runs  several runs to one table and one figure (comparison.py)
paired_tests  which of two systems is better on the same text (significance.py)
"""

from seq2seq.evaluation.bootstrap import Estimate
from seq2seq.evaluation.comparison import Comparison, compare_runs
from seq2seq.evaluation.record import Evaluation, Sentence, evaluation_files, load_evaluation, load_sentences
from seq2seq.evaluation.run import SPLITS, evaluate_run, split_name
from seq2seq.evaluation.scores import METRICS, Bucket, Scores, SliceScores, score
from seq2seq.evaluation.significance import PairedTest, paired_tests

__all__ = [
    "METRICS",
    "SPLITS",
    "Bucket",
    "Comparison",
    "Estimate",
    "Evaluation",
    "PairedTest",
    "Scores",
    "Sentence",
    "SliceScores",
    "compare_runs",
    "evaluate_run",
    "evaluation_files",
    "load_evaluation",
    "load_sentences",
    "paired_tests",
    "score",
    "split_name",
]
