"""Which RayMQ this is: what brokers tell of themselves, and who wrote a directory's files.

It stands in the code, for a program may have that without the package's metadata (a folder of Ray's `py_modules`, a
checkout): tests/unit/test_packaging.py compares it with pyproject.toml.
"""

from typing import Final

VERSION: Final = "0.1.0"
