"""Prepare a parallel corpus: fetch, clean, split, write, and say what was kept and dropped.

    python scripts/prepare_data.py bible --pair en-fr
    python scripts/prepare_data.py multi30k --pair en-de --data-dir FOLDER
    python scripts/prepare_data.py parallel --pair en-is --train corpus.en corpus.is

Writes OUTPUT_DIR/NAME/PAIR/{train,dev,test}.{source,target,ids} and report.json; a second call with the same recipe
reuses them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_type_hints

import tyro

from seq2seq.cli import report_errors
from seq2seq.config import Config, CorpusConfig, validate
from seq2seq.corpora import prepare_corpus


@dataclass(frozen=True)
class Arguments(CorpusConfig):
    """The corpus table of a config file, its name as the first argument."""

    name: tyro.conf.Positional[get_type_hints(CorpusConfig)["name"]]
    """Recipe of the corpus."""


def main(args: Sequence[str] | None = None) -> None:
    """Parse `args`, prepare, print."""
    config = tyro.cli(Arguments, args=args, prog="prepare_data.py", description=__doc__)
    validate(Config(corpus=config))
    prepare_corpus(config)


if __name__ == "__main__":
    with report_errors():
        main()
