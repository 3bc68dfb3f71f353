"""Multi30k: captions of images in English, German and French (Elliott et al. 2016, 2017), with its own split.

Source: the public repository multi30k/dataset, task 1, raw.  Its images' terms restrict them to non-commercial research
and education.  dev = val, test = test_2016_flickr; nothing is moved between the parts, copies are only counted.
"""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from seq2seq.config import ConfigError, CorpusConfig
from seq2seq.corpora.cleaning import CorpusError, read_lines
from seq2seq.corpora.fetch import check_sha256, fetch
from seq2seq.corpora.overlap import HeldOutText
from seq2seq.corpora.pairs import Built, Pair, drop_blank
from seq2seq.corpora.text_form import text_form

VERSION = 1
SOURCE = "https://github.com/multi30k/dataset"
RAW = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"
LICENCE = "captions of Flickr images; non-commercial research and education"
PARTS = {"train": "train", "dev": "val", "test": "test_2016_flickr"}
SHA256 = {
    "train.en": "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
    "train.de": "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
    "train.fr": "5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d",
    "val.en": "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
    "val.de": "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
    "val.fr": "5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc",
    "test_2016_flickr.en": "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
    "test_2016_flickr.de": "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
    "test_2016_flickr.fr": "cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6",
}


def languages(config: CorpusConfig) -> tuple[str, str]:
    """The two languages of the pair.  Raises ConfigError for a language the corpus lacks."""
    tags = tuple(config.pair.split("-"))
    if len(tags) != 2 or not set(tags) <= {"en", "de", "fr"}:
        raise ConfigError("corpus.pair", "two of en, de, fr", config.pair)
    return tags


def fingerprint(config: CorpusConfig) -> dict[str, Any]:
    """Everything the pairs depend on."""
    names = [f"{part}.{language}" for part in PARTS.values() for language in languages(config)]
    return {"version": VERSION, "files": {name: SHA256[name] for name in names}}


def build(config: CorpusConfig, log: Callable[[str], object]) -> Built:
    """Read the three parts.

    Raises:
        CorpusError: a file is missing and cannot be fetched, or has another checksum.
    """
    dropped: Counter[str] = Counter()
    read, splits, form = 0, {}, text_form(config)
    for split, part in PARTS.items():
        source, target = (read_lines(_locate(f"{part}.{language}", config, log)) for language in languages(config))
        pairs = [Pair(form(a), form(b), f"{part}.{i}") for i, (a, b) in enumerate(zip(source, target, strict=True), 1)]
        read += len(pairs)
        splits[split] = drop_blank(pairs, dropped)
    held_out = HeldOutText(splits["dev"] + splits["test"])
    notes = {"train pairs that copy a dev or test sentence (kept, as the benchmark has them)": _copies(splits["train"], held_out)}
    return Built(**splits, read=read, dropped=dropped, notes=notes)


def _copies(train: list[Pair], held_out: HeldOutText) -> int:
    return sum(held_out.copied_by(pair) for pair in train)


def _locate(name: str, config: CorpusConfig, log: Callable[[str], object]) -> Path:
    path = Path(config.data_dir or Path(config.output_dir) / "downloads" / "multi30k") / name
    if not config.data_dir and not path.exists():
        packed = fetch(f"{RAW}/{name}.gz", path.with_name(f"{name}.gz"), log)
        try:
            path.write_bytes(gzip.decompress(packed.read_bytes()))
        except (OSError, EOFError) as error:
            raise CorpusError(f"{packed}: expected a gzip file, got: {error}") from None
    check_sha256(path, SHA256[name])
    return path
