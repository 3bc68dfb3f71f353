"""The results as a table, with what was left out."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from rich.console import Console

from seq2seq.benchmarks.case import KINDS
from seq2seq.benchmarks.record import Results
from seq2seq.evaluation.tables import DASH, number, print_table

_WIDTH = 125
_HEADER = ["case", "inputs", "n", "kind", "pass", "ms", "to jax.nn", "to torch", "temp MiB", "compile s"]


def print_results(console: Console, results: Results) -> None:
    """One line for each case, length, kind and pass; ratios are of times, less than 1 is faster than the other."""
    print_table(console, title(results), _HEADER, _rows(results))

    def say(line: str) -> None:
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    say("ms: median of the repeats; to jax.nn, to torch: the median of our time divided by theirs in the same repeat")
    say("temp: memory beside inputs and outputs")
    say(f"left out: {len(results.left_out)}")
    for line in left_out_lines(results):
        say(f"  {line}")


def title(results: Results) -> str:
    """What ran where."""
    place, settings = results.environment, results.settings
    versions = ", ".join(f"{name} {place[name]}" for name in ("jax", "flax", "torch") if place[name])
    return f"{place['device']}, {place['cores']} cores, {settings['dtype']}, {settings['repeats']} repeats; {versions}"


def write_table(path: Path, results: Results) -> None:
    """table.txt."""
    with open(path, "w", encoding="utf-8") as file:
        print_results(Console(file=file, width=_WIDTH), results)


def left_out_lines(results: Results) -> list[str]:
    """Each case with its reasons, those that differ in nothing but kind and pass on one line."""
    seen: dict[tuple[str, str, int, str], list[str]] = {}
    for omission in results.left_out:
        key = (omission.case, omission.inputs, omission.n, omission.reason)
        seen.setdefault(key, []).append(f"{omission.kind} {omission.of_pass}")
    lines = []
    for (case, of_inputs, n, reason), places in seen.items():
        where = f" n={n} {of_inputs} ({', '.join(Counter(places))})" if n else ""
        lines.append(f"{case}{where}: {reason}")
    return lines


def _rows(results: Results) -> list[list[str]]:
    ordered = sorted(results.measurements, key=lambda m: ("D=" in m.inputs, m.inputs, KINDS.index(m.kind), m.of_pass, m.n))
    return [
        [
            m.case,
            m.inputs,
            f"{m.n:,}",
            m.kind,
            m.of_pass,
            significant(1e3 * m.seconds),
            number(m.to_jax_nn, 2),
            number(m.to_torch, 2),
            significant(None if m.temporary_bytes is None else m.temporary_bytes / 2**20),
            number(m.compile_seconds, 1),
        ]
        for m in ordered
    ]


def significant(value: float | None) -> str:
    """Three digits, without an exponent.

    >>> significant(0.01234), significant(12.34), significant(123456.0), significant(None)
    ('0.0123', '12.3', '123,456', '–')
    """
    if value is None:
        return DASH
    digits = 0
    while value and abs(value) * 10**digits < 100 and digits < 4:
        digits += 1
    return f"{value:,.{digits}f}"
