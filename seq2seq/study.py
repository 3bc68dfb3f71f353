"""The runs of a study: each config file has a run folder, and what is missing there is trained."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from seq2seq.config import ConfigError, load_config
from seq2seq.evaluation.record import training_progress
from seq2seq.training import train


def study_runs(
    given: Sequence[Path], *, root: Path = Path("runs"), train_missing: bool = False, log: Callable[[str], Any] = print
) -> list[Path]:
    """The run folders of config files; a folder stands for itself.

    Args:
        given: config files (.toml) and run folders.
        root: where the runs of config files lie.
        train_missing: train what has not ended yet, from its latest checkpoint if there is one.
        log: receives a line about each training.

    Raises:
        ConfigError: nothing given, or a run that has not ended and is not to be trained.
        SystemExit: Ctrl-C or SIGTERM during a training, after its state was saved; the same call goes on from there.
    """
    if not given:
        raise ConfigError("runs", "at least one run folder or config file", "none")
    folders = []
    for number, path in enumerate(given, 1):
        folder = run_folder(path, root) if path.suffix == ".toml" else path
        folders.append(folder)
        if folder == path or has_ended(path, folder):
            continue
        if not train_missing:
            steps, _ = training_progress(folder)
            raise ConfigError(
                "runs", f"a run of {path} that has ended (--train-missing trains it)", f"{steps or 0} steps in {folder}"
            )
        log(f"{number} of {len(given)}: training {path} in {folder}")
        outcome = train(load_config(path), folder, resume=True)
        if outcome.signal:
            raise SystemExit(128 + outcome.signal)
        jax.clear_caches()
    return folders


def run_folder(config: Path, root: Path = Path("runs")) -> Path:
    """Where the run of a config file lies: its path below the folder `configs`, or else its name.

    >>> print(run_folder(Path("configs/length/rnn_none.toml")), run_folder(Path("mine.toml")))
    runs/length/rnn_none runs/mine
    """
    parts = config.with_suffix("").parts
    below = parts[len(parts) - parts[::-1].index("configs") :] if "configs" in parts else parts[-1:]
    return root.joinpath(*below)


def comparison_folder(folders: Sequence[Path], split: str) -> Path:
    """Where the comparison of runs lies: beside them.

    Args:
        folders: of the runs.
        split: the text they are compared on, as files call it.

    >>> print(comparison_folder([Path("runs/length/rnn_none"), Path("runs/length/rnn_additive")], "test"))
    runs/length/compare/test
    """
    parents = [folder.resolve().parent for folder in folders]
    folder = Path(os.path.commonpath(parents)) / "compare" / split
    return folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder


def has_ended(config: Path, folder: Path) -> bool:
    """Whether the run has used up the steps or the minutes of its config; one that lost patience goes on, and ends at once."""
    steps, minutes = training_progress(folder)
    options = load_config(config).training
    return steps is not None and (steps >= options.max_steps or 0 < options.max_minutes <= minutes)
