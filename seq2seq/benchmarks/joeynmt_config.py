"""A config of ours in the words of JoeyNMT (Kreutzer, Bastings and Riezler 2019), as far as it has words for it.

What is equal: sizes, number of layers and heads, layer norm, which matrices are shared, dropout rate, label smoothing, loss per
token, Adam with its betas, clipping, schedule, vocabulary, batch size in tokens, longest pair.  What is not:

    Transformer   its dropout has one rate for sublayers, attention weights and the inside of the feed-forward layer; where ours
                  has several, the step on our batches is given them, and JoeyNMT as it is installed is not
    RNN           its decoder is that of Luong et al.: GRU over [y_{i-1} ; a_{i-1}], additive scores from the new state, and
                  a_i = tanh(W [s_i ; c_i]); ours (`attention = "additive"`) is that of Bahdanau et al. with maxout, and with
                  `attention = "concat"` nearly JoeyNMT's.  Its output layer is as wide as its GRU, and shared with the
                  embeddings only if they are as wide.  Its dropout falls on the input of the GRU and of a_i, ours on
                  embeddings, encoder states and readout
    Adam          epsilon is 1e-8; the first step has the full learning rate
    smoothing     mass is spread over the vocabulary without padding and the target itself
    length limit  1.5 times the longest source of a batch; ours is `decoding.max_length_factor` times each source, and the offset
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from seq2seq.config import Config, RNNConfig, TransformerConfig


class NoEqual(ValueError):
    """A config that JoeyNMT cannot match; the message names the key."""


def joeynmt_config(config: Config, folder: Path) -> dict[str, Any]:
    """The configuration of JoeyNMT for the files that `training_data.write_material` makes in `folder`.

    Raises:
        NoEqual: a key has a value that JoeyNMT has nothing equal to.
    """
    _check(config)
    return {
        "name": "benchmark",
        "model_dir": str(folder / "joeynmt"),
        "use_cuda": False,
        "random_seed": config.seed,
        "data": _data(config, folder),
        "training": _training(config),
        "testing": _testing(config),
        "model": _transformer(config) if isinstance(config.model, TransformerConfig) else _rnn(config),
    }


def joeynmt_dropout(config: Config) -> dict[str, float]:
    """Rates of ours at the places where JoeyNMT has only one rate for all; for the Transformer."""
    model = config.model
    if isinstance(model, RNNConfig):
        return {}
    return {"attention": model.attention_dropout_rate, "feed_forward": model.activation_dropout_rate}


def _check(config: Config) -> None:
    """Raise NoEqual for the first key that JoeyNMT cannot match."""
    model = config.model
    allowed: list[tuple[str, Any, tuple[Any, ...]]] = [
        ("tokenizer.kind", config.tokenizer.kind, ("unigram", "bpe")),
        ("model.word_dropout_rate", model.word_dropout_rate, (0.0,)),
        ("training.accumulate", config.training.accumulate, (1,)),
        ("training.compute_dtype", config.training.compute_dtype, ("float32",)),
        ("optimizer.schedule", config.optimizer.schedule, ("inverse_sqrt", "constant")),
        ("decoding.length_penalty", config.decoding.length_penalty, ("gnmt", "none")),
    ]
    if isinstance(model, RNNConfig):
        allowed += [
            ("model.attention", model.attention, ("additive", "concat", "general")),
            ("model.reverse_source", model.reverse_source, (False,)),
            ("model.align_dim", model.align_dim if model.attention != "general" else model.hidden_dim, (model.hidden_dim,)),
        ]
    else:
        allowed.append(("model.positions", model.positions, ("sinusoidal",)))
    for key, value, choices in allowed:
        if value not in choices:
            raise NoEqual(f"{key}: expected {' or '.join(map(repr, choices))} to compare with JoeyNMT, got {value!r}")


def _data(config: Config, folder: Path) -> dict[str, Any]:
    def side(name: str) -> dict[str, Any]:
        return {
            "lang": name,
            "level": "bpe",
            "tokenizer_type": "sentencepiece",
            "tokenizer_cfg": {"model_file": str(folder / f"{name}.model")},
            "voc_file": str(folder / f"{name}.vocabulary"),
            "max_length": config.batches.lengths[-1] - 1,
        }

    paths = {"train": str(folder / "train"), "test": str(folder / "test")}
    return paths | {"dataset_type": "plain", "src": side("source"), "trg": side("target")}


def _training(config: Config) -> dict[str, Any]:
    optimizer, training = config.optimizer, config.training
    return {
        "batch_size": config.batches.tokens,
        "batch_type": "token",
        "normalization": "tokens",
        "label_smoothing": training.label_smoothing,
        "optimizer": "adamw" if optimizer.weight_decay else "adam",
        "adam_betas": [optimizer.beta1, optimizer.beta2],
        "weight_decay": optimizer.weight_decay,
        "clip_grad_norm": optimizer.clip_norm or None,
        "learning_rate": optimizer.learning_rate,
        "learning_rate_min": 0.0,
        "learning_rate_warmup": max(optimizer.warmup_steps, 1),
        "scheduling": "warmupinversesquareroot" if optimizer.schedule == "inverse_sqrt" else None,
    }


def _testing(config: Config) -> dict[str, Any]:
    alpha = config.decoding.alpha if config.decoding.length_penalty == "gnmt" else -1
    return {"batch_size": config.batches.eval_tokens, "batch_type": "token", "beam_alpha": alpha, "max_output_length": -1}


def _transformer(config: Config) -> dict[str, Any]:
    model = config.model
    assert isinstance(model, TransformerConfig)
    stack = {
        "type": "transformer",
        "num_heads": model.num_heads,
        "hidden_size": model.model_dim,
        "ff_size": model.ffn_dim,
        "dropout": model.dropout_rate,
        "layer_norm": model.norm,
        "embeddings": _embeddings(model.model_dim, model.embedding_dropout_rate),
    }
    shared = model.tied_embeddings and config.tokenizer.joint
    return {
        "encoder": stack | {"num_layers": model.layers_of["source"]},
        "decoder": stack | {"num_layers": model.layers_of["target"]},
        "tied_embeddings": shared,
        "tied_softmax": model.tied_embeddings,
    }


def _rnn(config: Config) -> dict[str, Any]:
    model = config.model
    assert isinstance(model, RNNConfig)
    embeddings = _embeddings(model.embed_dim, model.embedding_dropout_rate)
    shared = {"type": "recurrent", "rnn_type": "gru", "dropout": model.dropout_rate, "embeddings": embeddings}
    decoder = {
        "hidden_size": model.hidden_dim,
        "hidden_dropout": model.dropout_rate,
        "attention": "luong" if model.attention == "general" else "bahdanau",
        "init_hidden": "bridge",
        "input_feeding": model.input_feeding or model.attention == "additive",
    }
    return {
        "encoder": shared | {"num_layers": model.encoder_layers, "hidden_size": model.encoder_dim, "bidirectional": True},
        "decoder": shared | {"num_layers": 1} | decoder,
        "tied_embeddings": model.tied_embeddings and config.tokenizer.joint,
        "tied_softmax": model.tied_embeddings and model.embed_dim == model.hidden_dim,
    }


def _embeddings(dim: int, rate: float) -> dict[str, Any]:
    return {"embedding_dim": dim, "scale": True, "dropout": rate}
