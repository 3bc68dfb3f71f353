"""Tables of the report: text in rows and columns, which the page draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from seq2seq.evaluation import METRICS, Estimate, Evaluation, PairedTest
from seq2seq.evaluation.tables import DASH, number, share, shown_metrics, with_interval


class Table(NamedTuple):
    """Each row begins with its own heading."""

    caption: str
    header: list[str]
    rows: list[list[Any]]
    """Text; in `difference_table` the other cells are of `Difference`, or None."""
    words: tuple[str, ...] = ()
    """Columns of words rather than numbers."""


class Difference(NamedTuple):
    """A cell of the paired tests."""

    value: str
    interval: str
    p_value: str
    better: str
    """first or second, if the interval does not hold 0; else empty."""


def runs_table(
    evaluations: Mapping[str, Evaluation], folders: Sequence[Path], records: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Table:
    """What was compared."""
    header = ["model", "run", "parameters", "steps", "minutes", "target tokens", "step scored", "checkpoint", "decoding"]
    rows = []
    for (label, evaluation), folder in zip(evaluations.items(), folders, strict=True):
        trained = [_count(evaluation.training_steps), number(evaluation.training_minutes), _count(trained_tokens(records[label]))]
        scored = [_count(evaluation.step), evaluation.checkpoint, decoding_text(evaluation)]
        rows.append([label, folder.resolve().name, _count(evaluation.parameters), *trained, *scored])
    return Table("The runs, and how long they were trained", header, rows, ("run", "checkpoint", "decoding"))


def trained_tokens(records: Sequence[Mapping[str, Any]]) -> int | None:
    """Target tokens of all steps that metrics.jsonl tells of; None where it tells of none.

    >>> trained_tokens([{"kind": "train", "tokens": 50}, {"kind": "dev"}, {"kind": "train", "tokens": 60}]), trained_tokens([])
    (110, None)
    """
    counts = [record["tokens"] for record in records if record.get("kind") == "train" and "tokens" in record]
    return sum(counts) if counts else None


def decoding_text(evaluation: Evaluation) -> str:
    """How the text was translated."""
    settings = evaluation.decoding
    return f"beam {settings.beam_size}, length penalty {settings.length_penalty} (alpha {settings.alpha})"


def overall_table(evaluations: Mapping[str, Evaluation]) -> Table:
    """Every run on all sentences."""
    first = next(iter(evaluations.values()))
    metrics = shown_metrics(first)
    rows = []
    for label, evaluation in evaluations.items():
        overall = evaluation.scores.overall
        estimates = [with_interval(getattr(overall, metric)) for metric in metrics]
        rows.append([label, *estimates, number(overall.length_ratio, 2), share(overall.empty), share(overall.unfinished)])
    header = ["model", *(METRICS[metric] for metric in metrics), "length ratio", "empty", "not finished"]
    return Table("Scores of all sentences, with 95 % intervals", header, rows)


def length_table(evaluations: Mapping[str, Evaluation], metric: str) -> Table:
    """`metric` of every run, one row for each bucket of source lengths that holds sentences."""
    first = next(iter(evaluations.values())).scores
    rows = []
    for index, bucket in enumerate(first.buckets):
        if bucket.scores.n:
            own = [getattr(evaluation.scores.buckets[index].scores, metric) for evaluation in evaluations.values()]
            rows.append([bucket.label, _count(bucket.scores.n), *map(with_interval, own)])
    every = [with_interval(getattr(evaluation.scores.overall, metric)) for evaluation in evaluations.values()]
    rows.append(["all", _count(first.overall.n), *every])
    caption = f"{METRICS[metric]} by source length, with 95 % intervals"
    return Table(caption, [f"source {first.length_unit}", "n", *evaluations], rows)


def difference_table(tests: Sequence[PairedTest], metric: str, length_unit: str) -> Table:
    """One row for all sentences and each bucket, one column for each two runs."""
    found = {(test.first, test.second, test.slice): test for test in tests}
    pairs = list(dict.fromkeys((test.first, test.second) for test in tests))
    rows = []
    for name, n in {test.slice: test.n for test in tests}.items():
        cells = [difference(found[a, b, name]) for a, b in pairs]
        rows.append([name, _count(n), *cells])
    caption = f"Differences of {METRICS[metric]}, with 95 % intervals and p-values"
    return Table(caption, [f"source {length_unit}", "n", *(f"{a} − {b}" for a, b in pairs)], rows)


def difference(test: PairedTest) -> Difference:
    """What a paired test says, with real minus signs.

    >>> difference(PairedTest("a", "b", "all", 50, Estimate(-1.24, -2.0, -0.4), 0.0123))
    Difference(value='−1.2', interval='[−2.0, −0.4]', p_value='p = 0.012', better='second')
    """
    estimate: Estimate = test.difference
    low, high = estimate.low, estimate.high
    value = f"{estimate.value:+.1f}".replace("-", "−")
    if low is None or high is None:
        return Difference(value, "", "", "")
    better = "first" if low > 0 else "second" if high < 0 else ""
    p_value = "" if test.p_value is None else f"p = {test.p_value:.3f}"
    return Difference(value, f"[{low:.1f}, {high:.1f}]".replace("-", "−"), p_value, better)


def versions_table(evaluations: Mapping[str, Evaluation]) -> Table:
    """The versions that each run was scored with."""
    names = list(dict.fromkeys(name for evaluation in evaluations.values() for name in evaluation.versions))
    rows = [[label, *(evaluation.versions.get(name, DASH) for name in names)] for label, evaluation in evaluations.items()]
    return Table("Versions that the runs were scored with", ["model", *names], rows)


def _count(value: int | None) -> str:
    return DASH if value is None else f"{value:,}"
