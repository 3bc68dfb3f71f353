"""The report of a comparison: one HTML page that needs nothing else, neither files nor a network.

write_report     what `compare_runs` returns, as a page (page.py)
run_attention    where the page has its attention weights from (alignments.py)

The page is report.html.jinja with report.css and report.js inside; tables.py and figures.py fill it.
"""

from seq2seq.report.alignments import run_attention
from seq2seq.report.page import write_report

__all__ = ["run_attention", "write_report"]
