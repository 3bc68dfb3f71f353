"""What scripts/benchmark_training.py is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

CONFIGS = (Path("configs/benchmark/transformer.toml"), Path("configs/benchmark/rnn_additive.toml"))


@dataclass(frozen=True)
class Options:
    """Arguments of the command line."""

    configs: tyro.conf.Positional[tuple[Path, ...]] = CONFIGS
    """Config files, compared one after the other."""
    joeynmt: str = ""
    """A Python interpreter that can import joeynmt; the one that runs this, if it can, when none is given."""
    data_dir: Path | None = None
    """Folder of local copies of the corpus; corpus.data_dir of the configs if not given."""
    out: Path = Path("runs/benchmark_training")
    """Folder that receives results.json, table.txt and the logs of the processes."""
    turns: int = 5
    """Blocks of training steps of each system, in turns with the others."""
    steps: int = 10
    """Training steps of a block."""
    train_steps: int = 300
    """Steps that each system has been trained for, blocks included, before it translates."""
    decode_turns: int = 3
    """How often each system translates the test text, in turns with the others; 0 leaves translation out."""
    beam: int = 5
    """Beam size, beside greedy."""
    sentences: int = 0
    """Sentences of the test text to translate, the first ones; 0 is all."""
