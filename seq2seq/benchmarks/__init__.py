"""How long attention takes and how much it holds, beside other libraries and in the same run.

run_benchmark       every function over lengths, forward and gradient: results.json, table.txt and figures
check_attention     every implementation against float64 NumPy, for a new device
"""

from seq2seq.benchmarks.check import check_attention
from seq2seq.benchmarks.run import run_benchmark

__all__ = ["check_attention", "run_benchmark"]
