"""Tables of evaluations: on the terminal (rich) and as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from seq2seq.evaluation.bootstrap import Estimate
from seq2seq.evaluation.record import Evaluation
from seq2seq.evaluation.scores import METRICS, SliceScores
from seq2seq.evaluation.significance import PairedTest

DASH = "–"
_PIPE_WIDTH = 120
_GAP = 2  # characters between columns
_METRIC_ORDER = ("token_accuracy", "bleu", "chrf")


def number(value: float | None, digits: int = 1) -> str:
    """`value` with `digits` decimals, a dash for None.

    >>> number(2.345, 2), number(None)
    ('2.35', '–')
    """
    return DASH if value is None else f"{value:.{digits}f}"


def share(value: float | None) -> str:
    """A share as a percentage, a dash for None."""
    return DASH if value is None else f"{100 * value:.1f} %"


def with_interval(estimate: Estimate | None) -> str:
    """Value and interval, a dash for None.

    >>> with_interval(Estimate(10.44, 9.5, 11.2)), with_interval(Estimate(3.0, None, None)), with_interval(None)
    ('10.4 [9.5, 11.2]', '3.0', '–')
    """
    if estimate is None:
        return DASH
    value = number(estimate.value)
    return value if estimate.low is None else f"{value} [{number(estimate.low)}, {number(estimate.high)}]"


def shown_metrics(evaluation: Evaluation) -> list[str]:
    """Metrics of the evaluation, headline first."""
    return [metric for metric in _METRIC_ORDER if metric in evaluation.scores.signatures]


def length_table(evaluation: Evaluation) -> tuple[list[str], list[list[str]]]:
    """(header, rows): one row for each length bucket that holds sentences, and one for all."""
    metrics = shown_metrics(evaluation)
    header = [
        f"source {evaluation.scores.length_unit}",
        "n",
        *(METRICS[m] for m in metrics),
        "length ratio",
        "empty",
        "not finished",
    ]

    def row(label: str, scores: SliceScores) -> list[str]:
        estimates = [with_interval(getattr(scores, metric)) for metric in metrics]
        ratio = number(scores.length_ratio, 2)
        return [label, str(scores.n), *estimates, ratio, share(scores.empty), share(scores.unfinished)]

    buckets = [bucket for bucket in evaluation.scores.buckets if bucket.scores.n]
    return header, [row(bucket.label, bucket.scores) for bucket in buckets] + [row("all", evaluation.scores.overall)]


def comparison_table(evaluations: Mapping[str, Evaluation]) -> tuple[list[str], list[list[str]]]:
    """(header, rows): one row for each run; the last columns hold the headline metric of each length bucket."""
    first = next(iter(evaluations.values()))
    headline, metrics = first.scores.headline, shown_metrics(first)
    buckets = [f"{METRICS[headline]} {b.label} (n={b.scores.n})" for b in first.scores.buckets if b.scores.n]
    header = [
        "model",
        "parameters",
        "steps trained",
        "minutes trained",
        "step scored",
        *(METRICS[m] for m in metrics),
        "length ratio",
        *buckets,
    ]
    rows = []
    for label, evaluation in evaluations.items():
        overall = evaluation.scores.overall
        steps = DASH if evaluation.training_steps is None else f"{evaluation.training_steps:,}"
        size = [f"{evaluation.parameters:,}", steps, number(evaluation.training_minutes), f"{evaluation.step:,}"]
        estimates = [with_interval(getattr(overall, metric)) for metric in metrics]
        curve = [with_interval(getattr(b.scores, headline)) for b in evaluation.scores.buckets if b.scores.n]
        rows.append([label, *size, *estimates, number(overall.length_ratio, 2), *curve])
    return header, rows


def significance_table(tests: Sequence[PairedTest], length_unit: str = "words") -> tuple[list[str], list[list[str]]]:
    """(header, rows): a row for each two runs and each set of sentences.

    >>> test = PairedTest("a", "b", "all", 50, Estimate(1.24, 0.4, 2.0), 0.0123)
    >>> significance_table([test])[1]
    [['a - b', 'all', '50', '+1.2 [0.4, 2.0]', '0.012']]
    """
    header = ["runs", f"source {length_unit}", "n", "difference", "p"]
    rows = []
    for test in tests:
        sign = "+" if test.difference.value >= 0 else ""
        difference = f"{sign}{with_interval(test.difference)}"
        rows.append([f"{test.first} - {test.second}", test.slice, str(test.n), difference, number(test.p_value, 3)])
    return header, rows


def transposed(header: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """The table on its side: one column for each row; for few runs and many columns.

    >>> transposed(["model", "n"], [["a", "1"], ["b", "2"]])
    (['model', 'a', 'b'], [['n', '1', '2']])
    """
    first, *others = [list(line) for line in zip(header, *rows, strict=True)]
    return first, others


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, numbers to the right.

    >>> print(markdown_table(["model", "n"], [["a|b", "1"]]))
    | model | n |
    |---|---:|
    | a\\|b | 1 |
    """
    lines = [header, *rows]
    rule = "|---|" + "---:|" * (len(header) - 1)
    text = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
    return "\n".join([text[0], rule, *text[1:]])


def result_console() -> Console:
    """Standard output as wide as the terminal, and wide enough for the tables in a file or a pipe."""
    console = Console()
    return console if console.is_terminal else Console(width=_PIPE_WIDTH)


def print_table(console: Console, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; cells are plain text, whatever brackets they hold.

    Where not all columns fit, it is printed in parts, each with the first column: headers and the first column may wrap, other
    cells are never cut or broken.
    """
    for number, widths in enumerate(_parts(header, rows, console.width)):
        table = Table(title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        table.title = None if number else title
        for index, width in widths.items():
            table.add_column(header[index], justify="right" if index else "left", overflow="fold", width=width)
        for row in rows:
            table.add_row(*(Text(row[index]) for index in widths))
        console.print(table)


def _parts(header: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[dict[int, int]]:
    """Columns of each part of a table in `width` characters, and how wide they are: the first, and as many others as fit.

    >>> _parts(["model", "a", "b", "long header"], [["x", "12345", "12345", "12345"]], 24)
    [{0: 5, 1: 5, 2: 5}, {0: 5, 3: 11}]
    """
    columns = [[cell, *(row[index] for row in rows)] for index, cell in enumerate(header)]
    longest = [max(map(cell_len, cells)) for cells in columns]
    # What may wrap takes at least its longest word, and the room that is left over.
    least = [
        max(cell_len(word) for n, cell in enumerate(cells) for word in (cell.split() or [""] if 0 in (n, index) else [cell]))
        for index, cells in enumerate(columns)
    ]
    parts = [{0: least[0]}]

    def taken(part: dict[int, int]) -> int:
        return sum(part.values()) + _GAP * len(part)

    for index in range(1, len(header)):
        if taken(parts[-1]) + least[index] + _GAP > width and len(parts[-1]) > 1:
            parts.append({0: least[0]})
        parts[-1][index] = least[index]
    for part in parts:
        for index in part:
            part[index] += max(min(longest[index] - part[index], width - taken(part)), 0)
    return parts


def print_evaluation(console: Console, evaluation: Evaluation) -> None:
    """The table by length, the signatures, and sample translations."""
    decoding = evaluation.decoding
    title = f"{evaluation.run}: {evaluation.title}, 95 % intervals"
    print_table(console, title, *length_table(evaluation))

    def say(text: str = "") -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    scores = evaluation.scores
    if any(bucket.scores.n and bucket.scores.bleu is None for bucket in scores.buckets):
        say(f"{DASH}: BLEU is not shown under {scores.min_bleu_sentences} sentences")
    for metric, signature in scores.signatures.items():
        say(f"{METRICS[metric]}: {signature}")
    say(
        f"{evaluation.model}, {evaluation.parameters:,} parameters, {evaluation.checkpoint} checkpoint, "
        f"step {evaluation.step}; beam {decoding.beam_size}, length penalty {decoding.length_penalty} (alpha {decoding.alpha}); "
        f"{evaluation.seconds:.1f} s, {evaluation.sentences_per_second:.1f} sentences/s"
    )
    for sample in evaluation.samples:
        say(f"\n{sample.kind} ({sample.id})")
        say(f"  source      {sample.source}\n  reference   {sample.reference}\n  hypothesis  {sample.hypothesis}")
