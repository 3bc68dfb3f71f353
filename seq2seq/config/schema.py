"""The dataclasses: every key of a config file, its default and what it means."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from seq2seq.config.models import RNNConfig, TransformerConfig


class ConfigError(ValueError):
    """A configuration that cannot be used: which file and key, what was expected, what came."""

    def __init__(self, key: str, expected: str, got: object, file: str | Path | None = None):
        self.key, self.expected, self.got, self.file = key, expected, got, file
        super().__init__(key, expected, got)

    def __str__(self) -> str:
        where = f"{self.file}: " if self.file else ""
        return f"{where}{self.key}: expected {self.expected}, got {self.got}"


@dataclass(frozen=True)
class CorpusConfig:
    """Which parallel text, and where it lies."""

    name: Literal["bible", "multi30k", "tatoeba", "parallel", "tsv", "reverse"] = "bible"
    """Recipe of the corpus (see seq2seq/corpora)."""
    pair: str = "en-fr"
    """Language pair, source-target, as in en-fr."""
    data_dir: str = ""
    """Folder of local copies; empty means the recipe fetches its own."""
    output_dir: str = "data"
    """Folder that receives <name>/<pair>/{train,dev,test}.* and downloads."""
    lowercase: bool = False
    """All text, and what is translated later, in lower case; BLEU is then of lower case too."""
    split_punctuation: bool = False
    """Punctuation and elided words (l', qu') stand alone, as in hand-aligned text: "je t' aime ."; BLEU is then of such text."""
    train: tuple[str, ...] = ()
    """Files of the training text: two for `parallel` (source, target), one for `tsv`."""
    dev: tuple[str, ...] = ()
    """Files of the development text, like `train`; empty holds out a part of the training text."""
    test: tuple[str, ...] = ()
    """Files of the test text, like `train`; empty holds out a part of the training text."""
    held_out: int = 1000
    """Pairs held out for each of dev and test where a recipe has no fixed split."""
    num_symbols: int = 20
    """`reverse`: number of distinct symbols."""
    train_pairs: int = 20_000
    """`reverse`: number of training pairs."""
    min_symbols: int = 1
    """`reverse`: shortest sequence, in symbols."""
    max_symbols: int = 20
    """`reverse`: longest training sequence, in symbols."""
    max_test_symbols: int = 30
    """`reverse`: longest test sequence, in symbols (beyond max_symbols is extrapolation)."""


@dataclass(frozen=True)
class TokenizerConfig:
    """SentencePiece model; ids PAD=0 UNK=1 BOS=2 EOS=3."""

    kind: Literal["unigram", "bpe", "word", "char"] = "unigram"
    """SentencePiece model type."""
    vocab_size: int = 4000
    """Number of pieces, special ids included."""
    joint: bool = True
    """One vocabulary for both languages; false trains one for each."""
    normalization: Literal["nfkc", "nmt_nfkc", "identity"] = "identity"
    """SentencePiece normalisation rule (text is already NFC); kept inside the model file."""
    character_coverage: float = 1.0
    """Share of the characters of the training text that get a piece."""


@dataclass(frozen=True)
class BatchConfig:
    """Batches of few static shapes: a bucket of length L holds tokens // L pairs."""

    tokens: int = 4096
    """Padded tokens of one side of a training batch."""
    lengths: tuple[int, ...] = (16, 24, 32, 40, 48, 64, 96, 128)
    """Bucket lengths in subwords, `</s>` included; longer training pairs are left out, counted and reported."""
    eval_tokens: int = 4096
    """Padded tokens of one side of a batch in evaluation and decoding."""


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW with warm-up."""

    learning_rate: float = 1e-3
    """Peak learning rate."""
    schedule: Literal["inverse_sqrt", "cosine", "linear", "constant", "plateau"] = "inverse_sqrt"
    """Decay after warm-up; cosine and linear end at zero at training.max_steps, plateau falls when training.metric stalls."""
    plateau_factor: float = 0.5
    """`plateau`: the learning rate is multiplied by this ..."""
    plateau_patience: int = 3
    """`plateau`: ... whenever so many evaluations in a row brought no better metric."""
    warmup_steps: int = 400
    """Steps of linear warm-up from zero."""
    beta1: float = 0.9
    """AdamW: decay of the first moment."""
    beta2: float = 0.98
    """AdamW: decay of the second moment."""
    epsilon: float = 1e-9
    """AdamW: added to the root of the second moment."""
    weight_decay: float = 0.0
    """Decoupled weight decay, on matrices only."""
    clip_norm: float = 1.0
    """Gradients are scaled to this global norm at most; 0 turns clipping off."""


@dataclass(frozen=True)
class TrainingConfig:
    """The loop: how long, how often it looks at the dev text, when it stops."""

    max_steps: int = 10_000
    """Training ends after this many steps."""
    max_minutes: float = 0.0
    """Training ends after this many minutes of wall time, all resumptions together; 0 sets no limit."""
    accumulate: int = 1
    """Batches of one step; the gradient is that of their mean over all real tokens together."""
    label_smoothing: float = 0.1
    """Mass spread evenly over the vocabulary in the training loss: q = (1 - e) onehot + e / V."""
    ema_decay: float = 0.0
    """Evaluate and keep an exponential moving average of the parameters, with min(decay, (1 + n) / (10 + n)) at step n; 0
    is off."""
    eval_every: int = 500
    """Steps between evaluations on the dev text; each may write the best checkpoint."""
    checkpoint_every: int = 500
    """Steps between writes of the latest checkpoint."""
    keep_checkpoints: int = 2
    """How many of the latest checkpoints stay; `--checkpoint average` translates with the mean of their parameters."""
    log_every: int = 20
    """Steps between lines of metrics.jsonl."""
    dev_bleu_sentences: int = 200
    """Dev sentences translated greedily for dev BLEU, spread evenly over the dev text; 0 translates none."""
    metric: Literal["dev_loss", "dev_bleu", "dev_accuracy"] = "dev_loss"
    """What picks the best checkpoint and counts for patience: loss falls, BLEU and accuracy rise."""
    patience: int = 0
    """Evaluations without a better metric before training stops; 0 never stops early."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of activations; parameters, softmax, loss and optimizer stay float32."""
    tensorboard: bool = False
    """Write the figures of metrics.jsonl for TensorBoard as well, into <run>/tensorboard (needs tensorboardX)."""


@dataclass(frozen=True)
class DecodingConfig:
    """From model to text."""

    search: Literal["beam", "sample"] = "beam"
    """`beam`: the best hypotheses; `sample`: n_best hypotheses drawn from the model's distribution."""
    beam_size: int = 4
    """`beam`: hypotheses kept; 1 is greedy."""
    length_penalty: Literal["gnmt", "power", "none"] = "gnmt"
    """Score = log p / penalty: gnmt ((5+n)/6)^alpha (Wu et al. 2016), power n^alpha, none 1; n counts `</s>`."""
    alpha: float = 0.6
    """Exponent of the length penalty."""
    coverage_penalty: float = 0.0
    """`beam`: what scores lose for source pieces without attention (beta of Wu et al. 2016, eq. 14); 0 is nothing."""
    patience: float = 1.0
    """`beam`: a sentence ends when patience * beam_size hypotheses have finished (Kasai et al. 2022), or none can win; 0 waits
    until none can win."""
    n_best: int = 1
    """Hypotheses returned for each sentence."""
    max_length_factor: float = 2.0
    """Longest output = factor * source length + offset, in subwords."""
    max_length_offset: int = 10
    """See max_length_factor."""
    min_length_factor: float = 0.0
    """Shortest output = factor * source length + offset, in subwords with `</s>`, and never above the longest."""
    min_length_offset: int = 0
    """See min_length_factor."""
    no_repeat_ngram: int = 0
    """No n subwords in a row occur twice in an output; 0 sets no such rule."""
    temperature: float = 1.0
    """`sample`: below 1 sharpens the distribution, above 1 flattens it."""
    top_k: int = 0
    """`sample`: draw from the k likeliest subwords only; 0 is all."""
    top_p: float = 1.0
    """`sample`: draw from the fewest likeliest subwords of this probability only (Holtzman et al. 2020); 1 is all."""
    seed: int = 0
    """`sample`: seed of the draws; a sentence in the same place of the input gets the same ones whatever the batches."""
    replace_unknown: bool = False
    """An unknown piece in the output becomes the source word it attends to most."""
    ensemble_average: Literal["probabilities", "log_probabilities"] = "probabilities"
    """What is averaged over the models of an ensemble."""


@dataclass(frozen=True)
class EvaluationConfig:
    """Scores overall and by source length."""

    edges: tuple[int, ...] = (10, 20, 30, 40, 50, 60, 70)
    """Last source length of each bucket; one more bucket is open-ended."""
    passage_edges: tuple[int, ...] = (20, 40, 60, 80, 100, 120, 140, 160, 180, 200)
    """The same for passages of several verses (evaluate.py --join)."""
    length_unit: Literal["words", "subwords"] = "words"
    """What source lengths count; words are characters where a language is written without spaces."""
    bootstrap_samples: int = 1000
    """Resamples behind each 95 % interval."""
    min_bleu_sentences: int = 30
    """Buckets with fewer sentences show chrF but no BLEU."""


@dataclass(frozen=True)
class Config:
    """Everything a run is made from."""

    seed: int = 0
    """Seed of parameters, data order and dropout."""
    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    batches: BatchConfig = field(default_factory=BatchConfig)
    model: RNNConfig | TransformerConfig = field(default_factory=RNNConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
