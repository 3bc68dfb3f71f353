"""Configuration: frozen dataclasses, one per concern, read from TOML and checked before anything runs.

A config file names only what differs from the defaults.  ``load_config`` reads it, ``save_config`` writes it back with every
value filled in.  Each mistake ends as one line: file, key, what was expected, what came.
"""

from seq2seq.config.loading import load_config, save_config, to_dict
from seq2seq.config.models import RNNConfig, TransformerConfig
from seq2seq.config.requirements import validate
from seq2seq.config.schema import (
    BatchConfig,
    Config,
    ConfigError,
    CorpusConfig,
    DecodingConfig,
    EvaluationConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainingConfig,
)

__all__ = [
    "BatchConfig",
    "Config",
    "ConfigError",
    "CorpusConfig",
    "DecodingConfig",
    "EvaluationConfig",
    "OptimizerConfig",
    "RNNConfig",
    "TokenizerConfig",
    "TrainingConfig",
    "TransformerConfig",
    "load_config",
    "save_config",
    "to_dict",
    "validate",
]
