"""Tatoeba: short everyday sentences, English with French or Arabic.

Source: manythings.org/anki, selected from tatoeba.org.  Licence: CC BY 2.0 France.  Many pairs share a sentence, so whole
groups of pairs that share one, directly or through others, go to one part of the split.
"""

from __future__ import annotations

import io
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from seq2seq.config import ConfigError, CorpusConfig
from seq2seq.corpora.cleaning import CorpusError, read_bytes, split_lines
from seq2seq.corpora.fetch import fetch, sha256_of
from seq2seq.corpora.files import drop_repeats, hold_out_pairs
from seq2seq.corpora.overlap import group_repeats
from seq2seq.corpora.pairs import Built, Pair, drop_blank
from seq2seq.corpora.text_form import text_form

VERSION = 1
SOURCE = "https://www.manythings.org/anki and https://tatoeba.org"
LICENCE = "CC BY 2.0 France; credit manythings.org/anki and tatoeba.org"
NAMES = {"fr": "fra", "ar": "ara"}


def languages(config: CorpusConfig) -> tuple[str, str]:
    """The two languages of the pair.  Raises ConfigError for a pair the corpus lacks."""
    tags = tuple(config.pair.split("-"))
    if len(tags) != 2 or "en" not in tags or not set(tags) & set(NAMES):
        raise ConfigError("corpus.pair", "one of en-fr, fr-en, en-ar, ar-en", config.pair)
    return tags


def fingerprint(config: CorpusConfig) -> dict[str, Any]:
    """Everything the pairs depend on; without data_dir the first download is kept and stays what it is."""
    path = _local(config)
    checksum = sha256_of(path) if config.data_dir else _name(config)
    return {"version": VERSION, "text": checksum, "pair": config.pair, "held_out": config.held_out}


def build(config: CorpusConfig, log: Callable[[str], object]) -> Built:
    """Read, drop repeats, hold out whole groups.

    Raises:
        CorpusError: no file and no network, or a line that is no pair.
    """
    dropped: Counter[str] = Counter()
    rows = _rows(config, log)
    if languages(config)[0] != "en":
        rows = ((other, english) for english, other in rows)
    pairs = [Pair(source, target, str(i)) for i, (source, target) in enumerate(rows, 1)]
    kept = drop_repeats(drop_blank(pairs, dropped), dropped)
    (test, dev), train = hold_out_pairs(group_repeats(kept), config.held_out, 2)
    return Built(train, dev, test, read=len(pairs), dropped=dropped)


def _name(config: CorpusConfig) -> str:
    return "eng-" + NAMES[next(tag for tag in config.pair.split("-") if tag != "en")]


def _local(config: CorpusConfig) -> Path:
    return Path(config.data_dir) / f"{_name(config)}.tsv"


def _rows(config: CorpusConfig, log: Callable[[str], object]) -> Iterator[tuple[str, str]]:
    """(English, other language) of each line.

    Further columns (a group of pairs, or an attribution) are not read: the groups found in the text hold those of the file.
    """
    form = text_form(config)
    path, data = (str(_local(config)), read_bytes(_local(config))) if config.data_dir else _fetched(config, log)
    for i, line in enumerate(split_lines(data, path), 1):
        columns = line.split("\t")
        if len(columns) < 2:
            raise CorpusError(f"{path}:{i}: expected English TAB translation, got {len(columns)} column")
        yield form(columns[0]), form(columns[1])


def _fetched(config: CorpusConfig, log: Callable[[str], object]) -> tuple[str, bytes]:
    """The text file inside the archive of the public home."""
    name = "-".join(reversed(_name(config).split("-")))  # fra-eng
    archive = fetch(f"https://www.manythings.org/anki/{name}.zip", Path(config.output_dir) / "downloads" / f"{name}.zip", log)
    member = f"{name.split('-')[0]}.txt"
    try:
        with zipfile.ZipFile(io.BytesIO(archive.read_bytes())) as opened:
            return f"{archive}/{member}", opened.read(member)
    except (zipfile.BadZipFile, KeyError) as error:
        raise CorpusError(f"{archive}: expected a zip file with {member}, got: {error}") from None
