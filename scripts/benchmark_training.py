"""Training and decoding speed, compilations and memory of configs, beside JoeyNMT with the equal config where it is installed.

    python scripts/benchmark_training.py --joeynmt ../joeynmt/bin/python
    python scripts/benchmark_training.py configs/benchmark/transformer.toml --steps 3 --sentences 50 --train-steps 20

Every system is a process of its own, and they take turns: ours, JoeyNMT's step on our batches, JoeyNMT as it is installed.
"""

import sys

import tyro
from rich.console import Console

from seq2seq.benchmarks.training import Plan, run_training_benchmark
from seq2seq.benchmarks.training_options import Options
from seq2seq.benchmarks.training_table import print_results
from seq2seq.cli import report_errors
from seq2seq.evaluation.tables import result_console


def main(options: Options) -> int:
    console = Console(stderr=True)
    plan = Plan(
        turns=options.turns,
        steps=options.steps,
        train_steps=options.train_steps,
        decode_turns=options.decode_turns,
        beam=options.beam,
        sentences=options.sentences,
    )
    results = run_training_benchmark(
        options.out,
        options.configs,
        plan=plan,
        joeynmt=options.joeynmt,
        data_dir=options.data_dir,
        log=lambda line: console.print(line, highlight=False, markup=False, soft_wrap=True),
    )
    print_results(result_console(), results)
    return 0


if __name__ == "__main__":
    with report_errors(benchmark=True):
        sys.exit(main(tyro.cli(Options, description=__doc__)))
