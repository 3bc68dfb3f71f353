"""What all systems train on and translate, written for each in the form that it reads.

    <folder>/ours/                            config and tokenizers of a run
    <folder>/train.source, train.target ...   the same text for JoeyNMT, with SentencePiece models and lists of their pieces
    <folder>/batches.npz                      our first batches, in JoeyNMT's ids

JoeyNMT knows the ids UNK=0 PAD=1 BOS=2 EOS=3; the others are the same as ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int

from seq2seq.batches import Batch, TrainBatches, encode_pairs
from seq2seq.config import Config, ConfigError, save_config
from seq2seq.corpora import Pair, load_corpus
from seq2seq.tokenizer import PAD, UNK, Tokenizer, Tokenizers, train_tokenizers

SIDES = ("source", "target")


@dataclass(frozen=True)
class Material:
    """Where everything lies, and the text to translate."""

    folder: Path
    sentences: list[str]
    references: list[str]

    @property
    def run_dir(self) -> Path:
        return self.folder / "ours"

    @property
    def batches(self) -> Path:
        return self.folder / "batches.npz"


def write_material(config: Config, folder: Path, num_batches: int, num_sentences: int, log: Callable[[str], None]) -> Material:
    """Read the corpus, train the tokenizers, and write all files.

    Args:
        config: with the corpus, tokenizer and batches.
        folder: empty.
        num_batches: training batches that JoeyNMT is given as we have them.
        num_sentences: sentences of the test text to translate, the first ones; 0 is all of them.
        log: receives what is said of the corpus.

    Raises:
        ConfigError: a corpus or tokenizer that cannot be had.
    """
    corpus = load_corpus(config.corpus, log=log)
    test = list(corpus.test)[: num_sentences or None]
    material = Material(folder, [one_line(pair.source) for pair in test], [pair.target for pair in test])
    tokenizers = train_tokenizers(corpus.train, config.tokenizer, material.run_dir)
    save_config(config, material.run_dir / "config.toml")
    for side in SIDES:
        _write_tokenizer(folder, side, getattr(tokenizers, side))
        write_lines(folder / f"train.{side}", [one_line(getattr(pair, side)) for pair in corpus.train])
    write_lines(folder / "test.source", material.sentences)
    write_batches(material.batches, corpus.train, tokenizers, config, num_batches)
    return material


def one_line(text: str) -> str:
    """`text` without any character that JoeyNMT takes for the end of a line."""
    return " ".join(text.splitlines())


def write_lines(path: Path, lines: Sequence[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write_batches(path: Path, pairs: Sequence[Pair], tokenizers: Tokenizers, config: Config, count: int) -> None:
    """The first `count` training batches of `config`: arrays source.0, target.0, source.1, ...; the target opens with BOS.

    Rows of nothing but padding are left out, since JoeyNMT has no such rows.
    """
    batches = iter(TrainBatches(encode_pairs(pairs, tokenizers), config.batches, config.seed))
    arrays = {}
    for i in range(count):
        arrays[f"source.{i}"], arrays[f"target.{i}"] = joeynmt_ids(next(batches))
    np.savez(path, **arrays)


def joeynmt_ids(batch: Batch) -> tuple[Int[np.ndarray, "R S"], Int[np.ndarray, "R U"]]:
    """Source, and BOS with the target, in JoeyNMT's ids and without rows of padding; U = T + 1.

    >>> source, target = np.array([[7, 3, 0], [0, 0, 0]]), np.array([[1, 3, 0], [0, 0, 0]])
    >>> joeynmt_ids(Batch(source, np.array([[2, 1, 0], [0, 0, 0]]), target))
    (array([[7, 3, 1]]), array([[2, 0, 3, 1]]))
    """
    real = batch.source[:, 0] != PAD
    target = np.concatenate([batch.target_in[:, :1], batch.target_out], axis=1)
    return _swap(batch.source[real]), _swap(target[real])


def _swap(ids: Int[np.ndarray, "*B"]) -> Int[np.ndarray, "*B"]:
    """PAD=0 UNK=1 as UNK=0 PAD=1."""
    return np.where(ids == PAD, UNK, np.where(ids == UNK, PAD, ids))


def _write_tokenizer(folder: Path, side: str, tokenizer: Tokenizer) -> None:
    """The model, and its pieces in the order of their ids but for UNK and PAD."""
    tokenizer.save(folder / f"{side}.model")
    first, second, *pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    lines = [second, first, *pieces]
    if [line for piece in lines for line in piece.splitlines()] != lines:
        raise ConfigError("tokenizer", "pieces without line separators", "one with a line separator")
    write_lines(folder / f"{side}.vocabulary", lines)
