"""The steps that RayMQ takes for every message of a batch, compiled: an optional companion of the package raymq.

raymq has the same steps in NumPy and takes these where they are installed (`raymq.storage.kernels`), with the same
results. They work on buffers and arrays, keep nothing, and check every position that they are given.
"""

from __future__ import annotations

from typing import Final

from raymq_native.decoding import (
    bodies,
    checksums,
    common_properties,
    filled,
    gather,
    gather_bodies,
    heads,
    track,
    untrack,
)
from raymq_native.encoding import join_columns, join_lists, join_one
from raymq_native.indexing import put_few, put_keys
from raymq_native.scanning import derive, record_sizes, scan, scan_one, stamp

__all__ = [
    "INTERFACE",
    "bodies",
    "checksums",
    "common_properties",
    "derive",
    "filled",
    "gather",
    "gather_bodies",
    "heads",
    "join_columns",
    "join_lists",
    "join_one",
    "put_few",
    "put_keys",
    "record_sizes",
    "scan",
    "scan_one",
    "stamp",
    "track",
    "untrack",
]

#: Which functions there are and what they take; raymq uses no other than the one that it knows.
INTERFACE: Final = 2
