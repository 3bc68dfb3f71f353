"""What the scripts share: config overrides on the command line, errors as one line, what a process keeps."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import tyro

from seq2seq.config import Config, ConfigError, load_config, validate
from seq2seq.process import keep_compiled_programs, keep_freed_memory


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
    parse = partial(tyro.cli, tyro.conf.AvoidSubcommands[Config], default=default, args=overrides, prog=parser.prog)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            config = parse()
    except SystemExit:
        _explain(overrides, arguments.config)
        config = parse()
    return arguments, validate(config, f"{arguments.config} and command line" if overrides else arguments.config)


def _explain(overrides: list[str], path: Path) -> None:
    """Raise what the same key and value would raise in the file, so that both mistakes read alike."""
    for flag, value in zip(overrides, [*overrides[1:], ""], strict=True):
        if not flag.startswith("--"):
            continue
        key, _, attached = flag.removeprefix("--").partition("=")
        value = attached or value
        with contextlib.suppress(tomllib.TOMLDecodeError):
            value = tomllib.loads(f"value = {value}")["value"]
        try:
            load_config(path, {key.replace("-", "_"): value})
        except ConfigError as error:
            error.file = f"{path} and command line"
            raise


@contextlib.contextmanager
def report_errors(*, benchmark: bool = False) -> Iterator[None]:
    """Mistakes of the user end as one line on stderr and exit code 2; a closed pipe on stdout ends quietly.

    What XLA compiles is kept for the next call and what it frees for the next step (`seq2seq.process`), but not in a benchmark:
    it measures compilation, and beside ours run functions whose users are told neither.
    """
    if not benchmark:
        keep_compiled_programs()
        keep_freed_memory()
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except (ValueError, OSError) as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        sys.exit(2)
