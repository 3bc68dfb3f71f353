"""From a corpus config to files: build once, write whole or not at all, reuse as long as the recipe is the same.

    <output_dir>/<name>/<source>-<target>/{train,dev,test}.{<source>,<target>,ids}  and  report.json

report.json is the stamp: the recipe with its parameters and checksums, what was kept and dropped, and the checksums of
the files beside it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from seq2seq.config import CorpusConfig
from seq2seq.corpora import bible, files, multi30k, reverse, tatoeba
from seq2seq.corpora.cleaning import CorpusError, read_lines
from seq2seq.corpora.fetch import sha256_of
from seq2seq.corpora.pairs import Built, Pair, ParallelCorpus, length_histogram
from seq2seq.corpora.text_form import form_fingerprint

RECIPES: dict[str, ModuleType] = {
    "bible": bible,
    "multi30k": multi30k,
    "tatoeba": tatoeba,
    "parallel": files,
    "tsv": files,
    "reverse": reverse,
}
SPLITS = ("train", "dev", "test")
REPORT = "report.json"
Log = Callable[[str], object]


def load_corpus(config: CorpusConfig, log: Log = print) -> ParallelCorpus:
    """The corpus of `config`, built and written first unless its files are there already.

    Raises:
        ConfigError: a pair or a size that the recipe does not have.
        CorpusError: text that cannot be fetched or read, or a recipe that keeps fewer than half of the pairs.
    """
    folder, report = _prepare(config, log)
    splits = {split: _read_split(folder, split, report["languages"]) for split in SPLITS}
    return ParallelCorpus(**splits, report=report)


def prepare_corpus(config: CorpusConfig, log: Log = print) -> dict[str, Any]:
    """As ``load_corpus``, but log what was kept and dropped, sizes, lengths and paths, and return the report."""
    folder, report = _prepare(config, log)
    for line in summary(report, folder):
        log(line)
    return report


def corpus_dir(config: CorpusConfig) -> Path:
    """Folder of the prepared files."""
    return Path(config.output_dir) / config.name / "-".join(RECIPES[config.name].languages(config))


def summary(report: dict[str, Any], folder: Path) -> list[str]:
    """Lines that say what `report` holds."""
    kept = sum(report["pairs"].values())
    lines = [f"{report['name']} {'-'.join(report['languages'])}: {report['read']} pairs read, {kept} kept"]
    lines += [f"  dropped {count:7d}  {reason}" for reason, count in report["dropped"].items()]
    lines += [f"  note: {count} {what}" for what, count in report["notes"].items()]
    bins = [name for name, _ in sorted(_bins(report).items(), key=lambda item: item[1])]
    lines.append(f"  {'words':14s}" + "".join(f"{name:>8s}" for name in bins) + f"{'pairs':>9s}")
    for split in SPLITS:
        for language, counts in report["lengths"][split].items():
            row = "".join(f"{counts.get(name, 0):8d}" for name in bins)
            lines.append(f"  {split:5s} {language:8s}" + row + f"{report['pairs'][split]:9d}")
    if report["licence"]:
        lines.append(f"  source: {report['source']}; {report['licence']}")
    return [*lines, *(f"  {folder / name}" for name in report["files"])]


def _bins(report: dict[str, Any]) -> dict[str, int]:
    """Histogram bins in use, with their first length."""
    names = {name for split in report["lengths"].values() for counts in split.values() for name in counts}
    return {name: int(name.rstrip("+").split("-")[0]) for name in names}


def _prepare(config: CorpusConfig, log: Log) -> tuple[Path, dict[str, Any]]:
    recipe, folder = RECIPES[config.name], corpus_dir(config)
    fingerprint = json.loads(json.dumps(recipe.fingerprint(config) | form_fingerprint(config)))
    if report := _reusable(folder, fingerprint):
        log(f"using {folder}, prepared before with the same recipe")
        return folder, report
    built = recipe.build(config, log)
    _require_half(config, built)
    return folder, _write(folder, config, fingerprint, built)


def _reusable(folder: Path, fingerprint: dict[str, Any]) -> dict[str, Any] | None:
    """The report in `folder` if it is of the same recipe and the files are as it says."""
    try:
        report = json.loads((folder / REPORT).read_text(encoding="utf-8"))
        same = report["recipe"] == fingerprint and all(sha256_of(folder / f) == c for f, c in report["files"].items())
    except (OSError, ValueError, KeyError, TypeError):  # no such folder, or not written by this version: build anew
        return None
    return report if same else None


def _require_half(config: CorpusConfig, built: Built) -> None:
    kept = len(built.train) + len(built.dev) + len(built.test)
    empty = [split for split in SPLITS if not getattr(built, split)]
    if empty:
        raise CorpusError(
            f"corpus {config.name} {config.pair}: expected pairs in train, dev and test, got none in {', '.join(empty)}"
        )
    if 2 * kept < built.read:
        reasons = "; ".join(f"{count} {reason}" for reason, count in built.dropped.most_common())
        raise CorpusError(
            f"corpus {config.name} {config.pair}: expected to keep at least half, got {kept} of {built.read} ({reasons})"
        )


def _write(folder: Path, config: CorpusConfig, fingerprint: dict[str, Any], built: Built) -> dict[str, Any]:
    """Write everything into a new folder and put it in place of the old one."""
    recipe = RECIPES[config.name]
    languages = recipe.languages(config)
    new = folder.with_name(f".{folder.name}.{os.getpid()}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    splits = {split: getattr(built, split) for split in SPLITS}
    for split, pairs in splits.items():
        for suffix, column in zip((*languages, "ids"), zip(*pairs, strict=True), strict=True):
            _write_text(new / f"{split}.{suffix}", "".join(f"{line}\n" for line in column))
    report = {
        "name": config.name,
        "languages": list(languages),
        "source": getattr(recipe, "SOURCE", ""),
        "licence": getattr(recipe, "LICENCE", ""),
        "recipe": fingerprint,
        "read": built.read,
        "dropped": dict(built.dropped),
        "notes": built.notes,
        "pairs": {split: len(pairs) for split, pairs in splits.items()},
        "lengths": {split: _lengths(pairs, languages) for split, pairs in splits.items()},
        "files": {path.name: sha256_of(path) for path in sorted(new.iterdir())},
    }
    _write_text(new / REPORT, json.dumps(report, ensure_ascii=False, indent=2) + "\n")
    old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
    return report


def _lengths(pairs: list[Pair], languages: tuple[str, str]) -> dict[str, dict[str, int]]:
    return {language: length_histogram(pair[side] for pair in pairs) for side, language in enumerate(languages)}


def _write_text(path: Path, text: str) -> None:
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _read_split(folder: Path, split: str, languages: list[str]) -> list[Pair]:
    columns = [read_lines(folder / f"{split}.{suffix}") for suffix in (*languages, "ids")]
    return [Pair(*row) for row in zip(*columns, strict=True)]
