"""From text to text: a trained run that translates."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from seq2seq.checkpoints import Run, load_run
from seq2seq.config import BatchConfig, ConfigError, DecodingConfig, RNNConfig, validate
from seq2seq.tokenizer import EOS
from seq2seq.translation.decode import IdHypothesis, ProgressCall, TranslationError, check_lengths, decode_corpus, position_limit


class Hypothesis(NamedTuple):
    """One translation of one sentence."""

    text: str
    pieces: list[str]
    """What was produced, `</s>` included if it is finished."""
    score: float
    """log_prob divided by the length penalty."""
    log_prob: float
    weights: np.ndarray | None
    """[T S]: produced pieces by source pieces; None unless asked for."""
    source_pieces: list[str]
    """What was read, `</s>` included."""
    finished: bool
    """False where the limit of length ended it."""


BLANK = Hypothesis("", [], 0.0, 0.0, None, [], True)
"""The translation of a blank sentence."""


class Translator:
    """A trained run that translates: `load("runs/x").translate(["..."])[0][0].text`."""

    def __init__(self, run: Run):
        self.run = run

    def translate(
        self,
        sentences: Sequence[str],
        *,
        beam_size: int | None = None,
        n_best: int | None = None,
        length_penalty: str | None = None,
        alpha: float | None = None,
        batch_tokens: int | None = None,
        with_weights: bool = False,
        progress: ProgressCall | None = None,
    ) -> list[list[Hypothesis]]:
        """The n_best translations of each sentence, best first; values not given are those of the run's config.

        Args:
            batch_tokens: source tokens decoded together; changes speed and memory, never a translation.
            with_weights: give attention weights too.

        Raises:
            ConfigError: a value that cannot work.
            TranslationError: a sentence the model cannot read (lines count from 1), or weights of a model without attention.
        """
        given = {"beam_size": beam_size, "n_best": n_best, "length_penalty": length_penalty, "alpha": alpha}
        decoding, batches = self._settings(given, batch_tokens)
        self._check(sentences, with_weights)
        encoded = [self.run.tokenizers.source.encode(sentence) for sentence in sentences]
        numbers = [i for i, ids in enumerate(encoded, 1) if ids]
        sources = [[*ids, EOS] for ids in encoded if ids]
        check_lengths(sources, numbers, position_limit(self.run.model))
        decoded = decode_corpus(self.run.model, sources, decoding, batches, with_weights=with_weights, progress=progress)
        results = [[BLANK] for _ in sentences]
        for number, source, found in zip(numbers, sources, decoded, strict=True):
            pieces = self.run.tokenizers.source.pieces(source)
            results[number - 1] = [self._hypothesis(hypothesis, pieces) for hypothesis in found]
        return results

    def _settings(self, given: dict[str, int | float | str | None], tokens: int | None) -> tuple[DecodingConfig, BatchConfig]:
        config = self.run.config
        changed = {key: value for key, value in given.items() if value is not None}
        decoding = dataclasses.replace(config.decoding, **changed)
        validate(dataclasses.replace(config, decoding=decoding))
        if tokens is not None and tokens < 1:
            raise ConfigError("batch_tokens", "an integer >= 1", tokens)
        return decoding, dataclasses.replace(config.batches, eval_tokens=tokens or config.batches.eval_tokens)

    def _check(self, sentences: Sequence[str], with_weights: bool) -> None:
        if isinstance(sentences, str):
            raise TranslationError(f"sentences: expected a list of strings, got one string {sentences[:40]!r}")
        model = self.run.config.model
        if with_weights and isinstance(model, RNNConfig) and model.attention == "none":
            raise TranslationError(
                f"attention weights: expected a run with attention, got model.attention = 'none' ({self.run.run_dir})"
            )

    def _hypothesis(self, found: IdHypothesis, source_pieces: list[str]) -> Hypothesis:
        target = self.run.tokenizers.target
        text, pieces = target.decode(found.ids), target.pieces(found.ids)
        return Hypothesis(text, pieces, found.score, found.log_prob, found.weights, source_pieces, found.finished)


def load(run_dir: str | Path, checkpoint: str = "best") -> Translator:
    """The translator of a run, at its "best" or "latest" checkpoint; errors as `checkpoints.load_run`."""
    return Translator(load_run(run_dir, checkpoint))
