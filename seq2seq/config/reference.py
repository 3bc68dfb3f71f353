"""configs/reference.toml: every key with its default and what it means, written from the dataclasses.

python -m seq2seq.config.reference > configs/reference.toml
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Sequence
from typing import Any, Literal, get_args, get_origin, get_type_hints

import tomli_w

from seq2seq.config.models import RNNConfig, TransformerConfig
from seq2seq.config.schema import Config

WIDTH = 110


def reference_toml() -> str:
    """The text of the file; [model] stands for an RNN, and for a Transformer in comments."""
    defaults = Config()
    parts = [
        "# Every key of a config file, with its default and what it means. A file says only what differs from this.\n"
        "# Written from seq2seq/config/:  python -m seq2seq.config.reference > configs/reference.toml\n"
        "#\n"
        "#     python scripts/train.py configs/reference.toml --run-dir runs/x --optimizer.learning-rate 1e-3",
        _keys(defaults, ("seed",)),
    ]
    for section in dataclasses.fields(defaults):
        table = getattr(defaults, section.name)
        if dataclasses.is_dataclass(table):
            parts.append(_table(section.name, table))
            if isinstance(table, RNNConfig):
                parts.append("# Or, in its place:\n#\n" + _commented(_table(section.name, TransformerConfig())))
    return "\n\n".join(parts) + "\n"


def _table(name: str, table: Any) -> str:
    heading = _wrapped(inspect.getdoc(type(table)) or "")
    return f"[{name}]\n{heading}\n\n" + _keys(table, [field.name for field in dataclasses.fields(table)])


def _keys(table: Any, names: Sequence[str]) -> str:
    meanings, types = docstrings(type(table)), get_type_hints(type(table))
    lines = []
    for name in names:
        lines.append(_wrapped(meanings[name]))
        if get_origin(types[name]) is Literal and len(get_args(types[name])) > 1:
            lines.append(_wrapped("One of " + ", ".join(get_args(types[name])) + "."))
        lines.append(_assignment(name, getattr(table, name)))
    return "\n".join(lines)


def _assignment(name: str, value: Any) -> str:
    return f"{name} = {list(value)}" if isinstance(value, tuple) else tomli_w.dumps({name: value}).strip()


def docstrings(cls: type) -> dict[str, str]:
    """What stands below each field of a dataclass."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    return {
        field.target.id: text.value.value
        for field, text in zip(tree.body, tree.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


def _wrapped(text: str) -> str:
    return _commented("\n".join(textwrap.wrap(" ".join(text.split()), WIDTH)))


def _commented(text: str) -> str:
    return "\n".join(f"# {line}".rstrip() for line in text.split("\n"))


if __name__ == "__main__":
    print(reference_toml(), end="")
