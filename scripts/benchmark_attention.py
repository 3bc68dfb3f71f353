"""Time and memory of every attention function beside jax.nn, Flax and, where it is installed, PyTorch.

    python scripts/benchmark_attention.py --lengths 256 1024 4096 --kinds full causal
    python scripts/benchmark_attention.py --check

With --check every implementation is compared with float64 NumPy instead and timed briefly; it ends within five minutes,
with status 1 if one of them is wrong.
"""

import sys

import tyro
from rich.console import Console

from seq2seq.benchmarks import check_attention, run_benchmark
from seq2seq.benchmarks.case import Sizes
from seq2seq.benchmarks.check import print_verdicts, succeeded
from seq2seq.benchmarks.options import Options
from seq2seq.benchmarks.run import LENGTHS
from seq2seq.benchmarks.table import print_results
from seq2seq.cli import report_errors
from seq2seq.evaluation.tables import result_console


def main(options: Options) -> int:
    console = Console(stderr=True)
    log = lambda line: console.print(line, highlight=False, markup=False, soft_wrap=True)  # noqa: E731
    shared = {"repeats": options.repeats, "memory_limit": options.memory_limit, "log": log}
    if options.check:
        sizes = {"heads": options.heads, "head_dim": options.head_dim}
        verdicts = check_attention(lengths=options.lengths, **sizes, **shared)
        print_verdicts(result_console(), verdicts)
        return 0 if succeeded(verdicts) else 1
    results = run_benchmark(
        options.out,
        lengths=options.lengths or LENGTHS,
        sizes=Sizes(0, options.batch, options.heads, options.head_dim, options.dtype),
        cases=options.cases,
        kinds=options.kinds,
        passes=options.passes,
        time_limit=options.time_limit_per_case,
        **shared,
    )
    print_results(result_console(), results)
    return 0


if __name__ == "__main__":
    with report_errors(benchmark=True):
        sys.exit(main(tyro.cli(Options, description=__doc__)))
