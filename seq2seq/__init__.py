"""Encoder-decoders for translation built from `attn`, with one trainer, one decoder and one evaluator for all of them.

import seq2seq
translator = seq2seq.load("runs/bible/transformer")
print(translator.translate(["In the beginning was the Word."])[0][0].text)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seq2seq.translation import Translator


def load(run_dir: str | Path, checkpoint: str = "best", *, ensemble: Sequence[str | Path] = ()) -> Translator:
    """The translator of a trained run, or of several; see `seq2seq.translation.load` and `seq2seq.translation.Translator`."""
    from seq2seq.translation import load as load_translator  # only here, so that the package itself imports at once

    return load_translator(run_dir, checkpoint, ensemble=ensemble)
