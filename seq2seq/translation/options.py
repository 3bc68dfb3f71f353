"""The keys of `DecodingConfig` as options of a command line: what is not given stays as in the config of the run."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, get_type_hints

import tyro

from seq2seq.config import DecodingConfig
from seq2seq.config.reference import docstrings


def optional_fields(config: type, without: tuple[str, ...] = ()) -> list[tuple[str, Any, Any]]:
    """A field for each key of a config dataclass that may also be None, with what stands below the key as its help."""
    meanings = docstrings(config)
    return [
        (key, Annotated[kind | None, tyro.conf.arg(help=" ".join(meanings[key].split()))], None)
        for key, kind in get_type_hints(config).items()
        if key not in without
    ]


DecodingOptions = dataclasses.make_dataclass("DecodingOptions", optional_fields(DecodingConfig), frozen=True)
"""`DecodingConfig` with None for what is not given."""
