"""Translate line for line, in order; a blank line stays blank:  python scripts/translate.py runs/x < in.txt > out.txt"""

import sys
from pathlib import Path
from typing import Literal

import tyro

from seq2seq.cli import report_errors
from seq2seq.corpora.cleaning import read_bytes, split_lines
from seq2seq.translation import load
from seq2seq.translation.output import TranslationProgress, check_output, format_results, unfinished_note, write_alignments


def main(
    run: tyro.conf.Positional[Path],
    input: Path | None = None,
    output: Path | None = None,
    beam_size: int | None = None,
    n_best: int = 1,
    length_penalty: Literal["gnmt", "power", "none"] | None = None,
    alpha: float | None = None,
    batch_tokens: int | None = None,
    attention: Path | None = None,
    attention_units: Literal["words", "pieces"] = "words",
    checkpoint: Literal["best", "latest"] = "best",
) -> None:
    """Arguments of the command line.

    Args:
        run: Folder of the run.
        input: UTF-8 text, one sentence a line; standard input if not given.
        output: Receives the translations; standard output if not given.
        beam_size: Hypotheses kept; 1 is greedy. What is not given is as in the config of the run.
        n_best: Above 1, that many lines for each line of input: `line ||| hypothesis ||| score`.
        length_penalty: Formula of the length penalty.
        alpha: Exponent of the length penalty.
        batch_tokens: Source tokens decoded together; changes speed and memory only.
        attention: Folder that receives, for each line, a heat map (.png) and its numbers (.json).
        attention_units: What its rows and columns are; pieces for text written without spaces.
        checkpoint: Which checkpoint of the run.
    """
    check_output(output)
    sentences = list(split_lines(read_bytes(input) if input else sys.stdin.buffer.read(), str(input or "standard input")))
    options = {"beam_size": beam_size, "n_best": n_best, "length_penalty": length_penalty, "alpha": alpha}
    options |= {"batch_tokens": batch_tokens, "with_weights": attention is not None}
    with TranslationProgress() as progress:
        results = load(run, checkpoint).translate(sentences, **options, progress=progress)
    text = format_results(results, n_best).encode()
    output.write_bytes(text) if output else sys.stdout.buffer.write(text)
    progress.say(unfinished_note(results))
    if attention:
        progress.say(f"wrote {write_alignments(attention, results, attention_units)} heat maps to {attention}")


if __name__ == "__main__":
    with report_errors():
        tyro.cli(main, description=__doc__)
