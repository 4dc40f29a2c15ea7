"""Unique keys of this process's messages; see `raymq.storage.unique_keys` for their shape."""

from __future__ import annotations

import os
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raymq.storage import properties
from raymq.storage.record_columns import fixed_width
from raymq.storage.unique_keys import UniqueKeys

_keys: Final = UniqueKeys()
os.register_at_fork(after_in_child=_keys.restart)

#: Where the key stands in its property, and the property's length with its separators.
KEY_AT: Final = len(properties.UNIQ_KEY) + 1
PAIR_BYTES: Final = KEY_AT + 32 + 1

reserve = _keys.reserve
text = _keys.text
texts = _keys.texts


def pairs(numbers: npt.NDArray[np.int64]) -> pa.Array:
    """The property string of each reserved number's key, as an array of binary."""
    rows = np.empty(len(numbers), [("name", f"V{KEY_AT}"), ("key", "V32"), ("end", "V1")])
    rows["name"] = np.void(pair("")[:-1])
    rows["key"] = np.frombuffer(texts(numbers).buffers()[2], "V32")
    rows["end"] = np.void(pair("")[-1:])
    return fixed_width(rows.view(np.uint8).reshape(len(numbers), PAIR_BYTES))


def process_unique_keys() -> UniqueKeys:
    """The source itself; a forked child has a prefix of its own."""
    return _keys


def pair(key: str) -> bytes:
    """The property string of a unique key."""
    return f"{properties.UNIQ_KEY}\x01{key}\x02".encode()
