"""Runs that translate together: what they must share, and the model they become."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from seq2seq.checkpoints import Run, load_run
from seq2seq.decoding import Ensemble
from seq2seq.translation.decode import TranslationError


def load_runs(run_dirs: Sequence[str | Path], checkpoint: str = "best") -> Run:
    """One run made of several: config, tokenizers and folder are those of the first.

    Args:
        run_dirs: folders of runs with one vocabulary, at least one.
        checkpoint: "best" or "latest", of each run.

    Raises:
        TranslationError: runs with different tokenizers; the message names both folders and hashes.
        ConfigError, CheckpointError: as `load_run`.
    """
    first, *others = (load_run(run_dir, checkpoint) for run_dir in run_dirs)
    for other in others:
        if other.tokenizers.sha256 != first.tokenizers.sha256:
            raise TranslationError(
                f"ensemble: expected runs with one vocabulary, got {first.run_dir} with {first.tokenizers.sha256} "
                f"and {other.run_dir} with {other.tokenizers.sha256}"
            )
    if not others:
        return first
    models = [run.model for run in (first, *others)]
    return dataclasses.replace(first, model=Ensemble(models, first.config.decoding.ensemble_average))
