"""A run that no training made: a small tokenizer and large random weights."""

from pathlib import Path

import jax
from flax import nnx

from seq2seq.checkpoints import CheckpointStore, Run, new_model
from seq2seq.config import BatchConfig, Config, DecodingConfig, RNNConfig, TokenizerConfig, save_config
from seq2seq.tokenizer import Tokenizers, train_tokenizer

TEXTS = ["the dog sees the cat", "a cat and a dog", "the small house", "we go to the house", "le chat voit le chien", "é bois"]
RNN = RNNConfig(embed_dim=8, encoder_dim=8, hidden_dim=12, align_dim=6, maxout_dim=8)


def train_small_tokenizer():
    return train_tokenizer(TEXTS, TokenizerConfig(kind="bpe", vocab_size=40))


def run_of(tokenizer, model=RNN, lengths=(16,), scale=3.0, **decoding):
    """A run that no training made; its weights are large enough for outputs that differ from source to source."""
    config = Config(
        model=model,
        batches=BatchConfig(tokens=64, lengths=lengths, eval_tokens=192),
        decoding=DecodingConfig(**({"beam_size": 3, "max_length_factor": 1.0, "max_length_offset": 4} | decoding)),
    )
    tokenizers = Tokenizers(tokenizer, tokenizer)
    graphdef, params = nnx.split(new_model(config, tokenizers))
    made = nnx.merge(graphdef, jax.tree.map(lambda x: scale * x, params))
    return Run(config, made, tokenizers, 7, Path("runs/none"), "best")


def save_run(run, folder):
    """Write what `load_run` reads."""
    save_config(run.config, folder / "config.toml")
    run.tokenizers.save(folder)
    meta = {"step": run.step, "tokenizers": run.tokenizers.sha256}
    CheckpointStore(folder, "best", keep=1).save(run.step, meta, model=nnx.state(run.model, nnx.Param))
    return folder
