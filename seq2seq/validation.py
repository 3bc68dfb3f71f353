"""How good the model is on the dev text while it trains: loss, token accuracy, greedy BLEU and a few translations."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import PyTree

from seq2seq.batches import encode_pairs, eval_batches
from seq2seq.bleu import bleu_metric
from seq2seq.config import Config
from seq2seq.corpora import Pair
from seq2seq.tokenizer import Tokenizers
from seq2seq.train_step import make_eval_step, place_batch
from seq2seq.translation import decode_corpus


class Sample(NamedTuple):
    """A sentence, its translation in the corpus, and what the model made of it."""

    source: str
    reference: str
    produced: str


class Validation:
    """The dev text, encoded and batched once."""

    def __init__(self, pairs: list[Pair], tokenizers: Tokenizers, config: Config, graphdef: nnx.GraphDef, mesh: Mesh):
        self.tokenizers, self.config, self.graphdef, self.mesh = tokenizers, config, graphdef, mesh
        encoded = encode_pairs(pairs, tokenizers)
        self.batches = [batch for _, batch in eval_batches(encoded, config.batches)]
        chosen = spread(len(pairs), config.training.dev_bleu_sentences)
        self.pairs = [pairs[i] for i in chosen]
        self.sources = [list(encoded[i].source) for i in chosen]
        self.greedy = replace(config.decoding, search="beam", beam_size=1, n_best=1)
        self.bleu = bleu_metric(config.corpus.pair.split("-")[-1])
        self.eval_step = make_eval_step(graphdef)

    def measure(self, params: PyTree) -> tuple[dict[str, float], list[Sample]]:
        """dev_loss (nats per token, no smoothing), dev_accuracy (teacher-forced), and dev_bleu where sentences are chosen."""
        sums = [self.eval_step(params, place_batch(batch, self.mesh)) for batch in self.batches]
        total = jax.tree.map(lambda *parts: sum(float(part) for part in parts), *sums)
        figures = {"dev_loss": total.nll / total.tokens, "dev_accuracy": total.correct / total.tokens}
        if not self.sources:
            return figures, []
        decoded = decode_corpus(nnx.merge(self.graphdef, params), self.sources, self.greedy, self.config.batches)
        produced = [self.tokenizers.target.decode(hypotheses[0].ids) for hypotheses in decoded]
        figures["dev_bleu"] = self.bleu.corpus_score(produced, [[pair.target for pair in self.pairs]]).score
        samples = [Sample(pair.source, pair.target, text) for pair, text in zip(self.pairs, produced, strict=True)]
        return figures, [samples[i] for i in self._by_length((0.25, 0.75))]

    def _by_length(self, quantiles: tuple[float, ...]) -> list[int]:
        """Indices of sentences at these quantiles of source length."""
        order = sorted(range(len(self.pairs)), key=lambda i: len(self.pairs[i].source))
        return sorted({order[int(q * (len(order) - 1))] for q in quantiles})


def spread(total: int, count: int) -> list[int]:
    """`count` indices spread evenly over range(total), or all of them."""
    count = min(total, count)
    return [i * total // count for i in range(count)]
