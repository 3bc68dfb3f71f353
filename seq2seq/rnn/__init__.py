"""Recurrent encoder-decoders: one encoder, and a decoder for each family of attention, chosen by the config's `attention`.

    encoder      bidirectional GRU, start state, output                    all
    bahdanau     none (one fixed vector), additive, hard                   Bahdanau et al. 2015; Xu et al. 2015
    luong        dot, general, concat, local_monotonic, local_predictive   Luong et al. 2015

The mathematics of every attention is in `attn`.
"""

from __future__ import annotations

from typing import Any

from seq2seq.config import RNNConfig
from seq2seq.rnn.bahdanau import BahdanauRNN, HardRNN
from seq2seq.rnn.encoder import RNN, RNNMemory
from seq2seq.rnn.luong import LuongRNN, LuongState

__all__ = ["RNN", "BahdanauRNN", "HardRNN", "LuongRNN", "LuongState", "RNNMemory", "build_rnn"]


def build_rnn(config: RNNConfig, source_vocab: int, target_vocab: int, **options: Any) -> RNN:
    """The model of `config.attention`; `options` are those of `RNN`."""
    kinds = {"none": BahdanauRNN, "additive": BahdanauRNN, "hard": HardRNN}
    return kinds.get(config.attention, LuongRNN)(config, source_vocab, target_vocab, **options)
