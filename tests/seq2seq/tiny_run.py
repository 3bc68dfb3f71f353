"""A run small enough for a test: reversing up to five of six symbols."""

from dataclasses import replace

from seq2seq.config import (
    BatchConfig,
    Config,
    CorpusConfig,
    DecodingConfig,
    EvaluationConfig,
    OptimizerConfig,
    RNNConfig,
    TokenizerConfig,
    TrainingConfig,
    TransformerConfig,
)

RNN = RNNConfig(embed_dim=8, encoder_dim=8, hidden_dim=8, align_dim=8, maxout_dim=8, dropout_rate=0.1)
TRANSFORMER = TransformerConfig(model_dim=8, ffn_dim=16, num_heads=2, num_layers=1)


def tiny_config(tmp_path, *, model=RNN, **training):
    options = TrainingConfig(max_steps=20, eval_every=10, checkpoint_every=5, log_every=5, dev_bleu_sentences=0)
    return Config(
        corpus=CorpusConfig(
            name="reverse",
            output_dir=str(tmp_path / "data"),
            num_symbols=6,
            train_pairs=60,
            max_symbols=5,
            max_test_symbols=6,
            held_out=10,
        ),
        tokenizer=TokenizerConfig(kind="word", vocab_size=10),
        batches=BatchConfig(tokens=48, lengths=(4, 6), eval_tokens=48),
        model=model,
        optimizer=OptimizerConfig(learning_rate=1e-2, warmup_steps=4),
        training=replace(options, **training),
        decoding=DecodingConfig(beam_size=1, max_length_factor=1.0, max_length_offset=2),
        evaluation=EvaluationConfig(edges=(3, 5), bootstrap_samples=100),
    )
