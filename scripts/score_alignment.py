"""Score the links of any aligner against those made by people.

python scripts/score_alignment.py links.pharaoh --gold st.talp --reverse links_of_the_other_direction.pharaoh
"""

from pathlib import Path

import tyro

from seq2seq.alignment import SYMMETRIZATIONS, AlignmentError, read_gold, read_links, score_alignment, score_table
from seq2seq.cli import report_errors
from seq2seq.evaluation.tables import print_table, result_console, with_interval


def main(links: tyro.conf.Positional[Path], gold: Path, reverse: Path | None = None, swap_gold: bool = False) -> None:
    """Arguments of the command line.

    Args:
        links: File of links (Pharaoh format, 0-1), a line for each pair of sentences.
        gold: Links made by people (talp format).
        reverse: The links that the aligner finds in the other direction, written in the same order, the source word first; the
            two are joined in every way: intersection, union, grow-diag.
        swap_gold: The gold alignment has the target word first.
    """
    answers = read_gold(gold, swap=swap_gold)
    files = {"links": links} | ({"reverse": reverse} if reverse else {})
    found = {name: read_links(path) for name, path in files.items()}
    for name, path in files.items():
        if len(found[name]) != len(answers):
            raise AlignmentError(f"{path}: expected a line for each of {len(answers)} pairs of {gold}, got {len(found[name])}")
    if reverse:
        pairs = list(zip(*found.values(), strict=True))
        found |= {name: [join(*pair) for pair in pairs] for name, join in SYMMETRIZATIONS.items()}
    scores = {name: score_alignment(each, answers) for name, each in found.items()}
    print_table(result_console(), f"{gold}: 95 % intervals", *score_table(scores, with_interval))


if __name__ == "__main__":
    with report_errors():
        tyro.cli(main, description=__doc__)
