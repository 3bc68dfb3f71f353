"""Score a trained run: BLEU and chrF overall and by source length, with 95 % intervals.

python scripts/evaluate.py runs/x --split test
"""

import sys
from pathlib import Path
from typing import Literal

import tyro

from seq2seq.cli import report_errors
from seq2seq.evaluation import evaluate_run, evaluation_files
from seq2seq.evaluation.tables import print_evaluation, result_console
from seq2seq.translation.output import TranslationProgress


def main(
    run: tyro.conf.Positional[Path],
    split: Literal["train", "dev", "test"] = "test",
    checkpoint: Literal["best", "latest", "average"] = "best",
    join: tuple[int, ...] = (),
    beam_size: int | None = None,
    length_penalty: Literal["gnmt", "power", "none"] | None = None,
    alpha: float | None = None,
) -> None:
    """Arguments of the command line.

    Args:
        run: Folder of the run; the results go into its folder eval/.
        split: Part of the corpus to translate.
        checkpoint: Which checkpoint of the run.
        join: Instead of verses, passages of so many consecutive ones; of several numbers, one after the other.
        beam_size: Hypotheses kept, 1 is greedy; the run's own if not given.
        length_penalty: Formula of the length penalty; the run's own if not given.
        alpha: Exponent of the length penalty; the run's own if not given.
    """
    console = result_console()
    decoding = {"beam_size": beam_size, "length_penalty": length_penalty, "alpha": alpha}
    with TranslationProgress() as progress:
        log = lambda line: progress.console.print(line, highlight=False, markup=False, soft_wrap=True)  # noqa: E731
        options = {"join": join, "decoding": decoding, "progress": progress, "log": log}
        evaluation = evaluate_run(run, split, checkpoint=checkpoint, **options)
    print_evaluation(console, evaluation)
    for warning in evaluation.warnings:
        print(f"evaluate.py: WARNING: {warning}", file=sys.stderr)
    print()
    for kind, path in evaluation_files(run, evaluation.split, evaluation.scores.headline).items():
        print(f"{kind:<11} {path}")


if __name__ == "__main__":
    with report_errors():
        tyro.cli(main, description=__doc__)
