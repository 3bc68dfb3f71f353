"""The results of a benchmark of training as two tables, with what was left out."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from seq2seq.benchmarks.table import significant
from seq2seq.benchmarks.training_record import Decoding, Training, TrainingResults
from seq2seq.evaluation.tables import DASH, number, print_table, share

_WIDTH = 125
_TRAINING = ["config", "system", "parameters", "target tokens/s", "ours / it", "compile s", "programs / shapes", "peak MiB"]
_DECODING = [
    *("config", "system", "beam", "sentences/s", "ours / it", "compile s", "programs"),
    *("length", "not finished", "BLEU", "peak MiB"),
]


def print_results(console: Console, results: TrainingResults) -> None:
    """Training, then decoding, one line for each config and system; a ratio above 1 says that ours is faster."""

    def say(line: str) -> None:
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    settings = results.settings
    say(title(results))
    shown = "training, median of {turns} turns of {steps} steps".format(**settings)
    print_table(console, shown, _TRAINING, [_training_row(row) for row in results.training])
    if results.decoding:
        steps, turns = results.decoding[0].trained_steps, settings["decode_turns"]
        shown = f"translating {results.decoding[0].sentences:,} sentences after {steps} steps, median of {turns} turns"
        print_table(console, shown, _DECODING, [_decoding_row(row) for row in results.decoding])
    say("joeynmt-step: JoeyNMT's training step on our batches; joeynmt: as it is installed, with its own batches")
    say("ours / it: the median over turns of our rate divided by its rate in the same turn")
    say("programs / shapes: of the training step, and of the evaluation step; length: pieces of an output with </s>")
    say(f"left out: {len(results.left_out)}")
    for omission in results.left_out:
        say(f"  {omission.config} {omission.system}: {omission.reason}")


def title(results: TrainingResults) -> str:
    """What ran where."""
    place = results.environment
    versions = ", ".join(f"{name} {place[name]}" for name in ("jax", "flax", "joeynmt", "torch") if place.get(name))
    load = number(place.get("load_average"), 2)
    return f"{place.get('device', DASH)}, {place.get('cores', DASH)} cores, load average before {load}; {versions}"


def write_table(path: Path, results: TrainingResults) -> None:
    """table.txt."""
    with open(path, "w", encoding="utf-8") as file:
        print_results(Console(file=file, width=_WIDTH), results)


def _training_row(row: Training) -> list[str]:
    programs = DASH
    if row.compilations is not None and row.shapes is not None:
        programs = ", ".join(f"{row.compilations[kind]} / {row.shapes[kind]}" for kind in row.shapes)
    rates = [significant(row.tokens_per_second), number(row.to_ours, 2), number(row.compile_seconds, 1)]
    return [row.config, row.system, f"{row.parameters:,}", *rates, programs, significant(row.peak_bytes / 2**20)]


def _decoding_row(row: Decoding) -> list[str]:
    rates = [significant(row.sentences_per_second), number(row.to_ours, 2), number(row.compile_seconds, 1)]
    programs = DASH if row.compilations is None else str(row.compilations)
    quality = [number(row.mean_length), share(row.unfinished), number(row.bleu), significant(row.peak_bytes / 2**20)]
    return [row.config, row.system, str(row.beam_size), *rates, programs, *quality]
