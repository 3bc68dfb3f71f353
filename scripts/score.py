"""Log-probability of given translations:  python scripts/score.py runs/x --source in.txt --target translations.txt"""

import sys
from pathlib import Path
from typing import Literal

import tyro

from seq2seq.cli import report_errors
from seq2seq.translation import load
from seq2seq.translation.output import TranslationProgress, check_output, format_scores, read_sentences, score_note


def main(
    run: tyro.conf.Positional[Path],
    source: Path,
    target: Path | None = None,
    output: Path | None = None,
    tokens: bool = False,
    json: bool = False,
    ensemble: tuple[Path, ...] = (),
    ensemble_average: Literal["probabilities", "log_probabilities"] | None = None,
    batch_tokens: int | None = None,
    checkpoint: Literal["best", "latest", "average"] = "best",
) -> None:
    """Arguments of the command line.

    Args:
        run: Folder of the run.
        source: UTF-8 text, one sentence a line.
        target: A translation of each; standard input if not given.
        output: Receives a line for each pair, its log-probability (natural logarithm); standard output if not given.
        tokens: Adds a tab and each token with its log-probability, the end of the sentence included.
        json: One object a line: source, target, log_probability, tokens, log_probabilities.
        ensemble: Folders of further runs with the same vocabulary; all score together.
        ensemble_average: What is averaged over them; as in the config of the run if not given.
        batch_tokens: Tokens of one side scored together; changes speed and memory only.
        checkpoint: Which checkpoint of the runs.
    """
    check_output(output)
    sources, targets = read_sentences((source,)), read_sentences((target,) if target else ())
    translator = load(run, checkpoint, ensemble=ensemble)
    with TranslationProgress("scoring", "scored") as progress:
        scored = translator.score(
            sources, targets, ensemble_average=ensemble_average, batch_tokens=batch_tokens, progress=progress
        )
    text = format_scores(sources, targets, scored, "json" if json else "tokens" if tokens else "sentences").encode()
    output.write_bytes(text) if output else sys.stdout.buffer.write(text)
    progress.say(score_note(scored))


if __name__ == "__main__":
    with report_errors():
        tyro.cli(main, description=__doc__)
