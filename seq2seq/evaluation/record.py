"""The result of one evaluation, and the files it is kept in.

They lie in runs/<name>/eval/, one set for each split:

    <split>.hypotheses.txt          one translation a line, in the order of the corpus
    <split>.sentences.jsonl         the same with source, reference and length (`Sentence`)
    <split>.<metric>_by_length.json the curve of the headline metric over source length
    <split>.<metric>_by_length.png  its figure
    <split>.metrics.json            everything (`Evaluation`); written last, so its presence means the others are whole

The headline metric is bleu, or token_accuracy for the corpus `reverse`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import cattrs

from seq2seq.config import DecodingConfig
from seq2seq.evaluation.scores import METRICS, Bucket, Scores
from seq2seq.plots import Curve, Point, plot_by_length

JOINED = ".joined-"
"""Between a part of the corpus and the numbers of verses joined, in the name of a split."""


@dataclass(frozen=True)
class CorpusFacts:
    """What was translated."""

    name: str
    pair: str
    sha256: str
    """Of the source and reference lines: equal for two runs scored on the same text."""
    longest_training_length: int
    """Length of the longest source sentence in training, counted as the buckets count."""

    @property
    def title(self) -> str:
        """The corpus and, where it has them, its languages."""
        return self.name if self.name == "reverse" else f"{self.name} {self.pair}"


@dataclass(frozen=True)
class Sample:
    """One translation to look at."""

    kind: str
    id: str
    source: str
    reference: str
    hypothesis: str


class Sentence(NamedTuple):
    """A sentence of the text with its translation; a line of <split>.sentences.jsonl."""

    id: str
    source: str
    reference: str
    hypothesis: str
    length: int
    """Of the source, as the buckets count."""
    finished: bool
    """Whether the translation ended in `</s>`."""


@dataclass(frozen=True)
class Evaluation:
    """One run scored on one split; the contents of <split>.metrics.json."""

    run: str
    split: str
    n: int
    corpus: CorpusFacts
    model: str
    parameters: int
    checkpoint: str
    step: int
    training_steps: int | None
    """Last step in metrics.jsonl when this was measured; None without that file."""
    training_minutes: float | None
    decoding: DecodingConfig
    scores: Scores
    seconds: float
    """Wall time of translation, compilation included."""
    sentences_per_second: float
    versions: dict[str, str]
    warnings: tuple[str, ...]
    samples: tuple[Sample, ...]

    @property
    def title(self) -> str:
        """What was translated, as a person reads it."""
        part, _, counts = self.split.partition(JOINED)
        passages = f", passages of {counts.replace('-', ', ')} verses" if counts else ""
        return f"{self.corpus.title}, {part}{passages}"


def evaluation_files(run_dir: str | Path, split: str, headline: str = "bleu") -> dict[str, Path]:
    """Paths of the files of one evaluation."""
    stem = f"{Path(run_dir) / 'eval' / split}"
    return {
        "hypotheses": Path(f"{stem}.hypotheses.txt"),
        "sentences": Path(f"{stem}.sentences.jsonl"),
        "curve": Path(f"{stem}.{headline}_by_length.json"),
        "figure": Path(f"{stem}.{headline}_by_length.png"),
        "metrics": Path(f"{stem}.metrics.json"),
    }


def load_evaluation(path: str | Path) -> Evaluation:
    """Read <split>.metrics.json.

    Raises:
        ValueError: the file is not one, or is of another version.
    """
    try:
        return _converter.structure(json.loads(Path(path).read_text(encoding="utf-8")), Evaluation)
    except (json.JSONDecodeError, cattrs.BaseValidationError) as error:
        raise ValueError(f"{path}: expected an evaluation as written by evaluate.py, got {type(error).__name__}") from error


def curve_of(evaluation: Evaluation, label: str) -> Curve:
    """The headline metric over source length."""
    return Curve(label, tuple(_point(bucket, evaluation.scores.headline) for bucket in evaluation.scores.buckets))


def read_metrics(run_dir: str | Path) -> list[dict[str, Any]]:
    """Lines of metrics.jsonl; none when there is no such file.

    A last line cut short by a kill is left out; training writes it again after resuming.
    """
    path = Path(run_dir) / "metrics.jsonl"
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    if lines[-1] == "":
        lines.pop()
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number < len(lines):
                raise ValueError(f"{path}: line {number}: expected JSON, got {line[:40]!r}") from error
    return records


def training_progress(run_dir: str | Path) -> tuple[int | None, float | None]:
    """Last step and minutes in metrics.jsonl, or (None, None)."""
    records = read_metrics(run_dir)
    return (max(r["step"] for r in records), max(r["minutes"] for r in records)) if records else (None, None)


def load_sentences(run_dir: str | Path, split: str) -> list[Sentence]:
    """The sentences of one evaluation, in the order of the corpus.

    Raises:
        ValueError: a line that is no sentence.
    """
    path = evaluation_files(run_dir, split)["sentences"]
    sentences = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n")[:-1], 1):
        try:
            sentences.append(Sentence(**json.loads(line)))
        except (json.JSONDecodeError, TypeError) as error:
            expected = f"an object with {', '.join(Sentence._fields)}"
            raise ValueError(f"{path}: line {number}: expected {expected}, got {line[:40]!r}") from error
    return sentences


def save_evaluation(evaluation: Evaluation, sentences: Sequence[Sentence], run_dir: str | Path) -> None:
    """Write the files listed above; `sentences` are in the order of the corpus."""
    scores, corpus = evaluation.scores, evaluation.corpus
    files = evaluation_files(run_dir, evaluation.split, scores.headline)
    files["metrics"].parent.mkdir(parents=True, exist_ok=True)
    files["metrics"].unlink(missing_ok=True)
    files["hypotheses"].write_text("".join(f"{each.hypothesis}\n" for each in sentences), encoding="utf-8")
    lines = (json.dumps(each._asdict(), ensure_ascii=False) for each in sentences)
    files["sentences"].write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    curve = curve_of(evaluation, evaluation.model)
    _write_json(
        files["curve"],
        {
            "metric": scores.headline,
            "signature": scores.signatures[scores.headline],
            "length_unit": scores.length_unit,
            "longest_training_length": corpus.longest_training_length,
            "min_bleu_sentences": scores.min_bleu_sentences,
            "points": [dataclasses.asdict(point) for point in curve.points],
        },
    )
    plot_by_length(
        files["figure"],
        [curve],
        metric=METRICS[scores.headline],
        title=f"{evaluation.run}: {evaluation.title}",
        length_unit=scores.length_unit,
        longest_training_length=corpus.longest_training_length,
        min_sentences=scores.min_bleu_sentences,
    )
    _write_json(files["metrics"], _converter.unstructure(evaluation))


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def _point(bucket: Bucket, metric: str) -> Point:
    scores = bucket.scores
    estimate = getattr(scores, metric)
    values = (estimate.value, estimate.low, estimate.high) if estimate else (None, None, None)
    return Point(bucket.label, scores.mean_source_length, scores.n, *values)


_converter = cattrs.Converter(forbid_extra_keys=True)
