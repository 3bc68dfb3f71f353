"""What each value of a config must satisfy, beyond its type."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from seq2seq.config.models import RNNConfig, TransformerConfig
from seq2seq.config.schema import Config, ConfigError, DecodingConfig, TokenizerConfig


def validate(config: Config, file: str | Path | None = None) -> Config:
    """Return `config`, or raise a ConfigError for the first value that cannot work."""
    for key, expected, ok in _requirements(config):
        if not ok:
            raise ConfigError(key, expected, _get_dotted(config, key), file)
    return config


def _requirements(config: Config) -> Iterator[tuple[str, str, bool]]:
    """(key, what is expected, whether it holds) for every value that has bounds."""
    c, b, o, t, d, e = config.corpus, config.batches, config.optimizer, config.training, config.decoding, config.evaluation
    languages = c.pair.split("-")
    yield "seed", "an integer >= 0", config.seed >= 0
    yield "corpus.pair", "source-target, as in en-fr", len(languages) == 2 and all(languages) and languages[0] != languages[1]
    yield "corpus.held_out", "an integer >= 1", c.held_out >= 1
    files = {"parallel": 2, "tsv": 1}.get(c.name)
    for key, given in (("train", c.train), ("dev", c.dev), ("test", c.test)):
        if files is None:
            yield f"corpus.{key}", f"no files (the recipe {c.name!r} has its own)", not given
        else:
            yield (
                f"corpus.{key}",
                f"{files} file(s) for the recipe {c.name!r}",
                len(given) == files or (key != "train" and not given),
            )
    yield "corpus.num_symbols", "an integer from 2 to 26", 2 <= c.num_symbols <= 26
    yield "corpus.train_pairs", "an integer >= 1", c.train_pairs >= 1
    yield "corpus.min_symbols", f"1 <= min_symbols <= max_symbols = {c.max_symbols}", 1 <= c.min_symbols <= c.max_symbols
    yield "corpus.max_test_symbols", f"at least max_symbols = {c.max_symbols}", c.max_test_symbols >= c.max_symbols
    yield "tokenizer.vocab_size", "an integer >= 5 (four special ids and one piece)", config.tokenizer.vocab_size >= 5
    yield "tokenizer.character_coverage", "a number in (0.9, 1]", 0.9 < config.tokenizer.character_coverage <= 1
    yield "batches.lengths", "increasing integers >= 2", bool(b.lengths) and b.lengths[0] >= 2 and _increasing(b.lengths)
    yield "batches.tokens", "at least the longest bucket length", bool(b.lengths) and b.tokens >= b.lengths[-1]
    yield "batches.eval_tokens", "at least the longest bucket length", bool(b.lengths) and b.eval_tokens >= b.lengths[-1]
    yield from _model_requirements(config.model, config.tokenizer)
    yield "optimizer.learning_rate", "a number > 0", o.learning_rate > 0
    yield "optimizer.warmup_steps", "an integer >= 0", o.warmup_steps >= 0
    if o.schedule in ("cosine", "linear"):
        yield (
            "optimizer.warmup_steps",
            f"fewer than training.max_steps = {t.max_steps} under {o.schedule}",
            o.warmup_steps < t.max_steps,
        )
    for key in ("beta1", "beta2"):
        yield f"optimizer.{key}", "a number in [0, 1)", 0 <= getattr(o, key) < 1
    yield "optimizer.epsilon", "a number > 0", o.epsilon > 0
    yield "optimizer.weight_decay", "a number >= 0", o.weight_decay >= 0
    yield "optimizer.clip_norm", "a number >= 0", o.clip_norm >= 0
    for key in ("max_steps", "eval_every", "checkpoint_every", "log_every"):
        yield f"training.{key}", "an integer >= 1", getattr(t, key) >= 1
    for key in ("accumulate", "keep_checkpoints"):
        yield f"training.{key}", "an integer >= 1", getattr(t, key) >= 1
    yield "training.ema_decay", "a number in [0, 1)", 0 <= t.ema_decay < 1
    yield "optimizer.plateau_factor", "a number in (0, 1)", 0 < o.plateau_factor < 1
    yield "optimizer.plateau_patience", "an integer >= 1", o.plateau_patience >= 1
    yield "training.max_minutes", "a number >= 0", t.max_minutes >= 0
    yield "training.label_smoothing", "a number in [0, 1)", 0 <= t.label_smoothing < 1
    yield "training.dev_bleu_sentences", "an integer >= 0", t.dev_bleu_sentences >= 0
    if t.metric == "dev_bleu":
        yield "training.dev_bleu_sentences", "an integer >= 1 when training.metric is dev_bleu", t.dev_bleu_sentences >= 1
    yield "training.patience", "an integer >= 0", t.patience >= 0
    yield from _decoding_requirements(d)
    for key in ("edges", "passage_edges"):
        edges = getattr(e, key)
        yield f"evaluation.{key}", "increasing integers >= 1", bool(edges) and edges[0] >= 1 and _increasing(edges)
    yield "evaluation.bootstrap_samples", "an integer >= 100", e.bootstrap_samples >= 100
    yield "evaluation.min_bleu_sentences", "an integer >= 1", e.min_bleu_sentences >= 1


def _decoding_requirements(decoding: DecodingConfig) -> Iterator[tuple[str, str, bool]]:
    d = decoding
    yield "decoding.beam_size", "an integer from 1 to 50", 1 <= d.beam_size <= 50
    if d.search == "beam":
        yield "decoding.n_best", f"1 <= n_best <= beam_size = {d.beam_size}", 1 <= d.n_best <= d.beam_size
    yield "decoding.n_best", "an integer >= 1", d.n_best >= 1
    yield "decoding.alpha", "a finite number", math.isfinite(d.alpha)
    yield "decoding.coverage_penalty", "a finite number >= 0", 0 <= d.coverage_penalty < math.inf
    yield "decoding.patience", "a finite number >= 0", 0 <= d.patience < math.inf
    yield "decoding.max_length_factor", "a finite number >= 0", 0 <= d.max_length_factor < math.inf
    yield "decoding.max_length_offset", "an integer >= 1", d.max_length_offset >= 1
    yield "decoding.min_length_factor", "a finite number >= 0", 0 <= d.min_length_factor < math.inf
    yield "decoding.min_length_offset", "an integer >= 0", d.min_length_offset >= 0
    yield "decoding.no_repeat_ngram", "an integer >= 0", d.no_repeat_ngram >= 0
    yield "decoding.temperature", "a finite number > 0", 0 < d.temperature < math.inf
    yield "decoding.top_k", "an integer >= 0", d.top_k >= 0
    yield "decoding.top_p", "a number in (0, 1]", 0 < d.top_p <= 1
    yield "decoding.seed", "an integer >= 0", d.seed >= 0


def _model_requirements(model: RNNConfig | TransformerConfig, tokenizer: TokenizerConfig) -> Iterator[tuple[str, str, bool]]:
    for entry in dataclasses.fields(model):
        value = getattr(model, entry.name)
        if entry.name.endswith("_rate"):
            yield f"model.{entry.name}", "a number in [0, 1)", 0 <= value < 1
        elif isinstance(value, int) and not isinstance(value, bool):
            least = 0 if entry.name == "encoder_layers" and isinstance(model, TransformerConfig) else 1
            yield f"model.{entry.name}", f"an integer >= {least}", value >= least
    if isinstance(model, TransformerConfig):
        yield "model.num_heads", f"a divisor of model_dim = {model.model_dim}", model.model_dim % model.num_heads == 0
        yield from _position_requirements(model)
    else:
        yield from _rnn_requirements(model)


def _rnn_requirements(model: RNNConfig) -> Iterator[tuple[str, str, bool]]:
    yield "model.hard_temperature", "a finite number > 0", 0 < model.hard_temperature < math.inf
    if model.tied_embeddings:
        yield "model.maxout_dim", f"embed_dim = {model.embed_dim} when tied_embeddings", model.maxout_dim == model.embed_dim
    scores = model.local_score if model.attention.startswith("local") else model.attention
    if scores == "dot":
        key = "attention" if model.attention == "dot" else "local_score"
        width = 2 * model.encoder_dim
        yield "model.hidden_dim", f"2 * encoder_dim = {width} when {key} is 'dot'", model.hidden_dim == width


def _position_requirements(model: TransformerConfig) -> Iterator[tuple[str, str, bool]]:
    yield "model.rope_base", "a finite number > 0", 0 < model.rope_base < math.inf
    if model.positions == "rope":
        expected = f"model_dim = {model.model_dim} divided by an even width of a head, for positions = 'rope'"
        yield "model.num_heads", expected, model.model_dim // model.num_heads % 2 == 0
    if model.positions == "t5":
        buckets, distance = model.relative_buckets, model.relative_max_distance
        yield "model.relative_buckets", "an integer >= 4", buckets >= 4
        expected = f"more than half of relative_buckets = {buckets}, which are for one distance each"
        yield "model.relative_max_distance", expected, distance > buckets // 2


def _increasing(values: tuple[int, ...]) -> bool:
    return all(a < b for a, b in itertools.pairwise(values))


def _get_dotted(config: Any, key: str) -> Any:
    for name in key.split("."):
        config = getattr(config, name)
    return config
