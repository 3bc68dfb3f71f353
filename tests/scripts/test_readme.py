"""The README's example runs as printed and prints what it says."""

import contextlib
import io
import re
from pathlib import Path

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_the_attn_example_prints_what_the_readme_shows():
    code = re.search(r"```python\n(import jax\n.*?)```", README, re.DOTALL).group(1)
    shown = re.search(r"It prints\n\n```\n(.*?)\n```", README, re.DOTALL).group(1)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    assert printed.getvalue().strip() == shown


def test_every_file_it_names_exists():
    root = Path(__file__).parents[2]
    for name in re.findall(r"(?:configs|scripts)/[\w/]+\.(?:py|sh|toml|png)", README):
        assert (root / name).exists(), name
