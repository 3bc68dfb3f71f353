"""The page: from a comparison to one HTML file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from seq2seq.evaluation import METRICS, Comparison, Evaluation, Sentence, load_sentences
from seq2seq.evaluation.record import read_metrics
from seq2seq.report.alignments import AttentionCall, Choice, choose_sentences, run_attention, sentence_name, viewer_data
from seq2seq.report.figures import legend, length_figure, training_figure
from seq2seq.report.tables import difference_table, length_table, overall_table, runs_table, versions_table

_FOLDER = Path(__file__).parent
_SAMPLES = ("short", "medium", "long")


def write_report(
    comparison: Comparison,
    folders: Sequence[str | Path],
    path: str | Path,
    *,
    attention: AttentionCall = run_attention,
    log: Callable[[str], Any] = print,
) -> Path:
    """Write the report of `comparison` as one HTML file that needs nothing else.

    The same input gives the same bytes.

    Args:
        comparison: as `compare_runs` returns it.
        folders: of its runs, in the same order.
        path: HTML to write.
        attention: called as attention(folder, checkpoint, sources, hypotheses), gives the attention of a run over its own
            translations, or None for a model without any.
        log: receives a line about each stage.

    Returns:
        `path`.

    Raises:
        ValueError: folders of another number than runs; what is there cannot be read.
    """
    path, folders = Path(path), [Path(folder) for folder in folders]
    if len(folders) != len(comparison.evaluations):
        raise ValueError(f"folders: expected one for each of {len(comparison.evaluations)} runs, got {len(folders)}")
    page = _template().render(_contents(comparison, folders, attention, log))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8", newline="\n")
    return path


def _template() -> jinja2.Template:
    """The template; what is undefined in it is an error, and what it shows is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    return environment.get_template("report.html.jinja")


def _contents(
    comparison: Comparison, folders: Sequence[Path], attention: AttentionCall, log: Callable[[str], Any]
) -> dict[str, Any]:
    evaluations = comparison.evaluations
    first = next(iter(evaluations.values()))
    records = {label: read_metrics(folder) for label, folder in zip(evaluations, folders, strict=True)}
    sentences = {
        label: load_sentences(folder, evaluation.split)
        for (label, evaluation), folder in zip(evaluations.items(), folders, strict=True)
    }
    text = next(iter(sentences.values()))
    choices = choose_sentences([each.length for each in text])
    source, target = ("", "") if first.corpus.name == "reverse" else first.corpus.pair.split("-")
    return {
        "first": first,
        "evaluations": evaluations,
        "source_language": source,
        "target_language": target,
        "runs": runs_table(evaluations, folders, records),
        "overall": overall_table(evaluations),
        "lengths": _lengths(evaluations),
        "differences": difference_table(comparison.tests, first.scores.headline, first.scores.length_unit),
        "training": training_figure(records),
        "training_legend": legend(records, "training"),
        "untold": [label for label, lines in records.items() if not lines],
        "samples": _samples(choices, sentences, first.scores.length_unit),
        "viewer": viewer_data(evaluations, folders, choices, sentences, attention, log),
        "configs": {label: _config(folder) for label, folder in zip(evaluations, folders, strict=True)},
        "versions": versions_table(evaluations),
        "signatures": {METRICS[metric]: signature for metric, signature in first.scores.signatures.items()},
        "notes": comparison.notes,
        "warnings": [(label, warning) for label, each in evaluations.items() for warning in each.warnings],
        "css": Markup((_FOLDER / "report.css").read_text(encoding="utf-8")),
        "script": Markup((_FOLDER / "report.js").read_text(encoding="utf-8")),
    }


def _lengths(evaluations: Mapping[str, Evaluation]) -> list[dict[str, Any]]:
    """The headline metric and chrF over source length."""
    metrics = dict.fromkeys((next(iter(evaluations.values())).scores.headline, "chrf"))
    return [
        {
            "name": METRICS[metric],
            "legend": legend(evaluations, metric),
            "figure": length_figure(evaluations, metric),
            "table": length_table(evaluations, metric),
        }
        for metric in metrics
    ]


def _samples(choices: Sequence[Choice], sentences: Mapping[str, Sequence[Sentence]], unit: str) -> list[dict[str, Any]]:
    text = next(iter(sentences.values()))
    return [
        {
            "name": sentence_name(choice, text[choice.index], unit),
            "source": text[choice.index].source,
            "reference": text[choice.index].reference,
            "hypotheses": {label: own[choice.index] for label, own in sentences.items()},
        }
        for choice in choices
        if choice.kind in _SAMPLES
    ]


def _config(folder: Path) -> str:
    path = folder / "config.toml"
    return path.read_text(encoding="utf-8") if path.is_file() else ""
