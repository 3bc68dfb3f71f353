"""Text as every corpus and every input is read: one normal form, lines cut at "\\n" only, no control characters."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path

_INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200e\u200f"))  # soft hyphen, left-to-right and right-to-left marks
# White space that Unicode calls control (tab, vertical tab, form feed, CR, NEL) may stand in a line; the others corrupt a corpus.
_CONTROL = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]")


class CorpusError(ValueError):
    """A corpus that cannot be read or made: which file and line, what was expected, what came."""


def normalize_text(text: str) -> str:
    """NFC, without soft hyphens and direction marks, every run of white space one space, none at the ends.

    Applied once to both sides of every corpus, and to the input of translation.  Joiners (U+200C, U+200D) stay: they
    change letters in Persian and in Indic scripts.

    >>> normalize_text(" a\\u00a0 cafe\\u0301 \\u200e")
    'a café'
    """
    return " ".join(unicodedata.normalize("NFC", text.translate(_INVISIBLE)).split())


def read_lines(path: str | Path) -> list[str]:
    """Lines of a UTF-8 file as ``wc -l`` counts them: cut at "\\n" only, one trailing "\\r" stripped.

    Raises:
        CorpusError: no such file, bytes that are no UTF-8, or a control character; file and line are named.
    """
    return list(split_lines(read_bytes(path), str(path)))


def read_bytes(path: str | Path) -> bytes:
    """The bytes of a file, or a CorpusError that names it."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise CorpusError(f"{path}: expected a readable file, got: {error.strerror}") from None


def split_lines(data: bytes, name: str) -> Iterator[str]:
    """Decode and check `data` line by line; `name` stands in error messages."""
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if not lines[-1]:
        lines.pop()
    for number, raw in enumerate(lines, 1):
        try:
            line = raw.removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError as error:
            raise CorpusError(f"{name}:{number}: expected UTF-8 text, got byte 0x{raw[error.start]:02x}") from None
        if control := _CONTROL.search(line):
            raise CorpusError(f"{name}:{number}: expected text, got control character U+{ord(control[0]):04X}")
        yield line
