"""Which evaluation was the best, and when to stop waiting for a better one."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace

DIRECTIONS = {"dev_loss": "min", "dev_bleu": "max", "dev_accuracy": "max"}
"""Whether a metric falls or rises as the model gets better."""


@dataclass(frozen=True)
class EarlyStopping:
    """Watches one metric; immutable, so that a checkpoint can hold it.

    `patience` evaluations without a better value end the training; 0 never ends it.
    """

    metric: str
    patience: int
    best: float | None = None
    best_step: int = 0
    waited: int = 0

    def __post_init__(self):
        if self.metric not in DIRECTIONS:
            raise ValueError(f"metric: expected one of {', '.join(DIRECTIONS)}, got {self.metric!r}")

    def update(self, step: int, value: float) -> EarlyStopping:
        """The state after an evaluation at `step`; a value that is not a number never counts as better."""
        if math.isnan(value) or (self.best is not None and not self._better(value, self.best)):
            return replace(self, waited=self.waited + 1)
        return replace(self, best=value, best_step=step, waited=0)

    @property
    def improved(self) -> bool:
        """Whether the last update was the best so far."""
        return self.best is not None and self.waited == 0

    @property
    def exhausted(self) -> bool:
        return 0 < self.patience <= self.waited

    def to_dict(self) -> dict[str, float | int | None]:
        """What a checkpoint keeps; metric and patience come from the config."""
        return {key: value for key, value in asdict(self).items() if key not in ("metric", "patience")}

    def _better(self, value: float, than: float) -> bool:
        return value < than if DIRECTIONS[self.metric] == "min" else value > than
