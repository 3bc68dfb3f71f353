"""What scripts/translate.py and scripts/score.py read, print and write: lines, n-best lists, scores, heat maps, progress."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
from rich.console import Console
from rich.progress import Progress

from seq2seq.config import ConfigError
from seq2seq.corpora.cleaning import read_bytes, split_lines
from seq2seq.plots import plot_alignment
from seq2seq.translation.scoring import ScoredPair
from seq2seq.translation.translator import Hypothesis
from seq2seq.words import join_pieces, word_weights


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


def format_json(sentences: Sequence[str], results: Sequence[Sequence[Hypothesis]]) -> str:
    """One JSON object for each sentence, with all its hypotheses, best first.

    >>> from seq2seq.translation import BLANK
    >>> print(format_json([" "], [[BLANK]]), end="")
    {"source": " ", "hypotheses": [{"text": "", "score": 0.0, "log_probability": 0.0, "tokens": [], "finished": true}]}
    """
    lines = []
    for sentence, found in zip(sentences, results, strict=True):
        hypotheses = [
            {"text": h.text, "score": h.score, "log_probability": h.log_prob, "tokens": h.pieces, "finished": h.finished}
            for h in found
        ]
        lines.append(json.dumps({"source": sentence, "hypotheses": hypotheses}, ensure_ascii=False) + "\n")
    return "".join(lines)


def format_scores(sources: Sequence[str], targets: Sequence[str], scored: Sequence[ScoredPair], form: str = "sentences") -> str:
    """One line for each pair: its log-probability ("sentences"), that and those of its "tokens", or all as "json".

    >>> print(format_scores(["a"], ["b"], [ScoredPair(-0.75, ["▁b", "</s>"], [-0.5, -0.25])], "tokens"), end="")
    -0.7500	▁b=-0.5000 </s>=-0.2500
    """
    lines = []
    for source, target, pair in zip(sources, targets, scored, strict=True):
        if form == "json":
            entry = {"source": source, "target": target, "log_probability": pair.log_prob}
            entry |= {"tokens": pair.pieces, "log_probabilities": pair.log_probs}
            lines.append(json.dumps(entry, ensure_ascii=False))
        else:
            tokens = (f"{piece}={log_prob:.4f}" for piece, log_prob in zip(pair.pieces, pair.log_probs, strict=True))
            lines.append(f"{pair.log_prob:.4f}" + ("\t" + " ".join(tokens) if form == "tokens" else ""))
    return "".join(f"{line}\n" for line in lines)


def score_note(scored: Sequence[ScoredPair]) -> str:
    """Sums over all pairs; empty if there are none.

    >>> score_note([ScoredPair(-0.75, ["▁b", "</s>"], [-0.5, -0.25])])
    '1 pairs, 2 tokens, log-probability -0.7500, perplexity of a token 1.4550'
    """
    tokens, total = sum(len(pair.pieces) for pair in scored), sum(pair.log_prob for pair in scored)
    if not tokens:
        return ""
    perplexity = math.exp(min(-total / tokens, 700.0))
    return f"{len(scored)} pairs, {tokens} tokens, log-probability {total:.4f}, perplexity of a token {perplexity:.4f}"


def read_sentences(files: Sequence[Path]) -> list[str]:
    """The lines of the files, one after the other, or of standard input."""
    texts = [(read_bytes(file), str(file)) for file in files] or [(sys.stdin.buffer.read(), "standard input")]
    return [line for data, name in texts for line in split_lines(data, name)]


def check_output(path: Path | None) -> None:
    """Raise before the work, rather than after it, if `path` cannot be written."""
    if path and (path.is_dir() or not path.parent.is_dir()):
        raise ConfigError("output", "a file in an existing folder", path)


def unfinished_note(results: Sequence[Sequence[Hypothesis]]) -> str:
    """Which best hypotheses were ended by the limit of length; empty if none."""
    cut = [str(number) for number, (best, *_) in enumerate(results, 1) if not best.finished]
    shown = ", ".join(cut[:10]) + (", ..." if len(cut) > 10 else "")
    return f"{len(cut)} of {len(results)} outputs reached their limit of length before </s>: line {shown}" if cut else ""


def attention_of_words(best: Hypothesis) -> tuple[list[str], list[str], np.ndarray]:
    """(source words, produced words, weights [rows columns]) of the best hypothesis, by `word_weights`."""
    columns, source_words = join_pieces(best.source_pieces)
    rows, produced_words = join_pieces(best.pieces)
    return columns, rows, word_weights(best.weights, produced_words, source_words, len(rows))


def write_alignments(folder: str | Path, results: Sequence[Sequence[Hypothesis]], units: str = "words") -> int:
    """Write <line>.png and <line>.json for the best hypothesis of each sentence that is not blank; the number written.

    `units` are "words" or "pieces", for text written without spaces.
    """
    folder, written = Path(folder), 0
    folder.mkdir(parents=True, exist_ok=True)
    for number, (best, *_) in enumerate(results, 1):
        if best.weights is None:
            continue
        pieces = best.source_pieces, best.pieces, best.weights
        columns, rows, weights = attention_of_words(best) if units == "words" else pieces
        weights = np.round(weights, 6)  # a rounded softmax may exceed 1 in the last bit
        path = folder / f"{number:05d}.png"
        title = f"line {number}: attention of each produced {units[:-1]} over the source"
        plot_alignment(path, columns=columns, rows=rows, weights=weights, title=title)
        numbers = {"line": number, "translation": best.text, "columns": columns, "rows": rows, "weights": weights.tolist()}
        path.with_suffix(".json").write_text(json.dumps(numbers, ensure_ascii=False) + "\n", encoding="utf-8")
        written += 1
    return written


class TranslationProgress:
    """Progress on stderr: a bar on a terminal, elsewhere a line every `plain_seconds`.  0 sentences done begin a new count."""

    def __init__(
        self, doing: str = "translating", done: str = "translated", *, console: Console | None = None, plain_seconds: float = 15.0
    ):
        self.done_word = done
        self.console = console or Console(stderr=True)
        self.plain_seconds = plain_seconds
        self.started = self.last_plain = time.monotonic()
        self.bar = Progress(console=self.console, disable=not self.console.is_terminal)
        self.task = self.bar.add_task(doing, total=None)

    def __enter__(self) -> TranslationProgress:
        self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.bar.stop()

    def __call__(self, done: int, total: int) -> None:
        self.bar.update(self.task, completed=done, total=total)
        now = time.monotonic()
        if done == 0:
            self.bar.reset(self.task, total=total)
            self.started = now
        elif not self.console.is_terminal and now - self.last_plain >= self.plain_seconds:
            self.last_plain = now
            left = (now - self.started) / done * (total - done)
            self.say(f"{self.done_word} {done} of {total} sentences, about {left:.0f} s left")

    def say(self, message: str) -> None:
        """A line that stays; nothing for an empty message."""
        if message:
            self.console.print(message, highlight=False, soft_wrap=True, markup=False)
