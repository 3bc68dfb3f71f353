"""What the alignment viewer shows: a few sentences, and the attention of every run over its own translations of them.

Weights travel as one byte each, 255 for 1, in the order layer, head, target word, source word.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from seq2seq.alignment import AlignmentError, ForcedPair, forced_attention
from seq2seq.alignment.weights import READINGS
from seq2seq.checkpoints import CheckpointError, load_run
from seq2seq.config import ConfigError
from seq2seq.evaluation import Evaluation, Sentence
from seq2seq.translation.translator import has_attention
from seq2seq.words import END

AttentionCall = Callable[[Path, str, Sequence[str], Sequence[str]], Iterable[ForcedPair] | None]
"""Called as attention(folder, checkpoint, sources, hypotheses); None for a model without attention."""

# by percentile of source length; the three that every table has come first, for texts of few sentences
_PERCENTILES = {"short": 10, "medium": 50, "long": 95, "shortest": 0, "rather short": 25, "rather long": 75, "longest": 100}
_MOST_BYTES = 1 << 20
"""Of one sentence, run and reading; beyond it the heads of a layer are given by their mean."""


class Choice(NamedTuple):
    """A sentence to look at."""

    kind: str
    index: int
    """In the order of the corpus."""


def run_attention(folder: Path, checkpoint: str, sources: Sequence[str], hypotheses: Sequence[str]) -> list[ForcedPair] | None:
    """The attention of a run over its own translations; None for a model without attention.

    Args:
        folder: of the run.
        checkpoint: best, latest or average.
        sources: one sentence each.
        hypotheses: a translation of each.

    Raises:
        AlignmentError: as `forced_attention`.
        CheckpointError, ConfigError: as `load_run`.
    """
    run = load_run(folder, checkpoint)
    return list(forced_attention(run, sources, hypotheses)) if has_attention(run) else None


def choose_sentences(lengths: Sequence[int]) -> list[Choice]:
    """Sentences from the shortest to the longest, by percentiles of their length; blank ones only if there are no others.

    >>> choose_sentences([5, 9, 0, 7])
    [Choice(kind='short', index=0), Choice(kind='medium', index=3), Choice(kind='long', index=1)]
    """
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
    order = [i for i in order if lengths[i]] or order
    kinds: dict[int, str] = {}
    for kind, percentile in _PERCENTILES.items():
        kinds.setdefault(order[(percentile * (len(order) - 1) + 50) // 100], kind)
    return [Choice(kinds[i], i) for i in order if i in kinds]


def viewer_data(
    evaluations: Mapping[str, Evaluation],
    folders: Sequence[Path],
    choices: Sequence[Choice],
    sentences: Mapping[str, Sequence[Sentence]],
    attention: AttentionCall,
    log: Callable[[str], Any],
) -> dict[str, Any]:
    """What report.js reads.

    Args:
        evaluations: by label.
        folders: of the runs, in the same order.
        choices: the sentences to show.
        sentences: by label, all of the text.
        attention: gives the weights, such as `run_attention`.
        log: receives a line about each run.
    """
    models = []
    for (label, evaluation), folder in zip(evaluations.items(), folders, strict=True):
        log(f"attention over {len(choices)} translations of {folder}")
        own = [sentences[label][choice.index] for choice in choices]
        models.append({"name": label, "pairs": _pairs(own, folder, evaluation.checkpoint, attention, log)})
    text = next(iter(sentences.values()))
    unit = next(iter(evaluations.values())).scores.length_unit
    shown = [{"name": sentence_name(c, text[c.index], unit), "source": [*text[c.index].source.split(), END]} for c in choices]
    return {"sentences": shown, "models": models}


def sentence_name(choice: Choice, sentence: Sentence, unit: str) -> str:
    """What a sentence is called.

    >>> sentence_name(Choice("short", 3), Sentence("Ruth.1.1", "a b", "", "", 2, True), "words")
    'Short: 2 words (Ruth.1.1)'
    """
    return f"{choice.kind.capitalize()}: {sentence.length} {unit} ({sentence.id})"


def _pairs(
    sentences: Sequence[Sentence], folder: Path, checkpoint: str, attention: AttentionCall, log: Callable[[str], Any]
) -> list[dict[str, Any]]:
    """Of one run: for each sentence the words of the translation with their weights, or the reason why there are none."""
    try:
        forced = attention(folder, checkpoint, [each.source for each in sentences], [each.hypothesis for each in sentences])
        reason = "This model has no attention: it reads the whole source as one vector."
    except (AlignmentError, CheckpointError, ConfigError, OSError) as error:  # a run can be compared without its checkpoint
        log(f"no attention weights in the report: {error}")
        forced, reason = (), f"No weights: {error}"
    found = {pair.number: pair for pair in forced or () if pair.steps.size}
    if forced:
        reason = "No weights: one side has no words."
    return [
        {"target": sentence.hypothesis.split()} | (_weights(found[number]) if number in found else {"reason": reason})
        for number, sentence in enumerate(sentences, 1)
    ]


def _weights(pair: ForcedPair) -> dict[str, Any]:
    readings = {reading: pair.weights(reading) for reading in READINGS}
    layers, heads = readings["naive"].shape[:2]
    merged = heads > 1 and readings["naive"].size > _MOST_BYTES
    if merged:
        readings = {reading: weights.mean(1, keepdims=True) for reading, weights in readings.items()}
    shape = {"layers": layers, "heads": 1 if merged else heads, "merged": heads if merged else 0}
    return shape | {reading: encoded(weights) for reading, weights in readings.items()}


def encoded(weights: Float[np.ndarray, "*axes"]) -> str:
    """Weights as base64 of one byte each.

    >>> encoded(np.array([0.0, 0.5, 1.0])), list(base64.b64decode("AID/"))
    ('AID/', [0, 128, 255])
    """
    return base64.b64encode(np.rint(255 * np.clip(weights, 0, 1)).astype(np.uint8).tobytes()).decode()
