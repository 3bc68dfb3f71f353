"""attn/README.md: every function is in its table and in an example, and the examples print what they show."""

import doctest
import re
from pathlib import Path

import attn

PATH = Path(__file__).parents[2] / "attn" / "README.md"
TEXT = PATH.read_text(encoding="utf-8")
FUNCTIONS = {name for name in attn.__all__ if not isinstance(getattr(attn, name), type)}


def test_examples_print_what_they_show(quick_compilation):
    flags = doctest.NORMALIZE_WHITESPACE
    failed, tried = doctest.testfile(str(PATH), module_relative=False, optionflags=flags)
    assert failed == 0
    assert tried > len(FUNCTIONS)


def test_every_function_is_in_the_tables_and_in_an_example():
    before, examples = TEXT.split("## Examples")
    named = set(re.findall(r"`(\w+)`", before))
    used = set(re.findall(r"attn\.(\w+)", "\n".join(re.findall(r"^>>> .*", examples, re.MULTILINE))))
    assert named >= FUNCTIONS
    assert used >= FUNCTIONS
