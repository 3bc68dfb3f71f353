"""Heat maps of a run's attention over one sentence: the figures of scripts/visualize.py.

<out>/attention.png     a model with one attention
<out>/mean.png          a Transformer: the mean over all layers and heads
<out>/layer2.png        its heads of one layer, on one sheet
<out>/attention.json    words and weights, as drawn
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from seq2seq.alignment.forced import forced_attention
from seq2seq.alignment.links import AlignmentError
from seq2seq.checkpoints import Run
from seq2seq.plots import plot_alignment, plot_alignment_sheet
from seq2seq.translation import Translator


class Drawn(NamedTuple):
    """What `draw_attention` returns."""

    translation: str
    files: list[Path]


def draw_attention(run: Run, source: str, target: str | None, out: str | Path, *, units: str = "words") -> Drawn:
    """Draw how each word of a translation attends to the source when it is produced.

    Args:
        run: a run with attention.
        source: a sentence.
        target: its translation; that of the run if None.
        out: folder that receives the files.
        units: words or pieces.

    Raises:
        AlignmentError: as `forced_attention`; a side without words.
    """
    if target is None:
        target = Translator(run).translate([source], n_best=1)[0][0].text
    source, target = run.tokenizers.source.form(source), run.tokenizers.target.form(target)
    (pair,) = forced_attention(run, [source], [target])
    if not pair.steps.size:
        raise AlignmentError(f"sentence: expected words on both sides, got {source!r} and {target!r}")
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    columns, rows, weights = pair.view(units)
    weights = np.round(weights, 6)  # a rounded softmax may exceed 1 in the last bit
    files = [out / "attention.json"]
    numbers = {"source": source, "translation": target, "columns": columns, "rows": rows, "weights": weights.tolist()}
    files[0].write_text(json.dumps(numbers, ensure_ascii=False) + "\n", encoding="utf-8")
    if weights.shape[:2] == (1, 1):
        files.append(out / "attention.png")
        plot_alignment(files[-1], columns, rows, weights[0, 0], title="attention")
        return Drawn(target, files)
    files.append(out / "mean.png")
    plot_alignment(files[-1], columns, rows, weights.mean((0, 1)), title="mean over layers and heads")
    for number, layer in enumerate(weights, 1):
        files.append(out / f"layer{number}.png")
        names = [f"head {n}" for n in range(1, len(layer) + 1)]
        plot_alignment_sheet(files[-1], columns, rows, layer, names=names, title=f"layer {number}")
    return Drawn(target, files)
