"""Draw the attention of a run over a sentence:  python scripts/visualize.py runs/x "I love you ." """

from pathlib import Path
from typing import Literal

import tyro

from seq2seq.alignment.view import draw_attention
from seq2seq.checkpoints import load_run
from seq2seq.cli import report_errors


def main(
    run: tyro.conf.Positional[Path],
    sentence: tyro.conf.Positional[str],
    target: str | None = None,
    out: Path | None = None,
    units: Literal["words", "pieces"] = "words",
    checkpoint: Literal["best", "latest", "average"] = "best",
) -> None:
    """Arguments of the command line.

    Args:
        run: Folder of the run.
        sentence: A source sentence.
        target: Its translation; that of the run if not given.
        out: Folder that receives the heat maps and their numbers; <run>/attention if not given.
        units: What rows and columns are; pieces for text written without spaces.
        checkpoint: Which checkpoint of the run.
    """
    drawn = draw_attention(load_run(run, checkpoint), sentence, target, out or run / "attention", units=units)
    print(drawn.translation)
    for path in drawn.files:
        print(f"wrote {path}")


if __name__ == "__main__":
    with report_errors():
        tyro.cli(main, description=__doc__)
