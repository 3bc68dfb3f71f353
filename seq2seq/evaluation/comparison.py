"""Comparison of runs scored on the same text: one table, one figure of scores over length, one of training.

`compare_runs` writes into its output folder:

    compare.json                      every evaluation, by label, and the paired tests
    compare.md                        the table, the paired tests and the signatures
    <metric>_by_length.png            all curves over source length
    training_curves.png               dev loss and dev scores against steps and minutes
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cattrs

from seq2seq.config import ConfigError, EvaluationConfig
from seq2seq.evaluation.record import (
    Evaluation,
    curve_of,
    evaluation_files,
    load_evaluation,
    load_sentences,
    read_metrics,
    training_progress,
)
from seq2seq.evaluation.run import evaluate_run, split_name
from seq2seq.evaluation.scores import METRICS
from seq2seq.evaluation.significance import PairedTest, paired_tests
from seq2seq.evaluation.tables import comparison_table, markdown_table, significance_table, transposed
from seq2seq.plots import plot_by_length, plot_training_curves


@dataclass(frozen=True)
class Comparison:
    """What `compare_runs` returns."""

    evaluations: dict[str, Evaluation]
    """By label: the kind of model, with the name of the run where kinds repeat."""
    tests: tuple[PairedTest, ...]
    """Every two runs by the headline metric, overall and in each bucket."""
    files: dict[str, Path]
    notes: tuple[str, ...]
    """Differences between the runs other than the model."""


def compare_runs(
    run_dirs: Sequence[str | Path],
    out: str | Path,
    split: str = "test",
    *,
    join: Sequence[int] = (),
    log: Callable[[str], Any] = print,
    evaluate: Callable[..., Evaluation] = evaluate_run,
) -> Comparison:
    """Compare runs on `split`; a run that has no evaluation, or was trained further since, is evaluated first.

    Args:
        run_dirs: folders of the runs.
        out: folder that receives the files.
        split: train, dev or test.
        join: passages instead of the sentences of the split, as for `evaluate_run`.
        log: receives a line about each stage.
        evaluate: called as evaluate(run_dir, split, join=join, log=log).

    Raises:
        ValueError: the same run twice, or runs scored on different text or in different buckets; both are named.
    """
    folders = [Path(folder) for folder in run_dirs]
    _check_folders(folders)
    evaluations = [_evaluation_of(folder, split, join, evaluate, log) for folder in folders]
    for folder, evaluation in zip(folders[1:], evaluations[1:], strict=True):
        _check_comparable(folders[0], evaluations[0], folder, evaluation)
    labelled = dict(zip(_labels(evaluations, folders), evaluations, strict=True))
    log("paired tests")
    tests = _paired_tests(labelled, folders)
    files = _write(labelled, tests, folders, Path(out))
    return Comparison(labelled, tests, files, tuple(_notes(labelled)))


def _paired_tests(evaluations: Mapping[str, Evaluation], folders: Sequence[Path]) -> tuple[PairedTest, ...]:
    sentences = {
        label: load_sentences(folder, evaluation.split)
        for (label, evaluation), folder in zip(evaluations.items(), folders, strict=True)
    }
    first = next(iter(evaluations.values()))
    text = next(iter(sentences.values()))
    edges = tuple(bucket.high for bucket in first.scores.buckets if bucket.high is not None)
    config = EvaluationConfig(
        edges, bootstrap_samples=first.scores.bootstrap_samples, min_bleu_sentences=first.scores.min_bleu_sentences
    )
    return paired_tests(
        {label: [each.hypothesis for each in own] for label, own in sentences.items()},
        [each.reference for each in text],
        [each.length for each in text],
        config,
        metric=first.scores.headline,
        target_language=first.corpus.pair.split("-")[-1],
        seed=first.scores.bootstrap_seed,
    )


def _check_folders(folders: Sequence[Path]) -> None:
    if not folders:
        raise ConfigError("runs", "at least one run folder", "none")
    for folder, count in Counter(folder.resolve() for folder in folders).items():
        if count > 1:
            raise ConfigError("runs", "different run folders", f"{folder} {count} times")
    for folder in folders:
        if not (folder / "config.toml").is_file():
            raise ConfigError("run", "a run folder with config.toml (made by scripts/train.py)", "none", folder)


def _evaluation_of(
    folder: Path, split: str, join: Sequence[int], evaluate: Callable[..., Evaluation], log: Callable[[str], Any]
) -> Evaluation:
    text = split_name(split, join)
    path = evaluation_files(folder, text)["metrics"]
    if not path.is_file() or not evaluation_files(folder, text)["sentences"].is_file():
        log(f"{folder}: no evaluation of {text} yet")
        return evaluate(folder, split, join=join, log=log)
    evaluation = load_evaluation(path)
    steps, _ = training_progress(folder)
    if steps != evaluation.training_steps:
        log(f"{folder}: evaluated after {evaluation.training_steps} steps of training, now there are {steps}: evaluating again")
        return evaluate(folder, split, join=join, log=log)
    log(f"{folder}: using {path}")
    return evaluation


def _check_comparable(first_folder: Path, first: Evaluation, folder: Path, evaluation: Evaluation) -> None:
    for what, key in (("corpus", _corpus), ("text", _text), ("length buckets", _buckets)):
        if key(first) != key(evaluation):
            raise ValueError(f"runs on a different {what}: {first_folder} has {key(first)}, {folder} has {key(evaluation)}")


def _corpus(evaluation: Evaluation) -> str:
    return f"{evaluation.corpus.title} {evaluation.split}"


def _text(evaluation: Evaluation) -> str:
    return f"{evaluation.n} sentences of {_corpus(evaluation)} (sha256 {evaluation.corpus.sha256[:12]})"


def _buckets(evaluation: Evaluation) -> str:
    return ", ".join(bucket.label for bucket in evaluation.scores.buckets)


def _labels(evaluations: Sequence[Evaluation], folders: Sequence[Path]) -> list[str]:
    """The kind of model where that tells the runs apart, else with as much of the path as does."""
    models = tell_positions([evaluation.model for evaluation in evaluations])
    kinds = Counter(models)
    names = Counter(folder.resolve().name for folder in folders)
    labels = []
    for model, folder in zip(models, folders, strict=True):
        name = folder.resolve().name if names[folder.resolve().name] == 1 else str(folder)
        labels.append(model if kinds[model] == 1 else f"{model} ({name})")
    return labels


def tell_positions(models: Sequence[str]) -> list[str]:
    """The paper's positions are named too where they stand beside others.

    >>> tell_positions(["RNN, no attention", "Transformer"]), tell_positions(["Transformer", "Transformer, rope positions"])
    (['RNN, no attention', 'Transformer'], ['Transformer, sinusoidal positions', 'Transformer, rope positions'])
    """
    if not any(model.startswith("Transformer, ") for model in models):
        return list(models)
    return ["Transformer, sinusoidal positions" if model == "Transformer" else model for model in models]


def _notes(evaluations: Mapping[str, Evaluation]) -> list[str]:
    """What else differs, so that nobody takes it for an effect of the model."""
    facts: dict[str, dict[str, str]] = {
        "decoding": {label: _decoding(e) for label, e in evaluations.items()},
        "longest training length": {label: str(e.corpus.longest_training_length) for label, e in evaluations.items()},
        "checkpoint": {label: e.checkpoint for label, e in evaluations.items()},
        "signatures": {label: "; ".join(e.scores.signatures.values()) for label, e in evaluations.items()},
    }
    differing = [(name, values) for name, values in facts.items() if len(set(values.values())) > 1]
    return [f"{name} differs: " + "; ".join(f"{label}: {value}" for label, value in values.items()) for name, values in differing]


def _decoding(evaluation: Evaluation) -> str:
    settings = evaluation.decoding
    return f"beam {settings.beam_size}, length penalty {settings.length_penalty} (alpha {settings.alpha})"


def _write(
    evaluations: Mapping[str, Evaluation], tests: Sequence[PairedTest], folders: Sequence[Path], out: Path
) -> dict[str, Path]:
    first = next(iter(evaluations.values()))
    scores, corpus = first.scores, first.corpus
    files = {
        "table": out / "compare.md",
        "figure": out / f"{scores.headline}_by_length.png",
        "training": out / "training_curves.png",
        "json": out / "compare.json",
    }
    out.mkdir(parents=True, exist_ok=True)
    title = first.title
    files["table"].write_text(_markdown(evaluations, tests, title), encoding="utf-8")
    plot_by_length(
        files["figure"],
        [curve_of(evaluation, label) for label, evaluation in evaluations.items()],
        metric=METRICS[scores.headline],
        title=title,
        length_unit=scores.length_unit,
        longest_training_length=max(e.corpus.longest_training_length for e in evaluations.values()),
        min_sentences=scores.min_bleu_sentences,
    )
    records = {label: read_metrics(folder) for label, folder in zip(evaluations, folders, strict=True)}
    plot_training_curves(files["training"], records, title=f"{corpus.title}, training")
    values = cattrs.Converter().unstructure({"evaluations": dict(evaluations), "tests": tests})
    files["json"].write_text(json.dumps(values, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    return files


def _markdown(evaluations: Mapping[str, Evaluation], tests: Sequence[PairedTest], title: str) -> str:
    first = next(iter(evaluations.values()))
    scores = first.scores
    lines = [
        f"# {title}",
        "",
        markdown_table(*transposed(*comparison_table(evaluations))),
        "",
        f"{first.n} sentences; columns are runs; brackets hold 95 % intervals (percentile bootstrap, "
        f"{scores.bootstrap_samples} resamples). A dash: BLEU is not shown under {scores.min_bleu_sentences} sentences.",
        "",
        *_markdown_tests(tests, first),
        *(f"- {METRICS[metric]}: `{signature}`" for metric, signature in scores.signatures.items()),
        f"- decoding: {_decoding(first)}",
        *(f"- {note}" for note in _notes(evaluations)),
    ]
    return "\n".join(lines) + "\n"


def _markdown_tests(tests: Sequence[PairedTest], first: Evaluation) -> list[str]:
    if not tests:
        return []
    scores = first.scores
    return [
        markdown_table(*significance_table(tests, scores.length_unit)),
        "",
        f"Differences of {METRICS[scores.headline]} on the same sentences; 95 % intervals and p-values of a paired bootstrap "
        f"({scores.bootstrap_samples} resamples). The p-values are not corrected for their number.",
        "",
    ]
