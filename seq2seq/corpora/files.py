"""Any parallel text: two files line by line (`parallel`), or one file of tab-separated pairs (`tsv`).

Where no dev or test files are given, `held_out` pairs of the training text are set apart for each, so that no sentence,
source or target, stands on both sides.  Train pairs that copy a sentence of given dev or test files are dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from seq2seq.config import ConfigError, CorpusConfig
from seq2seq.corpora.cleaning import CorpusError, normalize_text, read_lines
from seq2seq.corpora.fetch import sha256_of
from seq2seq.corpora.overlap import HeldOutText, group_repeats, hold_out, sentence_key
from seq2seq.corpora.pairs import Built, Pair, drop_blank
from seq2seq.corpora.text_form import TextForm, text_form

VERSION = 1
SPLITS = ("train", "dev", "test")


def languages(config: CorpusConfig) -> tuple[str, str]:
    """The two halves of the pair."""
    source, target = config.pair.split("-")
    return source, target


def fingerprint(config: CorpusConfig) -> dict[str, Any]:
    """Everything the pairs depend on."""
    checksums = {split: [sha256_of(path) for path in _paths(config, split)] for split in SPLITS}
    return {"version": VERSION, "name": config.name, "files": checksums, "held_out": config.held_out}


def build(config: CorpusConfig, log: Callable[[str], object]) -> Built:
    """Read, drop repeats, hold out.

    Raises:
        CorpusError: files of different numbers of lines, a line that is no pair, text that is no UTF-8.
        ConfigError: more pairs to hold out than the text can spare.
    """
    dropped: Counter[str] = Counter()
    texts = {split: _read(config, split) for split in SPLITS}
    read = sum(map(len, texts.values()))
    train = drop_repeats(drop_blank(texts["train"], dropped), dropped)
    given = {split: drop_blank(texts[split], dropped) for split in ("dev", "test") if texts[split]}
    train = drop_copies(train, [pair for pairs in given.values() for pair in pairs], dropped)
    missing = [split for split in ("test", "dev") if split not in given]
    if missing:
        parts, train = hold_out_pairs(group_repeats(train), config.held_out, len(missing))
        given |= dict(zip(missing, parts, strict=True))
    return Built(train, given["dev"], given["test"], read=read, dropped=dropped)


def drop_repeats(pairs: Iterable[Pair], dropped: Counter[str]) -> list[Pair]:
    """The first of pairs that are the same on both sides, whatever the case and punctuation."""
    first: dict[tuple[str, str], Pair] = {}
    for pair in pairs:
        key = (sentence_key(pair.source), sentence_key(pair.target))
        if first.setdefault(key, pair) is not pair:
            dropped["repeats an earlier pair"] += 1
    return list(first.values())


def drop_copies(train: list[Pair], held_out: list[Pair], dropped: Counter[str]) -> list[Pair]:
    """Train pairs neither side of which is a dev or test sentence."""
    text = HeldOutText(held_out)
    kept = [pair for pair in train if not text.copied_by(pair)]
    if len(kept) < len(train):
        dropped["train pair that copies a dev or test sentence"] += len(train) - len(kept)
    return kept


def hold_out_pairs(groups: list[list[Pair]], count: int, parts: int) -> tuple[list[list[Pair]], list[Pair]]:
    """`parts` times `count` pairs and the rest.  Raises ConfigError unless at least half of the pairs stay in training."""
    total = sum(map(len, groups))
    if 2 * parts * count > total:
        room = f"at most {total // (2 * parts)} (half of {total} distinct pairs stay for training)"
        raise ConfigError("corpus.held_out", room, count)
    held, rest = hold_out(groups, [count] * parts)
    if any(len(part) < count for part in held):
        room = f"at most {min(map(len, held))} (the other pairs share sentences with too many others to be set apart)"
        raise ConfigError("corpus.held_out", room, count)
    return held, rest


def _paths(config: CorpusConfig, split: str) -> list[Path]:
    return [Path(config.data_dir) / name for name in getattr(config, split)]


def _read(config: CorpusConfig, split: str) -> list[Pair]:
    paths = _paths(config, split)
    if not paths:
        return []
    read = read_parallel if config.name == "parallel" else read_tsv
    return read(*paths, prefix=split, form=text_form(config))


def read_parallel(source: Path, target: Path, prefix: str, form: TextForm = normalize_text) -> list[Pair]:
    """Pairs of the lines of two files.  Raises CorpusError, naming files and counts, if their numbers of lines differ."""
    sources, targets = read_lines(source), read_lines(target)
    if len(sources) != len(targets):
        got = f"{len(sources)} in {source} and {len(targets)} in {target}"
        raise CorpusError(f"{source}: expected as many lines as {target} has, got {got}")
    lines = enumerate(zip(sources, targets, strict=True), 1)
    return [Pair(form(a), form(b), f"{prefix}.{i}") for i, (a, b) in lines]


def read_tsv(path: Path, prefix: str, form: TextForm = normalize_text) -> list[Pair]:
    """Pairs "source TAB target"; further columns are not read.  Raises CorpusError for a line without a tab."""
    pairs = []
    for i, line in enumerate(read_lines(path), 1):
        columns = line.split("\t")
        if len(columns) < 2:
            raise CorpusError(f"{path}:{i}: expected source TAB target, got {len(columns)} column")
        pairs.append(Pair(form(columns[0]), form(columns[1]), f"{prefix}.{i}"))
    return pairs
