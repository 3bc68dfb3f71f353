"""What a training run says while it runs: a live line on a terminal, plain lines elsewhere, and metrics.jsonl."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from seq2seq.tensorboard import write_figures
from seq2seq.train_step import StepReport


class MetricsLog:
    """metrics.jsonl: one JSON object a line, each written whole and at once."""

    def __init__(self, path: Path, resume_step: int = 0, boards: Any = None):
        """`boards`, a writer for TensorBoard, receives the same figures."""
        self.path, self.boards = path, boards
        if path.exists():
            self._forget_after(resume_step)

    def write(self, **values: Any) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")
        if self.boards is not None:
            write_figures(self.boards, **values)

    def _forget_after(self, step: int) -> None:
        """Drop lines of steps that will be run again, and a last line cut short by a kill."""
        kept = []
        for line in self.path.read_text(encoding="utf-8").split("\n"):
            try:
                if line and json.loads(line)["step"] <= step:
                    kept.append(line)
            except json.JSONDecodeError:
                continue
        part = self.path.with_suffix(".part")
        part.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
        part.replace(self.path)


class TrainingProgress:
    """Steps, loss, tokens/s and time left.  Time left counts to max_steps or max_minutes, whichever comes first."""

    def __init__(self, max_steps: int, max_minutes: float, *, console: Console | None = None, plain_seconds: float = 15.0):
        self.console = console or Console()
        self.max_steps, self.max_minutes, self.plain_seconds = max_steps, max_minutes, plain_seconds
        self.last_plain = 0.0
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.task = self.bar.add_task("training", total=max_steps, figures="")

    def __enter__(self) -> TrainingProgress:
        self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.bar.stop()

    def say(self, message: str) -> None:
        """A line that stays."""
        self.console.print(message, highlight=False, soft_wrap=True, markup=False)

    def step(self, step: int, loss: float, tokens_per_second: float, minutes: float, seconds_per_step: float) -> None:
        left = (self.max_steps - step) * seconds_per_step / 60
        if self.max_minutes > 0:
            left = min(left, max(self.max_minutes - minutes, 0.0))
        figures = f"loss {loss:.3f}  {tokens_per_second:,.0f} tokens/s  ETA {left:.1f} min"
        self.bar.update(self.task, completed=step, figures=figures)
        if not self.console.is_terminal and time.monotonic() - self.last_plain >= self.plain_seconds:
            self.last_plain = time.monotonic()
            self.say(f"step {step}/{self.max_steps}  {figures}")


class Meter:
    """Loss and speed since the last look; numbers stay on the device until they are read."""

    def __init__(self):
        self.reset()

    def reset(self) -> None:
        self.reports: list[StepReport] = []
        self.tokens = 0
        self.started = time.monotonic()

    def add(self, report: StepReport, tokens: int) -> None:
        self.reports.append(report)
        self.tokens += tokens

    def read(self) -> dict[str, float]:
        """Loss per token over the steps since the last read, mean gradient norm before clipping, tokens/s."""
        losses = sum(float(report.sums.loss) for report in self.reports)
        norm = sum(float(report.grad_norm) for report in self.reports) / len(self.reports)
        seconds = time.monotonic() - self.started
        figures = {
            "loss": losses / max(self.tokens, 1),
            "grad_norm": norm,
            "tokens": self.tokens,
            "tokens_per_second": self.tokens / seconds,
            "seconds_per_step": seconds / len(self.reports),
        }
        self.reset()
        return figures
