"""Files from their public homes, checked by checksum."""

from __future__ import annotations

import hashlib
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from seq2seq.corpora.cleaning import CorpusError


def sha256_of(path: str | Path) -> str:
    """Checksum of a file.  Raises CorpusError if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CorpusError(f"{path}: expected a readable file, got: {error.strerror}") from None


def check_sha256(path: str | Path, expected: str) -> None:
    """Raises CorpusError, naming the file and both checksums, if `path` holds anything else."""
    got = sha256_of(path)
    if got != expected:
        raise CorpusError(f"{path}: expected a file of sha256 {expected}, got {got}")


def fetch(url: str, path: str | Path, log: Callable[[str], object]) -> Path:
    """Fetch `url` into `path`, whole or not at all; a file that is already there is used.

    Raises:
        CorpusError: no network or no such address, with what to do instead.
    """
    path = Path(path)
    if path.exists():
        return path
    log(f"fetching {url}")
    request = urllib.request.Request(url, headers={"User-Agent": "attn-seq2seq"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            data = answer.read()
    except (OSError, urllib.error.URLError) as error:
        reason = getattr(error, "reason", None) or error
        raise CorpusError(
            f"{url}: expected to fetch {path.name}, got: {reason}; give a folder that holds it as data_dir"
        ) from None
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(data)
    temporary.replace(path)
    return path
