"""The version of this RayMQ, which brokers report and which is written into directories.

It is a constant in the code, because a program may have the code without the package's metadata (a folder of Ray's
`py_modules`, a checkout): tests/unit/test_packaging.py compares it with pyproject.toml.
"""

from typing import Final

VERSION: Final = "0.1.0"
