"""What a benchmark of training has measured, and results.json."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

OURS, STEP, INSTALLED = "ours", "joeynmt-step", "joeynmt"
"""Our training; JoeyNMT's step on our batches; JoeyNMT as it is installed, with its own batches."""


@dataclass(frozen=True)
class Training:
    """One system trained with one config."""

    config: str
    system: str
    parameters: int
    target_tokens: list[int]
    """Real target tokens of each block, `</s>` included."""
    seconds: list[float]
    """Of each block."""
    to_ours: float | None
    """Median over turns of our tokens/s divided by this system's in the same turn; 1 for ours."""
    peak_bytes: int
    """Most memory held by the process up to the last block."""
    compile_seconds: float | None = None
    """Of the training step for all shapes; None where nothing is compiled."""
    compilations: dict[str, int] | None = None
    """Programs of the training step, those of the blocks included, and of the evaluation step."""
    shapes: dict[str, int] | None = None
    """Shapes of their batches."""

    @property
    def rates(self) -> list[float]:
        """Target tokens per second of each block."""
        return [tokens / seconds for tokens, seconds in zip(self.target_tokens, self.seconds, strict=True)]

    @property
    def tokens_per_second(self) -> float:
        return median(self.rates)


@dataclass(frozen=True)
class Decoding:
    """One system translating the test text."""

    config: str
    system: str
    beam_size: int
    sentences: int
    seconds: list[float]
    """Of each turn, all sentences."""
    to_ours: float | None
    """Median over turns of our sentences/s divided by this system's in the same turn; 1 for ours."""
    trained_steps: int
    mean_length: float
    """Pieces of an output, `</s>` included."""
    unfinished: float
    """Share of outputs that the limit of length ended."""
    bleu: float
    peak_bytes: int
    """Most memory held by the process so far, training included."""
    compilations: int | None = None
    """Programs of the search with this beam; None where nothing is compiled."""
    compile_seconds: float | None = None

    @property
    def sentences_per_second(self) -> float:
        return self.sentences / median(self.seconds)


@dataclass(frozen=True)
class Omission:
    """What was not measured, and why."""

    config: str
    system: str
    reason: str


@dataclass
class TrainingResults:
    """All of a run."""

    environment: dict[str, Any]
    settings: dict[str, Any]
    training: list[Training] = field(default_factory=list)
    decoding: list[Decoding] = field(default_factory=list)
    left_out: list[Omission] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """results.json, whole or not at all."""
        values = asdict(self)
        for kind, rate in (("training", "tokens_per_second"), ("decoding", "sentences_per_second")):
            for entry, measured in zip(values[kind], getattr(self, kind), strict=True):
                entry[rate] = getattr(measured, rate)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(values, indent=1), encoding="utf-8")
        part.replace(path)
