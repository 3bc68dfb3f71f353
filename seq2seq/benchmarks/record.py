"""What a benchmark has measured, and results.json."""

from __future__ import annotations

import datetime
import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

import jax

from seq2seq.benchmarks.peers import cores


@dataclass(frozen=True)
class Measurement:
    """One case at one length; times in seconds."""

    case: str
    inputs: str
    n: int
    kind: str
    of_pass: str
    samples: list[float]
    warm_up: float
    compile_seconds: float | None
    temporary_bytes: int | None
    to_jax_nn: float | None
    """Median over repeats of its time divided by that of jax.nn in the same repeat; None where there is none."""
    to_torch: float | None

    @property
    def seconds(self) -> float:
        return median(self.samples)


@dataclass(frozen=True)
class Omission:
    """What was not measured, and why."""

    case: str
    inputs: str
    n: int
    kind: str
    of_pass: str
    reason: str


@dataclass
class Results:
    """All of a run."""

    environment: dict[str, Any]
    settings: dict[str, Any]
    measurements: list[Measurement] = field(default_factory=list)
    left_out: list[Omission] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """results.json, whole or not at all."""
        part = path.with_suffix(".part")
        part.write_text(json.dumps(asdict(self) | {"left_out_count": len(self.left_out)}, indent=1), encoding="utf-8")
        part.replace(path)


def environment(words: Sequence[str] | None = None) -> dict[str, Any]:
    """Where and when, and the command."""
    device = jax.devices()[0]
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(sys.argv if words is None else words),
        "python": platform.python_version(),
        **{name: _version(name) for name in ("jax", "jaxlib", "flax", "torch")},
        "device": device.device_kind,
        "platform": device.platform,
        "machine": platform.machine(),
        "cores": cores(),
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
