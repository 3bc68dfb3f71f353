"""Text in figures: fonts that hold the characters, and right-to-left words."""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import arabic_reshaper
import matplotlib
from bidi.algorithm import get_display
from matplotlib import font_manager

DEFAULT_FONT = "DejaVu Sans"
_PLACEHOLDER_FONTS = ("Last Resort", "LastResort")  # hold every character, all drawn as boxes
# from 3.11 on matplotlib lays text out with HarfBuzz, which joins Arabic letters and orders them itself
_MATPLOTLIB_SHAPES = matplotlib.__version_info__ >= (3, 11)
_warned: set[str] = set()


def is_right_to_left(text: str) -> bool:
    """Whether `text` holds a letter of a right-to-left script.

    >>> is_right_to_left("سلام"), is_right_to_left("שלום!"), is_right_to_left("abc 12")
    (True, True, False)
    """
    return any(unicodedata.bidirectional(character) in ("R", "AL") for character in text)


def shaped(text: str, *, by_matplotlib: bool = _MATPLOTLIB_SHAPES) -> str:
    """`text` as matplotlib must be given it: right-to-left words joined and in visual order if it does not do so itself."""
    if by_matplotlib or not is_right_to_left(text):
        return text
    return get_display(arabic_reshaper.reshape(text))


def text_style(texts: Iterable[str]) -> dict[str, Any]:
    """Properties of matplotlib text that draw `texts` as they are: fonts that hold the characters, no mathematics.

    Warns once for a set of characters that no installed font holds; they are drawn as boxes.
    """
    fonts, missing = fonts_for("".join(texts))
    new = "".join(sorted(set(missing) - _warned))
    if new:
        _warned.update(new)
        shown = ", ".join(f"{character} (U+{ord(character):04X})" for character in new[:20])
        more = f" and {len(new) - 20} more" if len(new) > 20 else ""
        warnings.warn(
            f"no installed font holds {shown}{more}: drawn as boxes; install one, such as Noto Sans CJK (Debian: fonts-noto-cjk)",
            stacklevel=3,
        )
    return {"fontfamily": list(fonts), "parse_math": False}


def fonts_for(text: str) -> tuple[Sequence[str], str]:
    """(families to draw `text` with, most wanted first; characters that none of them holds)."""
    needed = {character for character in text if character.isprintable() and not character.isspace()}
    needed -= set(map(chr, _characters(font_manager.findfont(DEFAULT_FONT))))
    fonts = [DEFAULT_FONT]
    if needed:
        _find_new_fonts()
    while needed:
        held, name = max(((len(needed & _held(entry, needed)), entry.name) for entry in _plain_fonts()), default=(0, ""))
        if held == 0:
            break
        fonts.append(name)
        needed -= _held(next(entry for entry in _plain_fonts() if entry.name == name), needed)
    return fonts, "".join(sorted(needed))


def _plain_fonts() -> list[font_manager.FontEntry]:
    entries = font_manager.fontManager.ttflist
    plain = [e for e in entries if e.style == "normal" and e.weight in (400, "normal", "regular", "book")]
    return [e for e in plain if not e.name.startswith(_PLACEHOLDER_FONTS)]


def _held(entry: font_manager.FontEntry, characters: set[str]) -> set[str]:
    held = _characters(entry.fname)
    return {character for character in characters if ord(character) in held}


@lru_cache(maxsize=512)
def _characters(path: str) -> frozenset[int]:
    return frozenset(font_manager.get_font(path).get_charmap())


def _find_new_fonts() -> None:
    """Add fonts installed since matplotlib wrote its list of fonts, which it keeps between runs."""
    known = {entry.fname for entry in font_manager.fontManager.ttflist}
    for path in font_manager.findSystemFonts():
        if path not in known and path not in _unreadable:
            try:
                font_manager.fontManager.addfont(path)
            except (RuntimeError, OSError):  # a kind of font that matplotlib cannot read, such as bitmaps
                _unreadable.add(path)


_unreadable: set[str] = set()
