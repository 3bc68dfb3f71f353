"""What scripts/translate.py prints and writes: lines, n-best lists, heat maps, progress."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
from rich.console import Console
from rich.progress import Progress

from seq2seq.config import ConfigError
from seq2seq.plots import plot_alignment
from seq2seq.translation.translator import Hypothesis


def format_results(results: Sequence[Sequence[Hypothesis]], n_best: int = 1) -> str:
    """One line for each sentence; with n_best > 1 one for each hypothesis: `line ||| hypothesis ||| score`, lines from 1.

    >>> from seq2seq.translation import BLANK
    >>> print(format_results([[BLANK._replace(text="bonjour", score=-0.25)], [BLANK]], n_best=2), end="")
    1 ||| bonjour ||| -0.2500
    2 |||  ||| 0.0000
    """
    if n_best == 1:
        return "".join(f"{hypotheses[0].text}\n" for hypotheses in results)
    numbered = ((number, h) for number, hypotheses in enumerate(results, 1) for h in hypotheses)
    return "".join(f"{number} ||| {h.text} ||| {h.score:.4f}\n" for number, h in numbered)


def check_output(path: Path | None) -> None:
    """Raise before the work, rather than after it, if `path` cannot be written."""
    if path and (path.is_dir() or not path.parent.is_dir()):
        raise ConfigError("output", "a file in an existing folder", path)


def unfinished_note(results: Sequence[Sequence[Hypothesis]]) -> str:
    """Which best hypotheses were ended by the limit of length; empty if none."""
    cut = [str(number) for number, (best, *_) in enumerate(results, 1) if not best.finished]
    shown = ", ".join(cut[:10]) + (", ..." if len(cut) > 10 else "")
    return f"{len(cut)} of {len(results)} outputs reached their limit of length before </s>: line {shown}" if cut else ""


def write_alignments(folder: str | Path, results: Sequence[Sequence[Hypothesis]]) -> int:
    """Write <line>.png and <line>.json for the best hypothesis of each sentence that is not blank; the number written."""
    folder, written = Path(folder), 0
    folder.mkdir(parents=True, exist_ok=True)
    for number, (best, *_) in enumerate(results, 1):
        if best.weights is None:
            continue
        weights = np.round(best.weights, 6)  # a rounded softmax may exceed 1 in the last bit
        path = folder / f"{number:05d}.png"
        title = f"line {number}: attention of each produced piece over the source"
        plot_alignment(path, columns=best.source_pieces, rows=best.pieces, weights=weights, title=title)
        numbers = {
            "line": number,
            "translation": best.text,
            "columns": best.source_pieces,
            "rows": best.pieces,
            "weights": weights.tolist(),
        }
        path.with_suffix(".json").write_text(json.dumps(numbers, ensure_ascii=False) + "\n", encoding="utf-8")
        written += 1
    return written


class TranslationProgress:
    """Progress on stderr: a bar on a terminal, elsewhere a line every `plain_seconds`."""

    def __init__(self, *, console: Console | None = None, plain_seconds: float = 15.0):
        self.console = console or Console(stderr=True)
        self.plain_seconds = plain_seconds
        self.started = self.last_plain = time.monotonic()
        self.bar = Progress(console=self.console, disable=not self.console.is_terminal)
        self.task = self.bar.add_task("translating", total=None)

    def __enter__(self) -> TranslationProgress:
        self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.bar.stop()

    def __call__(self, done: int, total: int) -> None:
        self.bar.update(self.task, completed=done, total=total)
        now = time.monotonic()
        if not self.console.is_terminal and now - self.last_plain >= self.plain_seconds:
            self.last_plain = now
            left = (now - self.started) / done * (total - done)
            self.say(f"translated {done} of {total} sentences, about {left:.0f} s left")

    def say(self, message: str) -> None:
        """A line that stays; nothing for an empty message."""
        if message:
            self.console.print(message, highlight=False, soft_wrap=True, markup=False)
