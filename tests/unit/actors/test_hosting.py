"""What is done to a process that hosts a service."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from raymq.actors.hosting import leave_out_pandas
leave_out_pandas()
import pyarrow as pa
print(pa.array([1, 2]).to_pylist(), "pandas" in sys.modules)
"""


def test_arrays_are_made_without_pandas() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "[1, 2] False\n"
