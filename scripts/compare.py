"""Compare trained runs: one table, one figure of scores over source length, one of training, and one page with everything.

python scripts/compare.py runs/a runs/b runs/c

python scripts/compare.py configs/length/*.toml --train-missing
"""

import functools
import sys
from pathlib import Path
from typing import Literal

import tyro

from seq2seq.cli import report_errors
from seq2seq.evaluation import compare_runs, evaluate_run, split_name
from seq2seq.evaluation.tables import comparison_table, print_table, result_console, significance_table, transposed
from seq2seq.report import write_report
from seq2seq.study import comparison_folder, study_runs
from seq2seq.translation.output import TranslationProgress


def main(
    runs: tyro.conf.Positional[tuple[Path, ...]],
    out: Path | None = None,
    split: Literal["train", "dev", "test"] = "test",
    join: tuple[int, ...] = (),
    train_missing: bool = False,
) -> None:
    """Arguments of the command line.

    Args:
        runs: Folders of runs, or config files, whose runs lie in runs/ as they do in configs/; what is not evaluated yet is.
        out: Folder that receives the table, the figures and report.html; compare/<text> beside the runs if not given.
        split: Part of the corpus to compare on.
        join: Instead of verses, passages of so many consecutive ones; of several numbers, one after the other.
        train_missing: Train the runs of config files that have not ended; run again, it goes on where it stopped.
    """
    with TranslationProgress() as progress:
        log = lambda line: progress.console.print(line, highlight=False, markup=False, soft_wrap=True)  # noqa: E731
        evaluate = functools.partial(evaluate_run, progress=progress)
        folders = study_runs(runs, train_missing=train_missing, log=log)
        out = out or comparison_folder(folders, split_name(split, join))
        comparison = compare_runs(folders, out, split, join=join, log=log, evaluate=evaluate)
        report = write_report(comparison, folders, out / "report.html", log=log)
    first = next(iter(comparison.evaluations.values()))
    title = f"{first.title}: {first.n} sentences, 95 % intervals"
    print_table(result_console(), title, *transposed(*comparison_table(comparison.evaluations)))
    if comparison.tests:
        print_table(result_console(), "paired bootstrap", *significance_table(comparison.tests, first.scores.length_unit))
    for note in comparison.notes:
        print(f"note: {note}")
    for label, evaluation in comparison.evaluations.items():
        for warning in evaluation.warnings:
            print(f"compare.py: WARNING: {label}: {warning}", file=sys.stderr)
    for kind, path in (comparison.files | {"report": report}).items():
        print(f"{kind:<11} {path}")


if __name__ == "__main__":
    with report_errors():
        tyro.cli(main, description=__doc__)
