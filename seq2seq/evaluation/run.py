"""Evaluation of a trained run: translate a split, score it, keep the result (see record.py for the files)."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from flax import nnx

from seq2seq.batches import encode_pairs
from seq2seq.bleu import UNSPACED
from seq2seq.checkpoints import Run, load_run
from seq2seq.config import Config, RNNConfig, TransformerConfig, validate
from seq2seq.corpora import Pair, ParallelCorpus, load_corpus
from seq2seq.corpora.passages import join_verses
from seq2seq.evaluation.record import JOINED, CorpusFacts, Evaluation, Sample, Sentence, save_evaluation, training_progress
from seq2seq.evaluation.scores import Scores, score, word_list
from seq2seq.tokenizer import Tokenizers
from seq2seq.translation import Translator
from seq2seq.translation.decode import ProgressCall

SPLITS = ("train", "dev", "test")


def evaluate_run(
    run_dir: str | Path,
    split: str = "test",
    *,
    checkpoint: str = "best",
    join: Sequence[int] = (),
    decoding: dict[str, Any] | None = None,
    progress: ProgressCall | None = None,
    log: Callable[[str], Any] = print,
) -> Evaluation:
    """Translate `split` with the run's model, score it, and write the files listed above.

    Args:
        run_dir: the folder of the run.
        split: train, dev or test.
        checkpoint: best, latest or average.
        join: numbers of verses: instead of the verses of the split, the passages of so many consecutive ones, of all these
            numbers one after the other.  A verse then stands in several passages, of different length.
        decoding: values of DecodingConfig that replace those of the run, such as {"beam_size": 1}.
        progress: handed to `Translator.translate`.
        log: receives a line about each stage.

    Raises:
        ValueError: unknown split, empty split, passages of a corpus without verses, or a decoding value that cannot work
            (ConfigError).
        FileNotFoundError: no such run or checkpoint.
    """
    if split not in SPLITS:
        raise ValueError(f"split: expected one of {', '.join(SPLITS)}, got {split!r}")
    run = load_run(run_dir, checkpoint)
    config = _with_decoding(run.config, decoding or {})
    corpus = load_corpus(config.corpus, log=log)
    pairs = list(getattr(corpus, split))
    if join:
        pairs, config = _passages(pairs, join, log), _with_passage_edges(config)
    if not pairs:
        raise ValueError(f"{run_dir}: the {split} split of corpus {config.corpus.name!r} is empty")
    text = split_name(split, join)
    log(f"translating {len(pairs)} {text} sentences, beam {config.decoding.beam_size}, step {run.step} ({run.checkpoint})")
    hypotheses, finished, seconds = _translate(run, config, [pair.source for pair in pairs], progress)
    log(f"scoring, {config.evaluation.bootstrap_samples} resamples for each interval")
    lengths = [source_length(pair.source, run.tokenizers, config) for pair in pairs]
    scores = _score(config, pairs, hypotheses, finished, lengths)
    steps, minutes = training_progress(run_dir)
    evaluation = Evaluation(
        run=Path(run_dir).resolve().name,
        split=text,
        n=len(pairs),
        corpus=_corpus_facts(config, corpus, pairs, run.tokenizers),
        model=describe_model(config.model),
        parameters=sum(leaf.size for leaf in jax.tree.leaves(nnx.state(run.model, nnx.Param))),
        checkpoint=run.checkpoint,
        step=run.step,
        training_steps=steps,
        training_minutes=minutes,
        decoding=config.decoding,
        scores=scores,
        seconds=seconds,
        sentences_per_second=len(pairs) / seconds,
        versions=_versions(),
        warnings=(*scores.warnings, *_form_warnings(config)),
        samples=_samples(pairs, hypotheses, config),
    )
    columns = ([p.id for p in pairs], [p.source for p in pairs], [p.target for p in pairs], hypotheses, lengths, finished)
    save_evaluation(evaluation, [Sentence(*values) for values in zip(*columns, strict=True)], run_dir)
    return evaluation


def split_name(split: str, join: Sequence[int] = ()) -> str:
    """The split as files and tables call it.

    >>> split_name("test"), split_name("test", [2, 3])
    ('test', 'test.joined-2-3')
    """
    return split + (JOINED + "-".join(map(str, join)) if join else "")


def _passages(pairs: Sequence[Pair], join: Sequence[int], log: Callable[[str], Any]) -> list[Pair]:
    passages = []
    for count in join:
        joined = join_verses(pairs, count)
        log(f"{len(joined.pairs)} passages of {count} consecutive verses; {joined.left_out} verses left over at ends of chapters")
        passages += joined.pairs
    return passages


def _with_passage_edges(config: Config) -> Config:
    return dataclasses.replace(config, evaluation=dataclasses.replace(config.evaluation, edges=config.evaluation.passage_edges))


def describe_model(model: RNNConfig | TransformerConfig) -> str:
    """Kind of model in a few words; nothing is said of a Transformer's positions when they are the paper's.

    >>> describe_model(RNNConfig(attention="none")), describe_model(RNNConfig(attention="local_monotonic"))
    ('RNN, no attention', 'RNN, local monotonic attention')
    >>> describe_model(TransformerConfig()), describe_model(TransformerConfig(positions="rope"))
    ('Transformer', 'Transformer, rope positions')
    """
    if isinstance(model, RNNConfig):
        return f"RNN, {_kind(model.attention)} attention"
    return "Transformer" if model.positions == "sinusoidal" else f"Transformer, {_kind(model.positions)} positions"


def _kind(name: str) -> str:
    return "no" if name == "none" else name.replace("_", " ")


def source_length(text: str, tokenizers: Tokenizers, config: Config) -> int:
    """Words of a source sentence, characters in a language without spaces, or subwords, as the config has it."""
    if config.evaluation.length_unit == "subwords":
        return len(tokenizers.source.encode(text))
    return len(word_list(text, config.corpus.pair.split("-")[0]))


def longest_trained_length(pairs: Sequence[Pair], tokenizers: Tokenizers, config: Config) -> int:
    """Length of the longest source sentence that training used: pairs beyond the longest batch bucket are left out."""
    lengths = ((source_length(pair.source, tokenizers, config), pair) for pair in pairs)
    for length, pair in sorted(lengths, key=lambda item: -item[0]):
        if encode_pairs([pair], tokenizers)[0].length <= config.batches.lengths[-1]:
            return length
    return 0


def _with_decoding(config: Config, values: dict[str, Any]) -> Config:
    given = {key: value for key, value in values.items() if value is not None}
    return validate(dataclasses.replace(config, decoding=dataclasses.replace(config.decoding, n_best=1, **given)))


def _translate(
    run: Run, config: Config, sources: list[str], progress: ProgressCall | None
) -> tuple[list[str], list[bool], float]:
    start = time.perf_counter()
    results = Translator(run).translate(sources, progress=progress, **dataclasses.asdict(config.decoding))
    best = [hypotheses[0] for hypotheses in results]
    return [h.text for h in best], [bool(h.finished) for h in best], time.perf_counter() - start


def _score(config: Config, pairs: Sequence[Pair], hypotheses: list[str], finished: list[bool], lengths: list[int]) -> Scores:
    source, target = config.corpus.pair.split("-")
    unit = config.evaluation.length_unit
    return score(
        hypotheses,
        [pair.target for pair in pairs],
        lengths,
        config.evaluation,
        finished=finished,
        length_unit="characters" if unit == "words" and source in UNSPACED else unit,
        target_language=target,
        token_accuracy=config.corpus.name == "reverse",
    )


def _corpus_facts(config: Config, corpus: ParallelCorpus, pairs: Sequence[Pair], tokenizers: Tokenizers) -> CorpusFacts:
    text = "".join(f"{pair.source}\n{pair.target}\n" for pair in pairs)
    return CorpusFacts(
        name=config.corpus.name,
        pair=config.corpus.pair,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        longest_training_length=longest_trained_length(corpus.train, tokenizers, config),
    )


def _samples(pairs: Sequence[Pair], hypotheses: Sequence[str], config: Config) -> tuple[Sample, ...]:
    """A short, a medium and a long sentence: the 10th, 50th and 95th percentile of source length."""
    source = config.corpus.pair.split("-")[0]
    order = sorted(range(len(pairs)), key=lambda i: (len(word_list(pairs[i].source, source)), i))
    samples = {}
    for kind, share in (("short", 0.1), ("medium", 0.5), ("long", 0.95)):
        index = order[int(share * (len(order) - 1))]
        pair = pairs[index]
        samples.setdefault(index, Sample(kind, str(pair.id), pair.source, pair.target, hypotheses[index]))
    return tuple(samples.values())


def _versions() -> dict[str, str]:
    names = ("jax", "flax", "numpy", "sentencepiece", "sacrebleu")
    return {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in names}


def _form_warnings(config: Config) -> Iterator[str]:
    if config.corpus.lowercase:
        yield "corpus.lowercase: BLEU of text in lower case cannot be compared with that of text as it is written"
