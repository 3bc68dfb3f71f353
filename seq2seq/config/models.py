"""The dataclasses of the table [model]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class RNNConfig:
    """Encoder-decoder with a bidirectional GRU encoder (Bahdanau et al. 2015, Appendix A) and the attention of choice.

    A key that the chosen attention does not use changes nothing.
    """

    kind: Literal["rnn"] = "rnn"
    """This model."""
    attention: Literal["none", "additive", "hard", "dot", "general", "concat", "local_monotonic", "local_predictive"] = "additive"
    """`none`: one fixed vector; `additive`: Bahdanau attention; `hard`: one source word, chosen by additive scores (Xu et al.
    2015); the others: Luong et al. (2015), global (`dot`, `general`, `concat`) or within a window (`local_...`)."""
    embed_dim: int = 256
    """Width of word embeddings (m in the paper)."""
    encoder_layers: int = 1
    """Bidirectional GRU layers of the encoder, each reading the states of the one below."""
    encoder_dim: int = 256
    """GRU units of each direction of the encoder."""
    hidden_dim: int = 512
    """GRU units of the decoder (n); dot scores need 2 * encoder_dim."""
    align_dim: int = 256
    """`additive`, `hard`, concat scores, `local_predictive`: width of the alignment model (n')."""
    maxout_dim: int = 256
    """Width of the readout, from which the output is made: the maxout layer (l), or h~ in the models of Luong et al."""
    local_score: Literal["dot", "general", "concat"] = "general"
    """`local_...`: the scores within the window."""
    local_window: int = 10
    """`local_...`: source positions on each side of the centre of the window (D)."""
    input_feeding: bool = True
    """Luong et al.: the readout of a step enters the next step of the decoder (section 3.3)."""
    hard_temperature: float = 1.0
    """`hard`: temperature of the softmax that the gradient sees in training."""
    reverse_source: bool = False
    """The encoder reads the words of the source from the last to the first (Sutskever et al. 2014, section 3.3)."""
    dropout_rate: float = 0.2
    """Dropout on the states of each encoder layer and on the readout."""
    embedding_dropout_rate: float = 0.2
    """Dropout on entries of the word embeddings."""
    word_dropout_rate: float = 0.0
    """Dropout of whole words: the embedding becomes zero, on both sides (Sennrich et al. 2016)."""
    tied_embeddings: bool = True
    """One matrix for target embeddings and output (needs embed_dim = maxout_dim), and the source if the vocabulary is joint."""


@dataclass(frozen=True)
class TransformerConfig:
    """Encoder-decoder of Vaswani et al. (2017), with the layer norm first."""

    kind: Literal["transformer"] = "transformer"
    """This model."""
    model_dim: int = 256
    """Width of the residual stream."""
    ffn_dim: int = 1024
    """Width of the feed-forward layer."""
    num_heads: int = 4
    """Attention heads; must divide model_dim."""
    num_layers: int = 3
    """Layers of the decoder, and of the encoder if `encoder_layers` is 0."""
    encoder_layers: int = 0
    """Layers of the encoder, where it is to be deeper or shallower than the decoder; norm "pre" suits deep ones."""
    norm: Literal["pre", "post"] = "pre"
    """Layer norm before each sublayer, or after the residual sum as in the paper."""
    positions: Literal["sinusoidal", "learned", "rope", "alibi", "t5", "shaw", "none"] = "sinusoidal"
    """How positions enter: the first two are added to the embeddings, the others are relative, in every self-attention."""
    max_length: int = 512
    """`learned`: number of positions in the table."""
    rope_base: float = 10_000.0
    """`rope`: the slowest pair of columns turns by nearly 1 / rope_base from a token to the next; needs an even head width."""
    relative_buckets: int = 32
    """`t5`: distances told apart; the encoder has half of them for each direction."""
    relative_max_distance: int = 128
    """`t5`: from this distance on all share the last bucket."""
    shaw_distance: int = 16
    """`shaw`: from this distance on all share the last vector."""
    dropout_rate: float = 0.1
    """Dropout on the output of each sublayer, before the residual sum."""
    embedding_dropout_rate: float = 0.1
    """Dropout on entries of the sum of embeddings and positions."""
    word_dropout_rate: float = 0.0
    """Dropout of whole words: the embedding becomes zero, on both sides (Sennrich et al. 2016)."""
    activation_dropout_rate: float = 0.0
    """Dropout inside the feed-forward layer, after its nonlinearity."""
    attention_dropout_rate: float = 0.0
    """Dropout on attention weights."""
    tied_embeddings: bool = True
    """One matrix for target embeddings and output, and for the source if the vocabulary is joint."""

    @property
    def layers_of(self) -> dict[str, int]:
        """Number of layers on the side of the "source" and of the "target"."""
        return {"source": self.encoder_layers or self.num_layers, "target": self.num_layers}


MODEL_KINDS = {"rnn": RNNConfig, "transformer": TransformerConfig}
