"""Translate line for line, in order; a blank line stays blank:  python scripts/translate.py runs/x < in.txt > out.txt"""

import dataclasses
import sys
from pathlib import Path
from typing import Literal

import tyro

from seq2seq.cli import report_errors
from seq2seq.translation import load
from seq2seq.translation import output as lines
from seq2seq.translation.options import DecodingOptions


def main(
    run: tyro.conf.Positional[Path],
    decoding: tyro.conf.OmitArgPrefixes[DecodingOptions] = DecodingOptions(),  # noqa: B008
    input: tuple[Path, ...] = (),
    output: Path | None = None,
    json: bool = False,
    prefix: Path | None = None,
    ensemble: tuple[Path, ...] = (),
    batch_tokens: int | None = None,
    attention: Path | None = None,
    attention_units: Literal["words", "pieces"] = "words",
    checkpoint: Literal["best", "latest", "average"] = "best",
) -> None:
    """Arguments of the command line.

    Args:
        run: Folder of the run.
        decoding: The search; what is not given is as in the config of the run.
        input: UTF-8 text, one sentence a line, of one file after the other; standard input if not given.
        output: Receives the translations; standard output if not given.
        json: One object a line: source, and of each hypothesis text, score, log_probability, tokens, finished.
        prefix: What each translation begins with, a line for each line of input.
        ensemble: Folders of further runs with the same vocabulary; all translate together.
        batch_tokens: Source tokens decoded together; changes speed and memory only.
        attention: Folder that receives, for each line, a heat map (.png) and its numbers (.json).
        attention_units: What its rows and columns are; pieces for text written without spaces.
        checkpoint: Which checkpoint of the runs.
    """
    lines.check_output(output)
    sentences, prefixes = lines.read_sentences(input), lines.read_sentences((prefix,)) if prefix else None
    translator = load(run, checkpoint, ensemble=ensemble)
    options = dataclasses.asdict(decoding) | {"batch_tokens": batch_tokens, "with_weights": attention is not None}
    with lines.TranslationProgress() as progress:
        results = translator.translate(sentences, prefixes=prefixes, progress=progress, **options)
    n_best = decoding.n_best or translator.run.config.decoding.n_best
    text = (lines.format_json(sentences, results) if json else lines.format_results(results, n_best)).encode()
    output.write_bytes(text) if output else sys.stdout.buffer.write(text)
    progress.say(lines.unfinished_note(results))
    if attention:
        progress.say(f"wrote {lines.write_alignments(attention, results, attention_units)} heat maps to {attention}")


if __name__ == "__main__":
    with report_errors():
        tyro.cli(main, description=__doc__)
