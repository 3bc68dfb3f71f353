"""The figures of metrics.jsonl for TensorBoard, where tensorboardX is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from seq2seq.config import ConfigError


def open_tensorboard(run_dir: Path) -> Any:
    """A writer of `<run_dir>/tensorboard`.

    Raises:
        ConfigError: tensorboardX is not installed.
    """
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        expected = "false, or the package tensorboardX (pip install tensorboardX)"
        raise ConfigError("training.tensorboard", expected, "true without that package") from None
    return SummaryWriter(str(run_dir / "tensorboard"))


def write_figures(writer: Any, *, step: int, kind: str, **figures: Any) -> None:
    """Each number of a line of metrics.jsonl, as kind/name."""
    for name, value in figures.items():
        if isinstance(value, int | float):
            writer.add_scalar(f"{kind}/{name}", value, step)
    writer.flush()
