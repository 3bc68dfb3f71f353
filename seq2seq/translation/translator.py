"""From text to text: a trained run that translates."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np
from flax import nnx

from seq2seq.batches import EncodedPair
from seq2seq.checkpoints import Run
from seq2seq.config import BatchConfig, ConfigError, DecodingConfig, RNNConfig, validate
from seq2seq.decoding import Ensemble
from seq2seq.tokenizer import EOS, UNK
from seq2seq.translation.decode import IdHypothesis, ProgressCall, TranslationError, decode_corpus
from seq2seq.translation.ensemble import load_runs
from seq2seq.translation.scoring import ScoredPair, score_pairs
from seq2seq.translation.unknown import replace_unknown, words_of_pieces


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


CHOICES = {key: get_args(kind) for key, kind in get_type_hints(DecodingConfig).items() if get_origin(kind) is Literal}
"""The names that a key of `DecodingConfig` may have, where it is a name."""

BLANK = Hypothesis("", [], 0.0, 0.0, None, [], True)
"""The translation of a blank sentence."""


class Translator:
    """A trained run, or an ensemble of runs, that translates: `load("runs/x").translate(["..."])[0][0].text`."""

    def __init__(self, run: Run):
        self.run = run

    def translate(
        self,
        sentences: Sequence[str],
        *,
        prefixes: Sequence[str] | None = None,
        batch_tokens: int | None = None,
        with_weights: bool = False,
        progress: ProgressCall | None = None,
        **decoding: Any,
    ) -> list[list[Hypothesis]]:
        """The n_best translations of each sentence, best first.

        Args:
            sentences: one string each; a blank one stays blank.
            prefixes: what each translation begins with; "" for nothing.
            batch_tokens: source tokens decoded together; changes speed and memory, never a translation.
            with_weights: give attention weights too.
            progress: called with the number of sentences done, 0 at first, and of all.
            **decoding: keys of `DecodingConfig`, such as beam_size=5; those not given, or None, are the run's own.

        Raises:
            ConfigError: an unknown key, or a value that cannot work.
            TranslationError: a sentence the model cannot read (lines count from 1), prefixes of another number, or attention
                asked of a model without any.
        """
        settings, batches = self._settings(decoding, batch_tokens)
        self._check(sentences, prefixes, settings, with_weights)
        tokenizers = self.run.tokenizers
        encoded = [tokenizers.source.encode(sentence) for sentence in sentences]
        numbers = [i for i, ids in enumerate(encoded, 1) if ids]
        decoded = decode_corpus(
            self._model(settings),
            [[*ids, EOS] for ids in encoded if ids],
            settings,
            batches,
            prefixes=None if prefixes is None else [tokenizers.target.encode(prefixes[number - 1]) for number in numbers],
            numbers=numbers,
            with_weights=with_weights or settings.replace_unknown,
            progress=progress,
        )
        results = [[BLANK] for _ in sentences]
        for number, found in zip(numbers, decoded, strict=True):
            sentence, pieces = sentences[number - 1], tokenizers.source.pieces([*encoded[number - 1], EOS])
            words = words_of_pieces(sentence, tokenizers.source) if settings.replace_unknown else None
            made = [self._hypothesis(hypothesis, pieces, words) for hypothesis in found]
            results[number - 1] = made if with_weights else [hypothesis._replace(weights=None) for hypothesis in made]
        return results

    def score(
        self,
        sentences: Sequence[str],
        translations: Sequence[str],
        *,
        ensemble_average: str | None = None,
        batch_tokens: int | None = None,
        progress: ProgressCall | None = None,
    ) -> list[ScoredPair]:
        """How likely the model finds each given translation; a blank side is `</s>` alone.

        Args:
            sentences: sources.
            translations: one of each; cut into pieces anew, which may be others than a search has produced.
            ensemble_average: what is averaged over the models of an ensemble, as in `DecodingConfig`.
            batch_tokens, progress: as for `translate`.

        Raises:
            ConfigError: a value that cannot work.
            TranslationError: sides of different number, or a sentence the model cannot read.
        """
        settings, batches = self._settings({"ensemble_average": ensemble_average}, batch_tokens)
        for name, given in (("sentences", sentences), ("translations", translations)):
            _check_list(name, given)
        if len(sentences) != len(translations):
            raise TranslationError(f"translations: expected one for each of {len(sentences)} sentences, got {len(translations)}")
        tokenizers = self.run.tokenizers
        pairs = [
            EncodedPair([*tokenizers.source.encode(source), EOS], [*tokenizers.target.encode(target), EOS])
            for source, target in zip(sentences, translations, strict=True)
        ]
        scored = score_pairs(self._model(settings), pairs, batches, progress=progress)
        return [
            ScoredPair(sum(log_probs), tokenizers.target.pieces(pair.target), log_probs)
            for pair, log_probs in zip(pairs, scored, strict=True)
        ]

    def _settings(self, given: dict[str, Any], tokens: int | None) -> tuple[DecodingConfig, BatchConfig]:
        config = self.run.config
        known = [field.name for field in dataclasses.fields(DecodingConfig)]
        for key in given:
            if key not in known:
                raise ConfigError(f"decoding.{key}", f"a known key (one of {', '.join(known)})", f"unknown key {key!r}")
        for key, options in CHOICES.items():
            if given.get(key) not in (None, *options):
                raise ConfigError(f"decoding.{key}", f"one of {', '.join(map(repr, options))}", repr(given[key]))
        decoding = dataclasses.replace(config.decoding, **{key: value for key, value in given.items() if value is not None})
        validate(dataclasses.replace(config, decoding=decoding))
        if tokens is not None and tokens < 1:
            raise ConfigError("batch_tokens", "an integer >= 1", tokens)
        return decoding, dataclasses.replace(config.batches, eval_tokens=tokens or config.batches.eval_tokens)

    def _model(self, decoding: DecodingConfig) -> nnx.Module:
        model = self.run.model
        return Ensemble(list(model.members), decoding.ensemble_average) if isinstance(model, Ensemble) else model

    def _check(
        self, sentences: Sequence[str], prefixes: Sequence[str] | None, decoding: DecodingConfig, with_weights: bool
    ) -> None:
        _check_list("sentences", sentences)
        if prefixes is not None:
            _check_list("prefixes", prefixes)
            if len(prefixes) != len(sentences):
                raise TranslationError(f"prefixes: expected one for each of {len(sentences)} sentences, got {len(prefixes)}")
        wanted = {
            "attention weights": with_weights,
            "decoding.replace_unknown": decoding.replace_unknown,
            "decoding.coverage_penalty": decoding.search == "beam" and decoding.coverage_penalty > 0,
        }
        for name, needed in wanted.items():
            if needed and not has_attention(self.run):
                raise TranslationError(
                    f"{name}: expected a run with attention, got model.attention = 'none' ({self.run.run_dir})"
                )

    def _hypothesis(self, found: IdHypothesis, source_pieces: list[str], words: list[str] | None) -> Hypothesis:
        target = self.run.tokenizers.target
        known = words is None or UNK not in found.ids
        text = target.decode(found.ids) if known else replace_unknown(found.ids, found.weights, words, target)
        pieces = target.pieces(found.ids)
        return Hypothesis(text, pieces, found.score, found.log_prob, found.weights, source_pieces, found.finished)


def load(run_dir: str | Path, checkpoint: str = "best", *, ensemble: Sequence[str | Path] = ()) -> Translator:
    """The translator of a run, or of several together.

    Args:
        run_dir: folder of the run.
        checkpoint: "best" or "latest".
        ensemble: folders of further runs with the same vocabulary.

    Raises:
        ConfigError, CheckpointError, TranslationError: as `load_runs`.
    """
    return Translator(load_runs([run_dir, *ensemble], checkpoint))


def has_attention(run: Run) -> bool:
    """Whether a step of the run's model, or of any member of its ensemble, returns attention weights."""
    models = run.model.members if isinstance(run.model, Ensemble) else [run.model]
    configs = [getattr(model, "config", None) for model in models]
    return any(not (isinstance(config, RNNConfig) and config.attention == "none") for config in configs)


def _check_list(name: str, texts: Sequence[str]) -> None:
    if isinstance(texts, str):
        raise TranslationError(f"{name}: expected a list of strings, got one string {texts[:40]!r}")
