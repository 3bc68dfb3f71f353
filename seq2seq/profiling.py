"""A trace of a few training steps: where their time goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax


class Profiler:
    """Traces `STEPS` steps after `WARM_UP` others, which compile."""

    WARM_UP, STEPS = 10, 10

    def __init__(self, folder: Path):
        self.folder, self.taken = folder, 0

    def before_step(self) -> None:
        if self.taken == self.WARM_UP:
            jax.profiler.start_trace(str(self.folder))

    def after_step(self, result: Any) -> bool:
        """Whether the trace was written now."""
        self.taken += 1
        if self.taken != self.WARM_UP + self.STEPS:
            return False
        jax.block_until_ready(result)
        jax.profiler.stop_trace()
        return True
