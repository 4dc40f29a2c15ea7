"""Compiled steps of RayMQ for batches: an optional companion of the package raymq.

raymq has the same steps in NumPy, and uses these instead if they are installed
(`raymq.storage.records.native_kernels`), with the same results. They work on buffers and arrays, keep no state, and
check every position that they receive.
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
from raymq_native.encoding import join_columns, join_messages, join_one
from raymq_native.indexing import put_few, put_keys
from raymq_native.messages import BatchFields, MessageFields, OpenBatches, PendingFields, number_messages
from raymq_native.scanning import derive, record_sizes, scan, scan_one, stamp

__all__ = [
    "INTERFACE",
    "BatchFields",
    "MessageFields",
    "OpenBatches",
    "PendingFields",
    "bodies",
    "checksums",
    "common_properties",
    "derive",
    "filled",
    "gather",
    "gather_bodies",
    "heads",
    "join_columns",
    "join_messages",
    "join_one",
    "number_messages",
    "put_few",
    "put_keys",
    "record_sizes",
    "scan",
    "scan_one",
    "stamp",
    "track",
    "untrack",
]

#: The version of the functions and their arguments; raymq uses only the version that it supports.
INTERFACE: Final = 4
