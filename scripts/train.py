"""Train an encoder-decoder from a config file.

    python scripts/train.py configs/bible/en_fr_rnn_additive.toml --run-dir runs/x --optimizer.learning-rate 1e-3
    python scripts/train.py runs/x/config.toml --run-dir runs/x --resume

Every key of the config can be given after the file as --section.key value.  Ctrl-C saves and says how to go on.
"""

import argparse
import sys
from pathlib import Path

from seq2seq.cli import config_from_command_line, report_errors
from seq2seq.config import ConfigError


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, add_help=False, allow_abbrev=False
    )
    parser.add_argument("config", type=Path, help="TOML file; every key it leaves out has a default")
    parser.add_argument("--run-dir", type=Path, help="folder of the run (default: runs/<name of the config file>)")
    parser.add_argument("--resume", action="store_true", help="go on from the run's latest checkpoint, if there is one")
    parser.add_argument("--profile", action="store_true", help="write a trace of ten steps to <run>/profile")
    arguments, config = config_from_command_line(parser)
    from seq2seq.training import train

    run_dir = arguments.run_dir or Path("runs") / arguments.config.stem
    try:
        outcome = train(config, run_dir, resume=arguments.resume, profile=arguments.profile)
    except ConfigError as error:  # found out from the corpus, such as a vocabulary that it cannot fill
        error.file = error.file or arguments.config
        raise
    return 128 + outcome.signal if outcome.signal else 0


if __name__ == "__main__":
    with report_errors():
        sys.exit(main())
