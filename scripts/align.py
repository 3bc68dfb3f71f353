"""Link the words of sentences and given translations by a run's attention.

python scripts/align.py runs/x --source s.txt --target t.txt --gold st.talp
"""

from pathlib import Path
from typing import Literal

import tyro

from seq2seq.alignment import align, read_gold, score_table, write_alignment
from seq2seq.checkpoints import load_run
from seq2seq.cli import report_errors
from seq2seq.evaluation.tables import print_table, result_console, with_interval
from seq2seq.translation.output import TranslationProgress, read_sentences


def main(
    run: tyro.conf.Positional[Path],
    source: Path,
    target: Path,
    out: Path | None = None,
    gold: Path | None = None,
    swap_gold: bool = False,
    reverse: Path | None = None,
    symmetrization: Literal["intersection", "union", "grow-diag"] = "grow-diag",
    checkpoint: Literal["best", "latest", "average"] = "best",
) -> None:
    """Arguments of the command line.

    Args:
        run: Folder of the run.
        source: UTF-8 text, one sentence a line; words stand between spaces.
        target: A translation of each.
        out: Folder that receives a file of links (Pharaoh format) for each layer, head and reading; <run>/align if not given.
        gold: Links made by people (talp format), to score against.
        swap_gold: The gold alignment has the target word first.
        reverse: A run of the other direction; its links are joined with those of the run.
        symmetrization: How they are joined.
        checkpoint: Which checkpoint of the runs.
    """
    links = read_gold(gold, swap=swap_gold) if gold else None
    backward = load_run(reverse, checkpoint) if reverse else None
    with TranslationProgress("aligning", "aligned") as progress:
        sentences = read_sentences((source,)), read_sentences((target,))
        options = {"gold": links, "reverse": backward, "symmetrization": symmetrization, "progress": progress}
        alignment = align(load_run(run, checkpoint), *sentences, **options)
    out = out or run / "align"
    files = write_alignment(alignment, out)
    if alignment.scores:
        print_table(result_console(), f"{gold}: 95 % intervals", *score_table(alignment.scores, with_interval))
    if alignment.skipped:
        print(f"no links for {len(alignment.skipped)} pairs with a side without words: lines {alignment.skipped[:10]}")
    print(f"wrote {len(files)} files to {out}")


if __name__ == "__main__":
    with report_errors():
        tyro.cli(main, description=__doc__)
