"""What the scripts share: config overrides on the command line, and errors as one line."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import tyro

from seq2seq.config import Config, load_config, validate


def config_from_command_line(parser: argparse.ArgumentParser) -> tuple[argparse.Namespace, Config]:
    """The parser's own arguments, and the config of its `config` file with --section.key overrides.

    `--help` shows both; after a config file, the defaults it shows are that file's.
    """
    words = sys.argv[1:]
    wants_help = any(word in ("-h", "--help") for word in words)
    if wants_help:
        parser.print_help()
        print("\nEvery key of the config, with its value in the file:")
        file = next((word for word in words if word.endswith(".toml") and os.path.exists(word)), None)
        tyro.cli(tyro.conf.AvoidSubcommands[Config], default=load_config(file) if file else Config(), args=["--help"], prog="")
    arguments, overrides = parser.parse_known_args(words)
    default = load_config(arguments.config)
    config = tyro.cli(tyro.conf.AvoidSubcommands[Config], default=default, args=overrides, prog=parser.prog)
    return arguments, validate(config, f"{arguments.config} and command line" if overrides else arguments.config)


@contextlib.contextmanager
def report_errors() -> Iterator[None]:
    """Mistakes of the user end as one line on stderr and exit code 2; a closed pipe on stdout ends quietly."""
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except (ValueError, OSError) as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        sys.exit(2)
