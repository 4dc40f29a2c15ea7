"""Unique keys of this process's messages; see `raymq.storage.records.unique_keys` for their shape."""

from __future__ import annotations

import os
from typing import Final

from raymq.storage.records import property_names as properties
from raymq.storage.records.unique_keys import UniqueKeys

_keys: Final = UniqueKeys()
os.register_at_fork(after_in_child=_keys.restart)

reserve = _keys.reserve
text = _keys.text
texts = _keys.texts


def process_unique_keys() -> UniqueKeys:
    """The source itself; a forked child has a prefix of its own."""
    return _keys


def pair(key: str) -> bytes:
    """The property string of a unique key."""
    return f"{properties.UNIQ_KEY}\x01{key}\x02".encode()
