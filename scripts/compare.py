"""Compare trained runs: one table, one figure of scores over source length, one of training.

python scripts/compare.py runs/a runs/b runs/c --out runs/compare
"""

import functools
import sys
from pathlib import Path
from typing import Literal

import tyro

from seq2seq.cli import report_errors
from seq2seq.evaluation import compare_runs, evaluate_run
from seq2seq.evaluation.tables import comparison_table, print_table, result_console, transposed
from seq2seq.translation.output import TranslationProgress


def main(runs: tyro.conf.Positional[tuple[Path, ...]], out: Path, split: Literal["train", "dev", "test"] = "test") -> None:
    """Arguments of the command line.

    Args:
        runs: Folders of the runs; one without an evaluation of the split is evaluated first.
        out: Folder that receives the table and the figures.
        split: Part of the corpus to compare on.
    """
    with TranslationProgress() as progress:
        log = lambda line: progress.console.print(line, highlight=False, markup=False, soft_wrap=True)  # noqa: E731
        evaluate = functools.partial(evaluate_run, progress=progress)
        comparison = compare_runs(runs, out, split, log=log, evaluate=evaluate)
    first = next(iter(comparison.evaluations.values()))
    title = f"{first.corpus.title}, {split}: {first.n} sentences, 95 % intervals"
    print_table(result_console(), title, *transposed(*comparison_table(comparison.evaluations)))
    for note in comparison.notes:
        print(f"note: {note}")
    for label, evaluation in comparison.evaluations.items():
        for warning in evaluation.warnings:
            print(f"compare.py: WARNING: {label}: {warning}", file=sys.stderr)
    for kind, path in comparison.files.items():
        print(f"{kind:<11} {path}")


if __name__ == "__main__":
    with report_errors():
        tyro.cli(main, description=__doc__)
