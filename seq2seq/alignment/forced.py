"""The attention of a trained run over given pairs of sentences, between words: forced decoding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from seq2seq.alignment.links import AlignmentError
from seq2seq.alignment.weights import rows_of
from seq2seq.batches import EncodedPair, eval_batches
from seq2seq.checkpoints import Run
from seq2seq.decoding import attention_weights
from seq2seq.tokenizer import EOS, Tokenizer
from seq2seq.translation.decode import ProgressCall, position_limit
from seq2seq.translation.translator import has_attention
from seq2seq.words import END, piece_words, word_weights


class ForcedPair(NamedTuple):
    """A pair of sentences and the attention of every step over the source, with T and S pieces, `</s>` the last of each."""

    number: int
    """The line, from 1."""
    source: list[str]
    """Words."""
    target: list[str]
    source_pieces: list[str]
    target_pieces: list[str]
    source_words: Int[np.ndarray, "S"]
    """The word of each piece, from 0; `</s>` is a word of its own."""
    target_words: Int[np.ndarray, "T"]
    steps: Float[np.ndarray, "L N T S"]
    """Row t is the step that produces target piece t, of each layer and head; no steps where a side has no pieces."""

    def weights(self, reading: str) -> Float[np.ndarray, "L N J W"]:
        """Target words by source words, `</s>` the last of these W."""
        return word_weights(rows_of(self.steps, reading), self.target_words[:-1], self.source_words, len(self.target))

    def view(self, units: str = "words") -> tuple[list[str], list[str], Float[np.ndarray, "L N T S"]]:
        """What a heat map shows: columns, rows and weights, of words or of pieces, with `</s>` on both sides."""
        if units == "pieces":
            return self.source_pieces, self.target_pieces, self.steps
        weights = word_weights(self.steps, self.target_words, self.source_words, len(self.target) + 1)
        return [*self.source, END], [*self.target, END], weights


def forced_attention(
    run: Run, sources: Sequence[str], targets: Sequence[str], *, progress: ProgressCall | None = None
) -> Iterator[ForcedPair]:
    """Every pair once, the longest first.  Words stand between white space and are cut into pieces one by one.

    Args:
        run: a run with attention.
        sources: one sentence each.
        targets: a translation of each.
        progress: called with the number of pairs done and of all.

    Raises:
        AlignmentError: sides of different number, a run without attention, a sentence longer than the model can hold, or
            weights that are NaN.
    """
    if len(sources) != len(targets):
        raise AlignmentError(f"target: expected a translation for each of {len(sources)} sentences, got {len(targets)}")
    if not has_attention(run):
        raise AlignmentError(f"run: expected one with attention, got model.attention = 'none' ({run.run_dir})")
    pairs = [_cut(run, number, *pair) for number, pair in enumerate(zip(sources, targets, strict=True), 1)]
    for pair in pairs:
        if not pair.encoded:
            yield _forced(run, pair, np.zeros((0, 0, 0, 0), np.float32))
    cut = [pair for pair in pairs if pair.encoded]
    done = len(pairs) - len(cut)
    for indices, batch in reversed(eval_batches([pair.encoded for pair in cut], run.config.batches)):
        limit = position_limit(run.model)
        weights = np.asarray(attention_weights(run.model, batch.source[:, :limit], batch.target_in[:, :limit]))
        if np.isnan(weights).any():
            raise AlignmentError(f"run: expected finite weights, got NaN: its parameters have diverged ({run.run_dir})")
        for row, index in enumerate(indices):
            yield _forced(run, cut[index], weights[row])
        done += len(indices)
        if progress:
            progress(done, len(pairs))


class _CutPair(NamedTuple):
    number: int
    source: list[str]
    target: list[str]
    source_counts: list[int]
    target_counts: list[int]
    encoded: EncodedPair | None


def _cut(run: Run, number: int, source: str, target: str) -> _CutPair:
    source_ids, source_counts = _pieces(source.split(), run.tokenizers.source)
    target_ids, target_counts = _pieces(target.split(), run.tokenizers.target)
    encoded = EncodedPair([*source_ids, EOS], [*target_ids, EOS]) if source_ids and target_ids else None
    limit = position_limit(run.model)
    if encoded and limit is not None and encoded.length > limit:
        expected = f"at most {limit} subwords with </s> on both sides (learned positions, model.max_length)"
        raise AlignmentError(f"line {number}: expected {expected}, got {encoded.length}")
    return _CutPair(number, source.split(), target.split(), source_counts, target_counts, encoded)


def _pieces(words: Sequence[str], tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The pieces of all words, and how many each has."""
    ids = [tokenizer.encode(word) for word in words]
    return [i for word in ids for i in word], [len(word) for word in ids]


def _forced(run: Run, pair: _CutPair, weights: Float[np.ndarray, "L N T S"]) -> ForcedPair:
    source_ids, target_ids = pair.encoded or ([], [])
    return ForcedPair(
        pair.number,
        pair.source,
        pair.target,
        run.tokenizers.source.pieces(source_ids),
        run.tokenizers.target.pieces(target_ids),
        piece_words([*pair.source_counts, 1]),
        piece_words([*pair.target_counts, 1]),
        weights[..., : len(target_ids), : len(source_ids)],
    )
